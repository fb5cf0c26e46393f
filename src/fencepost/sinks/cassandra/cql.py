"""The statements. Identifiers are quoted by one function here, values are always bound; never glued in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from fencepost.sinks.cassandra.columns import declared
from fencepost.sinks.database import EPOCH_TABLE, TARGET_TABLE

COLUMNS = (
    "SELECT column_name, type, kind, position FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s"
)
TABLE = "SELECT gc_grace_seconds FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
KEYSPACE = "SELECT replication, durable_writes FROM system_schema.keyspaces WHERE keyspace_name = %s"
SETTINGS = "SELECT name, value FROM system_views.settings"
NOW = "SELECT toUnixTimestamp(now()) AS ms FROM system.local"

Key = tuple[tuple[str, ...], tuple[str, ...]]
"""Partition key, clustering columns."""


def quoted(name: str) -> str:
    """An identifier, whatever is in it; its case is kept."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Text for a statement that a person runs."""
    return "'" + text.replace("'", "''") + "'"


def insert_into(keyspace: str, table: str, names: Sequence[str]) -> str:
    """The one statement that writes a row; the last value is the time, in microseconds."""
    columns, marks = ", ".join(map(quoted, names)), ", ".join("?" * len(names))
    return f"INSERT INTO {quoted(keyspace)}.{quoted(table)} ({columns}) VALUES ({marks}) USING TIMESTAMP ?"


def insert_nothing(keyspace: str, table: str, names: Sequence[str]) -> str:
    """A row that no table takes: it has no key. Rights are looked at before."""
    columns, nulls = ", ".join(map(quoted, names)), ", ".join(["null"] * len(names))
    return f"INSERT INTO {quoted(keyspace)}.{quoted(table)} ({columns}) VALUES ({nulls})"


def create_table(keyspace: str, table: str, schema: pa.Schema, key: Key) -> str:
    """A table that fits the DataFrame; `KeyError` for a column that Cassandra has no type for."""
    partition, clustering = (", ".join(map(quoted, part)) for part in key)
    parts = [f"{quoted(item.name)} {declared(item.type)}" for item in schema]
    parts.append(f"PRIMARY KEY (({partition}){', ' + clustering if clustering else ''})")
    return f"CREATE TABLE IF NOT EXISTS {quoted(keyspace)}.{quoted(table)} ({', '.join(parts)})"


def create_keyspace(keyspace: str) -> str:
    """For a person to run: how many copies there should be is not ours to choose."""
    return (
        f"CREATE KEYSPACE {quoted(keyspace)} WITH replication = "
        "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3};"
    )


@dataclass(frozen=True, slots=True)
class OurTables:
    """The mark's table and the identity's, in the keyspace of the rows."""

    keyspace: str

    @property
    def epoch(self) -> str:
        """Of the marks."""
        return f"{quoted(self.keyspace)}.{EPOCH_TABLE}"

    @property
    def target(self) -> str:
        """Of the identity."""
        return f"{quoted(self.keyspace)}.{TARGET_TABLE}"

    @property
    def create(self) -> dict[str, str]:
        """By name, what makes them. `written_at` is the newest time that rows were written with."""
        return {
            EPOCH_TABLE: f"CREATE TABLE IF NOT EXISTS {self.epoch} (job text, sink text, lineage text, generation int, "
            "epoch bigint, handle text, writer int, written_at bigint, PRIMARY KEY ((job, sink)))",
            TARGET_TABLE: f"CREATE TABLE IF NOT EXISTS {self.target} (one int PRIMARY KEY, id text)",
        }

    @property
    def read(self) -> str:
        """The mark of a job's sink."""
        columns = "lineage, generation, epoch, handle, writer, written_at"
        return f"SELECT {columns} FROM {self.epoch} WHERE job = ? AND sink = ?"

    @property
    def first(self) -> str:
        """The first mark."""
        return (
            f"INSERT INTO {self.epoch} (lineage, generation, epoch, handle, writer, written_at, job, sink) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS"
        )

    @property
    def next(self) -> str:
        """The next mark, if the one that was read still stands."""
        return (
            f"UPDATE {self.epoch} SET lineage = ?, generation = ?, epoch = ?, handle = ?, writer = ?, written_at = ? "
            "WHERE job = ? AND sink = ? "
            "IF lineage = ? AND generation = ? AND epoch = ? AND written_at = ?"
        )

    @property
    def identity(self) -> str:
        """The target's id."""
        return f"SELECT id FROM {self.target} WHERE one = 0"

    @property
    def identify(self) -> str:
        """Give it one, if it has none."""
        return f"INSERT INTO {self.target} (one, id) VALUES (0, ?) IF NOT EXISTS"

    def remove_by_hand(self, job: str, sink: str) -> str:
        """For a person: conditional as ours are, because the two kinds of writes do not mix on one row."""
        return f"DELETE FROM {self.epoch} WHERE job = {literal(job)} AND sink = {literal(sink)} IF EXISTS;"

    def add_by_hand(self, job: str, sink: str, lineage: str, generation: int, written_at: int) -> str:
        """For a person, with `{epoch}` to be filled in; the mark may be there or not."""
        named = f"{literal(job)}, {literal(sink)}, {literal(lineage)}, {generation}, "
        return (
            f"{self.remove_by_hand(job, sink)} INSERT INTO {self.epoch} "
            "(job, sink, lineage, generation, epoch, handle, writer, written_at) "
            f"VALUES ({named}{{epoch}}, '', 0, {written_at}) IF NOT EXISTS;"
        )
