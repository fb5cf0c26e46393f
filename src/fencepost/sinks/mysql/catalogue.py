"""What the catalogue of MySQL or MariaDB says about a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fencepost.sinks.database import RowsRefused
from fencepost.sinks.mysql.columns import Column

Run = Callable[[str, Sequence[Any] | None], list[Any]]

_THERE = "WHERE table_schema = DATABASE() AND table_name = %s"
_TABLE = f"SELECT table_name, table_type, engine FROM information_schema.tables {_THERE}"
_COLUMNS = (
    "SELECT table_name, column_name, data_type, column_type, character_maximum_length, numeric_precision,"
    " numeric_scale, datetime_precision, character_set_name, collation_name, is_nullable, column_default, extra"
    f" FROM information_schema.columns {_THERE} ORDER BY ordinal_position"
)
_UNIQUE = (
    "SELECT table_name, index_name, column_name, sub_part FROM information_schema.statistics"
    f" {_THERE} AND non_unique = 0 ORDER BY index_name, seq_in_index"
)


class Unique(NamedTuple):
    """A primary key or a unique index."""

    name: str
    columns: tuple[str | None, ...]
    """None for what is no whole column: a prefix, an expression."""


def engine_of(run: Run, table: str) -> str | None:
    """Which engine keeps it; None if there is no such table. Only InnoDB can undo what it was given."""
    for kind, engine in _found(run, _TABLE, table):
        if kind not in {"BASE TABLE", "SYSTEM VERSIONED"}:
            raise RowsRefused(f"{table!r} is a {str(kind).lower()}")
        return str(engine)
    return None


def columns_of(run: Run, table: str) -> list[Column]:
    """The columns of a table; none if it is not there."""
    engine = engine_of(run, table)
    if engine is None:
        return []
    if engine != "InnoDB":
        raise RowsRefused(
            f"table {table!r} is kept by {engine}, which has no transactions: ALTER TABLE … ENGINE=InnoDB"
        )
    return [_column(*row) for row in _found(run, _COLUMNS, table)]


def uniques_of(run: Run, table: str) -> list[Unique]:
    """All primary keys and unique indexes."""
    found: dict[str, list[str | None]] = {}
    for index, column, prefix in _found(run, _UNIQUE, table):
        found.setdefault(index, []).append(None if prefix else column)
    return [Unique(name, tuple(columns)) for name, columns in found.items()]


def _found(run: Run, query: str, table: str) -> list[tuple[Any, ...]]:
    """The rows of this table, not of one whose name differs in case, where both can be."""
    found = run(query, (table,))
    exact = [row for row in found if row[0] == table]
    return [row[1:] for row in exact or found]


def _column(  # noqa: PLR0917 - a row of the catalogue
    name: str,
    kind: str,
    shown: str,
    length: int | None,
    precision: int | None,
    scale: int | None,
    fraction: int | None,
    charset: str | None,
    collation: str | None,
    nullable: str,
    default: str | None,
    extra: str,
) -> Column:
    extra = extra.lower()
    counts = "auto_increment" in extra
    return Column(
        name=name,
        type=kind.lower(),
        shown=shown,
        length=length,
        precision=precision,
        scale=scale,
        fraction=fraction,
        charset=charset,
        collation=collation,
        nullable=nullable == "YES",
        required=nullable == "NO" and default is None and not counts,
        counts=counts,
        generated=" generated" in extra,
    )
