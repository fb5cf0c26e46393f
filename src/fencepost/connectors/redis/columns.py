"""Turns rows into arguments of script calls: the Redis key and value of each row, in chunks, as bytes.

    layout   which Redis key and value a row becomes
    chunks   an epoch's rows, each key once, divided into what one script call writes
    texts    a column as Redis stores it: text, or bytes unchanged
    words    whole columns as arguments of a command

The result never differs between processes: after a crash the same rows must give the same chunks of the same bytes, and
those already written are skipped by number. Never two keys for one row, nor one key for two. Never writes a key twice
in an epoch: a reader would see an intermediate value.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import chain, pairwise
from typing import Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from fencepost.connectors.table.database import RowsRefused
from fencepost.connectors.table.deletion import is_deleted, newest
from fencepost.connectors.table.values import as_column_type, as_grouped, bindable, plain
from fencepost.contract import SortedRows
from fencepost.errors import BadConfig
from fencepost.store.staging import Rows

Shape = Literal["hash", "string", "json", "counter", "sorted_set"]

RESERVED = "fencepost:"
"""What our own keys begin with."""
MOST_COLUMNS = 1000
"""Lua cannot pass many more values to one command."""
COUNTER_LIMIT = 9_223_372_036_854_770_000
"""A little below Redis's own limit: the script compares doubles, which are imprecise at this size."""
OVERHEAD = 128
"""Bytes added per argument, which limits their number: Redis accepts about a million."""
BYTES = pa.large_binary()
AS_THEY_ARE = (pa.string(), pa.large_string(), pa.binary(), BYTES)
FIRST_MOMENT, LAST_MOMENT = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Of the years 1 and 9999, in microseconds: Python's own range."""
EXACT = 2**53
PIECE = 1024 * 1024
"""Bytes per send, each with its own timeout."""
LINE = b"\r\n"
SHORT = 1 << 16
"""Bytes from which on MessagePack needs four bytes for a length."""

_COLUMNS = {
    "hash": (1, MOST_COLUMNS),
    "string": (1, 1),
    "json": (0, MOST_COLUMNS),
    "counter": (1, 1),
    "sorted_set": (0, 0),
}
"""How many columns a shape takes besides key, member and score."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows become keys, and in which chunks. Stored in the handle, so that a restart makes the same chunks."""

    shape: Shape
    prefix: str
    key: tuple[str, ...]
    member: str | None
    score: str | None
    chunk_rows: int
    chunk_bytes: int
    order_by: tuple[str, ...] = ()
    deletes: str | None = None

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Layout:
        return cls(**{**body, "key": tuple(body["key"]), "order_by": tuple(body.get("order_by", ()))})

    @property
    def body(self) -> dict[str, Any]:
        found = {**asdict(self), "key": list(self.key), "order_by": list(self.order_by)}
        return {name: value for name, value in found.items() if value or name not in {"order_by", "deletes"}}

    @property
    def own(self) -> str:
        """The prefix of fencepost's own keys: in a cluster they must be in the same slot as the rows."""
        tag = tag_of(self.prefix)
        return f"{{{tag}}}:{RESERVED}" if tag else RESERVED

    def values_of(self, names: Sequence[str]) -> list[str]:
        """The columns that are written. Where there is room for one only, `order_by` is not, unless it is that one."""
        if self.shape == "sorted_set":
            return [cast("str", self.member), cast("str", self.score)]
        rest = [name for name in names if name not in (*self.key, self.deletes)]
        return ([name for name in rest if name not in self.order_by] or rest) if self.shape == "string" else rest

    def check(self, schema: pa.Schema) -> None:
        """Refuse a DataFrame without the named columns, or with more than the shape can store."""
        named = [*self.key, *(name for name in (self.member, self.score) if name is not None)]
        missing = [name for name in named if name not in schema.names]
        if missing:
            raise BadConfig(
                "key_not_in_rows",
                f"The DataFrame does not have {', '.join(map(repr, missing))}, which key=, member= or score= names.",
                next=f"Choose from the DataFrame's columns: {', '.join(schema.names)}.",
            )
        rest = [name for name in self.values_of(schema.names) if name not in named]
        if self.shape == "sorted_set":
            rest = [name for name in schema.names if name not in (*named, *self.order_by, self.deletes)]
        least, most = _COLUMNS[self.shape]
        if not least <= len(rest) <= most or len(set(schema.names)) != len(schema.names):
            raise BadConfig(
                "columns_do_not_fit",
                f"shape={self.shape!r} takes {least if least == most else f'{least} to {most}'} columns besides "
                f"{', '.join(named)}, each of them once; the DataFrame has {', '.join(schema.names)}.",
                next="Select only the columns to write, or choose another shape.",
            )
        self._check_types({name: as_column_type(schema.field(name).type) for name in schema.names}, rest)

    def _check_types(self, kinds: Mapping[str, pa.DataType], rest: Sequence[str]) -> None:
        for name in (*self.key, *([self.member] if self.member else [])):
            if types.is_nested(kinds[name]) or types.is_null(kinds[name]):
                raise BadConfig(
                    "key_type",
                    f"Key column {name!r} has type {kinds[name]}, which cannot be part of a key.",
                    next="Use columns of a simple type: text, numbers, dates, times.",
                )
        if self.shape == "counter" and not types.is_integer(kinds[rest[0]]):
            raise BadConfig(
                "counter_type",
                f"A counter adds whole numbers, but {rest[0]!r} has type {kinds[rest[0]]}: sums of floats depend on "
                "their order, so they would not be exact.",
                next="Cast it to a whole number of small units (cents, microseconds), or compute the total in Spark "
                "and write it with shape='string'.",
            )
        score = self.score
        if score is not None and not (types.is_integer(kinds[score]) or types.is_floating(kinds[score])):
            raise BadConfig(
                "score_type",
                f"The score {score!r} has type {kinds[score]}, but Redis stores scores as doubles.",
                next="Cast it to double, or to a whole number.",
            )

    def identities(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The Redis key of every row, and its member in a sorted set: rows with the same ones replace each other."""
        parts = [self._part(batch, name) for name in self.key]
        if len(parts) > 1:
            for mark, escaped in ((b"%", b"%25"), (b":", b"%3A")):
                parts = [pc.replace_substring(part, mark, escaped) for part in parts]
        own = pa.scalar(self.prefix.encode(), BYTES)
        if parts:
            joined = pc.binary_join_element_wise(*parts, pa.scalar(b":", BYTES))
            keys = pc.binary_join_element_wise(own, joined, pa.scalar(b"", BYTES))
        else:
            keys = pa.repeat(own, batch.num_rows)
        if pc.any(pc.starts_with(keys, self.own.encode())).as_py():
            raise RowsRefused(f"a key begins with {self.own!r}, which is reserved by fencepost")
        return [keys, self._part(batch, self.member)] if self.member is not None else [keys]

    def _part(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        column = batch.column(name)
        if pc.any(pc.is_null(column, nan_is_null=True)).as_py():
            raise RowsRefused(f"key column {name!r} is NULL or NaN in some rows")
        return texts(name, as_grouped(column))


def tag_of(prefix: str) -> str:
    """The text in the first braces, which determines a key's slot."""
    _, brace, rest = prefix.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if brace and closed else ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one script call writes."""

    names: tuple[bytes, ...]
    """The fields of a hash."""
    keys: pa.Array
    """One per row."""
    columns: tuple[pa.Array, ...]
    """The values, as bytes. For counters only the number to add."""
    whole: int
    """This many rows, which come first, have a value in every column; the others do not."""
    last: bool = False

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return int(self.keys.nbytes + sum(column.nbytes for column in self.columns))


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows, not yet divided into chunks: keys first, then the columns."""

    names: tuple[bytes, ...]
    arrays: tuple[pa.Array, ...]

    def sizes(self, largest: int) -> pa.Array:
        """The size of each row; `RowsRefused` if a value is too long."""
        lengths = [pc.fill_null(pc.binary_length(array), 0) for array in self.arrays]
        if any(pc.max(length).as_py() > largest for length in lengths):
            raise RowsRefused(f"a value has more than {largest} bytes, the most that the server accepts")
        total = pa.repeat(pa.scalar(OVERHEAD * len(lengths), pa.int64()), len(lengths[0]))
        for length in lengths:
            total = pc.add(total, length)
        return total

    def slice(self, start: int, end: int) -> Block:
        """The rows from `start` up to `end`."""
        return replace(self, arrays=tuple(array.slice(start, end - start) for array in self.arrays))


def chunks(layout: Layout, sources: Sequence[Rows], largest: int) -> Iterator[Chunk]:
    """All rows of an epoch; `largest` is the longest value that the server accepts."""
    sources = [SortedRows.of(source, layout.order_by) for source in sources]
    ended: list[Chunk | None] = [None]
    for now, following in pairwise(chain(map(_chunk, _cut(layout, sources, largest)), ended)):
        assert now is not None
        yield now if following is not None else replace(now, last=True)


def _cut(layout: Layout, sources: Sequence[Rows], largest: int) -> Iterator[list[Block]]:
    """As many rows at a time as fit in a chunk, at least one."""
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
    found = [list(map(_copied, layout.identities(batch))) for batch in _batches(sources)]
    start = 0
    last = newest(found)
    for batch, identity in zip(_batches(sources), found, strict=True):
        mine, keys = batch, identity[0]
        deleted = None if layout.deletes is None else is_deleted(batch, layout.deletes)
        if last is not None:
            numbers = pa.array(range(start, start + batch.num_rows), pa.int64())
            chosen = pc.is_in(numbers, value_set=last)
            mine, keys = batch.filter(chosen), keys.filter(chosen)
            deleted = None if deleted is None else deleted.filter(chosen)
        start += batch.num_rows
        wanted = layout.values_of(batch.schema.names)
        names = tuple(name.encode() for name in wanted) if layout.shape == "hash" else ()
        if len(keys):
            columns = _columns(layout, mine, wanted)
            if deleted is not None:
                columns = _emptied(columns, deleted, layout)
            yield Block(names, (keys, *columns))


def _emptied(columns: Iterable[pa.Array], deleted: pa.Array, layout: Layout) -> Iterator[pa.Array]:
    """A row without values removes; a member is part of what identifies the row."""
    for number, column in enumerate(columns):
        is_member = layout.member is not None and number == 0
        yield column if is_member else pc.if_else(deleted, pa.scalar(None, column.type), column)


def _columns(layout: Layout, batch: pa.RecordBatch, wanted: Sequence[str]) -> Iterable[pa.Array]:
    if layout.shape == "json":
        columns = [_plain(name, batch.column(name)) for name in wanted]
        rows = zip(*columns, strict=True) if columns else [()] * batch.num_rows
        return [pa.array([_json(dict(zip(wanted, row, strict=True))) for row in rows], BYTES)]
    return [(scores if name == layout.score else texts)(name, batch.column(name)) for name in wanted]


def _totals(layout: Layout, sources: Sequence[Rows]) -> Iterator[Block]:
    """The sum for each counter, computed exactly: Arrow's integer sums overflow silently."""
    batches = []
    for batch in _batches(sources):
        [name] = layout.values_of(batch.schema.names)
        numbers = batch.column(name)
        if numbers.null_count:
            raise RowsRefused(f"column {name!r} is NULL in some rows, which a counter cannot add")
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
            raise RowsRefused("the sum for one counter does not fit in 64 bits")
        yield Block((), (batch["key"], batch["total_sum"].cast(pa.large_string()).cast(BYTES)))


def _batches(sources: Sequence[Rows]) -> Iterator[pa.RecordBatch]:
    return chain.from_iterable(source.batches() for source in sources)


def _copied(column: pa.Array) -> pa.Array:
    """In memory of its own: a column of a batch that is kept keeps the whole batch."""
    return pa.concat_arrays([column, column.slice(0, 0)])


def _plain(name: str, column: pa.Array) -> list[Any]:
    try:
        return plain(column)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        # pyarrow quotes the value in these.
        raise RowsRefused(f"column {name!r} has values that do not fit ({type(error).__name__})") from None


def _json(row: dict[str, object]) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()


def texts(name: str, column: pa.Array) -> pa.Array:
    """A column as bytes; NULL stays NULL.

    Common types are converted as whole columns, others value by value, with the same result: a test compares them.
    """
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if isinstance(column.type, pa.ExtensionType):
        column = column.storage
    try:
        return _texts(column)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        # pyarrow quotes the value in these.
        raise RowsRefused(f"column {name!r} has values that do not fit ({type(error).__name__})") from None


def scores(name: str, column: pa.Array) -> pa.Array:
    """A column of numbers that a double can store exactly."""
    ends = pc.min_max(column).as_py().values()
    whole = types.is_integer(column.type)
    if any(end is not None and whole and abs(end) > EXACT for end in ends) or _any(pc.is_nan(column)):
        raise RowsRefused(f"the score {name!r} is NaN, or a whole number beyond 2^53, in some rows")
    return texts(name, column)


def one_by_one(column: pa.Array) -> pa.Array:
    """Any column; slow."""
    return pa.array([None if value is None else _text(value) for value in bindable(column)], BYTES)


def _texts(column: pa.Array) -> pa.Array:
    kind = column.type
    if kind in AS_THEY_ARE:
        return column.cast(BYTES)
    if types.is_integer(kind) or types.is_boolean(kind):
        return column.cast(pa.large_string()).cast(BYTES)
    if kind in (pa.float32(), pa.float64()):
        return _floats(column.cast(pa.float64()))
    if types.is_timestamp(kind):
        return _moments(column)
    return one_by_one(column)


def _floats(column: pa.Array) -> pa.Array:
    """Arrow finds the same digits as Python; where it would format them differently, use Python."""
    found = column.cast(pa.large_string())
    if not _all(pc.match_substring(found, ".")):
        found = pc.replace_substring_regex(found, r"^(-?[0-9]+)$", r"\1.0")
    size = pc.abs(column)
    same = pc.and_(
        pc.and_(pc.match_substring(found, "."), pc.invert(pc.match_substring(found, "e"))),
        pc.or_(pc.greater_equal(size, 1e-4), pc.equal(size, 0.0)),
    )
    found = found.cast(BYTES)
    if _all(same):
        return found
    others = pc.fill_null(pc.invert(same), fill_value=False)
    return pc.replace_with_mask(found, others, one_by_one(column.filter(others)))


def _moments(column: pa.Array) -> pa.Array:
    """ISO text, with a fraction if there is one."""
    zoned = column.type.tz is not None
    moments = column.cast(pa.timestamp("us", tz="UTC" if zoned else None)).view(pa.timestamp("us"))
    ends = [end for end in pc.min_max(moments.view(pa.int64())).as_py().values() if end is not None]
    if any(not FIRST_MOMENT <= end <= LAST_MOMENT for end in ends):
        return one_by_one(column)
    found = pc.replace_substring(moments.cast(pa.large_string()), " ", "T")
    found = pc.replace_substring_regex(found, r"\.000000$", "")
    if zoned:
        found = pc.binary_join_element_wise(found, pa.scalar("+00:00", pa.large_string()), pa.scalar("", found.type))
    return found.cast(BYTES)


def _any(found: pa.Array) -> bool:
    return bool(pc.any(found).as_py())


def _all(found: pa.Array) -> bool:
    """NULL does not count."""
    return pc.all(found).as_py() is not False


def _text(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, float) and not math.isfinite(value):
        return b"NaN" if math.isnan(value) else b"Infinity" if value > 0 else b"-Infinity"
    return repr(value).encode()


@dataclass(frozen=True, slots=True)
class Words:
    """Some words of a command. A command is their number, then each word after its length:

    *3 CRLF $4 CRLF HGET CRLF $1 CRLF k CRLF $1 CRLF f CRLF

    Built as whole columns, where redis-py packs one word at a time.
    """

    count: int
    data: bytes | memoryview


def words(*given: bytes | str | int) -> Words:
    found = [word if isinstance(word, bytes) else str(word).encode() for word in given]
    return Words(len(found), b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in found))


def row_words(columns: Sequence[pa.Array]) -> Words:
    """The values of all columns, row by row, without NULL."""
    if not columns or not len(columns[0]):
        return words()
    parts = [part for column in columns for part in (_lengths(column), column)]
    # The joined rows are in one buffer, one after the other.
    return Words(len(columns) * len(columns[0]), _content(_joined(LINE, *parts, _scalar(b""))))


def with_gaps(columns: Sequence[pa.Array]) -> list[pa.Array]:
    """A mask of the columns that have a value in the row ("101"), then all columns, with nothing instead of NULL."""
    there = [pc.if_else(column.is_valid(), _scalar(b"1"), _scalar(b"0")) for column in columns]
    return [_joined(b"", *there), *(column.fill_null(b"") for column in columns)] if columns else []


def packed(*tables: Sequence[pa.Array]) -> bytes:
    """The same values as one word, which a script unpacks (MessagePack): in the server a word costs as much as a call.

    dd 00000002 · da 0001 k · da 0003 abc
    """
    filled = [columns for columns in tables if columns and len(columns[0])]
    rows = [_joined(b"", *(part for column in columns for part in (_heads(column), column))) for columns in filled]
    count = sum(len(columns) * len(columns[0]) for columns in filled)
    return b"".join([b"\xdd", count.to_bytes(4, "big"), *map(_content, rows)])


def command(*parts: Words) -> Iterable[bytes | memoryview]:
    """In pieces, ready to send."""
    yield b"*%d\r\n" % sum(part.count for part in parts)
    for part in parts:
        view = memoryview(part.data)
        yield from (view[start : start + PIECE] for start in range(0, len(view), PIECE))


def _lengths(column: pa.Array) -> pa.Array:
    found = pc.binary_length(column).cast(pa.large_string()).cast(BYTES)
    return _joined(b"", _scalar(b"$"), found)


def _heads(column: pa.Array) -> pa.Array:
    """What precedes each value in MessagePack: a type, and the length in two or four bytes."""
    lengths = pc.binary_length(column)
    if pc.max(lengths).as_py() < SHORT:
        return _short_heads().take(lengths)
    return pa.array([_head(length) for length in lengths.to_pylist()], BYTES)


@cache
def _short_heads() -> pa.Array:
    return pa.array(map(_head, range(SHORT)), BYTES)


def _head(length: int) -> bytes:
    return b"\xda" + length.to_bytes(2, "big") if length < SHORT else b"\xdb" + length.to_bytes(4, "big")


def _joined(between: bytes, *parts: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _scalar(between))


def _scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, BYTES)


def _content(column: pa.Array) -> memoryview:
    """All values of a column without NULL, concatenated."""
    _, ends, data = column.buffers()
    places = memoryview(ends).cast("q")
    return memoryview(data)[places[column.offset] : places[column.offset + len(column)]]
