"""How rows get into MySQL in bulk: LOAD DATA LOCAL, or INSERT of many rows where the server does not allow it.

append    load ─► table
upsert    load ─► staging table ─► INSERT … SELECT … ON DUPLICATE KEY UPDATE

LOAD DATA LOCAL skips or changes what does not fit, and only warns about it, strict mode or not. Never treats a load
with a warning as a success.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fencepost.connectors.mysql.columns import Column, listed, quoted
from fencepost.connectors.table.bulk import Text, lines
from fencepost.connectors.table.database import PLACE, BadValue
from fencepost.connectors.table.values import as_column_type, is_bytes

_ROOM = 1024
"""Bytes of a packet reserved for anything but rows and the start of the statement."""


def insert_statements(
    table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], texts: Sequence[Text], packet: int
) -> Iterator[bytes]:
    """INSERTs, each with as many rows as fit in a packet; for servers that do not allow LOAD DATA LOCAL."""
    head = f"INSERT INTO {table} ({listed(schema.names)}) VALUES ".encode()
    literals = _literals(schema, texts)
    for batch in batches:
        for values in _packets(bytes(lines(batch, literals)), packet - len(head) - _ROOM):
            yield head + values


def load_statement(table: str, schema: pa.Schema, there: list[Column]) -> str:
    """LOAD DATA in its default format; bytes are sent as hex.

    With a SET clause, MariaDB turns a 0 in an AUTO_INCREMENT column into the next number unless it is SET too.
    """
    counted = {column.name for column in there if column.counts}
    made = {
        item.name: (f"@fencepost_{n}", "UNHEX({})" if is_bytes(as_column_type(item.type)) else "{}")
        for n, item in enumerate(schema)
        if item.name in counted or is_bytes(as_column_type(item.type))
    }
    columns = ", ".join(made[name][0] if name in made else quoted(name) for name in schema.names)
    pairs = ", ".join(f"{quoted(name)} = {how.format(variable)}" for name, (variable, how) in made.items())
    statement = f"LOAD DATA LOCAL INFILE 'rows' INTO TABLE {table} CHARACTER SET utf8mb4 ({columns})"
    return f"{statement} SET {pairs}" if pairs else statement


class Comparison(NamedTuple):
    """A row replaces the one that is there only under a condition on these columns, the first of them first."""

    columns: tuple[str, ...] = ()
    condition: str = ""
    """Empty: always."""


def insert_statement(table: str, names: Sequence[str], stage: str, key: Sequence[str], compared: Comparison) -> str:
    """INSERT the staged rows in order; with a key, a row replaces the existing one."""
    return (
        f"INSERT INTO {table} ({listed(names)}) SELECT {listed(names, stage)} FROM {stage} ORDER BY {stage}.{PLACE}"
        + _replacing(table, stage, names, key, compared)
    )


def insert_nothing(table: str, names: Sequence[str], key: Sequence[str], compared: Comparison) -> str:
    """The same without any row, to check that the server allows it."""
    nothing = ", ".join(["NULL"] * len(names))
    return f"INSERT INTO {table} ({listed(names)}) SELECT {nothing} FROM DUAL WHERE FALSE" + _replacing(
        table, table, names, key, compared
    )


def _replacing(table: str, source: str, names: Sequence[str], key: Sequence[str], compared: Comparison) -> str:
    """If there are only key columns, nothing is replaced: one of them is set to itself.

    MySQL sets one column after the other, and reads those that it has set. So the columns that are compared come last,
    the first of them at the very end: for each, the condition is then as true as it was before.
    """
    late = compared.columns[::-1]
    rest = [name for name in (*(one for one in names if one not in late), *late) if name not in key]
    pairs = []
    for name in rest:
        old, new = f"{table}.{quoted(name)}", f"{source}.{quoted(name)}"
        pairs.append(f"{old} = IF({compared.condition}, {new}, {old})" if compared.condition else f"{old} = {new}")
    itself = [f"{table}.{quoted(name)} = {table}.{quoted(name)}" for name in key[:1]]
    return f" ON DUPLICATE KEY UPDATE {', '.join(pairs or itself)}" if key else ""


def merged_statement(table: str, stage: str, key: Sequence[str], merging: Sequence[str]) -> str:
    """Finds a staged key that is spelled differently in the table: the server considers the two equal.

    A join, because MariaDB answers NOT EXISTS (…) for "A" with the cached result for "a".
    """
    same = " AND ".join(f"{table}.{quoted(name)} = {stage}.{quoted(name)}" for name in key)
    texts = [f"CAST({table}.{quoted(name)} AS BINARY) <> CAST({stage}.{quoted(name)} AS BINARY)" for name in merging]
    return f"SELECT 1 FROM {stage} JOIN {table} ON {same} WHERE {' OR '.join(texts)} LIMIT 1"


def _literals(schema: pa.Schema, texts: Sequence[Text]) -> list[Text]:
    """Rows as `('1',⇥'a'),⏎`: the escapes of LOAD DATA also work in literals; only quotes need more."""
    last = len(texts) - 1
    return [
        partial(
            _literal,
            text,
            ("(" if n == 0 else "") + ("X'" if is_bytes(as_column_type(item.type)) else "'"),
            ")," if n == last else ",",
            "(" if n == 0 else "",
        )
        for n, (item, text) in enumerate(zip(schema, texts, strict=True))
    ]


def _literal(text: Text, before: str, behind: str, opening: str, array: pa.Array) -> pa.Array:
    found = pc.replace_substring(text(array).cast(pa.large_string()), "'", "''")
    parts = (pa.scalar(before, pa.large_string()), found, pa.scalar("'" + behind, pa.large_string()))
    whole = pc.binary_join_element_wise(*parts, pa.scalar("", pa.large_string()))
    return pc.fill_null(whole, pa.scalar(f"{opening}NULL{behind}", pa.large_string()))


def _packets(rows: bytes, size: int) -> Iterator[bytes]:
    """Rows for one statement each; a newline always ends a row, because those inside values are escaped."""
    first = 0
    while first < len(rows):
        end = len(rows) if len(rows) - first <= size else rows.rfind(b"\n", first, first + size) + 1
        if end <= first:
            raise BadValue("a row is larger than its max_allowed_packet")
        yield rows[first:end].rstrip(b",\n")
        first = end
