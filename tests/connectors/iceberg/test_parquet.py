"""Data files: partitions, statistics, order and size, read by others; and rebuilt from what a file says itself."""

from __future__ import annotations

import math
import os
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icebergs import FOLDER, JOB, SCHEMA, SINK, Lake, mark_of, rows_of, words
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo, IsNaN, IsNull
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, UUIDType
from sqlalchemy import event

from fencepost.connectors.iceberg import location, parquet
from fencepost.connectors.iceberg.columns import schema_for
from fencepost.connectors.iceberg.partition import Unusable, decoded, encoded, spec_of
from fencepost.connectors.iceberg.table import IcebergLakeTable

pytestmark = pytest.mark.in_memory

WIDE = pa.schema(
    [
        ("id", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("name", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("ratio", pa.float32()),
        ("raw", pa.binary()),
        ("flag", pa.bool_()),
        ("code", pa.binary(3)),
        ("at", pa.time64("us")),
        ("deep", pa.struct([("ts", pa.timestamp("us")), ("n", pa.int32())])),
    ]
)


def row_of(number: int) -> dict[str, Any]:
    moment = datetime(1969, 12, 30, tzinfo=UTC).timestamp() + number * 7919.5
    return {
        "id": number,
        "ts": datetime.fromtimestamp(moment, UTC),
        "day": date.fromordinal(719_000 + number),
        "name": f"näme-{number % 7}",
        "price": Decimal(number * 37 - 400).scaleb(-2),
        "ratio": math.nan if number % 5 == 0 else number / 4,
        "raw": bytes([number % 3, 255]),
        "flag": number % 2 == 0,
        "code": bytes([0, number % 4, 255]),
        "at": time(number % 24, 59, 59, 999_999),
        "deep": None if number % 4 == 0 else {"ts": datetime(1970, 1, 1) if number % 3 else None, "n": number},  # noqa: DTZ001
    }


NOTHING: dict[str, Any] = dict.fromkeys(WIDE.names) | {"id": 99}
ROWS = [*map(row_of, range(60)), NOTHING]
SPECS: list[tuple[str, ...]] = [
    ("year(ts)",),
    ("month(ts)",),
    ("day(ts)",),
    ("hour(ts)",),
    ("day(day)",),
    ("bucket(4, id)",),
    ("bucket(4, name)", "truncate(3, name)"),
    ("truncate(10, id)",),
    ("truncate(50, price)",),
    ("name",),
    ("price", "flag"),
    ("ratio",),
    ("raw", "code"),
    ("at",),
    ("bucket(4, at)", "bucket(4, code)", "bucket(4, price)", "bucket(4, ts)", "bucket(4, raw)"),
    ("day",),
    ("ts",),
    ("day(deep.ts)", "bucket(3, deep.n)"),
]


def committed(lake: Lake, table: IcebergLakeTable, rows: Any, epoch: int = 0) -> list[DataFile]:
    table.append(table.write(FOLDER, f"handle-{epoch}", rows), JOB, SINK, mark_of(epoch))
    return lake.entries()


def shown(rows: list[dict[str, Any]]) -> list[str]:
    return [str(sorted(row.items())).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc") for row in rows]


@pytest.mark.parametrize("texts", SPECS, ids=" ".join)
def test_partitions_are_read_by_others(lake: Lake, texts: tuple[str, ...]) -> None:
    """All rows are there, each in a file whose partition is that of the row, by the library's own rules."""
    table = lake.made(*texts, schema=WIDE)
    entries = committed(lake, table, rows_of(ROWS, WIDE))
    assert shown(ROWS) == shown(lake.on_disk())
    assert [row["id"] for row in ROWS] == [row["id"] for row in lake.rows()]
    raw = lake.raw
    for entry in entries:
        for row in pq.read_table(entry.file_path.removeprefix("file://")).to_pylist():
            for place, one in enumerate(raw.spec().fields):
                source = raw.schema().find_field(one.source_id).field_type
                value: Any = row
                for name in (raw.schema().find_column_name(one.source_id) or "").split("."):
                    value = None if value is None else value[name]
                internal = _internal(value)
                wanted = None if internal is None else one.transform.transform(source)(internal)
                found = entry.partition[place]
                assert wanted == found or (math.isnan(wanted) and math.isnan(found))


def _internal(value: Any) -> Any:
    """As Iceberg computes with it."""
    if isinstance(value, datetime):
        plain = value.replace(tzinfo=None) - datetime(1970, 1, 1)  # noqa: DTZ001
        return (plain.days * 86_400 + plain.seconds) * 1_000_000 + plain.microseconds
    if isinstance(value, time):
        return (value.hour * 3600 + value.minute * 60 + value.second) * 1_000_000 + value.microsecond
    if isinstance(value, date):
        return value.toordinal() - date(1970, 1, 1).toordinal()
    return value


@pytest.mark.parametrize("texts", [(), *SPECS], ids=" ".join)
def test_a_later_process_knows_a_file_by_what_it_says_itself(lake: Lake, texts: tuple[str, ...]) -> None:
    table = lake.made(*texts, schema=WIDE)
    files = table.write(FOLDER, "handle", rows_of(ROWS, WIDE))
    later = lake.looked()
    assert [] == later.lost(files)
    for file in files:
        known, read = table._entry(file), later._entry(file)
        assert known is not read
        assert [str(value) for value in known._data] == [str(value) for value in read._data]
        assert known.spec_id == read.spec_id
    later.append(files, JOB, SINK, mark_of(0))
    assert shown(ROWS) == shown(lake.on_disk())


def test_readers_skip_files_by_partition_and_bounds(lake: Lake) -> None:
    table = lake.made("bucket(4, id)", schema=WIDE)
    entries = committed(lake, table, rows_of(ROWS, WIDE))
    assert 4 == len(entries)
    assert 1 == len(list(lake.raw.scan(EqualTo("id", 7)).plan_files()))
    assert [7] == lake.raw.scan(EqualTo("id", 7)).to_arrow()["id"].to_pylist()
    assert [] == list(lake.raw.scan("id > 1000").plan_files())
    assert [99] == lake.raw.scan(IsNull("name")).to_arrow()["id"].to_pylist()
    nans = lake.raw.scan(IsNaN("ratio")).to_arrow()["id"].to_pylist()
    assert [number for number in range(60) if number % 5 == 0] == sorted(nans)


def test_statistics_are_those_of_the_library_and_the_nans_that_it_does_not_count(lake: Lake) -> None:
    """Without that count, engines take NaN for a value within the bounds, and delete it with those."""
    table = lake.made(schema=WIDE, properties={"write.metadata.metrics.column.raw": "counts"})
    [entry] = committed(lake, table, rows_of(ROWS, WIDE))
    lake.raw.append(rows_of(ROWS, WIDE).table)
    [theirs] = [one for one in lake.entries() if one.file_path != entry.file_path]
    names = {one.field_id: one.name for one in lake.raw.schema().fields}
    for kind in ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds"):
        ours, other = (
            {names.get(key, key): value for key, value in getattr(one, kind).items()} for one in (entry, theirs)
        )
        assert other == ours
    assert {6: 12} == entry.nan_value_counts
    assert {} == theirs.nan_value_counts
    assert 61 == entry.record_count
    assert Path(entry.file_path.removeprefix("file://")).stat().st_size == entry.file_size_in_bytes


def test_the_file_names_its_columns_by_id_in_ways_that_every_reader_knows(lake: Lake) -> None:
    schema = pa.schema([("id", pa.int64()), ("a b.c", pa.struct([("x y", pa.string())]))])
    table = lake.made(schema=schema)
    [entry] = committed(lake, table, rows_of([{"id": 1, "a b.c": {"x y": "z"}}], schema))
    found = pq.read_schema(entry.file_path.removeprefix("file://"))
    assert [("id", b"1"), ("a_x20b_x2Ec", b"2")] == [(one.name, one.metadata[b"PARQUET:field_id"]) for one in found]
    assert b"3" == found.field(1).type.field(0).metadata[b"PARQUET:field_id"]
    assert [{"id": 1, "a b.c": {"x y": "z"}}] == lake.rows()


def test_times_that_python_cannot_hold_are_written_without_bounds(lake: Lake) -> None:
    schema = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us"))])
    far = pa.array([2**62, None], pa.int64()).cast(pa.timestamp("us"))
    table = lake.made(schema=schema)
    rows = rows_of([], schema)
    object.__setattr__(rows, "table", pa.table([pa.array([1, 2]), far], schema=schema))
    [entry] = committed(lake, table, rows)
    assert ({1}, {1: 2, 2: 2}) == (set(entry.lower_bounds), entry.value_counts)
    assert [2**62, None] == lake.raw.scan().to_arrow()["ts"].cast(pa.int64()).to_pylist()


# --- order


@pytest.mark.parametrize("direction", [SortDirection.ASC, SortDirection.DESC])
@pytest.mark.parametrize("nulls", [NullOrder.NULLS_FIRST, NullOrder.NULLS_LAST])
def test_rows_are_in_the_table_s_order(lake: Lake, direction: SortDirection, nulls: NullOrder) -> None:
    schema = pa.schema([("id", pa.int64()), ("ratio", pa.float64())])
    table = lake.made(schema=schema)
    with lake.raw.update_sort_order() as update:
        (update.asc if direction is SortDirection.ASC else update.desc)("ratio", IdentityTransform(), nulls)
    assert table.load()
    values = [3.0, math.nan, None, -1.0, 2.0, None, math.nan]
    rows = rows_of([{"id": place, "ratio": value} for place, value in enumerate(values)], schema)
    [entry] = committed(lake, table, rows)
    numbers = [-1.0, 2.0, 3.0, math.nan, math.nan]
    numbers = numbers if direction is SortDirection.ASC else numbers[::-1]
    wanted = [None, None, *numbers] if nulls is NullOrder.NULLS_FIRST else [*numbers, None, None]
    assert str(wanted) == str(pq.read_table(entry.file_path.removeprefix("file://"))["ratio"].to_pylist())
    assert lake.raw.metadata.default_sort_order_id == entry.sort_order_id


def test_only_a_file_that_is_sorted_as_a_whole_says_so(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.made()
    with lake.raw.update_sort_order() as update:
        update.asc("id", BucketTransform(4)).desc("id", IdentityTransform())
    assert table.load()
    [entry] = committed(lake, table, words(*range(50)))
    bucket = BucketTransform(4).transform(lake.raw.schema().find_type("id"))
    ids = pq.read_table(entry.file_path.removeprefix("file://"))["id"].to_pylist()
    assert sorted(range(50), key=lambda number: (bucket(number), -number)) == ids
    assert entry.sort_order_id
    monkeypatch.setattr(parquet, "WAITING_BYTES", 100)
    monkeypatch.setattr(parquet, "AT_ONCE_BYTES", 100)
    assert table.load()
    rows = words(*range(50))
    object.__setattr__(rows, "table", pa.concat_tables(words(number).table for number in range(50)))
    later = committed(lake, table, rows, 1)
    [other] = [one for one in later if one.file_path != entry.file_path]
    assert pq.read_metadata(other.file_path.removeprefix("file://")).num_row_groups > 1
    assert other.sort_order_id is None


# --- size


def test_files_are_rolled_at_the_target_size(lake: Lake) -> None:
    schema = pa.schema([("id", pa.int64()), ("raw", pa.binary())])
    table = lake.made(schema=schema, target=2 << 20, properties={"write.parquet.compression-codec": "uncompressed"})
    batches = [rows_of([{"id": number, "raw": os.urandom(1 << 16)} for number in range(16)], schema) for _ in range(10)]
    rows = batches[0]
    object.__setattr__(rows, "table", pa.concat_tables(one.table for one in batches))
    sizes = [file.bytes for file in table.write(FOLDER, "handle", rows)]
    assert 10 << 20 < sum(sizes) < 11 << 20
    assert 3 <= len(sizes) <= 5
    assert all(2 << 20 <= size <= 4 << 20 for size in sizes[:-1])


def test_many_partitions_do_not_hold_many_files_open_or_many_rows_in_memory(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "OPEN_FILES", 3)
    monkeypatch.setattr(parquet, "WAITING_BYTES", 1000)
    monkeypatch.setattr(parquet, "AT_ONCE_BYTES", 500)
    open_files, waiting = [], []
    flush = parquet.DataFileWriter._flush

    def watched(self: parquet.DataFileWriter, key: Any) -> None:
        waiting.append(self._bytes.total())
        flush(self, key)
        open_files.append(len(self._open))

    monkeypatch.setattr(parquet.DataFileWriter, "_flush", watched)
    table = lake.made("truncate(1, word)")
    rows = words(0)
    everything = [
        words(*range(number, number + 10), word=chr(97 + number // 10 % 20)).table for number in range(0, 2000, 10)
    ]
    object.__setattr__(rows, "table", pa.concat_tables(everything))
    entries = committed(lake, table, rows)
    assert list(range(2000)) == lake.ids()
    assert 3 == max(open_files)
    assert 2000 > max(waiting)
    assert len(entries) > 20


def test_the_table_s_compression_and_row_groups_are_used(lake: Lake) -> None:
    table = lake.made(
        properties={
            "write.parquet.compression-codec": "gzip",
            "write.parquet.compression-level": "9",
            "write.parquet.row-group-limit": "10",
        }
    )
    [entry] = committed(lake, table, words(*range(35)))
    found = pq.read_metadata(entry.file_path.removeprefix("file://"))
    assert ([10, 10, 10, 5], "GZIP") == (
        [found.row_group(place).num_rows for place in range(found.num_row_groups)],
        found.row_group(0).column(0).compression,
    )
    assert 4 == len(entry.split_offsets or ())


# --- the disk


def test_everything_is_on_the_disk_before_the_catalog_points_to_it(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may lose what was written and not synced; the pointer itself is the database's business."""
    synced: set[Path] = set()
    folders: set[Path] = set()
    missing: list[Path] = []
    sync_file, sync_folder = location.sync_file, location.sync_folder
    monkeypatch.setattr(location, "sync_file", lambda path: (sync_file(path), synced.add(path)))
    monkeypatch.setattr(location, "sync_folder", lambda path: (sync_folder(path), folders.add(path)))

    def at_pointer(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.startswith(("UPDATE iceberg_tables", "INSERT INTO iceberg_tables")):
            there = {path for path in (tmp_path / "lake").rglob("*.*") if path.is_file()}
            missing.extend(there - synced)
            missing.extend({path.parent for path in there} - folders)
            pointers.append(statement[:6])

    pointers: list[str] = []
    table = lake.table("word")
    assert not table.load()
    connect = parquet_catalog_connect(monkeypatch, at_pointer)
    table.create(SCHEMA)
    assert table.load()
    lake.append(table, 0, 1)
    assert table.load()
    table.upsert(words(1, 2), ["id"], None, JOB, SINK, mark_of(1))
    assert (["INSERT", "UPDATE", "UPDATE"], [], True) == (pointers, missing, connect.called)


class Listened:
    called = False


def parquet_catalog_connect(monkeypatch: pytest.MonkeyPatch, listener: Any) -> Listened:
    """Every catalog that is connected from now on tells what it does."""
    from fencepost.connectors.iceberg import table as module  # noqa: PLC0415

    connected, found = module.connected, Listened()

    def listening(given: Any) -> Catalog:
        catalog = connected(given)
        event.listen(catalog.engine, "before_cursor_execute", listener)  # type: ignore[attr-defined]
        found.called = True
        return catalog

    monkeypatch.setattr(module, "connected", listening)
    return found


# --- as people write partitions


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (("zz",), "partition 'zz' is by column 'zz', which the DataFrame does not have"),
        (("day(name)",), "partition 'day(name)' is not possible by a column of type string"),
        (("bucket(4, ratio)",), "partition 'bucket(4, ratio)' is not possible by a column of type float"),
        (("double",), "partition 'double' is by a column of type double, which pyiceberg does not read exactly"),
        (("deep",), "partition 'deep' is not possible by a column of type struct<13: ts: optional timestamp, 14: n:"),
        (("bucket(0, id)",), "partition 'bucket(0, id)' is not known: use a column, year(c), month(c), day(c)"),
        (("bucket(id)",), "partition 'bucket(id)' is not known: use"),
        (("week(ts)",), "partition 'week(ts)' is not known: use"),
        (("name", "name"), "partition 'name' is there twice"),
        (("day(ts)", "hour(ts)"), "partition 'day(ts)' is one of several by the time of one column: keep the finest"),
    ],
)
def test_a_partition_that_cannot_be_is_said(texts: tuple[str, ...], why: str) -> None:
    with pytest.raises(Unusable) as raised:
        spec_of(texts, schema_for(WIDE.append(pa.field("double", pa.float64()))))
    assert str(raised.value).startswith(why)


def test_a_table_with_a_partition_that_the_library_does_not_read_exactly_is_refused(lake: Lake) -> None:
    """Whoever copies its manifests would write other partitions than there were."""
    schema = pa.schema([("id", pa.int64()), ("double", pa.float64())])
    table = lake.made(schema=schema)
    with lake.raw.update_spec() as update:
        update.add_identity("double")
    assert table.load()
    words_ = "its partition 'double' is by a column of type double, which pyiceberg does not read exactly"
    assert [words_] == table.unfit(removes=False)
    lake.raw.append(pa.table({"id": [1], "double": [1 / 3]}))
    assert 1 / 3 != lake.entries()[0].partition[0]  # if this fails, the library was repaired: allow it


def test_a_partition_s_name_must_be_free() -> None:
    schema = schema_for(pa.schema([("ts", pa.timestamp("us")), ("ts_day", pa.int64())]))
    with pytest.raises(Unusable) as raised:
        spec_of(("day(ts)",), schema)
    assert "partition 'day(ts)' would be called 'ts_day', as a column already is" == str(raised.value)


def test_partitions_are_read_as_people_write_them() -> None:
    schema = schema_for(pa.schema([("ts", pa.timestamp("us")), ("day(ts)", pa.int64()), ("n", pa.string())]))
    spec = spec_of((" hours( ts ) ", "day(ts)", "Bucket(16,n)", "truncate( 4 , n )"), schema)
    assert ["ts_hour: hour", "day(ts): identity", "n_bucket_16: bucket[16]", "n_truncate_4: truncate[4]"] == [
        f"{one.name}: {one.transform}" for one in spec.fields
    ]


def test_a_partition_survives_as_text() -> None:
    schema = schema_for(WIDE)
    spec = spec_of(("name", "price", "ratio", "raw", "flag", "day", "ts", "bucket(4, id)"), schema)
    kind = spec.partition_type(schema)
    record = Record("ü\0", Decimal("-12.30"), -0.0, b"\0\xff", False, -5, 2**60, 3)
    assert str(record) == str(decoded(encoded(record, kind), kind))
    assert str(Record(*[None] * 8)) == str(decoded(encoded(Record(*[None] * 8), kind), kind))
    assert math.isnan(decoded(encoded(Record(None, None, math.nan, *[None] * 5), kind), kind)[2])


@pytest.mark.parametrize("transform", [IdentityTransform(), BucketTransform(4)])
def test_partitions_by_a_uuid(lake: Lake, transform: Any) -> None:
    schema = Schema(NestedField(1, "key", UUIDType(), required=False), NestedField(2, "id", LongType(), required=False))
    lake.catalog.create_namespace("db")
    lake.catalog.create_table("db.words", schema, partition_spec=PartitionSpec(PartitionField(1, 1000, transform, "p")))
    table = lake.looked()
    given = pa.schema([("key", pa.string()), ("id", pa.int64())])
    rows = [{"key": None if number == 9 else str(uuid.uuid4()), "id": number} for number in range(10)]
    files = table.write(FOLDER, "handle", rows_of(rows, given))
    lake.looked().append(files, JOB, SINK, mark_of(0))
    assert rows == [row | {"key": row["key"] and str(row["key"])} for row in lake.rows()]
    found = [entry.partition[0] for entry in lake.entries()]
    wanted: list[Any] = [uuid.UUID(row["key"]) if row["key"] else None for row in rows]
    if isinstance(transform, BucketTransform):
        wanted = list({None if key is None else transform.transform(UUIDType())(key.bytes) for key in wanted})
    assert sorted(map(str, wanted)) == sorted(map(str, found))
