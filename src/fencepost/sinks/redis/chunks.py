"""An epoch's rows, each key once, cut into what one script call writes.

The same rows and the same layout give the same chunks, in any process: after a crash the chunks that are in are
skipped by their number. Never writes a key twice in an epoch: a reader would see it jump.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fencepost.rows import Rows
from fencepost.sinks.database import RowsRefused
from fencepost.sinks.redis.layout import Layout
from fencepost.sinks.redis.texts import BYTES, scores, texts
from fencepost.sinks.values import plain

COUNTER_LIMIT = 9_223_372_036_854_770_000
"""A little less than Redis's own: the script compares with doubles, which are coarse up there."""
OVERHEAD = 128
"""Bytes that an argument counts beside its own: bounds how many there are, which Redis does too (a million)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one script call writes."""

    names: tuple[bytes, ...]
    """The fields of a hash."""
    keys: pa.Array
    """One per row."""
    columns: tuple[pa.Array, ...]
    """What is written, as bytes. Counters: the number to add, and no more."""
    whole: int
    """The first so many rows have a value in every column, the others have not."""
    last: bool = False

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return int(self.keys.nbytes + sum(column.nbytes for column in self.columns))


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows, not yet cut: keys first, then the columns."""

    names: tuple[bytes, ...]
    arrays: tuple[pa.Array, ...]

    def sizes(self, largest: int) -> pa.Array:
        """How much each row counts; `RowsRefused` for a value that is too long."""
        lengths = [pc.fill_null(pc.binary_length(array), 0) for array in self.arrays]
        if any(pc.max(length).as_py() > largest for length in lengths):
            raise RowsRefused(f"a value has more than {largest} bytes, the most that the server takes")
        total = pa.repeat(pa.scalar(OVERHEAD * len(lengths), pa.int64()), len(lengths[0]))
        for length in lengths:
            total = pc.add(total, length)
        return total

    def slice(self, start: int, end: int) -> Block:
        """The rows from `start` up to `end`."""
        return replace(self, arrays=tuple(array.slice(start, end - start) for array in self.arrays))


def chunks(layout: Layout, sources: Sequence[Rows], largest: int) -> Iterator[Chunk]:
    """All rows of an epoch; `largest` is the longest value that the server takes."""
    ended: list[Chunk | None] = [None]
    for now, following in pairwise(chain(map(_chunk, _cut(layout, sources, largest)), ended)):
        assert now is not None
        yield now if following is not None else replace(now, last=True)


def _cut(layout: Layout, sources: Sequence[Rows], largest: int) -> Iterator[list[Block]]:
    """As many rows together as a chunk may hold, and one at least."""
    now: list[Block] = []
    rows = size = 0
    for block in _blocks(layout, sources):
        ends = pc.cumulative_sum(block.sizes(largest))
        count = len(ends)
        start = before = 0
        while start < count:
            most = min(count, start + layout.chunk_rows - rows)
            room = before + layout.chunk_bytes - size
            end = bisect_right(ends, room, start, most, key=_number)
            if end == start and not rows:
                end = start + 1
            if end > start:
                now.append(block.slice(start, end))
                after = ends[end - 1].as_py()
                rows, size, start, before = rows + end - start, size + after - before, end, after
            if start < count:
                yield now
                now, rows, size = [], 0, 0
    if now:
        yield now


def _number(found: pa.Scalar) -> int:
    return int(found.as_py())


def _chunk(blocks: Sequence[Block]) -> Chunk:
    arrays = [pa.concat_arrays(parts) for parts in zip(*(block.arrays for block in blocks), strict=True)]
    whole = len(arrays[0])
    if any(array.null_count for array in arrays):
        complete = arrays[0].is_valid()
        for array in arrays:
            complete = pc.and_(complete, array.is_valid())
        whole = pc.sum(complete).as_py()
        others = pc.invert(complete)
        arrays = [pa.concat_arrays([array.filter(complete), array.filter(others)]) for array in arrays]
    return Chunk(blocks[0].names, arrays[0], tuple(arrays[1:]), whole)


def _blocks(layout: Layout, sources: Sequence[Rows]) -> Iterator[Block]:
    if layout.shape == "counter":
        yield from _totals(layout, sources)
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
        names = tuple(name.encode() for name in wanted) if layout.shape == "hash" else ()
        if len(keys):
            yield Block(names, (keys, *_columns(layout, mine, wanted)))


def _columns(layout: Layout, batch: pa.RecordBatch, wanted: Sequence[str]) -> Iterable[pa.Array]:
    if layout.shape == "json":
        columns = [_plain(name, batch.column(name)) for name in wanted]
        rows = zip(*columns, strict=True) if columns else [()] * batch.num_rows
        return [pa.array([_json(dict(zip(wanted, row, strict=True))) for row in rows], BYTES)]
    return [(scores if name == layout.score else texts)(name, batch.column(name)) for name in wanted]


def _newest(found: Sequence[Sequence[pa.Array]]) -> pa.Array | None:
    """The number of the last row of each key; None if every key is there once."""
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


def _totals(layout: Layout, sources: Sequence[Rows]) -> Iterator[Block]:
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
        ends = pc.min_max(batch["total_sum"]).as_py().values()
        if any(abs(end) > COUNTER_LIMIT for end in ends):
            raise RowsRefused("the numbers to add to one counter are more than 64 bits hold")
        yield Block((), (batch["key"], batch["total_sum"].cast(pa.large_string()).cast(BYTES)))


def _batches(sources: Sequence[Rows]) -> Iterator[pa.RecordBatch]:
    return chain.from_iterable(source.batches() for source in sources)


def _plain(name: str, column: pa.Array) -> list[Any]:
    try:
        return plain(column)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        # pyarrow quotes the value in these.
        raise RowsRefused(f"column {name!r} has values that do not fit ({type(error).__name__})") from None


def _json(row: dict[str, object]) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()
