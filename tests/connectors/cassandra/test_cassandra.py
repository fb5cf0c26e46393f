"""Cassandra: the contract on a real server, and what only Cassandra does."""

from __future__ import annotations

import logging
import math
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pytest
from fencepost_proof.rig.process import until

from fencepost import faults
from fencepost.connectors.cassandra import session
from fencepost.errors import EpochFailed, OperatorNeeded, Retryable, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch
from fencepost.testing import SinkContract, SinkDriver, rows_of

TABLE = pa.table({"k": ["a", "b"], "v": [1, 2]})
Start = Callable[..., SinkDriver]


class TestContract(SinkContract):
    notices_a_setback = True
    tells = True
    finds_strays = True

    @pytest.fixture(autouse=True)
    def _place(self, place: Any, request: pytest.FixtureRequest) -> None:
        """Impatient only where it is meant to be silent: a busy machine may take its time elsewhere."""
        self.place = place
        if "silent" in request.node.name:
            request.getfixturevalue("short_patience")

    def make_sink(self, tmp_path: Path) -> Any:
        return self.place.sink(table_of(tmp_path), name=f"words-{table_of(tmp_path)}")

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        return self.place.select("k, v", table_of(tmp_path))

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", None, "secret-2"], "v": [1, 2, 3]})

    def misfit(self) -> pa.Schema:
        return pa.schema({"k": pa.string(), "v": pa.int64(), "more": pa.int64()})

    def forget(self, tmp_path: Path) -> bool:
        self.place.query(
            "DELETE FROM fencepost_epoch WHERE job = 'job' AND sink = %s IF EXISTS", (self.make_sink(tmp_path).name,)
        )
        return True

    @contextmanager
    def silence(self, tmp_path: Path) -> Iterator[None]:
        self.place.server.pause()
        yield
        self.place.server.resume()


def table_of(folder: Path) -> str:
    return f"t{uuid.uuid5(uuid.NAMESPACE_URL, str(folder)).hex[:12]}"


def test_an_older_driver_that_wakes_in_the_middle_of_writing_changes_nothing(
    place: Any, start: Start, new_table: str
) -> None:
    """A reader of one key sees its version only rise, and the mark never goes back."""
    sink = place.sink(new_table)
    old = start(sink, TABLE.schema)
    late = old.pre_commit(0, pa.table({"k": ["a", "only-0"], "v": [0, 0]}))
    new = start(sink, TABLE.schema, writer=2)
    new.commit(0, late)
    stale = old.session._found()
    seen, over = [], Event()

    def read() -> None:
        while not over.is_set():
            seen.extend(place.select("v", new_table, "WHERE k = 'a'"))

    reader = Thread(target=read)
    reader.start()
    for epoch in range(1, 6):
        new.run(epoch, pa.table({"k": ["a"], "v": [epoch]}))
        old.session._apply(old.owner.staging.rows_again(late), late.body["written_at_us"])
        old.session._move(stale, session.Stamped(old.session.mark_of(Epoch(0), (late,)), 1), Epoch(0), (late,))
        assert Outcome.DONE == old.commit(0, late)
    until(lambda: (5,) in seen, "the reader saw the newest row")
    over.set()
    reader.join()
    assert sorted(seen) == seen
    assert (0,) in seen
    assert [("a", 5), ("only-0", 0)] == place.select("k, v", new_table)
    assert [(5, 2)] == place.query(
        "SELECT epoch, writer FROM fencepost_epoch WHERE job = 'job' AND sink = %s", (sink.name,)
    )


def test_a_killed_driver_is_finished_by_another_process(
    place: Any, start: Start, new_table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "ROWS_AT_ONCE", 10)
    table = pa.table({"k": [str(n) for n in range(50)], "v": list(range(50))})
    sink = place.sink(new_table)
    first = start(sink, table.schema)
    handle = first.pre_commit(0, table)
    first.vote(0, handle)
    child = os.fork()
    if not child:  # it has a connection of its own, in a process that was forked with the parent's threads gone
        faults.arm({faults.ARM: "cassandra.applying=kill@2"})
        forked = SinkDriver(sink, tmp_path)
        forked.start(table.schema)
        forked.commit(0, handle)
        os._exit(1)
    assert (child, signal.SIGKILL) == os.waitpid(child, 0)
    assert [(20,)] == place.select("count(*)", new_table)
    assert [] == place.query("SELECT epoch FROM fencepost_epoch WHERE job = 'job' AND sink = %s", (sink.name,))
    second = start(sink, table.schema, writer=2)
    assert Outcome.DONE == second.commit(0, handle)
    assert rows_of(table) == place.select("k, v", new_table)
    times = {at for (at,) in place.select("writetime(v)", new_table)}
    assert {handle.body["written_at_us"]} == times


def test_the_last_row_of_a_key_wins_and_null_removes_a_value(place: Any, start: Start, new_table: str) -> None:
    """With one time for both, Cassandra alone would keep the larger value."""
    schema = pa.schema({"p": pa.string(), "c": pa.float64(), "v": pa.int64()})

    def rows(*found: tuple[str, float, int | None]) -> pa.Table:
        return pa.Table.from_pylist([dict(zip("pcv", row, strict=True)) for row in found], schema=schema)

    driver = start(place.sink(new_table, key=("p", "c")), schema)
    driver.run(0, rows(("x", 0.0, 9), ("x", -0.0, 1), ("y", 1.0, 5), ("x", 0.0, 7), ("z", 1.0, 3)))
    driver.run(1, rows(("y", 1.0, 8), ("y", 1.0, None), ("z", 1.0, None)))
    found = sorted(place.select("p, c, v", new_table), key=str)
    assert [("x", "0.0", 7), ("y", "1.0", None), ("z", "1.0", None)] == [(p, str(c), v) for p, c, v in found]


@pytest.mark.parametrize("key", [("k", "n"), ("n", "k")])
def test_keys_are_equal_where_spark_calls_them_equal(
    place: Any, start: Start, new_table: str, key: tuple[str, str]
) -> None:
    """In the partition key and among the clustering columns; Cassandra compares bytes, and -0.0 has other ones."""
    place.query(f"CREATE TABLE {new_table} (k double, n int, v int, PRIMARY KEY ({', '.join(key)}))")
    schema = pa.schema({"k": pa.float64(), "n": pa.int32(), "v": pa.int32()})
    driver = start(place.sink(new_table, key=key), schema)
    for epoch, keys in enumerate(([0.0, -0.0, math.nan], [-0.0, -math.nan])):
        driver.run(epoch, pa.table({"k": keys, "n": [1] * len(keys), "v": [epoch] * len(keys)}, schema))
    assert [("0.0", 1), ("nan", 1)] == sorted((str(k), v) for k, v in place.select("k, v", new_table))


def test_two_sinks_of_a_job_that_write_the_same_columns_of_a_table_meet(
    place: Any, start: Start, new_table: str
) -> None:
    place.query(f"CREATE TABLE {new_table} (k text PRIMARY KEY, v int, w int)")
    one, two, other = (
        start(place.sink(new_table, name=name), pa.schema({"k": pa.string(), column: pa.int32()})).session.territory()
        for name, column in (("one", "v"), ("two", "v"), ("other", "w"))
    )
    assert one is not None
    assert two is not None
    assert other is not None
    assert (True, False) == (one.overlaps(two), one.overlaps(other))


@pytest.mark.parametrize("kind", ["uuid", "timeuuid"])
def test_another_spelling_of_a_uuid_in_the_key_is_refused(place: Any, start: Start, new_table: str, kind: str) -> None:
    place.query(f"CREATE TABLE {new_table} (k {kind} PRIMARY KEY, v {kind})")
    schema = pa.schema({"k": pa.string(), "v": pa.string()})
    driver = start(place.sink(new_table), schema)
    good = "0a0e7f0c-9a0b-11ee-8a44-3f0d0f6a1b2c"
    driver.run(0, pa.table({"k": [good], "v": [good.upper()]}, schema))
    with pytest.raises(EpochFailed, match="lower case"):
        driver.vote(1, driver.pre_commit(1, pa.table({"k": [good.upper()], "v": [good]}, schema)))


def test_of_rows_with_one_key_the_one_with_the_greatest_order_stays(place: Any, start: Start, new_table: str) -> None:
    table = pa.table({"k": ["a", "b", "a", "a"], "at": [1, 1, 9, 5], "v": [9, 2, 3, 4]})
    sink = place.sink(new_table, key="k", order_by="at")
    start(sink, table.schema).run(0, table)
    assert [("a", 9, 3), ("b", 1, 2)] == sorted(place.select("k, at, v", new_table))


def test_a_row_is_removed_by_its_whole_key_and_a_column_of_that_name_is_refused(
    place: Any, start: Start, new_table: str
) -> None:
    table = pa.table({"p": ["a", "a", "b"], "gone": [False, False, False], "c": [1, 2, 1], "v": [1, 2, 3]})
    driver = start(place.sink(new_table, key=("p", "c"), unique_key=True, deletes="gone"), table.schema)
    late = driver.run(0, table)
    territory = driver.session.territory()
    assert territory is not None
    assert "all" == territory.way
    nothing = pa.nulls(3, pa.int64())
    driver.run(1, table.set_column(1, "gone", [[True, False, True]]).set_column(3, "v", nothing).slice(0, 1))
    assert [("a", 2, 2), ("b", 1, 3)] == place.select("p, c, v", new_table)
    driver.session._apply(driver.owner.staging.rows_again(late), late.body["written_at_us"], "gone")
    assert [("a", 2, 2), ("b", 1, 3)] == place.select("p, c, v", new_table), "an older driver brought it back"
    place.query(f"ALTER TABLE {new_table} ADD gone boolean")
    session = driver.sink.session("job")
    with pytest.raises(TargetRefused, match="has a column 'gone'"):
        session.preflight(table.schema, "update")
    session.close()


def test_every_type_comes_back_as_it_was(place: Any, start: Start, new_table: str) -> None:
    moment = datetime(2026, 2, 3, 4, 5, 6, 789000, UTC)
    columns: dict[str, tuple[pa.DataType, Any]] = {
        "k": (pa.string(), "grüße"),
        "i8": (pa.int8(), -128),
        "i16": (pa.int16(), 32767),
        "i32": (pa.int32(), -(2**31)),
        "i64": (pa.int64(), 2**63 - 1),
        "f32": (pa.float32(), 0.5),
        "f64": (pa.float64(), 0.1),
        "yes": (pa.bool_(), True),
        "bytes": (pa.binary(), b"\0\xff"),
        "money": (pa.decimal128(38, 18), Decimal("12345678901234567890.000000000000000001")),
        "day": (pa.date32(), date(1582, 10, 4)),
        "at": (pa.timestamp("us", "UTC"), moment),
        "clock": (pa.time64("us"), 3_600_000_001),
        "many": (pa.list_(pa.timestamp("us", "UTC")), [moment]),
        "none": (pa.list_(pa.int32()), []),
        "named": (pa.map_(pa.string(), pa.list_(pa.int64())), [("x", [1, 2])]),
        "nested": (pa.struct({"a": pa.int64(), "b": pa.string()}), {"a": 1, "b": "x"}),
        "missing": (pa.string(), None),
    }
    schema = pa.schema({name: kind for name, (kind, _) in columns.items()})
    table = pa.table({name: pa.array([value], kind) for name, (kind, value) in columns.items()}, schema=schema)
    start(place.sink(new_table), schema).run(0, table)
    [row] = place.select(", ".join(columns), new_table)
    found = dict(zip(columns, row, strict=True))
    naive = moment.replace(tzinfo=None)
    changed = {
        "day": "1582-10-04",
        "at": naive,
        "clock": "01:00:00.000001000",
        "many": [naive],
        "nested": '{"a":1,"b":"x"}',
    }
    expected = {name: value for name, (_, value) in columns.items()} | changed | {"named": {"x": [1, 2]}}
    found |= {"day": str(found["day"]), "clock": str(found["clock"]), "named": dict(found["named"])}
    assert expected == found


def test_text_goes_into_uuids_and_whole_decimals_into_varints(place: Any, start: Start, new_table: str) -> None:
    place.query(f"CREATE TABLE {new_table} (k uuid PRIMARY KEY, t timeuuid, n varint, m map<ascii, int>, other int)")
    one, timed = uuid.uuid4(), uuid.uuid1()
    kinds = {"k": pa.string(), "t": pa.string(), "n": pa.decimal128(38, 0), "m": pa.map_(pa.string(), pa.int32())}

    def rows(**changed: Any) -> pa.Table:
        row = {"k": str(one), "t": str(timed), "n": Decimal(10**30), "m": [("x", 1)]} | changed
        return pa.table({name: pa.array([row[name]], kind) for name, kind in kinds.items()})

    driver = start(place.sink(new_table), rows().schema)
    driver.run(0, rows())
    assert [(one, timed, 10**30, {"x": 1}, None)] == place.select("k, t, n, m, other", new_table)
    for wrong, words in (
        ({"k": "s3cret"}, "'k' has text that is not a UUID"),
        ({"t": str(one)}, "'t' has UUIDs that are not time-based"),
        ({"m": [("s3crét", 1)]}, "'m' has text that is not ASCII"),
        ({"m": [("s3cret", None)]}, "'m' has NULL inside a collection"),
    ):
        with pytest.raises(EpochFailed, match=words) as failed:
            driver.vote(1, driver.pre_commit(1, rows(**wrong)))
        assert "s3cr" not in str(failed.value)


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("k text PRIMARY KEY, v counter", "counter table: an increment cannot be repeated"),
        ("k text PRIMARY KEY, v list<bigint>", "a repeated write would duplicate its elements"),
        ("k text PRIMARY KEY, v int", "'v' has type int, which cannot store int64 values unchanged"),
        ("k text, s int, v bigint, PRIMARY KEY (k, s)", "'s' is part of the key, but the DataFrame does not have it"),
        ("k text, c text, v bigint STATIC, PRIMARY KEY (k, c)", "'v' is static"),
        ('k text PRIMARY KEY, "V" bigint', r"'v' is missing \(did you mean 'V'\?\)"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    place: Any, start: Start, new_table: str, definition: str, words: str
) -> None:
    place.query(f"CREATE TABLE {new_table} ({definition})")
    kind = pa.list_(pa.int64()) if "list" in definition else pa.int64()
    with pytest.raises(TargetRefused, match=words):
        start(place.sink(new_table, key=None), pa.schema({"k": pa.string(), "v": kind}))


def test_rows_that_would_be_refused_later_fail_the_vote(place: Any, start: Start, new_table: str) -> None:
    schema = pa.schema({"k": pa.string(), "v": pa.binary(), "at": pa.timestamp("us", "UTC")})
    driver = start(place.sink(new_table), schema)

    def rows(k: str | None = "k", v: bytes = b"", at: int = 0) -> pa.Table:
        return pa.Table.from_pylist([{"k": k, "v": v, "at": at}], schema=schema)

    for wrong, words in (
        (rows(k=None), "key column is NULL"),
        (rows(k=""), "partition key is empty"),
        (rows(k="s3cret" * 11_000), "key has more than 65535 bytes"),
        (rows(v=b"x" * 10_000_000), "row has more than 41"),
        (rows(at=1001), "'at' has times finer than a millisecond"),
    ):
        with pytest.raises(EpochFailed, match=words) as failed:
            driver.vote(0, driver.pre_commit(0, wrong))
        assert ("rows_refused", False) == (failed.value.code, "s3cret" in str(failed.value))
    assert [] == place.select("k", new_table)
    largest = driver.session._most_bytes - session.OVERHEAD - 16 * 3 - len("k") - 8
    driver.run(0, rows(v=b"x" * largest, at=1000))
    assert [("k", largest)] == [(k, len(v)) for k, v in place.select("k, v", new_table)]


def test_names_with_quotes_and_capitals(place: Any, start: Start, new_table: str) -> None:
    table = pa.table({'we"ird': ["a"], "Select": [1], "key'": [2]})
    start(place.sink(f"{new_table}Q", key=(("Select", 'we"ird'), "key'")), table.schema).run(0, table)
    assert [("a", 1, 2)] == place.select('"we""ird", "Select", "key\'"', f'"{new_table}Q"')


@pytest.mark.parametrize("consistency", ["QUORUM", "ALL"])
def test_stronger_consistencies(place: Any, start: Start, new_table: str, consistency: str) -> None:
    start(place.sink(new_table, consistency=consistency), TABLE.schema).run(0, TABLE)
    assert rows_of(TABLE) == place.select("k, v", new_table)


def test_a_key_that_is_not_the_tables_is_refused(place: Any, start: Start, new_table: str) -> None:
    start(place.sink(new_table), TABLE.schema)
    with pytest.raises(TargetRefused, match="PRIMARY KEY differs from key="):
        start(place.sink(new_table, key=("k", "v")), TABLE.schema)


def test_what_is_not_there_is_refused_with_the_cure(place: Any, start: Start, new_table: str) -> None:
    with pytest.raises(TargetRefused, match=r"Keyspace 'nowhere' does not exist(.|\n)*CREATE KEYSPACE"):
        start(replace(place.sink(new_table), table="nowhere.t"), TABLE.schema)
    with pytest.raises(TargetRefused, match="does not exist"):
        start(place.sink(new_table, create=False), TABLE.schema)
    with pytest.raises(TargetRefused, match=r"key=…"):
        start(place.sink(new_table, key=None), TABLE.schema)
    with pytest.raises(TargetRefused, match="no type for 'month_day_nano_interval'"):
        start(place.sink(new_table), pa.schema({"k": pa.string(), "v": pa.month_day_nano_interval()}))


def test_a_table_that_is_dropped_fails_the_vote_and_stops_a_decided_epoch(
    place: Any, start: Start, new_table: str
) -> None:
    driver = start(place.sink(new_table), TABLE.schema)
    driver.run(0, TABLE)
    decided = driver.pre_commit(1, TABLE)
    driver.vote(1, decided)
    place.query(f"DROP TABLE {new_table}")
    with pytest.raises(OperatorNeeded, match="no longer exists") as refused:
        driver.commit(1, decided)
    assert "apply_refused" == refused.value.code
    with pytest.raises(EpochFailed, match="no longer exists"):
        driver.vote(1, decided)
    with pytest.raises(TargetRefused, match="table_lost"):
        start(place.sink(new_table), TABLE.schema, writer=2)
    place.query(f"CREATE TABLE {new_table} (k text PRIMARY KEY, v bigint)")
    assert Outcome.DONE == driver.commit(1, decided)
    assert rows_of(TABLE) == place.select("k, v", new_table)
    place.query(f"ALTER TABLE {new_table} DROP v")
    with pytest.raises(EpochFailed, match="have changed since the job started"):
        driver.vote(2, driver.pre_commit(2, TABLE))


def test_times_rise_when_clocks_do_not(
    place: Any, start: Start, new_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver whose clock is ahead, one whose clock is behind, and a person in between."""
    hour = 3_600_000_000_000
    real = session.time.time_ns
    monkeypatch.setattr(session.time, "time_ns", lambda: real() + hour)
    first = start(place.sink(new_table), TABLE.schema)
    ahead = first.run(0, TABLE)
    first.session.close()
    monkeypatch.setattr(session.time, "time_ns", lambda: real() - hour)
    second = start(place.sink(new_table), TABLE.schema, writer=2)
    behind = second.run(1, newer := pa.table({"k": ["a", "b"], "v": [3, 4]}))
    assert ahead.body["written_at_us"] + 1 == behind.body["written_at_us"]
    assert rows_of(newer) == place.select("k, v", new_table)
    third = start(place.sink(new_table, name="another"), TABLE.schema, writer=3)
    place.query(f"UPDATE {new_table} SET v = 1 WHERE k = 'c'")  # noqa: S608 - a test's own name
    third.run(0, pa.table({"k": ["c"], "v": [2]}))
    assert [(2,)] == place.select("v", new_table, "WHERE k = 'c'")


def test_a_plain_write_of_an_older_epoch_stops_the_job(place: Any, start: Start, new_table: str) -> None:
    driver = start(place.sink(new_table), TABLE.schema)
    driver.session.write(Epoch(4), driver.rows(4, TABLE))
    driver.session.write(Epoch(5), driver.rows(5, newer := pa.table({"k": ["a", "b"], "v": [3, 4]})))
    with pytest.raises(OperatorNeeded, match="target_ahead"):
        driver.session.write(Epoch(4), driver.rows(4, TABLE))
    assert rows_of(newer) == place.select("k, v", new_table)
    driver.session.write(Epoch(5), driver.rows(5, TABLE))
    assert rows_of(TABLE) == place.select("k, v", new_table)


def test_a_target_that_was_set_back_is_refused_and_the_statement_in_the_error_lets_it_go_on(
    place: Any, start: Start, new_table: str, tmp_path: Path
) -> None:
    sink = place.sink(new_table, name="it's {odd}")
    start(sink, TABLE.schema).run(0, TABLE)
    later = SinkDriver(sink, tmp_path, writer=2, held=Epoch(3))
    with pytest.raises(OperatorNeeded) as behind:
        later.start(TABLE.schema)
    assert "target_behind" == behind.value.code
    for statement in behind.value.next.partition("lost: ")[2].split("; "):
        assert [(True,)] == place.query(statement.rstrip(";"))
    later.start(TABLE.schema)
    later.run(4, TABLE)
    later.session.close()


def test_a_keyspace_that_forgets_is_refused_unless_that_is_accepted(place: Any, start: Start) -> None:
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    place.query(f"CREATE KEYSPACE forgetful WITH replication = {replication} AND durable_writes = false")
    sink = replace(place.sink("t"), table="forgetful.t")
    with pytest.raises(TargetRefused, match="durable_writes = false") as refused:
        start(sink, TABLE.schema)
    assert "target_forgets" == refused.value.code
    risky = replace(sink, durable=False)
    assert not risky.capabilities.repeatable
    driver = start(risky, TABLE.schema)
    driver.session.write(Epoch(0), driver.rows(0, TABLE))
    assert rows_of(TABLE) == place.select("k, v", "forgetful.t")


@pytest.mark.usefixtures("short_patience")
def test_a_silent_cluster_fails_the_vote_and_the_start_and_both_can_be_repeated(
    place: Any, start: Start, new_table: str
) -> None:
    driver = start(place.sink(new_table), TABLE.schema)
    handle = driver.pre_commit(0, TABLE)
    place.server.pause()
    try:
        with pytest.raises(EpochFailed) as failed:
            driver.vote(0, handle)
        with pytest.raises(Retryable) as silent:
            start(place.sink(new_table), TABLE.schema, writer=2)
    finally:
        place.server.resume()
    assert ("target_silent", "target_silent") == (failed.value.code, silent.value.code)
    driver.run(0, TABLE)
    assert rows_of(TABLE) == place.select("k, v", new_table)


def test_neither_password_nor_values_reach_the_log(
    place: Any, start: Start, new_table: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    sink = place.sink(new_table, user="me", password="pa55word")  # noqa: S106 - a test's
    assert "pa55word" not in repr(sink)
    start(sink, TABLE.schema).run(0, pa.table({"k": ["s3cret"], "v": [1]}))
    assert not [line for line in caplog.messages if "pa55word" in line or "s3cret" in line]
