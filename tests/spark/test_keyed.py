"""`fp.map_with_state` over real Spark: what it refuses, what it gives, and how its state lives through restarts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from streams import BRIDGES, Place, decisions, drop_json, table

import fencepost as fp
from fencepost.spark import plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.since(4, 1)]

SOURCE = "k STRING, n BIGINT"
OUTPUT = "k STRING, n BIGINT"


def shipped(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """A function of a module travels by name, and no worker knows this module; one made in a function travels whole."""
    return make()


@shipped
def total() -> Callable[..., Any]:
    def total(record: Any, state: Any) -> Any:
        n = (state.n if state else 0) + record.n
        return (record.k, n), (n,)

    return total


def with_timers(record: Any, state: Any, timers: Any) -> Any:
    return None, state


def fire(key: Any, state: Any, when: Any) -> Any:
    return None, None


@pytest.fixture(scope="module")
def stream(spark: SparkSession) -> Any:
    frame = spark.readStream.format("rate").load()
    return frame.selectExpr("cast(value AS STRING) AS k", "value AS n", "timestamp AS at", "map('a', value) AS m")


@pytest.mark.parametrize(
    ("given", "fn", "code"),
    [
        ({"by": "nobody"}, total, "unknown_column"),
        ({"by": []}, total, "bad_columns"),
        ({"by": ["k", "k"]}, total, "bad_columns"),
        ({"by": "m"}, total, "bad_columns"),
        ({"order": "nobody"}, total, "unknown_column"),
        ({"order": "m"}, total, "bad_columns"),
        ({"state": "n NUMBER"}, total, "bad_schema"),
        ({"state": "BIGINT"}, total, "bad_schema"),
        ({"state": ""}, total, "bad_schema"),
        ({"state": 7}, total, "bad_schema"),
        ({"output": "n BIGINT, N BIGINT"}, total, "bad_schema"),
        ({"ttl": "soon"}, total, "bad_ttl"),
        ({"ttl": "0 hours"}, total, "bad_ttl"),
        ({"ttl": timedelta(0)}, total, "bad_ttl"),
        ({"time": "lunch"}, total, "bad_time"),
        ({"time": "event"}, total, "no_watermark"),
        ({"time": "processing"}, total, "time_without_timers"),
        ({"time": "event", "ttl": "1 hour"}, total, "ttl_in_event_time"),
        ({"on_timer": fire}, total, "timers_without_time"),
        ({"on_timer": lambda key, state: None, "time": "processing"}, total, "bad_function"),
        ({"on_timer": fire, "time": "processing", "by": "at"}, total, "timestamp_key"),
        ({}, with_timers, "no_on_timer"),
        ({}, lambda record: None, "bad_function"),
        ({}, lambda record, state, timers, more: None, "bad_function"),
        ({}, lambda record, state, *, more: None, "bad_function"),
        ({}, lambda record, state: (yield), "bad_function"),
        ({}, "total", "bad_function"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(stream: Any, given: Any, fn: Any, code: str) -> None:
    told = {"by": "k", "state": "n BIGINT", "output": OUTPUT} | given
    for call in (lambda: fp.map_with_state(stream, fn, **told), lambda: fp.map_with_state(stream, **told)(fn)):
        with pytest.raises(fp.Refused) as caught:
            call()
        assert code == caught.value.code


def test_the_function_may_be_given_at_once_or_decorated(stream: Any) -> None:
    at_once = fp.map_with_state(stream, total, by="k", state="n BIGINT", output=OUTPUT)

    @fp.map_with_state(stream, by="k", state="n BIGINT", output=OUTPUT)
    def decorated(record: Any, state: Any) -> Any:
        return total(record, state)

    assert {"TransformWithState"} == plan.states_of(at_once) == plan.states_of(decorated)
    assert at_once.schema == decorated.schema


def test_a_missing_protobuf_is_said_with_the_way_to_get_it(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.proto.StateMessage_pb2", None)
    with pytest.raises(fp.Refused, match=r"pip install 'fencepost\[spark\]'") as caught:
        fp.map_with_state(stream, by="k", state="n BIGINT", output=OUTPUT)(total)
    assert "no_protobuf" == caught.value.code


def test_a_batch_dataframe_is_refused(spark: SparkSession) -> None:
    with pytest.raises(fp.Refused) as caught:
        fp.map_with_state(spark.range(3), by="id", state="n BIGINT", output="id BIGINT")(total)
    assert "not_a_stream" == caught.value.code


def test_state_is_what_reads_a_stream_and_remembers(spark: SparkSession, stream: Any) -> None:
    keyed = fp.map_with_state(stream, by="k", state="n BIGINT", output=OUTPUT)(total)
    names = spark.range(3).selectExpr("cast(id AS STRING) AS k").distinct()
    assert [set(), {"TransformWithState"}, {"TransformWithState"}, {"Aggregate"}, {"Join"}, {"Deduplicate"}] == [
        plan.states_of(frame)
        for frame in (
            stream.join(names, "k"),
            keyed,
            keyed.join(names, "k"),
            stream.groupBy("k").count(),
            stream.join(stream.withColumnRenamed("n", "o"), "k"),
            stream.dropDuplicates(["k"]),
        )
    ]
    assert (False, False) == (plan.needs_update(keyed), plan.never_pauses(keyed))
    assert "append" == plan.branch_mode(keyed, "update")


STARVED = "Python worker failed to connect back"
"""Spark gives a Python process ten seconds to start, which a busy machine may not have; then nothing has happened."""


def run(job: fp.Job) -> None:
    for attempt in range(5):
        try:
            return job.run(until="available")
        except fp.Retryable as error:
            if STARVED not in str(error.__cause__) or attempt == 4:
                raise
    return None


def read(place: Place, job: fp.Job) -> Any:
    return job.read(fp.Files(str(place.input), format="json", schema=SOURCE, max_files_per_epoch=1))


def summing(
    place: Place, spark: Any, state: str, fn: Callable[..., Any], bridge: str = "jvm", *, distinct: bool = False
) -> fp.Job:
    """A running total, and beside it the rows as they came."""
    job = place.job(spark, bridge)
    rows = read(place, job)
    sums = fp.map_with_state(rows, by="k", order="n", state=state, output=OUTPUT)(fn)
    raw = rows.dropDuplicates() if distinct else rows
    return job.write(sums, fp.SQLite(place.database, table="sums")).write(raw, fp.SQLite(place.database, table="raw"))


@shipped
def noting() -> Callable[..., Any]:
    def noting(record: Any, state: Any) -> Any:
        """A later version of `total`: it notes since when, and is given None by keys of before."""
        n = (state.n if state else 0) + record.n
        since = state.since if state and state.since else ["then" if state else "now"]
        return (f"{record.k} since {since[0]}", n), {"since": since, "n": n}

    return noting


@pytest.mark.parametrize("bridge", BRIDGES)
def test_a_field_is_added_to_the_state_across_a_restart(place: Place, spark: SparkSession, bridge: str) -> None:
    """A branch without state beside it changes nothing about that."""
    drop_json(place.input, {"k": "a", "n": 2}, {"k": "b", "n": 5}, {"k": "a", "n": 1})
    run(summing(place, spark, "n BIGINT", total, bridge))
    assert [("a", 1), ("a", 3), ("b", 5)] == table(place.database, "sums")
    drop_json(place.input, {"k": "a", "n": 10}, {"k": "c", "n": 20})
    drop_json(place.input, {"k": "a", "n": 30})
    run(summing(place, spark, "n BIGINT, since ARRAY<STRING>", noting, bridge))
    new = [("a since then", 13), ("a since then", 43), ("c since now", 20)]
    assert sorted([("a", 1), ("a", 3), ("b", 5), *new]) == sorted(table(place.database, "sums"))
    assert 6 == len(table(place.database, "raw"))
    assert 3 == len(decisions(place.checkpoint))
    if bridge == "jvm":
        drop_json(place.input, {"k": "a", "n": 1})
        with pytest.raises(fp.Refused) as caught:
            run(summing(place, spark, "n STRING, since ARRAY<STRING>", lambda record, state: (None, state)))
        assert "state_schema" == caught.value.code
        job = summing(place, spark, "n BIGINT, since ARRAY<STRING>", noting, distinct=True)
        with pytest.raises(fp.Refused, match="Deduplicate by k, n"):
            run(job)


def test_keyed_state_beside_an_aggregate_works_but_its_schema_is_fixed(place: Place, spark: SparkSession) -> None:
    """Spark has one encoding for all state of a query, and the one that lets a schema grow is for keyed state only."""

    def job(state: str) -> fp.Job:
        made = summing(place, spark, state, total)
        return made.write(read(place, made).groupBy("k").count(), fp.SQLite(place.database, table="counts", key="k"))

    drop_json(place.input, {"k": "a", "n": 2}, {"k": "a", "n": 1})
    drop_json(place.input, {"k": "a", "n": 4})
    first = job("n BIGINT")
    assert any("does not allow fields to be added" in note for note in first.check().notes)
    run(first)
    assert ([("a", 1), ("a", 3), ("a", 7)], [("a", 3)]) == (
        table(place.database, "sums"),
        table(place.database, "counts"),
    )
    drop_json(place.input, {"k": "a", "n": 4})
    with pytest.raises(fp.Refused, match="without other state") as caught:
        run(job("n BIGINT, more STRING"))
    assert "state_schema" == caught.value.code


def test_an_output_that_does_not_fit_ends_the_job_without_its_values(place: Place, spark: SparkSession) -> None:
    hidden = "a value that no log may show"
    drop_json(place.input, {"k": hidden, "n": 2})
    with pytest.raises(fp.Retryable) as caught:
        run(summing(place, spark, "n BIGINT", lambda record, state: ((record.k,), None)))
    assert ("bad_output", "job") == (caught.value.code, caught.value.where.job)
    assert "it has 1 values instead of 2 (k, n). (Keyed state by k.)" in str(caught.value)
    assert hidden not in str(caught.value)


def test_a_ttl_and_timers_go_by_the_clock_on_the_wall(place: Place, spark: SparkSession) -> None:
    """The timer is due after the ttl, so it finds the state gone; the epochs until then have no records."""

    def wait(record: Any, state: Any, timers: Any) -> Any:
        timers.at(timers.now + timedelta(seconds=2))
        return ("set", 0), (record.n,)

    def due(key: Any, state: Any, when: Any, timers: Any) -> Any:
        return [(f"due {key.k} {state}", int(timers.now >= when))], state

    def job(sink: fp.Sink) -> fp.Job:
        made = place.job(spark)
        rows = fp.map_with_state(
            read(place, made), by="k", state="n BIGINT", output=OUTPUT, ttl="1 second", time="processing", on_timer=due
        )(wait)
        return made.write(rows, sink)

    drop_json(place.input, {"k": "a", "n": 2})
    sink = fp.SQLite(place.database, table="rows")
    made = job(sink)
    assert any("keyed state on processing time" in note for note in made.check().notes)
    with pytest.raises(fp.Refused) as caught:
        fp.start(made._branches[sink.name][0].writeStream, to=sink, checkpoint=place.root / "other")
    assert "no_pause" == caught.value.code
    query = made.start()
    deadline = time.monotonic() + 60
    while len(decisions(place.checkpoint)) == 0 or len(table(place.database, "rows")) < 2:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    seconds = [progress.timestamp[:19] for progress in query.recentProgress]
    made.stop()
    assert [("due a None", 1), ("set", 0)] == table(place.database, "rows")
    assert len(set(seconds)) == len(seconds)  # an epoch a second at most, though the job named no interval
