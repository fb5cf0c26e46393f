"""SQLite: rows and epoch row in one transaction of one file. Needs nothing but Python.

SQLite has one write lock for the whole file. The vote takes it, the commit lets it go; a lock that somebody else holds
is "in doubt" and never "gone". Never uses Python's own transaction handling: it would commit behind our back.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from fencepost.errors import BadConfig, FencepostError, Retryable, TargetRefused
from fencepost.rows import Rows
from fencepost.sinks.contract import Capabilities, OutputMode, Session, Sink
from fencepost.sinks.sql import EPOCH_TABLE, TARGET_TABLE, RowsRefused, Silent, SqlSession, alone
from fencepost.sinks.sqlite_columns import declared, misfits
from fencepost.sinks.sqlite_file import File, Locked
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
    mode: Literal["append", "upsert"] | None = None
    """Upsert if there is a key. "append", said aloud, takes output mode update too: every change becomes a row."""
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
    def columns_of_key(self) -> tuple[str, ...]:
        """The key as a tuple; empty if there is none."""
        return () if self.key is None else (self.key,) if isinstance(self.key, str) else tuple(self.key)

    @property
    def upserts(self) -> bool:
        """Does a row replace the one of the same key?"""
        return self.mode == "upsert" or (self.mode is None and bool(self.columns_of_key))

    @property
    def capabilities(self) -> Capabilities:
        """The epoch row makes commits repeatable; update mode needs a key, or the wish to keep every change."""
        if self.mode is not None or self.upserts:
            return Capabilities(shape="apply", repeatable=True, modes=frozenset({"append", "update"}))
        return Capabilities(shape="apply", repeatable=True, remedy="Give it key=…: then it takes output mode update.")

    def session(self, job: str) -> Session:
        """Open the driver's side."""
        return SqliteSession(self, job)


class SqliteSession(SqlSession):
    """The driver's side of one table."""

    def __init__(self, sink: SQLite, job: str) -> None:
        self._settings = sink
        self._file = File.shared(job, Path(sink.path).absolute())
        self._file.users.add(self)
        super().__init__(job, sink.name, self._file)
        self._statement: tuple[pa.Schema, str] | None = None

    @alone
    def preflight(self, schema: pa.Schema, mode: OutputMode) -> str:
        """Check the file and the table, make what is missing, return the identity that stands in the file."""
        sink = self._settings
        self._check_request(schema, mode)
        if not sink.create and not Path(sink.path).is_file():
            raise self._refused("target_missing", "There is no such file.", "Make the database, or set create=True.")
        try:
            self._look()
            identity = self._file.make_identity()
            self._fit(schema)
            self._end()
        except (Silent, RowsRefused) as error:
            raise self._unusable(error) from None
        finally:
            self._let_go()
        return f"{identity}:{sink.table}"  # the same file, another table: another target

    def apply(self, rows: Rows) -> None:
        """Insert or upsert in the rows' order, column by column out of Arrow: no row is ever a dict."""
        for batch in rows.batches():
            if self._statement is None or self._statement[0] != batch.schema:
                self._statement = (batch.schema, insert_into(self._settings, batch.schema.names))
            self._check_keys(batch)
            self._file.run_many(self._statement[1], zip(*map(_values, batch.schema.names, batch.columns), strict=True))

    @alone
    def close(self) -> None:
        """Let go of the file, once nobody else in this job uses it."""
        self._file.leave(self)

    def _check_request(self, schema: pa.Schema, mode: OutputMode) -> None:
        sink = self._settings
        missing = [name for name in sink.columns_of_key if name not in schema.names]
        error = None
        if missing:
            error = BadConfig(
                "key_not_in_rows",
                f"The DataFrame has no column {', '.join(map(repr, missing))}, which key= names.",
                next=f"Name columns of the DataFrame: {', '.join(schema.names)}.",
            )
        elif mode not in sink.capabilities.modes:
            error = BadConfig(
                "mode_needs_key",
                "In output mode update a row replaces an earlier one, and this sink has no key to find it by.",
                next="Give the sink key=…, or use output mode append.",
            )
        elif not schema.names:
            error = BadConfig("no_columns", "The DataFrame has no columns.", next="Select at least one column.")
        if error is not None:
            raise error.at(job=self.job, sink=self.sink)

    def _fit(self, schema: pa.Schema) -> None:
        """Compare the columns and report everything at once: nobody wants to mend a table one error at a time."""
        sink = self._settings
        there = self._file.columns(sink.table)
        if not there:
            if self._file.mark(self.job, self.sink) is not None:
                raise self._refused(
                    "table_lost",
                    f"There is no table {sink.table!r}, though this sink of this job has written epochs before.",
                    "Bring the table back from a copy, or name the old one.",
                )
            if not sink.create:
                next_ = f"Make it, or set create=True:\n{create_table(sink, schema)}"
                raise self._refused("target_missing", f"There is no table {sink.table!r}.", next_)
            self._file.run(create_table(sink, schema))
            there = self._file.columns(sink.table)
        problems = misfits(schema, there)
        if problems:
            raise self._refused(
                "schema_does_not_fit",
                f"Table {sink.table!r} does not fit the DataFrame: {'; '.join(problems)}.",
                "Change the table or the DataFrame's columns (select, cast, alias).",
            )
        # SQLite itself is asked to plan the statement: it knows collations, partial indexes and views better.
        nothing = (None,) * len(schema.names)
        try:
            self._file.run("EXPLAIN " + insert_into(sink, schema.names), nothing)
        except RowsRefused as error:
            if "ON CONFLICT clause" not in str(error):
                raise self._refused(
                    "schema_does_not_fit",
                    f"Table {sink.table!r} cannot be written: {error}.",
                    "Name a table that takes inserts.",
                ) from None
            key = ", ".join(map(quoted, sink.columns_of_key))
            raise self._refused(
                "key_not_unique",
                f"Table {sink.table!r} has no PRIMARY KEY or UNIQUE index on exactly the columns of key=.",
                f"CREATE UNIQUE INDEX {quoted(sink.table + '_key')} ON {quoted(sink.table)} ({key});",
            ) from None

    def _check_keys(self, batch: pa.RecordBatch) -> None:
        """A NULL key never conflicts with another one in SQLite: rows that should replace each other would pile up."""
        for name in self._settings.columns_of_key:
            if pc.any(pc.is_null(batch.column(name), nan_is_null=True)).as_py():
                raise RowsRefused(f"the key column {name!r} is NULL or NaN in some rows")

    def _refused(self, code: str, what: str, next_: str) -> FencepostError:
        return TargetRefused(code, what, next=next_, safe="Safe: nothing was written.").at(job=self.job, sink=self.sink)

    def _unusable(self, error: Exception) -> FencepostError:
        if isinstance(error, Locked):
            return Retryable(
                "target_silent",
                f"The target does not answer: {error}.",
                next="See who holds the lock of the database file, then start the job again.",
                safe="Safe: nothing was written.",
            ).at(job=self.job, sink=self.sink)
        return self._refused(
            "target_unusable",
            f"The file cannot be used: {error}.",
            "Name a database file that this user may write, in a folder that this user may write, on a disk with room.",
        )


def quoted(name: str) -> str:
    """An identifier, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def insert_into(sink: SQLite, names: Sequence[str]) -> str:
    """The one statement that writes a row."""
    columns = ", ".join(map(quoted, names))
    statement = f"INSERT INTO {quoted(sink.table)} ({columns}) VALUES ({', '.join('?' * len(names))})"
    if not sink.upserts:
        return statement
    key = sink.columns_of_key
    rest = [quoted(name) for name in names if name not in key]
    action = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in rest)}" if rest else "NOTHING"
    return f"{statement} ON CONFLICT ({', '.join(map(quoted, key))}) DO {action}"


def create_table(sink: SQLite, schema: pa.Schema) -> str:
    """A table that fits the DataFrame."""
    key = sink.columns_of_key if sink.upserts else ()  # appended changes repeat a key
    parts = [f"{quoted(item.name)} {declared(item.type)}{' NOT NULL' if item.name in key else ''}" for item in schema]
    if key:
        parts.append(f"PRIMARY KEY ({', '.join(map(quoted, key))})")
    return f"CREATE TABLE {quoted(sink.table)} ({', '.join(parts)})"


def _problem(sink: SQLite) -> tuple[str, str] | None:
    """What is wrong with the settings, and the cure."""
    key = sink.columns_of_key
    table = sink.table.lower()
    problems = (
        (
            os.fspath(sink.path) in {"", ":memory:"},
            "path must be a file, memory does not outlive a crash",
            "Name a file",
        ),
        (not table, "table is empty", "Name a table"),
        (
            table in {EPOCH_TABLE, TARGET_TABLE} or table.startswith("sqlite_"),
            "that table is not for rows",
            "Name another",
        ),
        (sink.mode not in {None, "append", "upsert"}, f"mode {sink.mode!r} is not known", 'Use "append" or "upsert"'),
        (sink.upserts and not key, "upsert needs key=", "Name the key columns"),
        (len(set(key)) != len(key) or "" in key, "key names a column twice, or none", "Name each key column once"),
    )
    return next(((what, cure + ".") for wrong, what, cure in problems if wrong), None)


def _values(name: str, array: pa.Array) -> list[Any]:
    try:
        return bindable(array)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        # pyarrow quotes the value in these.
        raise RowsRefused(f"column {name!r} has values that do not fit ({type(error).__name__})") from None
