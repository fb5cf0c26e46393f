"""One SQLite file: its connection, its write lock, how rows are written, and what its errors mean.

Never lets an error of `sqlite3` out: a trigger may put a row's value into its text.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from fencepost.connectors.sqlite.columns import Column, affinity_of, declared, misfits
from fencepost.connectors.table.database import (
    BadValue,
    Broken,
    FileDialect,
    Found,
    KeyNotUnique,
    Late,
    RowsRefused,
    Silent,
    Table,
)
from fencepost.connectors.table.values import as_column_type, bindable, is_bytes, is_text

PATIENT = "PRAGMA busy_timeout = 5000"
"""How long a vote waits for the write lock: nothing is decided yet, and a failed vote costs a restart."""
IMPATIENT = "PRAGMA busy_timeout = 200"
"""How long a commit waits for it: the protocol itself retries it, with backoff."""
STEPS = 10_000
"""Of SQLite's virtual machine, between two looks at the clock."""
DIGITS = 15
"""Of a decimal that a double tells from every other."""
_UNIQUE = (
    "SELECT i.name, x.name, x.coll FROM pragma_index_list(?) AS i, pragma_index_xinfo(i.name) AS x"
    ' WHERE i."unique" AND x.key'
)

_CLAUSES = "SELECT count(*) FROM sqlite_master WHERE name = ? COLLATE NOCASE AND sql LIKE '%ON%CONFLICT%'"
"""`UNIQUE ON CONFLICT IGNORE` drops a row, `… REPLACE` another one or a NULL, both without a word."""


class SQLiteDialect(FileDialect):
    """One connection to one file, shared by the job's sinks in it: the file has only one write lock."""

    product = "SQLite"
    exact = "TEXT COLLATE BINARY"
    integer = "INTEGER"
    _connection: sqlite3.Connection | None = None

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._inode: tuple[int, int] | None = None
        self._unused = False
        self._encoding = "UTF-8"

    def look(self) -> None:
        """Open a transaction that locks nothing until it writes."""
        self._open_transaction("BEGIN", PATIENT)

    def begin(self, *, patient: bool) -> None:
        """Take the write lock now: a transaction that starts with a read could fail at its first write."""
        self._open_transaction("BEGIN IMMEDIATE", PATIENT if patient else IMPATIENT)

    def _open_transaction(self, begin: str, patience: str) -> None:
        try:
            connection = self._connect()
            connection.execute(patience)
            connection.execute(begin)
        except (sqlite3.Error, OSError) as error:
            self.drop()
            raise _silent(error) from None
        except Silent:
            self.drop()
            raise

    def end(self) -> None:
        """COMMIT; SQLite defers no checks to it here, so an error comes from the disk."""
        try:
            self._now.execute("COMMIT")
        except sqlite3.Error as error:
            raise _silent(error) from None

    def undo(self) -> None:
        """ROLLBACK; if even that fails, closing the connection does it."""
        if self._connection is None:
            return
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.drop()

    def drop(self) -> None:
        """Close, which rolls back an open transaction."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def steadily(self, read: Callable[[], Found]) -> Found:
        """Read again if somebody began to write while we read a file that nobody had open."""
        while True:
            found = read()
            if not self._unused or _is_unused(self.path):
                return found
            self.drop()
            self.only_read()

    def hurry(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._now.set_progress_handler(lambda: time.monotonic() > until, STEPS)

    def only_read(self) -> None:
        """Through a read-only connection.

        If nobody has the file open, SQLite would create two files next to it, which we may not be allowed to do.
        """
        self._unused = _is_unused(self.path)
        try:
            place = f"file:{quote(str(self.path))}?mode=ro" + ("&immutable=1" if self._unused else "")
            self._connection = sqlite3.connect(place, uri=True, isolation_level=None, check_same_thread=False)
            self._inode = _inode(self.path)
        except (sqlite3.Error, OSError) as error:
            raise _silent(error) from None
        self.run(PATIENT)
        self.run("BEGIN")

    def rehearse(self) -> None:
        """Read-only: a normal connection would create the file, or change its journal mode."""
        self.drop()
        self.only_read()

    def declared(self, kind: pa.DataType) -> str:
        return declared(kind)

    def misfits(self, schema: pa.Schema, there: list[Column]) -> list[str]:
        return misfits(schema, there)

    def merging(self, table: Table, schema: pa.Schema) -> list[str]:
        """The collations of every unique index that ON CONFLICT may use: NOCASE, RTRIM, or somebody's own."""
        found: dict[str, dict[str, str]] = {}
        for index, column, collation in self.run(_UNIQUE, (table.name,)):
            found.setdefault(index, {})[str(column).lower()] = collation
        wanted = {name.lower() for name in table.key}
        return sorted(
            {
                f"column {name!r} has collation {index[name.lower()]} in a unique index"
                for index in found.values()
                for name in table.key
                if set(index) == wanted and index[name.lower()].upper() != "BINARY"
            }
        )

    def comparable(self, table: Table, item: pa.Field, value: str) -> str | None:
        """Decimals are text: up to 15 digits of them are exact in a double. Times are text of the same order."""
        kind = as_column_type(item.type)
        if types.is_decimal(kind):
            return f"CAST({value} AS REAL)" if kind.precision <= DIGITS else None
        if is_text(kind) and self._encoding != "UTF-8":
            return None  # it compares the bytes, whatever they encode
        return value if _is_number(kind) or is_bytes(kind) else f"{value} COLLATE BINARY"

    def disordered(self, table: Table) -> list[str]:
        if table.order_by:
            [(self._encoding,)] = self.run("PRAGMA encoding")
        return super().disordered(table)

    def refuse_unordered(self, batch: pa.RecordBatch, table: Table) -> None:
        """NaN is the greatest number, but stored as NULL; years of more than four digits are not in order as text."""
        for item in table.order_by:
            array = batch.column(item.name)
            if types.is_floating(array.type) and pc.any(pc.is_nan(array)).as_py():
                raise BadValue(f"column {item.name!r}, which order_by= names, is NaN in some rows")
            if types.is_date(array.type) and not _is_four_digits(array):
                raise BadValue(f"column {item.name!r}, which order_by= names, has years beyond 1 to 9999")

    def try_out(self, table: Table, schema: pa.Schema, *, removes: bool) -> None:
        """SQLite plans the statement: it knows its collations, partial indexes and views best."""
        try:
            self.run("EXPLAIN " + self._insert_statement(table, schema.names), (None,) * len(schema.names))
        except RowsRefused as error:
            if "ON CONFLICT clause" in str(error):
                raise KeyNotUnique from None
            raise

    def insert(self, table: Table, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Insert or upsert, converted column by column from Arrow: no row is ever a dict."""
        statement = self._insert_statement(table, schema.names)
        for batch in batches:
            self.run_many(statement, zip(*map(_values, batch.schema.names, batch.columns), strict=True))

    def delete(self, table: Table, keys: pa.RecordBatch) -> None:
        """By the index on the key."""
        place = {name: f"?{number}" for number, name in enumerate(keys.schema.names, start=1)}
        conditions = [f"{self.quoted(name)} = {place[name]}" for name in table.key]
        conditions += filter(None, [self.not_smaller(table, place.__getitem__, self.quoted)])
        statement = f"DELETE FROM {self.named(table.name)} WHERE {' AND '.join(conditions)}"
        self.run_many(statement, zip(*map(_values, keys.schema.names, keys.columns), strict=True))

    def _insert_statement(self, table: Table, names: Sequence[str]) -> str:
        """A constraint that fails fails the vote, also where the table says to drop a row instead (`_CLAUSES`).

        Only there: OR ABORT also overrides what the table's triggers say.
        """
        statement = self.insert_statement(table, names, f"VALUES ({', '.join('?' * len(names))})")
        [(drops,)] = self.run(_CLAUSES, (table.name,))
        return statement.replace("INSERT", "INSERT OR ABORT", 1) if drops else statement

    def columns(self, table: str) -> list[Column]:
        """The columns of a table or view; empty if it does not exist."""
        found = self.run(
            'SELECT name, type, "notnull", dflt_value IS NOT NULL, pk, hidden FROM pragma_table_xinfo(?)', (table,)
        )
        keys = sum(1 for row in found if row[4])
        return [
            Column(
                name=name,
                affinity=affinity_of(kind),
                # INTEGER PRIMARY KEY is the row id, which SQLite fills in itself.
                required=bool(notnull and not default and not (pk and keys == 1 and kind.upper() == "INTEGER")),
                generated=hidden in {2, 3},
            )
            for name, kind, notnull, default, pk, hidden in found
        ]

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            return list(self._now.execute(statement, values))
        except sqlite3.Error as error:
            raise _explained(error) from None

    def run_many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        try:
            self._now.executemany(statement, rows)
        except sqlite3.Error as error:
            raise _explained(error) from None
        except (OverflowError, UnicodeEncodeError) as error:
            raise BadValue(f"a value cannot be stored in SQLite ({type(error).__name__})") from None

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None and self._inode != _inode(self.path):
            self.drop()  # the file was moved or deleted: whatever we write to it now is lost
        if self._connection is None:
            # Only the first connection may create the file: a new, empty one in place of a lost one hides the loss.
            mode = "rwc" if self.identity is None else "rw"
            self._connection = sqlite3.connect(
                f"file:{quote(str(self.path))}?mode={mode}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,  # calls come from one thread at a time, but not always from the same one
            )
            self._connection.execute(PATIENT)
            self._make_durable()
            self._inode = _inode(self.path)
            self.check_identity()
        return self._connection

    def _make_durable(self) -> None:
        """A commit that returned must survive a power cut: the ledger will say "done" and delete the staged rows.

        In WAL mode SQLite's usual choice, synchronous=NORMAL, syncs only at checkpoints and may lose the last commits;
        FULL syncs at every commit. WAL is for readers: they and the writer never block each other. If the file cannot
        be switched to WAL (some file systems, or somebody is reading it), EXTRA is the durable choice.
        """
        connection = self._now
        connection.execute("PRAGMA foreign_keys = OFF")  # deferred ones would be checked at COMMIT, after the decision
        try:
            journal = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if not _is_locked(error):
                raise
            journal = "locked"
        connection.execute("PRAGMA synchronous = FULL" if journal == "wal" else "PRAGMA synchronous = EXTRA")


def _values(name: str, array: pa.Array) -> list[Any]:
    try:
        return bindable(array)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        # pyarrow quotes the value in these.
        raise BadValue(f"column {name!r} has values that do not fit ({type(error).__name__})") from None


def _is_number(kind: pa.DataType) -> bool:
    """Stored as one."""
    numbers = (types.is_integer, types.is_floating, types.is_boolean, types.is_duration)
    return any(is_kind(kind) for is_kind in numbers)


def _is_four_digits(dates: pa.Array) -> bool:
    ends = pc.min_max(pc.year(dates)).as_py().values()
    return all(end is None or 1 <= end <= 9999 for end in ends)


def _inode(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _is_unused(path: Path) -> bool:
    """In WAL mode (by its header) and without a log file, so nobody has it open."""
    try:
        with open(path, "rb") as file:
            header = file.read(20)
    except OSError as error:
        raise Broken(f"it cannot be opened ({error.strerror})") from None
    return header[18:20] == b"\2\2" and not Path(f"{path}-wal").exists()


_HARMLESS = re.compile(
    r"(UNIQUE|NOT NULL|CHECK) constraint failed: |cannot store \w+ value in \w+ column |no such (table|column): "
    r"|table .* has no column |ON CONFLICT clause |cannot (modify|UPSERT|INSERT) |duplicate column name: "
    r"|table .* may not be modified"
)
"""SQLite's texts that name only parts of the schema. Any other may come from a trigger, with a value in it."""


def _is_locked(error: Exception) -> bool:
    return _code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _silent(error: Exception) -> Silent:
    if _is_locked(error):
        return Silent("another connection holds the database's write lock")
    return Broken(f"{_SILENT.get(_code(error), 'it failed')} ({_name(error)})")


def _explained(error: sqlite3.Error) -> Exception:
    if _code(error) == sqlite3.SQLITE_INTERRUPT:
        return Late("the statement took too long")
    if _is_locked(error) or _code(error) in _SILENT:
        return _silent(error)
    kind = BadValue if _name(error) in _VALUES else RowsRefused
    return kind(str(error) if _HARMLESS.match(str(error)) else f"a constraint or trigger failed ({_name(error)})")


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _name(error: Exception) -> str:
    return str(getattr(error, "sqlite_errorname", type(error).__name__))


_VALUES = {
    "SQLITE_CONSTRAINT_NOTNULL",
    "SQLITE_CONSTRAINT_CHECK",
    "SQLITE_CONSTRAINT_DATATYPE",
    "SQLITE_MISMATCH",
    "SQLITE_TOOBIG",
}
_SILENT = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk failed",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_NOTADB: "it is not an SQLite database",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
    sqlite3.SQLITE_PERM: "access was denied",
    sqlite3.SQLITE_AUTH: "access was denied",
    sqlite3.SQLITE_NOMEM: "out of memory",
    sqlite3.SQLITE_PROTOCOL: "its lock protocol failed",
}
