"""Rows that a sink refuses, moved to the dead letters of the same epoch before its decision.

    staged                          staged again
    orders   {id: 1, amount: 5}     orders        {id: 1, amount: 5}
    orders   {id: 2, amount: null}  dead_letters  {record: '{"id":2,"amount":null}', error: "NOT NULL …"}

Everything after that is as if the tasks had staged it so: pre-commit, vote, one decision for both sinks. Never changes
a staged file, and never holds more than one batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fencepost.connectors.table.values import plain
from fencepost.store.staging import branch

Refused = Callable[[pa.RecordBatch], Mapping[int, str]]
"""Which rows of a batch a sink refuses, by place, and why."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Where the refused rows of a sink go."""

    sink: str
    """The name of the sink that takes them."""
    source: str
    """Where the records came from, for people."""


class Sieve:
    """Moves the rows that one sink refuses, and counts them."""

    def __init__(self, sink: str, aside: DeadLetters, refused: Refused) -> None:
        self._sink = sink
        self._aside = aside
        self._refused = refused
        self.moved = 0

    def sift(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows, each once."""
        for batch in batches:
            rows = branch(batch, self._sink)
            refused = self._refused(rows) if rows.num_rows else {}
            if not refused:
                yield batch
                continue
            self.moved += len(refused)
            places = pa.array(sorted(refused), pa.int64())
            mine = pc.indices_nonzero(pc.equal(batch.column(0), batch.schema.get_field_index(self._sink)))
            moved = pc.is_in(pa.array(range(batch.num_rows), mine.type), value_set=mine.take(places))
            yield batch.filter(pc.invert(moved))
            yield self._letters(rows.take(places), [refused[place] for place in sorted(refused)], batch.schema)

    def _letters(self, rows: pa.RecordBatch, reasons: list[str], schema: pa.Schema) -> pa.RecordBatch:
        """As `spark/bad_records.py` has them; a plan forgets a record's position on its way to a sink."""
        records = [
            json.dumps(dict(zip(rows.schema.names, row, strict=True)), ensure_ascii=False, separators=(",", ":"))
            for row in zip(*map(_told, rows.columns), strict=True)
        ]
        errors = [f"sink {self._sink} refused it: {reason}" for reason in reasons]
        columns = ([self._aside.source] * len(records), [None] * len(records), records, errors)
        number = schema.get_field_index(self._aside.sink)
        fields = list(schema.field(number).type)
        letter = pa.StructArray.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)], fields=fields
        )
        nothing = [pa.nulls(len(records), field.type) for field in schema]
        tag = pa.array([number] * len(records), schema.field(0).type)
        return pa.RecordBatch.from_arrays([tag, *nothing[1:number], letter, *nothing[number + 1 :]], schema=schema)


def _told(column: pa.Array) -> list[Any]:
    """Its values for JSON, also those that Python has not: text that is not UTF-8, and times after the year 9999."""
    try:
        return plain(column)
    except (OverflowError, ValueError):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            kept = pa.binary() if pa.types.is_string(column.type) else pa.large_binary()
            return [None if value is None else f"base64:{value}" for value in plain(column.cast(kept))]
        found: list[Any] = column.cast(pa.string()).to_pylist()
        return found
