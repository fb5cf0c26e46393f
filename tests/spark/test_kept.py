"""How a checkpoint is kept, each option on a real job: what it promises happens, and the result stays exact."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from flaky import PATIENCE_S, Flaky
from streams import Place, decisions, records

import fencepost as fp
from fencepost.config import Strategy
from fencepost.errors import EpochFailed, GaveUp, now
from fencepost.protocol.recovery import take_over
from fencepost.runtime.checks import look
from fencepost.runtime.driver import this_process
from fencepost.runtime.pace import LOOK, LOOK_MS
from fencepost.runtime.performer import Performer
from fencepost.spark.spark_session import settings
from fencepost.store import LocalStore
from fencepost.store.ledger import read
from fencepost.store.spark_log import SparkLog

pytestmark = [pytest.mark.spark]


class Moody(Flaky):
    """Fails at several calls."""

    def __init__(self, inner: fp.Sink, *calls: int) -> None:
        super().__init__(inner, "verify")
        self._calls = calls
        self._made = 0

    def _instead(self, method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            self._made += 1
            if self._made in self._calls:
                self.reached()
            return method(*arguments)

        return call


def kept(
    place: Place, spark: Any, sink: fp.Sink | None = None, restart: Strategy | None = None, **options: Any
) -> fp.Job:
    """Count words, with a checkpoint of these options."""
    job = place.job(spark, checkpoint=fp.Checkpoint(place.checkpoint, **options), restart=restart)
    words = place.text(job).selectExpr("explode(split(value, ' ')) AS word")
    return job.write(words.groupBy("word").count(), sink or place.counts_sink())


def finish(place: Place, spark: Any) -> None:
    """Without options, all that is left."""
    place.counting(spark).run(until="available")
    assert place.expected() == place.counts()


def test_failures_in_a_row_are_borne_up_to_the_tolerance_and_an_epoch_that_ends_resets_the_count(
    spark: Any, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.say("a b", "a")
    kept(place, spark, Moody(place.counts_sink(), 1, 3), tolerable_failures=1).run(until="available")
    assert place.expected() == place.counts()
    assert 2 == sum("tried_again" in line for line in caplog.messages)
    assert 1 == sum(record["kind"] == "writer" for record in records(place.checkpoint)), "the query was not ended"
    place.say("c")
    with pytest.raises(EpochFailed):
        kept(place, spark, Moody(place.counts_sink(), 1, 2), tolerable_failures=1).run(until="available")
    finish(place, spark)


def test_a_failed_query_is_started_again_in_the_same_process_until_the_strategy_allows_no_more(
    spark: Any, place: Place
) -> None:
    place.say("a b", "a")
    job = kept(place, spark, Moody(place.counts_sink(), 1, 3), restart=fp.FixedDelay(attempts=2, delay="0 s"))
    told: list[fp.Event] = []
    job.on_restart(told.append)
    job.run(until="available")
    assert place.expected() == place.counts()
    assert [1, 2] == [event.attempt for event in told]
    assert 3 == sum(record["kind"] == "writer" for record in records(place.checkpoint)), "each start recovers"
    place.say("c")
    with pytest.raises(GaveUp, match="2 failures"):
        kept(place, spark, Moody(place.counts_sink(), 1, 2), restart=fp.FixedDelay(1, "0 s")).run(until="available")
    finish(place, spark)


def test_a_callback_may_stop_the_job(spark: Any, place: Place) -> None:
    place.say("a b", "a")
    job = kept(place, spark)
    job.on_complete(lambda event: job.stop())
    job.run()
    finish(place, spark)


def test_an_epoch_whose_vote_comes_too_late_is_dropped_before_its_decision(spark: Any, place: Place) -> None:
    place.say("a b", "a")
    with pytest.raises(EpochFailed) as dropped:
        kept(place, spark, timeout="1 ms").run(until="available")
    assert "epoch_timeout" == dropped.value.code
    assert 0 == dropped.value.where.epoch
    assert [] == decisions(place.checkpoint)
    finish(place, spark)


def test_an_epoch_whose_tasks_hang_is_dropped(spark: Any, place: Place) -> None:
    place.say("a b")
    spark.udf.register("hang", lambda value: time.sleep(600) or value)
    job = place.job(spark, checkpoint=fp.Checkpoint(place.checkpoint, timeout="1 second"))
    words = place.text(job).selectExpr("explode(split(hang(value), ' ')) AS word")
    job.write(words.groupBy("word").count(), place.counts_sink())
    began = time.monotonic()
    with pytest.raises(EpochFailed) as dropped:
        job.run(until="available")
    assert "epoch_timeout" == dropped.value.code
    assert time.monotonic() - began < 300
    assert [] == decisions(place.checkpoint)
    finish(place, spark)


@pytest.mark.parametrize(
    ("options", "until", "rests"),
    [
        ({}, "stopped", True),
        ({"interval": "0 s"}, "stopped", False),
        ({"min_pause": "0 s"}, "stopped", False),
        ({}, "available", False),
    ],
)
def test_a_job_paces_itself_unless_its_user_does(
    spark: Any, place: Place, options: dict[str, str], until: Any, *, rests: bool
) -> None:
    place.say("a")
    launch = kept(place, spark, **options)._launch(until=until)
    assert rests is launch.rests is launch.plan.rests
    assert ({LOOK: f"{LOOK_MS}ms"} if rests else {}) == launch.paces
    assert rests is ("pace" in [setting.name for setting in look(launch).settings])


def test_how_often_an_idle_session_looks_for_records_is_the_users_choice(spark: Any, place: Place) -> None:
    place.say("a")
    with settings(spark, {LOOK: "7ms"}):
        assert {} == kept(place, spark)._launch().paces
    assert spark.conf.get(LOOK, None) is None


def test_the_next_epoch_begins_after_the_pause_and_a_stop_does_not_wait_for_it(spark: Any, place: Place) -> None:
    place.say("a b", "a")
    job = kept(place, spark, min_pause="1 hour")
    run = threading.Thread(target=job.run)
    run.start()
    deadline = time.monotonic() + PATIENCE_S
    while not (place.database.exists() and decisions(place.checkpoint)) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    job.stop()
    run.join(PATIENCE_S)
    assert not run.is_alive()
    assert [0] == [decision["epoch"] for decision in decisions(place.checkpoint)]
    assert {"a": 1, "b": 1} == place.counts()
    assert "done" == records(place.checkpoint)[-1]["kind"]
    finish(place, spark)


def test_as_many_epochs_are_kept_as_asked(spark: Any, place: Place) -> None:
    place.say(*"abcdefgh")
    kept(place, spark, keep_epochs=2).run(until="available")
    assert [6, 7] == [decision["epoch"] for decision in decisions(place.checkpoint)][-2:]
    assert len(decisions(place.checkpoint)) <= 3
    for name in ("offsets", "commits"):
        found = [int(file.name) for file in (place.checkpoint / name).glob("[0-9]*")]
        assert 7 == max(found)
        assert len(found) < 8, "Spark was told, too"
    place.say("a")
    finish(place, spark)


def test_a_cancelled_job_deletes_its_checkpoint_if_told_to_and_nothing_else_does(spark: Any, place: Place) -> None:
    place.say("a b")
    job = kept(place, spark, on_cancel="delete")
    job.start().processAllAvailable()
    job.stop()
    assert place.checkpoint.is_dir()
    job.start().processAllAvailable()
    job.cancel()
    assert not place.checkpoint.exists()
    assert [] == [name for name in os.listdir(place.root) if "deleted" in name]
    assert place.expected() == place.counts()


def test_a_checkpoint_with_an_epoch_to_finish_is_kept_and_the_log_says_so(
    spark: Any, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.say("a b")
    job = kept(place, spark, Flaky(place.counts_sink(), "commit"), on_cancel="delete")
    with pytest.raises(fp.Retryable):
        job.run(until="available")
    with caplog.at_level(logging.WARNING, "fencepost"):
        job.cancel()
    assert "the job ended with commit_failed" in caplog.text
    finish(place, spark)


def test_a_checkpoint_that_another_driver_took_over_is_never_deleted(
    spark: Any, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The newer one has decided nothing yet, so nothing but the ledger's last number can tell."""
    place.say("a b")
    job = kept(place, spark, on_cancel="delete")
    job.start().processAllAvailable()
    job.stop()
    job.start().processAllAvailable()  # idle: it has nothing to append at its end
    store = LocalStore(place.checkpoint)
    state = read(place.checkpoint)
    Performer("", store, SparkLog(store), {}).run(take_over("job", this_process(), state, now))
    with caplog.at_level(logging.WARNING, "fencepost"):
        job.cancel()
    assert "was replaced by writer" in caplog.text
    assert place.checkpoint.is_dir()
    finish(place, spark)


def test_a_start_sweeps_what_dead_writers_left(spark: Any, place: Place) -> None:
    place.say("a")
    finish(place, spark)
    old: list[Path] = []
    for folder in ("offsets", "commits", "state/0/0"):
        old.append(place.checkpoint / folder / ".7.0fa1b2c3-1111-2222-3333-444455556666.tmp")
        old[-1].write_text("half")
        os.utime(old[-1], (1, 1))
    place.say("a")
    finish(place, spark)
    assert [] == [file for file in old if file.exists()]
