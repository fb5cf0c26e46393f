"""A stopped job goes on from an earlier epoch, from a savepoint elsewhere, beside itself, or on other partitions.

The commands need no Spark (but for the rescale) and are killed, in a fork, before and after every one of their steps.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import pytest
from kinds import KINDS
from streams import Place, decisions, drop_json, dump, table

import fencepost as fp
from fencepost import faults
from fencepost.admin import rescale, savepoint
from fencepost.admin.restore import restore, rewind
from fencepost.errors import BadConfig, CheckpointRefused, OperatorNeeded, RecoveryNeeded
from fencepost.protocol.lineages import Fate
from fencepost.spark import keys
from fencepost.store import LocalStore, savepoints
from fencepost.store.ledger import read
from fencepost.store.spark_log import state_ids

F = pytest.importorskip("pyspark.sql.functions")

WORDS = ("a b", "b c", "c d", "d a", "a a")


def run(spark: Any, place: Place, name: str = "words", out: str = "out", **settings: Any) -> None:
    """Counts by word (keyed), and every word (append), in one job."""
    job = place.job(spark, name=name, **settings)
    words = place.text(job).selectExpr("explode(split(value, ' ')) AS word")
    job.write(words.groupBy("word").count(), fp.SQLite(place.root / f"{out}.db", table="counts", key="word"))
    job.write(words, fp.SQLite(place.root / f"{out}-raw.db", table="words"))
    job.run(until="available")


def run_more(spark: Any, place: Place, **settings: Any) -> None:
    """One more file, then the job."""
    place.say(WORDS[len(os.listdir(place.input)) % len(WORDS)])
    run(spark, place, **settings)


def is_exact(place: Place, out: str = "out", *, without: Iterable[str] = ()) -> bool:
    """Both targets against a count of all input in plain Python."""
    wanted = Counter(place.expected())
    raw = Counter(word for (word,) in table(place.root / f"{out}-raw.db", "words"))
    counts = dict(table(place.root / f"{out}.db", "counts"))
    if without:  # a target of its own has only what came since
        return wanted - Counter(without) == raw and counts.items() <= wanted.items()
    return wanted == raw == counts


@pytest.fixture(scope="module")
def three_epochs(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A stopped job with three epochs, and a savepoint of its first two."""
    place = Place(tmp_path_factory.mktemp("continuation"))
    place.say(*WORDS[:2])
    run(spark, place)
    savepoint.create(place.checkpoint, name="second")
    run_more(spark, place)
    return place


@pytest.fixture
def stopped(three_epochs: Place, tmp_path: Path) -> Place:
    """A copy with targets of its own; what one test adds to the input, the next ones read too."""
    return three_epochs.copy(tmp_path / "copy")


def of_second(place: Place) -> savepoint.Savepoint:
    """The savepoint of the second epoch."""
    return savepoints.load(savepoints.home(place.checkpoint) / "second")


def killed(command: Callable[[], object], point: str) -> bool:
    """Run a command in a fork that is killed at a point; False if it never got there."""
    pid = os.fork()
    if not pid:
        gc.freeze()
        code = 1
        try:
            faults.arm({faults.ARM: f"{point}=kill"})
            command()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "it failed instead"
    return os.WIFSIGNALED(status)


def points_of(command: Callable[[], object], log: Path) -> list[str]:
    """The crash points that a command passes."""
    faults.arm({faults.LOG: str(log)})
    try:
        command()
    finally:
        faults.arm({})
    return list(dict.fromkeys(log.read_text().split()))


class TestRewind:
    def test_quiet_writes_nothing_twice(self, spark: Any, stopped: Place) -> None:
        begun = rewind(stopped.checkpoint, 0, "quiet")
        assert (0, 2) == (begun.epoch, begun.quiet)
        run_more(spark, stopped)
        assert is_exact(stopped)
        assert "quiet" in {one["cause"] for one in decisions(stopped.checkpoint)}

    def test_killed_at_every_step_and_repeated(self, stopped: Place, spark: Any, tmp_path: Path) -> None:
        passed = points_of(lambda: rewind(stopped.copy(tmp_path / "scout").checkpoint, 0, "quiet"), tmp_path / "log")
        for number, point in enumerate(passed):
            place = stopped.copy(tmp_path / str(number))
            assert killed(lambda place=place: rewind(place.checkpoint, 0, "quiet"), point), point
            again = rewind(place.checkpoint, 0, "quiet")
            assert read(place.checkpoint).lineage_id == again.lineage, point
            state = read(place.checkpoint)
            assert (1, 0, None, 2) == (state.lineage.generation, state.done_through, state.open, again.quiet), point
        assert {"restore.seal.before", "restore.first.after", "restore.switch.after"} <= set(passed)
        run_more(spark, place)  # the last one, killed after its last step
        assert is_exact(place)

    def test_overwrite_needs_a_key(self, spark: Any, stopped: Place) -> None:
        rewind(stopped.checkpoint, 0, "overwrite")
        with pytest.raises(BadConfig, match="overwrite_needs_key") as caught:
            run(spark, stopped)
        assert "sqlite:words" in str(caught.value)
        assert 2 == rewind(stopped.checkpoint, 0, "quiet").quiet  # as that error advises
        run_more(spark, stopped)
        assert is_exact(stopped)

    def test_overwrite_refuses_keys_that_another_run_does_not_give(self, spark: Any, place: Place) -> None:
        def run(drawn: str) -> None:
            job = place.job(spark)
            rows = place.text(job).selectExpr(f"concat({drawn}, '-', value) AS id", "rand() AS r")
            job.write(rows, fp.SQLite(place.database, table="rows", key="id", unique_key=True))
            job.run(until="available")

        place.say("a", "b")
        run("uuid()")
        rewind(place.checkpoint, 0, "overwrite")
        with pytest.raises(BadConfig, match="overwrite_other_keys") as caught:
            run("uuid()")
        assert "by uuid()" in str(caught.value)
        assert 2 == len(table(place.database, "rows"))
        run("'k'")
        assert "k-b" in {row[0] for row in table(place.database, "rows")}  # a value that is drawn may be another one

    @pytest.mark.parametrize(
        ("query", "said"),
        [
            ("SELECT value AS id, uuid() AS u FROM lines", ""),
            ("SELECT sha2(value, 256) AS id FROM lines", ""),
            ("SELECT reflect('java.util.UUID', 'randomUUID') AS id FROM lines", "reflect()"),
            ("SELECT concat(u, 'x') AS id FROM (SELECT uuid() AS u FROM lines)", "uuid()"),
            ("SELECT value AS id FROM lines UNION ALL SELECT uuid() FROM lines", "uuid()"),
            ("SELECT value AS id FROM lines WHERE rand() < 0.5", "rand()"),
            ("SELECT date(now()) AS id, count(*) FROM lines GROUP BY 1", "the current time"),
            ("SELECT id, max(r) FROM (SELECT value AS id, rand() AS r FROM lines) GROUP BY id", ""),
            ("SELECT explode(array(value, uuid())) AS id FROM lines", "uuid()"),
        ],
    )
    def test_what_another_run_draws_is_found_in_the_plan(self, spark: Any, place: Place, query: str, said: str) -> None:
        place.say("a")
        place.text(place.job(spark)).createOrReplaceTempView("lines")
        assert said == keys.varying(spark.sql(query), ["id"])

    def test_overwrite_puts_keyed_rows_in_the_place_of_old_ones(self, spark: Any, place: Place) -> None:
        place.say(*WORDS[:3])
        place.counting(spark).run(until="available")
        with closing(sqlite3.connect(place.database)) as target, target:
            target.execute("UPDATE counts SET count = -1 WHERE word <> 'a'")  # 'a' is of the epoch that stays
        rewind(place.checkpoint, 0, "overwrite")
        place.counting(spark).run(until="available")
        assert place.expected() == place.counts()

    def test_a_source_file_that_is_gone_is_missed_before_anything_is_sealed(self, place: Place, spark: Any) -> None:
        place.say(*WORDS[:3])
        place.counting(spark).run(until="available")
        os.utime(place.input / "0001.txt")
        with pytest.raises(CheckpointRefused, match="was changed"):  # quiet epochs keep their rows, so their files too
            rewind(place.checkpoint, 0, "quiet")
        (place.input / "0001.txt").unlink()
        for fate in get_args(Fate):
            with pytest.raises(CheckpointRefused, match="source_file_gone"):
                rewind(place.checkpoint, 0, fate)
        assert read(place.checkpoint).sealed is None
        assert rewind(place.checkpoint, 1, "quiet").quiet
        counts = place.counts()
        os.utime(place.input / "0002.txt")  # after the command: its listing is that of the first run, and stays
        hidden = (place.input / "0002.txt").rename(place.root / "hidden")
        with pytest.raises(OperatorNeeded, match="source_file_missing"):
            place.counting(spark).run(until="available")
        hidden.rename(place.input / "0002.txt")
        place.counting(spark).run(until="available")
        assert counts == place.counts()

    def test_again_takes_other_targets(self, spark: Any, stopped: Place) -> None:
        rewind(stopped.checkpoint, 0, "again")
        run_more(spark, stopped, out="new")
        assert is_exact(stopped, "new", without=WORDS[0].split())

    @pytest.mark.parametrize("kind", ["heap", "keyed"])
    def test_quiet_with_other_kinds_of_state_and_a_restart(self, spark: Any, place: Place, kind: str) -> None:
        """The parent's later state files are cut off, or lie there for nobody; no start may miss them."""
        place.say("a b", "a", "b b", "a")
        KINDS[kind](place, spark).run(until="available")
        seen = dump(place.database)
        schema = place.checkpoint / "state" / "0" / "_metadata" / "v2" / "3"
        if kind == "keyed":
            schema.write_text("of a later deployment")
        rewind(place.checkpoint, 1, "quiet")
        faults.arm({faults.ARM: "decide.after=fail@2"})
        with pytest.raises(fp.Retryable):
            KINDS[kind](place, spark).run(until="available")
        faults.arm({})
        KINDS[kind](place, spark).run(until="available")
        assert [line for line in seen if "fencepost" not in line] == [
            line for line in dump(place.database) if "fencepost" not in line
        ]
        assert "heap" == kind or "of a later deployment" != schema.read_text()
        place.say("c a")
        KINDS[kind](place, spark).run(until="available")
        last = dict(table(place.database, "counts" if kind == "heap" else "seen"))  # a word's highest comes last
        assert place.expected() == last

    def test_metadata_that_is_lost_after_it_is_written_anew(self, spark: Any, stopped: Place) -> None:
        begun = rewind(stopped.checkpoint, 0, "quiet")
        (stopped.checkpoint / "metadata").unlink()
        run_more(spark, stopped)
        assert begun.lineage == read(stopped.checkpoint).lineage_id
        assert is_exact(stopped)

    def test_the_old_driver_is_over(self, spark: Any, stopped: Place) -> None:
        old = stopped.copy(stopped.root.parent / "old")
        rewind(stopped.checkpoint, 1, "quiet")
        lineage = read(old.checkpoint).lineage_id
        sealed = LocalStore(stopped.checkpoint)
        sealed.replace("metadata", json.dumps({"id": lineage}).encode())  # as if the last step had not been reached
        with pytest.raises(CheckpointRefused, match="sealed"):
            run(spark, stopped)

    @pytest.mark.parametrize(("epoch", "code"), [(99, "epoch_not_retained")])
    def test_an_epoch_that_is_not_there(self, stopped: Place, epoch: int, code: str) -> None:
        with pytest.raises(CheckpointRefused, match=code):
            rewind(stopped.checkpoint, epoch, "quiet")
        assert read(stopped.checkpoint).sealed is None


class TestRestore:
    def test_on_another_path_with_the_parent_sealed(self, spark: Any, stopped: Place, tmp_path: Path) -> None:
        to = tmp_path / "elsewhere" / "checkpoint"
        begun = restore(of_second(stopped), to, fate="quiet", parent=stopped.checkpoint)
        assert (1, 1) == (begun.epoch, begun.quiet)
        with pytest.raises(CheckpointRefused, match="sealed"):
            run(spark, stopped)
        shutil.rmtree(stopped.checkpoint)
        run_more(spark, stopped, checkpoint=to)
        assert is_exact(stopped)

    def test_killed_at_every_step_and_repeated(self, stopped: Place, spark: Any, tmp_path: Path) -> None:
        def command(place: Place) -> Any:
            return restore(of_second(place), place.root / "to", fate="quiet", parent=place.checkpoint)

        passed = points_of(lambda: command(stopped.copy(tmp_path / "scout")), tmp_path / "log")
        for number, point in enumerate(passed):
            place = stopped.copy(tmp_path / str(number))
            assert killed(lambda place=place: command(place), point), point
            begun = command(place)
            state = read(place.root / "to")
            assert (begun.lineage, 1, None) == (state.lineage_id, state.done_through, state.open), point
            assert begun.lineage == read(place.checkpoint).sealed.next, point  # type: ignore[union-attr]
        assert {"restore.copied", "restore.built", "restore.seal.after"} <= set(passed)
        run_more(spark, place, checkpoint=place.root / "to")
        assert is_exact(place)

    def test_a_second_place_for_the_same_lineage_is_refused(self, stopped: Place, tmp_path: Path) -> None:
        restore(of_second(stopped), tmp_path / "one", fate="quiet", parent=stopped.checkpoint)
        with pytest.raises(CheckpointRefused, match="sealed"):
            restore(of_second(stopped), tmp_path / "two", fate="quiet", parent=stopped.checkpoint)

    def test_a_place_that_is_taken_leaves_the_parent_alone(self, stopped: Place) -> None:
        with pytest.raises(BadConfig, match="place_taken"):
            restore(of_second(stopped), stopped.checkpoint, fate="quiet", parent=stopped.checkpoint)
        assert read(stopped.checkpoint).sealed is None

    def test_a_parent_that_went_on_from_before_the_savepoint_is_none(self, stopped: Place, tmp_path: Path) -> None:
        rewind(stopped.checkpoint, 0, "again")
        with pytest.raises(BadConfig, match="not_the_parent"):
            restore(of_second(stopped), tmp_path / "to", fate="overwrite", parent=stopped.checkpoint)

    def test_a_lost_parent_cannot_be_caught_up_with_in_silence(self, stopped: Place, tmp_path: Path) -> None:
        with pytest.raises(BadConfig, match="quiet_needs_parent"):
            restore(of_second(stopped), tmp_path / "to", fate="quiet")

    def test_a_damaged_savepoint_is_refused(self, stopped: Place, tmp_path: Path) -> None:
        found = of_second(stopped)
        (found.copy / "offsets" / "1").write_text("")
        with pytest.raises(CheckpointRefused, match="savepoint_damaged"):
            restore(found, tmp_path / "to", fate="again")
        assert not (tmp_path / "to").exists()

    def test_a_fork_runs_beside_the_first(self, spark: Any, stopped: Place, tmp_path: Path) -> None:
        restore(of_second(stopped), tmp_path / "fork", fork="words-2")
        with pytest.raises(CheckpointRefused, match="fork_needs_own_targets"):
            run(spark, stopped, name="words-2", checkpoint=tmp_path / "fork")
        run_more(spark, stopped, name="words-2", checkpoint=tmp_path / "fork", out="fork")
        run(spark, stopped)
        assert is_exact(stopped)
        assert is_exact(stopped, "fork", without=" ".join(WORDS[:2]).split())


class TestWatermark:
    """With a watermark the silent epochs are run one by one: what each emits depends on the ones before it."""

    def windows(self, spark: Any, place: Place) -> None:
        job = place.job(spark, output_mode="append")
        rows = job.read(fp.Files(str(place.input), format="json", schema="at timestamp, n long", max_files_per_epoch=1))
        sums = rows.withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute").alias("w")).agg(F.sum("n"))
        flat = sums.selectExpr("unix_timestamp(w.start) AS start", "`sum(n)` AS total")
        job.write(flat, fp.SQLite(place.database, table="windows"))
        job.run(until="available")

    def test_a_window_that_is_out_is_not_written_again(self, spark: Any, place: Place, tmp_path: Path) -> None:
        for minute in range(6):
            drop_json(place.input, *({"at": f"2026-01-01T00:{minute * 2:02d}:0{n}Z", "n": n + 1} for n in range(3)))
        self.windows(spark, place)
        seen = table(place.database, "windows")
        begun = rewind(place.checkpoint, 1, "quiet")
        assert begun.quiet > 3
        self.windows(spark, place)
        assert seen == table(place.database, "windows")
        drop_json(place.input, {"at": "2026-01-01T01:00:00Z", "n": 0})
        self.windows(spark, place)
        self.windows(spark, place)
        assert [6] * 6 == [total for _, total in table(place.database, "windows")]


class TestRescale:
    def test_two_five_three(self, spark: Any, stopped: Place) -> None:
        for partitions in (5, 3):
            _, kept = rescale.rescale(stopped.checkpoint, partitions, lambda: spark)
            assert [] == savepoint.verify(kept)
            run_more(spark, stopped)
            assert is_exact(stopped)
            ids = state_ids(read(stopped.checkpoint).newest.snapshot)  # type: ignore[union-attr]
            assert [partitions] == [len(each) for each in ids.values()]

    def test_interrupted_anywhere_it_is_repeated_or_left(self, spark: Any, stopped: Place, tmp_path: Path) -> None:
        decided = "rescale.decide.after"
        steps = ("rescale.copied", "rescale.repartitioned", "rescale.state_copied", "rescale.decide.before", decided)
        for point in steps:
            place = stopped.copy(tmp_path / point)
            faults.arm({faults.ARM: f"{point}=fail"})
            with pytest.raises((faults.Injected, RecoveryNeeded)):
                rescale.rescale(place.checkpoint, 5, lambda: spark)
            faults.arm({})
            assert (2, point == decided) == (read(place.checkpoint).done_through, bool(read(place.checkpoint).open))
        left, through = (Place(tmp_path / point, stopped.input) for point in steps[-2:])
        run_more(spark, left)
        assert is_exact(left)
        run(spark, through)
        assert is_exact(through)
        rescale.rescale(left.checkpoint, 5, lambda: spark)
        run_more(spark, left)
        assert is_exact(left)
        assert [] == list(left.root.glob(".*.half"))

    def test_a_job_that_runs_or_died_is_refused(self, stopped: Place) -> None:
        newest = max(stopped.checkpoint.glob("fencepost/*/ledger/*.json"))
        newest.unlink()  # the record that said: done
        with pytest.raises(CheckpointRefused, match="open_decision"):
            rescale.rescale(stopped.checkpoint, 5, lambda: None)

    def test_as_many_as_there_are(self, stopped: Place) -> None:
        with pytest.raises(BadConfig, match="same_partitions"):
            rescale.rescale(stopped.checkpoint, 2, lambda: None)


class TestSinks:
    def test_a_sink_added_and_another_removed_if_declared(self, spark: Any, stopped: Place) -> None:
        def changed(**settings: Any) -> None:
            job = stopped.job(spark, name="words", **settings)
            words = stopped.text(job).selectExpr("explode(split(value, ' ')) AS word")
            job.write(words.groupBy("word").count(), fp.SQLite(stopped.root / "out.db", table="counts", key="word"))
            job.write(words, fp.SQLite(stopped.root / "third.db", table="third"))
            job.run(until="available")

        stopped.say("new")
        with pytest.raises(CheckpointRefused, match="sink_added"):
            changed()
        changed(allow_sink_changes=True)
        changed()
        assert stopped.expected() == dict(table(stopped.root / "out.db", "counts"))
        assert ("new",) in table(stopped.root / "third.db", "third")
