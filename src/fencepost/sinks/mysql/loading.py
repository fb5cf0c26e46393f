"""How rows get into MySQL in bulk: LOAD DATA LOCAL, or INSERT of many rows where the server does not allow it.

append    load ─► table
upsert    load ─► a table beside it ─► INSERT … SELECT … ON DUPLICATE KEY UPDATE

LOAD DATA LOCAL skips or bends what does not fit, and says so in warnings only, strict mode or not. Never takes a load
with a warning for one that went well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from fencepost.sinks.bulk_text import MYSQL, Text, lines
from fencepost.sinks.database import RowsRefused
from fencepost.sinks.mysql.columns import Column, refuse_nulls, texts_for
from fencepost.sinks.mysql.names import listed, quoted
from fencepost.sinks.mysql.server import Server
from fencepost.sinks.staged import PLACE
from fencepost.sinks.values import as_column_type, is_bytes

_ROOM = 1024
"""Bytes of a packet that are not rows, beside the statement's head."""


def load(
    server: Server,
    table: str,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    there: list[Column],
    *,
    numbered: bool,
) -> None:
    """Write batches into a table; with the row's place as a last column, if asked."""
    texts = texts_for(schema, there)
    if numbered:
        place = pa.field(PLACE, pa.int64())
        texts, schema, batches = [*texts, MYSQL.text(place)], schema.append(place), _numbered(batches)
    rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            refuse_nulls(batch, there)
            rows += batch.num_rows
            yield batch

    if server.takes_files:
        found = server.load(
            load_statement(table, schema, there), (lines(batch, texts) for batch in counted()), schema.names
        )
    else:
        head = f"INSERT INTO {table} ({listed(schema.names)}) VALUES ".encode()
        literals = _literals(schema, texts)
        found = sum(
            server.write(head + values, schema.names)
            for batch in counted()
            for values in _packets(bytes(lines(batch, literals)), server.packet - len(head) - _ROOM)
        )
    if found != rows:
        raise RowsRefused(f"only {found} of {rows} rows went in")


def load_statement(table: str, schema: pa.Schema, there: list[Column]) -> str:
    """LOAD DATA, in the format that it has by itself; bytes come as hex.

    Where something is SET, MariaDB takes a 0 that was not SET for the next number of an AUTO_INCREMENT column.
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


def insert_statement(table: str, names: Sequence[str], stage: str, key: Sequence[str]) -> str:
    """INSERT the staged rows in their order; with a key, a row replaces the one that is there."""
    return (
        f"INSERT INTO {table} ({listed(names)}) SELECT {listed(names, stage)} FROM {stage} ORDER BY {stage}.{PLACE}"
        + _replacing(table, stage, names, key)
    )


def insert_nothing(table: str, names: Sequence[str], key: Sequence[str]) -> str:
    """The same without a row: does the server let this user do it?"""
    nothing = ", ".join(["NULL"] * len(names))
    return f"INSERT INTO {table} ({listed(names)}) SELECT {nothing} FROM DUAL WHERE FALSE" + _replacing(
        table, table, names, key
    )


def _replacing(table: str, source: str, names: Sequence[str], key: Sequence[str]) -> str:
    """Where only the key is there, nothing is replaced: a column takes its own value."""
    rest = [name for name in names if name not in key]
    pairs = [f"{table}.{quoted(name)} = {source}.{quoted(name)}" for name in rest]
    itself = [f"{table}.{quoted(name)} = {table}.{quoted(name)}" for name in key[:1]]
    return f" ON DUPLICATE KEY UPDATE {', '.join(pairs or itself)}" if key else ""


def merged_statement(table: str, stage: str, key: Sequence[str], merging: Sequence[str]) -> str:
    """Finds a staged key that is in the table as another one: the server took both for the same.

    A join: MariaDB answers NOT EXISTS (…) for "A" with what it found for "a".
    """
    same = " AND ".join(f"{table}.{quoted(name)} = {stage}.{quoted(name)}" for name in key)
    texts = [f"CAST({table}.{quoted(name)} AS BINARY) <> CAST({stage}.{quoted(name)} AS BINARY)" for name in merging]
    return f"SELECT 1 FROM {stage} JOIN {table} ON {same} WHERE {' OR '.join(texts)} LIMIT 1"


def _numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in batches:
        place = pa.array(range(first, first + batch.num_rows), pa.int64())
        first += batch.num_rows
        yield batch.append_column(PLACE, place)


def _literals(schema: pa.Schema, texts: Sequence[Text]) -> list[Text]:
    """Rows as `('1',⇥'a'),⏎`: what is escaped for LOAD DATA is escaped for a literal, but for the quote."""
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
    """Rows for one statement each; a newline is always an end of a row, as those in values are escaped."""
    first = 0
    while first < len(rows):
        end = len(rows) if len(rows) - first <= size else rows.rfind(b"\n", first, first + size) + 1
        if end <= first:
            raise RowsRefused("a row is larger than its max_allowed_packet")
        yield rows[first:end].rstrip(b",\n")
        first = end
