"""What tasks that write by themselves tell the driver: which unit holds which row, in two columns beside the rows.

k  v  unit  facts
a  1  u1    -                  a row that is kept, and in unit u1
b  2  -     -                  a row that is kept, and in no unit: the driver writes it
-  -  u1    {"rows": 1, …}     the last word of a task about its unit
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fencepost.protocol.records import Kept
from fencepost.rows import Rows
from fencepost.sinks.contract import UNIT, UNIT_FACTS


def rows_in(batch: pa.RecordBatch, unit: str | None) -> pa.RecordBatch:
    """Rows that are to be kept, and the unit that holds them."""
    nulls = pa.nulls(batch.num_rows, pa.string())
    return _beside(batch, nulls if unit is None else pa.repeat(pa.scalar(unit, pa.string()), batch.num_rows), nulls)


def end_of(schema: pa.Schema, unit: str, facts: Mapping[str, Any]) -> pa.RecordBatch:
    """One row that says what a unit holds."""
    schema = _nullable(schema)
    nothing = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    return _beside(nothing, pa.array([unit], pa.string()), pa.array([json.dumps(facts)], pa.string()))


def ends_in(rows: Rows) -> dict[str, dict[str, Any]]:
    """The units of an epoch, with what their tasks said about them."""
    found: dict[str, dict[str, Any]] = {}
    for batch in rows.batches():
        ends = batch.filter(pc.is_valid(batch.column(UNIT_FACTS)))
        found |= dict(
            zip(ends.column(UNIT).to_pylist(), map(json.loads, ends.column(UNIT_FACTS).to_pylist()), strict=True)
        )
    return found


@dataclass(frozen=True, slots=True)
class RowsOfUnit:
    """The rows of one unit among all that were kept; those of none, if it is None."""

    all: Rows
    unit: str | None

    @property
    def schema(self) -> pa.Schema:
        """Columns as the user's DataFrame has them."""
        return pa.schema([field for field in self.all.schema if field.name not in (UNIT, UNIT_FACTS)])

    @property
    def count(self) -> int:
        """How many."""
        return sum(batch.num_rows for batch in self.batches())

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The files that hold them, among others."""
        return self.all.kept

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, again at every call."""
        for batch in self.all.batches():
            unit = batch.column(UNIT)
            mine = pc.is_null(unit) if self.unit is None else pc.equal(unit, self.unit)
            found = batch.filter(pc.and_(mine, pc.is_null(batch.column(UNIT_FACTS)))).select(self.schema.names)
            if found.num_rows:
                yield found


def _beside(batch: pa.RecordBatch, units: pa.Array, facts: pa.Array) -> pa.RecordBatch:
    schema = pa.schema([*_nullable(batch.schema), (UNIT, pa.string()), (UNIT_FACTS, pa.string())])
    return pa.RecordBatch.from_arrays([*batch.columns, units, facts], schema=schema)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in schema])
