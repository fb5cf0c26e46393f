"""SQLite: rows and epoch row in one transaction of one file. Needs nothing but Python.

SQLite has one write lock for the whole file. The vote takes it, the commit releases it; if somebody else holds it, the
outcome is "in doubt" and never "gone". Never uses Python's own transaction handling, which would commit by itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from fencepost.connectors.sqlite.dialect import SQLiteDialect
from fencepost.connectors.table.database import Dialect
from fencepost.connectors.table.sink import TableMode, TableSink
from fencepost.contract import Dataset

__all__ = ["SQLite"]


@dataclass(frozen=True)
class SQLite(TableSink):
    """A table in an SQLite file.

        job.write(counts, fp.SQLite("counts.db", table="counts", key="word"))

    With `key`, a row replaces the row with the same key (see `order_by`), so output mode update works.
    Without a key, rows are appended.

    Note: two jobs must not write to the same file, because SQLite has one write lock per file; give each job its own.
    Two sinks of one job in one file are fine: they share the transaction.

    Integers, floats, booleans (0, 1), text and bytes are stored as such; NaN becomes NULL, as always in SQLite.
    Decimals become text (exact), dates and times ISO text (in UTC with `+00:00` if they have a zone), intervals
    microseconds, nested values JSON text. Foreign keys are not enforced while we write, which is SQLite's default.
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
    """By default `sqlite:<table>`."""

    def __post_init__(self) -> None:
        self._check(
            "SQLite",
            f"sqlite:{self.table}",
            (
                os.fspath(self.path) in {"", ":memory:"},
                "path must be a file, because memory does not survive a crash",
                "Name a file",
            ),
            (
                self.table.lower().startswith("sqlite_"),
                "table names that start with sqlite_ are reserved",
                "Choose another name",
            ),
        )

    def dialect(self) -> Dialect:
        """By the file's real path: two names of one file are the same database."""
        return SQLiteDialect(os.path.realpath(self.path))

    def dataset(self) -> Dataset:
        """The table in its file."""
        return Dataset("file", f"{os.path.realpath(self.path)}:{self.table}")
