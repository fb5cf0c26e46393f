"""Real Spark, real SIGKILL, every kind of state: after any kill, state and sinks are what the input makes of them.

The plans hold `rand()` and `uuid()`: an epoch that ran twice would leave other numbers in the state than in the sinks.
The checker reads the state by Spark's own reader and imports nothing of fencepost.
`make kill ARGS="--workload state --backend filesystem"` kills every point, and tasks, workers, JVMs, sleeping drivers.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fencepost_proof.kill import nemesis
from fencepost_proof.kill.scene import KILLED, Scene, class_archive
from fencepost_proof.workloads.files import FilesWorkload
from fencepost_proof.workloads.state import StateWorkload
from fencepost_proof.workloads.state_reader import states

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NOTHING = {"lost": 0, "doubled": 0, "wrong": 0}


def exact(*places: str) -> dict[str, dict[str, int]]:
    """Nothing lost, doubled or wrong in these places and in their state."""
    return {name: NOTHING for place in places for name in (place, f"state-{place}")}


def stateful(tmp_path: Path, archives: Path, spark: SparkSession, backend: str, plan: str) -> Scene:
    """The state is read in the session that is there already."""
    workload = StateWorkload(
        tmp_path / "scene", backend=backend, plan=plan, read_state=lambda path: states(spark, str(path))
    )
    return Scene(workload, archive=class_archive(archives, "files", FilesWorkload, "jvm"))


@pytest.mark.long
@pytest.mark.since(4, 1)
def test_kills_around_the_decision_leave_rocksdb_and_sinks_equal(
    tmp_path: Path, archives: Path, spark: SparkSession
) -> None:
    """A count, a sum of random numbers and keyed state; every kill must have happened."""
    scene = stateful(tmp_path, archives, spark, "rocksdb", "update")
    scene.feed(2)
    kills = {}
    for fault in (
        "decide.before=kill@2",  # state and rows of a second epoch are written, and nobody decided
        "commit.after=kill",  # decided, one sink has it, Spark's commits/N is missing
    ):
        kills[fault] = scene.run(fault)
        scene.feed(1)
    assert dict.fromkeys(kills, KILLED) == kills
    assert nemesis.in_a_worker(scene, "state.task.written=kill").hit
    assert nemesis.at_the_state(scene, tries=3).hit
    assert exact("counts", "drawn", "sums") == scene.verdict()

    with sqlite3.connect(scene.folder / "drawn.db") as database:
        database.execute("UPDATE drawn SET total = total + 1 WHERE key = 'a'")
    next((scene.folder / "sums").glob("*.json")).unlink()
    found = scene.verdict()
    assert NOTHING | {"wrong": 1} == found["drawn"]
    assert found["sums"]["lost"] > 0
    assert found["state-sums"]["wrong"] > 0


def test_kills_around_the_decision_leave_heap_state_and_sinks_equal(
    tmp_path: Path, archives: Path, spark: SparkSession
) -> None:
    """Windows and a join, in files that carry no attempt's id; at last the JVM dies, and the driver sees it."""
    scene = stateful(tmp_path, archives, spark, "filesystem", "append")
    scene.feed(3)
    assert KILLED == scene.run("complete.before=kill@2")
    scene.feed(1)
    assert nemesis.jvm_dies(scene, "decide.after@1").hit
    assert 0 == scene.run()
    assert exact("windows", "joined") == scene.verdict()


@pytest.mark.long
def test_state_in_memory_survives_failures_of_the_query(tmp_path: Path) -> None:
    """One process, which arms one failure after the other and counts at its end."""
    module = "fencepost_proof.workloads.state_failing"
    command = [sys.executable, "-m", module, str(tmp_path), "--fails", "6", "--seed", "3", "--plan", "update"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert 0 == ended.returncode, f"{ended.stdout}\n{ended.stderr[-2000:]}"


@pytest.mark.long
@pytest.mark.since(4, 1)
def test_the_checker_sees_state_and_sink_of_a_plain_job_part(
    tmp_path: Path, archives: Path, spark: SparkSession
) -> None:
    """A sabotaged twin: the textbooks' idempotent `foreachBatch`, killed between its commit and Spark's `commits/N`.

    No row is lost, none is doubled; but the replay drew other numbers, which the state has and the table has not.
    """
    scene = stateful(tmp_path, archives, spark, "rocksdb", "update")
    scene.feed(2)
    assert KILLED == scene.run("plain.replaced=kill@2", None, "--plain")
    assert 0 == scene.run("", None, "--plain")
    found = scene.verdict(f"drawn:sqlite:{scene.folder / 'drawn.db'}")
    assert NOTHING == found["state-drawn"]
    assert (0, 0) == (found["drawn"]["lost"], found["drawn"]["doubled"])
    assert found["drawn"]["wrong"] > 0
