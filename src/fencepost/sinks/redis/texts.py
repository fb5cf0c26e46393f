"""A column as Redis keeps it: text, or bytes as they are.

What is common goes by whole columns, the rest value by value, with the same result: a test compares them.
Never differs from one process to another: after a crash the same rows must give the same bytes.
"""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from fencepost.sinks.database import RowsRefused
from fencepost.sinks.values import bindable

BYTES = pa.large_binary()
AS_THEY_ARE = (pa.string(), pa.large_string(), pa.binary(), BYTES)
FIRST_MOMENT, LAST_MOMENT = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Of the years 1 and 9999, in microseconds: Python knows no others, so neither do we."""
EXACT = 2**53


def texts(name: str, column: pa.Array) -> pa.Array:
    """A column as bytes; NULL stays NULL."""
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
    """A column of numbers that a double holds exactly."""
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
    """Arrow finds the same digits as Python; where it places the point otherwise, Python is asked."""
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
    """NULL says nothing."""
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
