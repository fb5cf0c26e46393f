"""Redis: rows and mark in one script, so that a commit can be repeated. Needs redis-py, an extra.

Never shows the URL: a password may be in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import get_args
from urllib.parse import parse_qs, urlsplit

from fencepost.errors import BadConfig
from fencepost.sinks.contract import Capabilities, Session, Sink
from fencepost.sinks.redis.layout import Layout, Shape

__all__ = ["Redis"]

CHUNK_BYTES = 64 * 1024 * 1024
"""One script call; the server does nothing else meanwhile."""


@dataclass(frozen=True)
class Redis(Sink):
    """Keys in a Redis 7 or Valkey database.

        job.write(counts, fp.Redis("redis://localhost", key="word", prefix="words:"))

    A row is written to the Redis key `prefix` + the value of its `key` column. Of several key columns the values are
    joined with ":", and a ":" or "%" inside them becomes "%3A" or "%25". What is written depends on `shape`:

        hash         a field for every other column; NULL removes the field, other fields stay
        string       the one other column; NULL removes the key
        json         the other columns, as one JSON text
        counter      the one other column is added: rows are changes, not totals (append only, whole numbers only)
        sorted_set   `member` with `score`, in the set `prefix` + key (`prefix` alone without a key); NULL removes it

    Of several rows of an epoch for one key, the last one is written (a counter gets their sum). A key that holds
    another kind of value fails the epoch. Numbers are plain text, decimals exact, booleans true and false, times ISO
    text (UTC, with +00:00, if they have a zone), nested values JSON, bytes raw (base64 in JSON).

    The mistake people make: Redis as it is installed. It keeps rows in memory and forgets the last minutes in a crash,
    while the job counts them as done. The server is asked, and refused unless it has `appendonly yes`, `appendfsync
    always` and a maxmemory-policy that spares keys without expiry (`noeviction`). A replica that takes over without the
    last commits is noticed, and the job stops (`target_behind`).
    """

    url: str = field(repr=False)
    """redis://user:password@host:port/database, or rediss:// for TLS (with ?ssl_ca_certs=…)."""
    _: KW_ONLY
    key: str | Sequence[str] = ()
    shape: Shape = "hash"
    prefix: str = ""
    """What every key begins with. For a cluster it needs a hash tag: `{words}:`."""
    member: str | None = None
    score: str | None = None
    durable: bool | None = None
    """None: the server is asked whether it keeps what it acknowledged. True: you know that it does, though it does not
    say so (a managed service). False: it may forget, and the job is at least once at best."""
    chunk_rows: int = 10_000
    """A larger epoch (or one of more than 64 MiB) is written, and seen, in several parts."""
    timeout: float = 10.0
    """Seconds to wait for an answer."""
    name: str = ""
    """`redis:<prefix>` unless told."""
    server: str = field(init=False, compare=False)
    """The URL without its secrets."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, where the user wrote it."""
        object.__setattr__(self, "name", self.name or f"redis:{self.prefix.strip(':') or self.shape}")
        object.__setattr__(self, "server", _shown(self.url))
        if problem := _problem(self):
            raise BadConfig("bad_sink", f"Redis: {problem[0]}.", next=problem[1]).at(sink=self.name)

    @property
    def layout(self) -> Layout:
        """How rows become keys."""
        key = (self.key,) if isinstance(self.key, str) else tuple(self.key)
        return Layout(self.shape, self.prefix, key, self.member, self.score, self.chunk_rows, CHUNK_BYTES)

    @property
    def capabilities(self) -> Capabilities:
        """The mark makes commits repeatable, if the server keeps it."""
        remedy = "Use shape='string' or 'hash', which replace a total instead of adding it."
        if self.durable is False:
            remedy = "Leave out durable=False, and let the server keep what it acknowledges (appendfsync always)."
        return Capabilities(
            shape="apply",
            repeatable=self.durable is not False,
            atomic=False,
            modes=frozenset({"append"} if self.shape == "counter" else {"append", "update"}),
            replaces=self.shape != "counter",
            remedy=remedy,
            note="; ".join(_notes(self)),
        )

    def session(self, job: str) -> Session:
        """Open the driver's side."""
        with client_needed():
            from fencepost.sinks.redis.session import RedisSession  # noqa: PLC0415 - its client is an extra
        return RedisSession(self, job)


@contextmanager
def client_needed() -> Iterator[None]:
    """Around an import of Redis's client."""
    try:
        yield
    except ImportError as error:
        raise BadConfig(
            "no_redis_client", "redis-py is not installed.", next="pip install 'fencepost[redis]'"
        ) from error


def _notes(sink: Redis) -> Iterator[str]:
    yield (
        f"an epoch of up to {sink.chunk_rows} keys and {CHUNK_BYTES >> 20} MiB is seen at once; "
        "a larger one in several parts"
    )
    if sink.durable is not None:
        yield f"durable={sink.durable}: the server is not asked whether it keeps what it acknowledged"


def _shown(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


def _problem(sink: Redis) -> tuple[str, str] | None:
    """What is wrong with the settings, and the cure."""
    key = sink.layout.key
    in_set = sink.shape == "sorted_set"
    named = [*key, *(name for name in (sink.member, sink.score) if name is not None)]
    problems = (
        (not _is_url(sink.url), "the URL cannot be read", "Write redis://user:password@host:port/0"),
        (
            any(not name.startswith("ssl_") for name in parse_qs(urlsplit(sink.url).query)) if sink.server else False,
            "the URL has options that are not for you to set",
            "Only those that begin with ssl_ are; the time to wait for an answer is timeout=",
        ),
        (sink.shape not in get_args(Shape), f"shape {sink.shape!r} is not known", f"Use {', '.join(get_args(Shape))}"),
        (not key and not in_set, "key= is missing", "Name the columns that make up the Redis key"),
        (not key and not sink.prefix, "key= and prefix= are both missing", "Name the sorted set with prefix="),
        (
            in_set != (sink.member is not None) or in_set != (sink.score is not None),
            "member= and score= belong to shape='sorted_set', which needs both",
            "Give both of them, or none",
        ),
        (len(set(named)) != len(named) or "" in named, "a column is named twice, or has no name", "Name each once"),
        (
            sink.prefix.startswith(sink.layout.own),
            f"keys that begin with {sink.layout.own!r} are fencepost's own",
            "Choose another prefix",
        ),
        (type(sink.chunk_rows) is not int or sink.chunk_rows < 1, "chunk_rows is no number of rows", "Give 1 or more"),
        (
            type(sink.timeout) not in (int, float) or not 0 < sink.timeout <= 3600,
            "timeout is no time to wait",
            "Give seconds",
        ),
    )
    return next(((what, cure + ".") for wrong, what, cure in problems if wrong), None)


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    # redis-py would take a database that it cannot read for number 0.
    return parts.scheme in {"redis", "rediss"} and named and re.fullmatch(r"(/\d*)?", parts.path) is not None
