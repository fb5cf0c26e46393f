"""An epoch's rows, each key once, cut into the arguments of scripts.

The same rows and the same layout give the same chunks, in any process: after a crash the chunks that are in are
skipped by their number. Never writes a key twice in an epoch: a reader would see it jump.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fencepost.rows import Rows
from fencepost.sinks.redis.layout import Layout, scores, texts
from fencepost.sinks.sql import RowsRefused
from fencepost.sinks.values import plain

COUNTER_LIMIT = 9_223_372_036_854_770_000
"""A little less than Redis's own: the script compares with doubles, which are coarse up there."""
OVERHEAD = 128
"""Bytes that an argument counts beside its own: bounds how many there are, which Redis does too (a million)."""


@dataclass(slots=True)
class Chunk:
    """What one script call writes."""

    names: tuple[bytes, ...]
    """The fields of a hash."""
    keys: list[bytes] = field(default_factory=list)
    """One per row."""
    rows: list[bytes] = field(default_factory=list)
    """For every row which columns have a value ("101"), then the values. Counters: the number to add, and no more."""
    size: int = 0
    last: bool = False

    def add(self, key: bytes, row: Sequence[bytes], size: int) -> None:
        """One row more."""
        self.keys.append(key)
        self.rows.extend(row)
        self.size += size


def chunks(layout: Layout, sources: Sequence[Rows], largest: int) -> Iterator[Chunk]:
    """All rows of an epoch; `largest` is the longest value that the server takes."""
    now: Chunk | None = None
    for names, key, row in _rows(layout, sources):
        size = OVERHEAD * (len(row) + 1) + len(key) + sum(map(len, row))
        if max(len(key), *map(len, row)) > largest:
            raise RowsRefused(f"a value has more than {largest} bytes, the most that the server takes")
        full = now is not None and (len(now.keys) >= layout.chunk_rows or now.size + size > layout.chunk_bytes)
        if now is None or full:
            if now is not None:
                yield now
            now = Chunk(names)
        now.add(key, row, size)
    if now is not None:
        now.last = True
        yield now


def _rows(layout: Layout, sources: Sequence[Rows]) -> Iterator[tuple[tuple[bytes, ...], bytes, Sequence[bytes]]]:
    """Names of a hash's fields, the key, and the arguments of each row."""
    if layout.shape == "counter":
        yield from (((), key, [str(total).encode()]) for key, total in _totals(layout, sources))
        return
    found = [layout.identities(batch) for batch in _batches(sources)]
    start = 0
    newest = _newest(found)
    for batch, identity in zip(_batches(sources), found, strict=True):
        mine, keys = batch, identity[0]
        if newest is not None:
            numbers = pa.array(range(start, start + batch.num_rows), pa.int64())
            chosen = pc.is_in(numbers, value_set=newest)
            mine, keys = batch.filter(chosen), keys.filter(chosen)
        start += batch.num_rows
        wanted = layout.values_of(batch.schema.names)
        fields = tuple(name.encode() for name in wanted) if layout.shape == "hash" else ()
        for key, row in zip(keys.to_pylist(), _arguments(layout, mine, wanted), strict=True):
            yield fields, key, row


def _arguments(layout: Layout, batch: pa.RecordBatch, wanted: Sequence[str]) -> Iterable[Sequence[bytes]]:
    if layout.shape == "json":
        columns = [_plain(name, batch.column(name)) for name in wanted]
        return ((b"1", _json(dict(zip(wanted, row, strict=True)))) for row in _transposed(columns, batch.num_rows))
    as_columns = dict.fromkeys(wanted, texts) | ({layout.score: scores} if layout.score is not None else {})
    return map(_masked, _transposed([as_columns[name](name, batch.column(name)) for name in wanted], batch.num_rows))


def _masked(row: Sequence[bytes | None]) -> Sequence[bytes]:
    there = [value for value in row if value is not None]
    mask = b"".join(b"0" if value is None else b"1" for value in row)
    return [mask, *there]


def _transposed(columns: Sequence[Sequence[Any]], rows: int) -> Iterable[Sequence[Any]]:
    return zip(*columns, strict=True) if columns else [()] * rows


def _newest(found: Sequence[Sequence[pa.Array]]) -> pa.Array | None:
    """The number of the last row of each key; None if every key is there once."""
    if not found:
        return None
    names = [f"part{i}" for i in range(len(found[0]))]
    table = pa.Table.from_batches([pa.RecordBatch.from_arrays(list(parts), names) for parts in found])
    numbered = table.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    last = numbered.group_by(names, use_threads=False).aggregate([("row", "max")])
    return None if last.num_rows == table.num_rows else last.column("row_max").combine_chunks()


def _totals(layout: Layout, sources: Sequence[Rows]) -> Iterator[tuple[bytes, int]]:
    """What each counter gains, summed exactly: Arrow's sums of integers wrap round."""
    batches = []
    for batch in _batches(sources):
        [name] = layout.values_of(batch.schema.names)
        numbers = batch.column(name)
        if numbers.null_count:
            raise RowsRefused(f"the column {name!r} is NULL in some rows, which is no number to add")
        [keys] = layout.identities(batch)
        batches.append(pa.RecordBatch.from_arrays([keys, numbers.cast(pa.decimal128(38, 0))], ["key", "total"]))
    if not batches:
        return
    table = pa.Table.from_batches(batches)
    numbered = table.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    sums = numbered.group_by("key", use_threads=False).aggregate([("total", "sum"), ("row", "min")])
    for batch in sums.sort_by("row_min").to_batches():
        for key, total in zip(batch["key"].to_pylist(), map(int, batch["total_sum"].to_pylist()), strict=True):
            if abs(total) > COUNTER_LIMIT:
                raise RowsRefused("the numbers to add to one counter are more than 64 bits hold")
            yield key, total


def _batches(sources: Sequence[Rows]) -> Iterator[pa.RecordBatch]:
    return chain.from_iterable(source.batches() for source in sources)


def _plain(name: str, column: pa.Array) -> list[object]:
    try:
        return plain(column)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        # pyarrow quotes the value in these.
        raise RowsRefused(f"column {name!r} has values that do not fit ({type(error).__name__})") from None


def _json(row: dict[str, object]) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()
