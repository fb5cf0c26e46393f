"""Tables of both formats as streams, without Spark: what Spark does is done here, through the same bytes.

Process    one process beside a driver: asks for offsets and partitions, and reads what tasks would
Fed        a table that somebody else fills, compacts and spoils
"""

from __future__ import annotations

import itertools
import json
import shutil
import uuid
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate
from pyspark.serializers import CPickleSerializer
from pyspark.sql.types import StructType

import fencepost as fp
from fencepost.connectors.delta.source import DeltaHistory, located
from fencepost.connectors.iceberg.source import IcebergHistory, whole
from fencepost.connectors.lake.source import History, Opening, Reading
from fencepost.contract import Source
from fencepost.spark import table_source

pickle = CPickleSerializer()
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def numbered(*numbers: int, **columns: Any) -> pa.Table:
    """A row for each number, and columns that are the same in all."""
    table = pa.table({"k": pa.array(numbers, pa.int64()), "v": [f"row {number}" for number in numbers]})
    for name, value in columns.items():
        table = table.append_column(name, pa.array([value] * len(numbers)))
    return table


class Fed(ABC):
    """A table. `add` and the others are what its other users do; none of it is ours."""

    history: type[History]
    secrets: dict[str, str]

    @property
    @abstractmethod
    def source(self) -> Source:
        """As a user names it."""

    @property
    @abstractmethod
    def location(self) -> str: ...

    @abstractmethod
    def add(self, *numbers: int, **columns: Any) -> int:
        """A version with these rows."""

    @abstractmethod
    def compact(self) -> int:
        """A version without new rows."""

    @abstractmethod
    def remove(self, number: int) -> int:
        """A version that lost a row."""

    @abstractmethod
    def make_again(self) -> None:
        """Another table of the same name."""

    @abstractmethod
    def drop(self) -> None: ...

    @abstractmethod
    def set_back(self, version: int) -> None:
        """As if nothing had happened after this version."""

    @abstractmethod
    def forget_history(self) -> None:
        """Only the newest version is known."""

    @abstractmethod
    def data_files(self) -> list[Path]:
        """All that lie in the table's folder."""

    @abstractmethod
    def time_of(self, version: int) -> datetime: ...

    def columns(self) -> dict[str, Any]:
        """As a start finds them."""
        return self.history(self.location, self.secrets).columns()[1]

    def process(self, start: Any = "earliest", most: int | None = None, **settings: Any) -> Process:
        """A new process: it knows only what a driver tells it."""
        return Process(self, start, most, **settings)


@dataclass
class Process:
    """One process beside a driver, and its tasks."""

    fed: Fed
    start: Any = "earliest"
    most: int | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    is_old: bool = False
    """Is it one of Spark 4.0 or 4.1?"""
    parallelism: int = 2

    def __post_init__(self) -> None:
        self.columns = self.columns or self.fed.columns()
        told = Reading(self.fed.location, self.fed.secrets, self.start, self.most)
        make = pickle.loads(pickle.dumps(Opening(self.fed.history, told, self.columns, self.parallelism)))
        schema = StructType.fromJson(table_source.without_metadata(self.columns))
        self.schema = table_source.arrow_schema(schema)
        reader = table_source.OldReader(make, schema) if self.is_old else table_source.Reader(make, schema, self.most)
        self.reader: Any = reader

    def first(self) -> dict[str, Any]:
        return sent(self.reader.initialOffset())

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """As Spark asks before an epoch."""
        if self.is_old:
            return sent(self.reader.latestOffset())
        return sent(self.reader.latestOffset(start, self.reader.getDefaultReadLimit()))

    def rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        """As the tasks of an epoch read them."""
        parts = [pickle.loads(pickle.dumps(one)) for one in self.reader.partitions(start, end)]
        batches = list(itertools.chain.from_iterable(self.reader.read(one) for one in parts))
        for batch in batches:
            assert self.schema.equals(batch.schema), (self.schema, batch.schema)  # or Spark 4.2 refuses it
        return [row for batch in batches for row in batch.to_pylist()]

    def numbers(self, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        return sorted(row["k"] for row in self.rows(start, end))

    def drain(self, start: dict[str, Any] | None = None) -> tuple[list[list[int]], dict[str, Any]]:
        """Epochs until there is nothing new: the numbers of each, and the last offset."""
        epochs = []
        offset = self.first() if start is None else start
        while (end := self.latest(offset)) != offset:
            epochs.append(self.numbers(offset, end))
            offset = end
        return epochs, offset


def sent(offset: dict[str, Any]) -> dict[str, Any]:
    """Through Spark and its log."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


@dataclass
class FedDelta(Fed):
    """By the library."""

    folder: Path
    options: dict[str, Any] = field(default_factory=dict)
    """Of the first write."""

    history = DeltaHistory

    @property
    def secrets(self) -> dict[str, str]:  # type: ignore[override]
        return {}

    @property
    def source(self) -> fp.Delta:
        return fp.Delta(self.folder)

    @property
    def location(self) -> str:
        return located(self.folder)

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.folder)

    def write(self, rows: pa.Table, **options: Any) -> int:
        write_deltalake(self.folder, rows, **{"mode": "append", **self.options, **options})
        return self.table.version()

    def add(self, *numbers: int, **columns: Any) -> int:
        return self.write(numbered(*numbers, **columns), **({"schema_mode": "merge"} if columns else {}))

    def compact(self) -> int:
        self.table.optimize.compact()
        return self.table.version()

    def remove(self, number: int) -> int:
        table = self.table
        table.delete(f"k = {number}")
        return table.version()

    def drop(self) -> None:
        shutil.rmtree(self.folder)

    def make_again(self) -> None:
        self.drop()
        for number in range(20):
            self.add(1000 + number)

    def log(self, version: int) -> Path:
        return self.folder / "_delta_log" / f"{version:020}.json"

    def set_back(self, version: int) -> None:
        """From a copy of the folder."""
        for path in sorted((self.folder / "_delta_log").iterdir()):
            if path.name[:20].isdigit() and int(path.name[:20]) > version:
                path.unlink()

    def forget_history(self) -> None:
        table = self.table
        table.create_checkpoint()
        for version in range(table.version()):
            with suppress(FileNotFoundError):
                self.log(version).unlink()

    def data_files(self) -> list[Path]:
        return sorted(self.folder.rglob("*.parquet"))

    def time_of(self, version: int) -> datetime:
        info = next(one for one in self.table.history() if one["version"] == version)
        return datetime.fromtimestamp(info["timestamp"] / 1000, UTC)

    def commit(self, *actions: dict[str, Any]) -> int:
        """A version as another engine might write it."""
        version = self.table.version() + 1
        self.log(version).write_text("".join(json.dumps(one) + "\n" for one in actions))
        return version


@dataclass
class FedIceberg(Fed):
    """By the library, with a catalog in a file."""

    folder: Path
    schema: pa.Schema = SCHEMA
    identifier: str = "shop.words"
    catalogs: list[Catalog] = field(default_factory=list)

    history = IcebergHistory

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.catalog.create_namespace_if_not_exists("shop")
        self.catalog.create_table_if_not_exists(self.identifier, schema=self.schema)

    @property
    def properties(self) -> dict[str, str]:
        place = self.folder
        return {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}/lake"}

    @property
    def secrets(self) -> dict[str, str]:  # type: ignore[override]
        return whole(self.properties)

    @property
    def source(self) -> fp.Iceberg:
        return fp.Iceberg(self.identifier, catalog=self.properties)

    @property
    def location(self) -> str:
        return self.identifier

    @property
    def catalog(self) -> Catalog:
        if not self.catalogs:
            self.catalogs.append(load_catalog("default", **self.properties))
        return self.catalogs[0]

    @property
    def table(self) -> Any:
        return self.catalog.load_table(self.identifier)

    @property
    def version(self) -> int:
        return int(self.table.metadata.current_snapshot_id or -1)

    def add(self, *numbers: int, **columns: Any) -> int:
        rows, table = numbered(*numbers, **columns), self.table
        if columns:
            with table.update_schema() as change:
                change.union_by_name(rows.schema)
        self.table.append(rows)
        return self.version

    def compact(self) -> int:
        """As Spark's rewrite_data_files does it; the library has no such thing."""
        table = self.table
        change = table.transaction()
        with change.update_snapshot().overwrite() as producer:
            for task in table.scan().plan_files():
                producer.delete_data_file(task.file)
            for file in _dataframe_to_data_files(table.metadata, table.scan().to_arrow(), table.io):
                producer.append_data_file(file)
        (added,) = [one for one in change._updates if isinstance(one, AddSnapshotUpdate)]
        object.__setattr__(added.snapshot.summary, "operation", Operation.REPLACE)
        self.catalog.commit_table(table, change._requirements, change._updates)
        return self.version

    def remove(self, number: int) -> int:
        self.table.delete(f"k == {number}")
        return self.version

    def drop(self) -> None:
        self.catalog.drop_table(self.identifier)

    def make_again(self) -> None:
        self.drop()
        self.catalog.create_table(
            self.identifier, schema=self.schema, location=f"file://{self.folder}/lake/{uuid.uuid4().hex}"
        )
        for number in range(3):
            self.add(1000 + number)

    def set_back(self, version: int) -> None:
        with self.table.manage_snapshots() as change:
            change.rollback_to_snapshot(version)

    def forget_history(self) -> None:
        self.table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()

    def data_files(self) -> list[Path]:
        return sorted(self.folder.rglob("*.parquet"))

    def time_of(self, version: int) -> datetime:
        return datetime.fromtimestamp(self.table.snapshot_by_id(version).timestamp_ms / 1000, UTC)

    def close(self) -> None:
        for one in self.catalogs:
            one.close()
