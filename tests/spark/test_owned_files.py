"""The files of state on the heap in a remote checkpoint: they carry the number of the driver that wrote them.

Spark's heap provider knows a version of the state by its number alone, and keeps what an attempt committed in memory.
So of all attempts of a task one may commit, and no run may see what an undecided one left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import drawn
import pytest
from drawn import drawing, feed, in_sink, in_state, into
from fencepost_proof.rig.hdfs import Hdfs
from flaky import Flaky
from py4j.protocol import Py4JJavaError

from fencepost import faults
from fencepost.admin import savepoint
from fencepost.admin.restore import restore, rewind
from fencepost.errors import BadConfig, EpochFailed
from fencepost.spark.spark_session import settings
from fencepost.store import place
from fencepost.store.ledger import read
from fencepost.store.parts import parts_of, problems
from fencepost.store.spark_log import owned

PATIENCE_S = 300

pytestmark = [pytest.mark.spark, pytest.mark.since(4, 1)]


class Files:
    """What Spark's provider sees of one partition, as one driver."""

    def __init__(self, spark: Any, folder: Path, driver: str, decided: int) -> None:
        self.jvm, self.folder = spark._jvm, folder
        conf = self.jvm.org.apache.hadoop.conf.Configuration()
        conf.set("fs.AbstractFileSystem.file.impl", "fencepost.DurableFs")
        conf.set("spark.fencepost.state.driver", driver)
        conf.set("spark.fencepost.state.decided", str(decided))
        self.files = self.jvm.fencepost.ExclusiveFiles(self.path(), conf)

    def path(self, name: str = "") -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(str(self.folder / name))

    def write(self, name: str, text: str) -> None:
        out = self.files.createAtomic(self.path(name), True)  # as the provider does: it would overwrite
        out.writeBytes(text)
        out.close()

    def read(self, name: str) -> str:
        file = self.files.open(self.path(name))
        try:
            return bytes(file.readAllBytes()).decode()
        finally:
            file.close()

    def names(self) -> set[str]:
        return {file.getPath().getName() for file in self.files.list(self.path())}


def test_of_two_attempts_in_one_run_the_second_fails(spark: Any, tmp_path: Path) -> None:
    files, other = (Files(spark, tmp_path, "0-7", 3) for _ in range(2))
    files.write("4.delta", "first")
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        other.write("4.delta", "second")
    assert "first" == files.read("4.delta") == other.read("4.delta")
    assert "4_0-7.delta" in {file.name for file in tmp_path.iterdir()}


def test_a_run_sees_what_was_decided_before_it_and_what_is_its_own(spark: Any, tmp_path: Path) -> None:
    asleep = Files(spark, tmp_path, "0-7", 3)
    asleep.write("4.delta", "decided")
    asleep.write("5.delta", "undecided")
    asleep.write("5.snapshot", "undecided")
    second = Files(spark, tmp_path, "0-12", 4)
    assert {"4.delta"} == second.names()
    assert "decided" == second.read("4.delta")
    with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        second.read("5.delta")
    assert not second.files.exists(second.path("5.snapshot"))
    second.write("4.snapshot", "of what it loaded")
    second.write("5.delta", "again")
    assert "again" == second.read("5.delta")
    third = Files(spark, tmp_path, "1-2", 5)  # after a rewind writers are counted from the beginning
    assert {"4.delta", "4.snapshot", "5.delta"} == third.names(), "the snapshot of 5 is not of the 5 that counts"
    assert "again" == third.read("5.delta")
    third.write("6.delta", "mine")
    assert "6.delta" not in second.names()
    third.files.delete(third.path("5.delta"))
    assert not list(tmp_path.glob("5_*.delta"))


@pytest.fixture
def checkpoint(hdfs: Hdfs, spark: Any) -> str:
    """A new one on HDFS."""
    for key, value in hdfs.settings.items():
        spark.conf.set(key.removeprefix("spark.hadoop."), value)
    return f"{hdfs.url}/{uuid.uuid4().hex[:8]}"


def check(folder: Path, checkpoint: str, spark: Any, epochs: int) -> None:
    """Each line once, the same numbers in state and sink, and every file whole."""
    found = in_sink(folder)
    assert [("or not", epochs), ("to be", 2 * epochs)] == [(value, n) for value, _, n in found]
    assert found == in_state(spark, checkpoint)
    newest = read(checkpoint).newest
    assert newest is not None
    assert not problems(place(checkpoint), parts_of(place(checkpoint), newest.epoch))


def test_an_undecided_epoch_leaves_nothing_that_counts(checkpoint: str, spark: Any, tmp_path: Path) -> None:
    """Its state is on HDFS and in the memory of the tasks' process; the epoch runs again, with other numbers."""
    feed(tmp_path, 2)
    with pytest.raises(EpochFailed):
        drawing(tmp_path, checkpoint, spark, Flaky(into(tmp_path), "verify", at=2)).run(until="available")
    drawing(tmp_path, checkpoint, spark).run(until="available")
    written = {file.name for file in place(checkpoint).rglob("state/0/0/2_*")}
    assert 2 == len(written), "both attempts wrote version 2, under names of their own"
    check(tmp_path, checkpoint, spark, 2)


def test_savepoints_and_rewinds_take_the_files_that_count(checkpoint: str, spark: Any, tmp_path: Path) -> None:
    feed(tmp_path, 3)
    soon = {"spark.sql.streaming.stateStore.minDeltasForSnapshot": "0"}
    with settings(spark, soon):
        drawing(tmp_path, checkpoint, spark).run(until="available")
    rewind(place(checkpoint), 1, "overwrite")
    drawing(tmp_path, checkpoint, spark).run(until="available")
    check(tmp_path, checkpoint, spark, 3)
    kept = savepoint.create(place(checkpoint), name="kept")
    assert not savepoint.verify(kept)
    local = tmp_path / "restored"
    restore(kept, local, fate="overwrite", parent=place(checkpoint))
    feed(tmp_path)
    drawing(tmp_path, str(local), spark).run(until="available")  # the names go on, and no lock is needed
    check(tmp_path, str(local), spark, 4)
    assert {"4_2"} == {file.name.partition("-")[0] for file in local.glob("state/0/0/4_*")}


def test_of_what_drivers_wrote_of_a_version_the_newest_counts() -> None:
    """As in Java, above."""
    stale = ["5_0-7.delta", "5_0-7.snapshot"]
    assert {"delta": "5_0-12.delta"} == owned([*stale, "5_0-12.delta"])
    assert {"delta": "5_0-7.delta", "snapshot": "5_1-2.snapshot"} == owned([*stale, "5_1-2.snapshot"])
    assert {"delta": "5_1-2.delta"} == owned(["5_0-31.delta", "5_1-2.delta", "5.delta", "5_a-b.delta"])
    assert {"snapshot": "5_0-7.snapshot"} == owned(["5_0-7.snapshot"])


def test_without_the_jar_nobody_names_the_files(checkpoint: str, spark: Any, tmp_path: Path) -> None:
    feed(tmp_path)
    with pytest.raises(BadConfig) as refused:
        drawing(tmp_path, checkpoint, spark, bridge="foreach_batch").run(until="available")
    assert "heap_needs_jar" == refused.value.code
    assert not list(place(checkpoint).rglob("*"))


@pytest.mark.long
def test_kills_around_the_decision_leave_state_and_sink_equal(
    checkpoint: str, hdfs: Hdfs, spark: Any, tmp_path: Path
) -> None:
    environment = {**os.environ, "FENCEPOST_SPARK": json.dumps({"spark.master": "local[2]", **hdfs.settings})}
    command = [sys.executable, drawn.__file__, str(tmp_path), checkpoint]
    epochs = 0
    for fault in ("decide.before=kill@2", "decide.after=kill@2", "complete.before=kill", ""):
        feed(tmp_path, 2)
        epochs += 2
        told = environment | ({faults.ARM: fault} if fault else {})
        ended = subprocess.run(command, check=False, env=told, timeout=PATIENCE_S)
        assert (-signal.SIGKILL if fault else 0) == ended.returncode, fault
    check(tmp_path, checkpoint, spark, epochs)
