"""Arrow columns as plain Python values, for targets that store only numbers, text and bytes.

Values stay exact: a decimal becomes text, never a float; a time with a zone becomes UTC, never the driver's zone.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from datetime import UTC
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types


def bindable(array: pa.Array) -> list[Any]:
    """A column as None, bool, int, float, str or bytes; nested values become JSON text."""
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if isinstance(array.type, pa.ExtensionType):
        array = array.storage
    kind = array.type
    if _is_as_it_is(kind):
        return list(array.to_pylist())
    if types.is_nested(kind):
        convert = plainer(kind)
        return [None if value is None else _json(convert(value)) for value in array.to_pylist()]
    if types.is_date(kind):
        return list(array.cast(pa.date32()).cast(pa.string()).to_pylist())
    return plain(array)


def plain(array: pa.Array) -> list[Any]:
    """A column as JSON values, nested ones too; bytes become base64."""
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if isinstance(array.type, pa.ExtensionType):
        array = array.storage
    array = _readable(array)
    convert = plainer(array.type)
    return [None if value is None else convert(value) for value in array.to_pylist()]


def in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Times with a zone in UTC, nested ones too: a task gets them in the session's zone, staged rows have UTC."""
    schema = pa.schema([field.with_type(_in_utc(field.type)) for field in batch.schema])
    return batch if schema == batch.schema else batch.cast(schema)


def _in_utc(kind: pa.DataType) -> pa.DataType:
    def inside(field: pa.Field) -> pa.Field:
        return field.with_type(_in_utc(field.type))

    if types.is_timestamp(kind) and kind.tz:
        return pa.timestamp(kind.unit, tz="UTC")
    if types.is_struct(kind):
        return pa.struct([inside(field) for field in kind.fields])
    if types.is_map(kind):
        return pa.map_(inside(kind.key_field), inside(kind.item_field))
    if types.is_list(kind):
        return pa.list_(inside(kind.value_field))
    return kind


def plainer(kind: pa.DataType) -> Callable[[Any], Any]:
    """The conversion of one value of a type, which must not be None."""
    for is_kind, convert in _SCALARS:
        if is_kind(kind):
            return convert
    if types.is_struct(kind):
        return _struct(kind)
    if types.is_map(kind):
        return _map(kind)
    if types.is_nested(kind):
        return _list(plainer(kind.value_type))
    return _same


def as_column_type(kind: pa.DataType) -> pa.DataType:
    """The value type behind a dictionary or an extension type."""
    if types.is_dictionary(kind):
        return as_column_type(kind.value_type)
    if isinstance(kind, pa.ExtensionType):
        return as_column_type(kind.storage_type)
    return kind


def as_grouped(array: pa.Array) -> pa.Array:
    """Key values as Spark groups by them: -0.0 is 0.0, and there is one NaN."""
    if not types.is_floating(array.type):
        return array
    zero, nan = (pa.scalar(value, array.type) for value in (0.0, math.nan))
    return pc.if_else(pc.is_nan(array), nan, pc.add(array, zero))


def is_text(kind: pa.DataType) -> bool:
    """Text in any of Arrow's layouts."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Bytes in any of Arrow's layouts."""
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def _is_as_it_is(kind: pa.DataType) -> bool:
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_null(kind)
        or is_text(kind)
        or is_bytes(kind)
    )


def _readable(array: pa.Array) -> pa.Array:
    """Convert times to microseconds in UTC: finer ones and zones need libraries that may not be installed."""
    kind = array.type
    if types.is_timestamp(kind):
        return array.cast(pa.timestamp("us", tz="UTC" if kind.tz else None))
    if types.is_time(kind):
        return array.cast(pa.time64("us"))
    if types.is_duration(kind):
        return array.cast(pa.duration("us"))
    return array


def _struct(kind: pa.DataType) -> Callable[[Any], Any]:
    fields = [(field.name, plainer(field.type)) for field in kind]
    return lambda value: {name: None if value[name] is None else convert(value[name]) for name, convert in fields}


def _map(kind: pa.DataType) -> Callable[[Any], Any]:
    """An object if the keys are text, otherwise a list of pairs: JSON keys are always text."""
    key, item = plainer(kind.key_type), plainer(kind.item_type)
    as_pairs = not is_text(kind.key_type)

    def convert(value: list[tuple[Any, Any]]) -> Any:
        pairs = [[key(k), None if v is None else item(v)] for k, v in value]
        return pairs if as_pairs else dict(pairs)

    return convert


def _list(item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: [None if v is None else item(v) for v in value]


def _float(value: float) -> Any:
    """JSON has no NaN and no infinity; Spark's to_json writes the same words."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _timestamp(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind))


def _iso(value: Any) -> Any:
    if getattr(value, "tzinfo", None) is not None:
        value = value.astimezone(UTC)
    return value.isoformat()


def _same(value: Any) -> Any:
    return value


def _microseconds(value: Any) -> Any:
    return (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
    (types.is_floating, _float),
    (types.is_decimal, lambda value: format(value, "f")),
    (_timestamp, _iso),
    (types.is_duration, _microseconds),
    (is_bytes, lambda value: base64.b64encode(value).decode()),
)
