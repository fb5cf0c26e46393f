"""Which columns fit, and that rows are kept exactly or refused without a word about their values."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from icebergs import FOLDER, JOB, SINK, Lake, mark_of, rows_of
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
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

from fencepost.connectors.iceberg.columns import declared, fits, fitted, misfits, refuse_nulls, schema_for
from fencepost.connectors.table.database import BadValue

pytestmark = pytest.mark.in_memory

STRUCT = pa.struct([("x", pa.int16()), ("tags", pa.list_(pa.struct([("t", pa.string())])))])
OF_SPARK: dict[pa.DataType, tuple[str, list[Any]]] = {
    pa.int8(): ("int", [-128, 127, None]),
    pa.int16(): ("int", [-(2**15), 2**15 - 1, None]),
    pa.int32(): ("int", [-(2**31), 2**31 - 1, None]),
    pa.int64(): ("long", [-(2**63), 2**63 - 1, None]),
    pa.float32(): ("float", [1.5, float("inf"), None]),
    pa.float64(): ("double", [0.1, float("-inf"), None]),
    pa.bool_(): ("boolean", [True, False, None]),
    pa.string(): ("string", ["", "ünï\0", None]),
    pa.large_string(): ("string", ["x", None]),
    pa.binary(): ("binary", [b"", b"\0\xff", None]),
    pa.binary(3): ("fixed[3]", [b"abc", None]),
    pa.date32(): ("date", [date(1, 1, 1), date(9999, 12, 31), None]),
    pa.timestamp("us"): ("timestamp", [datetime.min, datetime.max, None]),  # noqa: DTZ901 - it has no zone
    pa.timestamp("us", "Europe/Berlin"): ("timestamptz", [datetime(1969, 12, 31, 23, tzinfo=UTC), None]),
    pa.time64("ns"): ("time", [time(23, 59, 59, 999999), None]),
    pa.decimal128(38, 10): ("decimal(38, 10)", [Decimal("12345678901234567890.0123456789"), Decimal("-0E-10"), None]),
    pa.decimal128(9, 2): ("decimal(9, 2)", [Decimal("-9999999.99"), None]),
    pa.decimal128(18, 0): ("decimal(18, 0)", [Decimal(10**18 - 1), None]),
}
NESTED: dict[pa.DataType, list[Any]] = {
    STRUCT: [None, {"x": None, "tags": None}, {"x": 1, "tags": []}, {"x": 1, "tags": [None, {"t": None}, {"t": "a"}]}],
    pa.map_(pa.string(), STRUCT): [None, [], [("k", None), ("l", {"x": 1, "tags": None})]],
    pa.list_(pa.list_(pa.int8())): [None, [], [None, [], [1, None]]],
}


def written(lake: Lake, kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("id", pa.int64()), ("value", kind)])
    table = lake.made(schema=schema)
    rows = rows_of([{"id": place, "value": value} for place, value in enumerate(values)], schema)
    table.check_rows(rows)
    table.append(table.write(FOLDER, "handle", rows), JOB, SINK, mark_of(0))
    assert [] == table.misfits(schema, may_add=False)


@pytest.mark.parametrize("kind", OF_SPARK, ids=str)
def test_every_type_of_spark_comes_back_as_it_went(lake: Lake, kind: pa.DataType) -> None:
    shown, values = OF_SPARK[kind]
    written(lake, kind, values)
    assert shown == str(lake.raw.schema().find_type("value"))
    assert values == [row["value"] for row in lake.on_disk()]
    assert values == [row["value"] for row in lake.rows()]


@pytest.mark.parametrize("kind", NESTED, ids=str)
def test_nested_values_come_back_with_every_null(lake: Lake, kind: pa.DataType) -> None:
    """Read by Arrow from the files: the library's own scan shows NULL as an empty list."""
    written(lake, kind, NESTED[kind])
    assert NESTED[kind] == [row["value"] for row in lake.on_disk()]


def test_rows_are_read_from_the_middle_of_a_batch() -> None:
    """A batch may be a slice, and nested values a slice of a slice."""
    schema = pa.schema([("value", pa.list_(STRUCT)), ("map", pa.map_(pa.string(), STRUCT))])
    value = [None, {"x": 5, "tags": [{"t": "a"}]}]
    rows = [{"value": None, "map": None}, {"value": value, "map": [("k", value[1])]}, {"value": [], "map": []}] * 3
    batch = pa.RecordBatch.from_pylist(rows, schema).slice(1, 5)
    found = fitted(batch, schema_for(schema))
    found.validate(full=True)
    assert batch.to_pylist() == found.to_pylist()


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.int8(), LongType()),
        (pa.int32(), DoubleType()),
        (pa.int32(), DecimalType(12, 2)),
        (pa.int64(), DecimalType(19, 0)),
        (pa.float32(), DoubleType()),
        (pa.decimal128(5, 2), DecimalType(7, 3)),
        (pa.timestamp("ms"), TimestampType()),
        (pa.timestamp("ns", "UTC"), TimestamptzType()),
        (pa.time32("s"), TimeType()),
        (pa.binary(), FixedType(4)),
        (pa.binary(16), UUIDType()),
        (pa.string(), UUIDType()),
        (pa.binary(4), BinaryType()),
        (pa.null(), StructType(NestedField(1, "x", LongType(), required=False))),
        (pa.dictionary(pa.int8(), pa.string()), StringType()),
        (
            pa.struct([("b", pa.int8())]),
            StructType(
                NestedField(1, "a", LongType(), required=False), NestedField(2, "b", LongType(), required=False)
            ),
        ),
    ],
)
def test_wider_columns_fit(kind: pa.DataType, column: IcebergType) -> None:
    assert fits(kind, column)


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.int64(), IntegerType()),
        (pa.int64(), DoubleType()),
        (pa.int32(), FloatType()),
        (pa.int64(), DecimalType(18, 0)),
        (pa.uint64(), LongType()),
        (pa.float64(), FloatType()),
        (pa.decimal128(7, 3), DecimalType(5, 2)),
        (pa.decimal128(7, 3), DecimalType(7, 2)),
        (pa.timestamp("us"), TimestamptzType()),
        (pa.timestamp("us", "UTC"), TimestampType()),
        (pa.timestamp("us"), DateType()),
        (pa.date32(), TimestampType()),
        (pa.binary(5), FixedType(4)),
        (pa.binary(15), UUIDType()),
        (pa.string(), BinaryType()),
        (pa.binary(), StringType()),
        (pa.bool_(), IntegerType()),
        (pa.string(), ListType(1, StringType(), element_required=False)),
        (pa.list_(pa.string()), ListType(1, UUIDType(), element_required=False)),
        (pa.list_(pa.int64()), ListType(1, IntegerType(), element_required=False)),
        (pa.map_(pa.string(), pa.int64()), MapType(1, StringType(), 2, IntegerType(), value_required=False)),
        (pa.struct([("a", pa.int8()), ("b", pa.int8())]), StructType(NestedField(1, "a", LongType(), required=False))),
        (pa.struct([("A", pa.int8())]), StructType(NestedField(1, "a", LongType(), required=False))),
        (
            pa.struct([("a", pa.int8())]),
            StructType(NestedField(1, "a", LongType(), required=False), NestedField(2, "b", LongType(), required=True)),
        ),
        (pa.duration("us"), LongType()),
        (pa.int8(), BooleanType()),
    ],
)
def test_narrower_and_other_columns_do_not_fit(kind: pa.DataType, column: IcebergType) -> None:
    assert not fits(kind, column)


@pytest.mark.parametrize("kind", [pa.uint64(), pa.duration("us"), pa.null(), pa.struct([]), pa.decimal256(50, 2)])
def test_a_type_without_a_counterpart_has_none(kind: pa.DataType) -> None:
    with pytest.raises(KeyError):
        declared(kind)


def test_misfits_are_all_named_at_once() -> None:
    there = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "word", StringType(), required=False),
        NestedField(3, "must", LongType(), required=True),
    )
    rows = pa.schema([("id", pa.string()), ("Word", pa.string()), ("new", pa.duration("s")), ("NEW", pa.int8())])
    assert [
        "column 'id' is long, which cannot hold every string",
        "column 'Word' is missing (did you mean 'word'?)",
        "column 'new' is missing",
        "column 'NEW' is missing",
        "columns 'NEW', 'new' differ only in case",
        "column 'must' is required, but the DataFrame does not have it",
    ] == misfits(rows, there, may_add=False)
    assert [
        "column 'id' is long, which cannot hold every string",
        "column 'Word' cannot be added beside 'word': most readers ignore case",
        "column 'new' is duration[s], for which Iceberg has no type",
        "columns 'NEW', 'new' differ only in case",
        "column 'must' is required, but the DataFrame does not have it",
    ] == misfits(rows, there, may_add=True)
    assert ["column 'id' appears twice"] == misfits(
        pa.schema([("id", pa.int64()), ("id", pa.int64()), ("must", pa.int8())]), there, may_add=False
    )


REQUIRED = Schema(
    NestedField(1, "a b", LongType(), required=True),
    NestedField(2, "s", StructType(NestedField(3, "x", IntegerType(), required=True)), required=False),
    NestedField(
        4,
        "l",
        ListType(5, StructType(NestedField(6, "k", LongType(), required=True)), element_required=True),
        required=False,
    ),
    NestedField(7, "m", MapType(8, StringType(), 9, LongType(), value_required=True), required=False),
)
ROWS = pa.schema(
    [
        ("a b", pa.int64()),
        ("s", pa.struct([("x", pa.int64())])),
        ("l", pa.list_(pa.struct([("k", pa.int64())]))),
        ("m", pa.map_(pa.string(), pa.int64())),
    ]
)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({}, None),
        ({"s": None, "l": [], "m": []}, None),
        ({"s": {"x": 1}, "l": [{"k": 1}], "m": [("k", 1)]}, None),
        ({"a b": None}, "NULL in column 'a b', which is required"),
        ({"s": {"x": None}}, "NULL in column 's.x', which is required"),
        ({"l": [None]}, "NULL in column 'l.element', which is required"),
        ({"l": [{"k": None}]}, "NULL in column 'l.element.k', which is required"),
        ({"m": [("k", None)]}, "NULL in column 'm.value', which is required"),
    ],
)
def test_null_where_a_value_is_required_is_named(row: dict[str, Any], why: str | None) -> None:
    good = {"a b": 1, "s": {"x": 1}}
    small = pa.schema([(one.name, pa.struct([("x", pa.int32())]) if one.name == "s" else one.type) for one in ROWS])
    batch = pa.RecordBatch.from_pylist([good, {"a b": 1} | row, good], small).slice(1)
    found = None
    try:
        refuse_nulls(fitted(batch, REQUIRED), REQUIRED)
    except BadValue as error:
        found = str(error)
    assert why == found


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        (pa.timestamp("ns"), TimestampType(), 1_234_567_891),
        (pa.time64("ns"), TimeType(), 1_001),
        (pa.binary(), FixedType(4), b"secret"),
        (pa.binary(), UUIDType(), b"secret"),
        (pa.string(), UUIDType(), "secret"),
        (pa.string(), UUIDType(), "{00000000-0000-4000-8000-000000000000}"),
        (pa.string(), UUIDType(), "00000000-0000-4000-8000-00000000000A"),
    ],
)
def test_a_value_that_would_change_is_refused_without_being_quoted(
    kind: pa.DataType, column: IcebergType, value: Any
) -> None:
    schema = Schema(NestedField(1, "c", column, required=False))
    with pytest.raises(BadValue) as raised:
        fitted(pa.RecordBatch.from_arrays([pa.array([None, value], kind)], ["c"]), schema)
    assert f"column 'c' has a value that {column} cannot hold exactly" == str(raised.value)
    assert raised.value.__suppress_context__


def test_uuids_come_from_bytes_and_from_text() -> None:
    schema = Schema(NestedField(1, "c", UUIDType(), required=False))
    one = uuid.uuid4()
    for array in (pa.array([one.bytes, None], pa.binary(16)), pa.array([one.bytes, None]), pa.array([str(one), None])):
        found = fitted(pa.RecordBatch.from_arrays([array], ["c"]), schema)
        assert [one, None] == found.column(0).to_pylist()
    nothing = fitted(pa.RecordBatch.from_arrays([pa.nulls(2, pa.string())], ["c"]), schema)
    assert [None, None] == nothing.column(0).to_pylist()
