"""Commands as bytes: whole columns of arguments at once, where redis-py packs them one by one.

*3 CRLF $4 CRLF HGET CRLF $1 CRLF k CRLF $1 CRLF f CRLF      how many words; each with its length before it
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from fencepost.sinks.redis.texts import BYTES

PIECE = 1024 * 1024
"""Bytes that are sent within one timeout."""
LINE = b"\r\n"


@dataclass(frozen=True, slots=True)
class Words:
    """Some words of a command."""

    count: int
    data: bytes | memoryview


def words(*given: bytes | str | int) -> Words:
    """One by one."""
    found = [word if isinstance(word, bytes) else str(word).encode() for word in given]
    return Words(len(found), b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in found))


def columns(rows: Sequence[pa.Array]) -> Words:
    """Row by row the values of all columns; NULL has no place here."""
    if not rows or not len(rows[0]):
        return words()
    parts = [part for column in rows for part in (_lengths(column), column)]
    # What is joined lies in one buffer, row behind row.
    return Words(len(rows) * len(rows[0]), _content(_joined(LINE, *parts, _scalar(b""))))


def columns_with_gaps(rows: Sequence[pa.Array]) -> Words:
    """For every row which columns have a value ("101"), then these values."""
    if not rows or not len(rows[0]):
        return words()
    there = [pc.if_else(column.is_valid(), _scalar(b"1"), _scalar(b"0")) for column in rows]
    masks = _joined(b"", _scalar(b"$%d\r\n" % len(rows)), *there, _scalar(LINE))
    values = [_joined(LINE, _lengths(column), column, _scalar(b"")).fill_null(b"") for column in rows]
    count = len(masks) + sum(len(column) - column.null_count for column in rows)
    return Words(count, _content(_joined(b"", masks, *values)))


def command(*parts: Words) -> Iterable[bytes | memoryview]:
    """In pieces, as they are to be sent."""
    yield b"*%d\r\n" % sum(part.count for part in parts)
    for part in parts:
        view = memoryview(part.data)
        yield from (view[start : start + PIECE] for start in range(0, len(view), PIECE))


def _lengths(column: pa.Array) -> pa.Array:
    found = pc.binary_length(column).cast(pa.large_string()).cast(BYTES)
    return _joined(b"", _scalar(b"$"), found)


def _joined(between: bytes, *parts: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _scalar(between))


def _scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, BYTES)


def _content(column: pa.Array) -> memoryview:
    """All values of a column without NULL, one behind the other."""
    _, ends, data = column.buffers()
    places = memoryview(ends).cast("q")
    return memoryview(data)[places[column.offset] : places[column.offset + len(column)]]
