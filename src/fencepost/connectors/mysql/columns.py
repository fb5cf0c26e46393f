"""MySQL names, and which DataFrame columns fit which table columns. Never touches a database.

Every name is quoted, so that none can become part of a statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from fencepost.connectors.table.bulk import MYSQL, Text
from fencepost.connectors.table.database import PLACE, BadValue, RowsRefused, misfits_of
from fencepost.connectors.table.values import as_column_type, is_bytes, is_text

LONGEST = 64
"""Characters."""


def quoted(name: str) -> str:
    """Quote an identifier, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def listed(names: Iterable[str], of: str = "") -> str:
    """Quoted column names, optionally qualified with a table."""
    return ", ".join(f"{of}.{quoted(name)}" if of else quoted(name) for name in names)


def problem_of_name(name: str) -> str | None:
    """Why MySQL would reject the name, or confuse it with another; None if it is fine."""
    if not 0 < len(name) <= LONGEST:
        return f"Names in MySQL have 1 to {LONGEST} characters"
    if name.endswith(" ") or any(character == "\0" or character > "\uffff" for character in name):
        return "Names in MySQL cannot end with a blank or contain NUL or emoji"
    return None


KEY_LENGTH = 255
"""Characters of a text key column in a table that we create; longer text is rejected in the vote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of an existing table."""

    name: str
    type: str
    shown: str
    """Its type, for messages."""
    length: int | None
    """Characters or bytes."""
    precision: int | None
    scale: int | None
    fraction: int | None
    """Digits of fractional seconds."""
    charset: str | None
    collation: str | None
    nullable: bool
    required: bool
    """NOT NULL, without a default or AUTO_INCREMENT."""
    counts: bool
    """AUTO_INCREMENT."""
    generated: bool

    @property
    def merges(self) -> bool:
        """May texts that differ in case, accents or trailing blanks be equal in this column?"""
        return self.collation is not None and not self.collation.endswith(("_nopad_bin", "_0900_bin"))


def misfits(schema: pa.Schema, there: list[Column]) -> list[str]:
    return misfits_of(schema, there, fits)


def refuse_nulls(batch: pa.RecordBatch, there: list[Column]) -> None:
    """MySQL would turn NULL into a number in AUTO_INCREMENT columns, and into the current time in old TIMESTAMPs."""
    for column in there:
        if not column.nullable and column.name in batch.schema.names and batch.column(column.name).null_count:
            raise BadValue(f"NULL in a column that is NOT NULL, column {quoted(column.name)}")


def texts_for(schema: pa.Schema, there: list[Column]) -> list[Text]:
    """How each column is written, given the column it goes into."""
    by_name = {column.name: column for column in there}
    return [MYSQL.text(item) if item.name == PLACE else _text_for(item, by_name[item.name]) for item in schema]


def _text_for(item: pa.Field, column: Column) -> Text:
    """Rejects here what the column would silently change."""
    text = MYSQL.text(item)
    if column.type == "char":
        return partial(_checked, text, lambda array: pc.invert(pc.ends_with(array, " ")))
    if column.type == "enum":
        members = pa.array(_members(column.shown), pa.string())
        return partial(_checked, text, lambda array: pc.is_in(array.cast(pa.string()), members))
    if column.type == "binary":
        return partial(_checked, text, lambda array: pc.equal(pc.binary_length(array), column.length))
    return text


def _checked(text: Text, is_kept: Callable[[pa.Array], pa.Array], array: pa.Array) -> pa.Array:
    """CHAR drops trailing blanks, BINARY adds zeros, and ENUM reads a number as an index into its list."""
    if pc.any(pc.invert(is_kept(array.drop_null()))).as_py():
        raise ValueError("a value would be changed")
    return text(array)


def _members(shown: str) -> list[str]:
    found = re.findall(r"'((?:[^']|'')*)'", shown)
    return [member.replace("''", "'").replace("\\\\", "\\") for member in found]


def create_table(table: str, schema: pa.Schema, key: tuple[str, ...], collation: str) -> str:
    """A table that fits the DataFrame; KeyError if MySQL lacks a type. Its texts are equal only if identical."""
    long = [item for item in schema if item.name in key and _is_long(as_column_type(item.type))]
    length = min(KEY_LENGTH, 3 * KEY_LENGTH // max(1, len(long)))  # an InnoDB index has at most 3072 bytes
    parts = []
    for item in schema:
        kind = declared(item.type, collation)
        if item.name in key:
            kind = _in_key(item, kind, length, collation) + " NOT NULL"
        parts.append(f"{quoted(item.name)} {kind}")
    if key:
        parts.append(f"PRIMARY KEY ({listed(key)})")
    return f"CREATE TABLE {table} ({', '.join(parts)}) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"


def stage_table(stage: str, there: list[Column], names: Sequence[str], *, temporary: bool) -> str:
    """A staging table: the same columns, no constraints, and the row's number as key, which keeps rows in order."""
    by_name = {column.name: column for column in there}
    parts = [f"{quoted(name)} {_staged(by_name[name])} NULL" for name in names]
    parts.append(f"{PLACE} BIGINT NOT NULL PRIMARY KEY")
    return f"CREATE {'TEMPORARY ' if temporary else ''}TABLE {stage} ({', '.join(parts)}) ENGINE=InnoDB"


def _staged(column: Column) -> str:
    if column.type == "enum":
        return "longtext CHARACTER SET utf8mb4"
    named = f" CHARACTER SET {column.charset} COLLATE {column.collation}" if column.charset and column.collation else ""
    return column.shown + named


def declared(kind: pa.DataType, collation: str) -> str:
    """The column type we declare for an Arrow type; KeyError if there is none."""
    kind = as_column_type(kind)
    if types.is_decimal(kind) and kind.precision <= 65 and 0 <= kind.scale <= 30:
        return f"decimal({kind.precision},{kind.scale})"
    for is_kind, name in _DECLARED:
        if is_kind(kind):
            return name + (f" CHARACTER SET utf8mb4 COLLATE {collation}" if name == "longtext" else "")
    raise KeyError(str(kind))


def _is_long(kind: pa.DataType) -> bool:
    return is_text(kind) or is_bytes(kind)


def _in_key(item: pa.Field, kind: str, length: int, collation: str) -> str:
    plain = as_column_type(item.type)
    if is_text(plain):
        return f"varchar({length}) CHARACTER SET utf8mb4 COLLATE {collation}"
    if is_bytes(plain):
        return f"varbinary({length})"
    if types.is_floating(plain) or types.is_nested(plain) or types.is_null(plain):
        raise RowsRefused(f"column {item.name!r} has type {plain}, which cannot be a key")
    return kind


def fits(kind: pa.DataType, column: Column) -> bool:
    """Does the column store our values unchanged, or reject them with an error? A rounded value is a wrong value."""
    if types.is_null(kind):
        return True
    if column.type == "decimal":
        return _fits_decimal(kind, column)
    if column.type in _INTEGERS:
        return _fits_integer(kind, column)
    if column.type in {"float", "double"} and column.scale is not None:
        return False  # float(7,4) rounds
    if column.type in _TIMES and (column.fraction or 0) < 6:
        return False
    return any(is_kind(kind) and column.type in names for is_kind, names in _FITS)


def _fits_integer(kind: pa.DataType, column: Column) -> bool:
    """Unsigned columns are fine: they may well be meant for our numbers, and reject negative ones with an error."""
    if types.is_boolean(kind):
        return True
    if types.is_duration(kind):
        return column.type == "bigint"
    bits = _INTEGERS[column.type]
    if types.is_unsigned_integer(kind):
        return bool(kind.bit_width <= bits if "unsigned" in column.shown else kind.bit_width < bits)
    return bool(types.is_integer(kind) and kind.bit_width <= bits)


def _fits_decimal(kind: pa.DataType, column: Column) -> bool:
    """decimal(p,s) rounds extra digits after the point, and rejects extra digits before it."""
    if types.is_integer(kind):
        before, behind = {8: 3, 16: 5, 32: 10, 64: 19 + types.is_unsigned_integer(kind)}[kind.bit_width], 0
    elif types.is_decimal(kind):
        before, behind = kind.precision - kind.scale, max(kind.scale, 0)
    else:
        return False
    precision, scale = column.precision or 0, column.scale or 0
    return behind <= scale and before <= precision - scale


def _integer(bits: int) -> Callable[[pa.DataType], bool]:
    return lambda kind: bool(types.is_integer(kind) and kind.bit_width <= bits)


def _signed(bits: int) -> Callable[[pa.DataType], bool]:
    return lambda kind: bool(types.is_signed_integer(kind) and kind.bit_width <= bits)


def _zoned(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind) and kind.tz is not None)


_INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_TIMES = frozenset({"datetime", "timestamp", "time"})
_TEXTS = frozenset({"text", "mediumtext", "longtext", "json"})
PLAIN_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum"})
"""Types that keep the text itself, and not what it stands for."""
_WORDS = _TEXTS | {"char", "varchar", "tinytext", "enum", "uuid", "inet4", "inet6"}
"""Types that text goes into: its value is stored unchanged, perhaps in another spelling, or rejected in the vote."""
_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})

_FITS: tuple[tuple[Callable[[pa.DataType], bool], frozenset[str]], ...] = (
    (_integer(32), frozenset({"double"})),
    (types.is_float16, frozenset({"float", "double"})),
    (types.is_float32, frozenset({"float", "double"})),
    (types.is_float64, frozenset({"double"})),
    (types.is_date, frozenset({"date"})),
    (_zoned, frozenset({"datetime", "timestamp"})),
    (types.is_timestamp, frozenset({"datetime"})),
    (types.is_time, frozenset({"time"})),
    (is_bytes, _BYTES),
    (types.is_nested, _TEXTS),
    (is_text, _WORDS),
)
_DECLARED: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (_signed(8), "tinyint"),
    (_signed(16), "smallint"),
    (_signed(32), "int"),
    (_signed(64), "bigint"),
    (types.is_unsigned_integer, "bigint unsigned"),
    (types.is_floating, "double"),  # a float column shows only six digits
    (types.is_boolean, "boolean"),
    (types.is_date, "date"),
    (types.is_timestamp, "datetime(6)"),
    (types.is_time, "time(6)"),
    (types.is_duration, "bigint"),
    (is_bytes, "longblob"),
    (types.is_nested, "json"),
    (is_text, "longtext"),
    (types.is_null, "longtext"),
)
