"""The tasks' side of a table in MySQL or MariaDB: each attempt loads into a table of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from fencepost.sinks.contract import Attempt
from fencepost.sinks.database import RowsRefused, Silent
from fencepost.sinks.mysql.catalogue import columns_of
from fencepost.sinks.mysql.columns import stage_table
from fencepost.sinks.mysql.connection import Address
from fencepost.sinks.mysql.loading import load
from fencepost.sinks.mysql.names import quoted
from fencepost.sinks.mysql.server import Server
from fencepost.sinks.staged import TaskWriter


@dataclass(frozen=True)
class MySQLTask(TaskWriter):
    """Pickled with the plan."""

    table: str
    address: Address

    def fill(self, table: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], attempt: Attempt) -> None:
        """The table is seen at once, and empty; its rows come in one transaction."""
        server = Server(self.address)
        try:
            server.look()
            there = columns_of(server.run, self.table)
            known = {column.name for column in there}
            if missing := [column for column in schema.names if column not in known]:
                what = f"has no column {missing[0]!r} (any more)" if there else "is gone"
                raise RowsRefused(f"table {self.table!r} {what}")
            server.change(stage_table(quoted(table), there, schema.names, temporary=False))
            server.look()
            try:
                load(server, quoted(table), schema, batches, there, numbered=True)
                server.end()
            except BaseException:
                with suppress(Silent, RowsRefused):
                    server.undo()
                    server.look()
                    server.drop_tables([table])
                raise
        finally:
            server.drop()
