r"""A batch as the text that COPY … FROM STDIN (PostgreSQL) and LOAD DATA (MySQL, MariaDB) read: the fast way in.

    1 ⇥ a text ⇥ \N ⏎        columns end with a tab, rows with a newline, \N is NULL, a backslash escapes

Both servers take these bytes with their default format, in UTF-8. MySQL has to be told about bytes, which come as hex:

    LOAD DATA LOCAL INFILE … INTO TABLE … CHARACTER SET utf8mb4 (id, @photo) SET photo = UNHEX(@photo)

Works on whole Arrow columns; only unusual decimal layouts and JSON are converted value by value. Never changes a value
to make it fit, and never quotes one: an error names the column.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from fencepost.connectors.table.values import as_column_type, bindable, is_bytes, is_text, plain

Text = Callable[[pa.Array], pa.Array]
"""Turns a column into escaped text, with NULL still null; a large_string, because its offsets cannot overflow."""


class Unwritable(ValueError):
    """A column that the server would reject or change. Never quotes Arrow's own error, which contains values."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(column, reason)
        self.column = column
        self.reason = reason

    def __str__(self) -> str:
        return f"column {self.column!r} {self.reason}"


@dataclass(frozen=True, slots=True)
class Format:
    """How a server reads each type. A list that goes into a JSON column is written by `json`, not by `text`."""

    kinds: tuple[tuple[Callable[[pa.DataType], bool], Text], ...]
    json: Text
    """For nested columns whose target is JSON."""

    def text(self, field: pa.Field) -> Text:
        """For a column whose target has the default type for it."""
        kind = as_column_type(field.type)
        for is_kind, text in self.kinds:
            if is_kind(kind):
                return text
        raise Unwritable(field.name, f"has type {kind}, which cannot be written as text without loss")


def lines(batch: pa.RecordBatch, texts: Sequence[Text]) -> memoryview:
    """All rows, each with its newline; Arrow's buffer is not copied."""
    if not batch.num_rows:
        return memoryview(b"")
    columns = [
        _written(name, column, text)
        for name, column, text in zip(batch.schema.names, batch.columns, texts, strict=True)
    ]
    rows = pc.binary_join_element_wise(*columns, _TAB, null_handling="replace", null_replacement="\\N")
    # Newlines go between the rows, so an extra empty row at the end gives the last row its newline too. Appending a
    # newline to every row would take half as long again, and appending one byte at the end would copy everything.
    ends = _offsets(rows)
    ends = pa.concat_arrays([ends, ends[-1:]])
    rows = pa.Array.from_buffers(_STRING, len(rows) + 1, [None, ends.buffers()[1], rows.buffers()[2]])
    whole = pc.binary_join(pa.LargeListArray.from_arrays(pa.array([0, len(rows)], pa.int64()), rows), _NEWLINE)
    first, last = _offsets(whole).to_pylist()
    return memoryview(whole.buffers()[2]).cast("B")[first:last]


class _Unfit(Exception):
    """Why a column cannot be written; the text continues `column 'x' …`."""


def _written(name: str, array: pa.Array, text: Text) -> pa.Array:
    try:
        return text(_decoded(array))
    except _Unfit as unfit:
        reason = str(unfit)
    except (ValueError, OverflowError, NotImplementedError):  # includes Arrow's errors, which quote values
        reason = "has a value that cannot be written exactly"
    raise Unwritable(name, reason)


def _decoded(array: pa.Array) -> pa.Array:
    if types.is_dictionary(array.type):
        return _decoded(array.dictionary_decode())
    if isinstance(array.type, pa.ExtensionType):
        return _decoded(array.storage)
    return array


_STRING = pa.large_string()
_TAB, _NEWLINE, _COMMA, _NOTHING = (pa.scalar(text, _STRING) for text in ("\t", "\n", ",", ""))


def _cast(array: pa.Array) -> pa.Array:
    return array.cast(_STRING)


def _glued(*parts: Any) -> pa.Array:
    """Arrays and constants, concatenated; null where an array is null."""
    parts = tuple(pa.scalar(part, _STRING) if isinstance(part, str) else part for part in parts)
    return pc.binary_join_element_wise(*parts, _NOTHING)


def _where_valid(array: pa.Array, text: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), text, pa.scalar(None, _STRING)) if array.null_count else text


def _offsets(text: pa.Array) -> pa.Array:
    """Where the values of a large_string or large_binary begin, and where the last one ends."""
    return pa.Array.from_buffers(pa.int64(), len(text) + 1, [None, text.buffers()[1]], offset=text.offset)


def _data(text: pa.Array) -> bytes:
    """All values as one buffer: searching it is fifty times faster than value by value. May include bytes of nulls."""
    if not len(text) or text.buffers()[2] is None:
        return b""
    ends = _offsets(text)
    first, last = ends[0].as_py(), ends[-1].as_py()
    return bytes(text.buffers()[2].slice(first, last - first).to_pybytes())


def _flag(yes: str, no: str, array: pa.Array) -> pa.Array:
    return pc.if_else(array, pa.scalar(yes, _STRING), pa.scalar(no, _STRING))


def _finite(array: pa.Array) -> pa.Array:
    """With all digits of a double: given only the shortest ones, MySQL rejects the largest float as out of range."""
    if pc.all(pc.is_finite(array)).as_py() is False:
        raise _Unfit("has a NaN or an infinity, which MySQL does not store")
    return _cast(array.cast(pa.float64()))


def _decimal(array: pa.Array) -> pa.Array:
    """All digits, no exponent: Arrow uses one after six leading zeros, which Spark's decimal(38,18) often has."""
    kind = array.type
    if not types.is_decimal128(kind) or kind.scale < 0:
        return pa.array(plain(array), _STRING)
    text = _cast(array)
    if b"E" not in _data(text):
        return text
    whole = pa.Array.from_buffers(pa.decimal128(kind.precision, 0), len(array), array.buffers(), offset=array.offset)
    digits = pc.ascii_lpad(_cast(pc.abs(whole)), width=kind.scale + 1, padding="0")
    before = pc.utf8_slice_codeunits(digits, start=0, stop=-kind.scale)
    behind = pc.utf8_slice_codeunits(digits, start=-kind.scale)
    return _glued(_flag("-", "", pc.less(whole, pa.scalar(0, whole.type))), before, ".", behind)


_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY = 86_400_000_000


def _within(array: pa.Array, first: int, last: int) -> pa.Array:
    """Reject anything outside the years 1 to 9999: Spark's range, and the only one that all these servers store."""
    seen = pc.min_max(array).as_py()
    if seen["min"] is not None and not first <= seen["min"] <= seen["max"] <= last:
        raise _Unfit("has a date outside the years 1 to 9999")
    return array


def _date(array: pa.Array) -> pa.Array:
    array = array.cast(pa.date32())
    _within(array.view(pa.int32()), _FIRST_DAY, _LAST_DAY)
    return _cast(array)


def _timestamp(array: pa.Array) -> pa.Array:
    """In UTC if it has a time zone; formatted as if it had none, because Arrow is thirty times slower with one."""
    since = array.cast(pa.timestamp("us", tz=array.type.tz)).view(pa.int64())
    return _cast(_within(since, _FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1).view(pa.timestamp("us")))


def _zoned(array: pa.Array) -> pa.Array:
    return _glued(_timestamp(array), "+00")


def _time(array: pa.Array) -> pa.Array:
    return _cast(array.cast(pa.time64("us")))


def _microseconds(array: pa.Array) -> pa.Array:
    return _cast(array.cast(pa.duration("us")).view(pa.int64()))


def _interval(array: pa.Array) -> pa.Array:
    """-H:MM:SS.ffffff, with any number of hours: days do not always have 24, and large numbers of seconds are cut."""
    micros = array.cast(pa.duration("us")).view(pa.int64())
    size = pc.abs_checked(micros)
    hours = pc.divide(size, 3_600_000_000)
    rest = pc.subtract(size, pc.multiply(hours, 3_600_000_000)).view(pa.time64("us"))
    return _glued(_flag("-", "", pc.less(micros, 0)), _cast(hours), pc.utf8_slice_codeunits(_cast(rest), start=2))


def _hex(array: pa.Array) -> pa.Array:
    array = array.cast(pa.large_binary())
    if not len(array):
        return _cast(array)
    ends = _offsets(array)
    ends = pc.multiply(pc.subtract(ends, ends[0]), 2)
    digits = pa.py_buffer(binascii.hexlify(_data(array)))
    text = pa.Array.from_buffers(_STRING, len(array), [None, ends.buffers()[1], digits], offset=ends.offset)
    return _where_valid(array, text)


def _bytea(prefix: str, array: pa.Array) -> pa.Array:
    return _glued(prefix, _hex(array))


_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))


def _escaped(array: pa.Array, nul: str | None) -> pa.Array:
    """Escape whatever would end a column or a row; `nul=None` rejects NUL. Most columns need no escaping."""
    text = _cast(array)
    data = _data(text)
    if not data.isascii():
        try:
            text.validate(full=True)
        except pa.ArrowInvalid:
            raise _Unfit("has text that is not UTF-8") from None
    for character, escape in _ESCAPES:
        if character.encode() in data:
            text = pc.replace_substring(text, character, escape)
    if b"\0" not in data:
        return text
    if nul is not None:
        return pc.replace_substring(text, "\0", nul)
    if pc.any(pc.match_substring(text, "\0")).as_py():
        raise _Unfit(_NUL)
    return text


_NUL = "has a NUL byte in text, which PostgreSQL does not store"


def _postgres_text(array: pa.Array) -> pa.Array:
    return _escaped(array, None)


def _mysql_text(array: pa.Array) -> pa.Array:
    return _escaped(array, "\\0")


def _postgres_json(array: pa.Array) -> pa.Array:
    r"""jsonb rejects \u0000, which JSON allows; after an even number of backslashes it is not that escape."""
    text = pa.array(bindable(array), _STRING)
    if b"\\u0000" in _data(text) and pc.any(pc.match_substring_regex(text, r"(^|[^\\])(\\\\)*\\u0000")).as_py():
        raise _Unfit(_NUL)
    return _postgres_text(text)


def _mysql_json(array: pa.Array) -> pa.Array:
    return _mysql_text(pa.array(bindable(array), _STRING))


def _is_flat_list(kind: pa.DataType) -> bool:
    """A list of scalars. PostgreSQL's nested arrays are rectangular, without NULL rows, so lists of lists are JSON."""
    is_list = types.is_nested(kind) and not (types.is_struct(kind) or types.is_map(kind) or types.is_union(kind))
    return is_list and not types.is_nested(as_column_type(kind.value_type))


def _postgres_array(array: pa.Array) -> pa.Array:
    """{1,NULL,3} or {"a","b"}: only text and bytes need quotes."""
    items = _decoded(pc.list_flatten(array))
    literal = next((text for is_kind, text in _ITEMS if is_kind(items.type)), None)
    if literal is None:
        raise _Unfit(f"is a list of {items.type}, which cannot be written as text without loss")
    text = literal(items)
    if is_text(items.type) or is_bytes(items.type):
        quoted = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
        text = _glued('"', quoted, '"')
    lengths = pc.fill_null(pc.list_value_length(array).cast(pa.int64()), 0)
    ends = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    lists = pa.LargeListArray.from_arrays(ends, pc.fill_null(text, pa.scalar("NULL", _STRING)))
    return _postgres_text(_where_valid(array, _glued("{", pc.binary_join(lists, _COMMA), "}")))


def _is_zoned(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind) and kind.tz)


_EITHER = (
    (types.is_null, _cast),
    (types.is_integer, _cast),
    (types.is_decimal, _decimal),
    (types.is_date, _date),
    (types.is_time, _time),
)
_ITEMS = (
    *_EITHER,
    (types.is_boolean, partial(_flag, "t", "f")),
    (types.is_floating, _cast),  # PostgreSQL accepts nan, inf and -inf
    (_is_zoned, _zoned),
    (types.is_timestamp, _timestamp),
    (types.is_duration, _interval),
    (is_text, _cast),
    (is_bytes, partial(_bytea, "\\x")),
)

POSTGRES = Format(
    (
        (is_text, _postgres_text),
        (is_bytes, partial(_bytea, "\\\\x")),
        *_ITEMS,
        (_is_flat_list, _postgres_array),
        (types.is_nested, _postgres_json),
    ),
    json=_postgres_json,
)
"""Durations become `interval`, bytes `bytea`, lists of scalars arrays, anything more nested `jsonb`."""

MYSQL = Format(
    (
        *_EITHER,
        (is_text, _mysql_text),
        (is_bytes, _hex),
        (types.is_boolean, partial(_flag, "1", "0")),
        (types.is_floating, _finite),
        (types.is_timestamp, _timestamp),
        (types.is_duration, _microseconds),
        (types.is_nested, _mysql_json),
    ),
    json=_mysql_json,
)
"""Also MariaDB. Durations become `bigint` microseconds, bytes hex for UNHEX, times with a zone `datetime(6)` in UTC."""
