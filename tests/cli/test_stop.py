"""`fencepost stop` and `fencepost cancel`, as typed, on jobs without a supervisor: in this process, in threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ended import ended, wait_until
from sessions import spark
from streams import Place

import fencepost as fp
from fencepost.admin.savepoint import verify
from fencepost.observe import commands
from fencepost.observe.heartbeat import PULSE, this_driver
from fencepost.runtime.driver import Driver
from fencepost.store.savepoints import load

__all__ = ["spark"]


def typed(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fencepost", *words], check=False, capture_output=True, text=True, timeout=180
    )


def condition(checkpoint: Path) -> str:
    result = typed("status", str(checkpoint), "--json")
    return str(json.loads(result.stdout)["condition"]) if result.stdout else ""


class Running(threading.Thread):
    """A job that runs; `failed` is what ended it."""

    def __init__(self, job: fp.Job) -> None:
        super().__init__(daemon=True)
        self.job = job
        self.failed: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.job.run()
        except BaseException as error:  # noqa: BLE001 - for the test
            self.failed = error


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.say("one", "two")
    return made


def written(place: Place, job: fp.Job, **sink: Any) -> fp.Job:
    return job.write(place.text(job), fp.SQLite(place.database, table="lines", **sink))


@pytest.mark.spark
def test_a_job_in_a_plain_process_is_stopped_after_its_epoch(spark: Any, place: Place) -> None:
    running = Running(written(place, place.job(spark)))
    wait_until((place.checkpoint / "commits" / "1").exists)
    wait_until(lambda: condition(place.checkpoint) == "running")
    result = typed("stop", str(place.checkpoint))
    assert 0 == result.returncode, result.stderr
    assert "Job job is stopped: epoch 1 is complete; the checkpoint stays." in result.stdout
    assert f"asked process {os.getpid()}" in result.stderr
    running.join(20)
    assert (False, None) == (running.is_alive(), running.failed)
    assert not (place.checkpoint / "fencepost" / "request.json").exists()


@pytest.fixture
def unreaped() -> Iterator[SimpleNamespace]:
    """A supervisor that ended, and whose own parent (PID 1 of a container, perhaps) has not asked how."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield SimpleNamespace(pid=process.pid, beat=lambda: None, is_gone=lambda: False)
    process.wait()


@pytest.mark.spark
def test_a_supervisor_that_is_a_zombie_is_not_waited_for(
    spark: Any, place: Place, unreaped: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PULSE, "_parent", unreaped)
    running = Running(written(place, place.job(spark)))
    wait_until(lambda: condition(place.checkpoint) == "running")
    result = typed("stop", str(place.checkpoint), "--timeout", "600s")  # `typed` itself is not that patient
    assert 0 == result.returncode, result.stderr
    running.join(20)


@pytest.mark.spark
def test_a_job_is_stopped_with_a_savepoint_of_its_last_epoch(spark: Any, place: Place) -> None:
    running = Running(written(place, place.job(spark)))
    wait_until((place.checkpoint / "commits" / "1").exists)
    wait_until(lambda: condition(place.checkpoint) == "running")
    result = typed("stop", str(place.checkpoint), "--savepoint")
    assert 0 == result.returncode, result.stderr
    running.join(20)
    made = load(Path(result.stdout.splitlines()[-1]))
    assert (1, []) == (made.epoch, verify(made))


@pytest.mark.spark
@pytest.mark.parametrize("how", ["run", "start"])
def test_a_cancelled_job_deletes_its_checkpoint_if_it_was_told_to(
    how: str, spark: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who cancels it is told so, however long it takes from the end of the job to the end of its checkpoint."""
    seal = Driver.seal
    monkeypatch.setattr(Driver, "seal", lambda driver: time.sleep(1) or seal(driver))
    kept = fp.Checkpoint(place.checkpoint, on_cancel="delete")
    job = written(place, place.job(spark, checkpoint=kept))
    if how == "run":
        Running(job)
    else:
        job.start()
    wait_until((place.checkpoint / "commits" / "1").exists)
    wait_until(lambda: condition(place.checkpoint) == "running")
    result = typed("cancel", str(place.checkpoint))
    assert 0 == result.returncode, result.stderr
    assert "Job job is cancelled, and its checkpoint is deleted." in result.stdout
    assert not place.checkpoint.exists()
    assert 2 == typed("cancel", str(place.checkpoint)).returncode


@pytest.mark.spark
def test_a_job_that_waits_for_its_next_start_in_its_process_can_be_stopped(spark: Any, place: Place) -> None:
    job = place.job(spark, restart=fp.FixedDelay(attempts=3, delay="120 seconds"))
    no_numbers = place.text(job).selectExpr("CAST(value AS INT) AS number")
    running = Running(job.write(no_numbers, fp.SQLite(place.database, table="numbers")))
    wait_until(lambda: condition(place.checkpoint) == "waiting")
    result = typed("stop", str(place.checkpoint))
    assert 0 == result.returncode, result.stderr
    running.join(20)
    assert (False, None) == (running.is_alive(), running.failed)
    assert "stopped" == condition(place.checkpoint)


def test_a_driver_that_does_not_heed_is_named_and_the_wish_stays(tmp_path: Path) -> None:
    root = ended(tmp_path, word=False)
    PULSE.add(str(root), lambda: this_driver("stand-in", 1, 1))
    try:
        result = typed("stop", str(root), "--timeout", "1s")
    finally:
        PULSE.remove(str(root))
    assert 1 == result.returncode
    assert f"Process {os.getpid()} on " in result.stderr
    assert "did not stop within 1s" in result.stderr
    assert "stop" == commands.find(root, 1)


def test_there_is_nothing_to_stop_where_nobody_lives(tmp_path: Path) -> None:
    root = ended(tmp_path, "decide.after=kill@2")
    for verb in ("stop", "cancel"):
        result = typed(verb, str(root))
        assert 1 == result.returncode
        assert f"There is nothing to {verb}: job stand-in is not running." in result.stderr
        assert "Start it again" in result.stdout
    assert not (root / "fencepost" / "request.json").exists()


def test_no_savepoint_is_made_of_what_was_not_stopped(tmp_path: Path) -> None:
    root = ended(tmp_path, "decide.after=kill@2")
    result = typed("stop", str(root), "--savepoint")
    assert 1 == result.returncode
    assert "No savepoint was made." in result.stderr
    assert not list(tmp_path.glob("*.savepoints"))


def test_a_time_that_is_none_is_refused(tmp_path: Path) -> None:
    result = typed("stop", str(ended(tmp_path)), "--timeout", "soon")
    assert 2 == result.returncode
    assert "[bad_timeout]" in result.stderr
