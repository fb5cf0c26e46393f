"""A key as typed on a command line, against the columns by which a state is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fencepost.errors import BadConfig, Where
from fencepost.spark.branches import quoted


def matches(spark: Any, key: Any, typed: Sequence[str], where: Where) -> str:
    """A condition on the column `key`, a struct of this type; every text is read as its column's type.

    `user=anna`, `window.end=2026-01-01T00:01`, or in the order of the columns: `anna 2026-01-01`. Columns that are not
    named may be anything. A window may be given by its start.
    """
    columns = dict(_columns(key, ()))
    conditions = []
    for place, text in enumerate(typed):
        path, value = _column(columns, key, place, text, where)
        kind = columns[path]
        parsed = f"try_cast({_literal(value)} AS {kind.simpleString()})"
        # Read once, by itself: a text that is no such value would match nothing, and nobody would know why.
        if spark.range(1).selectExpr(f"{parsed} IS NULL AS bad").first().bad:
            raise BadConfig(
                "bad_key",
                f"A text given for the key column {'.'.join(path)!r} is no {kind.simpleString()}.",
                where=where,
                next=_said(columns),
            )
        conditions.append(f"{'.'.join(map(quoted, ('key', *path)))} <=> {parsed}")
    return " AND ".join(conditions)


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _columns(key: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for field in key.fields:
        path = (*above, field.name)
        if hasattr(field.dataType, "fields"):
            yield from _columns(field.dataType, path)
        else:
            yield path, field.dataType


def _column(
    columns: dict[tuple[str, ...], Any], key: Any, place: int, text: str, where: Where
) -> tuple[tuple[str, ...], str]:
    """Which column a text is for, and the rest of the text."""
    name, equals, value = text.partition("=")
    named = [path for path in columns if equals and (".".join(path) == name or path[0] == name)]
    if named:
        return named[0], value
    if place < len(key.fields):
        first = key.fields[place].name
        return next(path for path in columns if path[0] == first), text
    raise BadConfig(
        "bad_key", f"The key has {len(key.fields)} columns, and more were given.", where=where, next=_said(columns)
    )


def _said(columns: dict[tuple[str, ...], Any]) -> str:
    listed = ", ".join(f"{'.'.join(path)} ({kind.simpleString()})" for path, kind in columns.items())
    return f"The key's columns: {listed}. Write COLUMN=VALUE, or the values in this order."
