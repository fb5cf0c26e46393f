"""Rows that remove the row of their key (`deletes=`), among rows that write.

    k  v  gone                 removed   written
    a  1  true                           a 2
    b  1  false      →         b
    a  2  false                          c 3
    b  2  true
    c  3  false

The last row of a key counts, whether it removes or writes. Never guesses what NULL means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from fencepost.connectors.table.database import BadValue
from fencepost.connectors.table.values import as_grouped

ROWS_AT_ONCE = 50_000
BYTES_AT_ONCE = 16 * 2**20
"""Many tasks have few rows each, and every call of a server costs time."""


def is_deleted(batch: pa.RecordBatch, deletes: str) -> pa.Array:
    """Which rows remove; `BadValue` if one of them does not say."""
    found = batch.column(deletes)
    if found.null_count:
        raise BadValue(
            f"column {deletes!r}, which deletes= names, is NULL in some rows: use coalesce(…, lit(True)) or lit(False)"
        )
    return found


def without(schema: pa.Schema, deletes: str | None) -> pa.Schema:
    """The columns that are written."""
    return pa.schema([field for field in schema if field.name != deletes])


def nested_in(schema: pa.Schema, key: Iterable[str]) -> str | None:
    """A key column by which rows cannot be grouped here."""
    return next((name for name in key if pa.types.is_nested(schema.field(name).type)), None)


def divided(
    batches: Iterable[pa.RecordBatch], key: Sequence[str], deletes: str, order_by: Sequence[str] = ()
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Some rows at a time, each key once: the keys to remove, with what they are compared by, and the rows to write."""
    named = list(dict.fromkeys((*key, *order_by)))
    for batch in _gathered(batches):
        gone = is_deleted(batch, deletes)
        numbers = newest([[as_grouped(batch.column(name)) for name in key]])
        if numbers is not None:
            last = pc.is_in(pa.array(range(batch.num_rows), pa.int64()), value_set=numbers)
            batch, gone = batch.filter(last), gone.filter(last)  # noqa: PLW2901 - without earlier rows of a key
        kept = batch.filter(pc.invert(gone))
        yield batch.filter(gone).select(named), kept.select([name for name in kept.schema.names if name != deletes])


def newest(found: Sequence[Sequence[pa.Array]]) -> pa.Array | None:
    """Of keys, one or more columns per batch: the number of the last row of each; None if every key appears once."""
    if not found:
        return None
    names = [f"part{i}" for i in range(len(found[0]))]
    if len(names) == 1:
        keys = pa.chunked_array([key for [key] in found])
        if pc.count_distinct(keys).as_py() == len(keys):
            return None
    table = pa.Table.from_batches([pa.RecordBatch.from_arrays(list(parts), names) for parts in found])
    numbered = table.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    last = numbered.group_by(names, use_threads=False).aggregate([("row", "max")])
    return None if last.num_rows == table.num_rows else last.column("row_max").combine_chunks()


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    some: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        some.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield from _one(some)
            some, rows, size = [], 0, 0
    yield from _one(some)


def _one(some: list[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    return pa.Table.from_batches(some).combine_chunks().to_batches() if some else ()
