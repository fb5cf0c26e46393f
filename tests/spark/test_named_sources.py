"""With every source named, sources come and go between two starts; kills in the first epoch after each change."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fencepost_proof.kill.scene import KILLED
from sessions import SMALL
from streams import Place, drop, table

import fencepost as fp
from fencepost.spark import plan
from fencepost.store.spark_log import DEPARTED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.since(4, 2)]


class Sums:
    """Files of numbers in folders a, b, c: a running sum and a row for each number, per folder."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.fed: dict[str, list[int]] = {}

        for folder in "abc":
            (place.root / folder).mkdir(exist_ok=True)

    def feed(self, *folders: str) -> None:
        for folder in folders:
            number = 10 ** len(self.fed.setdefault(folder, []))
            self.fed[folder].append(number)
            drop(self.place.root / folder, f"{number}\n")

    def job(self, spark: SparkSession | None, *folders: str, named: bool = True) -> fp.Job:
        job = self.place.job(spark, conf=SMALL)
        frames = []
        for folder in folders:
            source = fp.Files(str(self.place.root / folder), format="text", max_files_per_epoch=1)
            read = job.read(source, name=folder) if named else job.read(source)
            frames.append(read.selectExpr(f"'{folder}' AS folder", "CAST(value AS BIGINT) AS number"))
        rows = reduce(lambda left, right: left.unionAll(right), frames)
        totals = rows.groupBy("folder").sum("number").withColumnRenamed("sum(number)", "total")
        return job.write(totals, fp.SQLite(str(self.place.database), table="totals", key="folder"))

    def killed(self, fault: str, *folders: str) -> int:
        """The same job in a process of its own that dies at a point."""
        child = subprocess.run(
            [sys.executable, __file__, str(self.place.root), *folders],
            check=False,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "helpers"), "FENCEPOST_FAULT": fault},
        )
        return child.returncode

    def expected(self) -> list[tuple[str, int]]:
        return sorted((folder, sum(numbers)) for folder, numbers in self.fed.items())

    def found(self) -> list[tuple[str, int]]:
        return table(self.place.database, "totals")


@pytest.mark.long
def test_sources_come_and_go_and_every_sum_stays_exact(spark: SparkSession, place: Place) -> None:
    sums = Sums(place)
    sums.feed("a", "a")
    sums.job(spark, "a").run(until="available")
    assert sums.expected() == sums.found()

    sums.feed("a", "b", "b")
    assert KILLED == sums.killed("decide.before=kill", "a", "b")  # undecided: what b noted of its files is undone
    assert not list((place.checkpoint / DEPARTED).glob("*"))
    sums.job(spark, "b", "a").run(until="available")  # and in another order
    assert sums.expected() == sums.found()

    sums.feed("b", "b")
    assert KILLED == sums.killed("decide.after=kill", "b")  # decided, not complete
    assert ["a"] == [path.name for path in (place.checkpoint / DEPARTED).iterdir()]
    kept = sorted(path.name for path in (place.checkpoint / "sources" / "a").glob("[0-9]*"))
    sums.job(spark, "b").run(until="available")
    assert sums.expected() == sums.found()
    assert kept == sorted(path.name for path in (place.checkpoint / "sources" / "a").glob("[0-9]*"))

    sums.feed("c")
    with pytest.raises(fp.FencepostError, match="source_returns"):
        sums.job(spark, "a", "b", "c").run(until="available")
    sums.job(spark, "b", "c").run(until="available")
    assert sums.expected() == sums.found()
    with pytest.raises(fp.FencepostError, match="names_missing"):
        sums.job(spark, "b", "c", named=False).run(until="available")


def test_spark_itself_reads_a_source_that_returns_from_its_beginning_again(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin without the refusal: why a name that departed may not return. If this fails, it may."""
    sums = Sums(place)
    sums.feed("a")
    sums.job(spark, "a", "b").run(until="available")
    sums.feed("b", "b", "b")
    sums.job(spark, "b").run(until="available")
    assert sums.expected() == sums.found()
    monkeypatch.setattr(plan, "check_none_returns", lambda *_: None)
    sums.feed("a")
    sums.job(spark, "a", "b").run(until="available")
    assert [("a", 12), ("b", 111)] == sums.found()


def test_a_checkpoint_without_names_goes_on_and_says_what_to_do_when_sources_change(
    spark: SparkSession, place: Place
) -> None:
    sums = Sums(place)
    sums.feed("a", "b")
    sums.job(spark, "a", named=False).run(until="available")
    with pytest.raises(fp.FencepostError, match=r"sources_changed.*\n.*\n.*\n.*name=") as refused:
        sums.job(spark, "a", "b", named=False).run(until="available")
    assert "Safe" in str(refused.value)
    with pytest.raises(fp.FencepostError, match="names_too_late"):
        sums.job(spark, "a").run(until="available")
    sums.feed("a")
    sums.job(spark, "a", named=False).run(until="available")
    assert [("a", 11)] == sums.found()


def test_names_that_cannot_work_are_refused_before_anything_is_read(spark: SparkSession, place: Place) -> None:
    place.say("a")
    source = fp.Files(str(place.input), format="text")
    job = place.job(spark)
    for name in ("", "0", "a-b", "a b", "ä"):
        with pytest.raises(fp.FencepostError, match="bad_source_name"):
            job.read(source, name=name)
    with pytest.raises(fp.FencepostError, match="named_too_late"):
        job.read(job.read(source), name="clicks")

    mixed = place.job(spark).write(job.read(source, name="clicks").unionAll(job.read(source)), place.counts_sink())
    with pytest.raises(fp.FencepostError, match="not_all_named"):
        mixed.run(until="available")
    clicks = job.read(source, name="clicks")
    two = place.job(spark)
    for name in ("one", "two"):
        two.write(clicks, fp.SQLite(str(place.database), table=name))
    with pytest.raises(fp.FencepostError, match="source_used_twice"):
        two.run(until="available")
    assert not place.checkpoint.exists()


if __name__ == "__main__":
    Sums(Place(Path(sys.argv[1]))).job(None, *sys.argv[2:]).run(until="available")
