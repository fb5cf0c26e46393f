"""Iceberg tables as streams: what is particular to Iceberg. The rest is in tests/connectors/lake/test_source.py."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from table_streams import FedIceberg, Process, numbered

from fencepost.connectors.iceberg.source import IcebergHistory, storage_of
from fencepost.errors import BadConfig, EpochFailed, FencepostError, OperatorNeeded

KEY = uuid.UUID("12345678-1234-5678-1234-567812345678")
IN_LIST = StructType(NestedField(21, "a", LongType()), NestedField(22, "b", DateType()))
NUMBERS = ListType(25, IntegerType(), element_required=False)
ALL_TYPES = Schema(
    NestedField(1, "yes", BooleanType()),
    NestedField(2, "int", IntegerType()),
    NestedField(3, "long", LongType()),
    NestedField(4, "float", FloatType()),
    NestedField(5, "double", DoubleType()),
    NestedField(6, "price", DecimalType(20, 4)),
    NestedField(7, "day", DateType()),
    NestedField(8, "local", TimestampType()),
    NestedField(9, "time", TimestamptzType()),
    NestedField(10, "text", StringType()),
    NestedField(11, "key", UUIDType()),
    NestedField(12, "code", FixedType(3)),
    NestedField(13, "bytes", BinaryType()),
    NestedField(14, "list", ListType(20, IN_LIST, element_required=False)),
    NestedField(15, "map", MapType(23, StringType(), 24, NUMBERS, value_required=False)),
    NestedField(16, "struct", StructType(NestedField(26, "in", StructType(NestedField(27, "n", DecimalType(5, 1)))))),
)
FULL: dict[str, Any] = {
    "yes": True,
    "int": -(2**31),
    "long": 2**63 - 1,
    "float": 0.5,
    "double": -1e300,
    "price": Decimal("-9999999999999999.9999"),
    "day": date(1, 1, 1),
    "local": datetime(1500, 6, 1, 12, tzinfo=UTC).replace(tzinfo=None),
    "time": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    "text": "ünï\0cödé",
    "key": KEY.bytes,
    "code": b"abc",
    "bytes": b"\x00\xff",
    "list": [{"a": 1, "b": date(2026, 1, 31)}, None, {"a": None, "b": None}],
    "map": [("k", [1, None]), ("none", None)],
    "struct": {"in": {"n": Decimal("1.5")}},
}
EMPTY = dict.fromkeys(FULL)
WITH_DAY = Schema(NestedField(1, "k", LongType()), NestedField(2, "v", StringType()), NestedField(3, "day", DateType()))
READ = FULL | {"key": str(KEY)}
"""As Iceberg's own connector for Spark reads them."""


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[FedIceberg]:
    """An empty table."""
    made = FedIceberg(tmp_path / "iceberg")
    yield made
    made.close()


def made_with(fed: FedIceberg, schema: Schema, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC) -> None:
    """The same table with other columns."""
    fed.drop()
    fed.catalog.create_table(fed.identifier, schema=schema, partition_spec=spec)


def rows_of(process: Process) -> list[dict[str, Any]]:
    return process.rows(process.first(), process.latest(process.first()))


def put(fed: FedIceberg, rows: pa.Table, partition: Record | None = None) -> None:
    """A snapshot with a file as it is: the library writes a NULL in place of a list of structs as an empty list."""
    path = fed.folder / f"{uuid.uuid4().hex}.parquet"
    pq.write_table(rows, path)
    append(fed, data_file(path, DataFileContent.DATA, partition or Record()))


def append(fed: FedIceberg, file: DataFile) -> None:
    file.spec_id = fed.table.spec().spec_id
    with fed.table.transaction() as change, change.update_snapshot().fast_append() as producer:
        producer.append_data_file(file)


def data_file(path: Path, content: DataFileContent, partition: Record, **more: Any) -> DataFile:
    return DataFile.from_args(
        content=content,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=1,
        file_size_in_bytes=path.stat().st_size,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={},
        upper_bounds={},
        **more,
    )


def by_key(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["k"])


def test_every_type_is_read_as_iceberg_s_own_connector_does(fed: FedIceberg) -> None:
    made_with(fed, ALL_TYPES)
    put(fed, pa.Table.from_pylist([FULL, EMPTY, FULL], fed.table.schema().as_arrow()))
    assert [READ, EMPTY, READ] == rows_of(fed.process())


@pytest.mark.parametrize(
    ("name", "transform"),
    [
        ("v", IdentityTransform()),
        ("day", IdentityTransform()),
        ("day", DayTransform()),
        ("v", BucketTransform(4)),
    ],
)
def test_partitioned_tables_are_read(fed: FedIceberg, name: str, transform: Any) -> None:
    schema = Schema(
        NestedField(1, "k", LongType()), NestedField(2, "v", StringType()), NestedField(3, "day", DateType())
    )
    source = schema.find_field(name).field_id
    made_with(fed, schema, PartitionSpec(PartitionField(source, 1000, transform, "part")))
    rows = [{"k": 1, "v": "a b/%é", "day": date(2026, 1, 31)}, {"k": 2, "v": None, "day": None}]
    fed.table.append(pa.Table.from_pylist(rows, fed.table.schema().as_arrow()))
    assert rows == by_key(rows_of(fed.process()))


def test_an_imported_file_without_its_partition_column_gets_it_from_the_manifest(
    fed: FedIceberg, tmp_path: Path
) -> None:
    schema = Schema(
        NestedField(1, "k", LongType()), NestedField(2, "v", StringType()), NestedField(3, "day", DateType())
    )
    made_with(fed, schema, PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "day")))
    put(fed, numbered(1), Record(20484))  # a file with neither ids nor a day
    assert [{"k": 1, "v": "row 1", "day": date(2026, 1, 31)}] == rows_of(fed.process())


def test_imported_files_have_no_ids_and_are_read_by_the_table_s_name_mapping(fed: FedIceberg, tmp_path: Path) -> None:
    path = tmp_path / "imported.parquet"
    pq.write_table(numbered(1), path)
    fed.table.add_files([f"file://{path}"])  # the library notes the names that columns have now
    with fed.table.update_schema() as change:
        change.rename_column("v", "word")
    assert [{"k": 1, "word": "row 1"}] == rows_of(fed.process())


def test_a_column_is_found_by_its_id_after_it_was_renamed_moved_or_widened(fed: FedIceberg) -> None:
    schema = Schema(
        NestedField(1, "k", LongType()), NestedField(2, "n", IntegerType()), NestedField(3, "v", StringType())
    )
    made_with(fed, schema)
    fed.table.append(pa.Table.from_pylist([{"k": 1, "n": 7, "v": "a"}], fed.table.schema().as_arrow()))
    process = fed.process()
    _, offset = process.drain()
    fed.table.append(pa.Table.from_pylist([{"k": 2, "n": 8, "v": "b"}], fed.table.schema().as_arrow()))
    with fed.table.update_schema() as change:
        change.rename_column("v", "word")
        change.update_column("n", LongType())
    with fed.table.update_schema() as change:
        change.move_first("word")
        change.add_column("v", StringType())  # another column with the old name
    with pytest.raises(OperatorNeeded) as caught:
        process.latest(offset)
    assert "table_columns_changed" == caught.value.code
    fed.table.append(
        pa.Table.from_pylist([{"word": "c", "k": 3, "n": 2**40, "v": "new"}], fed.table.schema().as_arrow())
    )
    assert [
        {"word": "a", "k": 1, "n": 7, "v": None},
        {"word": "b", "k": 2, "n": 8, "v": None},
        {"word": "c", "k": 3, "n": 2**40, "v": "new"},
    ] == by_key(rows_of(fed.process()))
    restarted = fed.process()
    end = restarted.latest(offset)
    assert [2, 3] == restarted.numbers(offset, end)


def test_a_nested_field_is_found_by_its_id(fed: FedIceberg) -> None:
    inner = StructType(NestedField(11, "a", LongType()), NestedField(12, "b", LongType()))
    items = StructType(NestedField(14, "x", LongType()), NestedField(15, "y", LongType()))
    columns = (NestedField(1, "k", LongType()), NestedField(2, "s", inner), NestedField(3, "l", ListType(13, items)))
    made_with(fed, Schema(*columns))
    rows = [{"k": 1, "s": {"a": 1, "b": 2}, "l": [{"x": 1, "y": 2}]}, {"k": 2, "s": None, "l": None}]
    put(fed, pa.Table.from_pylist(rows, fed.table.schema().as_arrow()))
    with fed.table.update_schema() as change:
        change.rename_column(("s", "a"), "first")
        change.rename_column(("l", "element", "y"), "x2")
    with fed.table.update_schema() as change:
        change.add_column(("s", "a"), StringType())
    assert [
        {"k": 1, "s": {"first": 1, "b": 2, "a": None}, "l": [{"x": 1, "x2": 2}]},
        {"k": 2, "s": None, "l": None},
    ] == by_key(rows_of(fed.process()))


# --- tables that are refused before data flows


def refused(fed: FedIceberg, word: str) -> None:
    with pytest.raises(BadConfig) as caught:
        fed.columns()
    assert "table_unfit" == caught.value.code
    assert word in caught.value.what


def test_a_type_without_a_counterpart_is_refused(fed: FedIceberg) -> None:
    made_with(fed, Schema(NestedField(1, "k", LongType()), NestedField(2, "at", TimeType())))
    refused(fed, "time")


def delete_file(fed: FedIceberg, content: DataFileContent, **more: Any) -> DataFile:
    path = fed.folder / f"{uuid.uuid4().hex}.parquet"
    pq.write_table(pa.table({"file_path": ["x"], "pos": [0]}), path)
    return data_file(path, content, Record(), **more)


class DeleteManifestWriter(ManifestWriterV2):
    """The library reads manifests of deletes, and does not write any."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def add_deletes(fed: FedIceberg, content: DataFileContent, **more: Any) -> None:
    """A snapshot with deletes, as Spark or Flink write it."""
    table = fed.table
    change = table.transaction()
    with change.update_snapshot().fast_append() as producer:
        usual = producer._manifests

        def manifests() -> Any:
            path = f"file://{fed.folder}/{uuid.uuid4().hex}.avro"
            with DeleteManifestWriter(
                table.spec(), table.schema(), table.io.new_output(path), producer.snapshot_id, "deflate"
            ) as writer:
                entry = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=producer.snapshot_id,
                    data_file=delete_file(fed, content, **more),
                )
                writer.add_entry(entry)
            return [*usual(), writer.to_manifest_file()]

        producer._manifests = manifests  # type: ignore[method-assign]
    fed.catalog.commit_table(table, change._requirements, change._updates)


@pytest.mark.parametrize("content", [DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES])
def test_rows_that_are_deleted_and_still_in_their_files_are_not_read(fed: FedIceberg, content: DataFileContent) -> None:
    fed.add(1)
    process = fed.process()
    _, offset = process.drain()
    more = {"equality_ids": [1]} if content == DataFileContent.EQUALITY_DELETES else {}
    add_deletes(fed, content, **more)
    with pytest.raises(FencepostError) as caught:
        process.latest(offset)
    assert "table_rewritten" == caught.value.code
    with pytest.raises(FencepostError) as caught:
        rows_of(fed.process())
    assert "table_unfit" == caught.value.code


def test_a_data_file_of_another_format_is_refused(fed: FedIceberg) -> None:
    fed.add(1)
    process = fed.process()
    _, offset = process.drain()
    file = delete_file(fed, DataFileContent.DATA)
    file._data[2] = FileFormat.ORC
    append(fed, file)
    with pytest.raises(BadConfig) as caught:
        process.latest(offset)
    assert "ORC" in caught.value.what


# --- snapshots


@pytest.mark.parametrize("how", ["delete", "overwrite", "upsert"])
def test_a_snapshot_that_changed_rows_stops_the_stream(fed: FedIceberg, how: str) -> None:
    fed.add(1, 2)
    process = fed.process()
    _, offset = process.drain()
    if how == "delete":
        fed.table.delete("k == 1")
    elif how == "overwrite":
        fed.table.overwrite(numbered(9))
    else:
        fed.table.upsert(pa.table({"k": [1], "v": ["new"]}), join_cols=["k"])
    with pytest.raises(OperatorNeeded) as caught:
        process.latest(offset)
    assert "table_rewritten" == caught.value.code


def test_the_snapshot_that_was_read_last_may_expire_before_the_next_one_comes(fed: FedIceberg) -> None:
    """Its id is then gone, too: the library makes the next one look like the first. Numbers tell."""
    fed.add(1)
    fed.add(2)
    process = fed.process()
    _, offset = process.drain()
    fed.add(3)
    fed.forget_history()
    (left,) = fed.table.metadata.snapshots
    assert left.parent_snapshot_id is None
    assert [[3]] == fed.process().drain(offset)[0]


def test_a_stream_that_began_with_an_empty_table_notices_expired_snapshots(fed: FedIceberg) -> None:
    process = fed.process()
    offset = process.latest(process.first())
    fed.add(1)
    fed.add(2)
    fed.forget_history()
    with pytest.raises(OperatorNeeded) as caught:
        process.latest(offset)
    assert "table_history_lost" == caught.value.code


def test_a_branch_and_a_tag_are_not_read(fed: FedIceberg) -> None:
    first = fed.add(1)
    process = fed.process()
    _, offset = process.drain()
    with fed.table.manage_snapshots() as change:
        change.create_branch(first, "side").create_tag(first, "one")
    fed.table.append(numbered(5), branch="side")
    assert offset == process.latest(offset)
    fed.add(2)
    assert [[2]] == process.drain(offset)[0]


def test_a_table_of_format_1_is_read(fed: FedIceberg) -> None:
    fed.drop()
    fed.catalog.create_table(fed.identifier, schema=fed.schema, properties={"format-version": "1"})
    process = fed.process()
    offset = process.latest(process.first())
    fed.add(1)
    fed.add(2)
    epochs, offset = process.drain(offset)
    assert [[1, 2]] == epochs
    fed.compact()
    fed.add(3)
    assert [[3]] == fed.process().drain(offset)[0]
    assert [[1, 2, 3]] == fed.process().drain()[0]


def test_a_catalog_that_is_away_fails_the_epoch_and_names_no_password(fed: FedIceberg) -> None:
    fed.add(1)
    told = {"type": "sql", "uri": "sqlite:////nowhere/canary-7d1f.db", "name": "default"}
    history = IcebergHistory(fed.identifier, told, fed.columns())
    with pytest.raises(EpochFailed) as caught:
        history.newest()
    assert "table_silent" == caught.value.code
    assert "canary" not in str(caught.value)


# --- credentials


def test_properties_of_the_table_become_those_of_the_tasks_own_client() -> None:
    assert {
        "access_key": "a",
        "secret_key": "b",
        "region": "r",
        "endpoint_override": "localhost:9000",
        "scheme": "http",
        "force_virtual_addressing": "false",
    } == storage_of(
        {
            "s3.access-key-id": "a",
            "client.access-key-id": "not this",
            "s3.secret-access-key": "b",
            "client.region": "r",
            "s3.endpoint": "http://localhost:9000",
            "s3.force-virtual-addressing": False,
            "uri": "postgresql://user:password@db",
        }
    )
