"""Which DataFrame columns fit which Delta columns, and how Delta writes a partition's values. Never touches a table.

A Delta type is what its log has: a name ("long"), or an object for nested types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from fencepost.connectors.table.database import BadValue
from fencepost.connectors.table.values import as_column_type, is_bytes, is_text

LARGEST = 38
"""Digits of a decimal."""
FORBIDDEN = " ,;{}()\n\t="
"""Characters that other writers of Delta tables refuse in names of columns."""
FOLDER_NAME = 255
"""Bytes of a folder's name: a compaction by other writers puts a partition into a folder named `<column>=<value>`."""
DAY = timedelta(days=1) // timedelta(microseconds=1)
PLAIN: Final[Mapping[str, pa.DataType]] = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "string": pa.string(),
    "binary": pa.binary(),
}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of an existing table."""

    name: str
    kind: pa.DataType | None
    """With NOT NULL of nested fields; None if we do not know such a type."""
    shown: str
    required: bool = False
    """NOT NULL. Delta's defaults are a feature that we refuse."""
    generated: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Its own, and that of the fields below it."""

    @property
    def stored(self) -> pa.DataType:
        """As it is written: Parquet files of ours have no NOT NULL, the rows are checked before."""
        assert self.kind is not None, "misfits() comes first"
        return _nullable(self.kind)


def columns_of(schema: str) -> tuple[Column, ...]:
    """The columns of a schema as the log has it."""
    return tuple(
        Column(
            name=item["name"],
            kind=_arrow(item["type"]),
            shown=_shown(item["type"]),
            required=not item["nullable"],
            generated=any(key in item["metadata"] for key in ("delta.generationExpression", "delta.identity.start")),
            metadata={key: value for one in _fields(item) for key, value in one["metadata"].items()},
        )
        for item in json.loads(schema)["fields"]
    )


def schema_of(schema: pa.Schema) -> str:
    """A schema for the log that fits the DataFrame; every column may be NULL. KeyError for a type without a match."""
    return json.dumps({"type": "struct", "fields": [_declared_field(item) for item in schema]})


def declared(kind: pa.DataType) -> Any:
    """The Delta type that we declare for an Arrow type; KeyError if there is none."""
    kind = as_column_type(kind)
    if types.is_decimal(kind) and kind.precision <= LARGEST and 0 <= kind.scale <= kind.precision:
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_struct(kind) and len(kind):
        return {"type": "struct", "fields": [_declared_field(item) for item in kind]}
    if types.is_map(kind):
        key, value = declared(kind.key_type), declared(kind.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return {"type": "array", "elementType": declared(kind.value_type), "containsNull": True}
    for is_kind, name in _DECLARED:
        if is_kind(kind):
            return name
    raise KeyError(str(kind))


def fits(kind: pa.DataType, column: Column) -> bool:
    """Does the column store our values unchanged, or would the cast refuse them?"""
    return column.kind is not None and _fits(as_column_type(kind), column.kind)


def name_problems(names: Sequence[str]) -> list[str]:
    """Names that a Delta table cannot have, for people."""
    problems = [f"column name {name!r} is empty or has a character of {FORBIDDEN!r}" for name in names if _is_bad(name)]
    for number, name in enumerate(names):
        near = next((other for other in names[:number] if other.lower() == name.lower()), None)
        if near is not None:
            problems.append(f"columns {near!r} and {name!r} differ only in case, or not at all")
    return problems


def type_problems(schema: pa.Schema) -> list[str]:
    """Columns of the DataFrame for which there is no Delta type, for people."""
    problems = []
    for item in schema:
        try:
            kind = declared(item.type)
        except KeyError as error:
            [which] = error.args
            problems.append(f"column {item.name!r} is {item.type}, and Delta has no type for {which}")
        else:
            nested = [name for found in _structs(kind) for name in name_problems([one["name"] for one in found])]
            problems += [f"column {item.name!r}: {problem}" for problem in nested]
            if "timestamp_ntz" in json.dumps([found for found in _nested(kind) if found["type"] == "map"]):
                problems.append(f"column {item.name!r} has times without a zone in a map: cast them to timestamp")
    return problems


def has_ntz(kind: pa.DataType) -> bool:
    """Does the type hold times without a zone, for which a Delta table needs a feature of its own?"""
    return "timestamp_ntz" in json.dumps(declared(kind))


def cannot_partition(column: Column) -> str | None:
    """Why rows cannot be partitioned by this column, for people; None if they can."""
    kind = column.kind
    if kind is None or types.is_nested(kind):
        return f"column {column.name!r} is {column.shown}, by which rows cannot be partitioned"
    if types.is_floating(kind) or is_bytes(kind):
        return f"column {column.name!r} is {column.shown}, and Delta's writers disagree on how to write such partitions"
    return None


# --- rows


def stored(batch: pa.RecordBatch, columns: Mapping[str, Column]) -> pa.RecordBatch:
    """Rows in the table's types; `BadValue` for a value that would be changed.

    Columns that the table does not have are written in the type that we would declare for them.
    """
    arrays, fields = [], []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        kind = stored_type(name, array.type, columns)
        arrays.append(exact(array, kind, name))
        fields.append(pa.field(name, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def stored_type(name: str, kind: pa.DataType, columns: Mapping[str, Column]) -> pa.DataType:
    """The type in which a column of the rows is written."""
    return columns[name].stored if name in columns else _nullable(_arrow(declared(kind)))


def refuse_nulls(batch: pa.RecordBatch, columns: Mapping[str, Column]) -> None:
    """`BadValue` for NULL where the table forbids it, also below a column. The rows are as `stored` returns them."""
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        column = columns.get(name)
        if column is not None and (place := _forbidden_null(array, pa.field(name, column.kind, not column.required))):
            raise BadValue(f"NULL in a column that is NOT NULL, column {place!r}")


def exact(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """The same values in another type."""
    if array.type == kind:
        return array
    try:
        return array.cast(kind)
    except (pa.ArrowException, ValueError):  # these quote the value
        raise BadValue(f"column {name!r} has a value that cannot be written exactly") from None


def _forbidden_null(array: pa.Array, item: pa.Field) -> str | None:
    """The first place below a column where NULL is not allowed and there is one."""
    if not item.nullable and array.null_count:
        return str(item.name)
    if not _demands(item.type):
        return None
    whole = array.filter(pc.is_valid(array))  # what is below a NULL does not count
    if types.is_struct(item.type):
        parts = list(zip(whole.flatten(), item.type, strict=True))
    elif types.is_map(item.type):
        parts = [(whole.keys, item.type.key_field), (whole.items, item.type.item_field)]
    else:
        parts = [(whole.flatten(), item.type.value_field)]
    found = (_forbidden_null(part, below) for part, below in parts)
    return next((f"{item.name}.{place}" for place in found if place is not None), None)


def _demands(kind: pa.DataType) -> bool:
    """Is there a NOT NULL below? A map's keys never are NULL, whoever wrote them."""
    if types.is_struct(kind):
        return any(not item.nullable or _demands(item.type) for item in kind)
    if types.is_map(kind):
        return not kind.item_field.nullable or _demands(kind.item_type) or _demands(kind.key_type)
    return types.is_list(kind) and (not kind.value_field.nullable or _demands(kind.value_type))


# --- partitions


def divided(
    batch: pa.RecordBatch, partition_by: Sequence[str]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """The rows of each partition, without the columns that all of them share; and these as Delta writes them."""
    if not batch.num_rows:
        return
    if not partition_by:
        yield (), batch
        return
    place: Any = None
    parts: list[tuple[pa.Array, list[str | None]]] = []
    for name in partition_by:
        found = batch.column(name).dictionary_encode(null_encoding="encode")
        numbers = found.indices.cast(pa.int64())
        parts.append((numbers, _texts(name, found.dictionary)))
        both = numbers if place is None else pc.add(pc.multiply(place, len(found.dictionary)), numbers)
        place = both.dictionary_encode().indices.cast(pa.int64())  # stays small, however many columns there are
    rows = batch.select([name for name in batch.schema.names if name not in partition_by])
    if all(len(texts) == 1 for _, texts in parts):  # most batches are of one day
        yield tuple(texts[0] for _, texts in parts), rows
        return
    order = pc.sort_indices(place)
    ends = pc.run_end_encode(place.take(order), run_end_type=pa.int64()).run_ends.to_pylist()
    rows = rows.take(order)
    for start, end in zip([0, *ends], ends, strict=False):
        first = order[start].as_py()
        yield tuple(texts[numbers[first].as_py()] for numbers, texts in parts), rows.slice(start, end - start)


def _texts(name: str, found: pa.Array) -> list[str | None]:
    """As Delta writes them. Times with a zone are in UTC and say so: without, readers take them for their own zone."""
    kind = found.type
    if types.is_timestamp(kind):
        end, between = ("Z", "T") if kind.tz else ("", " ")
        return _each(
            found.cast(pa.int64()), lambda value: _moment(name, value).isoformat(between, "microseconds") + end
        )
    if types.is_date(kind):
        return _each(found.cast(pa.int32()), lambda value: _moment(name, value * DAY).date().isoformat())
    if types.is_decimal(kind):
        return _each(found, lambda value: format(value, "f"))
    if types.is_boolean(kind):
        return _each(found, lambda value: str(value).lower())
    return _each(found, lambda value: _text(name, value) if is_text(kind) else str(value))


def _each(found: pa.Array, text: Callable[[Any], str]) -> list[str | None]:
    return [None if value is None else text(value) for value in found.to_pylist()]


def _text(name: str, value: str) -> str:
    if not value:
        raise BadValue(f"partition column {name!r} has an empty text, which readers of the table take for NULL")
    if len(f"{name}={quote(quote(value, safe=''), safe='')}") > FOLDER_NAME:
        raise BadValue(f"partition column {name!r} has a text that is too long for the name of a folder")
    return value


def _moment(name: str, microseconds: int) -> datetime:
    try:
        return datetime(1970, 1, 1) + timedelta(microseconds=microseconds)  # noqa: DTZ001 - in the zone of the numbers
    except OverflowError:
        raise BadValue(f"partition column {name!r} has a time outside of the years 1 to 9999") from None


# --- types


def _arrow(kind: Any) -> pa.DataType | None:
    """The Arrow type of a Delta type, with NOT NULL of nested fields; None if we do not know it."""
    if isinstance(kind, str):
        found = _DECIMAL.fullmatch(kind)
        return pa.decimal128(int(found[1]), int(found[2])) if found else PLAIN.get(kind)
    if kind["type"] == "struct":
        parts = [(item["name"], _arrow(item["type"]), item["nullable"]) for item in kind["fields"]]
        known = all(part is not None for _, part, _ in parts)
        return pa.struct([pa.field(*part) for part in parts]) if known else None
    if kind["type"] == "array":
        element = _arrow(kind["elementType"])
        return element and pa.list_(pa.field("element", element, kind["containsNull"]))
    if kind["type"] == "map":
        key, value = _arrow(kind["keyType"]), _arrow(kind["valueType"])
        if key is not None and value is not None:
            return pa.map_(key, pa.field("value", value, kind["valueContainsNull"]))
    return None


def _shown(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        parts = [f"{item['name']}: {_shown(item['type'])}" for item in kind["fields"]]
        return f"struct<{', '.join(parts)}>"
    if kind["type"] == "array":
        return f"array<{_shown(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_shown(kind['keyType'])}, {_shown(kind['valueType'])}>"
    return str(kind["type"])


def _nullable(kind: pa.DataType) -> pa.DataType:
    if types.is_struct(kind):
        return pa.struct([pa.field(item.name, _nullable(item.type)) for item in kind])
    if types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    if types.is_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type)))
    return kind


def _declared_field(item: pa.Field) -> dict[str, Any]:
    return {"name": item.name, "type": declared(item.type), "nullable": True, "metadata": {}}


def _nested(kind: Any) -> Iterator[dict[str, Any]]:
    if isinstance(kind, dict):
        yield kind
        below = [item["type"] for item in kind.get("fields", ())]
        for part in (*below, *(kind.get(key) for key in ("elementType", "keyType", "valueType"))):
            yield from _nested(part)


def _fields(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield item
    for found in _structs(item["type"]):
        yield from found


def _structs(kind: Any) -> Iterable[list[dict[str, Any]]]:
    return (found["fields"] for found in _nested(kind) if found["type"] == "struct")


def _is_bad(name: str) -> bool:
    return not name or any(letter in FORBIDDEN for letter in name)


def _fits(kind: pa.DataType, into: pa.DataType) -> bool:
    kind = as_column_type(kind)
    if types.is_null(kind):
        return True
    if types.is_nested(into):
        return _fits_nested(kind, into)
    if types.is_decimal(into):
        return _fits_decimal(kind, into)
    try:
        mine, there = declared(kind), declared(into)
    except KeyError:
        return False
    return mine == there or (isinstance(mine, str) and there in _WIDER.get(mine, ()))


def _fits_nested(kind: pa.DataType, into: pa.DataType) -> bool:
    if types.is_struct(into):
        same = types.is_struct(kind) and [item.name for item in kind] == [item.name for item in into]
        return same and all(_fits(mine.type, there.type) for mine, there in zip(kind, into, strict=True))
    if types.is_map(into):
        same = types.is_map(kind)
        return same and _fits(kind.key_type, into.key_type) and _fits(kind.item_type, into.item_type)
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_list) and _fits(kind.value_type, into.value_type)


def _fits_decimal(kind: pa.DataType, into: pa.DataType) -> bool:
    if types.is_integer(kind):
        before, behind = {8: 3, 16: 5, 32: 10, 64: 19 + types.is_unsigned_integer(kind)}[kind.bit_width], 0
    elif types.is_decimal(kind):
        before, behind = kind.precision - kind.scale, max(kind.scale, 0)
    else:
        return False
    return bool(behind <= into.scale and before <= into.precision - into.scale)


def _integer(bits: int, *, signed: bool) -> Callable[[pa.DataType], bool]:
    is_kind = types.is_signed_integer if signed else types.is_unsigned_integer
    return lambda kind: bool(is_kind(kind) and kind.bit_width <= bits)


def _zoned(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind) and kind.tz is not None)


_WIDER = {
    "byte": ("short", "integer", "long", "float", "double"),
    "short": ("integer", "long", "float", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
}
"""Other types that a column may have than the one we would declare."""
_DECLARED: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (_integer(8, signed=True), "byte"),
    (_integer(16, signed=True), "short"),
    (_integer(8, signed=False), "short"),
    (_integer(32, signed=True), "integer"),
    (_integer(16, signed=False), "integer"),
    (_integer(64, signed=True), "long"),
    (_integer(32, signed=False), "long"),
    (types.is_float16, "float"),
    (types.is_float32, "float"),
    (types.is_float64, "double"),
    (types.is_boolean, "boolean"),
    (types.is_date, "date"),
    (_zoned, "timestamp"),
    (types.is_timestamp, "timestamp_ntz"),
    (is_bytes, "binary"),
    (is_text, "string"),
)
