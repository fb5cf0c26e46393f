"""How rows get into PostgreSQL in bulk: COPY, straight into the table or into one beside it.

append    COPY ─► table
upsert    COPY ─► a table beside it ─► INSERT … SELECT … ON CONFLICT
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from fencepost.sinks.bulk_text import POSTGRES, Text, lines
from fencepost.sinks.postgres.columns import Column, refuse_long, texts_for
from fencepost.sinks.postgres.names import quoted
from fencepost.sinks.staged import PLACE


def copy_statement(table: str, names: Sequence[str]) -> str:
    """COPY, in the text format."""
    return f"COPY {table} ({listed(names)}) FROM STDIN"


def texts(batches: Iterable[pa.RecordBatch], there: list[Column], *, numbered: bool) -> Iterator[Any]:
    """Batches as COPY reads them; with the row's place as a last column, if asked."""
    first = 0
    how: list[Text] = []
    for batch in batches:
        how = how or texts_for(batch.schema, there)
        refuse_long(batch, there)
        if numbered:
            place = pa.array(range(first, first + batch.num_rows), pa.int64())
            first += batch.num_rows
            numbers = POSTGRES.text(pa.field(PLACE, pa.int64()))
            yield lines(batch.append_column(PLACE, place), [*how, numbers])
        else:
            yield lines(batch, how)


def stage_statement(stage: str, table: str, names: Sequence[str]) -> str:
    """A table beside the other, with the same columns and no constraint of it."""
    return f"CREATE TABLE {stage} AS SELECT {listed(names)}, 0::bigint AS {PLACE} FROM {table} WITH NO DATA"


def temporary_statement(stage: str, table: str, names: Sequence[str]) -> str:
    """The same for one transaction after another of this session."""
    columns = f"SELECT {listed(names)}, 0::bigint AS {PLACE} FROM {table}"
    return f"CREATE TEMPORARY TABLE IF NOT EXISTS {stage} ON COMMIT DELETE ROWS AS {columns} WITH NO DATA"


def insert_statement(table: str, names: Sequence[str], rows: str, key: Sequence[str]) -> str:
    """INSERT the rows; with a key, a row replaces the one that is there."""
    statement = f"INSERT INTO {table} ({listed(names)}) {rows}"
    if not key:
        return statement
    rest = [quoted(name) for name in names if name not in key]
    action = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in rest)}" if rest else "NOTHING"
    return f"{statement} ON CONFLICT ({listed(key)}) DO {action}"


def select_all(stage: str, names: Sequence[str]) -> str:
    """All rows of a table beside."""
    return f"SELECT {listed(names)} FROM {stage}"


def select_last(stage: str, names: Sequence[str], key: Sequence[str]) -> str:
    """Of rows with one key only the last one."""
    return f"SELECT DISTINCT ON ({listed(key)}) {listed(names)} FROM {stage} ORDER BY {listed(key)}, {PLACE} DESC"


def listed(names: Sequence[str]) -> str:
    """Columns in a statement."""
    return ", ".join(map(quoted, names))
