"""How a run ends: stopped, cancelled, failed before and after a decision. What follows is exact in every case."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ended import wait_until
from flaky import PATIENCE_S, Boom, Flaky, Slow
from streams import BRIDGES, Place, decisions, records, table

import fencepost as fp
from fencepost.errors import EpochFailed, RecoveryNeeded

pytestmark = [pytest.mark.spark]


@pytest.fixture(params=BRIDGES)
def bridge(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def beside(work: Callable[[], object]) -> threading.Thread:
    """Run something in another thread."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> bool:
    thread.join(PATIENCE_S)
    return not thread.is_alive()


def copying(place: Place, spark: Any, bridge: str, sink: fp.Sink) -> fp.Job:
    job = place.job(spark, bridge)
    return job.write(place.text(job), sink)


def lines_sink(place: Place) -> fp.SQLite:
    return fp.SQLite(place.database, table="lines")


def test_stop_from_another_thread_ends_at_an_epochs_end(spark: Any, place: Place, bridge: str) -> None:
    place.say(*"abcdef")
    sink = Slow(lines_sink(place), "verify", at=2)
    job = copying(place, spark, bridge, sink)
    run = beside(job.run)
    assert sink.waiting.wait(PATIENCE_S)
    stop = beside(job.stop)
    assert [("a",)] == table(place.database, "lines")
    sink.go_on.set()
    assert ended(stop)
    assert ended(run)
    assert "done" == records(place.checkpoint)[-1]["kind"]
    decided = len(decisions(place.checkpoint))
    assert decided in (2, 3), "stop came while epoch 1 was voting"
    assert [(line,) for line in "abcdef"[:decided]] == table(place.database, "lines")
    copying(place, spark, bridge, lines_sink(place)).run(until="available")
    assert [(line,) for line in "abcdef"] == table(place.database, "lines")


def test_a_polite_kill_is_a_stop(spark: Any, place: Place, bridge: str) -> None:
    place.say(*"abcdef")
    sink = Slow(lines_sink(place), "verify", at=2)

    def kill() -> None:
        assert sink.waiting.wait(PATIENCE_S)
        os.kill(os.getpid(), signal.SIGTERM)
        sink.go_on.set()

    killer = beside(kill)
    before = signal.getsignal(signal.SIGTERM)
    copying(place, spark, bridge, sink).run()
    assert ended(killer)
    assert before == signal.getsignal(signal.SIGTERM)
    assert "done" == records(place.checkpoint)[-1]["kind"]
    copying(place, spark, bridge, lines_sink(place)).run(until="available")
    assert [(line,) for line in "abcdef"] == table(place.database, "lines")


def test_the_end_of_a_with_block_stops_the_job(spark: Any, place: Place, bridge: str) -> None:
    place.say("a b", "a")
    with place.counting(spark, bridge) as job:
        query = job.start()
        query.processAllAvailable()
        assert query.isActive
    assert not query.isActive
    assert "done" == records(place.checkpoint)[-1]["kind"]
    assert place.expected() == place.counts()


def test_a_failure_in_a_with_block_is_not_hidden_by_the_stop(spark: Any, place: Place, bridge: str) -> None:
    place.say("a")

    def fail() -> None:
        with place.counting(spark, bridge) as job:
            queries.append(job.start())
            raise Boom

    queries: list[Any] = []
    with pytest.raises(Boom):
        fail()
    assert [False] == [query.isActive for query in queries]
    place.counting(spark, bridge).run(until="available")
    assert place.expected() == place.counts()


@pytest.mark.parametrize("method", ["pre_commit", "verify", "commit"])
def test_a_cancelled_epoch_is_there_once_after_the_next_start(
    spark: Any, place: Place, bridge: str, method: str
) -> None:
    place.say(*"abc")
    sink = Slow(lines_sink(place), method, at=2)
    job = copying(place, spark, bridge, sink)
    query = job.start()
    assert sink.waiting.wait(PATIENCE_S)
    cancel = beside(job.cancel)
    sink.go_on.set()
    assert ended(cancel)
    assert not query.isActive
    copying(place, spark, bridge, lines_sink(place)).run(until="available")
    assert [("a",), ("b",), ("c",)] == table(place.database, "lines")


def test_sparks_own_stop_is_as_good_as_a_crash(spark: Any, place: Place, bridge: str) -> None:
    place.say(*"abc")
    sink = Slow(lines_sink(place), "verify", at=2)
    query = copying(place, spark, bridge, sink).start()
    assert sink.waiting.wait(PATIENCE_S)
    stop = beside(query.stop)
    sink.go_on.set()
    assert ended(stop)
    copying(place, spark, bridge, lines_sink(place)).run(until="available")
    assert [("a",), ("b",), ("c",)] == table(place.database, "lines")


def test_a_new_driver_fences_the_old_one_in_the_middle_of_an_epoch(spark: Any, place: Place, bridge: str) -> None:
    place.say(*"abc")
    sink = Slow(lines_sink(place), "verify", at=2)
    old = copying(place, spark, bridge, sink)
    new = copying(place, spark.newSession(), bridge, lines_sink(place))
    caught: list[fp.FencepostError] = []

    def run() -> None:
        try:
            old.run(until="available")
        except fp.FencepostError as error:
            caught.append(error)

    first = beside(run)
    assert sink.waiting.wait(PATIENCE_S)
    second = beside(lambda: new.run(until="available"))  # Spark lets it start when the old query has ended
    while writers(place) < 2:
        assert second.is_alive()
        second.join(0.02)
    sink.go_on.set()
    assert ended(first)
    assert ended(second)
    (fenced,) = caught
    taken = [record["at"] for record in records(place.checkpoint) if record["kind"] == "writer"][-1]
    won = f"process {os.getpid()} on {socket.gethostname()}, which took over at {taken}"
    assert ("fenced", True) == (fenced.code, won in fenced.what), fenced
    assert "the other driver continues" in fenced.safe
    assert "fencepost stop job" in fenced.next
    assert [("a",), ("b",), ("c",)] == table(place.database, "lines")


def writers(place: Place) -> int:
    return [record["kind"] for record in records(place.checkpoint)].count("writer")


def test_a_sink_that_fails_in_the_vote_leaves_nothing_and_the_next_run_is_exact(
    spark: Any, place: Place, bridge: str
) -> None:
    place.say(*"abc")
    sink = Flaky(lines_sink(place), "verify", at=2)
    with pytest.raises(EpochFailed) as failed:
        copying(place, spark, bridge, sink).run(until="available")
    assert ("epoch_failed", "job", 1) == (failed.value.code, failed.value.where.job, failed.value.where.epoch)
    assert "secret" not in str(failed.value)
    assert [("a",)] == table(place.database, "lines")
    copying(place, spark, bridge, sink).run(until="available")
    assert [("a",), ("b",), ("c",)] == table(place.database, "lines")


def test_a_sink_that_fails_in_the_commit_is_finished_by_the_next_run(spark: Any, place: Place, bridge: str) -> None:
    place.say(*"abc")
    sink = Flaky(lines_sink(place), "commit", at=2)
    with pytest.raises(RecoveryNeeded) as failed:
        copying(place, spark, bridge, sink).run(until="available")
    assert ("commit_failed", "job", 1) == (failed.value.code, failed.value.where.job, failed.value.where.epoch)
    assert [("a",)] == table(place.database, "lines")
    copying(place, spark, bridge, sink).run(until="available")
    assert [("a",), ("b",), ("c",)] == table(place.database, "lines")
    assert [0, 1, 2] == [decision["epoch"] for decision in decisions(place.checkpoint)]


def test_a_function_that_raises_once_is_run_again(spark: Any, place: Place, bridge: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name; pyspark may be absent

    flag = str(place.root / "raised")

    def upper(text: str) -> str:
        if text == "b" and not Path(flag).exists():
            Path(flag).touch()
            raise ValueError(text)
        return text.upper()

    def job() -> fp.Job:
        made = place.job(spark, bridge)
        uppers = F.udf(upper, useArrow=False)("value").alias("value")  # without Arrow: that would want pandas
        return made.write(place.text(made).select(uppers), lines_sink(place))

    place.say(*"abc")
    with pytest.raises(EpochFailed) as failed:
        job().run(until="available")
    assert ("spark_failed", "job") == (failed.value.code, failed.value.where.job)
    assert failed.value.__cause__ is not None
    assert [("A",)] == table(place.database, "lines")
    job().run(until="available")
    assert [("A",), ("B",), ("C",)] == table(place.database, "lines")


def test_state_and_rows_come_from_the_same_attempt_though_the_plan_rolls_dice(
    spark: Any, place: Place, bridge: str
) -> None:
    """Each epoch has one row per key, so its die is `last`; `total` is what state says of all dice so far."""
    sinks = {
        "verify": Flaky(fp.SQLite(place.database, table="dice", mode="append"), "verify", at=2),
        "commit": Flaky(fp.SQLite(place.database, table="dice", mode="append"), "commit", at=2),
    }

    def run(method: str) -> None:
        job = place.job(spark, bridge)
        rolled = place.text(job).selectExpr("'k' AS k", "CAST(value AS INT) AS n", "CAST(rand() * 1e9 AS INT) AS die")
        job.write(rolled.groupBy("k").agg(*_sums()), sinks[method])
        job.run(until="available")

    place.say(*"12345")
    with pytest.raises(EpochFailed):
        run("verify")
    with pytest.raises(RecoveryNeeded):
        run("commit")
    run("commit")
    rows = sorted((n, die, total) for _, n, die, total in table(place.database, "dice"))
    assert [1, 2, 3, 4, 5] == [n for n, _, _ in rows]
    assert [sum(die for _, die, _ in rows[: n + 1]) for n in range(5)] == [total for _, _, total in rows]


def _sums() -> list[Any]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as above

    return [F.max("n").alias("n"), F.max_by("die", "n").alias("die"), F.sum("die").alias("total")]


def test_a_stop_waits_for_a_commit_that_runs_beside_the_next_epoch(
    spark: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_OVERLAP", "yes")
    place.say(*"abcdef")
    sink = Slow(lines_sink(place), "commit")
    job = copying(place, spark, "jvm", sink)
    run = beside(job.run)
    assert sink.waiting.wait(PATIENCE_S)
    wait_until((place.checkpoint / "offsets" / "1").exists)
    assert [] == table(place.database, "lines"), "Spark has completed an epoch that nobody sees yet"
    stop = beside(job.stop)
    sink.go_on.set()
    assert ended(stop)
    assert ended(run)
    assert "done" == records(place.checkpoint)[-1]["kind"]
    decided = len(decisions(place.checkpoint))
    assert [(line,) for line in "abcdef"[:decided]] == table(place.database, "lines")
    copying(place, spark, "jvm", lines_sink(place)).run(until="available")
    assert [(line,) for line in "abcdef"] == table(place.database, "lines")


def test_a_commit_that_fails_beside_an_idle_source_ends_the_job_by_itself(
    spark: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_OVERLAP", "yes")
    place.say("a")
    with pytest.raises(RecoveryNeeded) as failed:
        copying(place, spark, "jvm", Flaky(lines_sink(place), "commit")).run()  # until somebody stops it
    assert ("commit_failed", 0) == (failed.value.code, failed.value.where.epoch)
    copying(place, spark, "jvm", lines_sink(place)).run(until="available")
    assert [("a",)] == table(place.database, "lines")
