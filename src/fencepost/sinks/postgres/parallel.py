"""The tasks' side of a PostgreSQL table: COPY in parallel, each attempt into a table of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from fencepost.sinks.contract import Attempt
from fencepost.sinks.database import RowsRefused
from fencepost.sinks.postgres import loading
from fencepost.sinks.postgres.catalogue import columns_of
from fencepost.sinks.postgres.names import read_name
from fencepost.sinks.postgres.server import Server, session_name
from fencepost.sinks.staged import PLACE, TaskWriter


@dataclass(frozen=True)
class PostgresTask(TaskWriter):
    """Pickled with the plan."""

    table: str
    dsn: str = field(repr=False)

    def fill(self, table: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], attempt: Attempt) -> None:
        """One transaction: a table that was not filled to its end was never there."""
        name = read_name(self.table)
        stage = str(name.beside(table))
        server = Server(self.dsn, name.schema or "", session_name(attempt.lineage, f"{attempt.writer}/task"))
        try:
            server.look()
            there = columns_of(server.run, str(name))
            known = {column.name for column in there}
            if missing := [column for column in schema.names if column not in known]:
                what = f"has no column {missing[0]!r} (any more)" if there else "is gone"
                raise RowsRefused(f"table {self.table!r} {what}")
            server.run(loading.stage_statement(stage, str(name), schema.names))
            with server.copy(loading.copy_statement(stage, [*schema.names, PLACE]), schema.names) as copy:
                for text in loading.texts(batches, there, numbered=True):
                    copy.write(text)
            server.end()
        finally:
            server.drop()
