"""A row that `deletes=` marks removes the row of its key: what a table holds afterwards, and what is refused before."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from removals import SCHEMA, epochs

import fencepost as fp
from fencepost.connectors.table import deletion
from fencepost.contract import Keyed, check_apart
from fencepost.errors import BadConfig, EpochFailed, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.testing import SinkDriver

Row = tuple[Any, ...]

FILES: dict[str, Callable[..., Any]] = {"sqlite": fp.SQLite, "duckdb": fp.DuckDB}


def table(rows: Iterable[Row], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def stored(driver: SinkDriver, statement: str = 'SELECT a, b, "at", v FROM t') -> list[Row]:
    database = driver.session.database  # type: ignore[attr-defined]
    database.look()
    try:
        return sorted(tuple(row) for row in database.run(statement))
    finally:
        database.undo()


def started(make: Callable[..., Any], tmp_path: Path, schema: pa.Schema = SCHEMA, **settings: Any) -> SinkDriver:
    sink = make(tmp_path / "t.db", **{"table": "t", "key": ("a", "b"), "deletes": "gone"} | settings)
    driver = SinkDriver(sink, tmp_path)
    driver.start(schema)
    return driver


@pytest.mark.parametrize("ordered", [False, True], ids=["as they come", "order_by"])
@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_a_table_holds_what_a_plain_loop_over_all_rows_leaves(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    monkeypatch.setattr(deletion, "ROWS_AT_ONCE", 7)
    driver = started(make, tmp_path, order_by="at" if ordered else None)
    for epoch, (rows, expected) in enumerate(epochs(1, shuffled=ordered)):
        driver.run(epoch, rows)
        assert expected == stored(driver)
    driver.session.close()


KEYS: dict[pa.DataType, tuple[Any, Any]] = {
    pa.float64(): (0.1, 1e300),
    pa.decimal128(10, 2): (Decimal("1.10"), Decimal("0.00")),
    pa.binary(): (b"\0", b""),
    pa.date32(): (date(1, 1, 1), date(2026, 1, 2)),
    pa.timestamp("us", "UTC"): (datetime(2026, 1, 2, 3, 4, 5, 6, UTC), datetime(1, 1, 1, tzinfo=UTC)),
    pa.bool_(): (True, False),
}


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
@pytest.mark.parametrize("kind", KEYS, ids=str)
def test_keys_of_every_simple_type_are_found(make: Callable[..., Any], tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema({"k": kind, "v": pa.int64(), "gone": pa.bool_()})
    one, two = KEYS[kind]
    driver = started(make, tmp_path, schema, key="k")
    driver.run(0, table([(one, 1, False), (two, 2, False)], schema))
    driver.run(1, table([(one, None, True), (two, None, True), (two, 3, False)], schema))
    assert [(3,)] == stored(driver, "SELECT v FROM t")
    driver.session.close()


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_minus_zero_is_the_key_zero_as_in_spark(make: Callable[..., Any], tmp_path: Path) -> None:
    schema = pa.schema({"k": pa.float64(), "v": pa.int64(), "gone": pa.bool_()})
    driver = started(make, tmp_path, schema, key="k")
    driver.run(0, table([(0.0, 1, False), (-0.0, None, True)], schema))
    assert [] == stored(driver, "SELECT k, v FROM t")
    driver.run(1, table([(-0.0, None, True), (0.0, 2, False)], schema))
    driver.run(2, table([(5.0, 1, False), (-0.0, None, True)], schema))
    assert [(5.0, 1)] == stored(driver, "SELECT k, v FROM t")
    driver.session.close()


def test_a_row_to_remove_needs_nothing_but_its_key_and_makes_room_for_others(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        connection.executescript("CREATE TABLE t (k INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL)")
    schema = pa.schema({"k": pa.int64(), "gone": pa.bool_(), "name": pa.string()})
    driver = started(fp.SQLite, tmp_path, schema, key="k")
    driver.run(0, table([(1, False, "taken")], schema))
    driver.run(1, table([(2, False, "taken"), (1, True, None)], schema))
    assert [(2, "taken")] == stored(driver, "SELECT k, name FROM t")
    with pytest.raises(EpochFailed, match="NULL"):
        driver.vote(2, driver.pre_commit(2, table([(None, True, "x")], schema)))
    driver.session.close()


@pytest.mark.parametrize("after", [None, "other"])
def test_the_column_is_part_of_the_decision_so_recovery_removes_the_same_rows(
    tmp_path: Path, after: str | None
) -> None:
    driver = started(fp.SQLite, tmp_path)
    driver.run(0, table([(1, "x", 1, "one", False), (2, "x", 1, "two", False)]))
    handle = driver.pre_commit(1, table([(1, "x", 2, None, True)]))
    driver.session.close()
    schema = SCHEMA.remove(4)  # edited between a crash and the next start
    schema = schema if after is None else schema.append(pa.field(after, pa.bool_()))
    driver = started(fp.SQLite, tmp_path, schema, deletes=after)
    assert Outcome.DONE == driver.commit(1, handle)
    assert [(2, "x", 1, "two")] == stored(driver)
    driver.session.close()


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_a_table_that_has_a_column_of_that_name_is_refused(make: Callable[..., Any], tmp_path: Path) -> None:
    """It was written until now; from now on it would keep what it holds."""
    before = started(make, tmp_path, deletes=None)
    before.session.close()
    for step in ("preflight", "rehearse"):
        session: Any = make(tmp_path / "t.db", table="t", key=("a", "b"), deletes="gone").session("job")
        with pytest.raises(TargetRefused, match="'gone' has the name of the column that deletes= names"):
            getattr(session, step)(SCHEMA, "update")
        session.close()


def test_two_sinks_that_fill_one_row_cannot_both_stay_if_one_removes_rows(tmp_path: Path) -> None:
    first = started(fp.SQLite, tmp_path, SCHEMA.remove(3), name="first")
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        connection.execute("ALTER TABLE t ADD COLUMN v")
    for deletes in (None, "gone"):
        schema = pa.schema([SCHEMA.field(name) for name in ("a", "b", "v")])
        schema = schema.append(SCHEMA.field("gone")) if deletes else schema
        second = started(fp.SQLite, tmp_path, schema, name="second", deletes=deletes)
        with pytest.raises(BadConfig, match="target_twice"):
            check_apart({"first": first.session.territory(), "second": second.session.territory()})
        second.session.close()
    first.session.close()


def test_a_key_that_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    schema = pa.schema({"k": pa.list_(pa.int64()), "v": pa.int64(), "gone": pa.bool_()})
    with pytest.raises(BadConfig, match="key_type"):
        started(fp.DuckDB, tmp_path, schema, key="k")
    assert not (tmp_path / "t.db").exists()


WRONG: dict[str, tuple[Callable[[], fp.Sink], str]] = {
    "without a key": (lambda: fp.SQLite("f", table="t", deletes="gone"), "set key="),
    "rows that are added": (lambda: fp.DuckDB("f", table="t", key="k", mode="append", deletes="gone"), "set key="),
    "a table that is replaced": (lambda: fp.SQLite("f", table="t", mode="replace", deletes="gone"), "set key="),
    "an empty name": (lambda: fp.SQLite("f", table="t", key="k", deletes=""), "deletes= is empty"),
    "the key": (lambda: fp.Cassandra("s.t", key=("a", "k"), deletes="k"), "a column of the key"),
    "a counter": (lambda: fp.Redis("redis://h", key="k", shape="counter", deletes="gone"), "by their key"),
    "the member of a set": (
        lambda: fp.Redis("redis://h", prefix="p", shape="sorted_set", member="m", score="s", deletes="m"),
        "a column of the key",
    ),
    "rows in tables of tasks": (
        lambda: fp.Postgres("t", dsn="", key="k", deletes="gone", staging="auto"),
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


def test_every_sink_that_removes_rows_says_so() -> None:
    settings: dict[str, Any] = {"key": ("a", "b"), "unique_key": True, "deletes": "gone"}
    sinks = (
        fp.SQLite("f", table="t", **settings),
        fp.DuckDB("f", table="t", **settings),
        fp.Postgres("t", dsn="", **settings),
        fp.MySQL("t", user="u", database="d", **settings),
        fp.Redis("redis://h", **settings),
        fp.Cassandra("s.t", **settings),
    )
    assert {Keyed(key=("a", "b"), unique=True, deletes="gone")} == {sink.keyed for sink in sinks}
