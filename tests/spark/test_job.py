"""Whole jobs on a real Spark, over both bridges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from streams import BRIDGES, Place, decisions, drop_json, dump, records, table

import fencepost as fp
from fencepost.connectors.files.source import FOREVER

pytestmark = [pytest.mark.spark]


@pytest.fixture(params=BRIDGES)
def bridge(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def assert_log_is_the_ledgers(place: Place) -> None:
    """Spark wrote, for every epoch, what the decision had said it would."""
    for log, part in (("offsets", "offsets"), ("commits", "snapshot")):
        written = {file.name: file.read_text() for file in (place.checkpoint / log).iterdir() if file.name.isdigit()}
        assert {str(decision["epoch"]): decision[part] for decision in decisions(place.checkpoint)} == written


@pytest.mark.smoke
def test_a_count_is_exact_over_epochs_and_starts(spark: Any, place: Place, bridge: str) -> None:
    for lines in (["a b a", "b c"], ["a"], ["c c", "d"]):
        place.say(*lines)
        place.counting(spark, bridge).run(until="available")
        assert place.expected() == place.counts()
    assert [0, 1, 2, 3, 4] == [decision["epoch"] for decision in decisions(place.checkpoint)]
    assert_log_is_the_ledgers(place)


def test_a_copy_holds_every_line_once(spark: Any, place: Place, bridge: str) -> None:
    for lines in (["one", "two"], ["one", "three"]):
        place.say(*lines)
        job = place.job(spark, bridge)
        job.write(place.text(job), fp.SQLite(place.database, table="lines"))
        job.run(until="available")
    assert [("one",), ("one",), ("three",), ("two",)] == table(place.database, "lines")
    assert_log_is_the_ledgers(place)


@pytest.mark.smoke
def test_two_sinks_share_one_decision_per_epoch(spark: Any, place: Place, bridge: str) -> None:
    out = place.root / "out"
    for lines in (["a b", "b"], ["c"]):
        place.say(*lines)
        job = place.counting(spark, bridge)
        job.write(place.text(job), fp.Files(str(out), format="json"))
        job.run(until="available")
    decided = decisions(place.checkpoint)
    assert [0, 1, 2] == [decision["epoch"] for decision in decided]
    assert [{"sqlite:counts", "files:out"}] * 3 == [{h["sink"] for h in decision["handles"]} for decision in decided]
    assert place.expected() == place.counts()
    assert ["a b", "b", "c"] == sorted(
        json.loads(line)["value"] for file in out.glob("*.json") for line in file.read_text().splitlines()
    )
    assert_log_is_the_ledgers(place)


@pytest.mark.smoke
def test_a_window_is_written_once_when_the_watermark_passed_it(spark: Any, place: Place, bridge: str) -> None:
    def run(*seconds: int) -> None:
        drop_json(place.input, *({"at": f"2026-01-01T00:00:{second:02d}Z"} for second in seconds))
        job = place.job(spark, bridge)
        events = job.read(fp.Files(str(place.input), format="json", schema="at TIMESTAMP", max_files_per_epoch=1))
        windows = events.withWatermark("at", "0 seconds").selectExpr("window(at, '10 seconds') AS w").groupBy("w")
        frame = windows.count().selectExpr("date_format(w.start, 'ss') AS start", "count")
        job.write(frame, fp.SQLite(place.database, table="windows"))
        job.run(until="available")

    run(1, 2, 11)
    assert [("00", 2)] == table(place.database, "windows")
    run(12, 13, 25)
    run(9, 31)  # 9 is late: its window was written
    assert [("00", 2), ("10", 3), ("20", 1)] == table(place.database, "windows")
    assert_log_is_the_ledgers(place)


def test_an_epoch_without_rows_is_decided_without_handles(spark: Any, place: Place, bridge: str) -> None:
    place.say("keep 1", "drop", "keep 2")
    job = place.job(spark, bridge)
    job.write(place.text(job).where("value LIKE 'keep%'"), fp.SQLite(place.database, table="lines"))
    job.run(until="available")
    assert [1, 0, 1] == [len(decision["handles"]) for decision in decisions(place.checkpoint)]
    assert [("keep 1",), ("keep 2",)] == table(place.database, "lines")


def test_a_second_run_without_new_data_adds_nothing(spark: Any, place: Place, bridge: str) -> None:
    place.say("a", "b a")
    place.counting(spark, bridge).run(until="available")
    before = decisions(place.checkpoint), dump(place.database)
    place.counting(spark, bridge).run(until="available")
    assert before == (decisions(place.checkpoint), dump(place.database))


def test_one_job_object_may_run_again(spark: Any, place: Place, bridge: str) -> None:
    place.say("a")
    job = place.counting(spark, bridge)
    job.run(until="available")
    place.say("a b")
    job.run(until="available")
    assert place.expected() == place.counts()


def test_start_returns_sparks_own_query(spark: Any, place: Place, bridge: str) -> None:
    from pyspark.sql.streaming import StreamingQuery  # noqa: PLC0415 - pyspark may be absent where tests are collected

    for lines in (["a b", "a"], ["b"]):
        place.say(*lines)
        words = spark.readStream.option("maxFileAge", FOREVER).text(str(place.input))
        words = words.selectExpr("explode(split(value, ' ')) AS word")
        writer = words.groupBy("word").count().writeStream.outputMode("update").trigger(availableNow=True)
        query = fp.start(writer, to=place.counts_sink(), checkpoint=place.checkpoint, bridge=bridge)
        assert isinstance(query, StreamingQuery)
        assert query.awaitTermination(60)
        assert place.expected() == place.counts()
    assert "checkpoint" == records(place.checkpoint)[0]["body"]["job"]


def test_a_notebook_shows_every_link(spark: Any, place: Place, bridge: str) -> None:
    place.say("a")
    shown = place.counting(spark, bridge, name="<count>")._repr_html_()
    for part in ("&lt;count&gt;", "sink sqlite:counts", "source", "end to end", "exactly_once"):
        assert part in shown
    assert "<count>" not in shown
    assert "nothing yet" in repr(place.job(spark, bridge))


SCHEMA = (
    "i INT, l BIGINT, d DOUBLE, dec DECIMAL(20,4), t TIMESTAMP, day DATE, b BINARY, flag BOOLEAN, text STRING, "
    "list ARRAY<BIGINT>, pair STRUCT<x: INT, y: STRING>, map MAP<STRING, DOUBLE>"
)
VALUES: dict[str, Any] = {
    "i": -(2**31),
    "l": 2**63 - 1,
    "d": 0.1,
    "dec": "1234567890123456.7891",
    "t": "2026-03-29T01:30:00.123456Z",
    "day": "0099-02-28",
    "b": "AP8=",
    "flag": True,
    "text": "a\u0000ö🙂'\"",
    "list": [1, None, 3],
    "pair": {"x": 1, "y": None},
    "map": {"k": 1.5, "": None},
}
STORED = (
    -(2**31),
    2**63 - 1,
    0.1,
    "1234567890123456.7891",
    "2026-03-29T01:30:00.123456+00:00",
    "0099-02-28",
    b"\x00\xff",
    1,
    "a\u0000ö🙂'\"",
    "[1,null,3]",
    '{"x":1,"y":null}',
    '{"k":1.5,"":null}',
)


@pytest.mark.smoke
def test_every_type_survives_and_the_bridges_agree(spark: Any, tmp_path: Path) -> None:
    columns = {}
    for bridge in BRIDGES:
        place = Place(tmp_path / bridge)
        drop_json(place.input, VALUES, {"text": "nothing else"})
        job = place.job(spark, bridge)
        frame = job.read(fp.Files(str(place.input), format="json", schema=SCHEMA))
        job.write(frame, fp.SQLite(place.database, table="types"))
        job.write(frame, fp.Files(str(place.root / "out"), format="parquet"))
        job.run(until="available")
        nothing = tuple("nothing else" if name == "text" else None for name in VALUES)
        assert sorted([STORED, nothing], key=repr) == table(place.database, "types")
        (file,) = (place.root / "out").glob("*.parquet")
        columns[bridge] = pq.read_table(file)
    assert columns["foreach_batch"].schema == columns["jvm"].schema
    assert columns["foreach_batch"].to_pylist() == columns["jvm"].to_pylist()


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_the_weaker_levels_count_right_while_nothing_fails(
    spark: Any, place: Place, bridge: str, guarantee: str
) -> None:
    for lines in (["a b", "a"], ["b"]):
        place.say(*lines)
        place.counting(spark, bridge, guarantee=guarantee).run(until="available")
        assert place.expected() == place.counts()


def test_in_complete_mode_the_table_is_the_whole_result(spark: Any, place: Place, bridge: str) -> None:
    for lines in (["a b a"], ["b c"]):
        place.say(*lines)
        job = place.job(spark, bridge, output_mode="complete")
        words = place.text(job).selectExpr("explode(split(value, ' ')) AS word")
        job.write(words.groupBy("word").count(), fp.SQLite(place.database, table="counts", mode="replace"))
        job.run(until="available")
        assert place.expected() == place.counts()


@pytest.mark.since(4, 1)
def test_in_complete_mode_an_empty_result_is_an_empty_table(spark: Any, place: Place, bridge: str) -> None:
    for value, expected in ((20, [(20,)]), (-15, [])):
        drop_json(place.input, {"v": value})
        job = place.job(spark, bridge, output_mode="complete")
        numbers = job.read(fp.Files(str(place.input), format="json", schema="v BIGINT", max_files_per_epoch=1))
        large = numbers.groupBy().sum("v").toDF("v").where("v > 10")
        job.write(large, fp.SQLite(place.database, table="large", mode="replace"))
        job.run(until="available")
        assert expected == table(place.database, "large")
