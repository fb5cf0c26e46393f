"""Rows and values of keyed state between the user's function and Spark: named, complete, of the declared types.

Spark itself would store null for a value of another type, without a word. Never puts a value into an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from operator import itemgetter
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql.types import StructType, _make_type_verifier

Convert = Callable[[Any], Any]
Leaf = Callable[[Any], Convert | None]
"""What is done with values of a type that has no parts; None for nothing."""


class Misfit(Exception):
    """A row or a value that is not what was declared; says which field, never what was in it."""


def row_kind(names: Sequence[str]) -> type[Row]:
    """A Row of which `row.count` and `row.index` are the columns of that name, not a tuple's methods."""
    fields: dict[str, Any] = {name: property(itemgetter(at)) for at, name in enumerate(names)}
    return type("Record", (Row,), {"__fields__": list(names), "_replace": _replaced, **fields})


def maker(kind: Any) -> Convert:
    """Make rows of one kind out of tuples (by place), dicts, Rows and named tuples (by name)."""
    wanted, same = kind.__fields__, set(kind.__fields__)

    def make(given: Any) -> Any:
        if type(given) is kind:
            return given
        if isinstance(given, dict):
            own: Any = given
            given_names = list(given)
        elif isinstance(given, tuple):
            given_names = list(getattr(given, "__fields__", getattr(given, "_fields", ())))
            if not given_names or given_names == wanted:
                if len(given) != len(wanted):
                    raise Misfit(f"it has {len(given)} values for the {len(wanted)} of ({', '.join(wanted)})")
                return tuple.__new__(kind, given)
            own = dict(zip(given_names, given, strict=True))
        else:
            raise Misfit(f"a {type(given).__name__} is no row; a row is a tuple, a dict or a Row")
        if set(given_names) != same:
            missing = [name for name in wanted if name not in own]
            extra = len(set(given_names) - same)
            raise Misfit(f"without {missing}" if missing else f"{extra} names beyond ({', '.join(wanted)})")
        return tuple.__new__(kind, [own[name] for name in wanted])

    return make


def _replaced(self: Any, **changes: Any) -> Any:
    """The same with some fields changed, as of a named tuple."""
    values = dict(zip(self.__fields__, self, strict=True))
    if unknown := changes.keys() - values.keys():
        raise ValueError(f"{len(unknown)} names beyond ({', '.join(values)})")
    return tuple.__new__(type(self), list((values | changes).values()))


def receiver(schema: StructType) -> Convert:
    """From Arrow's values of a record to the user's: times in UTC, for arithmetic within any other zone goes by the
    hands of the clock, an hour wrong twice a year.
    """
    return _by_field(schema, lambda kind: (lambda value: value.astimezone(UTC)) if _is_time(kind) else None)


def sender(schema: StructType) -> Convert:
    """From the user's output row to Arrow's values."""
    return _by_field(schema, _to_send, arrow=True)


def _to_send(kind: Any) -> Convert | None:
    if kind.typeName() in ("byte", "short", "integer", "long"):
        return _whole  # Arrow would cut a fraction off, without a word
    return _with_zone if _is_time(kind) else None


def unpacker(schema: StructType) -> Convert:
    """From what Spark stored to the values of the user's state."""
    return _by_field(schema, lambda kind: (lambda value: value.replace(tzinfo=UTC)) if _is_time(kind) else None)


def packer(schema: StructType) -> Convert:
    """From the user's state to what Spark stores, each value checked."""
    convert = _by_field(schema, _pack)
    verifiers = [(field, _make_type_verifier(field.dataType)) for field in schema]

    def pack(row: Sequence[Any]) -> tuple[Any, ...]:
        found = tuple(convert(row))
        for value, (field, verify) in zip(found, verifiers, strict=True):
            try:
                verify(value)
            except (PySparkException, TypeError, ValueError):
                raise _misfit(field, value) from None
        return found

    return pack


def _by_field(schema: StructType, leaf: Leaf, *, arrow: bool = False) -> Convert:
    """Convert the fields that need it; a null stays null."""
    found = [(at, field, _convert(field.dataType, leaf, arrow)) for at, field in enumerate(schema)]
    steps = [(at, field, convert) for at, field, convert in found if convert is not None]
    if not steps:
        return lambda row: row

    def converted(row: Sequence[Any]) -> Sequence[Any]:
        values = list(row)
        for at, field, convert in steps:
            try:
                values[at] = None if values[at] is None else convert(values[at])
            except (TypeError, ValueError, AttributeError, Misfit) as error:
                raise _misfit(field, values[at], error) from None
        return values

    return converted


def _convert(kind: Any, leaf: Leaf, arrow: bool) -> Convert | None:
    """Of one type and all its parts; None for nothing to do. For Arrow, structs are dicts and maps are pairs."""
    name = kind.typeName()
    if name == "array":
        element = _convert(kind.elementType, leaf, arrow)
        return element and (lambda value: [None if each is None else element(each) for each in value])
    if name == "map":
        key = _convert(kind.keyType, leaf, arrow) or _same
        val = _convert(kind.valueType, leaf, arrow) or _same

        def mapped(value: Any) -> Any:
            pairs = [(key(k), None if v is None else val(v)) for k, v in dict(value).items()]
            return pairs if arrow else dict(pairs)

        return mapped
    if name == "struct":
        make, inner = maker(row_kind(kind.names)), _by_field(kind, leaf, arrow=arrow)
        if arrow:
            return lambda value: dict(zip(kind.names, inner(make(value)), strict=True))
        return lambda value: make(tuple(inner(make(value))))
    return leaf(kind)


def _pack(kind: Any) -> Convert | None:
    if _is_time(kind):
        return lambda value: _with_zone(value).astimezone(UTC).replace(tzinfo=None)
    if kind.typeName() in ("float", "double"):
        return lambda value: float(value) if type(value) is int else value
    if kind.typeName() == "decimal":
        return lambda value: _fitting(value, kind.precision, kind.scale)
    return None


def _is_time(kind: Any) -> bool:
    return bool(kind.typeName() == "timestamp")


def _same(value: Any) -> Any:
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, float | Decimal):
        raise Misfit(f"a {type(value).__name__} is no whole number")
    return value


def _with_zone(value: Any) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise Misfit("a time without a zone")
    return value


def _fitting(value: Any, precision: int, scale: int) -> Any:
    """Spark would round it, or store null."""
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        if not isinstance(exponent, int) or -exponent > scale or (value and value.adjusted() >= precision - scale):
            raise Misfit("it has too many digits")
    return value


def _misfit(field: Any, value: Any, error: Exception | None = None) -> Misfit:
    why = f" ({error})" if isinstance(error, Misfit) else ""
    return Misfit(f"field {field.name} is {field.dataType.simpleString()}, and was given a {type(value).__name__}{why}")
