"""The jobs of the demo, each in its own process so that it can be killed. Plain fencepost jobs, like a user's."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the usual name

import fencepost as fp
from fencepost import faults

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUICK = {
    "spark.ui.enabled": "false",
    # A short run never reaches the second compiler; the first one alone starts sooner.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}
LAST = 9
"""Position of the last number of the story."""


def running_sum(numbers: DataFrame) -> DataFrame:
    """The sum of all numbers up to each position: a number counts for its own sum and for every later one.

    A sum is passed on in the epoch that brings its last number, so each is written once.
    """
    parts = numbers.select(F.explode(F.sequence("position", F.lit(LAST))).alias("position"), "number")
    sums = parts.groupBy("position").agg(F.sum("number").alias("sum"), F.count("*").alias("parts"))
    return sums.where(F.col("parts") == F.col("position") + 1).select("position", "sum")


def story_job(folder: Path, guarantee: str) -> fp.Job:
    """Numbers in, their running sum out, under one of the three levels."""
    job = fp.Job(f"sums-{guarantee}", checkpoint=folder / f"checkpoint-{guarantee}", guarantee=guarantee, conf=QUICK)
    files = fp.Files(
        str(folder / "numbers"), format="json", schema="position BIGINT, number BIGINT", max_files_per_epoch=1
    )
    sink = fp.SQLite(str(folder / f"{guarantee}.db"), table="sums", mode="append")
    return job.write(running_sum(job.read(files)), sink)


def story(folder: Path) -> None:
    """All three levels in one process: when it is killed, each is caught in the middle of the same epoch."""
    jobs = {level: story_job(folder, level) for level in ("at_most_once", "at_least_once", "exactly_once")}
    log = os.environ.get(faults.LOG)
    if log is not None:
        for level in ("at_most_once", "at_least_once"):
            threading.Thread(target=jobs[level].run, kwargs={"until": "available"}, daemon=True).start()
        while not _reached(Path(log), "claim.write.before", "write.after"):
            time.sleep(0.05)  # these two hang in their second epoch; the third one's decision pulls the plug
        jobs["exactly_once"].run(until="available")
        raise SystemExit("the kill did not happen")
    for job in jobs.values():
        job.run(until="available")


def words(folder: Path, checkpoint: str | None = None) -> None:
    """Lines in; every line once in one database, word counts in another: two sinks, one decision."""
    job = fp.Job("words", checkpoint=checkpoint or folder / "checkpoint", conf=QUICK)
    files = fp.Files(str(folder / "lines"), format="json", schema="id BIGINT, line STRING", max_files_per_epoch=1)
    lines = job.read(files)
    counts = lines.select(F.explode(F.split("line", " ")).alias("word")).groupBy("word").count()
    job.write(counts, fp.SQLite(str(folder / "counts.db"), table="counts", key="word"))
    job.write(lines, fp.SQLite(str(folder / "lines.db"), table="lines"))
    job.run(until="available")


def _reached(log: Path, *points: str) -> bool:
    """Have both jobs come to their second visit of these points?"""
    found = log.read_text().split() if log.exists() else []
    return all(found.count(point) >= 2 for point in points)


if __name__ == "__main__":
    {"story": story, "words": words}[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
