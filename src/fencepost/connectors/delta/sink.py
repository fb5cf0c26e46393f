"""A Delta table: rows and mark in one version of the table."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from importlib import import_module
from typing import Any

from fencepost import credential
from fencepost.connectors.delta.source import DeltaHistory, located
from fencepost.connectors.lake.sink import FILE_BYTES, MERGE_BYTES, LakeSink, SchemaChange, resolved
from fencepost.connectors.lake.source import Newest, Reading, Start
from fencepost.connectors.lake.table import LakeTable
from fencepost.connectors.table.sink import TableMode
from fencepost.contract import Dataset, Source, dataset_at, names_of
from fencepost.errors import BadConfig, require

__all__ = ["Delta"]
WITH_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/@]*:[^/@]*@")
NOT_A_URL = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")
"""As in `dbfs:/table`: taken for a path, it would become a folder below the one that the job was started in."""


@dataclass(frozen=True)
class Delta(LakeSink, Source):
    """A Delta table, by the path of its folder or by its URL.

        job.write(orders, fp.Delta("lake/orders", partition_by="day"))
        job.write(counts, fp.Delta("s3://bucket/counts", key="word", storage_options={"AWS_REGION": "…"}))

    Without a key, rows are added: Parquet files are written before the decision, and one commit of the table names
    them. With `key`, a row replaces the row with the same key (a MERGE), so output mode update works. With
    `mode="replace"`, for output mode complete, each epoch replaces the whole table.

    An epoch is one version of the table, which also holds the mark (`txn` actions): a commit that is repeated after a
    crash changes nothing, and a new checkpoint on the same table is refused rather than written twice. Others may
    write, compact and vacuum at the same time. No jar is needed. See docs/TABLES.md.

    As a source, it reads what is added to the table, each row once; the table has to be append-only. Compaction is not
    read as new rows. A version that removes or changes rows stops the job, and says which one it is.

        orders = job.read(fp.Delta("lake/orders"))
    """

    path: str | os.PathLike[str]
    _: KW_ONLY
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
    """Create the table if it does not exist."""
    partition_by: str | Sequence[str] = ()
    """Columns by which a new table is partitioned; a table that exists keeps its own partitions."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Table properties of a new table, such as `delta.appendOnly`."""
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
    storage_options: Mapping[str, str] = field(default_factory=dict)
    """For a table in an object store: region, endpoint, credentials, as `deltalake` names them. Values may be
    references to secrets: `env:NAME`, `file:/path`."""
    start: Start = "earliest"
    """Reading only, at the first start only: "earliest" (all rows that are in the table then, and what is added later),
    "latest" (what is added later), the first version to read, or a time: what was committed then or later."""
    max_files_per_epoch: int | None = None
    """Reading only: the maximum number of data files in one epoch. Needs Spark 4.2."""
    name: str = ""
    """By default `delta:<folder>`."""

    def __post_init__(self) -> None:
        self._check_types("Delta", path=(str, os.PathLike), storage_options=(Mapping,))
        object.__setattr__(self, "table", os.fspath(self.path))
        credential.hide(self, "storage_options")
        folder = self.table.rstrip("/").rpartition("/")[2]
        if WITH_PASSWORD.match(self.table):
            object.__setattr__(self, "table", "")  # nothing that shows the sink may show it
            raise BadConfig(
                "bad_sink",
                "Delta: the location has a password in it, which would be shown wherever the table is named.",
                next="Give credentials as storage_options, by reference: 'env:NAME' or 'file:/path'.",
            ).at(sink=self.name or "delta")
        self._check(
            "Delta",
            f"delta:{folder}",
            (not self.table, "path is empty", "Give the path or URL of the table's folder"),
            (
                NOT_A_URL.match(self.table),
                f"{self.table!r} is neither a path nor a URL, which has two slashes (s3://bucket/table)",
                "Write the URL in full, or ./ before the name of a local folder",
            ),
        )

    def lake_table(self) -> LakeTable:
        """By the folder's real path: two names of one folder are the same table."""
        require("no_delta_client", "deltalake", extra="delta")
        # Not an import: deltalake is an extra, and workers get what a sink imports.
        made: LakeTable = import_module("fencepost.connectors.delta.table").DeltaLakeTable(
            self.table,
            partition_by=names_of(self.partition_by),
            properties=self.properties,
            storage_options=resolved(self.storage_options, "storage_options"),
            target_file_bytes=self.target_file_bytes,
        )
        return made

    def dataset(self) -> Dataset:
        """The table's folder."""
        return dataset_at(self.table)

    # --- as a source

    def load(self, reader: Any) -> Any:
        """A streaming DataFrame with the columns that the table has now."""
        require("no_delta_client", "deltalake", extra="delta")
        secrets = resolved(self.storage_options, "storage_options")
        return Reading(located(self.path), secrets, self.start, self.max_files_per_epoch).load(DeltaHistory, reader)

    def newest(self, most: int) -> Source:
        """Only what is added from now on. An epoch cannot be limited to some rows."""
        return Newest(replace(self, start="latest", max_files_per_epoch=None), self.name)
