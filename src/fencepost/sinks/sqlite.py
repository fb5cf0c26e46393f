"""SQLite: rows and epoch row in one transaction of one file. Needs nothing but Python.

SQLite has one write lock for the whole file. The vote takes it, the commit lets it go; a lock that somebody else holds
is "in doubt" and never "gone". Never uses Python's own transaction handling: it would commit behind our back.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fencepost.errors import BadConfig, FencepostError
from fencepost.rows import Rows
from fencepost.sinks.contract import Capabilities, OutputMode, Session, Sink
from fencepost.sinks.database import RowsRefused, Silent
from fencepost.sinks.rehearsal import Rehearsal, check_can_write_file
from fencepost.sinks.sqlite_columns import declared, misfits
from fencepost.sinks.sqlite_file import File, Locked
from fencepost.sinks.tables import (
    KeyNotUnique,
    TableMode,
    TableSession,
    key_of,
    problem_of,
    refuse_null_keys,
    table_capabilities,
    upserts,
)
from fencepost.sinks.values import bindable

__all__ = ["SQLite"]


@dataclass(frozen=True)
class SQLite(Sink):
    """A table in an SQLite file.

    With `key`, a row replaces the row of the same key (the last one of an epoch wins), so output mode update works.
    Without, rows are appended.

    The mistake people make: two jobs writing one file. SQLite has one write lock per file; give each job its own file.
    Two sinks of one job in one file are fine: they share the transaction.

    Integers, floats, booleans (0, 1), text and bytes are stored as such; NaN becomes NULL, as always in SQLite.
    Decimals are text (exact), dates and times ISO text (in UTC with `+00:00` if they have a zone), intervals
    microseconds, nested values JSON text. Foreign keys are not enforced while we write, which is SQLite's default.
    """

    path: str | os.PathLike[str]
    _: KW_ONLY
    table: str
    key: str | Sequence[str] | None = None
    mode: TableMode | None = None
    """Upsert if there is a key. "append", said aloud, takes output mode update too: every change becomes a row. With
    "replace", for output mode complete, the table is what the last epoch said."""
    create: bool = True
    """Make the table if it is not there."""
    name: str = ""
    """`sqlite:<table>` unless told."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, where the user wrote it."""
        object.__setattr__(self, "name", self.name or f"sqlite:{self.table}")
        if problem := _problem(self):
            raise BadConfig("bad_sink", f"SQLite: {problem[0]}.", next=problem[1]).at(sink=self.name)

    @property
    def capabilities(self) -> Capabilities:
        """The epoch row makes commits repeatable."""
        return table_capabilities(self)

    def session(self, job: str) -> Session:
        """Open the driver's side."""
        return SqliteSession(self, job)


class SqliteSession(TableSession):
    """The driver's side of one table."""

    def __init__(self, sink: SQLite, job: str) -> None:
        self._file = File.shared(self, job, os.path.realpath(sink.path))
        super().__init__(sink, job, self._file)
        self._settings = sink
        self._statement: tuple[pa.Schema, str] | None = None

    def preflight(self, schema: pa.Schema, mode: OutputMode) -> str:
        """The file first, then what every table needs."""
        self._check_file()
        return super().preflight(schema, mode)

    def rehearse(self, schema: pa.Schema, mode: OutputMode) -> Rehearsal | None:
        """Through a connection that cannot write: another one would make the file, or change its journal."""
        path = Path(self._settings.path).absolute()
        try:
            check_can_write_file(path)
            if path.exists() and self._file.voting is None:
                self._file.only_read()
        except (OSError, Silent) as error:
            raise self._unusable(Silent(getattr(error, "strerror", error))) from None
        if path.exists():
            try:
                return super().rehearse(schema, mode)
            finally:
                self._file.drop()
        self._check_request(schema, mode)
        self._check_file()
        self.create_statement(schema)
        return Rehearsal("", (f"file {path.name}", f"table {self._settings.table}"))

    def _check_file(self) -> None:
        if not self._settings.create and not Path(self._settings.path).is_file():
            raise self.refused("target_missing", "There is no such file.", "Make the database, or set create=True.")

    def apply(self, rows: Rows) -> None:
        """Insert or upsert in the rows' order, column by column out of Arrow: no row is ever a dict."""
        for batch in rows.batches():
            if self._statement is None or self._statement[0] != batch.schema:
                self._statement = (batch.schema, insert_into(self._settings, batch.schema.names))
            refuse_null_keys(batch, key_of(self._settings))
            self._file.run_many(self._statement[1], zip(*map(_values, batch.schema.names, batch.columns), strict=True))

    def make_identity(self) -> str:
        """Where all sinks of the file find it."""
        return self._file.make_identity()

    def fits(self, schema: pa.Schema) -> list[str] | None:
        """By the rules of SQLite's affinities."""
        there = self._file.columns(self._settings.table)
        return misfits(schema, there) if there else None

    def try_out(self, schema: pa.Schema) -> None:
        """SQLite plans the statement: it knows collations, partial indexes and views better."""
        try:
            self._file.run("EXPLAIN " + insert_into(self._settings, schema.names), (None,) * len(schema.names))
        except RowsRefused as error:
            if "ON CONFLICT clause" in str(error):
                raise KeyNotUnique from None
            raise

    def empty_table(self) -> None:
        """In the same transaction as the rows that come instead."""
        self._file.run(f"DELETE FROM {quoted(self._settings.table)}")

    def make_table(self, schema: pa.Schema) -> None:
        """With the key as its primary key."""
        self._file.run(self.create_statement(schema))

    def create_statement(self, schema: pa.Schema) -> str:
        """A table that fits the DataFrame."""
        return create_table(self._settings, schema)

    def index_statement(self) -> str:
        """A unique index on the key."""
        table = self._settings.table
        key = ", ".join(map(quoted, key_of(self._settings)))
        return f"CREATE UNIQUE INDEX {quoted(table + '_key')} ON {quoted(table)} ({key});"

    def _unusable(self, error: Exception) -> FencepostError:
        if isinstance(error, Silent) and not isinstance(error, Locked):
            return self.refused(
                "target_unusable",
                f"The file cannot be used: {error}.",
                "Name a database file that this user may write, in a folder that this user may write, on a disk with "
                "room.",
            )
        return super()._unusable(error)


def quoted(name: str) -> str:
    """An identifier, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def insert_into(sink: SQLite, names: Sequence[str]) -> str:
    """The one statement that writes a row."""
    columns = ", ".join(map(quoted, names))
    statement = f"INSERT INTO {quoted(sink.table)} ({columns}) VALUES ({', '.join('?' * len(names))})"
    if not upserts(sink):
        return statement
    key = key_of(sink)
    rest = [quoted(name) for name in names if name not in key]
    action = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in rest)}" if rest else "NOTHING"
    return f"{statement} ON CONFLICT ({', '.join(map(quoted, key))}) DO {action}"


def create_table(sink: SQLite, schema: pa.Schema) -> str:
    """A table that fits the DataFrame."""
    key = key_of(sink) if upserts(sink) else ()  # appended changes repeat a key
    parts = [f"{quoted(item.name)} {declared(item.type)}{' NOT NULL' if item.name in key else ''}" for item in schema]
    if key:
        parts.append(f"PRIMARY KEY ({', '.join(map(quoted, key))})")
    return f"CREATE TABLE {quoted(sink.table)} ({', '.join(parts)})"


def _problem(sink: SQLite) -> tuple[str, str] | None:
    """What is wrong with the settings, and the cure."""
    if os.fspath(sink.path) in {"", ":memory:"}:
        return "path must be a file, memory does not outlive a crash", "Name a file."
    if sink.table.lower().startswith("sqlite_"):
        return "that table is not for rows", "Name another."
    return problem_of(sink)


def _values(name: str, array: pa.Array) -> list[Any]:
    try:
        return bindable(array)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        # pyarrow quotes the value in these.
        raise RowsRefused(f"column {name!r} has values that do not fit ({type(error).__name__})") from None
