"""The settings of a table sink, for any database: its key, how rows are written, where they are staged."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pyarrow as pa

from fencepost.connectors.table.database import EPOCH_TABLE, TARGET_TABLE, Dialect, Table
from fencepost.connectors.table.deletion import nested_in, without
from fencepost.contract import (
    Capabilities,
    Keyed,
    OutputMode,
    Session,
    Sink,
    WriteInTask,
    mode_does_not_fit,
    names_of,
    problem_of_deletes,
    problem_of_order,
)
from fencepost.errors import BadConfig

TableMode = Literal["append", "upsert", "replace"]
Staging = Literal["auto", "checkpoint", "target"]
FEW = 100_000
"""A task with more rows loads them itself; fewer rows are written faster by the driver alone."""
LOSS = "durable=False: the server may lose acknowledged commits when its machine fails, and nothing reports it"


class TableSettings(Sink):
    """The settings that all tables share, in a database or not. A sink is a frozen dataclass with these and its own."""

    table: str
    key: str | Sequence[str] | None
    mode: TableMode | None
    order_by: str | Sequence[str] | None
    unique_key: bool
    deletes: str | None
    create: bool

    @property
    def capabilities(self) -> Capabilities:
        """The mark makes commits repeatable."""
        return modes_of(self)

    @property
    def keyed(self) -> Keyed | None:
        """With a key, a row replaces the row with the same key."""
        if not upserts(self):
            return None
        order = names_of(self.order_by)
        return Keyed(key=key_of(self), order_by=order, unique=self.unique_key, deletes=self.deletes)

    def _check(self, product: str, name: str, *problems: tuple[object, str, str]) -> None:
        """Refuse bad settings where the user wrote them: (is it wrong?, what, what to do)."""
        object.__setattr__(self, "name", self.name or name)
        key = key_of(self)
        order = problem_of_order(self.order_by, unique_key=self.unique_key, keyed=upserts(self)) or ("", "")
        deletes = problem_of_deletes(self.deletes, key, keyed=upserts(self)) or ("", "")
        general = (
            (not self.table, "table is empty", "Name a table"),
            (
                self.mode not in {None, "append", "upsert", "replace"},
                f"unknown mode {self.mode!r}",
                'Use "append", "upsert" or "replace"',
            ),
            (upserts(self) and not key, "upsert needs key=", "Name the key columns"),
            (
                len(set(key)) != len(key) or "" in key,
                "key= names a column twice, or has an empty name",
                "Name each key column once",
            ),
            (order[0], *order),
            (deletes[0], *deletes),
        )
        for wrong, what, remedy in (*problems, *general):
            if wrong:
                raise BadConfig("bad_sink", f"{product}: {what}.", next=f"{remedy}.").at(sink=self.name)


class TableSink(TableSettings):
    """A table in a database, which compares a row with the one that is there."""

    durable: bool | None = None
    staging: Staging = "checkpoint"

    @abstractmethod
    def dialect(self) -> Dialect:
        """The database, not connected yet."""

    @property
    def capabilities(self) -> Capabilities:
        """The epoch row makes commits repeatable, if the server does not lose it."""
        found = replace(modes_of(self), names_rows=self.staging == "checkpoint")
        if self.durable is not False:
            return found
        remedy = "Remove durable=False, and configure the server so that acknowledged commits are durable."
        return replace(found, repeatable=False, remedy=remedy, note=LOSS)

    @property
    def keyed(self) -> Keyed | None:
        """`order_by` holds across epochs."""
        found = super().keyed
        return found and replace(found, greatest=bool(found.order_by))

    def session(self, job: str) -> Session:
        from fencepost.connectors.table.session import TableSession  # noqa: PLC0415 - a sink is cheap to build

        return TableSession(self, job)

    def with_secrets(self) -> TableSink:
        """The same, with secrets in place of references to them: these are the driver's."""
        return self

    def in_tasks(self, job: str) -> WriteInTask | None:
        """The tasks' side, unless the driver writes everything."""
        if self.staging == "checkpoint":
            return None
        from fencepost.connectors.table.task_tables import TaskWriter  # noqa: PLC0415 - as above

        self.dialect()  # fails here, before Spark starts anything, rather than in the tasks
        return TaskWriter(job, self.with_secrets(), FEW if self.staging == "auto" else 0)

    def _check(self, product: str, name: str, *problems: tuple[object, str, str]) -> None:
        super()._check(
            product,
            name,
            *problems,
            (
                any(self.table.lower().endswith(ours) for ours in (EPOCH_TABLE, TARGET_TABLE)),
                f"table name {self.table!r} is reserved by fencepost",
                "Choose another name",
            ),
            (
                self.staging not in {"auto", "checkpoint", "target"},
                f"unknown staging {self.staging!r}",
                'Use "auto", "checkpoint" or "target"',
            ),
            (
                names_of(self.order_by) and self.staging != "checkpoint",
                "order_by= compares the rows of all tasks, but with this staging each task fills a table of its own",
                'Use staging="checkpoint"',
            ),
            (
                self.deletes is not None and self.staging != "checkpoint",
                "deletes= removes rows by key, but with this staging tasks fill tables of rows to write",
                'Use staging="checkpoint"',
            ),
        )


def key_of(sink: TableSettings) -> tuple[str, ...]:
    """As a tuple; empty if there is none."""
    return names_of(sink.key)


def upserts(sink: TableSettings) -> bool:
    """Does a row replace the row with the same key?"""
    return sink.mode == "upsert" or (sink.mode is None and bool(key_of(sink)))


def columns_to_write(sink: TableSettings, schema: pa.Schema, mode: OutputMode, job: str) -> pa.Schema:
    """The columns of the rows that go into the table; refuses rows that do not fit the settings."""
    key = key_of(sink)
    missing = [name for name in key if name not in schema.names]
    error = None
    if missing:
        error = BadConfig(
            "key_not_in_rows",
            f"key= names {', '.join(map(repr, missing))}, which the DataFrame does not have.",
            next=f"Choose from the DataFrame's columns: {', '.join(schema.names)}.",
        )
    elif mode not in sink.capabilities.modes:
        error = mode_does_not_fit(mode)
    elif not schema.names:
        error = BadConfig("no_columns", "The DataFrame has no columns.", next="Select at least one column.")
    elif sink.deletes is not None and (nested := nested_in(schema, key)):
        error = BadConfig(
            "key_type",
            f"Key column {nested!r} has type {schema.field(nested).type}, and deletes= compares keys.",
            next="Use columns of a simple type as the key: text, numbers, dates, times.",
        )
    if error is not None:
        raise error.at(job=job, sink=sink.name)
    return without(schema, sink.deletes)


def table_of(sink: TableSink) -> Table:
    """For the dialect. Appended rows may repeat a key, so then the table has none."""
    return Table(sink=sink.name, name=sink.table, key=key_of(sink) if upserts(sink) else ())


def modes_of(sink: TableSettings) -> Capabilities:
    """Output mode update needs a key, or mode="append"; complete needs mode="replace"."""
    if sink.mode == "replace":
        return Capabilities(shape="apply", repeatable=True, modes=frozenset({"complete"}), replaces=True)
    if sink.mode is not None or upserts(sink):
        modes: frozenset[OutputMode] = frozenset({"append", "update"})
        return Capabilities(shape="apply", repeatable=True, modes=modes, replaces=upserts(sink))
    return Capabilities(shape="apply", repeatable=True)
