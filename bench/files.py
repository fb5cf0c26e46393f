"""A folder with many files: what an epoch takes with and without the check on its files.

    python -m bench.files --files 100000
    python -m bench.files --read 1000000

First one epoch that reads them all, then epochs with one new file each. The two variants take turns, in one session.
With `--read`, the files are there and Spark's log says that they were read, which nobody waits for: starts with one new
file each, by fencepost with and without its look at all of them, and by plain Spark.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.common import facts, fsync_ms, timed_effects
from pyspark.sql import SparkSession

import fencepost as fp
from fencepost import connectors
from fencepost.spark import spark_session


@contextmanager
def without_check() -> Iterator[None]:
    """As it was before there was one."""
    check = connectors.file_check
    connectors.file_check = lambda *_: None
    try:
        yield
    finally:
        connectors.file_check = check


def epoch_ms(spark: SparkSession, folder: Path, variant: str) -> float:
    """One epoch with everything that is new for this variant."""
    frame = fp.Files(folder / "in", format="text").load(spark.readStream)
    sink = fp.SQLite(folder / f"{variant}.db", table="lines")
    query = fp.start(frame.writeStream.trigger(availableNow=True), to=sink, checkpoint=folder / variant, job=variant)
    query.awaitTermination()
    (taken,) = [
        each["durationMs"]["triggerExecution"] for each in query.recentProgress if "addBatch" in each["durationMs"]
    ]
    return float(taken)


def measure(spark: SparkSession, folder: Path, files: int, epochs: int) -> dict[str, Any]:
    """Milliseconds by variant."""
    (folder / "in").mkdir()
    for number in range(files):
        (folder / "in" / f"{number:07d}.txt").touch()
    found: dict[str, Any] = {"plain": [], "checked": [], "check": []}
    for number in range(epochs + 1):
        if number:
            (folder / "in" / f"new-{number}.txt").write_text("a line\n")
        with without_check():
            found["plain"].append(epoch_ms(spark, folder, "plain"))
        with timed_effects() as times:
            found["checked"].append(epoch_ms(spark, folder, "checked"))
        found["check"].append(times["snapshot"][0])
        print(number, {name: round(each[-1]) for name, each in found.items()}, flush=True)
    return found


def main() -> int:
    """Print the figures and the machine's facts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--read", type=int, default=0)
    told = parser.parse_args()
    folder, load = Path(tempfile.mkdtemp(prefix="fencepost-bench-")), os.getloadavg()
    memory = {"spark.driver.memory": "6g"} if told.read else {}
    spark = spark_session.make_session("bench", {"spark.master": "local[2]", "spark.ui.enabled": "false", **memory})
    try:
        if told.read:
            measure_starts(spark, _made(folder / "warm"), 10, 2)
            found = measure_starts(spark, _made(folder / "many"), told.read, 3)
            print(json.dumps({"starts": found, **facts(spark, fsync_ms(folder), load)}))
            return 0
        epoch_ms_warm = measure(spark, _made(folder / "warm"), 10, 3)
        found = measure(spark, _made(folder / "many"), told.files, told.epochs)
        ratio = {
            "all files": found["checked"][0] / found["plain"][0],
            "one new file": statistics.median(found["checked"][1:]) / statistics.median(found["plain"][1:]),
        }
        print(json.dumps({"ratio": ratio, "warm": epoch_ms_warm, **facts(spark, fsync_ms(folder), load)}))
    finally:
        spark.stop()
        shutil.rmtree(folder)
    return 0


def measure_starts(spark: SparkSession, folder: Path, files: int, rounds: int) -> dict[str, Any]:
    """Seconds of a whole run with one new file, and milliseconds of its epoch, by variant."""
    inputs = _made(folder / "in")
    for number in range(files):
        (inputs / f"{number:07d}.txt").touch()
    (inputs / "first.txt").write_text("a line\n")
    plain(spark, folder, pathGlobFilter="first.txt")
    _note_as_read(folder)
    shutil.copytree(folder / "plain", folder / "checked")
    run(spark, folder, adopt=True)
    found: dict[str, Any] = {"plain": [], "checked": [], "unchecked": [], "look": []}
    for number in range(rounds):
        for variant in ("plain", "unchecked", "checked"):
            (inputs / f"new-{variant}-{number}.txt").write_text("a line\n")
            began = time.perf_counter()
            if variant == "plain":
                epoch = plain(spark, folder)
            else:
                with timed_look(found["look"]) if variant == "checked" else without_look():
                    epoch = run(spark, folder)
            found[variant].append((round(time.perf_counter() - began, 1), round(epoch)))
        print(number, {name: each[-1] for name, each in found.items()}, flush=True)
    return found


def plain(spark: SparkSession, folder: Path, **options: str) -> float:
    """One run of plain Spark, which writes nothing."""
    frame = fp.Files(folder / "in", format="text", options=options).load(spark.readStream)
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder / "plain"))
    return _epoch_ms(writer.trigger(availableNow=True).start())


def run(spark: SparkSession, folder: Path, **told: Any) -> float:
    """One run of ours."""
    frame = fp.Files(folder / "in", format="text").load(spark.readStream)
    sink, writer = fp.SQLite(folder / "checked.db", table="lines"), frame.writeStream.trigger(availableNow=True)
    return _epoch_ms(fp.start(writer, to=sink, checkpoint=folder / "checked", job="checked", **told))


def _epoch_ms(query: Any) -> float:
    query.awaitTermination()
    times = [each["durationMs"] for each in query.recentProgress if "addBatch" in each["durationMs"]]
    return float(sum(each["triggerExecution"] for each in times))


def _note_as_read(folder: Path) -> None:
    """Put all files of the folder into Spark's list of those that it read."""
    (log,) = (folder / "plain/sources/0").glob("[0-9]*")
    lines = [
        json.dumps({"path": f"file://{one.path}", "timestamp": one.stat().st_mtime_ns // 1_000_000, "batchId": 0})
        for one in os.scandir(folder / "in")
    ]
    log.write_text("\n".join(["v1", *(line.replace(", ", ",").replace(": ", ":") for line in lines)]))
    (log.parent / f".{log.name}.crc").unlink(missing_ok=True)


@contextmanager
def without_look() -> Iterator[None]:
    """A start that does not look at the files of decided epochs."""
    check, connectors.check_read = connectors.check_read, lambda *_, **__: None
    try:
        yield
    finally:
        connectors.check_read = check


@contextmanager
def timed_look(found: list[float]) -> Iterator[None]:
    """Milliseconds of that look."""
    check = connectors.check_read

    def timed(*args: Any, **told: Any) -> None:
        began = time.perf_counter()
        check(*args, **told)
        found.append(round((time.perf_counter() - began) * 1000))

    connectors.check_read = timed
    try:
        yield
    finally:
        connectors.check_read = check


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(main())
