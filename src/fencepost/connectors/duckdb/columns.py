"""Which DataFrame columns fit which DuckDB columns. Never touches a database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types

from fencepost.connectors.table.bulk import Unwritable
from fencepost.connectors.table.values import as_column_type, is_bytes, is_text

LARGEST = 38
"""Digits of a DECIMAL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of an existing table."""

    name: str
    shown: str
    required: bool
    generated: bool


def quoted(name: str) -> str:
    """Quote an identifier, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def declared(kind: pa.DataType) -> str:
    """The column type we declare for an Arrow type, as DuckDB itself writes it; KeyError if there is none."""
    kind = as_column_type(kind)
    if types.is_decimal(kind) and kind.precision <= LARGEST and 0 <= kind.scale <= kind.precision:
        return f"DECIMAL({kind.precision},{kind.scale})"
    if types.is_struct(kind) and len(kind):
        return f"STRUCT({', '.join(f'{quoted(item.name)} {declared(item.type)}' for item in kind)})"
    if types.is_map(kind):
        return f"MAP({declared(kind.key_type)}, {declared(kind.item_type)})"
    if types.is_fixed_size_list(kind):
        return f"{declared(kind.value_type)}[{kind.list_size}]"
    if types.is_list(kind) or types.is_large_list(kind):
        return f"{declared(kind.value_type)}[]"
    for is_kind, name in _DECLARED:
        if is_kind(kind):
            return name
    raise KeyError(str(kind))


def fits(kind: pa.DataType, column: Column, same: str) -> bool:
    """Does the column store our values unchanged, or reject them? `same` is the type that we would declare."""
    if types.is_null(kind) or column.shown == same:
        return True
    if column.shown.startswith("DECIMAL("):
        return _fits_decimal(kind, column.shown)
    if is_text(kind) and column.shown.startswith("ENUM("):
        return True
    return any(is_kind(kind) and column.shown in names for is_kind, names in _FITS)


def _fits_decimal(kind: pa.DataType, shown: str) -> bool:
    """DECIMAL(p,s) rounds extra digits after the point, and rejects extra digits before it."""
    if types.is_integer(kind):
        before, behind = {8: 3, 16: 5, 32: 10, 64: 19 + types.is_unsigned_integer(kind)}[kind.bit_width], 0
    elif types.is_decimal(kind):
        before, behind = kind.precision - kind.scale, max(kind.scale, 0)
    else:
        return False
    precision, scale = map(int, shown.removeprefix("DECIMAL(").removesuffix(")").split(","))
    return behind <= scale and before <= precision - scale


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The Arrow type that DuckDB reads, with times in microseconds."""
    kind = as_column_type(kind)
    if types.is_struct(kind):
        return pa.struct([(item.name, stored_type(item.type)) for item in kind])
    if types.is_map(kind):
        return pa.map_(stored_type(kind.key_type), stored_type(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(stored_type(kind.value_type), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        return (pa.list_ if types.is_list(kind) else pa.large_list)(stored_type(kind.value_type))
    return next((make(kind) for is_kind, make in _STORED if is_kind(kind)), kind)


def stored(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows in types that DuckDB reads; rejects a value that the cast would change."""
    columns = []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        try:
            columns.append(array.cast(stored_type(array.type)))
        except (pa.ArrowException, ValueError):  # these quote the value
            raise Unwritable(name, "has a value that cannot be written exactly") from None
    return pa.RecordBatch.from_arrays(columns, schema=stored_schema(batch.schema))


def stored_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(item.name, stored_type(item.type)) for item in schema])


def _integer(bits: int, *, signed: bool) -> Callable[[pa.DataType], bool]:
    is_kind = types.is_signed_integer if signed else types.is_unsigned_integer
    return lambda kind: bool(is_kind(kind) and kind.bit_width <= bits)


def _zoned(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind) and kind.tz is not None)


_WIDER = {8: "SMALLINT", 16: "INTEGER", 32: "BIGINT", 64: "HUGEINT"}
_FITS: tuple[tuple[Callable[[pa.DataType], bool], frozenset[str]], ...] = (
    *((_integer(bits, signed=True), frozenset(list(_WIDER.values())[n:])) for n, bits in enumerate(_WIDER)),
    *(
        (_integer(bits, signed=False), frozenset([*list(_WIDER.values())[n:], *unsigned]))
        for n, (bits, unsigned) in enumerate(
            ((8, ("USMALLINT", "UINTEGER", "UBIGINT")), (16, ("UINTEGER", "UBIGINT")), (32, ("UBIGINT",)), (64, ()))
        )
    ),
    (_integer(32, signed=True), frozenset({"DOUBLE"})),
    (types.is_float16, frozenset({"FLOAT", "DOUBLE"})),
    (types.is_float32, frozenset({"DOUBLE"})),
    (is_text, frozenset({"JSON", "UUID"})),
)
"""Other types that a column may have than the one we would declare."""
_DECLARED: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (_integer(8, signed=True), "TINYINT"),
    (_integer(16, signed=True), "SMALLINT"),
    (_integer(32, signed=True), "INTEGER"),
    (_integer(64, signed=True), "BIGINT"),
    (_integer(8, signed=False), "UTINYINT"),
    (_integer(16, signed=False), "USMALLINT"),
    (_integer(32, signed=False), "UINTEGER"),
    (_integer(64, signed=False), "UBIGINT"),
    (types.is_float16, "FLOAT"),
    (types.is_float32, "FLOAT"),
    (types.is_float64, "DOUBLE"),
    (types.is_boolean, "BOOLEAN"),
    (types.is_date, "DATE"),
    (_zoned, "TIMESTAMP WITH TIME ZONE"),
    (types.is_timestamp, "TIMESTAMP"),
    (types.is_time, "TIME"),
    (types.is_duration, "INTERVAL"),
    (is_bytes, "BLOB"),
    (is_text, "VARCHAR"),
    (types.is_null, "VARCHAR"),
)
_STORED: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], pa.DataType]], ...] = (
    (types.is_timestamp, lambda kind: pa.timestamp("us", tz=kind.tz)),
    (types.is_time, lambda kind: pa.time64("us")),
    (types.is_duration, lambda kind: pa.duration("us")),
    (types.is_float16, lambda kind: pa.float32()),
    (types.is_decimal256, lambda kind: pa.decimal128(min(kind.precision, LARGEST), kind.scale)),
)
