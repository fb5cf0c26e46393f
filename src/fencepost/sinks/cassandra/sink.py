"""The settings of a Cassandra table. Never imports the client: it is an extra."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field

from fencepost.errors import BadConfig
from fencepost.sinks.cassandra.durability import CONSISTENCIES
from fencepost.sinks.contract import Capabilities, Session, Sink
from fencepost.sinks.database import EPOCH_TABLE, TARGET_TABLE

__all__ = ["Cassandra"]

LOSS = (
    "durable=False: the table may forget rows that it acknowledged (one replica that writes its log to disk later), "
    "and nothing tells"
)


@dataclass(frozen=True)
class Cassandra(Sink):
    """A table in Cassandra 4.1 or newer.

        job.write(counts, fp.Cassandra("shop.counts", hosts="localhost", key="word"))

    A table always has a key: a row replaces the row of the same primary key, in output mode append too (the last one of
    an epoch wins). NULL removes a value. Every row carries a time that its epoch's decision names, so an epoch that is
    written again changes nothing, and an older one never overwrites a newer one. An epoch becomes visible row by row.

    The mistake people make: reading it with consistency ONE. What was written to a quorum is seen for sure by a quorum.
    A person's UPDATE or DELETE wins until the next epoch that writes the row, as if both were clients.

    Types go in unchanged or not at all. Arrays need `frozen<list<…>>` (a repeated write doubles the elements of a plain
    list), structs go into text as JSON, text goes into uuid columns. Times finer than a millisecond are refused, not
    cut. An empty map in a column that is not frozen is NULL, as always in Cassandra. The columns of the key must not be
    NULL. Columns that the DataFrame does not have are left as they are.
    """

    table: str
    """`keyspace.table`, in the case in which it was made: `Shop.Counts` is not `shop.counts`."""
    _: KW_ONLY
    hosts: str | Sequence[str] = "127.0.0.1"
    """One or more nodes to begin with."""
    port: int = 9042
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool | ssl.SSLContext = field(default=False, repr=False)
    """True trusts the authorities that Python trusts; a context of your own says more."""
    datacenter: str = ""
    """The one to write to; by default that of the first host."""
    key: str | Sequence[str | Sequence[str]] | None = None
    """To make the table, as in PRIMARY KEY: "a", or ("a", "b") for clustering by b, or (("a", "b"), "c")."""
    consistency: str = "LOCAL_QUORUM"
    """LOCAL_QUORUM, QUORUM or ALL. Drivers in two datacenters need QUORUM or more."""
    create: bool = True
    """Make the table if it is not there; the keyspace is yours to make."""
    durable: bool | None = None
    """None: the cluster is asked whether it keeps what it acknowledged. True: you know that it does, though it does not
    say so. False: it may forget, and the job is at least once at best."""
    name: str = ""
    """`cassandra:<keyspace>.<table>` unless told."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, where the user wrote it."""
        object.__setattr__(self, "name", self.name or f"cassandra:{self.table}")
        if problem := _problem(self):
            raise BadConfig("bad_sink", f"Cassandra: {problem[0]}.", next=problem[1]).at(sink=self.name)

    @property
    def keyspace(self) -> str:
        """Before the dot."""
        return self.table.partition(".")[0]

    @property
    def table_name(self) -> str:
        """Behind the dot."""
        return self.table.partition(".")[2]

    @property
    def all_hosts(self) -> list[str]:
        """As a list."""
        return [self.hosts] if isinstance(self.hosts, str) else list(self.hosts)

    @property
    def columns_of_key(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Partition key and clustering columns, as `key` says; empty if it says nothing."""
        if self.key is None:
            return (), ()
        first, *rest = (self.key,) if isinstance(self.key, str) else tuple(self.key)
        return (first,) if isinstance(first, str) else tuple(first), tuple(rest)  # type: ignore[arg-type]

    @property
    def capabilities(self) -> Capabilities:
        """The rows' times make a commit repeatable; a reader sees an epoch arrive row by row."""
        return Capabilities(
            shape="apply",
            repeatable=self.durable is not False,
            atomic=False,
            modes=frozenset({"append", "update"}),
            replaces=True,
            remedy="Leave out durable=False, and have the table keep what it acknowledges."
            if self.durable is False
            else "",
            note=LOSS if self.durable is False else "",
        )

    def session(self, job: str) -> Session:
        """Open the driver's side."""
        with client_needed():
            from fencepost.sinks.cassandra.session import CassandraSession  # noqa: PLC0415 - its client is an extra
        return CassandraSession(self, job)


@contextmanager
def client_needed() -> Iterator[None]:
    """Around an import of Cassandra's client, which is an extra."""
    try:
        yield
    except ImportError as error:
        raise BadConfig(
            "no_cassandra_client", "The Cassandra client is not installed.", next="pip install 'fencepost[cassandra]'"
        ) from error


def _problem(sink: Cassandra) -> tuple[str, str] | None:
    """What is wrong with the settings, and the cure."""
    named = re.fullmatch(r"[A-Za-z0-9_]+\.[A-Za-z0-9_]+", sink.table)
    partition, clustering = sink.columns_of_key if sink.key else ((), ())
    key = (*partition, *clustering)
    problems = (
        (not named, f"table {sink.table!r} is not keyspace.table", "Name both, with a dot between them"),
        (sink.table_name.lower() in {EPOCH_TABLE, TARGET_TABLE}, "that table is not for rows", "Name another"),
        (not all(sink.all_hosts) or not sink.all_hosts, "hosts is empty", "Name at least one node"),
        (
            sink.consistency not in CONSISTENCIES,
            f"with consistency {sink.consistency!r} a row may be acknowledged and not be seen",
            f"Use one of {', '.join(CONSISTENCIES)}",
        ),
        (
            (sink.user is None) != (sink.password is None),
            "user and password go together",
            "Give both, or none",
        ),
        (
            sink.key is not None and (not partition or len(set(key)) != len(key) or not all(map(_is_name, key))),
            "key names a column twice, or none",
            'Name each key column once: "a", or ("a", "b"), or (("a", "b"), "c")',
        ),
    )
    return next(((what, cure + ".") for wrong, what, cure in problems if wrong), None)


def _is_name(part: object) -> bool:
    return isinstance(part, str) and bool(part)
