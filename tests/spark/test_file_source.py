"""Each file is read once, whatever its modification time; one that is gone, changed or damaged stops the job."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from buckets import reach
from fencepost_proof.rig.hdfs import Hdfs
from fencepost_proof.rig.s3 import S3
from streams import Place, drop, records, table

import fencepost as fp
from fencepost import connectors
from fencepost.connectors.files.source import FOREVER, FileCheck, change
from fencepost.errors import EpochFailed, GuaranteeTooHigh, OperatorNeeded
from fencepost.runtime.checks import look
from fencepost.spark.plan import sources_of
from fencepost.store import LocalStore, store_at
from fencepost.store.spark_log import SourceFile, SparkLog

pytestmark = pytest.mark.spark

DAY_S = 86_400
NOW_S = 1_700_000_000
FAR_S = 13_000_000_000
"""In the year 2381."""


def put(place: Place, name: str, time_s: int) -> Path:
    """A file that holds its own name, with this modification time."""
    place.input.mkdir(exist_ok=True)
    file = place.root / name
    file.write_text(f"{name}\n")
    os.utime(file, (time_s, time_s))
    return file.rename(place.input / name)


def sink(place: Place) -> fp.SQLite:
    return fp.SQLite(place.database, table="lines")


def read(spark: Any, place: Place, *, at_once: int = 1) -> list[str]:
    """Run until everything there is read; the lines that readers see, sorted."""
    job = place.job(spark)
    text = job.read(fp.Files(place.input, format="text", max_files_per_epoch=at_once))
    job.write(text, sink(place)).run(until="available")
    return lines(place)


def lines(place: Place) -> list[str]:
    return sorted(value for (value,) in table(place.database, "lines"))


class TestTimes:
    def test_an_old_file_that_is_moved_in_is_read(self, spark: Any, place: Place) -> None:
        put(place, "new", NOW_S)
        read(spark, place)
        put(place, "old", NOW_S - 30 * DAY_S)
        assert ["new", "old"] == read(spark, place)

    def test_a_time_in_the_future_hides_no_later_file(self, spark: Any, place: Place) -> None:
        put(place, "from-the-future", FAR_S)
        read(spark, place)
        put(place, "later", NOW_S)
        assert ["from-the-future", "later"] == read(spark, place)

    def test_a_file_that_is_touched_long_after_is_not_read_again(self, spark: Any, place: Place) -> None:
        old = put(place, "old", NOW_S - 30 * DAY_S)
        put(place, "new", NOW_S)
        read(spark, place)
        os.utime(old, (NOW_S + 1, NOW_S + 1))
        put(place, "next", NOW_S + 2)
        with pytest.raises(OperatorNeeded, match="source_file_changed_late"):
            read(spark, place)
        assert ["new", "next", "old"] == read(spark, place)

    def test_a_checkpoint_that_was_begun_with_the_default_age_remembers_what_it_read(
        self, spark: Any, place: Place
    ) -> None:
        """Spark forgets the old file only in memory: its own log still names it."""
        old = put(place, "old", NOW_S - 30 * DAY_S)
        put(place, "new", NOW_S)
        plain = spark.readStream.option("maxFilesPerTrigger", 1).text(str(place.input)).writeStream
        writer = plain.option("checkpointLocation", str(place.checkpoint)).trigger(availableNow=True)
        writer.format("noop").start().awaitTermination()
        os.utime(old, (NOW_S + 1, NOW_S + 1))
        put(place, "missed-so-far", NOW_S - 20 * DAY_S)
        job = place.job(spark, adopt=True)
        job.write(place.text(job), sink(place)).run(until="available")
        assert ["missed-so-far"] == lines(place)


class TestAtAStart:
    """Files of decided epochs are those that were read, or somebody is told, once."""

    def late(self, spark: Any, place: Place) -> str:
        job = place.job(spark)
        job.write(place.text(job), sink(place))
        before = records(place.checkpoint)
        (said,) = [str(found) for found in look(job._launch(looks=True)).problems]
        with pytest.raises(OperatorNeeded) as caught:
            job.run(until="available")
        assert ("source_file_changed_late", said) == (caught.value.code, str(caught.value))
        assert [one["kind"] for one in records(place.checkpoint)][len(before) :] == ["writer"]
        return caught.value.what

    def test_a_file_that_was_changed_stops_one_start(self, spark: Any, place: Place) -> None:
        place.say("a", "b", "c")
        read(spark, place)
        for name in ("0000.txt", "0002.txt"):
            (place.input / name).write_text("changed\n")
        assert f"{place.input / '0000.txt'} (and 1 more)" in self.late(spark, place)
        place.say("d")
        assert ["a", "b", "c", "d"] == read(spark, place)
        (place.input / "0000.txt").write_text("changed again\n")
        os.utime(place.input / "0000.txt", (NOW_S + DAY_S, NOW_S + DAY_S))
        assert "0000.txt was changed" in self.late(spark, place)
        assert ["a", "b", "c", "d"] == read(spark, place)

    def test_files_that_are_gone_are_not_missed(self, spark: Any, place: Place) -> None:
        place.say("a", "b")
        read(spark, place)
        (place.input / "0000.txt").unlink()
        drop(place.input, "c\n").rename(place.input / "c.txt")
        assert ["a", "b", "c"] == read(spark, place)

    def test_a_name_that_comes_back_with_other_records_is_told(self, spark: Any, place: Place) -> None:
        """Spark knows a file by its path and does not read it again: without a word its records would be lost."""
        place.say("a", "b")
        read(spark, place)
        put(place, "0000.txt", NOW_S + DAY_S)
        assert "0000.txt" in self.late(spark, place)

    def test_the_weaker_guarantees_do_not_look(self, spark: Any, place: Place) -> None:
        place.say("a")
        for _ in range(2):
            job = place.job(spark, guarantee="at_least_once")
            job.write(place.text(job), sink(place)).run(until="available")
            (place.input / "0000.txt").write_text("changed\n")
        assert ["a"] == lines(place)


def meddling(spark: Any, place: Place, frame: Any, meddle: Callable[[], object]) -> fp.Job:
    """A job that meddles with its input when it sends its first epoch: Spark has listed everything by then."""
    job = place.job(spark)
    frame = place.text(job) if frame is None else frame

    def send(context: Any, batches: Any) -> None:
        if context.epoch == 0:
            meddle()

    job.write(frame, fp.WriteAheadLog(send, name="meddler", idempotent=True))
    return job.write(frame, sink(place))


class TestBeforeTheDecision:
    def test_a_file_that_vanishes_stops_the_job(self, spark: Any, place: Place) -> None:
        place.say("a", "b", "c")
        second = place.input / "0001.txt"
        aside = place.root / "aside"
        with pytest.raises(OperatorNeeded) as caught:
            meddling(spark, place, None, lambda: second.rename(aside)).run(until="available")
        assert ("source_file_missing", 1) == (caught.value.code, caught.value.where.epoch)
        assert str(second) in caught.value.what
        assert ["a"] == lines(place)
        aside.rename(second)  # as the error advises
        meddling(spark, place, None, lambda: None).run(until="available")
        assert ["a", "b", "c"] == lines(place)

    def test_a_file_that_changes_stops_the_job_and_is_read_once(self, spark: Any, place: Place) -> None:
        """With Spark's own reader, too."""
        place.say("a", "b", "c")
        second = place.input / "0001.txt"
        plain = spark.readStream.option("maxFilesPerTrigger", 1).option("maxFileAge", FOREVER)
        frame = plain.text(str(place.input))
        with pytest.raises(OperatorNeeded) as caught:
            meddling(spark, place, frame, lambda: second.write_text("b\nb again\n")).run(until="available")
        assert ("source_file_changed", 1) == (caught.value.code, caught.value.where.epoch)
        assert str(second) in caught.value.what
        assert ["a"] == lines(place)
        meddling(spark, place, frame, lambda: None).run(until="available")
        assert ["a", "b", "b again", "c"] == lines(place)

    def test_so_does_one_in_a_bucket(self, spark: Any, place: Place, s3: S3) -> None:
        bucket = store_at(f"{reach(spark, s3)}/in")
        for name in "abc":
            bucket.replace(f"{name} %.txt", name.encode())
        frame = fp.Files(bucket.root, format="text", max_files_per_epoch=1).load(spark.readStream)
        with pytest.raises(OperatorNeeded, match="source_file_missing") as caught:
            meddling(spark, place, frame, lambda: bucket.delete("b %.txt")).run(until="available")
        assert f"{bucket.root}/b %.txt" in caught.value.what
        bucket.replace("b %.txt", b"b")
        meddling(spark, place, frame, lambda: None).run(until="available")
        assert ["a", "b", "c"] == lines(place)

    @pytest.mark.parametrize("name", ["a[1].txt", "{a}.txt", "*.txt", "a?.txt", "a\\.txt"])
    def test_a_name_that_makes_spark_read_other_files_twice_stops_the_job(
        self, spark: Any, place: Place, name: str
    ) -> None:
        """Spark takes it for a pattern. Alone in its epoch it is read like any other."""
        file = put(place, name, NOW_S)
        put(place, "b.txt", NOW_S)
        put(place, "c.txt", NOW_S)
        with pytest.raises(OperatorNeeded) as caught:
            read(spark, place, at_once=3)
        assert ("source_file_pattern", 0) == (caught.value.code, caught.value.where.epoch)
        assert str(file) in caught.value.what
        assert [] == lines(place)
        file.rename(place.input / "renamed.txt")  # as the error advises
        assert sorted([name, "b.txt", "c.txt"]) == read(spark, place, at_once=3)
        put(place, name, NOW_S)
        assert sorted([name, name, "b.txt", "c.txt"]) == read(spark, place, at_once=3)


class TestDamaged:
    def fails(self, spark: Any, place: Place, source: fp.Files, file: Path) -> None:
        job = place.job(spark)
        with pytest.raises(EpochFailed) as caught:
            job.write(job.read(source), sink(place)).run(until="available")
        assert "source_file_unreadable" == caught.value.code
        assert str(file) in caught.value.what
        assert [] == lines(place)

    def test_half_a_gzip_file(self, spark: Any, place: Place) -> None:
        place.input.mkdir()
        file = place.input / "a b.txt.gz"
        data = gzip.compress("".join(f"{number}\n" for number in range(100_000)).encode())
        file.write_bytes(data[: len(data) // 2])
        self.fails(spark, place, fp.Files(place.input, format="text"), file)

    def test_half_a_parquet_file(self, spark: Any, place: Place) -> None:
        place.input.mkdir()
        file = place.input / "a.parquet"
        pyarrow.parquet.write_table(pa.table({"value": ["x"] * 1000}), file)
        file.write_bytes(file.read_bytes()[:-100])
        self.fails(spark, place, fp.Files(place.input, schema="value STRING"), file)


REFUSED = {
    "ignoreCorruptFiles": "true",
    "ignoreMissingFiles": "TRUE",
    "ignoreInvalidPartitionPaths": "true",
    "maxFileAge": "3650d",
    "fileNameOnly": "true",
    "cleanSource": "delete",
    "mode": "dropMalformed",
}


def refusals(spark: Any, place: Place, frame: Any) -> list[str]:
    """What `check` and a start say about a frame; they agree, and nothing began."""
    job = place.job(spark).write(frame, sink(place))
    with pytest.raises(GuaranteeTooHigh) as caught:
        job.start()
    weak = weaknesses(spark, frame)
    assert weak[0].reason in str(caught.value)
    assert not place.checkpoint.exists()
    assert not place.database.exists()
    return [f"{each.reason}: {each.cure}" for each in weak]


class TestOptions:
    @pytest.mark.parametrize("option", REFUSED)
    def test_an_option_that_skips_or_forgets_is_refused(self, spark: Any, place: Place, option: str) -> None:
        place.say("a")
        reader = fp.Files(place.input, format="text", options={option: REFUSED[option]})
        (said,) = refusals(spark, place, reader.load(spark.readStream))
        assert option in said

    @pytest.mark.parametrize("option", ["ignoreCorruptFiles", "ignoreMissingFiles"])
    def test_so_is_a_setting_of_the_session(self, spark: Any, place: Place, option: str) -> None:
        place.say("a")
        setting = f"spark.sql.files.{option}"
        spark.conf.set(setting, "true")
        try:
            (said,) = refusals(spark, place, place.text(place.job(spark)))
            told = fp.Files(place.input, format="text", options={option: "false"})  # the option wins, as in Spark
            assert [] == weaknesses(spark, told.load(spark.readStream))
        finally:
            spark.conf.unset(setting)
        assert setting in said

    def test_a_plain_reader_is_told_which_option_it_lacks(self, spark: Any, place: Place) -> None:
        place.say("a")
        (said,) = refusals(spark, place, spark.readStream.text(str(place.input)))
        assert f".option('maxFileAge', '{FOREVER}')" in said
        (said,) = refusals(spark, place, spark.readStream.option("latestFirst", "true").text(str(place.input)))
        assert "maxFileAge" in said

    def test_what_reads_each_file_once_is_accepted(self, spark: Any, place: Place) -> None:
        place.say("a")
        aged = spark.readStream.option("MAXFILEAGE", FOREVER)
        newest_first = spark.readStream.option("latestFirst", "true").option("maxFilesPerTrigger", 1)
        for reader in (aged, newest_first):
            assert [] == weaknesses(spark, reader.text(str(place.input)))


def weaknesses(spark: Any, frame: Any) -> list[Any]:
    return [weak for source in sources_of(frame) for weak in connectors.weaknesses(spark, source)]


class TestTheCheck:
    @pytest.fixture
    def files(self, tmp_path: Path) -> list[SourceFile]:
        made = [drop(tmp_path / "in put%", word) for word in "abc"]
        return [SourceFile("0", n, file.as_uri(), file.stat().st_mtime_ns // 1_000_000) for n, file in enumerate(made)]

    def test_it_is_silent_about_files_that_stayed(self, files: list[SourceFile]) -> None:
        FileCheck(None, "job")(0, files)

    @pytest.mark.parametrize("name", ["a[b", "a]b", "a{b", "a}b", "a*b", "a?b", "a\\b"])
    def test_it_knows_each_name_that_spark_takes_for_a_pattern(
        self, files: list[SourceFile], tmp_path: Path, name: str
    ) -> None:
        file = (tmp_path / "in put%" / "0000.txt").rename(tmp_path / "in put%" / name)
        odd = files[0]._replace(url=file.as_uri())
        with pytest.raises(OperatorNeeded, match="source_file_pattern"):
            FileCheck(None, "job")(0, [odd, files[1]])
        FileCheck(None, "job")(0, [odd, files[1]._replace(source="1")])  # of another source
        FileCheck(None, "job")(0, [odd, files[1]], is_quiet=True)  # decided once before, and run again for its state
        old = [odd._replace(is_new=False), files[1]]
        FileCheck(None, "job")(0, old)  # to rename one that was decided would be to read it again
        FileCheck(None, "job")(0, [odd])

    @pytest.mark.parametrize(
        ("sabotage", "code"),
        [
            (Path.unlink, "source_file_missing"),
            (lambda file: file.write_text("changed"), "source_file_changed"),
            (lambda file: os.utime(file, (NOW_S - 1, NOW_S - 1)), "source_file_changed"),
        ],
    )
    def test_it_catches_each_sabotage(
        self, files: list[SourceFile], tmp_path: Path, sabotage: Callable[[Path], object], code: str
    ) -> None:
        check = FileCheck(None, "job")
        sabotage(tmp_path / "in put%" / "0001.txt")
        for _ in range(2):  # a retry of the same epoch looks at the same files
            with pytest.raises(OperatorNeeded) as caught:
                check(0, files)
            assert code == caught.value.code
        with pytest.raises(OperatorNeeded):
            check(1, files[1:2])

    def test_a_file_that_changes_after_its_decision_is_noticed_in_the_next_epoch(
        self, files: list[SourceFile], tmp_path: Path
    ) -> None:
        check = FileCheck(None, "job")
        check(0, files[:1])
        check(0, files[:1])  # retried
        (tmp_path / "in put%" / "0000.txt").write_text("more")
        for _ in range(2):
            with pytest.raises(OperatorNeeded, match="source_file_changed_late"):
                check(1, files[1:2])

    def test_files_of_decided_epochs_may_go(self, files: list[SourceFile], tmp_path: Path) -> None:
        """Where a log does not say which source ended where, the caller names some of them again."""
        (tmp_path / "in put%" / "0000.txt").unlink()
        perhaps = [file._replace(is_new=False) for file in files]
        check = FileCheck(None, "job")
        check(0, perhaps[:2])
        (tmp_path / "in put%" / "0001.txt").unlink()
        check(1, perhaps)
        (tmp_path / "in put%" / "0002.txt").unlink()
        with pytest.raises(OperatorNeeded, match="source_file_missing"):
            check(1, perhaps)

    def test_it_looks_back_at_files_that_changed_and_were_not_reported(
        self, files: list[SourceFile], tmp_path: Path
    ) -> None:
        check = FileCheck(None, "job")
        assert [] == check.look_back(files, ())
        (tmp_path / "in put%" / "0000.txt").unlink()
        os.utime(tmp_path / "in put%" / "0001.txt", (NOW_S, NOW_S))
        (found,) = check.look_back(files, ())
        assert files[1]._replace(changed_ms=NOW_S * 1000) == found
        assert [] == check.look_back(files, {change(found)})
        os.utime(tmp_path / "in put%" / "0001.txt", (NOW_S + 5, NOW_S + 5))
        assert [found._replace(changed_ms=NOW_S * 1000 + 5000)] == check.look_back(files, {change(found)})

    def test_all_files_ever_read_are_in_the_newest_compact_entry_and_those_after_it(self, tmp_path: Path) -> None:
        folder = tmp_path / "sources" / "0"
        folder.mkdir(parents=True)
        rows = [f'{{"path":"file:///in/{n}","timestamp":{n},"batchId":{n}}}' for n in range(6)]
        rows[5] = rows[5].replace("/5", '/\\"5')
        for name, some in (("2.compact", rows[:3]), ("3", rows[3:4]), ("4.compact", rows[:5]), ("5", rows[5:])):
            (folder / name).write_text("\n".join(["v1", *some]))
        barrier = 'v1\n{{"conf":{{}}}}\n{{"logOffset":{}}}'

        def read_up_to(end: int) -> list[str]:
            return [file.url for file in SparkLog(LocalStore(tmp_path)).files_ever_read(barrier.format(end))]

        assert [f"file:///in/{n}" for n in range(4)] == read_up_to(3)
        assert 'file:///in/"5' == read_up_to(5)[-1]
        assert [] == list(SparkLog(LocalStore(tmp_path)).files_ever_read('v1\n{}\n{"in":{"0":1}}'))

    def test_an_entry_that_is_compact_says_which_files_are_of_the_epoch(self, tmp_path: Path) -> None:
        folder = tmp_path / "sources" / "0"
        folder.mkdir(parents=True)
        rows = [f'{{"path":"file:///in/{n}","timestamp":{n},"batchId":{n}}}' for n in range(5)]
        for name, some in (("3", rows[3:4]), ("4.compact", rows)):
            (folder / name).write_text("\n".join(["v1", *some]))
        log = SparkLog(LocalStore(tmp_path))

        def read_between(began: int, ended: int) -> Iterator[int]:
            barrier = 'v1\n{{"conf":{{}}}}\n{{"logOffset":{}}}'
            return (file.entry for file in log.files_read(barrier.format(began), barrier.format(ended)))

        assert [4] == list(read_between(3, 4))
        assert [2, 3] == sorted(read_between(1, 3))
        assert [] == list(read_between(4, 4))

    def test_where_two_sources_ended_is_not_said_if_one_of_them_is_used_twice(self, tmp_path: Path) -> None:
        for source, last in (("0", 4), ("1", 2)):
            (tmp_path / "sources" / source).mkdir(parents=True)
            for n in range(last + 1):
                line = f'{{"path":"file:///in/{source}-{n}","timestamp":1,"batchId":{n}}}'
                (tmp_path / "sources" / source / str(n)).write_text(f"v1\n{line}")
        text = 'v1\n{{"conf":{{}}}}\n{{"logOffset":{0}}}\n{{"logOffset":{0}}}\n{{"logOffset":{1}}}'
        found = SparkLog(LocalStore(tmp_path)).files_read(text.format(3, 1), text.format(4, 2))
        assert [("0", 2, False), ("0", 3, False), ("0", 4, True), ("1", 2, False)] == sorted(
            (file.source, file.entry, file.is_new) for file in found
        )
        # A driver knows it from its plan: then no file is taken for an older one, which may go.
        found = SparkLog(LocalStore(tmp_path), [0, 0, 1]).files_read(text.format(3, 1), text.format(4, 2))
        assert [("0", 4, True), ("1", 2, True)] == [(file.source, file.entry, file.is_new) for file in found]

    def test_files_on_hdfs(self, spark: Any, hdfs: Hdfs) -> None:
        """Even one that is still being written, whose time HDFS changes only when it is closed."""
        jvm = spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(f"{hdfs.url}/tmp/file check/a%.txt")
        system = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        out = system.create(path, True)
        status = system.getFileStatus(path)
        listed = SourceFile("0", 0, str(path.toUri().toString()), int(status.getModificationTime()))
        with pytest.raises(OperatorNeeded, match="source_file_changed"):
            FileCheck(spark, "job")(0, [listed])
        out.close()
        closed = listed._replace(changed_ms=int(system.getFileStatus(path).getModificationTime()))
        FileCheck(spark, "job")(0, [closed])
        system.delete(path, False)
        with pytest.raises(OperatorNeeded, match="source_file_missing") as caught:
            FileCheck(spark, "job")(0, [closed])
        assert re.search(r"/tmp/file check/a%\.txt ", caught.value.what)
