"""Rows that tasks stage in the target itself: a table each, moved into place by the driver's one transaction.

    task      few rows? they go to the driver : CREATE TABLE · load · COMMIT       nothing of it is visible
    driver    vote = INSERT … SELECT from each · the epoch row     commit = COMMIT     then the tables are dropped

Never gives a table two owners: its name has lineage, writer, epoch and something random. Whoever finds it can tell
whether it is an orphan.
"""

from __future__ import annotations

import logging
import uuid
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple, Protocol, Self, TypeVar

import pyarrow as pa

from fencepost import faults
from fencepost.protocol.records import Epoch, Handle, WriterNumber
from fencepost.rows import Rows
from fencepost.sinks.bulk_text import Unwritable
from fencepost.sinks.contract import UNIT, Attempt
from fencepost.sinks.database import NotAllowed, RowsRefused, Silent
from fencepost.sinks.marks import Mark
from fencepost.sinks.sql import alone
from fencepost.sinks.tables import TableSession, refuse_null_keys
from fencepost.sinks.units import RowsOfUnit, end_of, ends_in, rows_in
from fencepost.sinks.values import as_column_type

log = logging.getLogger(__name__)

Staging = Literal["auto", "checkpoint", "target"]
FEW = 100_000
"""A task with more rows loads them itself; the driver alone writes fewer ones sooner."""
PLACE = "fencepost_n"
"""A column more in staged tables: the row's place, so that of two rows with one key the last one wins."""


class StagedName(NamedTuple):
    """What the name of a staged table says."""

    owner: str
    """Job and sink, as a sum: names are short."""
    lineage: str
    writer: WriterNumber
    epoch: Epoch
    random: str

    def __str__(self) -> str:
        """At most 63 characters, lower case, no sign that needs quotes."""
        return "_".join(("fencepost", *map(str, self)))

    @classmethod
    def new(cls, job: str, sink: str, attempt: Attempt) -> Self:
        """For one attempt of one task."""
        return cls(owner_of(job, sink), attempt.lineage[:8], attempt.writer, attempt.epoch, uuid.uuid4().hex[:12])

    @classmethod
    def read(cls, name: str) -> Self | None:
        """None if it is no staged table."""
        match name.split("_"):
            case ["fencepost", owner, lineage, writer, epoch, random] if writer.isdigit() and epoch.isdigit():
                return cls(owner, lineage, WriterNumber(int(writer)), Epoch(int(epoch)), random)
        return None


def owner_of(job: str, sink: str) -> str:
    """Job and sink, as a sum."""
    return f"{zlib.crc32(f'{job}/{sink}'.encode()):08x}"


class TableColumn(Protocol):
    """What is asked of a column of a table that is there, whatever the database."""

    @property
    def name(self) -> str:
        """Case and all."""

    @property
    def shown(self) -> str:
        """Its type, as a person writes it."""

    @property
    def required(self) -> bool:
        """NOT NULL without a default."""

    @property
    def generated(self) -> bool:
        """The database fills it."""


Kind = TypeVar("Kind", bound=TableColumn)


def misfits_of(schema: pa.Schema, there: Sequence[Kind], fits: Callable[[pa.DataType, Kind], bool]) -> list[str]:
    """Everything in which a table does not fit the rows, in words; `fits` tells whether a column keeps every value."""
    by_name = {column.name: column for column in there}
    problems = []
    for item in schema:
        column = by_name.get(item.name)
        kind = as_column_type(item.type)
        if column is None:
            near = next((name for name in by_name if name.lower() == item.name.lower()), None)
            problems.append(f"column {item.name!r} is missing" + (f" (there is {near!r})" if near else ""))
        elif column.generated:
            problems.append(f"column {item.name!r} is generated and cannot be written")
        elif not fits(kind, column):
            problems.append(f"column {item.name!r} is {column.shown}, which cannot hold every {kind}")
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    problems += [f"column {name!r} comes twice" for name in twice]
    problems += [f"column {name!r} has the name of one of ours" for name in schema.names if name.lower() == PLACE]
    problems += [
        f"column {column.name!r} is NOT NULL without a default, and the DataFrame does not have it"
        for column in there
        if column.required and not column.generated and column.name not in schema.names
    ]
    return problems


@dataclass(frozen=True)
class TaskWriter(ABC):
    """The tasks' side. Pickled with the plan; called in the tasks."""

    job: str
    sink: str
    key: tuple[str, ...]
    few: int
    """Up to so many rows a task gives to the driver."""

    @abstractmethod
    def fill(self, table: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], attempt: Attempt) -> None:
        """Make a table and load the rows, durably; raise `RowsRefused` or `Unwritable` if they cannot be taken.

        `NotAllowed` comes before the first row is taken: then the driver writes them all.
        """

    def __call__(self, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of one task attempt."""
        first: list[pa.RecordBatch] = []
        count = 0
        for batch in batches:
            if batch.num_rows:
                first.append(batch)
                count += batch.num_rows
            if count > self.few:
                break
        if count <= self.few:
            yield from (rows_in(batch, None) for batch in first)
            return
        name = str(StagedName.new(self.job, self.sink, attempt))
        schema = first[0].schema
        rows = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in chain(first, batches):
                refuse_null_keys(batch, self.key)
                rows += batch.num_rows
                yield batch

        try:
            self.fill(name, schema, counted(), attempt)
        except NotAllowed as error:
            if rows:
                raise
            log.warning("sink %s: %s, so that the driver writes the rows of the tasks", self.sink, error)
            yield from (rows_in(batch, None) for batch in chain(first, batches))
            return
        except (Unwritable, RowsRefused) as error:
            # Raised here it would end as Spark's error, after four attempts; the driver says it in our own words.
            yield end_of(schema, name, {"refused": str(error)})
            return
        faults.reach("staged.task.filled")
        yield end_of(schema, name, {"rows": rows, "columns": schema.names})


class StagedSession(TableSession):
    """The driver's side of a table whose rows may be staged in its own database."""

    @abstractmethod
    def move(self, table: str, names: Sequence[str]) -> None:
        """Write the rows of a staged table, inside the open transaction."""

    @abstractmethod
    def staged_tables(self) -> list[str]:
        """Names of tables that begin with `fencepost_`, where ours are."""

    @abstractmethod
    def drop_tables(self, tables: Sequence[str]) -> None:
        """Drop them; not there already is fine."""

    def handles(self, epoch: Epoch, rows: Rows) -> tuple[Handle, ...]:
        """One for what the driver has to write, and one for each table that a task filled."""
        if not rows.kept or UNIT not in rows.schema.names:
            return super().handles(epoch, rows)
        units = ends_in(rows)
        for facts in units.values():
            if "refused" in facts:
                raise self.rows_refused(epoch, RowsRefused(facts["refused"]))
        plain = self.pre_commit(epoch, RowsOfUnit(rows, None))
        filled = [
            Handle(name, self.sink, facts["rows"], (), {"table": name, "columns": facts["columns"]})
            for name, facts in units.items()
        ]
        return (*(() if plain is None else (plain,)), *filled)

    def apply_unit(self, handle: Handle, rows: Rows) -> None:
        """Move what a task staged, or write what the driver kept."""
        if "table" in handle.body:
            self.move(handle.body["table"], handle.body["columns"])
        elif handle.rows:
            self.apply(RowsOfUnit(rows, None) if UNIT in rows.schema.names else rows)

    def after_commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        """Drop what was moved, and what failed attempts left."""
        if any("table" in handle.body for handle in handles):
            self._drop_through(WriterNumber(self.owner.writer + 1), epoch)

    def orphans(self, before: WriterNumber, *, at_leisure: bool = False) -> tuple[Handle, ...]:
        """Tables of older writers; those of epochs that are in are no orphans, only in the way."""
        if at_leisure:
            return ()
        found = self._mark_now()
        if found is not None and found.lineage == self.owner.lineage:
            self._drop_through(before, Epoch(found.epoch))
        return tuple(Handle(str(name), self.sink, 0, (), {"table": str(name)}) for name in self._staged(before))

    def abort(self, handle: Handle) -> None:
        """Drop one."""
        if "table" in handle.body:
            self._drop_staged([handle.body["table"]])

    def _drop_through(self, before: WriterNumber, epoch: Epoch) -> None:
        self._drop_staged([str(name) for name in self._staged(before) if name.epoch <= epoch])

    @alone
    def _mark_now(self) -> Mark | None:
        try:
            self._look()
            return self.database.mark(self.job, self.sink)
        except (Silent, RowsRefused):
            return None  # whoever needs the target next says so
        finally:
            self._let_go()

    @alone
    def _drop_staged(self, tables: list[str]) -> None:
        try:
            if tables:
                self._begin(patient=False)  # it ends with COMMIT, so no newer writer's vote may be open
                self.drop_tables(tables)
                self._end()
        except (Silent, RowsRefused) as error:
            log.warning("sink %s: %d staged tables stay for now: %s", self.sink, len(tables), error)
        finally:
            self._let_go()

    @alone
    def _staged(self, before: WriterNumber) -> list[StagedName]:
        try:
            self._look()
            names = [StagedName.read(table) for table in self.staged_tables()]
        except (Silent, RowsRefused) as error:
            log.warning("sink %s: staged tables could not be listed: %s", self.sink, error)
            return []
        finally:
            self._let_go()
        mine = owner_of(self.job, self.sink)
        return [
            name
            for name in names
            if name and name.owner == mine and self.owner.is_older(name.lineage, name.writer, before)
        ]
