"""The driver's side of a PostgreSQL table."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from fencepost.rows import Rows
from fencepost.sinks.bulk_text import Unwritable
from fencepost.sinks.postgres import columns, loading
from fencepost.sinks.postgres.catalogue import columns_of
from fencepost.sinks.postgres.names import quoted, read_name
from fencepost.sinks.postgres.server import KeyTwice, Server
from fencepost.sinks.sql import RowsRefused
from fencepost.sinks.staged import PLACE, StagedSession
from fencepost.sinks.tables import KeyNotUnique, key_of, refuse_null_keys, upserts

if TYPE_CHECKING:
    from fencepost.sinks.postgres.sink import Postgres


class PostgresSession(StagedSession):
    """The driver's side of one table."""

    def __init__(self, sink: Postgres, job: str) -> None:
        self._name = read_name(sink.table)
        self._table = str(self._name)
        self._server = Server.shared(self, job, sink.dsn, self._name.schema or "")
        super().__init__(sink, job, self._server)
        self._key = key_of(sink) if upserts(sink) else ()
        self._there: list[columns.Column] = []

    def make_identity(self) -> str:
        """Where all sinks of the schema find it."""
        return self._server.make_identity()

    def fits(self, schema: pa.Schema) -> list[str] | None:
        """By PostgreSQL's own catalogue."""
        self._there = columns_of(self._server.run, self._table)
        return columns.misfits(schema, self._there) if self._there else None

    def try_out(self, schema: pa.Schema) -> None:
        """EXPLAIN checks rights and finds the unique index; it writes nothing."""
        nothing = f"VALUES ({', '.join(['NULL'] * len(schema.names))})"
        try:
            self._server.run("EXPLAIN " + loading.insert_statement(self._table, schema.names, nothing, self._key))
        except RowsRefused as error:
            if "invalid column reference" in str(error):
                raise KeyNotUnique from None
            raise

    def make_table(self, schema: pa.Schema) -> None:
        """With the key as its primary key."""
        self._server.run(self.create_statement(schema))

    def create_statement(self, schema: pa.Schema) -> str:
        """A table that fits the DataFrame."""
        try:
            return columns.create_table(self._table, schema, self._key)  # appended changes repeat a key
        except KeyError as kind:
            raise RowsRefused(f"there is no PostgreSQL type for {kind}") from None

    def index_statement(self) -> str:
        """A unique index on the key."""
        return f"CREATE UNIQUE INDEX ON {self._table} ({loading.listed(key_of(self.settings))});"

    def apply(self, rows: Rows) -> None:
        """Write rows of the driver, in their order."""
        if not rows.kept:
            return
        names = rows.schema.names
        if not self._key:
            self._copy(loading.copy_statement(self._table, names), rows, numbered=False)
            return
        stage = quoted(f"fencepost_{zlib.crc32(repr((self._table, names)).encode()):08x}")
        self._server.run(loading.temporary_statement(stage, self._table, names))
        self._copy(loading.copy_statement(stage, [*names, PLACE]), rows, numbered=True)
        self._insert_from(stage, names)

    def move(self, table: str, names: Sequence[str]) -> None:
        """From a table that a task filled."""
        self._insert_from(str(self._name.beside(table)), names)

    def staged_tables(self) -> list[str]:
        """In the schema of the table."""
        return self._server.staged_tables()

    def drop_tables(self, tables: Sequence[str]) -> None:
        """Not there already is fine."""
        self._server.drop_tables([str(self._name.beside(table)) for table in tables])

    def _copy(self, statement: str, rows: Rows, *, numbered: bool) -> None:
        if not self._there:
            self._there = columns_of(self._server.run, self._table)
        try:
            with self._server.copy(statement) as copy:
                for text in loading.texts(self._checked(rows), self._there, numbered=numbered):
                    copy.write(text)
        except Unwritable as error:
            raise RowsRefused(str(error)) from None

    def _checked(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        for batch in rows.batches():
            refuse_null_keys(batch, self._key)
            yield batch

    def _insert_from(self, stage: str, names: Sequence[str]) -> None:
        everything = loading.insert_statement(self._table, names, loading.select_all(stage, names), self._key)
        if not self._key:
            self._server.run(everything)
            return
        # Keys come once in most epochs, and always in update mode; sorting out the last ones costs as much again.
        self._server.run("SAVEPOINT fencepost_rows")
        try:
            self._server.run(everything)
        except KeyTwice:
            self._server.run("ROLLBACK TO fencepost_rows")
            last = loading.select_last(stage, names, self._key)
            self._server.run(loading.insert_statement(self._table, names, last, self._key))
        self._server.run("RELEASE fencepost_rows")
