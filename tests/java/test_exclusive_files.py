"""Spark's checkpoint files on s3a: a name is taken once, a file is whole or absent, and few requests do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from buckets import reach
from fencepost_proof.rig.process import until
from fencepost_proof.rig.s3 import S3
from fencepost_proof.rig.s3_door import S3Door
from py4j.protocol import Py4JJavaError
from pyspark.sql.functions import col

from fencepost.spark.spark_session import FORMATS, keeping, settings

pytestmark = pytest.mark.spark

RACERS = 4
SETTING = "spark.sql.streaming.checkpointFileManagerClass"


class Files:
    """The manager that Spark would be given for a folder, and what can be done with it."""

    def __init__(self, spark: Any, folder: str) -> None:
        self._path = spark._jvm.org.apache.hadoop.fs.Path
        self.folder = self._path(folder)
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        conf.set(SETTING, "fencepost.ExclusiveFiles")
        choose = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.create
        self.manager = choose(self.folder, conf)
        self.system = self.folder.getFileSystem(conf)

    def at(self, name: str) -> Any:
        return self._path(self.folder, name)

    def begin(self, name: str, text: str, *, overwrite: bool = False) -> Any:
        """A file that is written and not closed."""
        file = self.manager.createAtomic(self.at(name), overwrite)
        file.write(bytearray(text.encode()))
        return file

    def read(self, name: str) -> str:
        file = self.manager.open(self.at(name))
        try:
            return bytes(file.readAllBytes()).decode()
        finally:
            file.close()

    def names(self) -> list[str]:
        return sorted(status.getPath().getName() for status in self.manager.list(self.folder))


@pytest.fixture
def files(spark: Any, bucket: str) -> Files:
    """Of the log of offsets."""
    return Files(spark, f"{bucket}/checkpoint/offsets")


@pytest.fixture
def door(s3: S3) -> Iterator[S3Door]:
    """The same server, behind a door."""
    with S3Door(s3.endpoint) as made:
        yield made


def close(file: Any) -> bool:
    """As Spark does; False if the name is taken."""
    try:
        file.close()
    except Py4JJavaError as error:
        if "org.apache.hadoop.fs.FileAlreadyExistsException" not in str(error):
            raise
        file.cancel()
        return False
    return True


def winners(begin: Callable[[str], Any]) -> int:
    """How many of some that hold a file open under one name can close it, all at once."""
    together = Barrier(RACERS)

    def race(racer: int) -> bool:
        file = begin(f"racer {racer}")
        together.wait()
        return close(file)

    with ThreadPoolExecutor(RACERS) as pool:
        return sum(pool.map(race, range(RACERS)))


def test_of_many_who_write_one_name_one_wins(files: Files) -> None:
    for epoch in range(12):
        assert 1 == winners(lambda text, name=str(epoch): files.begin(name, text))
    assert sorted(map(str, range(12))) == files.names()


def test_the_race_shows_a_store_that_lets_two_win(spark: Any, door: S3Door) -> None:
    files = Files(spark, f"{reach(spark, door)}/checkpoint/offsets")
    door.ignore_conditions()
    assert winners(lambda text: files.begin("0", text)) == RACERS


def test_a_taken_name_keeps_what_it_has(files: Files) -> None:
    assert [True, False] == [close(files.begin("0", text)) for text in ("first", "second")]
    assert "first" == files.read("0")


def test_who_took_a_name_knows_it_when_the_answer_was_lost(spark: Any, door: S3Door) -> None:
    """The client asks again by itself, and is refused because of its own first try."""
    files = Files(spark, f"{reach(spark, door)}/checkpoint/offsets")
    door.lose_answer(when=lambda request: request.kind == "CONDITIONAL PUT")
    assert close(files.begin("0", "first"))
    assert (1, "first") == (door.lost, files.read("0"))
    door.lose_answer(when=lambda request: request.kind == "CONDITIONAL PUT")
    assert not close(files.begin("0", "second"))
    assert (2, "first") == (door.lost, files.read("0"))


def test_each_step_of_an_epoch_is_one_request(spark: Any, door: S3Door) -> None:
    files = Files(spark, f"{reach(spark, door)}/checkpoint/offsets")
    manager, path = files.manager, files.at("0")
    door.reset()

    def asked(step: Callable[[], object]) -> dict[str, int]:
        step()
        return dict(door.reset())

    assert {"HEAD": 1} == asked(lambda: manager.exists(path))
    assert {"CONDITIONAL PUT": 1} == asked(lambda: files.begin("0", "first").close())
    assert {"PUT": 1} == asked(lambda: files.begin("0", "again", overwrite=True).close())
    assert {"HEAD": 1} == asked(lambda: manager.exists(path))
    assert {"HEAD": 1, "GET": 1} == asked(lambda: files.read("0"))
    assert {"LIST": 1} == asked(files.names)
    assert {"DELETE": 1} == asked(lambda: manager.delete(path))
    assert {} == asked(lambda: files.begin("0", "half").cancel())
    assert {} == asked(lambda: manager.mkdirs(files.folder))


def test_nothing_is_seen_before_the_end_nor_after_a_cancel(files: Files) -> None:
    file = files.begin("0", "half")
    assert not files.manager.exists(files.at("0"))
    file.cancel()
    file.close()  # callers do so in a `finally`
    assert ([], False) == (files.names(), files.manager.exists(files.at("0")))


def test_a_file_that_may_be_replaced_is(files: Files) -> None:
    for text in ("first", "second"):
        files.begin("0", text, overwrite=True).close()
    assert ("second", ["0"]) == (files.read("0"), files.names())


def test_folders_and_files_are_there_and_go(spark: Any, bucket: str) -> None:
    folder = f"{bucket}/checkpoint/state/0/0"
    files = Files(spark, folder)
    files.manager.mkdirs(files.folder)
    assert ([], False) == (files.names(), files.manager.exists(files.folder))
    names = ["1_a.changelog", "1_a.changelog.crc", "_metadata"]
    for name in names:
        files.begin(name, name).close()
    assert files.manager.exists(files.folder)
    assert [True] * 3 == [files.manager.exists(files.at(name)) for name in names]
    files.manager.delete(files.at("1_a.changelog"))
    files.manager.delete(files.at("never"))
    assert names[1:] == files.names()
    files.manager.delete(files.folder)
    assert ([], False) == (files.names(), files.manager.exists(files.folder))


def test_elsewhere_the_manager_is_what_spark_would_take(spark: Any, tmp_path: Path) -> None:
    """The setting is for all queries of a session, and one of them may have a folder on this machine."""
    files = Files(spark, f"file://{tmp_path}/offsets")
    files.manager.mkdirs(files.folder)
    assert [True, False] == [close(files.begin("0", text)) for text in ("first", "second")]
    assert "first" == (tmp_path / "offsets" / "0").read_text()
    files.begin("0", "third", overwrite=True).close()
    assert "third" == files.read("0")
    assert files.manager.exists(files.at("0"))
    files.manager.delete(files.at("0"))
    assert not files.manager.exists(files.at("0"))


def test_a_query_with_state_runs_and_goes_on(spark: Any, door: S3Door) -> None:
    checkpoint = f"{reach(spark, door)}/checkpoint"
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("startTimestamp", 1)
    counts = source.load().groupBy((col("value") % 3).alias("key")).count()
    door.reset()

    def through(epoch: int) -> int:
        """Run until an epoch is committed, or more; which one was the last."""
        writer = counts.writeStream.format("memory").queryName("counts").outputMode("complete")
        with settings(spark, {SETTING: "fencepost.ExclusiveFiles", **FORMATS, **keeping(2, FORMATS)}):
            query = writer.option("checkpointLocation", checkpoint).start()
        try:
            until(lambda: query.exception() or (query.lastProgress or {"batchId": -1})["batchId"] >= epoch, "epochs")
            assert query.exception() is None
        finally:
            query.stop()
        log = Files(spark, f"{checkpoint}/commits")
        return max(map(int, log.names()))

    last = through(through(1) + 1)
    asked = door.reset()
    assert 0 == asked["COPY"], "nothing is renamed"
    assert asked["CONDITIONAL PUT"] >= 2 * (last + 1), "offsets and commits"
    counted = spark.sql("SELECT sum(count) FROM counts").first()[0]
    assert 0 == counted % 10
    assert 10 * (last + 1) >= counted >= 10 * last, "the last epoch's rows may not have reached the table"
