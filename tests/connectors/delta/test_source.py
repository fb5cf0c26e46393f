"""Delta tables as streams: what is particular to Delta. The rest is in tests/connectors/lake/test_source.py."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from table_streams import FedDelta, Process, numbered

from fencepost.connectors.delta.source import storage_of, value_of
from fencepost.errors import BadConfig, EpochFailed, FencepostError, OperatorNeeded

INNER = pa.struct([("time", pa.timestamp("us", tz="UTC"))])
ALL_TYPES = pa.schema(
    [
        ("byte", pa.int8()),
        ("short", pa.int16()),
        ("int", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("yes", pa.bool_()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("day", pa.date32()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(20, 4)),
        ("small", pa.decimal128(5, 0)),
        ("list", pa.list_(pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]))),
        ("map", pa.map_(pa.string(), pa.struct([("x", pa.date32())]))),
        (
            "struct",
            pa.struct([("in", pa.struct([("time", pa.timestamp("us", tz="UTC"))])), ("d", pa.decimal128(9, 2))]),
        ),
    ]
)
FULL = {
    "byte": -128,
    "short": -32768,
    "int": -(2**31),
    "long": 2**63 - 1,
    "float": 0.5,
    "double": -1e300,
    "yes": True,
    "text": "ünï\0cödé",
    "bytes": b"\x00\xff",
    "day": date(1, 1, 1),
    "time": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    "local": datetime(1500, 6, 1, 12, tzinfo=UTC).replace(tzinfo=None),
    "price": Decimal("-9999999999999999.9999"),
    "small": Decimal(99999),
    "list": [{"a": 1, "b": ["x", None]}, None, {"a": None, "b": None}],
    "map": [("k", {"x": date(2026, 1, 31)}), ("none", None)],
    "struct": {"in": {"time": datetime(2026, 1, 1, tzinfo=UTC)}, "d": Decimal("1.25")},
}
EMPTY = dict.fromkeys(ALL_TYPES.names)


def rows_of(process: Process) -> list[dict[str, Any]]:
    return process.rows(process.first(), process.latest(process.first()))


def test_every_type_is_read_as_it_was_written(tmp_path: Path) -> None:
    fed = FedDelta(tmp_path / "t")
    table = pa.Table.from_pylist([FULL, EMPTY, FULL], ALL_TYPES)
    fed.write(table)
    assert [FULL, EMPTY, FULL] == rows_of(fed.process())
    assert [FULL, EMPTY, FULL] == rows_of(fed.process(0))


PARTITIONS = {
    "text": ["a b/%:é=", None],
    "int": [-5, None],
    "day": [date(2026, 1, 31), None],
    "time": [datetime(2026, 1, 31, 1, 2, 3, 4, tzinfo=UTC), None],
    "local": [datetime(2026, 1, 31, 1, 2, 3, tzinfo=UTC).replace(tzinfo=None), None],
    "price": [Decimal("1.2500"), None],
    "yes": [True, False],
    "long": [2**40, None],
    "double": [0.25, None],
}


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_the_values_of_partitions_are_read_from_the_log(tmp_path: Path, name: str) -> None:
    fed = FedDelta(tmp_path / "t", options={"partition_by": [name]})
    schema = pa.schema([("k", pa.int64()), ALL_TYPES.field(name)])
    rows = [{"k": number, name: value} for number, value in enumerate(PARTITIONS[name])]
    fed.write(pa.Table.from_pylist(rows, schema))
    for start in ("earliest", 0):  # the first by the library's look, the second by the log's text
        assert rows == sorted(rows_of(fed.process(start)), key=lambda row: row["k"])


def test_a_partition_s_time_is_in_its_zone_or_in_utc() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert noon == value_of("2026-01-31 12:00:00", "timestamp") == value_of("2026-01-31T12:00:00.000000Z", "timestamp")
    assert noon.replace(tzinfo=None) == value_of("2026-01-31 12:00:00", "timestamp_ntz")
    assert (None, None) == (value_of("", "string"), value_of(None, "long"))
    assert b"\x00\xff" == value_of("\x00\xff", "binary")


def stopped(code: str, fed: FedDelta, process: Process, start: dict[str, Any] | None = None) -> FencepostError:
    with pytest.raises(FencepostError) as caught:
        process.drain(start)
    assert code == caught.value.code
    return caught.value


# --- tables that are refused before data flows


def with_metadata(fed: FedDelta, **configuration: str) -> None:
    actions = [json.loads(line) for line in fed.log(0).read_text().splitlines()]
    (told,) = [one["metaData"] for one in actions if "metaData" in one]
    fed.commit({"metaData": {**told, "configuration": configuration}})


def test_column_mapping_is_refused(tmp_path: Path) -> None:
    fed = FedDelta(tmp_path / "t")
    fed.add(1)
    process = fed.process()
    _, offset = process.drain()
    with_metadata(fed, **{"delta.columnMapping.mode": "name"})
    error = stopped("table_unfit", fed, process, offset)
    assert isinstance(error, BadConfig)
    assert "delta.columnMapping.mode" in error.what
    with pytest.raises(BadConfig) as caught:
        fed.columns()
    assert "table_unfit" == caught.value.code


@pytest.mark.parametrize("feature", ["typeWidening", "somethingNew"])
def test_an_unknown_feature_is_refused(tmp_path: Path, feature: str) -> None:
    fed = FedDelta(tmp_path / "t")
    fed.add(1)
    process = fed.process()
    _, offset = process.drain()
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [feature], "writerFeatures": [feature]}
    fed.commit({"protocol": protocol})
    assert feature in stopped("table_unfit", fed, process, offset).what


def test_a_deletion_vector_is_refused(tmp_path: Path) -> None:
    fed = FedDelta(tmp_path / "t")
    fed.add(1)
    process = fed.process()
    _, offset = process.drain()
    vector = {"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    added = {"path": "x.parquet", "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
    fed.commit({"add": {**added, "deletionVector": vector}})
    assert "deletion vectors" in stopped("table_unfit", fed, process, offset).what


def test_a_table_that_may_have_deletion_vectors_and_has_none_is_read(tmp_path: Path) -> None:
    fed = FedDelta(tmp_path / "t")
    fed.write(numbered(1), configuration={"delta.enableDeletionVectors": "true"})
    assert "deletionVectors" in (fed.table.protocol().reader_features or ())
    fed.add(2)
    assert [[1, 2]] == fed.process().drain()[0]


def test_a_type_without_a_counterpart_is_refused(tmp_path: Path) -> None:
    fed = FedDelta(tmp_path / "t")
    fed.add(1)
    actions = [json.loads(line) for line in fed.log(0).read_text().splitlines()]
    (told,) = [one["metaData"] for one in actions if "metaData" in one]
    schema = json.loads(told["schemaString"])
    schema["fields"].append({"name": "x", "type": "interval day", "nullable": True, "metadata": {}})
    from fencepost.connectors.lake.source import strange  # noqa: PLC0415 - beside what it is about

    assert "interval day" == strange(schema)
    nested = {"type": "array", "elementType": {"type": "map", "keyType": "string", "valueType": "void"}}
    assert "void" == strange({"type": "struct", "fields": [{"name": "x", "type": nested}]})


# --- versions that are not additions


@pytest.mark.parametrize("how", ["delete", "overwrite", "update", "merge", "restore"])
def test_a_version_that_changed_rows_stops_the_stream(tmp_path: Path, how: str) -> None:
    fed = FedDelta(tmp_path / "t")
    fed.add(1, 2)
    fed.add(3)
    process = fed.process()
    _, offset = process.drain()
    table: DeltaTable = fed.table
    if how == "delete":
        table.delete("k = 1")
    elif how == "update":
        table.update(updates={"v": "'new'"}, predicate="k = 1")
    elif how == "overwrite":
        fed.write(numbered(9), mode="overwrite")
    elif how == "restore":
        table.restore(0)
    else:
        merge = table.merge(numbered(1), "s.k = t.k", source_alias="s", target_alias="t")
        merge.when_matched_update_all().execute()
    error = stopped("table_rewritten", fed, process, offset)
    assert isinstance(error, OperatorNeeded)
    assert f"version {fed.table.version()} removed or changed rows ({how.upper()}" in error.what.replace(
        "WRITE)", "OVERWRITE)"
    )


def test_a_restore_that_only_brings_rows_back_stops_the_stream_too(tmp_path: Path) -> None:
    """They were read before."""
    fed = FedDelta(tmp_path / "t")
    fed.add(1, 2)
    fed.remove(1)
    process = fed.process("latest")
    offset = process.latest(process.first())
    fed.table.restore(0)
    assert "RESTORE" in stopped("table_rewritten", fed, process, offset).what


def test_an_overwrite_of_an_empty_table_and_a_merge_that_only_inserts_are_additions(tmp_path: Path) -> None:
    fed = FedDelta(tmp_path / "t")
    DeltaTable.create(fed.folder, schema=numbered(1).schema)
    process = fed.process()
    offset = process.latest(process.first())
    fed.write(numbered(1), mode="overwrite")
    merge = fed.table.merge(numbered(2), "s.k = t.k", source_alias="s", target_alias="t")
    merge.when_not_matched_insert_all().execute()
    assert [[1, 2]] == process.drain(offset)[0]


# --- the log


def test_a_log_without_its_beginning_is_not_taken_for_the_table(tmp_path: Path) -> None:
    """The library reads what there is, and says nothing: rows would be missing."""
    fed = FedDelta(tmp_path / "t")
    for number in range(5):
        fed.add(number)
    told = [line for line in fed.log(0).read_text().splitlines() if '"protocol"' in line or '"metaData"' in line]
    fed.log(3).write_text(fed.log(3).read_text().rstrip("\n") + "\n" + "\n".join(told) + "\n")
    for version in range(3):
        fed.log(version).unlink()
    assert 2 == len(DeltaTable(fed.folder).file_uris())
    stopped("table_history_lost", fed, fed.process())


def test_checkpoints_of_the_log_make_no_difference(tmp_path: Path) -> None:
    fed = FedDelta(tmp_path / "t")
    for number in range(3):
        fed.add(number)
    process = fed.process(most=1)
    offset = process.latest(process.first())
    fed.table.create_checkpoint()
    fed.add(3)
    fed.table.create_checkpoint()
    fed.log(0).unlink()
    epochs, _ = fed.process(most=1).drain(offset)
    assert [1, 1, 1] == [len(epoch) for epoch in epochs]


def test_the_position_s_own_log_entry_may_be_gone(tmp_path: Path) -> None:
    fed = FedDelta(tmp_path / "t")
    fed.add(1)
    process = fed.process()
    _, offset = process.drain()
    fed.add(2)
    fed.table.create_checkpoint()
    fed.log(0).unlink()
    assert [[2]] == fed.process().drain(offset)[0]
    assert [[2]] == process.drain(offset)[0]


def test_many_versions_are_read_at_once(tmp_path: Path) -> None:
    fed = FedDelta(tmp_path / "t")
    for number in range(45):
        fed.add(number)
    assert [list(range(45))] == fed.process(0).drain()[0]


def test_a_log_entry_that_is_damaged_fails_the_epoch(tmp_path: Path) -> None:
    fed = FedDelta(tmp_path / "t")
    fed.add(1)
    process = fed.process()
    _, offset = process.drain()
    fed.log(1).write_text('{"add":')
    assert isinstance(stopped("table_silent", fed, process, offset), EpochFailed)


# --- files of other writers


def foreign(fed: FedDelta, table: pa.Table, **options: Any) -> None:
    """A version with a file that the library did not write."""
    path = fed.folder / f"foreign-{fed.table.version()}.parquet"
    pq.write_table(table, path, **options)
    added = {"path": path.name, "partitionValues": {}, "size": path.stat().st_size, "modificationTime": 0}
    fed.commit({"add": {**added, "dataChange": True}})


def test_times_of_spark_in_96_bits_are_read_beyond_the_range_of_nanoseconds(tmp_path: Path) -> None:
    fed = FedDelta(tmp_path / "t")
    schema = pa.schema([("k", pa.int64()), ("time", pa.timestamp("us", tz="UTC"))])
    fed.write(pa.Table.from_pylist([], schema))
    process = fed.process()
    offset = process.latest(process.first())
    times = [datetime(1000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC), None]
    rows = [{"k": number, "time": time} for number, time in enumerate(times)]
    foreign(fed, pa.Table.from_pylist(rows, schema), use_deprecated_int96_timestamps=True)
    end = process.latest(offset)
    assert rows == process.rows(offset, end)


def test_a_file_has_columns_in_its_own_order_case_and_width(tmp_path: Path) -> None:
    fed = FedDelta(tmp_path / "t")
    fed.write(pa.Table.from_pylist([], ALL_TYPES))
    process = fed.process()
    offset = process.latest(process.first())
    foreign(fed, pa.table({"TEXT": pa.array(["a"]).dictionary_encode(), "long": pa.array([7], pa.int32()), "odd": [1]}))
    end = process.latest(offset)
    assert [EMPTY | {"text": "a", "long": 7}] == process.rows(offset, end)


def test_a_struct_in_an_older_file_has_fewer_fields(tmp_path: Path) -> None:
    fed = FedDelta(tmp_path / "t")
    fed.write(pa.Table.from_pylist([], ALL_TYPES))
    process = fed.process()
    offset = process.latest(process.first())
    fewer, other = pa.struct([("d", pa.decimal128(9, 2))]), pa.struct([("gone", pa.int32())])
    older = {
        "list": pa.array([[{"a": 1}], None, []], pa.list_(pa.struct([("a", pa.int32())]))),
        "struct": pa.array([{"d": Decimal("1.00")}, None, {"d": None}], fewer),
        "map": pa.array([[("k", {"gone": 1})], None, []], pa.map_(pa.string(), other)),
    }
    foreign(fed, pa.table(older))
    rows = process.rows(offset, process.latest(offset))
    assert [[{"a": 1, "b": None}], None, []] == [row["list"] for row in rows]
    assert [{"in": None, "d": Decimal("1.00")}, None, {"in": None, "d": None}] == [row["struct"] for row in rows]
    assert [[("k", {"x": None})], None, []] == [row["map"] for row in rows]


def test_a_value_that_does_not_fit_fails_the_epoch_and_is_not_quoted(tmp_path: Path) -> None:
    fed = FedDelta(tmp_path / "t")
    fed.write(pa.Table.from_pylist([], ALL_TYPES))
    process = fed.process()
    offset = process.latest(process.first())
    foreign(fed, pa.table({"int": pa.array([2**40 + 4711])}))
    end = process.latest(offset)
    with pytest.raises(EpochFailed) as caught:
        process.rows(offset, end)
    assert "table_file_unreadable" == caught.value.code
    assert "column int is int64 in it, not int32" in caught.value.what
    assert str(2**40 + 4711) not in str(caught.value)


@pytest.mark.parametrize("version", ["2.4.8", "3.0.1"])
def test_old_dates_of_an_old_spark_are_refused_rather_than_shifted(tmp_path: Path, version: str) -> None:
    fed = FedDelta(tmp_path / "t")
    fed.write(pa.Table.from_pylist([], ALL_TYPES))
    process = fed.process()
    offset = process.latest(process.first())
    new = pa.table({"day": [date(1950, 1, 1)]}).replace_schema_metadata({"org.apache.spark.version": version})
    foreign(fed, new)
    end = process.latest(offset)
    assert [date(1950, 1, 1)] == [row["day"] for row in process.rows(offset, end)]
    old = pa.table({"day": [date(1500, 1, 1)]}).replace_schema_metadata({"org.apache.spark.version": version})
    foreign(fed, old)
    with pytest.raises(EpochFailed) as caught:
        process.rows(end, process.latest(end))
    assert "Julian calendar" in caught.value.what


def test_a_file_elsewhere_is_named_by_its_whole_path(tmp_path: Path) -> None:
    """As in a shallow clone."""
    fed = FedDelta(tmp_path / "t")
    fed.add(1)
    process = fed.process()
    _, offset = process.drain()
    path = tmp_path / "else where.parquet"
    pq.write_table(numbered(2), path)
    url = f"file://{path}".replace(" ", "%20")
    added = {"path": url, "partitionValues": {}, "size": path.stat().st_size, "modificationTime": 0, "dataChange": True}
    fed.commit({"add": added})
    assert [[2]] == process.drain(offset)[0]


# --- credentials


def test_storage_options_become_those_of_the_tasks_own_client() -> None:
    assert {
        "access_key": "a",
        "secret_key": "b",
        "session_token": "c",
        "region": "r",
        "endpoint_override": "localhost:9000",
        "scheme": "http",
        "force_virtual_addressing": "false",
    } == storage_of(
        {
            "AWS_ACCESS_KEY_ID": "a",
            "aws_secret_access_key": "b",
            "AWS_SESSION_TOKEN": "c",
            "region": "r",
            "AWS_ENDPOINT_URL": "http://localhost:9000",
            "AWS_ALLOW_HTTP": "true",
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
        }
    )
