"""The settings of a Cassandra table. Never imports the client: it is an extra."""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

from fencepost import credential
from fencepost.connectors.table.database import EPOCH_TABLE, TARGET_TABLE
from fencepost.contract import (
    Capabilities,
    Dataset,
    Keyed,
    Session,
    Sink,
    names_of,
    problem_of_deletes,
    problem_of_order,
)
from fencepost.errors import BadConfig, require

__all__ = ["Cassandra"]

CONSISTENCIES = {
    "LOCAL_QUORUM": "LOCAL_SERIAL",
    "QUORUM": "SERIAL",
    "ALL": "SERIAL",
}
"""Levels at which a quorum reader is sure to see a write, each with the serial level for the mark."""

LOSS = (
    "durable=False: the table may lose acknowledged rows (a single replica that writes its log to disk later), "
    "and nothing reports it"
)


@dataclass(frozen=True)
class Cassandra(Sink):
    """A table in Cassandra 4.1 or newer.

        job.write(counts, fp.Cassandra("shop.counts", hosts="localhost", key="word"))

    A table always has a key: a row replaces the row with the same primary key, in output mode append too (if an epoch
    has several, `order_by` says which one stays). NULL removes a value. Every row is written with a timestamp from its
    epoch's decision, so writing an epoch again changes nothing, and an older one never overwrites a newer one. An epoch
    becomes visible row by row.

    Note: read with a quorum. With consistency ONE a reader may miss what was written to a quorum. An UPDATE or DELETE
    by anybody else wins until the next epoch that writes the row, as between any two clients.

    Values are stored unchanged or rejected. Arrays need `frozen<list<…>>` (a repeated write would duplicate the
    elements of a plain list), structs go into text columns as JSON, text can go into uuid columns. Times finer than a
    millisecond are rejected, not truncated. An empty map in a column that is not frozen is NULL, as always in
    Cassandra. Key columns must not be NULL. Columns that the DataFrame does not have are left as they are.
    """

    table: str
    """`keyspace.table`, case-sensitive: `Shop.Counts` is not `shop.counts`."""
    _: KW_ONLY
    hosts: str | Sequence[str] = "127.0.0.1"
    """One or more nodes to connect to first."""
    port: int = 9042
    user: str | None = None
    password: str | None = None
    """Itself, or where it is: `env:NAME`, `file:/path`."""
    tls: bool | ssl.SSLContext = field(default=False, repr=False)
    """True: trust the CAs that Python trusts. Pass an SSLContext for anything else."""
    datacenter: str = ""
    """The datacenter to write to; by default that of the first host."""
    key: str | Sequence[str | Sequence[str]] | None = None
    """As in PRIMARY KEY: "a", or ("a", "b") to cluster by b, or (("a", "b"), "c"). For creating the table, and for
    checking that the plan gives each key one row."""
    order_by: str | Sequence[str] | None = None
    """If an epoch has several rows with the same key, the one with the greatest value of this column, or of these,
    stays. Needed unless the plan aggregates by the key: `fencepost.contract.Keyed`."""
    unique_key: bool = False
    """No two rows have the same key, so no order is needed. Nothing checks this."""
    deletes: str | None = None
    """A boolean column, which is not written: a row in which it is true removes the row with its key. See
    docs/DATABASES.md, "Rows that leave the result"."""
    consistency: str = "LOCAL_QUORUM"
    """LOCAL_QUORUM, QUORUM or ALL. Drivers in two datacenters need QUORUM or more."""
    create: bool = True
    """Create the table if it does not exist; you have to create the keyspace."""
    durable: bool | None = None
    """None: the cluster's settings are checked, and a table that may lose acknowledged rows is refused. True: skip the
    check, because you know that writes are durable. False: they may be lost; the job is at least once at best."""
    name: str = ""
    """By default `cassandra:<keyspace>.<table>`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or f"cassandra:{self.table}")
        credential.hide(self, "password")
        if problem := _problem(self):
            raise BadConfig("bad_sink", f"Cassandra: {problem[0]}.", next=problem[1]).at(sink=self.name)

    @property
    def keyspace(self) -> str:
        """The part of `table` before the dot."""
        return self.table.partition(".")[0]

    @property
    def table_name(self) -> str:
        """The part of `table` after the dot."""
        return self.table.partition(".")[2]

    @property
    def all_hosts(self) -> list[str]:
        """`hosts` as a list."""
        return [self.hosts] if isinstance(self.hosts, str) else list(self.hosts)

    def dataset(self) -> Dataset:
        """By the first host."""
        return Dataset(f"cassandra://{self.all_hosts[0]}:{self.port}", self.table)

    @property
    def columns_of_key(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Partition key and clustering columns from `key`; empty if it is not set."""
        if self.key is None:
            return (), ()
        first, *rest = (self.key,) if isinstance(self.key, str) else tuple(self.key)
        return (first,) if isinstance(first, str) else tuple(first), tuple(rest)  # type: ignore[arg-type]

    @property
    def keyed(self) -> Keyed:
        """A table always has a key."""
        partition, clustering = self.columns_of_key
        key, order = (*partition, *clustering), names_of(self.order_by)
        return Keyed(key=key, order_by=order, unique=self.unique_key, deletes=self.deletes)

    @property
    def capabilities(self) -> Capabilities:
        """The rows' timestamps make a commit repeatable; readers see an epoch arrive row by row."""
        return Capabilities(
            shape="apply",
            repeatable=self.durable is not False,
            atomic=False,
            modes=frozenset({"append", "update"}),
            replaces=True,
            remedy="Remove durable=False, and configure the cluster so that acknowledged rows are durable."
            if self.durable is False
            else "",
            note=LOSS if self.durable is False else "",
        )

    def session(self, job: str) -> Session:
        require("no_cassandra_client", "cassandra", extra="cassandra")
        from fencepost.connectors.cassandra.session import CassandraSession  # noqa: PLC0415 - its client is an extra

        return CassandraSession(self, job)


def _problem(sink: Cassandra) -> tuple[str, str] | None:
    """What is wrong with the settings, and what to do; None if nothing is."""
    named = re.fullmatch(r"[A-Za-z0-9_]+\.[A-Za-z0-9_]+", sink.table)
    partition, clustering = sink.columns_of_key if sink.key else ((), ())
    key = (*partition, *clustering)
    order = problem_of_order(sink.order_by, unique_key=sink.unique_key, keyed=True) or ("", "")
    deletes = problem_of_deletes(sink.deletes, key, keyed=True) or ("", "")
    problems = (
        (order[0], *order),
        (deletes[0], *deletes),
        (not named, f"table must be 'keyspace.table', not {sink.table!r}", "Give both names, separated by a dot"),
        (
            sink.table_name.lower() in {EPOCH_TABLE, TARGET_TABLE},
            f"table name {sink.table!r} is reserved by fencepost",
            "Choose another name",
        ),
        (not all(sink.all_hosts) or not sink.all_hosts, "hosts is empty", "Name at least one node"),
        (
            sink.consistency not in CONSISTENCIES,
            f"with consistency {sink.consistency!r} an acknowledged row may not be visible",
            f"Use one of {', '.join(CONSISTENCIES)}",
        ),
        (
            (sink.user is None) != (sink.password is None),
            "user= and password= belong together",
            "Give both, or neither",
        ),
        (
            sink.key is not None and (not partition or len(set(key)) != len(key) or not all(map(_is_name, key))),
            "key= is empty, or names a column twice",
            'Name each key column once: "a", or ("a", "b"), or (("a", "b"), "c")',
        ),
    )
    return next(((what, cure + ".") for wrong, what, cure in problems if wrong), None)


def _is_name(part: object) -> bool:
    return isinstance(part, str) and bool(part)
