"""The target before any row: the keyspace, the table, our own two tables, and whether it keeps what it acknowledges.

Never changes a table that is there: what does not fit is said, all of it at once.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa

from fencepost.errors import FencepostError
from fencepost.sinks.cassandra import cql
from fencepost.sinks.cassandra.columns import Column, key_of, misfits, parsed
from fencepost.sinks.cassandra.connection import Connection, NotAllowed
from fencepost.sinks.cassandra.durability import Facts, weakness
from fencepost.sinks.cassandra.sink import Cassandra
from fencepost.sinks.database import EPOCH_TABLE, TARGET_TABLE, RowsRefused
from fencepost.sinks.marks import Mark, Seen

MOST_BYTES = 16 * 2**20
"""Of one row, where a cluster does not say: half of a segment of the log, whose default is 32 MiB."""

Used = TypeVar("Used")
Refuse = Callable[[str, str, str], FencepostError]
"""Makes the error: code, what, what next."""


class Target:
    """A table and what is around it."""

    def __init__(self, sink: Cassandra, connection: Connection, refused: Refuse) -> None:
        self._sink = sink
        self._connection = connection
        self._refused = refused

    def look(self, schema: pa.Schema, *, is_new: Callable[[], bool]) -> tuple[str, list[Column], int]:
        """Check everything, make what is missing: the identity, the columns, how many bytes a row may have."""
        sink, connection = self._sink, self._connection
        keyspaces = connection.rows(cql.KEYSPACE, (sink.keyspace,))
        if not keyspaces:
            raise self._refused(
                "target_missing",
                f"There is no keyspace {sink.keyspace!r}.",
                f"Make it, with as many copies as you need:\n{cql.create_keyspace(sink.keyspace)}",
            )
        identity = self._our_tables()
        columns = self.columns() or self._make(schema, is_new=is_new)
        self._check_columns(schema, columns)
        listed = connection.rows(cql.TABLE, (sink.keyspace, sink.table_name))
        if not listed:
            raise self._refused(
                "schema_does_not_fit", f"{sink.table} is a view, which nobody can write.", "Name the table behind it."
            )
        settings = connection.settings()
        facts = Facts(
            replication=keyspaces[0].replication,
            durable_writes=keyspaces[0].durable_writes,
            commitlog_sync=settings.get("commitlog_sync"),
            gc_grace_s=listed[0].gc_grace_seconds,
        )
        self._check_durability(facts)
        insert = cql.insert_into(sink.keyspace, sink.table_name, schema.names)
        self._known(
            lambda: connection.prepared(insert, repeatable=True), make=lambda: self._make(schema, is_new=is_new)
        )
        if not connection.may_write(sink.keyspace, sink.table_name, schema.names):
            raise self._refused(
                "target_unusable",
                f"This user may not write table {sink.table}.",
                f"GRANT MODIFY ON {cql.quoted(sink.keyspace)}.{cql.quoted(sink.table_name)} TO …; the same for "
                "fencepost_epoch and fencepost_target, with SELECT.",
            )
        return f"{identity}:{sink.table}", columns, most_bytes(settings)

    def peek(self, job: str, sink: str) -> Seen:
        """What is there of us, without making anything."""
        keyspace, ours = self._sink.keyspace, cql.OurTables(self._sink.keyspace)
        there = [name for name in ours.create if self._connection.rows(cql.TABLE, (keyspace, name))]
        ids = self._connection.rows(ours.identity) if TARGET_TABLE in there else []
        rows = self._connection.rows(ours.read.replace("?", "%s"), (job, sink)) if EPOCH_TABLE in there else []
        marks = [
            Mark(r.lineage, r.generation, r.epoch, r.handle or "", r.writer or 0) for r in rows if r.epoch is not None
        ]
        return Seen(str(ids[0].id) if ids else "", marks[0] if marks else None, bool(self.columns()))

    def missing(self) -> tuple[str, ...]:
        """What `look` would make; nothing in a keyspace that is not there, for it makes none."""
        sink = self._sink
        if not self._connection.rows(cql.KEYSPACE, (sink.keyspace,)) or not sink.create:
            return ()
        names = [*cql.OurTables(sink.keyspace).create, sink.table_name]
        return tuple(f"table {name}" for name in names if not self._connection.rows(cql.TABLE, (sink.keyspace, name)))

    def columns(self) -> list[Column]:
        """Of the table; none if it is not there."""
        found = self._connection.rows(cql.COLUMNS, (self._sink.keyspace, self._sink.table_name))
        return [
            Column(name=row.column_name, type=parsed(row.type), kind=row.kind, position=row.position) for row in found
        ]

    def _our_tables(self) -> str:
        connection, ours = self._connection, cql.OurTables(self._sink.keyspace)
        listed = [name for name in ours.create if connection.rows(cql.TABLE, (self._sink.keyspace, name))]
        self._make_ours(except_for=listed)
        return self._known(self._identity, make=self._make_ours)

    def _make_ours(self, except_for: Sequence[str] = ()) -> None:
        for name, statement in cql.OurTables(self._sink.keyspace).create.items():
            try:
                if name not in except_for:
                    self._connection.rows(statement)
            except RowsRefused as error:
                raise self._refused(
                    "target_unusable", f"Table {name} cannot be made: {error}.", f"Make it:\n{statement};"
                ) from None

    def _identity(self) -> str:
        connection, ours = self._connection, cql.OurTables(self._sink.keyspace)
        connection.prepared(ours.read, serial=True)
        found = connection.serially(ours.identity)
        if found is None:
            mine = uuid.uuid4().hex
            answer = connection.serially(ours.identify, (mine,))
            return mine if answer.applied else str(answer.id)
        return str(found.id)

    def _known(self, use: Callable[[], Used], *, make: Callable[[], object]) -> Used:
        """Use a table that is listed; if it is not known all the same, make it.

        A node that was killed while it made a table lists it after its restart, and does not know it until the next.
        """
        try:
            return use()
        except NotAllowed:
            raise
        except RowsRefused:
            make()
            return use()

    def _make(self, schema: pa.Schema, *, is_new: Callable[[], bool]) -> list[Column]:
        sink = self._sink
        if not is_new():
            raise self._refused(
                "table_lost",
                f"There is no table {sink.table}, though this sink of this job has written epochs before.",
                "Bring the table back from a copy, or name the old one.",
            )
        if not sink.create or sink.key is None:
            cure = "Make it, or set create=True and key=…." if sink.key is None else "Make it, or set create=True."
            raise self._refused("target_missing", f"There is no table {sink.table}.", cure)
        key = sink.columns_of_key
        if missing := [name for part in key for name in part if name not in schema.names]:
            raise self._refused(
                "key_not_in_rows",
                f"The DataFrame has no column {', '.join(map(repr, missing))}, which key= names.",
                f"Name columns of the DataFrame: {', '.join(schema.names)}.",
            )
        try:
            self._connection.rows(cql.create_table(sink.keyspace, sink.table_name, schema, key))
        except KeyError as error:
            raise self._refused(
                "schema_does_not_fit", f"Cassandra has no type for {error}.", "Cast the column to another type."
            ) from None
        return self.columns()

    def _check_columns(self, schema: pa.Schema, columns: list[Column]) -> None:
        sink = self._sink
        problems = misfits(schema, columns)
        if any(column.type.name == "counter" for column in columns):
            problems = ["it is a counter table, and an increment cannot be repeated after a crash"]
        elif sink.key is not None and sink.columns_of_key != key_of(columns):
            problems.append("its PRIMARY KEY is not the one that key= says")
        if problems:
            raise self._refused(
                "schema_does_not_fit",
                f"Table {sink.table} does not fit the DataFrame: {'; '.join(problems)}.",
                "Change the table or the DataFrame's columns (select, cast, alias).",
            )

    def _check_durability(self, facts: Facts) -> None:
        why = weakness(facts, self._sink.consistency)
        if why is None or self._sink.durable is not None:
            return
        raise self._refused(
            "target_forgets",
            f"Table {self._sink.table} may lose what it acknowledged: {why}.",
            "Set commitlog_sync: batch (or group) in cassandra.yaml of every node, or keep 3 copies (replication "
            "factor 3) and write to a quorum; durable_writes = true, gc_grace_seconds of an hour or more. Or take the "
            "risk: durable=False with guarantee='at_least_once'.",
        )


def most_bytes(settings: dict[str, str | None]) -> int:
    """How large one row's write may be."""
    named = (settings.get("max_mutation_size"), settings.get("native_transport_max_frame_size"))
    return min((size for text in named if (size := _bytes(text))), default=MOST_BYTES)


def _bytes(text: str | None) -> int | None:
    """`4096KiB`."""
    found = re.fullmatch(r"(\d+)\s*(B|KiB|MiB|GiB)", text or "")
    return int(found[1]) * 1024 ** ("B", "KiB", "MiB", "GiB").index(found[2]) if found else None
