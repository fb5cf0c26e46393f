"""One connection to one Redis, and the scripts on it.

Never lets an error of redis-py out, and never sends a command a second time by itself: only the mark knows whether a
script ran.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import MovedError, NoPermissionError, NoScriptError, RedisError
from redis.retry import Retry

from fencepost.errors import TargetRefused
from fencepost.sinks.redis import scripts
from fencepost.sinks.redis.chunks import Chunk
from fencepost.sinks.redis.layout import Layout, tag_of
from fencepost.sinks.redis.server import NoAccess, check_keeps, check_usable, explained
from fencepost.sinks.redis.sink import Redis
from fencepost.sinks.redis.state import State
from fencepost.sinks.sql import RowsRefused, Silent

SETTINGS = ("appendfsync", "no-appendfsync-on-rewrite", "proto-max-bulk-len")
LARGEST = 512 * 1024 * 1024
"""Redis's own limit of a value, unless it is set otherwise."""


class Moved(Exception):
    """The mark is not the one that was expected: another driver was faster. Nothing was written."""


class Target:
    """Connects when it is needed; after any error the next question goes to a new connection."""

    def __init__(self, sink: Redis, job: str) -> None:
        self._sink = sink
        self._client: Any = None  # redis-py types a command's answer, and not the way to send any command
        self._identity: bytes | None = None
        own = sink.layout.own
        self.mark_key = f"{own}mark:{job.replace('%', '%25').replace(':', '%3A')}:{sink.name}"
        self._target_key = f"{own}target"
        self.largest = LARGEST

    def identify(self) -> str:
        """The random id in the database, made at the first start."""
        if self._identity is None:
            self._run("SET", self._target_key, uuid.uuid4().hex, "NX")
            self._identity = self._run("GET", self._target_key)
        assert self._identity is not None
        return self._identity.decode(errors="replace")

    def state(self) -> State:
        """What is there of us."""
        return State.read(self._run("HMGET", self.mark_key, *scripts.FIELDS))

    def check(self, layout: Layout, chunk: Chunk) -> None:
        """`RowsRefused` if a key would not take its row."""
        rows = chunk.rows if layout.shape == "counter" else []
        self._script(scripts.CHECK, chunk.keys, [_shape(layout), *rows])

    def apply(self, layout: Layout, chunk: Chunk | None, before: State, after: State) -> State:
        """Rows and mark in one step, if the mark is still `before`; `Moved` if not. Without a chunk, the mark alone."""
        chunk = chunk or Chunk(())
        marks = [*before.texts, *after.texts]
        self._script(scripts.APPLY, chunk.keys, [_shape(layout), *marks, len(chunk.names), *chunk.names, *chunk.rows])
        return after

    def drop(self) -> None:
        """Throw the connection away. Must not raise."""
        client, self._client = self._client, None
        if client is not None:
            _close(client)

    def forget(self) -> None:
        """The next start looks anew, and the ledger judges what it finds. Must not raise."""
        self.drop()
        self._identity = None

    def _script(self, text: str, keys: Sequence[bytes], arguments: Sequence[Any]) -> None:
        given = (len(keys) + 1, self.mark_key, *keys, *arguments)
        try:
            answer = self._run("EVALSHA", hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), *given)
        except NoScriptError:
            answer = self._run("EVAL", text, *given)
        word, *facts = (part.decode(errors="replace") for part in answer)
        if word == "moved":
            raise Moved
        if word == "rights":
            raise NoAccess("the user's rights do not allow to write the rows")
        if word not in {"fine", "done"}:
            raise RowsRefused(_REFUSALS[word].format(shape=self._sink.shape, kind=facts[0] if facts else ""))

    def _run(self, *command: Any) -> Any:
        try:
            return self._connected().execute_command(*command)
        except NoScriptError:
            raise
        except (RedisError, OSError) as error:
            self.drop()
            raise explained(error) from None

    def _connected(self) -> Any:
        if self._client is None:
            client = self._connect()
            try:
                self._examine(client)
            except TargetRefused as error:
                _close(client)
                if self._identity is None:
                    raise
                # It was fine when the job started: what is decided has to wait until it is again.
                raise Silent(f"it was started anew with other settings ({error.what.rstrip('.')})") from None
            except BaseException:
                _close(client)
                raise
            self._client = client
        return self._client

    def _connect(self) -> Any:
        """To the server of the URL, or to the one of its cluster that has our slot."""
        patience = {"socket_connect_timeout": self._sink.timeout, "socket_timeout": self._sink.timeout}
        pool = redis.ConnectionPool.from_url(self._sink.url, **patience, retry=Retry(NoBackoff(), 0), protocol=2)
        client: Any = redis.Redis(connection_pool=pool, single_connection_client=True)
        try:
            client.execute_command("GET", self._target_key)
        except MovedError as moved:
            _close(client)
            options = {**pool.connection_kwargs, "host": moved.host, "port": moved.port}
            there = redis.ConnectionPool(connection_class=pool.connection_class, **options)
            client = redis.Redis(connection_pool=there, single_connection_client=True)
        except BaseException:
            _close(client)
            raise
        return client

    def _examine(self, client: Any) -> None:
        """At every connection: a server that was started again may have other settings, or nothing in it."""
        found = client.execute_command("GET", self._target_key)
        if self._identity is not None and found != self._identity:
            raise Silent("it was emptied since the job started, or another database lies in its place")
        info = client.execute_command("INFO")
        check_usable(info, tagged=bool(tag_of(self._sink.prefix)))
        settings = None
        with suppress(NoPermissionError):
            settings = client.execute_command("CONFIG GET", *SETTINGS)
        self.largest = int((settings or {}).get("proto-max-bulk-len", LARGEST))
        if self._sink.durable is None:
            check_keeps(info, settings)


def _shape(layout: Layout) -> str:
    return "string" if layout.shape == "json" else layout.shape


def _close(client: Any) -> None:
    with suppress(RedisError, OSError):
        client.close()
        client.connection_pool.disconnect()


_REFUSALS = {
    # A kind may be a module's own word, and is no value.
    "kind": "a key holds a {kind}, which shape={shape!r} does not write",
    "not_a_counter": "a key holds a text that is no whole number, so that nothing can be added to it",
    "counter_full": "a counter would leave the numbers that 64 bits hold",
}
