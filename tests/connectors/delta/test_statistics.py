"""Statistics of data files: no reader may skip a file that has a row it looks for."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta_log import DeltaLog
from delta_tables import append, made, rows_of, table_at
from deltalake import DeltaTable, QueryBuilder

from fencepost.connectors.delta.statistics import LETTERS, Skipping
from fencepost.connectors.lake.session import TableRows

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FLOATS = [0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 1e-300, 3.4e38]
LETTER = ["a", "b", "ü", "𝄞", "\U0010ffff", "\x00", "\uffff"]


def text(chance: random.Random) -> str:
    return "".join(chance.choices(LETTER, k=chance.choice([0, 1, 2, LETTERS - 1, LETTERS, LETTERS + 1, 60])))


def below(chance: random.Random) -> dict[str, Any] | None:
    return chance.choice([None, {"z": text(chance), "f": math.nan}])


BELOW = pa.struct([("z", pa.string()), ("f", pa.float64())])
DRAWN: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "byte": (pa.int8(), lambda chance: chance.randint(-128, 127)),
    "long": (pa.int64(), lambda chance: chance.choice([-(2**63), 2**63 - 1, chance.randint(-9, 9)])),
    "float": (pa.float32(), lambda chance: chance.choice(FLOATS)),
    "double": (pa.float64(), lambda chance: chance.choice([*FLOATS[:2], chance.random()])),
    "text": (pa.string(), text),
    "bytes": (pa.binary(), lambda chance: chance.randbytes(3)),
    "yes": (pa.bool_(), lambda chance: chance.random() < 0.5),
    "day": (pa.date32(), lambda chance: date(1, 1, 1) + timedelta(days=chance.randrange(3_652_059))),
    "time": (
        pa.timestamp("us", tz="UTC"),
        lambda chance: EPOCH + timedelta(microseconds=chance.randint(-(10**16), 10**16)),
    ),
    "clock": (
        pa.timestamp("us"),
        lambda chance: EPOCH.replace(tzinfo=None) + timedelta(microseconds=chance.randint(-2000, 2000)),
    ),
    "short_decimal": (pa.decimal128(15, 5), lambda chance: Decimal(chance.randrange(10**15)).scaleb(-5) - 7),
    "long_decimal": (pa.decimal128(38, 5), lambda chance: Decimal(chance.randint(-(10**30), 10**30)).scaleb(-5)),
    "numbers": (pa.list_(pa.int32()), lambda chance: [chance.randint(-9, 9)]),
    "words": (pa.map_(pa.string(), pa.int32()), lambda chance: [("a", chance.randint(-9, 9))]),
    "nested": (
        pa.struct([("x", pa.int64()), ("l", pa.list_(pa.int8())), ("y", BELOW)]),
        lambda chance: chance.choice([None, {"x": chance.randint(-9, 9), "l": [1, 2], "y": below(chance)}]),
    ),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in DRAWN.items()])


def leaves(rows: list[Any], path: tuple[str, ...]) -> list[Any]:
    for name in path:
        rows = [None if row is None else row[name] for row in rows]
    return rows


def paths(found: dict[str, Any], before: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    flat: dict[tuple[str, ...], Any] = {}
    for name, value in found.items():
        flat |= paths(value, (*before, name)) if isinstance(value, dict) else {(*before, name): value}
    return flat


def comparable(value: Any, bound: Any) -> tuple[Any, Any]:
    """Both in a type in which they can be compared, exactly."""
    if isinstance(value, datetime):
        zone = UTC if value.tzinfo else None
        return value, datetime.fromisoformat(bound.removesuffix("Z")).replace(tzinfo=zone)
    if isinstance(value, date):
        return value, date.fromisoformat(bound)
    if isinstance(value, Decimal):
        return value, Decimal(repr(bound))
    if isinstance(value, str):
        return value.encode(), bound.encode()
    return value, bound


@pytest.mark.parametrize("seed", range(40))
def test_bounds_enclose_every_value_and_counts_are_right(tmp_path: Path, seed: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("fencepost.connectors.delta.files.GROUP_ROWS", 7)
    chance = random.Random(seed)
    table = made(tmp_path / "table", SCHEMA, properties={"delta.dataSkippingNumIndexedCols": "-1"})
    nulls = chance.choice([0.0, 0.3, 1.0])
    drawn = [
        {name: None if chance.random() < nulls else draw(chance) for name, (_, draw) in DRAWN.items()}
        for _ in range(chance.choice([1, 5, 30]))
    ]
    append(table, 0, rows_of(*drawn, schema=SCHEMA))
    log = DeltaLog(tmp_path / "table")
    [path] = log.files
    rows = log.rows_in(path)
    found = log.statistics(path)
    assert len(rows) == found["numRecords"]
    for at, count in paths(found["nullCount"]).items():
        assert sum(value is None for value in leaves(rows, at)) == count, at
    for at, low in paths(found["minValues"]).items():
        for value in leaves(rows, at):
            if value is not None:
                mine, bound = comparable(value, low)
                assert bound <= mine, at
    for at, high in paths(found["maxValues"]).items():
        for value in leaves(rows, at):
            if value is not None:
                mine, bound = comparable(value, high)
                assert mine <= bound, at


def test_there_are_bounds_where_they_are_certain(tmp_path: Path) -> None:
    """A test that finds no wrong bound among none would find nothing."""
    table = made(tmp_path / "table", SCHEMA)
    chance = random.Random(1)
    row = {name: draw(chance) for name, (_, draw) in DRAWN.items()}
    row |= {"nested": {"x": 1, "l": [1], "y": {"z": "a", "f": 1.0}}, "float": 1.5, "double": 0.5, "text": "a"}
    append(table, 0, rows_of(row, schema=SCHEMA))
    log = DeltaLog(tmp_path / "table")
    [path] = log.files
    found = log.statistics(path)
    names = {"byte", "long", "float", "double", "text", "day", "time", "clock", "short_decimal"}
    expected = {(name,) for name in names} | {("nested", "x"), ("nested", "y", "z")}
    assert expected == set(paths(found["minValues"])) == set(paths(found["maxValues"]))
    more = {("bytes",), ("yes",), ("long_decimal",), ("nested", "y", "f")}
    assert expected | more == set(paths(found["nullCount"]))


def statistics_of(tmp_path: Path, *values: Any, kind: pa.DataType) -> dict[str, Any]:
    schema = pa.schema([("c", kind)])
    table = made(tmp_path / "table", schema)
    append(table, 0, TableRows(pa.table({"c": pa.array(values, kind)}, schema=schema)))
    log = DeltaLog(tmp_path / "table")
    [path] = log.files
    return {key: value for key, value in log.statistics(path).items() if value != {}}


@pytest.mark.parametrize(
    ("kind", "values", "low", "high"),
    [
        (pa.string(), ["a" * 33, "b"], "a" * 32, "b"),
        (pa.string(), ["a" * 33], "a" * 32, "a" * 32 + "\U0010ffff"),
        (pa.string(), ["a" * 32 + "\U0010ffff"], "a" * 32, None),
        (pa.string(), ["", None], "", ""),
        (pa.float64(), [1.0, math.nan], None, None),
        (pa.float64(), [1.0, math.inf], 1.0, None),
        (pa.float64(), [-0.0, 0.0], -0.0, 0.0),
        (pa.timestamp("us", tz="UTC"), [1500, -1500], "1969-12-31T23:59:59.998Z", "1970-01-01T00:00:00.002Z"),
        (pa.timestamp("us"), [1000], "1970-01-01T00:00:00.001", "1970-01-01T00:00:00.001"),
        (pa.timestamp("us"), [2**62], None, None),
        (pa.date32(), [0], "1970-01-01", "1970-01-01"),
        (pa.decimal128(15, 2), [Decimal("1.10"), Decimal("-2.00")], -2.0, 1.1),
        (pa.decimal128(16, 2), [Decimal("1.10")], None, None),
        (pa.int64(), [None], None, None),
    ],
)
def test_bounds_are_written_as_delta_does(tmp_path: Path, kind: pa.DataType, values: Any, low: Any, high: Any) -> None:
    found = statistics_of(tmp_path, *values, kind=kind)
    assert repr((low, high)) == repr(tuple(found.get(key, {}).get("c") for key in ("minValues", "maxValues")))


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, ["a", "s", "z"]),
        ({"delta.dataSkippingNumIndexedCols": "2"}, ["a", "s"]),
        ({"delta.dataSkippingNumIndexedCols": "0"}, []),
        ({"delta.dataSkippingStatsColumns": "z,`s`.x"}, ["z"]),
        ({"delta.dataSkippingStatsColumns": "s.x, `z`"}, ["s", "z"]),
    ],
)
def test_statistics_are_kept_for_the_columns_that_the_table_wants(
    tmp_path: Path, properties: dict[str, str], expected: list[str]
) -> None:
    schema = pa.schema([("a", pa.int64()), ("s", pa.struct([("x", pa.int64()), ("y", pa.int64())])), ("z", pa.int64())])
    table = made(tmp_path / "table", schema, properties=properties)
    append(table, 0, rows_of({"a": 1, "s": {"x": 1, "y": 1}, "z": 1}, schema=schema))
    log = DeltaLog(tmp_path / "table")
    [path] = log.files
    assert expected == list(log.statistics(path)["nullCount"])


def test_settings_that_nobody_understands_collect_nothing() -> None:
    assert Skipping(0) == Skipping.of({"delta.dataSkippingNumIndexedCols": "many"})


def test_a_reader_that_skips_finds_every_row(tmp_path: Path) -> None:
    """The library's own reader skips files by these statistics."""
    kinds = {
        name: kind for name, (kind, _) in DRAWN.items() if name in {"long", "text", "day", "short_decimal", "double"}
    }
    schema = pa.schema([("n", pa.int64()), *kinds.items()])
    table = made(tmp_path / "table", schema)
    chance = random.Random(7)
    rows: list[dict[str, Any]] = []
    for epoch in range(8):
        table.load()
        some = [{name: DRAWN[name][1](chance) for name in kinds} | {"n": 10 * epoch + n} for n in range(3)]
        append(table, epoch, rows_of(*some, schema=schema))
        rows += some
    reader = QueryBuilder().register("t", DeltaTable(tmp_path / "table"))
    for name in kinds:
        for row in chance.sample(rows, 6):
            if isinstance(row[name], str) and "\x00" in row[name]:
                continue
            value = f"'{row[name]}'" if isinstance(row[name], str | date | Decimal) else repr(row[name])
            value = f"CAST({value} AS DECIMAL(15, 5))" if isinstance(row[name], Decimal) else value
            found = pa.table(reader.execute(f"SELECT n FROM t WHERE {name} = {value}"))  # noqa: S608 - ours
            expected = [one["n"] for one in rows if one[name] == row[name]]
            assert expected == sorted(found["n"].to_pylist()), name


def test_files_of_other_writers_do_not_matter(tmp_path: Path) -> None:
    table = made(tmp_path / "table")
    append(table, 0, rows_of({"k": 1, "v": "a"}))
    again = table_at(tmp_path / "table")
    assert again.load()
    assert again.misfits(pa.schema([("k", pa.int64())]), may_add=False) == []
