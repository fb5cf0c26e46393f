"""The driver's side of a table in MySQL or MariaDB."""

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
from fencepost.sinks.database import Conflict, NotAllowed, RowsRefused
from fencepost.sinks.mysql import columns, loading
from fencepost.sinks.mysql.catalogue import Unique, columns_of, engine_of, uniques_of
from fencepost.sinks.mysql.names import listed, quoted
from fencepost.sinks.mysql.server import Server
from fencepost.sinks.staged import StagedSession
from fencepost.sinks.tables import KeyNotUnique, key_of, refuse_null_keys, upserts

if TYPE_CHECKING:
    from fencepost.sinks.mysql.sink import MySQL


log = logging.getLogger(__name__)


class MySQLSession(StagedSession):
    """The driver's side of one table."""

    def __init__(self, sink: MySQL, job: str) -> None:
        self._sink = sink
        self._table = quoted(sink.table)
        self._server = Server.shared(self, job, sink.address)
        super().__init__(sink, job, self._server)
        self._key = key_of(sink) if upserts(sink) else ()
        self._there: list[columns.Column] = []
        self._rows: pa.Schema | None = None

    def make_identity(self) -> str:
        """Where all sinks of the database find it."""
        self.check_server()
        return self._server.make_identity()

    def check_server(self) -> None:
        """Of the server's settings."""
        cure = "Set innodb_flush_log_at_trx_commit = 1, and sync_binlog = 1 if it has a binary log."
        self.refuse_forgetful(self._server.why_it_forgets(), cure, durable=self._sink.durable)

    def fits(self, schema: pa.Schema) -> list[str] | None:
        """By the server's own catalogue."""
        self._rows = schema
        self._there = columns_of(self._server.run, self._sink.table)
        return columns.misfits(schema, self._there) if self._there else None

    def try_out(self, schema: pa.Schema) -> None:
        """INSERT without a row. ON DUPLICATE KEY looks at all unique indexes, so there may be no other one."""
        if self._key:
            found = uniques_of(self._server.run, self._sink.table)
            others = [unique for unique in found if set(unique.columns) != set(self._key)]
            if len(others) == len(found):
                raise KeyNotUnique
            for other in others:
                if self._may_conflict(other, schema):
                    raise RowsRefused(f"by its unique index {other.name!r} a row could replace one of another key")
        self._server.write(loading.insert_nothing(self._table, schema.names, self._key))
        if self._sink.mode == "replace":
            self._server.run(f"DELETE FROM {self._table} WHERE FALSE")
        if self._key:
            self._make_stage(schema.names)
        if self._sink.staging != "checkpoint" and not self.only_looking:  # CREATE and DROP commit at once
            self._try_staging()

    def _try_staging(self) -> None:
        """May the tasks make tables? "auto" goes without, and then each task gives its rows to the driver."""
        trial = f"fencepost_try_{uuid.uuid4().hex[:12]}"
        try:
            self._server.drop_tables([trial])  # first, as what cannot be dropped must not be made
            self._server.change(f"CREATE TABLE IF NOT EXISTS {trial} (n int PRIMARY KEY) ENGINE=InnoDB")
            self._server.run(f"INSERT INTO {trial} (n) SELECT n FROM {trial}")
            self._server.drop_tables([trial])
        except NotAllowed as error:
            if self._sink.staging == "target":
                raise self.refused(
                    "staging_not_allowed",
                    f'With staging="target" the tasks make tables beside {self._sink.table!r}, and {error}.',
                    'Grant CREATE, DROP, INSERT and SELECT on its database, or use staging="checkpoint".',
                ) from None
            log.warning("sink %s: %s to make tables: the driver alone writes all rows", self.sink, error)

    def _may_conflict(self, other: Unique, schema: pa.Schema) -> bool:
        counted = {column.name for column in self._there if column.counts and column.name not in schema.names}
        return not counted & set(other.columns)

    def empty_table(self) -> None:
        """Not TRUNCATE, which would commit at once."""
        self._server.run(f"DELETE FROM {self._table}")

    def make_table(self, schema: pa.Schema) -> None:
        """With the key as its primary key."""
        self._server.change(self.create_statement(schema))
        self._server.look()

    def create_statement(self, schema: pa.Schema) -> str:
        """A table that fits the DataFrame."""
        try:
            return columns.create_table(self._table, schema, self._key, self._server.collation())
        except KeyError as kind:
            raise RowsRefused(f"there is no MySQL type for {kind}") from None

    def index_statement(self) -> str:
        """A unique index on the key."""
        return f"ALTER TABLE {self._table} ADD UNIQUE ({listed(key_of(self.settings))});"

    def apply_unit(self, handle: Handle, rows: Rows) -> None:
        """Write what a handle stands for, and look whether the table still keeps it as it is.

        Afterwards: now our locks keep the columns as they are until COMMIT.
        """
        super().apply_unit(handle, rows)
        there = self._columns()
        if self._rows is not None and (problems := columns.misfits(self._rows, there)):
            raise RowsRefused(f"it was changed since the start: {'; '.join(problems)}")
        if there != self._there:
            self._there = there
            raise Conflict("its columns were changed since the start, and what was checked are the old ones")

    def apply(self, rows: Rows) -> None:
        """Write rows of the driver, in their order."""
        if not rows.kept:
            return
        self._there = self._there or self._columns()
        schema = rows.schema
        if not self._key:
            self._load(self._table, rows, schema, numbered=False)
            return
        stage = self._make_stage(schema.names)
        self._load(stage, rows, schema, numbered=True)
        self._insert_from(stage, schema.names)
        self._server.run(f"DROP TEMPORARY TABLE {stage}")

    def _make_stage(self, names: Sequence[str]) -> str:
        """A temporary table: making and dropping one does not commit, and nobody else sees it."""
        stage = quoted(f"fencepost_{zlib.crc32(repr((self._table, names)).encode()):08x}")
        self._server.run(f"DROP TEMPORARY TABLE IF EXISTS {stage}")
        self._server.run(columns.stage_table(stage, self._there, names, temporary=True))
        return stage

    def move(self, table: str, names: Sequence[str]) -> None:
        """From a table that a task filled."""
        self._there = self._there or self._columns()
        if engine_of(self._server.run, table) is None:
            raise RowsRefused(f"the staged table {table} is gone")
        self._insert_from(quoted(table), names)

    def staged_tables(self) -> list[str]:
        """In the database of the table."""
        return self._server.staged_tables()

    def drop_tables(self, tables: Sequence[str]) -> None:
        """Not there already is fine."""
        self._server.drop_tables(tables)

    def _load(self, table: str, rows: Rows, schema: pa.Schema, *, numbered: bool) -> None:
        try:
            loading.load(self._server, table, schema, self._checked(rows), self._there, numbered=numbered)
        except Unwritable as error:
            raise RowsRefused(str(error)) from None

    def _checked(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        for batch in rows.batches():
            refuse_null_keys(batch, self._key)
            yield batch

    def _insert_from(self, stage: str, names: Sequence[str]) -> None:
        self._server.write(loading.insert_statement(self._table, names, stage, self._key), names)
        merging = [column.name for column in self._there if column.merges and column.name in self._key]
        if merging and self._server.run(loading.merged_statement(self._table, stage, self._key, merging)):
            raise RowsRefused(
                f"the collation of {listed(merging)} takes two keys for one that differ in case, accents or blanks"
            )

    def _columns(self) -> list[columns.Column]:
        found = columns_of(self._server.run, self._sink.table)
        if not found:
            raise RowsRefused("it is gone")
        return found
