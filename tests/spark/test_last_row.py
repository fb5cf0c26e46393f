"""With a key one row stays: which one is defined by the plan or by the sink, or the job is refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from streams import Place, table

import fencepost as fp
from fencepost import faults
from fencepost.errors import BadConfig
from fencepost.runtime import checks
from fencepost.spark import keys
from fencepost.spark.keys import has_last_rows

pytestmark = [pytest.mark.spark]

Frame = Any


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.input.mkdir()
    return made


def rate(spark: Any) -> Frame:
    return spark.readStream.format("rate").load().withColumn("k", F.col("value") % 3)


def windowed(spark: Any) -> Frame:
    timed = rate(spark).withWatermark("timestamp", "1 minute")
    return timed.groupBy(F.window("timestamp", "5 minutes", "1 minute"), "k").count()


def last_seen(record: Any, state: Any) -> Any:
    return (record.k, record.value), (record.value,)


def stateful(spark: Any) -> Frame:
    return fp.map_with_state(rate(spark), last_seen, by="k", state="v BIGINT", output="k BIGINT, v BIGINT")


def started(spark: Any) -> Frame:
    return windowed(spark).select(F.col("window.start").alias("start"), "k", "count")


def session(spark: Any) -> Frame:
    found = rate(spark).groupBy(F.session_window("timestamp", "5 minutes"), "k").count()
    return found.select(F.col("session_window.end").alias("end"), "k", "count")


def pairs(spark: Any) -> Frame:
    return rate(spark).selectExpr("k", "value % 2 AS odd").groupBy("k", "odd").count()


DEFINED: Mapping[str, tuple[Callable[[Any], Frame], tuple[str, ...]]] = {
    "a group": (lambda spark: rate(spark).groupBy("k").count(), ("k",)),
    "a group by an expression": (lambda spark: rate(spark).groupBy((F.col("value") % 7).alias("d")).count(), ("d",)),
    "a group, renamed": (lambda spark: rate(spark).groupBy("k").count().toDF("id", "n"), ("id",)),
    "a group, as text": (lambda spark: rate(spark).groupBy("k").count().selectExpr("string(k) AS id"), ("id",)),
    "a group, filtered": (lambda spark: rate(spark).groupBy("k").count().where("count > 1"), ("k",)),
    "more than the group": (lambda spark: rate(spark).groupBy("k").count(), ("k", "count")),
    "both groups": (pairs, ("odd", "k")),
    "one row": (lambda spark: rate(spark).groupBy().count(), ("count",)),
    "a window": (windowed, ("window", "k")),
    "a window's start": (started, ("start", "k")),
    "a session's end": (session, ("end", "k")),
    "no duplicates": (lambda spark: rate(spark).dropDuplicates(["k"]), ("k", "value")),
    "distinct": (lambda spark: rate(spark).select("k").distinct(), ("k",)),
    "keyed state": (stateful, ("k",)),
    "a source's numbers": (lambda spark: rate(spark).selectExpr("value AS id", "k").repartition(2), ("id",)),
}

UNDEFINED: Mapping[str, tuple[Callable[[Any], Frame], tuple[str, ...]]] = {
    "rows as they come": (rate, ("k",)),
    "less than the group": (pairs, ("k",)),
    "another column than the group": (lambda spark: rate(spark).groupBy("k").count(), ("count",)),
    "a group, made smaller": (
        lambda spark: rate(spark).groupBy("value").count().selectExpr("value % 5 AS id"),
        ("id",),
    ),
    "a group, as a smaller number": (
        lambda spark: rate(spark).groupBy("value").count().selectExpr("int(value) AS id"),
        ("id",),
    ),
    "two groups together": (
        lambda spark: rate(spark).groupBy("k").count().unionAll(rate(spark).groupBy("k").count()),
        ("k",),
    ),
    "groups, exploded": (
        lambda spark: rate(spark).groupBy("k").count().select("k", F.explode(F.array("count", "k")).alias("e")),
        ("k",),
    ),
    "only the group beside a window": (windowed, ("k",)),
    "no duplicates of something else": (lambda spark: rate(spark).dropDuplicates(["value"]), ("k",)),
    "keyed state, by another column": (stateful, ("v",)),
    "a source's numbers, exploded": (
        lambda spark: rate(spark).select("value", F.explode(F.array("k", "k")).alias("e")),
        ("value",),
    ),
    "a static side that may match twice": (
        lambda spark: rate(spark).join(spark.createDataFrame([(1, "x"), (1, "y")], "k BIGINT, name STRING"), "k"),
        ("value",),
    ),
}


@pytest.mark.parametrize("name", DEFINED)
def test_a_plan_that_gives_each_key_one_last_row_is_known(spark: Any, name: str) -> None:
    frame, key = DEFINED[name]
    assert has_last_rows(frame(spark), key)


@pytest.mark.parametrize("name", UNDEFINED)
def test_a_plan_that_may_give_a_key_two_rows_is_known_too(spark: Any, name: str) -> None:
    frame, key = UNDEFINED[name]
    assert not has_last_rows(frame(spark), key)


def test_a_window_without_its_note_is_a_column_like_any_other(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotaged twin: what tells a window from any struct is what Spark notes on it."""
    monkeypatch.setattr(keys, "WINDOWS", ())
    assert not has_last_rows(started(spark), ("start", "k"))


SCHEMA = "k STRING, at INT, v STRING"


def versions(spark: Any, place: Place, *, files: int = 100, **sink: Any) -> fp.Job:
    """Rows as they come, into a table that keeps one for each key."""
    job = place.job(spark, sink.pop("bridge", None), **sink.pop("job", {}))
    rows = job.read(fp.Files(place.input, format="csv", schema=SCHEMA, max_files_per_epoch=files))
    return job.write(rows, fp.SQLite(place.database, table="t", key="k", **sink))


def test_a_keyed_table_of_rows_as_they_come_is_refused_with_the_cure(spark: Any, place: Place) -> None:
    with pytest.raises(BadConfig) as refused:
        versions(spark, place).run(until="available")
    assert ("last_row_undefined", "sqlite:t") == (refused.value.code, refused.value.where.sink)
    assert 'order_by="<column>"' in str(refused.value)
    assert not place.checkpoint.exists()
    for column in ("w", "l"):
        job = place.job(spark)
        rows = job.read(fp.Files(place.input, format="csv", schema=SCHEMA)).withColumn("l", F.array("v"))
        job.write(rows, fp.SQLite(place.database, table="t", key="k", order_by=column))
        with pytest.raises(BadConfig, match="bad_order_by"):
            job.run(until="available")


@pytest.mark.parametrize("settings", [{"unique_key": True}, {"job": {"guarantee": "at_least_once"}}], ids=str)
def test_a_key_that_never_comes_twice_and_a_weaker_guarantee_need_no_order(
    spark: Any, place: Place, settings: dict[str, Any]
) -> None:
    (place.input / "1.csv").write_text("a,1,x\nb,2,y\n")
    versions(spark, place, **settings).run(until="available")
    assert [("a", 1, "x"), ("b", 2, "y")] == sorted(table(place.database, "t"))


@pytest.mark.parametrize("bridge", ["jvm", "foreach_batch"])
def test_the_greatest_stays_whatever_the_files_the_tasks_and_the_cut(spark: Any, place: Place, bridge: str) -> None:
    """Spark reads the larger file first, and in pieces; the newest row is the first of them."""
    filler = "".join(f"{n},0,{'x' * 100}\n" for n in range(60_000))
    (place.input / "1.csv").write_text("a,1,old\nb,7,same\n")
    (place.input / "2.csv").write_text("a,9,new\n" + filler + "a,5,newer than the first\nb,8,last\n")
    (place.input / "3.csv").write_text("b,7,z\nc,1,only\n")
    for number in (1, 2, 3):
        os.utime(place.input / f"{number}.csv", (1_700_000_000 + number,) * 2)
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(2 << 20))
    try:
        versions(spark, place, order_by="at", bridge=bridge).run(until="available")
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", before)
    found = {key: value for key, _, value in table(place.database, "t") if key in "abc"}
    assert {"a": "new", "b": "last", "c": "only"} == found


@pytest.mark.parametrize("is_late", [False, True], ids=["in order", "late"])
def test_one_result_however_the_epochs_are_cut(spark: Any, place: Place, is_late: bool) -> None:
    """A crash before Spark wrote an epoch's range may cut it elsewhere: one file or both."""
    rows = ["a,1,first\nb,1,first\nb,2,second\n", "a,2,second\n" + "z,0,\n" * 100]  # larger, so Spark reads it first
    for number, text in enumerate(reversed(rows) if is_late else rows):
        (place.input / f"{number}.csv").write_text(text)
        os.utime(place.input / f"{number}.csv", (1_700_000_000 + number,) * 2)
    found = []
    for files in (1, 2):
        cut = Place(place.root / str(files), place.input)
        cut.root.mkdir()
        versions(spark, cut, files=files, order_by="at").run(until="available")
        found.append(sorted(table(cut.database, "t")))
    assert found[0] == found[1]
    assert [("a", 2, "second"), ("b", 2, "second")] == found[0][:2]


def test_a_driver_that_dies_after_the_decision_leaves_the_greatest(spark: Any, place: Place) -> None:
    """Recovery writes the decided rows, of which one is older than what the table has."""
    for number, text in enumerate(["a,5,new\nb,1,old\n", "a,3,old\nb,2,new\n"]):
        (place.input / f"{number}.csv").write_text(text)
        os.utime(place.input / f"{number}.csv", (1_700_000_000 + number,) * 2)
    faults.arm({faults.ARM: "decide.after=fail@2"})
    try:
        with pytest.raises(fp.Retryable):
            versions(spark, place, files=1, order_by="at").run(until="available")
    finally:
        faults.arm({})
    assert [("a", 5, "new"), ("b", 1, "old")] == sorted(table(place.database, "t"))
    versions(spark, place, files=1, order_by="at").run(until="available")
    assert [("a", 5, "new"), ("b", 2, "new")] == sorted(table(place.database, "t"))


def noted(job: fp.Job, words: str) -> list[str]:
    """Whether each note with these words begins with the sink's name."""
    return [note.split(": ")[0] for note in job.check().notes if words in note]


def test_check_says_where_order_by_does_not_hold_across_epochs(spark: Any, place: Place) -> None:
    """And where a removed row has nothing left to compare with."""
    rows = place.job(spark).read(fp.Files(place.input, format="csv", schema=SCHEMA))
    marked = rows.selectExpr("*", "v IS NULL AS gone")

    def job(frame: Frame, sink: fp.Sink) -> fp.Job:
        return place.job(spark).write(frame, sink)

    later, again = "across epochs the later one wins", "is written again"
    for sink in (fp.Redis("redis://localhost", key="k", order_by="at"), fp.Cassandra("s.t", key="k", order_by="at")):
        assert [f"sink {sink.name}"] == noted(job(rows, sink), later)
    table_sink = fp.SQLite(place.database, table="t", key="k", order_by="at")
    assert ([], []) == (noted(job(rows, table_sink), later), noted(job(rows, table_sink), again))
    deleting = fp.SQLite(place.database, table="t", key="k", order_by="at", deletes="gone")
    assert ["sink sqlite:t"] == noted(job(marked, deleting), again)


class TestKafka:
    """A topic keeps every row; a compacted one, or a reader, the last of a key."""

    LOOSE = "messages of one key may come from several tasks"

    def job(self, spark: Any, place: Place, frame: Frame, **sink: Any) -> fp.Job:
        return place.job(spark).write(frame, fp.Kafka("t", servers="localhost:9", key="k", **sink))

    def test_tombstones_among_rows_as_they_come_are_refused(self, spark: Any, place: Place) -> None:
        marked = rate(spark).selectExpr("k", "value AS at", "value > 3 AS gone")
        with pytest.raises(BadConfig, match="With deletes= the last message decides for each value") as refused:
            self.job(spark, place, marked, deletes="gone").start()
        assert "last_row_undefined" == refused.value.code
        assert not place.checkpoint.exists()
        for settings in ({"order_by": "at"}, {"unique_key": True}):
            found = checks.look(self.job(spark, place, marked, deletes="gone", **settings)._launch(looks=True))
            assert [] == [error for error in found.problems if error.code == "last_row_undefined"]
        counts = rate(spark).groupBy("k").count().selectExpr("*", "count > 3 AS gone")
        found = checks.look(self.job(spark, place, counts, deletes="gone")._launch(looks=True))
        assert [] == [error for error in found.problems if error.code == "last_row_undefined"]

    def test_check_notes_that_the_last_message_of_a_key_is_chance(self, spark: Any, place: Place) -> None:
        assert ["sink kafka:t"] == noted(self.job(spark, place, rate(spark)), self.LOOSE)
        counts = rate(spark).groupBy("k").count()
        defined = [(rate(spark), {"order_by": "value"}), (rate(spark), {"unique_key": True}), (counts, {})]
        for frame, settings in defined:
            assert [] == noted(self.job(spark, place, frame, **settings), self.LOOSE)
        later = "across epochs the later one wins"
        assert ["sink kafka:t"] == noted(self.job(spark, place, rate(spark), order_by="value"), later)
