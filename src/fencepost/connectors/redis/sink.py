"""Redis: one script writes rows and mark, so that a commit can be repeated. Needs redis-py, an extra.

Never shows the URL: it may contain a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import get_args
from urllib.parse import parse_qs, urlsplit

from fencepost import credential
from fencepost.connectors.redis.columns import Layout, Shape
from fencepost.contract import Capabilities, Keyed, Session, Sink, names_of, problem_of_deletes, problem_of_order
from fencepost.errors import BadConfig, FencepostError, require

__all__ = ["Redis"]

CHUNK_BYTES = 64 * 1024 * 1024
"""Per script call; the server does nothing else in the meantime."""


@dataclass(frozen=True)
class Redis(Sink):
    """Keys in a Redis 7 or Valkey database.

        job.write(counts, fp.Redis("redis://localhost", key="word", prefix="words:"))

    A row is written to the Redis key `prefix` + the value of its `key` column. The values of several key columns are
    joined with ":", and a ":" or "%" inside them becomes "%3A" or "%25". What is written depends on `shape`:

        hash         a field for every other column; NULL removes the field, other fields stay
        string       the one other column; NULL removes the key
        json         the other columns, as one JSON text
        counter      the one other column is added: rows are changes, not totals (append only, whole numbers only)
        sorted_set   `member` with `score`, in the set `prefix` + key (`prefix` alone without a key); NULL removes it

    A row that `deletes` marks removes what its row would write: the fields of a hash (the key goes with the last one),
    the member of a sorted set, otherwise the key.

    If an epoch has several rows for one key, `order_by` says which is written (a counter gets their sum). If a key
    already holds another kind of value, the epoch fails. Numbers become plain text, decimals exact, booleans true and
    false, times ISO text (UTC, with +00:00, if they have a zone), nested values JSON, bytes stay raw (base64 in JSON).

    Note: with its default settings Redis keeps rows in memory and loses the last minutes in a crash, while the job
    counts them as done. So the server is refused unless it has `appendonly yes`, `appendfsync always` and a
    maxmemory-policy that never evicts keys without expiry (`noeviction`). If a replica takes over without the last
    commits, the job detects it and stops (`target_behind`).
    """

    url: str
    """redis://user:password@host:port/database, or rediss:// for TLS (with ?ssl_ca_certs=…); or where that is:
    `env:NAME`, `file:/path`."""
    _: KW_ONLY
    key: str | Sequence[str] = ()
    shape: Shape = "hash"
    prefix: str = ""
    """The start of every key. For a cluster it needs a hash tag: `{words}:`."""
    member: str | None = None
    score: str | None = None
    order_by: str | Sequence[str] | None = None
    """If an epoch has several rows for one key (in a sorted set: for one member), the one with the greatest value of
    this column is written. Needed unless the plan aggregates by the key: `fencepost.contract.Keyed`. As a hash or json
    the column is written too, otherwise only if it is the one with the value."""
    unique_key: bool = False
    """No two rows have the same key, so no order is needed. Nothing checks this."""
    deletes: str | None = None
    """A boolean column, which is not written: a row in which it is true removes the row with its key. See
    docs/DATABASES.md, "Rows that leave the result"."""
    durable: bool | None = None
    """None: the server's settings are checked, and a server that may lose acknowledged writes is refused. True: skip
    the check, because you know that writes are durable (a managed service). False: they may be lost; the job is at
    least once at best."""
    chunk_rows: int = 10_000
    """A larger epoch (or one of more than 64 MiB) is written, and becomes visible, in several parts."""
    timeout: float = 10.0
    """Seconds to wait for an answer."""
    name: str = ""
    """By default `redis:<prefix>`."""
    server: str = field(init=False, compare=False)
    """The URL without its secrets."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or f"redis:{self.prefix.strip(':') or self.shape}")
        credential.hide(self, "url")
        object.__setattr__(self, "server", self.url if credential.is_reference(self.url) else _shown(self.url))
        if problem := _problem(self):
            raise BadConfig("bad_sink", f"Redis: {problem[0]}.", next=problem[1]).at(sink=self.name)

    def address(self) -> str:
        """The URL with its secrets, wherever it is."""
        url = credential.resolve(self.url, f"url of sink {self.name!r}")
        if problem := _problem_of_url(url):
            raise BadConfig("bad_sink", f"Redis: {problem[0]}.", next=problem[1]).at(sink=self.name)
        return url

    @property
    def at(self) -> str:
        """Where the server is, for people: ` at cache:6379`. Never a user or a secret."""
        try:
            parts = urlsplit(self.address())
        except FencepostError:  # the secret that has it is gone: that is another error's subject
            return ""
        host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname or "localhost"
        return f" at {host}:{parts.port or 6379}"

    @property
    def layout(self) -> Layout:
        """How rows become Redis keys."""
        key = names_of(self.key)
        order, chunk = names_of(self.order_by), (self.chunk_rows, CHUNK_BYTES)
        return Layout(self.shape, self.prefix, key, self.member, self.score, *chunk, order, self.deletes)

    @property
    def keyed(self) -> Keyed | None:
        """A counter adds, in any order."""
        if self.shape == "counter":
            return None
        key = self.layout.key if self.member is None else (*self.layout.key, self.member)
        return Keyed(key=key, order_by=names_of(self.order_by), unique=self.unique_key, deletes=self.deletes)

    @property
    def capabilities(self) -> Capabilities:
        """The mark makes commits repeatable, if the server does not lose it."""
        remedy = "Use shape='string' or 'hash', which replace a total instead of adding to it."
        if self.durable is False:
            remedy = "Remove durable=False, and make acknowledged writes durable in the server (appendfsync always)."
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
        require("no_redis_client", "redis", extra="redis")
        from fencepost.connectors.redis.session import RedisSession  # noqa: PLC0415 - its client is an extra

        return RedisSession(self, job)


def _notes(sink: Redis) -> Iterator[str]:
    yield (
        f"an epoch of up to {sink.chunk_rows} keys and {CHUNK_BYTES >> 20} MiB becomes visible at once; "
        "a larger one in several parts"
    )
    if sink.durable is not None:
        yield f"durable={sink.durable}: the server's durability settings are not checked"


def _shown(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


def _problem(sink: Redis) -> tuple[str, str] | None:
    """What is wrong with the settings, and what to do; None if nothing is."""
    if not credential.is_reference(sink.url) and (problem := _problem_of_url(sink.url)):
        return problem
    key = sink.layout.key
    in_set = sink.shape == "sorted_set"
    named = [*key, *(name for name in (sink.member, sink.score) if name is not None)]
    order = problem_of_order(sink.order_by, unique_key=sink.unique_key, keyed=sink.shape != "counter") or ("", "")
    deletes = problem_of_deletes(sink.deletes, named, keyed=sink.shape != "counter") or ("", "")
    problems = (
        (sink.shape not in get_args(Shape), f"unknown shape {sink.shape!r}", f"Use {', '.join(get_args(Shape))}"),
        (not key and not in_set, "key= is missing", "Name the columns that make up the Redis key"),
        (not key and not sink.prefix, "key= and prefix= are both missing", "Name the sorted set with prefix="),
        (
            in_set != (sink.member is not None) or in_set != (sink.score is not None),
            "member= and score= belong to shape='sorted_set', which needs both",
            "Give both, or neither",
        ),
        (
            len(set(named)) != len(named) or "" in named,
            "key=, member= and score= name a column twice, or have an empty name",
            "Name each once",
        ),
        (order[0], *order),
        (deletes[0], *deletes),
        (
            sink.prefix.startswith(sink.layout.own),
            f"prefix {sink.layout.own!r} is reserved by fencepost",
            "Choose another prefix",
        ),
        (
            type(sink.chunk_rows) is not int or sink.chunk_rows < 1,
            "chunk_rows must be a whole number of rows",
            "Give 1 or more",
        ),
        (
            type(sink.timeout) not in (int, float) or not 0 < sink.timeout <= 3600,
            "timeout must be a number of seconds, up to 3600",
            "Give seconds, such as 10.0",
        ),
    )
    return next(((what, cure + ".") for wrong, what, cure in problems if wrong), None)


def _problem_of_url(url: str) -> tuple[str, str] | None:
    if not _is_url(url):
        return "invalid URL", "Write redis://user:password@host:port/0."
    if any(not name.startswith("ssl_") for name in parse_qs(urlsplit(url).query)):
        return (
            "the URL has options other than ssl_…",
            "Remove them; to set how long to wait for an answer, use timeout=.",
        )
    return None


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    # redis-py would use database 0 if it cannot parse the number.
    return parts.scheme in {"redis", "rediss"} and named and re.fullmatch(r"(/\d*)?", parts.path) is not None
