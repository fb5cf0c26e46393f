"""One connection to one Redis, and the scripts on it.

Never lets an error of redis-py out, and never sends a command a second time by itself: only the mark knows whether a
script ran.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import MovedError, NoPermissionError, RedisError
from redis.retry import Retry

from fencepost.errors import TargetRefused
from fencepost.sinks.database import RowsRefused, Silent
from fencepost.sinks.redis import scripts, wire
from fencepost.sinks.redis.chunks import Chunk
from fencepost.sinks.redis.layout import Layout, tag_of
from fencepost.sinks.redis.server import NoAccess, check_keeps, check_usable, explained
from fencepost.sinks.redis.sink import Redis
from fencepost.sinks.redis.state import State

SETTINGS = ("appendfsync", "no-appendfsync-on-rewrite", "proto-max-bulk-len")
LARGEST = 512 * 1024 * 1024
"""Redis's own limit of a value, unless it is set otherwise."""


Request = Iterable[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class Step:
    """A chunk, the mark that it builds on, and the one that it leaves."""

    chunk: Chunk
    before: State
    after: State


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

    def identity(self) -> str:
        """The same, where it was made; "" where not."""
        found = self._run("GET", self._target_key)
        return "" if found is None else found.decode(errors="replace")

    def state(self) -> State:
        """What is there of us."""
        return State.read(self._run("HMGET", self.mark_key, *scripts.FIELDS))

    def vote(self, layout: Layout, chunks: Iterable[Chunk], before: State, after: State) -> None:
        """`RowsRefused` if a key would not take its row. The mark is written if all do, and `Moved` if it is another.

        By a write it is known that memory, disk, role and rights allow one.
        """
        last: list[Chunk] = []

        def requests() -> Iterator[Request]:
            for chunk in chunks:
                if chunk.last:
                    last.append(chunk)
                else:
                    script = scripts.check(_shape(layout))
                    yield self._script(script, chunk, wire.words(chunk.whole), _to_add(layout, chunk))

        for _ in self._answered(requests()):
            pass
        for chunk in last:
            script, facts = scripts.vote(_shape(layout)), wire.words(chunk.whole, *before.texts, *after.texts, 0)
            for _ in self._answered([self._script(script, chunk, facts, _to_add(layout, chunk))]):
                pass

    def apply(self, layout: Layout, steps: Iterable[Step]) -> Iterator[Step]:
        """Each chunk's rows and mark in one step, if the mark is still as it was before; `Moved` if not.

        The next chunk is on its way while the server writes one. It expects the mark that the one before it leaves, so
        that it does nothing if that one did nothing.
        """
        sent: deque[Step] = deque()

        def requests() -> Iterator[Request]:
            for step in steps:
                sent.append(step)
                yield self._apply(layout, step)

        for _ in self._answered(requests()):
            yield sent.popleft()

    def drop(self) -> None:
        """Throw the connection away. Must not raise."""
        client, self._client = self._client, None
        if client is not None:
            _close(client)

    def forget(self) -> None:
        """The next start looks anew, and the ledger judges what it finds. Must not raise."""
        self.drop()
        self._identity = None

    def _apply(self, layout: Layout, step: Step) -> Request:
        chunk, names = step.chunk, step.chunk.names
        facts = wire.words(chunk.whole, *step.before.texts, *step.after.texts, len(names), *names)
        whole = wire.columns([column.slice(0, chunk.whole) for column in chunk.columns])
        gaps = wire.columns_with_gaps([column.slice(chunk.whole) for column in chunk.columns])
        return self._script(scripts.apply(_shape(layout), len(names)), chunk, facts, whole, gaps)

    def _script(self, text: bytes, chunk: Chunk, *arguments: wire.Words) -> Request:
        """With its text: a server that was started again, or one that forgets scripts, would not know a name."""
        head = wire.words("EVAL", text, 1 + len(chunk.keys), self.mark_key)
        return wire.command(head, wire.columns([chunk.keys]), *arguments)

    def _answered(self, requests: Iterable[Request]) -> Iterator[None]:
        """Send one, then read the answer to the one before: what makes them and what answers them work side by side."""
        connection: Any = None
        unanswered = 0
        try:
            for request in requests:
                connection = connection or self._connected().connection
                unanswered += 1
                with self._explaining():
                    connection.send_packed_command(request)
                if unanswered > 1:
                    unanswered -= 1
                    self._judge(connection)
                    yield
            if unanswered:
                unanswered -= 1
                self._judge(connection)
                yield
        except (Moved, RowsRefused):
            with suppress(Silent):
                for _ in range(unanswered):
                    self._read(connection)
            raise
        except BaseException:
            if unanswered:
                # Its answer would be taken for that to the next command.
                self.drop()
            raise

    def _read(self, connection: Any) -> Any:
        with self._explaining():
            return connection.read_response()

    def _judge(self, connection: Any) -> None:
        word, *facts = (part.decode(errors="replace") for part in self._read(connection))
        if word == "moved":
            raise Moved
        if word == "rights":
            raise NoAccess("the user's rights do not allow to write the rows")
        if word not in {"fine", "done"}:
            raise RowsRefused(_REFUSALS[word].format(shape=self._sink.shape, kind=facts[0] if facts else ""))

    def _run(self, *command: Any) -> Any:
        with self._explaining():
            return self._connected().execute_command(*command)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """After any error the connection is thrown away."""
        try:
            yield
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


def _to_add(layout: Layout, chunk: Chunk) -> wire.Words:
    return wire.columns(chunk.columns) if layout.shape == "counter" else wire.words()


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
