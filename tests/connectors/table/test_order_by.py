"""Which of two rows with the same key stays: the one that `order_by` calls the last, however they came."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import orders
import pyarrow as pa
import pytest

import fencepost as fp
from fencepost.contract import Keyed, SortedRows, sorted_places
from fencepost.errors import BadConfig, EpochFailed, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.testing import SinkDriver

SCHEMA = pa.schema({"k": pa.string(), "at": pa.int64(), "v": pa.string()})
ROWS = [("a", 5, "new"), ("a", None, "none"), ("a", 3, "old"), ("b", 1, "x"), ("b", 1, "y")]
LAST = {("a", 5, "new"), ("b", 1, "y")}
"""NULL is the smallest; if the values are equal, the other columns decide."""

FILES: dict[str, Callable[..., Any]] = {"sqlite": fp.SQLite, "duckdb": fp.DuckDB}


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def stored(driver: SinkDriver) -> set[tuple[Any, ...]]:
    return set(selected(driver, 'SELECT k, "at", v FROM t'))


def selected(driver: SinkDriver, statement: str) -> list[tuple[Any, ...]]:
    database = driver.session.database  # type: ignore[attr-defined]
    database.look()
    try:
        return [tuple(row) for row in database.run(statement)]
    finally:
        database.undo()


def started(make: Callable[..., Any], tmp_path: Path, **settings: Any) -> SinkDriver:
    driver = SinkDriver(make(tmp_path / "t.db", table="t", key="k", **settings), tmp_path)
    driver.start(SCHEMA)
    return driver


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_the_row_with_the_greatest_value_stays_in_whatever_order_they_come(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    driver = started(make, tmp_path, order_by="at")
    for epoch, rows in enumerate(list(itertools.permutations(ROWS))[::17]):
        driver.run(epoch, table(list(rows)))
        assert LAST == stored(driver)
    driver.session.close()


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_the_greatest_stays_whatever_the_epochs_it_came_in(make: Callable[..., Any], tmp_path: Path) -> None:
    """As in the files `a,5,new` and `a,3,old`: in one epoch or in two, before or after a crash."""
    driver = started(make, tmp_path, order_by="at")
    for epoch, row in enumerate(
        [("a", 3, "old"), ("a", 5, "new"), ("a", 4, "late"), ("a", None, "none"), ("b", 1, "x")]
    ):
        driver.run(epoch, table([row]))
    assert {("a", 5, "new"), ("b", 1, "x")} == stored(driver)
    driver.run(5, table([("a", 5, "equal, and later")]))
    driver.session.write(6, driver.rows(6, table([("b", 0, "older"), ("c", 1, "z")])))  # type: ignore[arg-type]
    assert {("a", 5, "equal, and later"), ("b", 1, "x"), ("c", 1, "z")} == stored(driver)
    driver.session.close()


@pytest.fixture(params=FILES)
def words(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., tuple[SinkDriver, Any]]]:
    """A driver on an empty table, and how to read it."""
    drivers = []

    def make(schema: pa.Schema, **settings: Any) -> tuple[SinkDriver, Any]:
        sink = FILES[request.param](tmp_path / "words.db", **{"table": "words", "key": "n"} | settings)
        driver = SinkDriver(sink, tmp_path)
        drivers.append(driver)
        driver.start(schema)
        return driver, partial(selected, driver)

    yield make
    for driver in drivers:
        driver.session.close()


@pytest.mark.parametrize("deletes", [None, "gone"], ids=["replaced", "removed"])
@pytest.mark.parametrize("name", orders.ASCENDING)
def test_the_table_orders_values_of_every_type_as_spark_does(words: Any, name: str, deletes: str | None) -> None:
    kind, values = orders.ASCENDING[name]
    schema = orders.schema_of(["v"], kind, deletes=deletes is not None)
    driver, read = words(schema, order_by="v", deletes=deletes)
    orders.check(driver, kind, values, read)


@pytest.mark.parametrize("deletes", [None, "gone"], ids=["replaced", "removed"])
def test_several_columns_are_compared_from_left_to_right(words: Any, deletes: str | None) -> None:
    schema = orders.schema_of("abc", pa.int64(), deletes=deletes is not None)
    driver, read = words(schema, order_by=("a", "b", "c"), deletes=deletes)
    orders.check_several(driver, read)


@pytest.mark.parametrize("name", orders.ASCENDING)
def test_the_values_of_these_tests_rise_as_arrow_sorts_them(name: str) -> None:
    kind, values = orders.ASCENDING[name]
    places = sorted_places(pa.table({"v": pa.array([*values[::-1], None], kind)}), ["v"]).to_pylist()
    assert [*range(len(values), -1, -1)] == places


def test_nan_is_the_greatest_or_refused(tmp_path: Path) -> None:
    schema = orders.schema_of(["v"], pa.float64())
    duck = SinkDriver(fp.DuckDB(tmp_path / "d.db", table="words", key="n", order_by="v"), tmp_path / "duck")
    duck.start(schema)
    orders.check(duck, pa.float64(), orders.NAN, partial(selected, duck))
    lite = SinkDriver(fp.SQLite(tmp_path / "s.db", table="words", key="n", order_by="v"), tmp_path / "lite")
    lite.start(schema)
    with pytest.raises(EpochFailed, match="'v', which order_by= names, is NaN"):
        orders.check(lite, pa.float64(), orders.NAN, partial(selected, lite))
    for driver in (duck, lite):
        driver.session.close()


def test_years_that_are_not_in_order_as_text_are_refused(tmp_path: Path) -> None:
    schema = orders.schema_of(["v"], pa.date32())
    driver = SinkDriver(fp.SQLite(tmp_path / "s.db", table="words", key="n", order_by="v"), tmp_path)
    driver.start(schema)
    for days in (2_932_897, -719_163):  # the day after the last one of 9999, and before the first one of 1
        rows = pa.table(
            [pa.array([1], pa.int32()), pa.array([days], pa.int32()).cast(pa.date32()), ["x"]], schema=schema
        )
        with pytest.raises(EpochFailed, match="years beyond 1 to 9999"):
            driver.vote(0, driver.pre_commit(0, rows))
    driver.session.close()


DISORDERED: dict[str, tuple[Callable[..., Any], str, pa.DataType]] = {
    "a long decimal as text": (fp.SQLite, "TEXT", pa.decimal128(16, 2)),
    "text as a UUID": (fp.DuckDB, "UUID", pa.string()),
    "text as JSON": (fp.DuckDB, "JSON", pa.string()),
    "text as one of a list": (fp.DuckDB, "ENUM ('b', 'a')", pa.string()),
}


@pytest.mark.parametrize("name", DISORDERED)
def test_a_column_of_another_order_is_refused_before_any_row(name: str, tmp_path: Path) -> None:
    make, column, kind = DISORDERED[name]
    connection: Any = sqlite3.connect(tmp_path / "t.db") if make is fp.SQLite else duckdb.connect(tmp_path / "t.db")
    with closing(connection):
        connection.execute(f"CREATE TABLE words (n INTEGER PRIMARY KEY, v {column}, who TEXT)")
    driver = SinkDriver(make(tmp_path / "t.db", table="words", key="n", order_by="v"), tmp_path)
    schema = orders.schema_of(["v"], kind)
    for refuse in (lambda: driver.session.rehearse(schema, "append"), lambda: driver.start(schema)):
        with pytest.raises(TargetRefused, match="'v' is") as refused:
            refuse()
        assert "order_differs" == refused.value.code
    driver.session.close()


def test_text_in_utf_16_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        connection.execute("PRAGMA encoding = 'UTF-16'")
        connection.execute("CREATE TABLE words (n INTEGER PRIMARY KEY, v TEXT, who TEXT)")
    driver = SinkDriver(fp.SQLite(tmp_path / "t.db", table="words", key="n", order_by="v"), tmp_path)
    with pytest.raises(TargetRefused, match="order_differs"):
        driver.start(orders.schema_of(["v"], pa.string()))
    driver.session.close()


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_collations_and_names_do_not_matter(make: Callable[..., Any], tmp_path: Path) -> None:
    """A column that ignores case, in a table and with a column whose names need quotes."""
    connection: Any = sqlite3.connect(tmp_path / "t.db") if make is fp.SQLite else duckdb.connect(tmp_path / "t.db")
    with closing(connection):
        connection.execute('CREATE TABLE "select" (n INTEGER PRIMARY KEY, "or""der" VARCHAR COLLATE NOCASE)')
    driver = SinkDriver(make(tmp_path / "t.db", table="select", key="n", order_by='or"der'), tmp_path)
    schema = pa.schema({"n": pa.int32(), 'or"der': pa.string()})
    driver.start(schema)
    for epoch, text in enumerate(["a", "B", "b"]):
        driver.run(epoch, pa.table([pa.array([1], pa.int32()), [text]], schema=schema))
        assert [(1, "aab"[epoch])] == selected(driver, 'SELECT * FROM "select"')
    driver.session.close()


def test_what_is_behind_the_marker_of_a_removal_is_not_compared(tmp_path: Path) -> None:
    """It is not in the table. Within an epoch it decides, as before."""
    schema = orders.schema_of(["v"], pa.int64(), deletes=True)
    sink = fp.SQLite(tmp_path / "t.db", table="words", key="n", order_by=("v", "gone", "who"), deletes="gone")
    driver = SinkDriver(sink, tmp_path)
    driver.start(schema)
    rows = [{"n": n, "v": 1, "who": "z", "gone": gone} for n, gone in ((1, True), (1, False), (2, False))]
    driver.run(0, pa.Table.from_pylist(rows, schema))
    assert [(2, 1, "z")] == selected(driver, "SELECT * FROM words")
    driver.run(1, pa.Table.from_pylist([{"n": 2, "v": 1, "who": "a", "gone": False}], schema))
    assert [(2, 1, "a")] == selected(driver, "SELECT * FROM words")
    driver.session.close()


def test_an_epoch_that_an_older_fencepost_decided_is_finished_as_it_was_decided(tmp_path: Path) -> None:
    """Its handle does not say that rows are compared."""
    driver = started(fp.SQLite, tmp_path, order_by="at")
    driver.run(0, table([("a", 5, "new")]))
    handle = driver.pre_commit(1, table([("a", 3, "old"), ("a", 2, "older")]))
    assert {"order_by": ["at"], "keeps": "greatest"} == handle.body
    older = replace(handle, body={"order_by": ["at"]})
    assert Outcome.DONE == driver.commit(1, older)
    assert {("a", 3, "old")} == stored(driver)
    driver.session.close()


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_the_order_is_part_of_the_decision_so_recovery_keeps_it(tmp_path: Path, guarantee: str) -> None:
    driver = started(fp.SQLite, tmp_path, order_by="at")
    if guarantee == "exactly_once":
        handle = driver.pre_commit(0, table(ROWS))
        driver.session.close()
        driver = started(fp.SQLite, tmp_path, order_by="v")  # edited between a crash and the next start
        assert Outcome.DONE == driver.commit(0, handle)
    else:
        driver.session.write(0, driver.rows(0, table(ROWS)))  # type: ignore[arg-type]
    assert LAST == stored(driver)
    driver.session.close()


def test_rows_of_every_type_are_sorted_alike_whatever_their_order(tmp_path: Path) -> None:
    rows = [
        {"n": n, "list": [n, None], "struct": {"a": n}, "map": [("k", n)], "decimal": Decimal(n), "bytes": bytes([n])}
        for n in (1, 2, 3)
    ] + [{"n": 1, "list": None, "struct": {"a": 9}, "map": [], "decimal": None, "bytes": None}]
    schema = pa.schema(
        {
            "n": pa.int64(),
            "list": pa.list_(pa.int64()),
            "struct": pa.struct({"a": pa.int64()}),
            "map": pa.map_(pa.string(), pa.int64()),
            "decimal": pa.decimal128(10, 2),
            "bytes": pa.binary(),
        }
    )
    driver = SinkDriver(fp.SQLite(tmp_path / "t.db", table="t"), tmp_path)
    found = []
    for epoch, order in enumerate(itertools.permutations(rows)):
        given = driver.rows(epoch, pa.Table.from_pylist(list(order), schema))
        assert (4, schema) == (SortedRows(given, ("n",)).count, SortedRows(given, ("n",)).schema)
        found.append(pa.Table.from_batches(SortedRows(given, ("n",)).batches()).to_pylist())
    assert all(each == found[0] for each in found)
    assert [1, 1, 2, 3] == [row["n"] for row in found[0]]
    driver.session.close()


WRONG: dict[str, tuple[Callable[[], fp.Sink], str]] = {
    "without a key": (lambda: fp.SQLite("f", table="t", order_by="at"), "set key="),
    "unique without a key": (lambda: fp.DuckDB("f", table="t", unique_key=True), "set key="),
    "an empty name": (lambda: fp.SQLite("f", table="t", key="k", order_by=""), "order_by= is empty"),
    "no name": (lambda: fp.SQLite("f", table="t", key="k", order_by=()), "order_by= is empty"),
    "twice": (lambda: fp.SQLite("f", table="t", key="k", order_by=("a", "a")), "twice"),
    "both": (lambda: fp.Cassandra("s.t", key="k", order_by="at", unique_key=True), "exclude each other"),
    "a counter": (lambda: fp.Redis("redis://h", key="k", shape="counter", order_by="at"), "replace others by key"),
    "rows in tables of tasks": (
        lambda: fp.Postgres("t", dsn="", key="k", order_by="at", staging="auto"),
        'staging="checkpoint"',
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_settings_that_contradict_each_other_are_refused(name: str) -> None:
    make, words = WRONG[name]
    with pytest.raises(BadConfig) as refused:
        make()
    assert "bad_sink" == refused.value.code
    assert words in str(refused.value)


def test_every_sink_that_replaces_rows_by_key_says_so() -> None:
    settings: dict[str, Any] = {"key": ("a", "b"), "order_by": "at"}
    comparing = (
        fp.SQLite("f", table="t", **settings),
        fp.DuckDB("f", table="t", **settings),
        fp.Postgres("t", dsn="", **settings),
        fp.MySQL("t", user="u", database="d", **settings),
    )
    assert {Keyed(key=("a", "b"), order_by=("at",), greatest=True)} == {sink.keyed for sink in comparing}
    others = (fp.Redis("redis://h", **settings), fp.Cassandra("s.t", **settings))
    assert {Keyed(key=("a", "b"), order_by=("at",))} == {sink.keyed for sink in others}
    scores = fp.Redis("redis://h", shape="sorted_set", prefix="p", member="m", score="s", unique_key=True)
    assert Keyed(key=("m",), unique=True) == scores.keyed
    adding = (fp.SQLite("f", table="t"), fp.Redis("redis://h", key="k", shape="counter"), fp.Files("out"))
    assert {None} == {sink.keyed for sink in adding}
