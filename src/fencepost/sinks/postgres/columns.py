"""Which columns of a DataFrame fit which columns of a PostgreSQL table. Never touches a database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from fencepost.sinks.bulk_text import POSTGRES, Text, Unwritable
from fencepost.sinks.postgres.names import quoted
from fencepost.sinks.staged import misfits_of
from fencepost.sinks.values import as_column_type, is_bytes, is_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table that is there."""

    name: str
    type: str
    """Its base type's own name (`int8`, not `bigint`); that of the elements, if it is an array."""
    shown: str
    """As a person writes it."""
    modifier: int
    """PostgreSQL's packed length or precision; -1 for none."""
    array: bool
    enum: bool
    required: bool
    generated: bool


def misfits(schema: pa.Schema, there: list[Column]) -> list[str]:
    """Everything in which a table does not fit the rows, in words."""
    return misfits_of(schema, there, fits)


def declared(kind: pa.DataType) -> str:
    """The column type we declare for an Arrow type; raises KeyError if there is none."""
    kind = as_column_type(kind)
    if types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if _is_list(kind):
        inner = as_column_type(kind.value_type)
        return "jsonb" if types.is_nested(inner) else f"{declared(inner)}[]"
    for is_kind, name in _DECLARED:
        if is_kind(kind):
            return name
    raise KeyError(str(kind))


def texts_for(schema: pa.Schema, there: list[Column]) -> list[Text]:
    """How each column is written, given the column that takes it."""
    by_name = {column.name: column for column in there}
    return [_text_for(item, by_name[item.name]) for item in schema]


def _text_for(item: pa.Field, column: Column) -> Text:
    if types.is_nested(item.type) and not column.array:
        return POSTGRES.json
    text = POSTGRES.text(item)
    if column.type == "float8":  # the shortest digits of a float mean another double
        wide = pa.list_(pa.float64()) if column.array else pa.float64()
        return lambda array: text(array.cast(wide))
    return text


def refuse_long(batch: pa.RecordBatch, there: list[Column]) -> None:
    """Text beyond a column's length: PostgreSQL refuses it too, unless only blanks would be cut off."""
    for column in there:
        if column.type in {"varchar", "bpchar"} and column.modifier > 4 and column.name in batch.schema.names:
            array = batch.column(column.name)
            text = (array.flatten() if types.is_nested(array.type) else array).cast(pa.large_string())
            if (pc.max(pc.utf8_length(text)).as_py() or 0) > column.modifier - 4:
                raise Unwritable(column.name, f"has text that is too long for {column.shown}")


def create_table(table: str, schema: pa.Schema, key: tuple[str, ...]) -> str:
    """A table that fits the DataFrame."""
    parts = [f"{quoted(item.name)} {declared(item.type)}{' NOT NULL' if item.name in key else ''}" for item in schema]
    if key:
        parts.append(f"PRIMARY KEY ({', '.join(map(quoted, key))})")
    return f"CREATE TABLE {table} ({', '.join(parts)})"


def fits(kind: pa.DataType, column: Column) -> bool:
    """Does the column keep our values as they are, or refuse them aloud? A rounded one is a wrong one."""
    if types.is_null(kind):
        return True
    if types.is_nested(kind) and not column.array:
        return column.type in {"json", "jsonb"}
    if column.array:
        inner = as_column_type(kind.value_type) if _is_list(kind) else None
        return inner is not None and not types.is_nested(inner) and _fits_scalar(inner, column)
    return _fits_scalar(kind, column)


def _fits_scalar(kind: pa.DataType, column: Column) -> bool:
    if types.is_null(kind):
        return True
    if is_text(kind) and column.enum:
        return True
    if column.type == "numeric":
        return _fits_numeric(kind, column.modifier)
    if (column.type in _TIMES and 0 <= column.modifier < 6) or (column.type == "interval" and column.modifier >= 0):
        return False  # it would round
    return any(is_kind(kind) and column.type in names for is_kind, names in _FITS)


def _fits_numeric(kind: pa.DataType, modifier: int) -> bool:
    """numeric(p,s) rounds what has more digits behind the point, and refuses what has more before it."""
    if types.is_integer(kind):
        before, behind = {8: 3, 16: 5, 32: 10, 64: 19}[kind.bit_width], 0
    elif types.is_decimal(kind):
        before, behind = kind.precision - kind.scale, max(kind.scale, 0)
    else:
        return False
    if modifier < 0:
        return True
    precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
    scale = scale - 0x800 if scale & 0x400 else scale
    return behind <= scale and before <= precision - scale


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _integer(bits: int) -> Callable[[pa.DataType], bool]:
    return lambda kind: bool(types.is_integer(kind) and kind.bit_width <= bits)


def _zoned(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind) and kind.tz is not None)


def _unzoned(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind) and kind.tz is None)


_TIMES = frozenset({"timestamp", "timestamptz", "time"})
_WORDS = frozenset({"text", "varchar", "bpchar", "citext", "uuid", "json", "jsonb", "xml", "inet", "cidr"})
"""What text goes into: either it is kept as it is, or it is refused in the vote."""

_FITS: tuple[tuple[Callable[[pa.DataType], bool], frozenset[str]], ...] = (
    (_integer(16), frozenset({"int2", "int4", "int8"})),
    (_integer(32), frozenset({"int4", "int8", "float8"})),
    (_integer(64), frozenset({"int8"})),
    (types.is_float32, frozenset({"float4", "float8"})),
    (types.is_float64, frozenset({"float8"})),
    (types.is_boolean, frozenset({"bool"})),
    (types.is_date, frozenset({"date"})),
    (_zoned, frozenset({"timestamptz"})),
    (_unzoned, frozenset({"timestamp"})),
    (types.is_time, frozenset({"time"})),
    (types.is_duration, frozenset({"interval"})),
    (is_bytes, frozenset({"bytea"})),
    (is_text, _WORDS),
)
_DECLARED: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (_integer(16), "smallint"),
    (_integer(32), "integer"),
    (_integer(64), "bigint"),
    (types.is_float32, "real"),
    (types.is_float64, "double precision"),
    (types.is_boolean, "boolean"),
    (types.is_date, "date"),
    (_zoned, "timestamptz"),
    (_unzoned, "timestamp"),
    (types.is_time, "time"),
    (types.is_duration, "interval"),
    (is_bytes, "bytea"),
    (types.is_nested, "jsonb"),
    (is_text, "text"),
    (types.is_null, "text"),
)
