"""What PostgreSQL's catalogue says about a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencepost.sinks.postgres.columns import Column
from fencepost.sinks.sql import RowsRefused

_COLUMNS = """
SELECT c.relkind, a.attname, coalesce(e.typname, b.typname, t.typname), format_type(a.atttypid, a.atttypmod),
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END, e.oid IS NOT NULL,
       coalesce(e.typtype, b.typtype, t.typtype) = 'e',
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type t ON t.oid = a.atttypid
     LEFT JOIN pg_type b ON t.typtype = 'd' AND b.oid = t.typbasetype
     LEFT JOIN pg_type e ON e.oid = coalesce(b.typelem, t.typelem) AND coalesce(b.typcategory, t.typcategory) = 'A'
WHERE c.oid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
"""A domain counts as the type below it."""
_FIELDS = ("name", "type", "shown", "modifier", "array", "enum", "required", "generated")


def columns_of(run: Callable[[str, tuple[str]], list[Any]], table: str) -> list[Column]:
    """The columns of a table; none if it is not there."""
    found = run(_COLUMNS, (table,))
    if {row[0] for row in found} - {"r", "p"}:
        raise RowsRefused(f"{table} is a view or a foreign table")
    return [Column(**dict(zip(_FIELDS, row[1:], strict=True))) for row in found]
