"""Real Spark, real SIGKILL: one checkpoint lives through a chain of kills at the points that matter most.

`tests/proof/test_kill.py` kills every point × every sink without Spark; `make kill N=…` kills every point with it.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from fencepost_proof.kill.points import out_of_reach
from fencepost_proof.kill.scene import KILLED, Scene, class_archive, end_group, is_stopped, until
from fencepost_proof.kill.scouting import scout
from fencepost_proof.workloads.contract import ROWS_PER_EPOCH
from fencepost_proof.workloads.files import FilesWorkload
from fencepost_proof.workloads.process import FENCED

pytestmark = pytest.mark.spark

NOTHING = {"lost": 0, "doubled": 0, "wrong": 0}
EXACT = {"totals": NOTHING, "rows": NOTHING}


def files_scene(tmp_path: Path, archives: Path, bridge: str = "jvm") -> Scene:
    archive = class_archive(archives, "files", FilesWorkload, bridge)
    return Scene(FilesWorkload(tmp_path / "scene"), bridge, archive)


def test_kills_before_in_and_after_the_decision_lose_and_double_nothing(tmp_path: Path, archives: Path) -> None:
    """Every kill must have happened; each restart first recovers from the kill before it. The last driver sleeps while
    another takes over: it is fenced when it wakes, and changes nothing.
    """
    scene = files_scene(tmp_path, archives)
    first = scene.feed(2)
    kills = {"task": scene.run("", None, "--kill-at-id", str(first + 15))}  # a task of the second epoch
    for fault in (
        "decide.after=kill",
        "commit.before=kill@4",  # 1 and 2 are recovery's own; 4 is between the two sinks of the first new epoch
        "recover.rebuild.after=kill",  # in the rebuild of Spark's log, which lacks that epoch's commits/N
    ):
        scene.feed(2)
        kills[fault] = scene.run(fault)
        if "@4" in fault:
            halves = scene.verdict()
            assert halves["totals"]["lost"] - halves["rows"]["lost"] == ROWS_PER_EPOCH
    assert dict.fromkeys(kills, KILLED) == kills

    scene.feed(1)
    sleeper = scene.start("decide.before=stop@2")
    until(sleeper, lambda: is_stopped(sleeper), "its second decision")
    os.killpg(sleeper.pid, signal.SIGSTOP)  # its JVM, too
    old = scene.writers()
    second = scene.start()
    try:
        until(second, lambda: scene.writers() != old, "it took over")
        os.killpg(sleeper.pid, signal.SIGCONT)
        assert (FENCED, 0) == (scene.wait(sleeper), scene.wait(second))
    finally:
        end_group(sleeper)
        end_group(second)
    records = scene.records()
    taken = scene.writers()[-1]
    assert {taken} == {record["writer"] for record in records if record["number"] >= taken}
    assert EXACT == scene.verdict()
    assert 6 == scene.starts


@pytest.mark.long
def test_with_overlap_a_scout_passes_the_points_of_a_commit_beside_the_next_epoch(
    tmp_path: Path, archives: Path
) -> None:
    scene = replace(files_scene(tmp_path, archives), overlap=True)
    passed = scout(scene)
    beside = {f"overlap.{what}.{side}" for what in ("begin", "join") for side in ("before", "after")}
    assert beside <= {*passed.only_first, *passed.later}
    assert {None} == {out_of_reach(point, FilesWorkload.out_of_reach, overlap=True) for point in beside}
    scene.feed(2)
    assert KILLED == scene.run("overlap.begin.after=kill@2")
    assert 0 == scene.run()
    assert EXACT == scene.verdict()


@pytest.mark.long
def test_kills_lose_and_double_nothing_without_the_jar(tmp_path: Path, archives: Path) -> None:
    """The same through `foreachBatch`: decided and not complete."""
    scene = files_scene(tmp_path, archives, "foreach_batch")
    scene.feed(2)
    assert KILLED == scene.run("complete.before=kill@2")
    assert 0 == scene.run()
    assert EXACT == scene.verdict()


def test_the_checker_finds_the_duplicates_of_a_plain_job(tmp_path: Path) -> None:
    """A sabotaged twin: `foreachBatch` and INSERT, killed between the insert and `commits/N`."""
    scene = Scene(FilesWorkload(tmp_path / "scene"))  # to make a class archive would take longer than these two starts
    scene.feed(2)
    assert KILLED == scene.run("plain.inserted=kill@2", None, "--plain")
    assert 0 == scene.run("", None, "--plain")
    found = scene.verdict(f"rows:sqlite:{scene.folder / 'rows.db'}")
    assert {"rows": NOTHING | {"doubled": ROWS_PER_EPOCH}} == found
