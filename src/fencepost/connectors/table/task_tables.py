"""Rows that tasks stage in the target itself: one table each, moved into place by the driver's single transaction.

    task      few rows? send them to the driver : CREATE TABLE · load · COMMIT     not visible in the table yet
    driver    vote = INSERT … SELECT from each · the epoch row     commit = COMMIT     then the tables are dropped

A staged table never has two owners: its name contains lineage, writer, epoch and a random part, so whoever finds it can
tell whether it is an orphan.
"""

from __future__ import annotations

import logging
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Self

import pyarrow as pa

from fencepost import faults
from fencepost.connectors.table.bulk import Unwritable
from fencepost.connectors.table.database import Denied, NotAllowed, RowsRefused, TaskTables
from fencepost.connectors.table.sink import TableSink, table_of
from fencepost.contract import Attempt, end_of, rows_in
from fencepost.protocol.records import Epoch, WriterNumber

log = logging.getLogger(__name__)


class StagedName(NamedTuple):
    """The parts of a staged table's name."""

    owner: str
    """Job and sink, as a checksum: names have to be short."""
    lineage: str
    writer: WriterNumber
    epoch: Epoch
    random: str

    def __str__(self) -> str:
        """At most 63 characters, lower case, nothing that needs quotes."""
        return "_".join(("fencepost", *map(str, self)))

    @classmethod
    def new(cls, job: str, sink: str, attempt: Attempt) -> Self:
        return cls(owner_of(job, sink), attempt.lineage[:8], attempt.writer, attempt.epoch, uuid.uuid4().hex[:12])

    @classmethod
    def read(cls, name: str) -> Self | None:
        """None if it is not the name of a staged table."""
        match name.split("_"):
            case ["fencepost", owner, lineage, writer, epoch, random] if writer.isdigit() and epoch.isdigit():
                return cls(owner, lineage, WriterNumber(int(writer)), Epoch(int(epoch)), random)
        return None


def owner_of(job: str, sink: str) -> str:
    """Job and sink, as a checksum."""
    return f"{zlib.crc32(f'{job}/{sink}'.encode()):08x}"


@dataclass(frozen=True)
class TaskWriter:
    """The tasks' side. Pickled with the plan, called in the tasks."""

    job: str
    sink: TableSink
    few: int
    """A task sends up to this many rows to the driver."""

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
        name = str(StagedName.new(self.job, self.sink.name, attempt))
        schema = first[0].schema
        rows = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in chain(first, batches):
                rows += batch.num_rows
                yield batch

        try:
            self._fill(name, schema, counted(), attempt)
        except NotAllowed as error:
            if rows:
                raise
            log.warning(
                "sink %s: tasks cannot create tables (%s), so the driver writes all rows", self.sink.name, error
            )
            yield from (rows_in(batch, None) for batch in chain(first, batches))
            return
        except (Denied, Unwritable, RowsRefused) as error:
            # Raised here, it would become a Spark error after four attempts; the driver reports it as one of ours.
            yield end_of(schema, name, {"denied" if isinstance(error, Denied) else "refused": str(error)})
            return
        faults.reach("staged.task.filled")
        yield end_of(schema, name, {"rows": rows, "columns": schema.names})

    def _fill(self, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], attempt: Attempt) -> None:
        """Through the task's own connection. `NotAllowed` is raised before the first row is taken."""
        database = self.sink.dialect()
        assert isinstance(database, TaskTables), "only its sinks have tasks that stage"
        database.work_for(attempt)
        table = table_of(self.sink)
        try:
            database.look()
            table.columns = database.columns(table.name)
            known = {column.name for column in table.columns}
            if missing := [column for column in schema.names if column not in known]:
                what = f"no longer has column {missing[0]!r}" if known else "no longer exists"
                raise RowsRefused(f"table {table.name!r} {what}")

            def checked() -> Iterator[pa.RecordBatch]:
                for batch in batches:
                    database.refuse_keys(batch, table)
                    yield batch

            database.fill(name, table, schema, checked())
        finally:
            database.drop()
