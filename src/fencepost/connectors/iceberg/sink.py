"""An Iceberg table: rows and mark in one commit of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from importlib import import_module
from typing import Any

from fencepost import credential
from fencepost.connectors.iceberg.source import IcebergHistory, whole
from fencepost.connectors.lake.sink import FILE_BYTES, MERGE_BYTES, LakeSink, SchemaChange, resolved
from fencepost.connectors.lake.source import Newest, Reading, Start
from fencepost.connectors.lake.table import LakeTable
from fencepost.connectors.table.sink import TableMode
from fencepost.contract import Source, names_of
from fencepost.errors import require

__all__ = ["Iceberg"]


@dataclass(frozen=True)
class Iceberg(LakeSink, Source):
    """An Iceberg table, by its name in a catalog.

        catalog = {"type": "sql", "uri": "env:CATALOG", "warehouse": "file:///lake"}
        job.write(orders, fp.Iceberg("shop.orders", catalog=catalog, partition_by="day(ordered)"))

    Without a key, rows are added: Parquet files are written before the decision, and one commit of the table names
    them. With `key`, a row replaces the row with the same key (copy on write), so output mode update works. With
    `mode="replace"`, for output mode complete, each epoch replaces the whole table.

    An epoch is one commit of the table, which also holds the mark (a table property): a commit that is repeated after a
    crash changes nothing, and a new checkpoint on the same table is refused rather than written twice. Others may
    write, compact and expire snapshots at the same time. No jar is needed. See docs/TABLES.md.

    As a source, it reads what is added to the table's main branch, each row once; the table has to be append-only.
    Compaction is not read as new rows. A snapshot that removes or changes rows stops the job, and says which one it is.

        orders = job.read(fp.Iceberg("shop.orders", catalog=catalog))
    """

    table: str
    _: KW_ONLY
    catalog: str | Mapping[str, str]
    """The name of a catalog in pyiceberg's own configuration, or the properties of one. Values may be references to
    secrets: `env:NAME`, `file:/path`."""
    key: str | Sequence[str] | None = None
    order_by: str | Sequence[str] | None = None
    """If an epoch has several rows with the same key, the one with the greatest value of this column, or of these,
    stays. Needed unless the plan aggregates by the key: `fencepost.contract.Keyed`."""
    unique_key: bool = False
    """No two rows of an epoch have the same key, so no order is needed. An epoch in which two have is refused."""
    deletes: str | None = None
    """A boolean column, which is not written: a row in which it is true removes the row with its key. See
    docs/DATABASES.md, "Rows that leave the result"."""
    mode: TableMode | None = None
    """By default "upsert" with a key and "append" without one. An explicit "append" also allows output mode update:
    every change becomes a new row. "replace", for output mode complete: each epoch replaces the whole table."""
    create: bool = True
    """Create the table, and its namespace, if they do not exist."""
    partition_by: str | Sequence[str] = ()
    """Partitions of a new table: columns, or `year(c)`, `month(c)`, `day(c)`, `hour(c)`, `bucket(16, c)`,
    `truncate(4, c)`. A table that exists keeps its own."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Table properties of a new table, such as `write.parquet.compression-codec`."""
    schema: SchemaChange = "strict"
    """What happens to columns that the table does not have: "strict" refuses them, "add_columns" adds them, in the same
    commit as the first rows that have them."""
    keep_rows: bool = True
    """Keep an epoch's rows in the checkpoint until they are committed, so that data files that somebody deletes before
    their commit can be written again."""
    target_file_bytes: int = FILE_BYTES
    """About how large a data file becomes."""
    merge_bytes: int = MERGE_BYTES
    """With a key: how large the rows of an epoch may be, in bytes of Arrow. A larger epoch is refused before its
    decision, because the driver would need several times as much memory to merge it: docs/TABLES.md, "Keys"."""
    start: Start = "earliest"
    """Reading only, at the first start only: "earliest" (all rows that are in the table then, and what is added later),
    "latest" (what is added later), the id of the first snapshot to read, or a time: what was committed then or later.
    """
    max_files_per_epoch: int | None = None
    """Reading only: the maximum number of data files in one epoch. Needs Spark 4.2."""
    name: str = ""
    """By default `iceberg:<table>`."""

    def __post_init__(self) -> None:
        self._check_types("Iceberg", table=(str,), catalog=(str, Mapping))
        if not isinstance(self.catalog, str):
            credential.hide(self, "catalog")
        self._check(
            "Iceberg",
            f"iceberg:{self.table}",
            ("." not in self.table, f"table must be namespace.table, not {self.table!r}", "Name both"),
            (
                not self.catalog,
                "catalog is empty",
                "Name one, or give its properties",
            ),
        )

    def lake_table(self) -> LakeTable:
        """Not connected to the catalog yet."""
        require("no_iceberg_client", "pyiceberg", "sqlalchemy", extra="iceberg")
        catalog = self.catalog if isinstance(self.catalog, str) else resolved(self.catalog, "catalog")
        # Not an import: pyiceberg is an extra, and workers get what a sink imports.
        made: LakeTable = import_module("fencepost.connectors.iceberg.table").IcebergLakeTable(
            self.table,
            catalog=catalog,
            partition_by=names_of(self.partition_by),
            properties=self.properties,
            target_file_bytes=self.target_file_bytes,
        )
        return made

    # --- as a source

    def load(self, reader: Any) -> Any:
        """A streaming DataFrame with the columns that the table has now."""
        require("no_iceberg_client", "pyiceberg", "sqlalchemy", extra="iceberg")
        secrets = whole(self.catalog if isinstance(self.catalog, str) else resolved(self.catalog, "catalog"))
        return Reading(self.table, secrets, self.start, self.max_files_per_epoch).load(IcebergHistory, reader)

    def newest(self, most: int) -> Source:
        """Only what is added from now on. An epoch cannot be limited to some rows."""
        return Newest(replace(self, start="latest", max_files_per_epoch=None), self.name)
