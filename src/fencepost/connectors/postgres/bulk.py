"""How rows get into PostgreSQL in bulk: COPY, straight into the table or into a staging table.

append    COPY ─► table
upsert    COPY ─► staging table ─► INSERT … SELECT … ON CONFLICT
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from fencepost.connectors.postgres.columns import Column, documents, quoted, refuse_long, texts_for
from fencepost.connectors.table import database
from fencepost.connectors.table.bulk import Text, lines
from fencepost.connectors.table.database import PLACE


def copy_statement(table: str, names: Sequence[str]) -> str:
    return f"COPY {table} ({listed(names)}) FROM STDIN"


def texts(batches: Iterable[pa.RecordBatch], there: list[Column], *, numbered: bool) -> Iterator[Any]:
    """Batches as COPY reads them; `numbered` adds the row's number as a last column."""
    how: list[Text] = []
    for batch in database.numbered(batches) if numbered else batches:
        how = how or texts_for(batch.schema, there)
        refuse_long(batch, there)
        database.refuse_other_json(batch, documents(batch.schema, there))
        yield lines(batch, how)


def stage_statement(stage: str, table: str, names: Sequence[str]) -> str:
    """A staging table: the same columns, none of the constraints."""
    return f"CREATE TABLE {stage} AS SELECT {listed(names)}, 0::bigint AS {PLACE} FROM {table} WITH NO DATA"


def temporary_statement(stage: str, table: str, names: Sequence[str]) -> str:
    """The same, temporary, and emptied at the end of each transaction of this session."""
    columns = f"SELECT {listed(names)}, 0::bigint AS {PLACE} FROM {table}"
    return f"CREATE TEMPORARY TABLE IF NOT EXISTS {stage} ON COMMIT DELETE ROWS AS {columns} WITH NO DATA"


def select_all(stage: str, names: Sequence[str]) -> str:
    return f"SELECT {listed(names)} FROM {stage}"


def select_last(stage: str, names: Sequence[str], key: Sequence[str]) -> str:
    """Of several rows with the same key, only the last one."""
    return f"SELECT DISTINCT ON ({listed(key)}) {listed(names)} FROM {stage} ORDER BY {listed(key)}, {PLACE} DESC"


def listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))
