"""Partitions of an Iceberg table: as people write them, as the table has them, and the rows of each.

    day(ts)   hour(ts)   month(ts)   year(ts)   bucket(16, id)   truncate(4, name)   country

The transforms are the library's own. Rows are divided here: the library's way drops those whose value is NaN, and
refuses two partitions by one column.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TimeTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, NestedField, PrimitiveType, StructType

_BY_TIME: dict[str, Callable[[], Transform[Any, Any]]] = {
    "year": YearTransform,
    "month": MonthTransform,
    "day": DayTransform,
    "hour": HourTransform,
}
_BY_NUMBER: dict[str, Callable[[int], Transform[Any, Any]]] = {"bucket": BucketTransform, "truncate": TruncateTransform}
_CALL = re.compile(r"(\w+)\((?:\s*(\d+)\s*,)?\s*(.+?)\s*\)")
KNOWN = "a column, year(c), month(c), day(c), hour(c), bucket(16, c) or truncate(4, c)"


class Unusable(ValueError):
    """A partition that cannot be made, in words."""


# --- as people write them


def spec_of(texts: Sequence[str], schema: Schema) -> PartitionSpec:
    """The partitions of a new table; `Unusable` says which of them cannot be."""
    fields = [_field(text.strip(), schema, number) for number, text in enumerate(texts)]
    names = [one.name for one in fields]
    times = [one.source_id for one in fields if isinstance(one.transform, TimeTransform)]
    for one, text in zip(fields, texts, strict=True):
        if isinstance(one.transform, TimeTransform) and times.count(one.source_id) > 1:
            raise Unusable(f"partition {text!r} is one of several by the time of one column: keep the finest")
        if _is_inexact(one, schema):
            raise Unusable(f"partition {text!r} {INEXACT}")
        if names.count(one.name) > 1:
            raise Unusable(f"partition {text!r} is there twice")
        if not isinstance(one.transform, IdentityTransform) and one.name in schema.column_names:
            raise Unusable(f"partition {text!r} would be called {one.name!r}, as a column already is")
    return PartitionSpec(*fields)


def _field(text: str, schema: Schema, number: int) -> PartitionField:
    transform, column = _parsed(text, schema)
    try:
        source = schema.find_field(column)
    except ValueError:
        raise Unusable(f"partition {text!r} is by column {column!r}, which the DataFrame does not have") from None
    if not transform.can_transform(source.field_type):
        raise Unusable(f"partition {text!r} is not possible by a column of type {source.field_type}")
    suffix = (
        "" if isinstance(transform, IdentityTransform) else f"_{re.sub(r'[^a-z0-9]+', '_', str(transform)).strip('_')}"
    )
    return PartitionField(source.field_id, PARTITION_FIELD_ID_START + number, transform, f"{column}{suffix}")


def _parsed(text: str, schema: Schema) -> tuple[Transform[Any, Any], str]:
    call = None if text in schema.column_names else _CALL.fullmatch(text)
    if call is None:
        return IdentityTransform(), text
    name, number, column = call.groups()
    name = name.lower()
    if name.removesuffix("s") in _BY_TIME and number is None:
        return _BY_TIME[name.removesuffix("s")](), column
    if name in _BY_NUMBER and number is not None and int(number) > 0:
        return _BY_NUMBER[name](int(number)), column
    raise Unusable(f"partition {text!r} is not known: use {KNOWN}")


# --- as the table has them


def strange(spec: PartitionSpec, schema: Schema) -> list[str]:
    """Partitions of a table that we cannot compute or copy, for people."""
    unknown = [
        f"its partition {one.name!r} has the transform {str(one.transform)!r}, which we do not know"
        for one in spec.fields
        if isinstance(one.transform, UnknownTransform)
    ]
    return unknown + [f"its partition {one.name!r} {INEXACT}" for one in spec.fields if _is_inexact(one, schema)]


INEXACT = "is by a column of type double, which pyiceberg does not read exactly"


def _is_inexact(one: PartitionField, schema: Schema) -> bool:
    """The library reads it from a manifest as a float: readers miss rows, and a copy would be wrong for everybody."""
    if schema.find_column_name(one.source_id) is None or not isinstance(one.transform, IdentityTransform):
        return False
    return isinstance(schema.find_field(one.source_id).field_type, DoubleType)


def encoded(record: Record, kind: StructType) -> list[str | None]:
    """The values of a partition as text, exactly: Iceberg's own bytes of a single value."""
    return [
        None if value is None else base64.b64encode(to_bytes(_primitive(one), value)).decode()
        for one, value in zip(kind.fields, _values(record, kind), strict=True)
    ]


def decoded(texts: Sequence[str | None], kind: StructType) -> Record:
    """What `encoded` was given."""
    values = [
        None if text is None else from_bytes(_primitive(one), base64.b64decode(text))
        for one, text in zip(kind.fields, texts, strict=True)
    ]
    return Record(*values)


def _values(record: Record, kind: StructType) -> list[Any]:
    return [record[place] for place in range(len(kind.fields))]


def _primitive(one: NestedField) -> PrimitiveType:
    assert isinstance(one.field_type, PrimitiveType), "partitions are by single values"
    return one.field_type


# --- the rows of each


@dataclass(frozen=True, slots=True)
class Division:
    """Divides rows of a table by its partitions."""

    spec: PartitionSpec
    schema: Schema

    def parts(self, rows: pa.Table) -> Iterator[tuple[Record, pa.Table]]:
        """The rows of each partition, in memory of their own: what is written early must not keep the rest alive."""
        if not self.spec.fields:
            yield Record(), rows
            return
        rows = rows.combine_chunks()
        names = [str(number) for number in range(len(self.spec.fields))]
        values = pa.table([_plain(transformed(rows, self.schema, one)) for one in self.spec.fields], names)
        numbered = values.append_column("rows", pa.array(range(rows.num_rows), pa.int64()))
        groups = numbered.group_by(names, use_threads=False).aggregate([("rows", "list")])
        keys, places = groups.select(names).to_pylist(), groups.column("rows_list")
        for key, place in zip(keys, places, strict=True):
            yield Record(*(key[name] for name in names)), rows if len(keys) == 1 else rows.take(place.values)


def transformed(rows: pa.Table, schema: Schema, one: PartitionField | SortField) -> pa.Array:
    """The values that a table is divided or sorted by."""
    first, *rest = _path(schema.fields, one.source_id)
    array = rows.column(first).combine_chunks()
    if rest:
        array = pc.struct_field(array, rest)
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return one.transform.pyarrow_transform(schema.find_field(one.source_id).field_type)(array)


def _plain(array: pa.Array) -> pa.Array:
    """Times as the numbers that Iceberg has in a partition."""
    kind = array.type
    if types.is_date32(kind):
        return array.cast(pa.int32())
    if types.is_timestamp(kind) or types.is_time64(kind):
        return array.cast(pa.int64())
    return array


def _path(fields: Sequence[NestedField], wanted: int) -> tuple[int, ...]:
    """The places that lead to a field, through structs; empty if it is not there."""
    for place, one in enumerate(fields):
        if one.field_id == wanted:
            return (place,)
        if isinstance(one.field_type, StructType) and (rest := _path(one.field_type.fields, wanted)):
            return (place, *rest)
    return ()
