"""Which DataFrame columns fit which SQLite columns. Never touches a database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types

from fencepost.connectors.table.values import as_column_type, is_bytes, is_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of an existing table."""

    name: str
    affinity: str
    required: bool
    generated: bool

    @property
    def shown(self) -> str:
        """For messages."""
        return f"of affinity {self.affinity}"


def misfits(schema: pa.Schema, there: list[Column]) -> list[str]:
    """Every reason why the table does not fit the rows, for people."""
    by_name = {column.name.lower(): column for column in there}
    problems = []
    for item in schema:
        column = by_name.get(item.name.lower())
        kind = as_column_type(item.type)
        if column is None:
            problems.append(f"column {item.name!r} is missing")
        elif column.generated:
            problems.append(f"column {item.name!r} is generated and cannot be written")
        elif not fits(kind, column.affinity):
            problems.append(f"column {item.name!r} has affinity {column.affinity}, which would change {kind} values")
    lower = [name.lower() for name in schema.names]
    twice = sorted({name for name in lower if lower.count(name) > 1})
    problems += [f"column {name!r} appears twice (SQLite ignores case)" for name in twice]
    problems += [
        f"column {column.name!r} is NOT NULL and has no default, but the DataFrame has no such column"
        for column in there
        if column.required and column.name.lower() not in lower
    ]
    return problems


def declared(kind: pa.DataType) -> str:
    """The column type we declare for an Arrow type."""
    kind = as_column_type(kind)
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_duration(kind):
        return "INTEGER"
    if types.is_floating(kind):
        return "REAL"
    return "BLOB" if is_bytes(kind) else "TEXT"


def affinity_of(declared_type: str) -> str:
    """A column's affinity, from its declared type (sqlite.org/datatype3.html, 3.1)."""
    text = declared_type.upper()
    for parts, affinity in (
        (("INT",), "INTEGER"),
        (("CHAR", "CLOB", "TEXT"), "TEXT"),
        (("BLOB",), "BLOB"),
        (("REAL", "FLOA", "DOUB"), "REAL"),
    ):
        if any(part in text for part in parts):
            return affinity
    return "NUMERIC" if text and text != "ANY" else "BLOB"


def fits(kind: pa.DataType, affinity: str) -> bool:
    """Does a column store our values unchanged? SQLite may silently turn the text "007" into the number 7."""
    if affinity == "BLOB" or types.is_null(kind):
        return True
    return any(is_kind(kind) and affinity in affinities for is_kind, affinities in _FITS)


_FITS: tuple[tuple[Callable[[pa.DataType], bool], set[str]], ...] = (
    (types.is_boolean, {"INTEGER", "NUMERIC"}),
    (types.is_duration, {"INTEGER", "NUMERIC"}),
    (types.is_integer, {"INTEGER", "NUMERIC"}),
    (lambda kind: types.is_integer(kind) and kind.bit_width <= 32, {"REAL"}),
    (types.is_floating, {"REAL", "NUMERIC"}),
    (types.is_decimal, {"TEXT"}),
    (lambda kind: types.is_decimal(kind) and kind.precision <= 15, {"REAL", "NUMERIC"}),  # exact in a float
    (types.is_date, {"TEXT", "NUMERIC"}),  # DATE and DATETIME are NUMERIC, and ISO text stays text in them
    (types.is_timestamp, {"TEXT", "NUMERIC"}),
    (types.is_time, {"TEXT", "NUMERIC"}),
    (is_text, {"TEXT"}),
    (types.is_nested, {"TEXT"}),
)
