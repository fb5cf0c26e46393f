"""Which DataFrame columns fit which Iceberg columns, and rows in exactly a table's types. Never touches a catalog."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from fencepost.connectors.table.database import UUID, BadValue
from fencepost.connectors.table.values import as_column_type, is_bytes, is_text

FIELD_ID = b"PARQUET:field_id"
LARGEST = 38
"""Digits of a decimal."""
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}


# --- types


def declared(kind: pa.DataType, ids: Iterator[int] | None = None) -> IcebergType:
    """The type of a new column for an Arrow type; KeyError if there is none. A catalog gives the ids again."""
    kind, ids = as_column_type(kind), itertools.count(1) if ids is None else ids
    if types.is_decimal(kind) and kind.precision <= LARGEST and 0 <= kind.scale <= kind.precision:
        return DecimalType(kind.precision, kind.scale)
    if types.is_fixed_size_binary(kind):
        return FixedType(kind.byte_width)
    if types.is_struct(kind) and len(kind):
        return StructType(*(NestedField(next(ids), one.name, declared(one.type, ids), required=False) for one in kind))
    if types.is_map(kind):
        key, value = next(ids), next(ids)
        return MapType(key, declared(kind.key_type, ids), value, declared(kind.item_type, ids), value_required=False)
    if _is_list(kind):
        return ListType(next(ids), declared(kind.value_type, ids), element_required=False)
    for is_kind, make in _DECLARED:
        if is_kind(kind):
            return make()
    raise KeyError(str(kind))


def schema_for(columns: pa.Schema) -> Schema:
    """The schema of a new table; all of its columns may be NULL."""
    ids = itertools.count(len(columns) + 1)
    return Schema(
        *(
            NestedField(place, item.name, declared(item.type, ids), required=False)
            for place, item in enumerate(columns, 1)
        )
    )


def fits(kind: pa.DataType, column: IcebergType, *, nested: bool = False) -> bool:
    """Does the column keep every value unchanged?"""
    kind = as_column_type(kind)
    if types.is_null(kind):
        return True
    if isinstance(column, StructType | ListType | MapType):
        return _fits_nested(kind, column)
    if isinstance(column, DecimalType):
        return _fits_decimal(kind, column)
    if isinstance(column, FixedType | UUIDType):
        is_whole = types.is_fixed_size_binary(kind) and kind.byte_width == (
            len(column) if isinstance(column, FixedType) else 16
        )
        is_read = is_text(kind) and isinstance(column, UUIDType) and not nested
        return is_whole or is_read or (types.is_binary(kind) and not nested)
    return any(is_kind(kind) and isinstance(column, wider) for is_kind, wider in _FITS)


def _fits_nested(kind: pa.DataType, column: StructType | ListType | MapType) -> bool:
    if isinstance(column, StructType):
        return types.is_struct(kind) and not list(_nested_misfits(kind, column))
    if isinstance(column, ListType):
        return _is_list(kind) and fits(kind.value_type, column.element_type, nested=True)
    pairs = ((kind.key_type, column.key_type), (kind.item_type, column.value_type)) if types.is_map(kind) else ()
    return bool(pairs) and all(fits(*pair, nested=True) for pair in pairs)


def _nested_misfits(kind: pa.DataType, column: StructType) -> Iterator[str]:
    there = {one.name: one for one in column.fields}
    given = [item.name for item in kind]
    for item in kind:
        if item.name not in there or not fits(item.type, there[item.name].field_type, nested=True):
            yield item.name
    yield from (name for name in set(given) if given.count(name) > 1)
    yield from (one.name for one in column.fields if one.required and one.name not in given)


def _fits_decimal(kind: pa.DataType, column: DecimalType) -> bool:
    if types.is_signed_integer(kind):
        before, behind = _DIGITS[kind.bit_width], 0
    elif types.is_decimal(kind):
        before, behind = kind.precision - kind.scale, max(kind.scale, 0)
    else:
        return False
    return behind <= column.scale and before <= column.precision - column.scale


def misfits(columns: pa.Schema, there: Schema, *, may_add: bool) -> list[str]:
    """Every reason why a table does not fit the rows, for people."""
    by_name = {one.name: one for one in there.fields}
    problems = []
    for item in columns:
        column, kind = by_name.get(item.name), as_column_type(item.type)
        near = next((name for name in by_name if name.lower() == item.name.lower()), None)
        if column is None and may_add and near is None:
            problems += undeclarable(item)
        elif column is None and may_add:
            problems.append(f"column {item.name!r} cannot be added beside {near!r}: most readers ignore case")
        elif column is None:
            problems.append(f"column {item.name!r} is missing" + (f" (did you mean {near!r}?)" if near else ""))
        elif not fits(kind, column.field_type):
            problems.append(f"column {item.name!r} is {column.field_type}, which cannot hold every {kind}")
    problems += collisions(columns.names)
    problems += [
        f"column {one.name!r} is required, but the DataFrame does not have it"
        for one in there.fields
        if one.required and one.name not in columns.names
    ]
    return problems


def undeclarable(item: pa.Field) -> list[str]:
    """Why no column can be made for this one, for people."""
    try:
        declared(item.type)
    except KeyError:
        hint = ": cast it to the type that it should have" if types.is_null(item.type) else ""
        return [f"column {item.name!r} is {as_column_type(item.type)}, for which Iceberg has no type{hint}"]
    except ValueError:  # a struct with the same field twice
        return [f"column {item.name!r} has a field twice"]
    return []


def collisions(names: list[str]) -> list[str]:
    """Names that come twice, or that readers which ignore case could not tell apart."""
    same = sorted({name for name in names if names.count(name) > 1})
    found = [f"column {name!r} appears twice" for name in same]
    lower = [name.lower() for name in names]
    alike = sorted({name for name in names if lower.count(name.lower()) > 1} - set(same))
    return found + ([f"columns {', '.join(map(repr, alike))} differ only in case"] if alike else [])


# --- rows


def stored_schema(schema: Schema) -> pa.Schema:
    """How data files of a table look: names that Avro allows at the top, as all writers have them, and field ids."""
    names = [one.name for one in sanitize_column_names(schema).fields]
    return pa.schema(
        [_stored_field(one).with_name(name) for one, name in zip(schema.fields, names, strict=True)],
    )


def _stored_field(field: NestedField) -> pa.Field:
    return pa.field(
        field.name, stored_type(field.field_type), not field.required, metadata={FIELD_ID: str(field.field_id)}
    )


def stored_type(column: IcebergType) -> pa.DataType:
    """The Arrow type whose values a Parquet file of ours has; KeyError for a type that format version 2 lacks."""
    if isinstance(column, StructType):
        return pa.struct([_stored_field(one) for one in column.fields])
    if isinstance(column, ListType):
        return pa.list_(_stored_field(column.element_field))
    if isinstance(column, MapType):
        return pa.map_(_stored_field(column.key_field), _stored_field(column.value_field))
    if isinstance(column, DecimalType):
        return pa.decimal128(column.precision, column.scale)
    if isinstance(column, FixedType):
        return pa.binary(len(column))
    return _STORED[type(column)]


def fitted(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """Rows with the table's columns, in their order and types: missing ones are NULL. `BadValue` if a value changes."""
    target = stored_schema(schema)
    columns = []
    for field, item in zip(schema.fields, target, strict=True):
        place = batch.schema.get_field_index(field.name)
        if place < 0:
            columns.append(pa.nulls(batch.num_rows, _nullable(item.type)))
            continue
        try:
            columns.append(exact(batch.column(place), item.type))
        except (pa.ArrowException, ValueError):  # these quote the value
            raise BadValue(f"column {field.name!r} has a value that {field.field_type} cannot hold exactly") from None
    return pa.RecordBatch.from_arrays(
        [retyped(*pair) for pair in zip(columns, target.types, strict=True)], schema=target
    )


def exact(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values in another type; fields of structs are found by name. Raises if a value would change."""
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if isinstance(array.type, pa.BaseExtensionType) and not array.type.equals(kind):
        array = array.storage
    if kind.equals(pa.uuid()) and not array.type.equals(kind):
        return _uuids(array)
    return array.cast(_nullable(kind))


def _uuids(array: pa.Array) -> pa.Array:
    """From 16 bytes, or from text as UUIDs are shown."""
    if is_text(array.type):
        if not pc.all(pc.match_substring_regex(array, UUID), min_count=0).as_py():
            raise ValueError("not a UUID")
        array = pa.array([None if text is None else uuid.UUID(text).bytes for text in array.to_pylist()], pa.binary(16))
    return pa.ExtensionArray.from_storage(pa.uuid(), array.cast(pa.binary(16)))


class _Retyped:
    """An array under a type of the same layout, for Arrow's own protocol: only names and ids differ. Copies nothing."""

    def __init__(self, array: pa.Array, kind: pa.DataType) -> None:
        self.array, self.kind = array, kind

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.kind.__arrow_c_schema__(), self.array.__arrow_c_array__()[1]


def retyped(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same bytes under another type, of which only names, ids and "may be NULL" differ."""
    return array if array.type.equals(kind, check_metadata=True) else pa.array(_Retyped(array, kind))


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Arrow casts no field that may be NULL to one that may not: `refuse_nulls` looks at the values."""
    if types.is_struct(kind):
        return pa.struct([pa.field(item.name, _nullable(item.type)) for item in kind])
    if types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    if _is_list(kind):
        return pa.list_(_nullable(kind.value_type))
    return kind


def refuse_nulls(batch: pa.RecordBatch, schema: Schema) -> None:
    """Reject NULL where the table, whose types these rows have, requires a value."""
    for field, item, column in zip(schema.fields, batch.schema, batch.columns, strict=True):
        if path := next(_nulls(item.with_name(field.name), column), None):
            raise BadValue(f"NULL in column {'.'.join(path)!r}, which is required")


def _nulls(item: pa.Field, array: pa.Array) -> Iterator[tuple[str, ...]]:
    """Required fields that are NULL, by their names."""
    if not item.nullable and array.null_count:
        yield (item.name,)
    elif types.is_struct(item.type):
        there = array.filter(array.is_valid()) if array.null_count else array
        for place, child in enumerate(item.type):
            yield from ((item.name, *names) for names in _nulls(child, there.field(place)))
    elif types.is_map(item.type) and not item.type.item_field.nullable:
        pairs = array.cast(pa.list_(pa.struct([("key", item.type.key_type), ("value", item.type.item_type)])))
        yield from ((item.name, *names) for names in _nulls(item.type.item_field, pairs.flatten().field(1)))
    elif _is_list(item.type):
        yield from ((item.name, *names) for names in _nulls(item.type.value_field, array.flatten()))


# --- tables of types


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _signed(bits: int) -> Callable[[pa.DataType], bool]:
    return lambda kind: bool(types.is_signed_integer(kind) and kind.bit_width <= bits)


def _unsigned(bits: int) -> Callable[[pa.DataType], bool]:
    return lambda kind: bool(types.is_unsigned_integer(kind) and kind.bit_width <= bits)


def _zoned(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind) and kind.tz is not None)


def _plain_timestamp(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind) and kind.tz is None)


_DECLARED: tuple[tuple[Callable[[pa.DataType], bool], Callable[[], IcebergType]], ...] = (
    (_signed(32), IntegerType),
    (_signed(64), LongType),
    (_unsigned(16), IntegerType),
    (_unsigned(32), LongType),
    (types.is_float16, FloatType),
    (types.is_float32, FloatType),
    (types.is_float64, DoubleType),
    (types.is_boolean, BooleanType),
    (types.is_date, DateType),
    (_zoned, TimestamptzType),
    (types.is_timestamp, TimestampType),
    (types.is_time, TimeType),
    (is_bytes, BinaryType),
    (is_text, StringType),
)
_FITS: tuple[tuple[Callable[[pa.DataType], bool], tuple[type[IcebergType], ...]], ...] = (
    (_signed(32), (IntegerType, LongType, DoubleType)),
    (_signed(64), (LongType,)),
    (_unsigned(16), (IntegerType, LongType, DoubleType)),
    (_unsigned(32), (LongType,)),
    (types.is_float16, (FloatType, DoubleType)),
    (types.is_float32, (FloatType, DoubleType)),
    (types.is_float64, (DoubleType,)),
    (types.is_boolean, (BooleanType,)),
    (types.is_date, (DateType,)),
    (_zoned, (TimestamptzType,)),
    (_plain_timestamp, (TimestampType,)),
    (types.is_time, (TimeType,)),
    (is_bytes, (BinaryType,)),
    (is_text, (StringType,)),
)
_STORED: dict[type[Any], pa.DataType] = {
    BooleanType: pa.bool_(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    DateType: pa.date32(),
    TimeType: pa.time64("us"),
    TimestampType: pa.timestamp("us"),
    TimestamptzType: pa.timestamp("us", tz="UTC"),
    StringType: pa.string(),
    BinaryType: pa.binary(),
    UUIDType: pa.uuid(),
}
