"""Which DataFrame columns fit which Cassandra columns, and how values are converted. Never touches a database.

Values stay exact: a time finer than Cassandra's milliseconds is rejected, never truncated.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyarrow import types

from fencepost.connectors.table.values import as_column_type, as_grouped, bindable, is_bytes, is_text


@dataclass(frozen=True, slots=True)
class CqlType:
    """`frozen<map<text, int>>` as a tree."""

    name: str
    of: tuple[CqlType, ...] = ()
    frozen: bool = False

    def __str__(self) -> str:
        text = f"{self.name}<{', '.join(map(str, self.of))}>" if self.of else self.name
        return f"frozen<{text}>" if self.frozen else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of an existing table."""

    name: str
    type: CqlType
    kind: str
    """partition_key, clustering, static or regular."""
    position: int
    """Within its part of the key."""

    @property
    def is_key(self) -> bool:
        """Part of the primary key."""
        return self.kind in {"partition_key", "clustering"}


class Unfit(Exception):
    """Values that a column cannot store; the text continues `column 'x' …` and quotes no value."""


def parsed(text: str) -> CqlType:
    """Parse a type as written in system_schema."""
    found = re.fullmatch(r"(\w+)<(.*)>", text.strip())
    if not found:
        return CqlType(text.strip())
    inner = tuple(parsed(part) for part in split(found[2]))
    return replace(inner[0], frozen=True) if found[1] == "frozen" else CqlType(found[1], inner)


def split(text: str) -> list[str]:
    """Split at commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "<") - (letter == ">")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def key_of(columns: list[Column]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the partition key and of the clustering columns."""
    ordered = sorted(columns, key=lambda column: column.position)
    partition = tuple(column.name for column in ordered if column.kind == "partition_key")
    return partition, tuple(column.name for column in ordered if column.kind == "clustering")


def misfits(schema: pa.Schema, there: list[Column]) -> list[str]:
    """Every reason why the table does not fit the rows, for people."""
    by_name = {column.name: column for column in there}
    problems = []
    for item in schema:
        column = by_name.get(item.name)
        kind = as_column_type(item.type)
        if column is None:
            near = next((name for name in by_name if name.lower() == item.name.lower()), None)
            problems.append(f"column {item.name!r} is missing" + (f" (did you mean {near!r}?)" if near else ""))
        elif column.type.name == "counter":
            problems.append(f"column {item.name!r} is a counter: an increment cannot be repeated after a crash")
        elif column.kind == "static":
            problems.append(
                f"column {item.name!r} is static: rows of the same partition would overwrite each other's value"
            )
        elif types.is_null(kind) and column.kind != "regular":
            problems.append(f"column {item.name!r} is part of the key, but is always NULL in the DataFrame")
        elif why := why_not(kind, column.type):
            problems.append(f"column {item.name!r} has type {column.type}, {why}")
    names = schema.names
    problems += [f"column {name!r} appears twice" for name in sorted({n for n in names if names.count(n) > 1})]
    problems += [
        f"column {name!r} is part of the key, but the DataFrame does not have it"
        for name in (*key_of(there)[0], *key_of(there)[1])
        if name not in names
    ]
    return problems


def why_not(kind: pa.DataType, cql: CqlType) -> str | None:
    """Why a column cannot store our values unchanged; None if it can."""
    kind = as_column_type(kind)
    if types.is_null(kind):
        return None
    if types.is_nested(kind):
        return _why_not_nested(kind, cql)
    if types.is_timestamp(kind) and not kind.tz and cql.name == "timestamp":
        return "which needs a time zone, and the DataFrame's times have none: cast the column to timestamp"
    if any(is_kind(kind) and cql.name in names for is_kind, names in _FITS):
        return None
    return f"which cannot store {kind} values unchanged"


def _why_not_nested(kind: pa.DataType, cql: CqlType) -> str | None:
    if cql.name in {"text", "varchar"}:
        return None  # as JSON
    if is_list(kind) and cql.name == "list":
        if not cql.frozen:
            return f"where a repeated write would duplicate its elements: make it frozen<{cql}>"
        return why_not(kind.value_type, cql.of[0])
    if types.is_map(kind) and cql.name == "map" and not types.is_nested(as_column_type(kind.key_type)):
        return why_not(kind.key_type, cql.of[0]) or why_not(kind.item_type, cql.of[1])
    return f"which cannot store {kind} (a text column can, as JSON)"


def declared(kind: pa.DataType) -> CqlType:
    """The column type we declare for an Arrow type; `KeyError` if Cassandra has none."""
    kind = as_column_type(kind)
    if types.is_nested(kind):
        try:
            if is_list(kind):
                return CqlType("list", (declared(kind.value_type),), frozen=True)
            if types.is_map(kind) and not types.is_nested(as_column_type(kind.key_type)):
                return CqlType("map", (declared(kind.key_type), declared(kind.item_type)), frozen=True)
        except KeyError:
            pass
        return CqlType("text")
    for is_kind, name in _DECLARED:
        if is_kind(kind):
            return CqlType(name)
    raise KeyError(str(kind))


def values(array: pa.Array, cql: CqlType) -> list[Any]:
    """A column as the client accepts it; `Unfit` if the table's column would change a value."""
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if isinstance(array.type, pa.ExtensionType):
        array = array.storage
    kind = array.type
    if types.is_null(kind):
        return [None] * len(array)
    if types.is_nested(kind) and cql.name == "list":
        return _collections(array, values(array.values, cql.of[0]))
    if types.is_nested(kind) and cql.name == "map":
        pairs = list(zip(values(array.keys, cql.of[0]), values(array.items, cql.of[1]), strict=True))
        return [None if found is None else dict(found) for found in _collections(array, pairs)]
    if convert := _CONVERSIONS.get(cql.name):
        return convert(array)
    return bindable(array) if types.is_nested(kind) else list(array.to_pylist())


def key_values(array: pa.Array, cql: CqlType) -> list[Any]:
    """The same for a key column, which is compared as bytes: equal for Cassandra where it is equal for Spark."""
    found = values(as_grouped(array), cql)
    if cql.name in {"uuid", "timeuuid"} and list(map(str, found)) != list(map(str, array.to_pylist())):
        raise Unfit("has UUIDs that are not in lower case with hyphens, in a key: use lower(…)")
    return found


def _collections(array: pa.Array, flat: list[Any]) -> list[list[Any] | None]:
    """Split the elements into collections; Cassandra allows no NULL inside one."""
    ends = array.offsets.to_pylist()
    valid = array.is_valid().to_pylist()
    found = [flat[ends[i] : ends[i + 1]] if valid[i] else None for i in range(len(array))]
    if any(item is None or (type(item) is tuple and None in item) for items in found if items for item in items):
        raise Unfit("has NULL inside a collection")
    return found


def _milliseconds(array: pa.Array) -> list[Any]:
    try:
        return list(array.cast(pa.timestamp("ms", array.type.tz)).cast(pa.int64()).to_pylist())
    except pa.ArrowInvalid:
        raise Unfit(
            "has times finer than a millisecond, which Cassandra would truncate: use date_trunc('millisecond', …)"
        ) from None


def _days(array: pa.Array) -> list[Any]:
    """As unsigned days, the way CQL stores them: 1970-01-01 is 2^31."""
    return [None if day is None else day + 2**31 for day in array.cast(pa.date32()).cast(pa.int32()).to_pylist()]


def _nanoseconds(array: pa.Array) -> list[Any]:
    return list(array.cast(pa.time64("ns")).cast(pa.int64()).to_pylist())


def _whole(array: pa.Array) -> list[Any]:
    return [None if number is None else int(number) for number in array.to_pylist()]


def _ascii(array: pa.Array) -> list[Any]:
    found = array.to_pylist()
    if not all(text is None or text.isascii() for text in found):
        raise Unfit("has text that is not ASCII")
    return list(found)


def _uuids(array: pa.Array) -> list[Any]:
    try:
        return [None if text is None else uuid.UUID(text) for text in array.to_pylist()]
    except ValueError:
        raise Unfit("has text that is not a UUID") from None


def _time_uuids(array: pa.Array) -> list[Any]:
    found = _uuids(array)
    if not all(one is None or one.version == 1 for one in found):
        raise Unfit("has UUIDs that are not time-based (version 1)")
    return found


_CONVERSIONS: dict[str, Callable[[pa.Array], list[Any]]] = {
    "timestamp": _milliseconds,
    "date": _days,
    "time": _nanoseconds,
    "varint": _whole,
    "ascii": _ascii,
    "uuid": _uuids,
    "timeuuid": _time_uuids,
}


def is_list(kind: pa.DataType) -> bool:
    """In either of the two Arrow layouts that Spark uses."""
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _bits(kind: pa.DataType) -> int:
    return int(kind.bit_width) + bool(types.is_unsigned_integer(kind)) if types.is_integer(kind) else 0


def _is_whole(kind: pa.DataType) -> bool:
    return bool(types.is_decimal(kind) and kind.scale == 0)


_FITS: tuple[tuple[Callable[[pa.DataType], bool], set[str]], ...] = (
    (lambda kind: 0 < _bits(kind) <= 8, {"tinyint"}),
    (lambda kind: 0 < _bits(kind) <= 16, {"smallint"}),
    (lambda kind: 0 < _bits(kind) <= 32, {"int"}),
    (lambda kind: 0 < _bits(kind) <= 64, {"bigint"}),
    (lambda kind: _bits(kind) > 0, {"varint"}),
    (_is_whole, {"varint"}),
    (types.is_float32, {"float"}),
    (types.is_floating, {"double"}),
    (types.is_boolean, {"boolean"}),
    (is_text, {"text", "varchar", "ascii", "uuid", "timeuuid"}),
    (is_bytes, {"blob"}),
    (types.is_decimal, {"decimal"}),
    (types.is_date, {"date"}),
    (types.is_timestamp, {"timestamp"}),
    (types.is_time, {"time"}),
)

_DECLARED: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (lambda kind: 0 < _bits(kind) <= 8, "tinyint"),
    (lambda kind: 0 < _bits(kind) <= 16, "smallint"),
    (lambda kind: 0 < _bits(kind) <= 32, "int"),
    (lambda kind: 0 < _bits(kind) <= 64, "bigint"),
    (types.is_integer, "varint"),
    (types.is_float32, "float"),
    (types.is_floating, "double"),
    (types.is_boolean, "boolean"),
    (is_text, "text"),
    (is_bytes, "blob"),
    (types.is_decimal, "decimal"),
    (types.is_date, "date"),
    (lambda kind: types.is_timestamp(kind) and kind.tz, "timestamp"),
    (types.is_time, "time"),
)
