"""Delta tables for tests of the adapter: without a session, without Spark."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from delta_log import commit

from fencepost.connectors.delta.table import DeltaLakeTable
from fencepost.connectors.lake.session import TableRows
from fencepost.connectors.table.mark import Mark

LINEAGE = "aaaaaaaa-0000-4000-8000-000000000001"
ANOTHER = "bbbbbbbb-0000-4000-8000-000000000002"
JOB, SINK = "orders", "lake"
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def table_at(path: Path | str, **settings: Any) -> DeltaLakeTable:
    """The adapter, not looked at yet."""
    chosen = {"partition_by": (), "properties": {}, "storage_options": {}, "target_file_bytes": 128 << 20}
    return DeltaLakeTable(str(path), **{**chosen, **settings})


def made(path: Path, schema: pa.Schema = SCHEMA, **settings: Any) -> DeltaLakeTable:
    """The same, with a new table that was looked at."""
    table = table_at(path, **settings)
    assert not table.load()
    assert [] == table.uncreatable(schema)
    table.create(schema)
    assert table.load()
    return table


def rows_of(*rows: dict[str, Any], schema: pa.Schema = SCHEMA) -> TableRows:
    return TableRows(pa.Table.from_pylist(list(rows), schema))


def numbered(*numbers: int) -> TableRows:
    """A row for each number."""
    return rows_of(*({"k": number, "v": f"row {number}"} for number in numbers))


def marked(table: DeltaLakeTable, epoch: int, generation: int = 0, lineage: str = LINEAGE) -> Mark:
    """The mark that an epoch writes."""
    return Mark(lineage, generation, epoch, table.shown(f"handle-{epoch}"), 1)


def append(table: DeltaLakeTable, epoch: int, rows: TableRows, stem: str = "") -> Mark:
    """Write an epoch as a session would, after a look; without the question."""
    files = table.write("fp-aaaaaaaa-1", stem or f"aaaaaaaa-1-{epoch}-{uuid.uuid4().hex[:12]}", rows)
    mark = marked(table, epoch)
    table.append(files, JOB, SINK, mark)
    return mark


def by_hand(
    path: Path,
    *,
    protocol: dict[str, Any] | None = None,
    fields: list[dict[str, Any]] | None = None,
    properties: dict[str, str] | None = None,
    partition_by: tuple[str, ...] = (),
    vector: dict[str, Any] | None = None,
) -> None:
    """A table with three rows, as an engine makes it that knows more than the library does."""
    path.mkdir()
    pq.write_table(pa.table({"k": [1, 2, 3], "v": ["row 1", "row 2", "row 3"]}), path / "first.parquet")
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields or [column("k"), column("v", "string")]}),
        "partitionColumns": list(partition_by),
        "configuration": properties or {},
        "createdTime": 0,
    }
    add: dict[str, Any] = {
        "path": "first.parquet",
        "partitionValues": {},
        "size": (path / "first.parquet").stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
        "stats": '{"numRecords": 3}',
    }
    add |= {"deletionVector": vector} if vector else {}
    first = protocol or {"minReaderVersion": 1, "minWriterVersion": 2}
    created = {"timestamp": 0, "operation": "CREATE TABLE", "operationParameters": {}}
    commit(path, {"commitInfo": created}, {"protocol": first}, {"metaData": metadata}, {"add": add})


def column(name: str, kind: Any = "long", *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    """As the log has it."""
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def features(*names: str, readers: bool = False) -> dict[str, Any]:
    """A protocol with these table features, all of them for writers only or all of them for readers too."""
    found: dict[str, Any] = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7}
    return found | {"writerFeatures": list(names)} | ({"readerFeatures": list(names)} if readers else {})
