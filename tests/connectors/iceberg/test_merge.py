"""Rows that replace rows with their key: exact, whatever others did to the table and its files."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icebergs import FOLDER, JOB, SCHEMA, SINK, Lake, mark_of, rows_of, words
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.transforms import BucketTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType, UUIDType

from fencepost.connectors.iceberg import merge
from fencepost.connectors.iceberg.merge import EQUALITY_DELETES, Keys
from fencepost.connectors.iceberg.table import IcebergLakeTable
from fencepost.connectors.table.database import RowsRefused

pytestmark = pytest.mark.in_memory


def upsert(table: IcebergLakeTable, rows: Any, key: Sequence[str] = ("id",), deletes: str | None = None) -> None:
    assert table.load()
    table.upsert(rows, key, deletes, JOB, SINK, mark_of(0))


def pairs(lake: Lake) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in lake.rows()]


def test_a_row_replaces_the_row_with_its_key(lake: Lake) -> None:
    table = lake.made()
    lake.append(table, 0, 1, 2, 3)
    upsert(table, words(2, 4, word="new"))
    assert [(1, "a"), (2, "new"), (3, "a"), (4, "new")] == pairs(lake)
    assert mark_of(0) == lake.looked().mark(JOB, SINK, ())
    snapshot = lake.raw.current_snapshot()
    assert "overwrite" == snapshot.summary.operation.value
    assert 2 == len(lake.raw.snapshots())


def test_rows_that_remove_are_not_written(lake: Lake) -> None:
    table = lake.made()
    lake.append(table, 0, 1, 2, 3)
    schema = SCHEMA.append(pa.field("gone", pa.bool_()))
    rows = [{"id": 1, "gone": True}, {"id": 2, "word": "new", "gone": False}, {"id": 9, "gone": True}]
    upsert(table, rows_of(rows, schema), deletes="gone")
    assert [(2, "new"), (3, "a")] == pairs(lake)
    upsert(table, rows_of([{"id": number, "gone": True} for number in (2, 3)], schema), deletes="gone")
    assert ([], []) == (pairs(lake), lake.entries())


def test_an_epoch_that_changes_nothing_moves_the_table_all_the_same(lake: Lake) -> None:
    """Its mark has to be fenced."""
    table = lake.made()
    schema = SCHEMA.append(pa.field("gone", pa.bool_()))
    upsert(table, rows_of([{"id": 9, "gone": True}], schema), deletes="gone")
    first = table.version
    upsert(table, rows_of([], schema), deletes="gone")
    assert first
    assert first != table.version
    assert [] == pairs(lake)


def test_files_without_any_of_the_keys_stay_as_they_are(lake: Lake) -> None:
    """Not even read, if their bounds exclude the keys."""
    table = lake.made()
    for epoch in range(4):
        lake.append(table, epoch, *range(epoch * 10, epoch * 10 + 10))
    before = {entry.file_path for entry in lake.entries()}
    away = [Path(path.removeprefix("file://")) for path in before if path.endswith(("e-0-0.parquet", "e-2-0.parquet"))]
    for path in away:
        path.rename(path.with_suffix(".away"))
    upsert(table, words(15, 35, word="new"))
    for path in away:
        path.with_suffix(".away").rename(path)
    after = {entry.file_path for entry in lake.entries()}
    assert ["handle-1-0.parquet", "handle-3-0.parquet"] == sorted(path.rpartition("/")[2] for path in before - after)
    assert [15, 35] == [number for number, word in pairs(lake) if word == "new"]
    assert list(range(40)) == lake.ids()


def test_all_rows_of_a_key_are_replaced(lake: Lake) -> None:
    table = lake.made()
    lake.append(table, 0, 1, 1, 2)
    lake.append(table, 1, 1)
    upsert(table, words(1, word="new"))
    assert [(1, "new"), (2, "a")] == pairs(lake)


def test_values_are_never_compared(lake: Lake) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("ratio", pa.float64()), ("tags", pa.list_(pa.struct([("t", pa.string())])))]
    )
    table = lake.made(schema=schema)
    old = [
        {"id": 1, "ratio": math.nan, "tags": None},
        {"id": 2, "ratio": None, "tags": []},
        {"id": 3, "ratio": -0.0, "tags": [None, {"t": None}]},
        {"id": 4, "ratio": 1.0, "tags": [{"t": "x"}]},
    ]
    upsert(table, rows_of(old, schema))
    same = [{"id": 1, "ratio": math.nan, "tags": None}, {"id": 2, "ratio": None, "tags": []}]
    upsert(table, rows_of(same, schema))
    assert str(old) == str(lake.on_disk())
    upsert(table, rows_of([{"id": 4, "ratio": math.nan, "tags": None}], schema))
    assert str([*old[:3], {"id": 4, "ratio": math.nan, "tags": None}]) == str(lake.on_disk())


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int32(), [-5, 0, 7, 9]),
    "text": (pa.string(), ["", "ä", "a" * 40, "a" * 40 + "b"]),
    "bytes": (pa.binary(), [b"", b"\0", b"\xff" * 40, b"\xff" * 41]),
    "fixed": (pa.binary(2), [b"\0\0", b"\0\1", b"\xff\0", b"\xff\xff"]),
    "day": (pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)]),
    "time": (pa.timestamp("us", "UTC"), [datetime(year, 1, 1, tzinfo=UTC) for year in (1, 1969, 1970, 9999)]),
    "decimal": (pa.decimal128(20, 3), [Decimal(number).scaleb(-3) for number in (-(10**19), -1, 0, 10**19)]),
    "double": (pa.float64(), [-math.inf, 0.0, 1 / 3, math.inf]),
    "flag": (pa.bool_(), [True, False]),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_every_type(lake: Lake, name: str) -> None:
    """Each old row is in a file of its own, so that its bounds decide."""
    kind, values = KEYS[name]
    schema = pa.schema([("key", kind), ("id", pa.int64())])
    table = lake.made(schema=schema)
    for place, value in enumerate(values):
        upsert(table, rows_of([{"key": value, "id": place}], schema), ["key"])
    assert list(range(len(values))) == lake.ids()
    for place, value in enumerate(values):
        upsert(table, rows_of([{"key": value, "id": 100 + place}], schema), ["key"])
    assert [100 + place for place in range(len(values))] == lake.ids()
    upsert(table, rows_of([{"key": value, "id": 200 + place} for place, value in enumerate(values)], schema), ["key"])
    assert [200 + place for place in range(len(values))] == lake.ids()


def test_zero_is_one_key(lake: Lake) -> None:
    """As Spark groups by it."""
    schema = pa.schema([("key", pa.float64()), ("id", pa.int64())])
    table = lake.made(schema=schema)
    upsert(table, rows_of([{"key": -0.0, "id": 1}], schema), ["key"])
    upsert(table, rows_of([{"key": 0.0, "id": 2}], schema), ["key"])
    assert [2] == lake.ids()


def test_keys_of_a_uuid_column_may_be_text(lake: Lake) -> None:
    lake.catalog.create_namespace("db")
    schema = Schema(NestedField(1, "key", UUIDType(), required=False), NestedField(2, "id", LongType(), required=False))
    lake.catalog.create_table("db.words", schema)
    table = lake.table()
    keys = [str(uuid.uuid4()) for _ in range(3)]
    given = pa.schema([("key", pa.string()), ("id", pa.int64())])
    upsert(table, rows_of([{"key": key, "id": place} for place, key in enumerate(keys)], given), ["key"])
    upsert(table, rows_of([{"key": keys[1], "id": 10}], given), ["key"])
    assert [0, 2, 10] == lake.ids()
    assert sorted(map(uuid.UUID, keys)) == sorted(row["key"] for row in lake.rows())


@pytest.mark.parametrize("seed", range(6))
def test_any_history_of_epochs_leaves_what_a_dictionary_would(lake: Lake, seed: int) -> None:
    """Keys of two columns, partitions, several files, rows that remove."""
    chance = random.Random(seed)
    schema = pa.schema([("a", pa.int32()), ("b", pa.string()), ("id", pa.int64()), ("gone", pa.bool_())])
    partitions = [(), ("bucket(3, a)",), ("b",), ("truncate(2, id)",)][seed % 4]
    table = lake.made(*partitions, schema=schema.remove(3), target=1)
    model: dict[tuple[int, str], int] = {}
    for epoch in range(8):
        keys = {(chance.randrange(12), chance.choice("xyz")) for _ in range(chance.randrange(1, 15))}
        rows = [
            {"a": a, "b": b, "id": epoch * 1000 + place, "gone": chance.random() < 0.3}
            for place, (a, b) in enumerate(sorted(keys))
        ]
        upsert(table, rows_of(rows, schema), ["a", "b"], "gone")
        for row in rows:
            model.pop((row["a"], row["b"]), None)
            if not row["gone"]:
                model[row["a"], row["b"]] = row["id"]
        if chance.random() < 0.3:
            lake.raw.append(pa.table({"a": [99], "b": ["other"], "id": [-epoch - 1]}, schema=schema.remove(3)))
        found = {(row["a"], row["b"]): row["id"] for row in lake.rows() if row["b"] != "other"}
        assert model == found
        assert len(model) == len([row for row in lake.rows() if row["b"] != "other"])


def test_many_columns_of_many_values_do_not_overflow() -> None:
    """The numbers of a key's columns are made one, again and again."""
    size = 2000
    columns = [pa.chunked_array([pa.array([f"{name}-{n}" for n in range(size)])]) for name in "abcdefgh"]
    keys = Keys(columns)
    probe = [pa.array([f"{name}-{n}" for n in (0, 1, 1999, 5000)]) for name in "abcdefgh"]
    assert [True, True, True, False] == keys.has(probe).to_pylist()
    probe[7] = pa.array(["h-0", "h-2", None, "h-1"])
    assert [True, False, False, False] == keys.has(probe).to_pylist()


# --- what others did


def test_columns_that_were_renamed_added_and_widened_since_a_file_was_written(lake: Lake) -> None:
    schema = pa.schema(
        [("id", pa.int32()), ("deep", pa.struct([("x", pa.int32()), ("y", pa.string())])), ("old", pa.string())]
    )
    table = lake.made(schema=schema)
    rows = [{"id": n, "deep": {"x": n, "y": str(n)} if n else None, "old": "o"} for n in range(3)]
    table.append(table.write(FOLDER, "handle", rows_of(rows, schema)), JOB, SINK, mark_of(0))
    with lake.raw.update_schema(allow_incompatible_changes=True) as update:
        update.rename_column("deep.x", "z")
        update.rename_column("deep", "deeper")
        update.update_column("id", LongType())
        update.delete_column("deep.y")
        update.delete_column("old")
    with lake.raw.update_schema() as update:
        update.add_column(("deeper", "x"), StringType())
        update.add_column("new", StringType())
    now = pa.schema([("id", pa.int64()), ("new", pa.string())])
    upsert(table, rows_of([{"id": 2, "new": "n"}], now))
    assert [
        {"id": 0, "deeper": None, "new": None},
        {"id": 1, "deeper": {"z": 1, "x": None}, "new": None},
        {"id": 2, "deeper": None, "new": "n"},
    ] == [{key: row[key] for key in ("id", "deeper", "new")} for row in lake.rows()]


def test_partitions_that_changed_since_a_file_was_written(lake: Lake) -> None:
    table = lake.made("word")
    lake.append(table, 0, 1, 2, 3, 4, 5)
    with lake.raw.update_spec() as update:
        update.remove_field("word")
        update.add_field("id", BucketTransform(2), "bucket")
    upsert(table, words(2, word="new"))
    assert [(1, "a"), (2, "new"), (3, "a"), (4, "a"), (5, "a")] == pairs(lake)
    assert {1} == {entry.spec_id for entry in lake.entries()}


def test_rows_in_a_partition_of_nan(lake: Lake) -> None:
    schema = pa.schema([("id", pa.int64()), ("ratio", pa.float32())])
    table = lake.made("ratio", schema=schema)
    upsert(table, rows_of([{"id": n, "ratio": [math.nan, None, 1.0][n % 3]} for n in range(9)], schema))
    upsert(table, rows_of([{"id": 0, "ratio": 1.0}, {"id": 4, "ratio": math.nan}], schema))
    assert list(range(9)) == lake.ids()
    assert table.load()
    table.replace([], JOB, SINK, mark_of(1))
    assert ([], []) == (lake.ids(), lake.entries())


def test_files_that_were_imported_without_ids(lake: Lake, tmp_path: Path) -> None:
    table = lake.made()
    pq.write_table(words(1, 2, 3).table, tmp_path / "imported.parquet")
    lake.raw.add_files([f"file://{tmp_path}/imported.parquet"])
    with lake.raw.update_schema() as update:
        update.rename_column("word", "text")
    upsert(table, rows_of([{"id": 2, "text": "new"}], pa.schema([("id", pa.int64()), ("text", pa.string())])))
    assert [(1, "a"), (2, "new"), (3, "a")] == pairs(lake)


def test_partition_columns_that_are_not_in_the_file(lake: Lake, tmp_path: Path) -> None:
    """As a table from Hive has them: the value is in the partition alone."""
    table = lake.made("word")
    files = table.write(FOLDER, "handle", words(1, 2, 3, word="hive"))
    place = tmp_path / "lake/db/words/data" / files[0].path
    place.chmod(0o644)
    bare = pq.read_table(place).select(["id"])
    pq.write_table(bare, place)
    entry = table._entry(files[0])
    entry._data[5] = place.stat().st_size
    table.append(files, JOB, SINK, mark_of(0))
    assert [(1, "hive"), (2, "hive"), (3, "hive")] == pairs(lake)
    upsert(table, words(2, word="new"))
    assert [(1, "hive"), (2, "new"), (3, "hive")] == pairs(lake)


class DeleteManifestWriter(ManifestWriterV2):
    """The library writes no manifests of deletes."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class AppendDeletes(_FastAppendFiles):
    """Another engine, which removes rows by writing a file that says so."""

    def _manifests(self) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        with DeleteManifestWriter(
            metadata.spec(), metadata.schema(), self.new_manifest_output(), self._snapshot_id, "deflate"
        ) as writer:
            for file in self._added_data_files:
                writer.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
        return [writer.to_manifest_file(), *self._existing_manifests()]


def remove_as_another_engine(lake: Lake, tmp_path: Path, content: DataFileContent, rows: pa.Table) -> None:
    path = tmp_path / f"{content.name}.parquet"
    pq.write_table(rows, path)
    file = DataFile.from_args(
        content=content,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=path.stat().st_size,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={},
        upper_bounds={},
        equality_ids=[1] if content is DataFileContent.EQUALITY_DELETES else None,
    )
    raw = lake.raw
    transaction = raw.transaction()
    with AppendDeletes(Operation.DELETE, transaction, raw.io) as producer:
        producer.append_data_file(file)
    transaction.commit_transaction()


def test_rows_that_others_removed_by_position_stay_removed(lake: Lake, tmp_path: Path) -> None:
    table = lake.made()
    lake.append(table, 0, *range(6))
    [entry] = lake.entries()
    gone = pa.table({"file_path": [entry.file_path] * 2, "pos": pa.array([1, 4], pa.int64())})
    remove_as_another_engine(lake, tmp_path, DataFileContent.POSITION_DELETES, gone)
    assert [0, 2, 3, 5] == lake.ids()
    assert table.load()
    assert [] == table.unfit(removes=True)
    upsert(table, words(1, word="back"))  # the file has it, but no longer in the table: nothing is rewritten
    assert entry.file_path in {one.file_path for one in lake.entries()}
    assert [0, 1, 2, 3, 5] == lake.ids()
    upsert(table, words(2, word="new"))
    assert [(0, "a"), (1, "back"), (2, "new"), (3, "a"), (5, "a")] == pairs(lake)
    assert table.load()
    table.replace([], JOB, SINK, mark_of(1))
    assert [] == lake.ids()


def test_rows_that_others_removed_by_value_are_refused(lake: Lake, tmp_path: Path) -> None:
    table = lake.made()
    lake.append(table, 0, 1, 2)
    remove_as_another_engine(lake, tmp_path, DataFileContent.EQUALITY_DELETES, pa.table({"id": [1]}))
    assert table.load()
    assert ([], [EQUALITY_DELETES]) == (table.unfit(removes=False), table.unfit(removes=True))
    with pytest.raises(RowsRefused) as raised:
        table.upsert(words(2), ["id"], None, JOB, SINK, mark_of(1))
    assert EQUALITY_DELETES == str(raised.value)
    lake.append(table, 1, 3)  # to add rows is fine
    assert mark_of(1) == table.mark(JOB, SINK, ())


def test_a_merge_that_fails_leaves_no_files(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.made()
    lake.append(table, 0, 1, 2)
    before = sorted((tmp_path / "lake").rglob("*.parquet"))

    def fails(*arguments: Any) -> Any:
        raise OSError("secret")

    monkeypatch.setattr(merge, "files_to_rewrite", fails)
    with pytest.raises(Exception, match=r"its files cannot be reached \(OSError\)"):
        upsert(table, words(2))
    assert before == sorted((tmp_path / "lake").rglob("*.parquet"))


def test_the_library_s_own_upsert_changes_null_where_ours_does_not(lake: Lake) -> None:
    """Why we do not use it; if this fails, the library was repaired."""
    schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.struct([("t", pa.string())])))])
    table = lake.made(schema=schema)
    upsert(table, rows_of([{"id": 1, "tags": None}, {"id": 2, "tags": [{"t": "x"}]}], schema))
    upsert(table, rows_of([{"id": 2, "tags": []}], schema))
    assert [None, []] == [row["tags"] for row in lake.on_disk()]
    table.load()
    files = table.write(FOLDER, "handle", rows_of([{"id": 3, "tags": None}, {"id": 4, "tags": None}], schema))
    table.append(files, JOB, SINK, mark_of(1))
    lake.raw.upsert(pa.Table.from_pylist([{"id": 4, "tags": [{"t": "y"}]}], schema), ["id"])
    assert [None, [], [], [{"t": "y"}]] == [row["tags"] for row in lake.on_disk()]
