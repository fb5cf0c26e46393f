"""DuckDB: rows and epoch row in one transaction."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from fencepost.connectors.table.database import Dialect
from fencepost.connectors.table.sink import TableMode, TableSink
from fencepost.contract import Dataset
from fencepost.errors import require

__all__ = ["DuckDB"]


@dataclass(frozen=True)
class DuckDB(TableSink):
    """A table in a DuckDB file.

        job.write(counts, fp.DuckDB("counts.duckdb", table="counts", key="word"))

    With `key`, a row replaces the row with the same key (see `order_by`), so output mode update works.
    Without a key, rows are appended.

    Note: while one process writes to a DuckDB file, nobody else can open it. So the file is open only from the vote to
    the commit of an epoch; between epochs anybody can read it. A reader that keeps it open locks the job out: the vote
    waits for a while, then the epoch fails and is retried. Do not write to the file through a connection of your own in
    the job's process: DuckDB locks out only other processes, and your commit could make a decided epoch fail.

    Arrow types become DuckDB types, nested ones too: SQL can query lists, structs and maps. Durations become
    `INTERVAL`, times with a zone `TIMESTAMPTZ`.
    """

    path: str | os.PathLike[str]
    _: KW_ONLY
    table: str
    key: str | Sequence[str] | None = None
    order_by: str | Sequence[str] | None = None
    """Of several rows with the same key, the one with the greatest value of this column, or of these, stays, whatever
    the order in which they come. Needed unless the plan aggregates by the key: `fencepost.contract.Keyed`."""
    unique_key: bool = False
    """No two rows have the same key, so no order is needed. Nothing checks this."""
    deletes: str | None = None
    """A boolean column, which is not written: a row in which it is true removes the row with its key. See
    docs/DATABASES.md, "Rows that leave the result"."""
    mode: TableMode | None = None
    """By default "upsert" with a key and "append" without one. An explicit "append" also allows output mode update:
    every change becomes a new row. "replace", for output mode complete: each epoch replaces the whole table."""
    create: bool = True
    """Create the table, and the file, if they do not exist."""
    name: str = ""
    """By default `duckdb:<table>`."""

    def __post_init__(self) -> None:
        self._check(
            "DuckDB",
            f"duckdb:{self.table}",
            (
                os.fspath(self.path).startswith((":memory:", "md:")) or not os.fspath(self.path),
                "path must be a file, because memory does not survive a crash",
                "Name a file",
            ),
        )

    def dialect(self) -> Dialect:
        """By the file's real path: two names of one file are the same database."""
        require("no_duckdb_client", "duckdb", extra="duckdb")
        from fencepost.connectors.duckdb.dialect import DuckDBDialect  # noqa: PLC0415 - duckdb is an extra

        return DuckDBDialect(os.path.realpath(self.path))

    def dataset(self) -> Dataset:
        """The table in its file."""
        return Dataset("file", f"{os.path.realpath(self.path)}:{self.table}")
