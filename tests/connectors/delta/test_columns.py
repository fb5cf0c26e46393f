"""Types and partitions of Delta tables: what is written is what a reader without the library finds."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta_log import DeltaLog
from delta_tables import JOB, SINK, append, by_hand, column, features, made, marked, rows_of, table_at
from deltalake import DeltaTable

from fencepost.connectors.delta.columns import columns_of, declared, divided, fits, schema_of
from fencepost.connectors.lake.session import TableRows
from fencepost.connectors.table.database import BadValue

SECRET = "row-canary-4711"  # noqa: S105
MOMENT = datetime(2026, 11, 17, 10, 20, 30, 123456, tzinfo=UTC)
PLAIN = MOMENT.replace(tzinfo=None)
FIRST, BEFORE = datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)
SPRING, AUTUMN = datetime(2026, 3, 29, 1, 30, tzinfo=UTC), datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
NESTED = pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string())]))])

VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [-128, 0, 127]),
    (pa.int16(), [-(2**15), 2**15 - 1]),
    (pa.int32(), [-(2**31), 2**31 - 1]),
    (pa.int64(), [-(2**63), 0, 2**63 - 1]),
    (pa.uint8(), [0, 255]),
    (pa.uint16(), [0, 2**16 - 1]),
    (pa.uint32(), [0, 2**32 - 1]),
    (pa.float32(), [-0.0, 1.5, float("inf")]),
    (pa.float64(), [-0.0, 0.1, 1e300, float("-inf")]),
    (pa.bool_(), [True, False]),
    (pa.string(), ["", "ü 𝄞", "x" * 100]),
    (pa.large_string(), ["", "x"]),
    (pa.binary(), [b"", bytes(range(256))]),
    (pa.binary(3), [b"abc"]),
    (pa.date32(), [date(1, 1, 1), date(1582, 10, 10), date(9999, 12, 31)]),
    (pa.timestamp("us", tz="UTC"), [MOMENT, FIRST, BEFORE]),
    (pa.timestamp("ms", tz="Europe/Berlin"), [MOMENT.replace(microsecond=123000)]),
    (pa.timestamp("us"), [PLAIN, FIRST.replace(tzinfo=None), LAST.replace(tzinfo=None)]),
    (pa.decimal128(5, 0), [Decimal(-99999), Decimal(0)]),
    (pa.decimal128(38, 10), [Decimal("0.0000000001"), Decimal("-9999999999999999999999999999.9999999999")]),
    (pa.decimal128(38, 38), [Decimal("0." + "9" * 38)]),
    (pa.list_(pa.int32()), [[], [1, None, 3]]),
    (pa.list_(pa.list_(pa.string())), [[["a"], None, []]]),
    (NESTED, [{"x": 1, "y": {"z": "a"}}, {"x": None, "y": None}]),
    (pa.map_(pa.string(), pa.list_(pa.date32())), [[("a", [date(2026, 1, 1)]), ("b", None)], []]),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a"]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_every_value_is_read_back_as_it_was(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("n", pa.int64()), ("value", kind)])
    table = made(tmp_path / "table", schema)
    all_ = [*values, None]
    rows = pa.table({"n": range(len(all_)), "value": pa.array(all_, kind)}, schema=schema)
    append(table, 0, TableRows(rows.slice(0, 1)))
    table.load()
    append(table, 1, TableRows(rows.slice(1)))  # an offset in the arrays
    found = {row["n"]: row["value"] for row in DeltaLog(tmp_path / "table").rows()}
    expected = [repr(_utc(value)) for value in all_]  # -0.0 is not 0.0
    assert expected == [repr(_utc(found[n])) for n in range(len(all_))]
    by_library = {row["n"]: row["value"] for row in pa.table(DeltaTable(tmp_path / "table").scan()).to_pylist()}
    assert expected == [repr(_utc(by_library[n])) for n in range(len(all_))]


def _utc(value: Any) -> Any:
    """A zone may be named by several objects."""
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo is not None else value


PARTITIONS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [-(2**63), 0, 7]),
    (pa.int8(), [-128, 127]),
    (pa.bool_(), [True, False]),
    (pa.string(), ["a", "ü/=%: \n\t\"'\\", "__HIVE_DEFAULT_PARTITION__", "null", " ", "x" * 240]),
    (pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
    (pa.timestamp("us", tz="UTC"), [MOMENT, BEFORE, FIRST]),
    (pa.timestamp("s", tz="Europe/Berlin"), [SPRING, AUTUMN]),
    (pa.timestamp("us"), [PLAIN, FIRST.replace(tzinfo=None), LAST.replace(tzinfo=None)]),
    (pa.decimal128(38, 10), [Decimal("0.0000000001"), Decimal(-12), Decimal("9" * 28 + ".9")]),
    (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("0.00")]),
]


@pytest.mark.parametrize(("kind", "values"), PARTITIONS, ids=[str(kind) for kind, _ in PARTITIONS])
def test_partitions_are_read_back_as_they_were(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("part", kind), ("n", pa.int64())])
    table = made(tmp_path / "table", schema, partition_by=("part",))
    all_ = [*values, None] * 2
    rows = pa.table({"part": pa.array(all_, kind), "n": range(len(all_))}, schema=schema)
    append(table, 0, TableRows(rows))
    found = DeltaLog(tmp_path / "table")
    assert len(values) + 1 == len(found.files)
    by_number = {row["n"]: row["part"] for row in found.rows()}
    expected = rows["part"].cast(columns_of(schema_of(schema))[0].stored).to_pylist()
    assert [_utc(value) for value in expected] == [_utc(by_number[n]) for n in range(len(all_))]
    by_library = pa.table(DeltaTable(tmp_path / "table").scan()).to_pylist()
    assert {n: _utc(value) for n, value in by_number.items()} == {row["n"]: _utc(row["part"]) for row in by_library}


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.decimal128(38, 10), Decimal("0.0000000001"), "0.0000000001"),
        (pa.decimal128(10, 2), Decimal(5), "5.00"),
        (pa.timestamp("us", tz="UTC"), MOMENT, "2026-11-17T10:20:30.123456Z"),
        (pa.timestamp("us"), PLAIN.replace(microsecond=0), "2026-11-17 10:20:30.000000"),
        (pa.date32(), date(1, 2, 3), "0001-02-03"),
        (pa.bool_(), True, "true"),
        (pa.int8(), -1, "-1"),
    ],
)
def test_partitions_are_written_as_delta_does(tmp_path: Path, kind: pa.DataType, value: Any, expected: str) -> None:
    schema = pa.schema([("part", kind), ("n", pa.int64())])
    table = made(tmp_path / "table", schema, partition_by=("part",))
    append(table, 0, rows_of({"part": value, "n": 1}, {"part": None, "n": 2}, schema=schema))
    found = [add["partitionValues"]["part"] for add in DeltaLog(tmp_path / "table").files.values()]
    assert [expected, None] == found


def test_several_partition_columns_are_told_apart(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.string()), ("n", pa.int64()), ("b", pa.int32())])
    table = made(tmp_path / "table", schema, partition_by=("b", "a"))
    rows = [
        {"a": a, "b": b, "n": n}
        for n, (a, b) in enumerate([("x", 1), ("x", 2), ("y", 1), (None, 1), ("x", None), ("x", 1)])
    ]
    append(table, 0, rows_of(*rows, schema=schema))
    found = DeltaLog(tmp_path / "table")
    assert (5, rows) == (len(found.files), sorted(found.rows(), key=lambda row: row["n"]))
    assert ["b", "a"] == found.metadata["partitionColumns"]


def test_many_partition_columns_with_many_values_are_told_apart() -> None:
    """Their numbers multiplied are more than 64 bits."""
    names = [f"p{n}" for n in range(6)]
    batch = pa.record_batch({name: pa.array(range(2_000)) for name in names} | {"n": pa.array(range(2_000))})
    found = {values: rows["n"].to_pylist() for values, rows in divided(batch, names)}
    assert {(str(n),) * 6: [n] for n in range(2_000)} == found


@pytest.mark.parametrize("how", ["extend", "upsert"])
def test_partitions_that_the_library_writes_are_read_back_too(tmp_path: Path, how: str) -> None:
    schema = pa.schema([("day", pa.date32()), ("k", pa.int64())])
    table = made(tmp_path / "table", schema, partition_by=("day",))
    rows = [{"day": date(2026, 1, n % 2 + 1) if n else None, "k": n} for n in range(4)]
    if how == "upsert":
        table.upsert(rows_of(*rows, schema=schema), ["k"], None, JOB, SINK, marked(table, 0))
    else:
        rows = [{**row, "new": row["k"]} for row in rows]
        table.extend(rows_of(*rows, schema=schema.append(pa.field("new", pa.int64()))), JOB, SINK, marked(table, 0))
    assert rows == sorted(DeltaLog(tmp_path / "table").rows(), key=lambda row: row["k"])


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (pa.string(), "", "an empty text, which readers of the table take for NULL"),
        (pa.string(), SECRET * 30, "a text that is too long for the name of a folder"),
        (pa.string(), "ü" * 30, "a text that is too long for the name of a folder"),
        (pa.date32(), 3_000_000, "a time outside of the years 1 to 9999"),
        (pa.timestamp("us"), -(2**62), "a time outside of the years 1 to 9999"),
    ],
)
def test_partition_values_that_readers_would_not_find_are_refused(
    tmp_path: Path, kind: pa.DataType, value: Any, words: str
) -> None:
    schema = pa.schema([("part", kind), ("n", pa.int64())])
    table = made(tmp_path / "table", schema, partition_by=("part",))
    raw = pa.array([value], pa.string() if kind == pa.string() else pa.int64() if kind != pa.date32() else pa.int32())
    rows = TableRows(pa.table({"part": raw.cast(kind), "n": [1]}, schema=schema))
    for tried in (lambda: table.check_rows(rows), lambda: table.write("fp-a", "h", rows)):
        with pytest.raises(BadValue) as found:
            tried()
        assert f"partition column 'part' has {words}" == str(found.value)


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1], pa.timestamp("ns", tz="UTC")),
        pa.array([[1]], pa.list_(pa.timestamp("ns", tz="UTC"))),
        pa.array([{"x": 1}], pa.struct([("x", pa.timestamp("ns", tz="UTC"))])),
        pa.array([2**62], pa.timestamp("s", tz="UTC")),
    ],
    ids=lambda array: str(array.type),
)
def test_a_value_that_would_be_changed_is_refused(tmp_path: Path, array: pa.Array) -> None:
    schema = pa.schema([("t", array.type)])
    table = made(tmp_path / "table", schema)
    rows = TableRows(pa.table({"t": array}))
    for tried in (lambda: table.check_rows(rows), lambda: table.write("fp-a", "h", rows)):
        with pytest.raises(BadValue) as found:
            tried()
        assert "column 't' has a value that cannot be written exactly" == str(found.value)


FITS = [
    (pa.int8(), "long", True),
    (pa.int32(), "integer", True),
    (pa.int64(), "integer", False),
    (pa.int32(), "double", True),
    (pa.int32(), "float", False),
    (pa.int16(), "float", True),
    (pa.int64(), "double", False),
    (pa.int64(), "decimal(19,0)", True),
    (pa.int64(), "decimal(18,0)", False),
    (pa.decimal128(10, 2), "decimal(12,4)", True),
    (pa.decimal128(10, 2), "decimal(11,4)", False),
    (pa.decimal128(10, 2), "decimal(12,1)", False),
    (pa.decimal128(10, 2), "double", False),
    (pa.float32(), "double", True),
    (pa.float64(), "float", False),
    (pa.string(), "string", True),
    (pa.string(), "binary", False),
    (pa.date32(), "timestamp", False),
    (pa.timestamp("us", tz="UTC"), "timestamp", True),
    (pa.timestamp("us"), "timestamp", False),
    (pa.timestamp("us", tz="UTC"), "timestamp_ntz", False),
    (pa.null(), "string", True),
    (pa.uint64(), "decimal(20,0)", True),
    (pa.uint64(), "long", False),
    (pa.string(), "variant", False),
    (pa.list_(pa.int8()), {"type": "array", "elementType": "long", "containsNull": True}, True),
    (pa.list_(pa.int64()), {"type": "array", "elementType": "byte", "containsNull": True}, False),
    (pa.struct([("x", pa.int8())]), {"type": "struct", "fields": [column("x")]}, True),
    (pa.struct([("y", pa.int8())]), {"type": "struct", "fields": [column("x")]}, False),
    (pa.struct([("x", pa.int8()), ("y", pa.int8())]), {"type": "struct", "fields": [column("x")]}, False),
]


@pytest.mark.parametrize(("kind", "there", "expected"), FITS, ids=str)
def test_a_column_fits_if_it_keeps_every_value(kind: pa.DataType, there: Any, expected: bool) -> None:
    [found] = columns_of(schema_of(pa.schema([("c", pa.string())])).replace('"string"', json.dumps(there)))
    assert expected is fits(kind, found)


def test_rows_are_widened_to_the_types_of_the_table(tmp_path: Path) -> None:
    there = pa.schema([("a", pa.int64()), ("d", pa.decimal128(20, 4)), ("l", pa.list_(pa.float64()))])
    table = made(tmp_path / "table", there)
    here = pa.schema([("l", pa.list_(pa.float32())), ("a", pa.int8()), ("d", pa.decimal128(10, 2))])
    assert [] == table.misfits(here, may_add=False)
    append(table, 0, rows_of({"a": 1, "d": Decimal("1.50"), "l": [0.5]}, schema=here))
    [row] = DeltaLog(tmp_path / "table").rows()
    assert {"a": 1, "d": Decimal("1.5000"), "l": [0.5]} == row


def test_columns_that_rows_do_not_have_are_null(tmp_path: Path) -> None:
    table = made(tmp_path / "table", pa.schema([("a", pa.int64()), ("b", pa.string())]))
    schema = pa.schema([("a", pa.int64())])
    assert [] == table.misfits(schema, may_add=False)
    append(table, 0, rows_of({"a": 1}, schema=schema))
    assert [{"a": 1, "b": None}] == DeltaLog(tmp_path / "table").rows()


def test_every_misfit_is_named(tmp_path: Path) -> None:
    schema = pa.schema([("Day", pa.date32()), ("a", pa.int64()), ("b", pa.string())])
    made(tmp_path / "table", schema, partition_by=("Day",))
    table = table_at(tmp_path / "table", partition_by=("a",))
    table.load()
    rows = pa.schema([("day", pa.date32()), ("a", pa.string()), ("new", pa.duration("us")), ("b", pa.string())])
    assert [
        "column 'day' is missing (did you mean 'Day'?)",
        "column 'a' is long, which cannot hold every string",
        "column 'new' is missing",
        "partition column 'Day' is missing",
        "it is partitioned by 'Day', not by 'a'",
    ] == table.misfits(rows, may_add=False)
    assert [
        "column 'day' is missing (did you mean 'Day'?)",
        "column 'a' is long, which cannot hold every string",
        "column 'new' is duration[us], and Delta has no type for duration[us]",
        "partition column 'Day' is missing",
        "it is partitioned by 'Day', not by 'a'",
    ] == table.misfits(rows, may_add=True)
    only = pa.schema([("Day", pa.date32())])
    assert ["there is no column beside those that it is partitioned by"] == table_like(table, tmp_path).misfits(
        only, may_add=False
    )


def table_like(table: Any, tmp_path: Path) -> Any:
    found = table_at(tmp_path / "table")
    found.load()
    return found


def test_times_without_a_zone_are_added_only_to_a_table_that_has_the_feature(tmp_path: Path) -> None:
    """The library would upgrade the table's protocol, and forget features that older protocols have without a list."""
    rows = pa.schema([("k", pa.int64()), ("n", pa.timestamp("us"))])
    table = made(tmp_path / "one")
    assert ["column 'n' would need the table feature timestampNtz, which the table does not have"] == table.misfits(
        rows, may_add=True
    )
    by_hand(tmp_path / "two", protocol=features("timestampNtz", readers=True))
    other = table_at(tmp_path / "two")
    other.load()
    assert [] == other.misfits(rows, may_add=True)


@pytest.mark.parametrize(
    ("schema", "settings", "words"),
    [
        (pa.schema([("a", pa.duration("us"))]), {}, "column 'a' is duration[us], and Delta has no type for"),
        (pa.schema([("a", pa.null())]), {}, "column 'a' is null, and Delta has no type for null"),
        (pa.schema([("a", pa.uint64())]), {}, "column 'a' is uint64, and Delta has no type for uint64"),
        (pa.schema([("a", pa.list_(pa.time64("us")))]), {}, "Delta has no type for time64[us]"),
        (pa.schema([("a", pa.struct([]))]), {}, "Delta has no type for struct<>"),
        (pa.schema([("a", pa.map_(pa.string(), pa.timestamp("us")))]), {}, "times without a zone in a map"),
        (pa.schema([("a", pa.int8()), ("A", pa.int8())]), {}, "columns 'a' and 'A' differ only in case, or not at all"),
        (pa.schema([("a b", pa.int8())]), {}, "column name 'a b' is empty or has a character of"),
        (pa.schema([("a", pa.struct([("x;", pa.int8())]))]), {}, "column 'a': column name 'x;' is empty or has"),
        (pa.schema([("", pa.int8())]), {}, "column name '' is empty"),
        (pa.schema([]), {}, "there is no column beside those that it is partitioned by"),
        (pa.schema([("a", pa.int8())]), {"partition_by": ("b",)}, "partition column 'b' is missing"),
        (pa.schema([("a", pa.int8())]), {"partition_by": ("a",)}, "there is no column beside those"),
        (pa.schema([("a", pa.int8()), ("b", pa.int8())]), {"partition_by": ("a", "a")}, "is named twice"),
        (pa.schema([("a", pa.int8()), ("b", pa.float64())]), {"partition_by": ("b",)}, "writers disagree"),
        (pa.schema([("a", pa.int8()), ("b", pa.binary())]), {"partition_by": ("b",)}, "writers disagree"),
        (pa.schema([("a", pa.int8()), ("b", pa.list_(pa.int8()))]), {"partition_by": ("b",)}, "cannot be partitioned"),
        (pa.schema([("a", pa.int8())]), {"properties": {"delta.bogus": "1"}}, "property 'delta.bogus'"),
        (pa.schema([("a", pa.int8())]), {"properties": {"delta.columnMapping.mode": "name"}}, "column mapping"),
        (
            pa.schema([("a", pa.int8())]),
            {"properties": {"delta.setTransactionRetentionDuration": "interval 1 days"}},
            "must be at least 365 days",
        ),
    ],
    ids=str,
)
def test_a_table_that_cannot_be_made_is_refused_before(
    tmp_path: Path, schema: pa.Schema, settings: dict[str, Any], words: str
) -> None:
    table = table_at(tmp_path / "table", **settings)
    [found] = table.uncreatable(schema)
    assert words in found
    assert [] == list(tmp_path.iterdir())


def test_a_folder_with_other_files_is_not_made_a_table(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    schema = pa.schema([("a", pa.int8())])
    words = "there is something else at this path, a file or a folder with files"
    assert [words] == table_at(tmp_path).uncreatable(schema)
    assert [words] == table_at(tmp_path / "thesis.txt").uncreatable(schema)


def test_properties_and_partitions_of_a_new_table_are_as_told(tmp_path: Path) -> None:
    schema = pa.schema([("day", pa.date32()), ("a", pa.int8())])
    properties = {"delta.checkpointInterval": "7", "owner": "us"}
    made(tmp_path / "table", schema, partition_by=("day",), properties=properties)
    log = DeltaLog(tmp_path / "table")
    assert (properties, ["day"]) == (log.metadata["configuration"], log.metadata["partitionColumns"])


def test_arrow_types_have_the_delta_types_that_spark_gives_them() -> None:
    kinds = {
        "byte": pa.int8(),
        "short": pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": pa.timestamp("us"),
        "string": pa.string(),
        "binary": pa.binary(),
        "decimal(10,2)": pa.decimal128(10, 2),
    }
    assert list(kinds) == [declared(kind) for kind in kinds.values()]


def test_zones_are_one_instant(tmp_path: Path) -> None:
    there = pa.schema([("t", pa.timestamp("us", tz="UTC"))])
    table = made(tmp_path / "table", there)
    moment = datetime(2026, 6, 1, 12, tzinfo=timezone(timedelta(hours=5)))
    here = pa.schema([("t", pa.timestamp("us", tz="+05:00"))])
    append(table, 0, rows_of({"t": moment}, schema=here))
    [row] = DeltaLog(tmp_path / "table").rows()
    assert moment == row["t"]
