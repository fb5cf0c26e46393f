"""What sinks that write a table have in common: their settings, and the look at the table before any row.

Never changes a table that is there: what does not fit is said, all of it at once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from fencepost.errors import BadConfig, FencepostError, Retryable, TargetRefused
from fencepost.sinks.contract import HOW_TO_TAKE, Capabilities, OutputMode
from fencepost.sinks.database import (
    EPOCH_TABLE,
    TARGET_TABLE,
    Database,
    Denied,
    NotAllowed,
    RowsRefused,
    Silent,
)
from fencepost.sinks.holding import Asked, Examined, unheard
from fencepost.sinks.marks import Mark, examined
from fencepost.sinks.rehearsal import Rehearsal
from fencepost.sinks.sql import SqlSession, alone

TableMode = Literal["append", "upsert", "replace"]


class TableSettings(Protocol):
    """What a user says about a table."""

    @property
    def name(self) -> str:
        """The sink's."""

    @property
    def table(self) -> str:
        """As the user wrote it."""

    @property
    def key(self) -> str | Sequence[str] | None:
        """By which a row replaces another."""

    @property
    def mode(self) -> TableMode | None:
        """Upsert if there is a key, unless said."""

    @property
    def create(self) -> bool:
        """Make the table if it is not there?"""

    @property
    def capabilities(self) -> Capabilities:
        """What the sink can do with these settings."""


def key_of(sink: TableSettings) -> tuple[str, ...]:
    """The key as a tuple; empty if there is none."""
    return () if sink.key is None else (sink.key,) if isinstance(sink.key, str) else tuple(sink.key)


def upserts(sink: TableSettings) -> bool:
    """Does a row replace the one of the same key?"""
    return sink.mode == "upsert" or (sink.mode is None and bool(key_of(sink)))


LOSS = "durable=False: the server may forget commits that it acknowledged when its machine fails, and nothing tells"


def table_capabilities(sink: TableSettings, *, durable: bool | None = None) -> Capabilities:
    """The epoch row makes commits repeatable, if the server keeps it; see `_modes_of`."""
    found = _modes_of(sink)
    if durable is not False:
        return found
    remedy = "Leave out durable=False, and have the server keep what it acknowledges."
    return replace(found, repeatable=False, remedy=remedy, note=LOSS)


def _modes_of(sink: TableSettings) -> Capabilities:
    """Update mode needs a key, or the wish to keep every change; complete mode a table that is replaced."""
    if sink.mode == "replace":
        return Capabilities(shape="apply", repeatable=True, modes=frozenset({"complete"}), replaces=True)
    if sink.mode is not None or upserts(sink):
        modes: frozenset[OutputMode] = frozenset({"append", "update"})
        return Capabilities(shape="apply", repeatable=True, modes=modes, replaces=upserts(sink))
    return Capabilities(shape="apply", repeatable=True, remedy="Give it key=…: then it takes output mode update.")


def problem_of(sink: TableSettings) -> tuple[str, str] | None:
    """What is wrong with the settings, and the cure."""
    key = key_of(sink)
    problems = (
        (not sink.table, "table is empty", "Name a table"),
        (
            any(sink.table.lower().endswith(name) for name in (EPOCH_TABLE, TARGET_TABLE)),
            "that table is not for rows",
            "Name another",
        ),
        (
            sink.mode not in {None, "append", "upsert", "replace"},
            f"mode {sink.mode!r} is not known",
            'Use "append", "upsert" or "replace"',
        ),
        (upserts(sink) and not key, "upsert needs key=", "Name the key columns"),
        (len(set(key)) != len(key) or "" in key, "key names a column twice, or none", "Name each key column once"),
    )
    return next(((what, cure + ".") for wrong, what, cure in problems if wrong), None)


def refuse_null_keys(batch: pa.RecordBatch, key: Sequence[str]) -> None:
    """A NULL key never conflicts with another one: rows that should replace each other would pile up."""
    for name in key:
        if pc.any(pc.is_null(batch.column(name), nan_is_null=True)).as_py():
            raise RowsRefused(f"the key column {name!r} is NULL or NaN in some rows")


class KeyNotUnique(RowsRefused):
    """The database has no unique index on exactly the key's columns."""


class TableSession(SqlSession):
    """The driver's side of one table. A product's session says how its tables are looked at, made and written."""

    def __init__(self, settings: TableSettings, job: str, database: Database) -> None:
        super().__init__(job, settings.name, database)
        self.settings = settings
        self.target = f"Table {settings.table!r}"
        self.empties = settings.mode == "replace"
        self.guards_plain_writes = upserts(settings) or self.empties

    @abstractmethod
    def make_identity(self) -> str:
        """The random id in the target, made at the first start, inside a transaction."""

    @abstractmethod
    def fits(self, schema: pa.Schema) -> list[str] | None:
        """Everything in which the table does not fit the rows, in words; None if there is no table."""

    only_looking = False
    """Is this a rehearsal? Then no trial may leave a trace, not even for a moment."""

    @abstractmethod
    def try_out(self, schema: pa.Schema) -> None:
        """Let the database itself plan the statement that writes: it knows indexes, views and rights better."""

    @abstractmethod
    def empty_table(self) -> None:
        """Delete every row, inside the open transaction."""

    def before_rows(self) -> None:
        """With mode="replace" an epoch is the whole table."""
        if self.settings.mode == "replace":
            self.empty_table()

    @abstractmethod
    def make_table(self, schema: pa.Schema) -> None:
        """Run `create_statement`."""

    @abstractmethod
    def create_statement(self, schema: pa.Schema) -> str:
        """A table that fits the DataFrame."""

    @abstractmethod
    def index_statement(self) -> str:
        """A unique index on the key."""

    @alone
    def preflight(self, schema: pa.Schema, mode: OutputMode) -> str:
        """Check the target and the table, make what is missing, return the identity that stands in the target."""
        self._check_request(schema, mode)
        try:
            self._look()
            identity = self.make_identity()
            self._fit(schema)
            self._end()
        except (Silent, RowsRefused) as error:
            raise self._unusable(error) from None
        finally:
            self._let_go()
        return f"{identity}:{self.settings.table}"  # the same database, another table: another target

    @alone
    def rehearse(self, schema: pa.Schema, mode: OutputMode) -> Rehearsal | None:
        """Check the target and the table as they are."""
        if self.database.voting is not None:
            return None  # the job runs in this process, and its vote must not be disturbed
        self._check_request(schema, mode)
        table = self.settings.table
        try:
            seen = self.database.peek(self.job, self.sink, table)
            self._look()
            self.check_server()
            self.only_looking = True
            if is_there := self.fits(schema) is not None:
                self._fit(schema)
            else:
                self._check_may_make(schema, seen.mark)
                self.create_statement(schema)
        except (Silent, RowsRefused) as error:
            raise self._unusable(error) from None
        finally:
            self.only_looking = False
            self._let_go()
        identity = f"{seen.identity}:{table}" if seen.identity else ""
        ours = () if identity else (f"tables {EPOCH_TABLE} and {TARGET_TABLE}",)
        return Rehearsal(identity, ours if is_there else (*ours, f"table {table}"))

    def check_server(self) -> None:
        """Refuse a server that is not set up for commits that last."""

    def _check_request(self, schema: pa.Schema, mode: OutputMode) -> None:
        missing = [name for name in key_of(self.settings) if name not in schema.names]
        error = None
        if missing:
            error = BadConfig(
                "key_not_in_rows",
                f"The DataFrame has no column {', '.join(map(repr, missing))}, which key= names.",
                next=f"Name columns of the DataFrame: {', '.join(schema.names)}.",
            )
        elif mode not in self.settings.capabilities.modes:
            error = BadConfig(
                "mode_does_not_fit",
                f"This sink, as it is set up, does not take rows of output mode {mode}.",
                next=HOW_TO_TAKE[mode],
            )
        elif not schema.names:
            error = BadConfig("no_columns", "The DataFrame has no columns.", next="Select at least one column.")
        if error is not None:
            raise error.at(job=self.job, sink=self.sink)

    def _fit(self, schema: pa.Schema) -> None:
        """Compare the columns and report everything at once: nobody wants to mend a table one error at a time."""
        table = self.settings.table
        problems = self.fits(schema)
        if problems is None:
            self._make(schema)
            problems = self.fits(schema) or []
        if problems:
            raise self.refused(
                "schema_does_not_fit",
                f"Table {table!r} does not fit the DataFrame: {'; '.join(problems)}.",
                "Change the table or the DataFrame's columns (select, cast, alias).",
            )
        try:
            self.try_out(schema)
        except KeyNotUnique:
            raise self.refused(
                "key_not_unique",
                f"Table {table!r} has no PRIMARY KEY or UNIQUE index on exactly the columns of key=.",
                self.index_statement(),
            ) from None
        except RowsRefused as error:
            raise self.refused(
                "schema_does_not_fit",
                f"Table {table!r} cannot be written: {error}.",
                "Name a table that takes inserts from this user.",
            ) from None

    def _make(self, schema: pa.Schema) -> None:
        self._check_may_make(schema, self.database.mark(self.job, self.sink))
        self.make_table(schema)

    def _check_may_make(self, schema: pa.Schema, mark: Mark | None) -> None:
        table = self.settings.table
        if mark is not None:
            raise self.refused(
                "table_lost",
                f"There is no table {table!r}, though this sink of this job has written epochs before.",
                "Bring the table back from a copy, or name the old one.",
            )
        if not self.settings.create:
            next_ = f"Make it, or set create=True:\n{self.create_statement(schema)}"
            raise self.refused("target_missing", f"There is no table {table!r}.", next_)

    def examine(self, asked: Asked) -> Examined:
        """By the mark, through a connection of its own."""
        try:
            seen = self.database.peek(self.job, self.sink, self.settings.table)
        except (Silent, RowsRefused) as error:
            return unheard(asked, f"it does not answer: {error}")
        return examined(seen, asked, self.settings.table)

    def refuse_forgetful(self, why: str | None, cure: str, *, durable: bool | None) -> None:
        """Refuse a server that may forget what it acknowledged, unless the user knows better, or takes the risk."""
        if why is not None and durable is None:
            raise self.refused(
                "target_forgets",
                f"The server may forget commits that it acknowledged: {why}.",
                f"{cure} To take the risk: durable=False with guarantee='at_least_once'.",
            )

    def refused(self, code: str, what: str, next_: str) -> FencepostError:
        """An error from before the first row."""
        return TargetRefused(code, what, next=next_, safe="Safe: nothing was written.").at(job=self.job, sink=self.sink)

    def _unusable(self, error: Exception) -> FencepostError:
        what = f"The target cannot be used: {error}."
        if isinstance(error, Denied):
            return self.refused("target_unusable", what, "Mend user, password or database, then start the job again.")
        if isinstance(error, NotAllowed):
            next_ = "Grant it: role.sql and role_without_create.sql beside the sink's module have what a job needs."
            return self.refused("target_unusable", what, next_)
        if isinstance(error, Silent):
            return Retryable(
                "target_silent",
                f"The target does not answer: {error}.",
                next="See that the target works, that this user may use it, and who holds its lock; then start the job "
                "again.",
                safe="Safe: nothing was written.",
            ).at(job=self.job, sink=self.sink)
        return self.refused("target_unusable", what, "Mend it, or name another.")
