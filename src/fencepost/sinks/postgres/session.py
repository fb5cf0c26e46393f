"""The driver's side of a PostgreSQL table."""

from __future__ import annotations

import logging
import uuid
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from fencepost.protocol.records import Handle
from fencepost.rows import Rows
from fencepost.sinks.bulk_text import Unwritable
from fencepost.sinks.database import NotAllowed, RowsRefused
from fencepost.sinks.postgres import columns, loading
from fencepost.sinks.postgres.catalogue import columns_of, has_unique
from fencepost.sinks.postgres.names import quoted, read_name
from fencepost.sinks.postgres.server import Server
from fencepost.sinks.postgres.trouble import KeyTwice
from fencepost.sinks.staged import PLACE, StagedSession
from fencepost.sinks.tables import KeyNotUnique, key_of, refuse_null_keys, upserts

if TYPE_CHECKING:
    from fencepost.sinks.postgres.sink import Postgres

log = logging.getLogger(__name__)


class PostgresSession(StagedSession):
    """The driver's side of one table."""

    def __init__(self, sink: Postgres, job: str) -> None:
        self._name = read_name(sink.table)
        self._table = str(self._name)
        self._server = Server.shared(self, job, sink.dsn, self._name.schema or "")
        super().__init__(sink, job, self._server)
        self._key = key_of(sink) if upserts(sink) else ()
        self._staging = sink.staging
        self._durable = sink.durable
        self._there: list[columns.Column] = []
        self._rows: pa.Schema | None = None

    def make_identity(self) -> str:
        """Where all sinks of the schema find it."""
        identity = self._server.make_identity()
        self.check_server()
        return identity

    def check_server(self) -> None:
        """Of the server's settings and the table's."""
        cure = "Set fsync = on and full_page_writes = on, and name a table that is not UNLOGGED."
        self.refuse_forgetful(self._server.why_it_forgets(self._table), cure, durable=self._durable)

    def fits(self, schema: pa.Schema) -> list[str] | None:
        """By PostgreSQL's own catalogue."""
        self._rows = schema
        self._there = columns_of(self._server.run, self._table)
        return columns.misfits(schema, self._there) if self._there else None

    def try_out(self, schema: pa.Schema) -> None:
        """EXPLAIN checks rights; it writes nothing."""
        if self._key and not has_unique(self._server.run, self._table, self._key):
            raise KeyNotUnique
        nothing = f"VALUES ({', '.join(['NULL'] * len(schema.names))})"
        self._server.run("EXPLAIN " + loading.insert_statement(self._table, schema.names, nothing, self._key))
        if self.settings.mode == "replace":
            self._server.run(f"EXPLAIN DELETE FROM {self._table}")
        if self._key:
            self._make_stage(schema.names)
        if self._staging != "checkpoint":
            self._try_staging(schema.names)

    def _try_staging(self, names: Sequence[str]) -> None:
        """May the tasks make tables? "auto" goes without, and then each task gives its rows to the driver."""
        self._server.run("SAVEPOINT fencepost_try")
        try:
            self._server.run(
                loading.stage_statement(
                    str(self._name.beside(f"fencepost_try_{uuid.uuid4().hex[:12]}")), self._table, names
                )
            )
        except NotAllowed as error:
            if self._staging == "target":
                raise self.refused(
                    "staging_not_allowed",
                    f'With staging="target" the tasks make tables beside {self.settings.table!r}, and {error}.',
                    'Grant CREATE on its schema and SELECT on the table, or use staging="checkpoint".',
                ) from None
            log.warning("sink %s: %s to make tables: the driver alone writes all rows", self.sink, error)
        self._server.run("ROLLBACK TO fencepost_try")

    def empty_table(self) -> None:
        """Not TRUNCATE: readers would wait for it, and could see the table empty."""
        self._server.run(f"DELETE FROM {self._table}")

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
        stage = self._make_stage(names)
        self._copy(loading.copy_statement(stage, [*names, PLACE]), rows, numbered=True)
        self._insert_from(stage, names)

    def _make_stage(self, names: Sequence[str]) -> str:
        stage = quoted(f"fencepost_{zlib.crc32(repr((self.sink, self._table, names)).encode()):08x}")
        self._server.run(loading.temporary_statement(stage, self._table, names))
        return stage

    def apply_unit(self, handle: Handle, rows: Rows) -> None:
        """Write what a handle stands for, and look whether the table still keeps it as it is.

        Afterwards: now our locks keep the columns as they are until COMMIT.
        """
        super().apply_unit(handle, rows)
        if self._rows is not None and (problems := columns.misfits(self._rows, self._columns())):
            raise RowsRefused(f"it was changed since the start: {'; '.join(problems)}")

    def move(self, table: str, names: Sequence[str]) -> None:
        """From a table that a task filled."""
        stage = str(self._name.beside(table))
        if not self._server.exists(stage):
            raise RowsRefused(f"the staged table {stage} is gone")
        self._insert_from(stage, names)

    def staged_tables(self) -> list[str]:
        """In the schema of the table."""
        return self._server.staged_tables()

    def drop_tables(self, tables: Sequence[str]) -> None:
        """Not there already is fine."""
        self._server.drop_tables([str(self._name.beside(table)) for table in tables])

    def _copy(self, statement: str, rows: Rows, *, numbered: bool) -> None:
        self._there = self._there or self._columns()
        try:
            with self._server.copy(statement, rows.schema.names) as copy:
                for text in loading.texts(self._checked(rows), self._there, numbered=numbered):
                    copy.write(text)
        except Unwritable as error:
            raise RowsRefused(str(error)) from None

    def _columns(self) -> list[columns.Column]:
        found = columns_of(self._server.run, self._table)
        if not found:
            raise RowsRefused("it is gone")
        return found

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
