"""Names of tables and columns in PostgreSQL. Never lets a name become a statement: all of them are quoted."""

from __future__ import annotations

import re
from typing import NamedTuple

LONGEST = 63
"""Bytes; PostgreSQL cuts longer names without a word, and two of them may become one."""

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


class BadName(ValueError):
    """A name that cannot be read, with the cure."""


class TableName(NamedTuple):
    """A table, and its schema if one was named."""

    schema: str | None
    table: str

    def __str__(self) -> str:
        """As it stands in a statement."""
        return ".".join(quoted(part) for part in self if part is not None)

    def beside(self, table: str) -> TableName:
        """Another table in the same schema."""
        return TableName(self.schema, table)


def quoted(name: str) -> str:
    """An identifier, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def read_name(text: str) -> TableName:
    """`orders`, `sales.orders`, `"Sales"."odd.name"`. Case is kept as written, with quotes or without."""
    parts: list[str] = []
    at = 0
    while at <= len(text):
        found = _PART.match(text, at)
        if found is None:
            raise BadName('write names with dots or quotes in double quotes, each " in them twice')
        parts.append(found[1].replace('""', '"') if found[1] else found[2])
        at = found.end() + 1
        if found.end() < len(text) and text[found.end()] != ".":
            raise BadName('write names with dots or quotes in double quotes, each " in them twice')
    if len(parts) > 2:
        raise BadName("name a table, or a schema and a table; the database is in the dsn")
    if any(len(part.encode()) > LONGEST or "\0" in part for part in parts):
        raise BadName(f"PostgreSQL's names have at most {LONGEST} bytes")
    return TableName(parts[0] if len(parts) == 2 else None, parts[-1])
