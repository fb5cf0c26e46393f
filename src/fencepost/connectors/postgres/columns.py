"""PostgreSQL names, and which DataFrame columns fit which table columns. Never touches a database.

Every name is quoted, so that none can become part of a statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from fencepost.connectors.table.bulk import POSTGRES, Text, Unwritable
from fencepost.connectors.table.database import PLACE, BadValue, misfits_of
from fencepost.connectors.table.values import as_column_type, is_bytes, is_text

LONGEST = 63
"""Bytes; PostgreSQL silently truncates longer names, so two different names may become one."""

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


class BadName(ValueError):
    """A name that cannot be parsed; the text says how to write it."""


class TableName(NamedTuple):
    """A table, and its schema if one was given."""

    schema: str | None
    table: str

    def __str__(self) -> str:
        """Quoted, for use in statements."""
        return ".".join(quoted(part) for part in self if part is not None)

    def beside(self, table: str) -> TableName:
        """Another table in the same schema."""
        return TableName(self.schema, table)


def quoted(name: str) -> str:
    """Quote an identifier, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def read_name(text: str) -> TableName:
    """`orders`, `sales.orders`, `"Sales"."odd.name"`. Case is kept as written, with quotes or without."""
    parts: list[str] = []
    at = 0
    while at <= len(text):
        found = _PART.match(text, at)
        if found is None:
            raise BadName('write names with dots or quotes in double quotes, each " in them twice')
        parts.append(found[1].replace('""', '"') if found[1] else found[2])
        at = found.end() + 1
        if found.end() < len(text) and text[found.end()] != ".":
            raise BadName('write names with dots or quotes in double quotes, each " in them twice')
    if len(parts) > 2:
        raise BadName("name a table, or a schema and a table; the database belongs in the dsn")
    if any(len(part.encode()) > LONGEST or "\0" in part for part in parts):
        raise BadName(f"names in PostgreSQL have at most {LONGEST} bytes")
    return TableName(parts[0] if len(parts) == 2 else None, parts[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of an existing table."""

    name: str
    type: str
    """The internal name of its base type (`int8`, not `bigint`); for arrays, of the element type."""
    shown: str
    """Its type, for messages."""
    modifier: int
    """PostgreSQL's packed length or precision; -1 for none."""
    array: bool
    enum: bool
    required: bool
    generated: bool


def misfits(schema: pa.Schema, there: list[Column]) -> list[str]:
    return misfits_of(schema, there, fits)


def declared(kind: pa.DataType) -> str:
    """The column type we declare for an Arrow type; KeyError if there is none."""
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
    """How each column is written, given the column it goes into."""
    by_name = {column.name: column for column in there}
    return [POSTGRES.text(item) if item.name == PLACE else _text_for(item, by_name[item.name]) for item in schema]


def _text_for(item: pa.Field, column: Column) -> Text:
    if types.is_nested(item.type) and not column.array:
        return POSTGRES.json
    text = POSTGRES.text(item)
    if column.type == "float8":  # a float's shortest digits would be read as a different double
        wide = pa.list_(pa.float64()) if column.array else pa.float64()
        return lambda array: text(array.cast(wide))
    return text


def refuse_long(batch: pa.RecordBatch, there: list[Column]) -> None:
    """Reject text that is too long for its column: PostgreSQL would silently cut off trailing blanks."""
    for column in there:
        if column.type in {"varchar", "bpchar"} and column.modifier > 4 and column.name in batch.schema.names:
            array = batch.column(column.name)
            text = (array.flatten() if types.is_nested(array.type) else array).cast(pa.large_string())
            if (pc.max(pc.utf8_length(text)).as_py() or 0) > column.modifier - 4:
                raise Unwritable(column.name, f"has text that is too long for {column.shown}")


def documents(schema: pa.Schema, there: list[Column]) -> list[str]:
    """Columns of text that jsonb reads as JSON; nested values become JSON by our own hands."""
    kinds = {item.name: as_column_type(item.type) for item in schema}
    inner = {name: as_column_type(kind.value_type) if _is_list(kind) else kind for name, kind in kinds.items()}
    wanted = [column for column in there if column.type == "jsonb" and column.name in kinds]
    return [one.name for one in wanted if is_text(inner[one.name]) and _is_list(kinds[one.name]) == one.array]


def merging_types(schema: pa.Schema, there: list[Column], key: Sequence[str]) -> list[str]:
    """Key columns whose type calls texts equal that Spark tells apart."""
    return [
        f"column {column.name!r} is {column.shown}"
        for column in there
        if column.name in key and column.type in _MERGING and is_text(as_column_type(schema.field(column.name).type))
    ]


def refuse_blanks(batch: pa.RecordBatch, names: Iterable[str]) -> None:
    """Reject trailing blanks in a key of type char(n), where they do not count."""
    for name in names:
        if pc.any(pc.ends_with(batch.column(name), " ")).as_py():
            raise BadValue(f"key column {name!r} has trailing blanks, which char(n) ignores: use rtrim(…)")


def fits(kind: pa.DataType, column: Column) -> bool:
    """Does the column store our values unchanged, or reject them with an error? A rounded value is a wrong value."""
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
    """numeric(p,s) rounds extra digits after the point, and rejects extra digits before it."""
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
"""Types that text goes into: its value is stored unchanged, perhaps in another spelling, or rejected in the vote."""
_MERGING = frozenset({"citext", "json", "jsonb", "xml", "inet", "cidr"})
"""Those of them in which texts that differ can be equal; uuid and char(n) only for spellings that the vote rejects."""

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
