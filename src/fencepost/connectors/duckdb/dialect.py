"""One DuckDB file: a connection for each transaction, how rows are written, and what its errors mean.

DuckDB locks a file per process: whoever opens it for writing locks everybody else out. So the file is open from the
vote to COMMIT or ROLLBACK, and closed between epochs. Never lets DuckDB's errors out: they quote values. Never assumes
that COMMIT happened because nothing was raised: in a failed transaction DuckDB silently commits nothing.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import duckdb
import pyarrow as pa

from fencepost.connectors.duckdb.columns import Column, declared, fits, quoted, stored, stored_schema
from fencepost.connectors.table.database import (
    PLACE,
    BadValue,
    Broken,
    Conflict,
    FileDialect,
    KeyNotUnique,
    Late,
    RowsRefused,
    Silent,
    Table,
    column_of,
    misfits_of,
    numbered,
    refuse_other_uuids,
)
from fencepost.connectors.table.values import as_column_type, is_text
from fencepost.store.local import sync_folder

PATIENT_S = 10.0
"""How long a vote waits for the file: nothing is decided yet, and a failed vote costs a restart."""
IMPATIENT_S = 0.5
"""How long a commit waits for it: the protocol itself retries it, with backoff."""
RING_S = 0.1
"""How soon a statement is interrupted again."""
ROWS = "fencepost_rows"

_THERE = "database_name = current_database() AND schema_name = current_schema() AND lower({}) = lower(?)"
_COLUMNS = (
    "SELECT column_name, data_type, NOT is_nullable AND column_default IS NULL, is_generated FROM duckdb_columns()"
    f" WHERE {_THERE.format('table_name')} ORDER BY column_index"
)
_VIEWS = f"SELECT 1 FROM duckdb_views() WHERE {_THERE.format('view_name')}"
_DEFINITION = f"SELECT sql FROM duckdb_tables() WHERE {_THERE.format('table_name')}"
_UNIQUE = (
    "SELECT array_to_string(constraint_column_names, ', ') FROM duckdb_constraints()"
    f" WHERE {_THERE.format('table_name')} AND constraint_type IN ('PRIMARY KEY', 'UNIQUE') UNION ALL"
    " SELECT trim(translate(expressions, '''\"', ''), '[]') FROM duckdb_indexes()"
    f" WHERE {_THERE.format('table_name')} AND is_unique"
)


class DuckDBDialect(FileDialect):
    """A connection to one file that lives as long as its transaction, shared by the job's sinks in that file."""

    product = "DuckDB"
    exact = "VARCHAR without COLLATE"
    integer = "BIGINT"
    _connection: duckdb.DuckDBPyConnection | None = None
    _end_alarm: Callable[[], None] | None = None
    _writing: ClassVar[dict[Any, DuckDBDialect]] = {}
    """Who has a file open for writing, by path: DuckDB locks out other processes, but not other jobs in this one."""
    _change: ClassVar[Any] = threading.RLock()

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._failed = False
        self._only_reads = False
        self._is_new = False

    def look(self) -> None:
        """The same as `begin`: opening the file locks out everybody else anyway."""
        self._open_transaction(PATIENT_S)

    def begin(self, *, patient: bool) -> None:
        """Whoever has the file open excludes everybody else."""
        self._open_transaction(PATIENT_S if patient else IMPATIENT_S)

    def only_read(self) -> None:
        """Through a connection that cannot create the file or write to it."""
        self._open_transaction(PATIENT_S, only_read=True)

    def hurry(self, seconds: float) -> None:
        """Interrupted from another thread: DuckDB has no timeout, and its file is locked while we read."""
        self._end_alarm = _alarm(self._now, seconds)

    def rehearse(self) -> None:
        """Read-only: opening the file for writing might change it."""
        self.only_read()

    def _open_transaction(self, patience_s: float, *, only_read: bool = False) -> None:
        self.drop()
        # Only the first connection may create the file. A new, empty file in place of a lost one would hide the loss.
        if (only_read or self.identity is not None) and not self.path.is_file():
            raise Broken("it no longer exists")
        until = time.monotonic() + patience_s
        self._failed, self._only_reads, self._is_new = False, only_read, not self.path.is_file()
        try:
            if not only_read:
                self._wait_for_others(until)
            self._connection = self._connect(until, only_read=only_read)
            self.run(f"BEGIN TRANSACTION{' READ ONLY' if only_read else ''}")
            self.check_identity()
        except RowsRefused as error:
            self.drop()
            raise Silent(str(error)) from None
        except BaseException:
            self.drop()
            raise

    def _wait_for_others(self, until: float) -> None:
        """Two simultaneous votes could both say yes, but only one of them could commit."""
        while True:
            with self._change:
                if self._writing.setdefault(self.path, self) is self:
                    return
            if time.monotonic() > until:
                raise Silent("another job in this process has it open")
            time.sleep(0.02)

    def _connect(self, until: float, *, only_read: bool) -> duckdb.DuckDBPyConnection:
        while True:
            try:
                return duckdb.connect(self.path, read_only=only_read)
            except duckdb.ConnectionException:
                if not only_read:
                    raise Silent("this process has it open with other settings") from None
                only_read = False  # this process has it open for writing; our transaction is still read-only
                continue
            except duckdb.Error as error:
                if "Could not set lock" not in str(error):
                    raise Broken(f"it cannot be opened, or is not a DuckDB database ({type(error).__name__})") from None
            if time.monotonic() > until:
                raise Silent("another process has it open")
            time.sleep(0.02)

    def end(self) -> None:
        """COMMIT, and let others open the file."""
        if self._failed or self._connection is None:
            raise Silent("the transaction had already failed before COMMIT")
        try:
            self._connection.execute("COMMIT")
        except duckdb.Error as error:
            raise Silent(f"COMMIT failed ({type(error).__name__})") from None
        self.drop()
        if self._is_new:  # DuckDB syncs the file, but not its folder
            sync_folder(self.path.parent)

    def undo(self) -> None:
        self.drop()

    def drop(self) -> None:
        """Close, which rolls back an open transaction."""
        connection, self._connection = self._connection, None
        if self._end_alarm is not None:
            self._end_alarm()
        if connection is not None:
            with suppress(duckdb.Error):
                connection.close()
        with self._change:
            if self._writing.get(self.path) is self:
                del self._writing[self.path]

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            return list(self._now.execute(statement, list(values)).fetchall())
        except duckdb.Error as error:
            self._failed = True
            raise _explained(error) from None

    def declared(self, kind: pa.DataType) -> str:
        return declared(kind)

    def columns(self, table: str) -> list[Column]:
        if self.run(_VIEWS, (table,)):
            raise RowsRefused(f"{table!r} is a view")
        return [
            Column(name=name, shown=shown, required=required, generated=generated)
            for name, shown, required, generated in self.run(_COLUMNS, (table,))
        ]

    def misfits(self, schema: pa.Schema, there: list[Column]) -> list[str]:
        """A column must have the type that we would declare, spelled as DuckDB does, or a wider one."""

        def is_kept(kind: pa.DataType, column: Column) -> bool:
            try:
                [(same,)] = self.run(f"SELECT typeof(CAST(NULL AS {declared(kind)}))")
            except KeyError:
                return False
            return fits(kind, column, same)

        return misfits_of(schema, there, is_kept)

    def merging(self, table: Table, schema: pa.Schema) -> list[str]:
        """A column's collation is only in the text of its table's definition."""
        [(definition,)] = self.run(_DEFINITION, (table.name,))
        return [
            f"column {name!r} has collation {found[1]}"
            for name in table.key
            if (found := re.search(rf"[(,] ?\"?{re.escape(name)}\"? VARCHAR COLLATE (\S+?)[ ,)]", definition))
        ]

    def refuse_keys(self, batch: pa.RecordBatch, table: Table) -> None:
        super().refuse_keys(batch, table)
        refuse_other_uuids(batch, [one.name for one in table.columns if one.name in table.key and one.shown == "UUID"])

    def comparable(self, table: Table, item: pa.Field, value: str) -> str | None:
        """Text as bytes, whatever the column's collation is; other types that hold text have another order."""
        column = column_of(table, item.name)
        if not is_text(as_column_type(item.type)) or column is None:
            return value
        return f"encode({value})" if column.shown == "VARCHAR" else None

    def try_out(self, table: Table, schema: pa.Schema, *, removes: bool) -> None:
        """DuckDB plans the statement; read-only it plans no writes, so then only the catalogue is checked."""
        if self._only_reads:
            found = {frozenset(names.split(", ")) for (names,) in self.run(_UNIQUE, (table.name, table.name))}
            if table.key and frozenset(table.key) not in found:
                raise KeyNotUnique
            return
        nothing = f"SELECT {', '.join(['NULL'] * len(schema.names))}"
        self.run("EXPLAIN " + self.insert_statement(table, schema.names, nothing))

    def insert(self, table: Table, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """DuckDB reads Arrow directly. Of several rows with the same key, only the last one is written."""
        names = self.listed(schema.names)
        rows = f"SELECT {names} FROM {ROWS}"
        if table.key:
            rows += f" QUALIFY row_number() OVER (PARTITION BY {self.listed(table.key)} ORDER BY {PLACE} DESC) = 1"
        schema_numbered = schema.append(pa.field(PLACE, pa.int64()))
        self._with_rows(schema_numbered, numbered(batches), self.insert_statement(table, schema.names, rows))

    def delete(self, table: Table, keys: pa.RecordBatch) -> None:
        """A join with the keys."""
        statement = f"DELETE FROM {self.named(table.name)} USING {ROWS} WHERE {self.matching(table, ROWS)}"
        self._with_rows(keys.schema, iter([keys]), statement)

    def _with_rows(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], statement: str) -> None:
        """Run a statement that reads the batches under the name `ROWS`."""
        failed: Exception | None = None

        def until_one_fails() -> Iterator[pa.RecordBatch]:
            nonlocal failed
            try:
                yield from map(stored, batches)
            except Exception as error:  # noqa: BLE001 - raised below: DuckDB would quote it
                failed = error

        try:
            self._now.register(ROWS, pa.RecordBatchReader.from_batches(stored_schema(schema), until_one_fails()))
        except duckdb.Error as error:
            raise _explained(error) from None
        self.run(statement)
        self._now.unregister(ROWS)
        if failed is not None:
            raise failed


def _alarm(connection: duckdb.DuckDBPyConnection, seconds: float) -> Callable[[], None]:
    """Interrupt what runs then, and again and again: between two statements DuckDB forgets an interrupt.

    What is returned ends it; after that the connection may be closed.
    """
    change, is_over = threading.RLock(), threading.Event()

    def ring() -> None:
        left = seconds
        while not is_over.wait(left):
            with change:
                if not is_over.is_set():
                    connection.interrupt()
            left = RING_S

    def end() -> None:
        with change:
            is_over.set()

    threading.Thread(target=ring, name="fencepost-alarm", daemon=True).start()
    return end


def _explained(error: duckdb.Error) -> Exception:
    text = str(error)
    if isinstance(error, duckdb.ConstraintException):
        column = re.search(r"NOT NULL constraint failed: [^\n]*?\.([^\n.]+)$", text)
        if column:
            return BadValue(f"NULL in a column that is NOT NULL, column {quoted(column[1])}")
        words = next((words for part, words in _CONSTRAINTS if part in text), "a constraint failed")
        return BadValue(words) if words == _CHECK else RowsRefused(words)
    if isinstance(error, duckdb.BinderException) and "conflict target" in text:
        return KeyNotUnique("there is no unique index on the key")
    if isinstance(error, duckdb.TransactionException):
        return Conflict("another connection in this process changed it, or the transaction had already failed")
    for kind, words in _REFUSED:
        if isinstance(error, kind):
            return BadValue(words) if words is _TYPE else RowsRefused(words)
    is_late = isinstance(error, duckdb.InterruptException)
    return Late("the statement took too long") if is_late else Silent(f"it failed ({type(error).__name__})")


_CHECK = "check constraint violation"
_CONSTRAINTS = (
    ("uplicate key", "duplicate key"),
    ("CHECK constraint", _CHECK),
    ("foreign key", "foreign key violation"),
)
_TYPE = "a value does not fit the column's type or range"
_REFUSED: tuple[tuple[type[duckdb.Error], str], ...] = (
    (duckdb.ConversionException, _TYPE),
    (duckdb.OutOfRangeException, _TYPE),
    (duckdb.TypeMismatchException, _TYPE),
    (duckdb.InvalidInputException, _TYPE),
    (duckdb.CatalogException, "a table or column is missing, or the name is already taken"),
    (duckdb.BinderException, "the rows do not fit the table"),
    (duckdb.NotImplementedException, "DuckDB does not support such rows"),
    (duckdb.InvalidTypeException, "DuckDB does not support a key of this type"),
)
