"""An Iceberg catalog in a file, and the library as another user of the same table: nothing of ours reads for a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from fencepost.connectors.iceberg.table import IcebergLakeTable
from fencepost.connectors.lake.session import TableRows
from fencepost.connectors.table.mark import Mark

JOB, SINK, LINEAGE = "job", "sink", "0123456789abcdef0123456789abcdef"
FOLDER = "fp-01234567-1"
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


def mark_of(epoch: int, *, lineage: str = LINEAGE) -> Mark:
    return Mark(lineage, 0, epoch, f"handle-{epoch}", 1)


def rows_of(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> TableRows:
    return TableRows(pa.Table.from_pylist(rows, schema=schema))


def words(*ids: int, word: str = "a") -> TableRows:
    return rows_of([{"id": number, "word": word} for number in ids])


@dataclass
class Lake:
    """A catalog with a table `db.words`."""

    properties: dict[str, str]
    identifier: str = "db.words"
    opened: list[IcebergLakeTable] = field(default_factory=list)
    catalogs: list[Catalog] = field(default_factory=list)

    def table(
        self, *partition_by: str, properties: dict[str, str] | None = None, target: int = 128 << 20
    ) -> IcebergLakeTable:
        """Not looked at yet, as another process would have it."""
        made = IcebergLakeTable(
            self.identifier,
            catalog=self.properties,
            partition_by=partition_by,
            properties=properties or {},
            target_file_bytes=target,
        )
        self.opened.append(made)
        return made

    def made(self, *partition_by: str, schema: pa.Schema = SCHEMA, **settings: Any) -> IcebergLakeTable:
        """Created and looked at."""
        table = self.table(*partition_by, **settings)
        assert [] == table.uncreatable(schema)
        table.create(schema)
        assert table.load()
        return table

    def looked(self) -> IcebergLakeTable:
        """Of another process."""
        table = self.table()
        assert table.load()
        return table

    @property
    def catalog(self) -> Catalog:
        """The library's own, in the hands of somebody else."""
        if not self.catalogs:
            self.catalogs.append(load_catalog("default", **self.properties))
        return self.catalogs[0]

    @property
    def raw(self) -> Table:
        return self.catalog.load_table(self.identifier)

    def rows(self) -> list[dict[str, Any]]:
        """As the library's own scan reads them."""
        return by_id(self.raw.scan().to_arrow().to_pylist())

    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows()]

    def entries(self) -> list[DataFile]:
        """The data files that the table's log names."""
        return [task.file for task in self.raw.scan().plan_files()]

    def on_disk(self) -> list[dict[str, Any]]:
        """As Arrow reads the files themselves; the library's scan shows NULL as an empty list of structs."""
        files = [entry.file_path.removeprefix("file://") for entry in self.entries()]
        return by_id([row for file in files for row in pq.read_table(file).to_pylist()])

    def append(self, table: IcebergLakeTable, epoch: int, *ids: int) -> None:
        """An epoch, as a session does it."""
        files = table.write(FOLDER, f"handle-{epoch}", words(*ids))
        assert table.load()
        assert [] == table.lost(files)
        table.append(files, JOB, SINK, mark_of(epoch))

    def close(self) -> None:
        for one in (*self.opened, *self.catalogs):
            one.close()


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["id"] is not None, row["id"]))
