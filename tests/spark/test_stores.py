"""Checkpoints on a remote store that misbehaves: a door before S3 loses answers, denies, slows down."""

from __future__ import annotations

import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from buckets import reach
from fencepost_proof.rig.hdfs import Hdfs
from fencepost_proof.rig.s3 import S3
from fencepost_proof.rig.s3_door import EXPIRED_TOKEN, SLOW_DOWN, Request, S3Door

import fencepost as fp
from fencepost.errors import BadConfig, CheckpointRefused, RecoveryNeeded
from fencepost.store import place, store_at

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def door(s3: S3) -> Iterator[S3Door]:
    """Before the S3 server."""
    with S3Door(s3.endpoint) as made:
        yield made


@pytest.fixture(scope="module")
def bucket(spark: Any, door: S3Door) -> str:
    """Behind the door."""
    return reach(spark, door)


@pytest.fixture
def checkpoint(bucket: str, door: S3Door) -> Iterator[str]:
    """A new one in the bucket; the door behaves again at the end."""
    yield f"{bucket}/{uuid.uuid4().hex[:8]}"
    door.behave()


class Words:
    """Files with lines, counted by word and copied line by line, in one decision."""

    def __init__(self, folder: Path, checkpoint: str, spark: Any, **options: Any) -> None:
        self.folder, self.files = folder, 0
        (folder / "in").mkdir(exist_ok=True)
        self.job = fp.Job(f"words-{folder.name}", checkpoint=checkpoint, spark=spark, **options)
        lines = self.job.read(fp.Files(folder / "in", format="text", max_files_per_epoch=1))
        self.job.write(lines.groupBy("value").count(), fp.SQLite(folder / "out.db", table="counts", key="value"))
        self.job.write(lines, fp.SQLite(folder / "out.db", table="lines"))

    def run(self, files: int = 2) -> None:
        """Let so many files arrive and be counted."""
        for _ in range(files):
            number = len(list((self.folder / "in").iterdir()))
            (self.folder / "in" / f"{number}.txt").write_text("to be\nor not\nto be\n")
        self.job.run(until="available")

    def check(self) -> None:
        """Each line once, in both tables."""
        files = len(list((self.folder / "in").iterdir()))
        with sqlite3.connect(self.folder / "out.db") as db:
            lines = db.execute("SELECT value, count(*) FROM lines GROUP BY 1 ORDER BY 1").fetchall()
            counts = db.execute("SELECT value, count FROM counts ORDER BY 1").fetchall()
        assert lines == counts == [("or not", files), ("to be", 2 * files)]


def of_ledger(kind: str) -> Any:
    def is_meant(request: Request) -> bool:
        return request.kind == kind and "/ledger/" in (request.key or request.query.get("prefix", ""))

    return is_meant


def test_a_lost_answer_to_the_decision_is_resolved_by_reading_it(
    checkpoint: str, door: S3Door, spark: Any, tmp_path: Path
) -> None:
    words = Words(tmp_path, checkpoint, spark)
    words.run()
    door.lose_answer(when=of_ledger("CONDITIONAL PUT"), times=1)
    words.run()
    assert door.lost >= 1
    words.check()


def test_a_store_that_slows_down_is_waited_for(checkpoint: str, door: S3Door, spark: Any, tmp_path: Path) -> None:
    words = Words(tmp_path, checkpoint, spark)
    words.run(1)
    door.answer(SLOW_DOWN)
    threading.Timer(5, door.behave).start()
    began = time.monotonic()
    words.run()
    assert time.monotonic() - began > 4
    words.check()


def test_credentials_that_expire_end_the_run_and_renewed_ones_go_on(
    checkpoint: str, door: S3Door, spark: Any, tmp_path: Path
) -> None:
    words = Words(tmp_path, checkpoint, spark)
    words.run(1)
    door.answer(EXPIRED_TOKEN, when=of_ledger("CONDITIONAL PUT"))
    with pytest.raises(RecoveryNeeded) as denied:
        words.run()
    assert denied.value.code == "store_denied"
    assert "expired" in denied.value.what
    door.behave()
    words.run(1)
    words.check()


@pytest.mark.long
def test_a_restart_strategy_outlives_expired_credentials(
    checkpoint: str, door: S3Door, spark: Any, tmp_path: Path
) -> None:
    words = Words(tmp_path, checkpoint, spark, restart=fp.FixedDelay(attempts=20, delay="500 ms"))
    words.run(1)
    door.answer(EXPIRED_TOKEN)
    threading.Timer(4, door.behave).start()
    words.run()
    words.check()


def test_a_store_that_ignores_the_condition_is_refused_by_the_name_of_what_it_lacks(
    checkpoint: str, door: S3Door, spark: Any, tmp_path: Path
) -> None:
    door.ignore_conditions()
    with pytest.raises(BadConfig) as refused:
        Words(tmp_path, checkpoint, spark).run()
    assert refused.value.code == "store_unfit"
    assert "exclusive create" in refused.value.what
    assert not list(place(checkpoint).rglob("*"))


def test_a_bucket_that_is_not_there_is_said_to_be_missing(spark: Any, door: S3Door, tmp_path: Path) -> None:
    name = f"none-{uuid.uuid4().hex[:8]}"
    for key, value in door.settings.items():
        spark.conf.set(key.replace("spark.hadoop.fs.s3a.", f"fs.s3a.bucket.{name}."), value)
    with pytest.raises(RecoveryNeeded) as missing:
        Words(tmp_path, f"s3a://{name}/words", spark).run()
    assert missing.value.code == "store_missing"


def test_a_path_that_two_jobs_share_is_refused_to_the_second(checkpoint: str, spark: Any, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = Words(tmp_path / "one", checkpoint, spark)
    one.run(1)
    before = store_at(checkpoint).list("commits")
    with pytest.raises(CheckpointRefused):
        Words(tmp_path / "two", checkpoint, spark).run(1)
    assert store_at(checkpoint).list("commits") == before
    one.run(1)
    one.check()


@pytest.mark.long  # its stores outlive the door, and Spark tends them: locks on state in this JVM may then wait in vain
def test_state_on_the_heap(checkpoint: str, door: S3Door, spark: Any, tmp_path: Path) -> None:
    """An answer that was lost on the way is not taken for another attempt's file."""
    Words(tmp_path, checkpoint, spark, state=fp.FileSystemState()).run(1)
    door.lose_answer(when=lambda request: request.kind == "CONDITIONAL PUT" and ".delta" in request.key, times=1)
    words = Words(tmp_path, checkpoint, spark, state=fp.FileSystemState())
    words.run()
    assert door.lost >= 1
    words.check()


def test_clocks_that_differ_change_nothing(
    checkpoint: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = Words(tmp_path, fp.Checkpoint(checkpoint, timeout="60 seconds"), spark)
    words.run(1)
    clock = time.time
    monkeypatch.setattr("fencepost.runtime.driver.now", lambda: "1999-01-01T00:00:00.000Z")
    monkeypatch.setattr(time, "time", lambda: clock() - 86_400)  # the store's own clock is a day ahead
    words.run(1)
    monkeypatch.setattr(time, "time", lambda: clock() + 86_400)
    words.run(1)
    words.check()


@pytest.fixture
def own_hdfs(require: Callable[[str], None], tmp_path: Path) -> Iterator[Hdfs]:
    """One whose nodes may be killed."""
    require("hdfs")
    with Hdfs(tmp_path / "hdfs") as made:
        yield made


@pytest.mark.long
def test_the_nodes_of_hdfs_die_and_come_back_under_a_running_job(own_hdfs: Hdfs, spark: Any, tmp_path: Path) -> None:
    hdfs = own_hdfs
    for key, value in hdfs.settings.items():
        spark.conf.set(key.removeprefix("spark.hadoop."), value)
    strategy = fp.FixedDelay(attempts=50, delay="500 ms")
    words = Words(tmp_path, f"{hdfs.url}/{uuid.uuid4().hex[:8]}", spark, restart=strategy)
    words.run(1)
    for node in (hdfs.name_node, hdfs.data_node):
        node.kill()
        back = threading.Timer(2, hdfs.start)
        back.start()
        words.run(1)
        back.join()
    words.check()
