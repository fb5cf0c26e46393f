"""What PostgreSQL's catalogue says about a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fencepost.sinks.database import RowsRefused
from fencepost.sinks.postgres.columns import Column

_COLUMNS = """
SELECT c.relkind, EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_type = '3'),
       a.attname, coalesce(e.typname, b.typname, t.typname), format_type(a.atttypid, a.atttypmod),
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END, e.oid IS NOT NULL,
       coalesce(e.typtype, b.typtype, t.typtype) = 'e',
       (a.attnotnull OR t.typnotnull) AND NOT a.atthasdef AND t.typdefault IS NULL AND a.attidentity = '',
       a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type t ON t.oid = a.atttypid
     LEFT JOIN pg_type b ON t.typtype = 'd' AND b.oid = t.typbasetype
     LEFT JOIN pg_type e ON e.oid = coalesce(b.typelem, t.typelem) AND coalesce(b.typcategory, t.typcategory) = 'A'
WHERE c.oid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
"""A domain counts as the type below it."""
_UNIQUE = """
SELECT EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL AND %s::text[] = ARRAY(
        SELECT a.attname::text COLLATE "C" FROM pg_attribute a
        WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]) ORDER BY 1
    )
)
"""
_FIELDS = ("name", "type", "shown", "modifier", "array", "enum", "required", "generated")


def columns_of(run: Callable[[str, tuple[Any, ...]], list[Any]], table: str) -> list[Column]:
    """The columns of a table; none if it is not there."""
    found = run(_COLUMNS, (table,))
    if {row[0] for row in found} - {"r", "p"}:
        raise RowsRefused(f"{table} is a view or a foreign table")
    if any(row[1] for row in found):
        raise RowsRefused(f"{table} has a rule ON INSERT, which COPY does not follow: use a trigger")
    return [Column(**dict(zip(_FIELDS, row[2:], strict=True))) for row in found]


def has_unique(run: Callable[[str, tuple[Any, ...]], list[Any]], table: str, key: Sequence[str]) -> bool:
    """Is there an index that ON CONFLICT can use for this key? EXPLAIN does not mind deferrable ones."""
    return run(_UNIQUE, (table, sorted(key))) == [(True,)]
