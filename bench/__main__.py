"""Measures fencepost beside plain Spark, in one session, in one run: `make bench`.

    files ─► count per key ─► SQLite     plain: foreachBatch and the same upsert in one transaction
    files ─► parquet files               plain: Spark's own file sink

Both pipelines run on plain Spark with its stock `file:` class, with our durable one (what do the fsyncs cost, what is
saved by forking no process), and on fencepost over both bridges. Rounds alternate, so that a noisy minute hits all
alike. An epoch's time is Spark's own `durationMs.triggerExecution`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.common import facts, fsync_ms, save, timed_effects
from pyarrow import parquet
from pyspark.sql import SparkSession

import fencepost as fp
from fencepost.connectors.files.source import FOREVER
from fencepost.spark import spark_session

ROWS_PER_FILE, KEYS = 2000, 500
SCHEMA = "id BIGINT, key STRING, value BIGINT"
STOCK = {"fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.LocalFs"}
DURABLE = {**spark_session.CHECKPOINT_FILES, **spark_session.STATE_FILES}
UPSERT = "INSERT INTO counts VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET count = excluded.count"
PARTS = ("latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets")
STEPS = ("barrier", "precommit", "vote", "snapshot", "decide", "append.list", "commit", "sweep")
EXPECTED = """\
Expected, written before the first measurement and left as it was (an epoch of 2,000 rows is nearly all fixed cost):
  plain, stock file:   the rival. Hadoop's local class forks a process for each chmod and keeps .crc files.
  plain, durable file: no forks, but an fsync per file and directory. Here fsync is {fsync:.1f} ms, so rather faster.
  fencepost, jvm       the durable class, plus per epoch: a staged file, 2 ledger fsyncs, a SQLite commit held open over
                       the decision, one call into Python. About 10 fsyncs and 10 ms of Python more: 0.8 to 1.2 × stock.
  fencepost, foreach_batch   as plain stock, plus the above, plus about 30 py4j calls for the snapshot: 1.1 to 1.5 ×.
"""


@dataclass
class Sample:
    """All epochs of one variant, warm-up left out."""

    epochs: list[dict[str, int]] = field(default_factory=list)

    def times(self, part: str = "triggerExecution") -> list[int]:
        return [epoch.get(part, 0) for epoch in self.epochs]

    def median(self, part: str = "triggerExecution") -> float:
        return statistics.median(self.times(part))


@dataclass(frozen=True)
class Bench:
    spark: SparkSession
    folder: Path
    steps: dict[str, list[float]]

    @property
    def variants(self) -> dict[tuple[str, str], Callable[[Path], Any]]:
        """Pipeline and name to a function that runs one query to its end in a new folder."""
        counts, files = "files → count → SQLite", "files → parquet files"
        return {
            (counts, "plain, stock file:"): partial(self.plain_counts, STOCK),
            (counts, "plain, durable file:"): partial(self.plain_counts, DURABLE),
            (counts, "fencepost, jvm"): partial(self.our_counts, "jvm"),
            (counts, "fencepost, foreach_batch"): partial(self.our_counts, "foreach_batch"),
            (files, "plain, stock file:"): partial(self.plain_files, STOCK),
            (files, "plain, durable file:"): partial(self.plain_files, DURABLE),
            (files, "fencepost, jvm"): partial(self.our_files, "jvm"),
            (files, "fencepost, foreach_batch"): partial(self.our_files, "foreach_batch"),
        }

    def rows(self) -> Any:
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).option("maxFileAge", FOREVER)
        return reader.json(str(self.folder / "in"))

    def counts(self) -> Any:
        return self.rows().groupBy("key").count()

    def plain_counts(self, files: dict[str, str], place: Path) -> Any:
        database = sqlite3.connect(place / "out.db", isolation_level=None, check_same_thread=False)
        for setting in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL"):
            database.execute(setting)
        database.execute("CREATE TABLE counts (key TEXT PRIMARY KEY, count INTEGER)")

        def body(frame: Any, epoch: int) -> None:
            table = frame.toArrow()
            database.execute("BEGIN IMMEDIATE")
            database.executemany(UPSERT, zip(*(column.to_pylist() for column in table.columns), strict=True))
            database.execute("COMMIT")

        writer = self.counts().writeStream.outputMode("update").foreachBatch(body)
        return self.plain(writer, files, place)

    def plain_files(self, files: dict[str, str], place: Path) -> Any:
        writer = self.rows().writeStream.format("parquet").option("path", str(place / "out"))
        return self.plain(writer, files, place)

    def plain(self, writer: Any, files: dict[str, str], place: Path) -> Any:
        writer = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
        with spark_session.settings(self.spark, {**spark_session.FORMATS, **files}):
            query = writer.start()
            query.awaitTermination()  # within the settings: sources read them later than the start
        return query

    def our_counts(self, bridge: str, place: Path) -> Any:
        return self.ours(self.counts(), fp.SQLite(place / "out.db", table="counts", key="key"), bridge, place)

    def our_files(self, bridge: str, place: Path) -> Any:
        return self.ours(self.rows(), fp.Files(str(place / "out"), format="parquet"), bridge, place)

    def ours(self, frame: Any, sink: fp.Sink, bridge: Any, place: Path) -> Any:
        # Where no jar may be added there is no durable `file:` class either.
        with spark_session.settings(self.spark, STOCK if bridge == "foreach_batch" else {}):
            job = fp.Job("bench", checkpoint=place / "checkpoint", spark=self.spark, bridge=bridge)
            job.write(frame, sink)
            query = job.start(until="available")
            query.awaitTermination()
            job.stop()
        return query


def measure(bench: Bench, epochs: int, warmup: int, rounds: int) -> tuple[dict[tuple[str, str], Sample], Any]:
    """All variants in turn, round after round; the first round only warms the JVM."""
    samples: dict[tuple[str, str], Sample] = defaultdict(Sample)
    steps: dict[tuple[str, str], dict[str, list[float]]] = {}
    for number in range(rounds + 1):
        put_files(bench.folder / "in", warmup if number == 0 else warmup + epochs)
        for key, run in bench.variants.items():
            place = bench.folder / "place"
            place.mkdir()
            bench.steps.clear()
            progress = [each for each in run(place).recentProgress if each["numInputRows"]]
            assert len(progress) == warmup + (epochs if number else 0), (key, len(progress))
            check_output(place, len(progress) * ROWS_PER_FILE)
            if number:
                samples[key].epochs += [each["durationMs"] for each in progress[warmup:]]
                mine = steps.setdefault(key, defaultdict(list))
                for name, times in bench.steps.items():
                    mine[name] += times[-epochs * max(1, len(times) // len(progress)) :]
            shutil.rmtree(place)
            say(f"  round {number} of {rounds}: {', '.join(key)}")
    say("")
    return samples, steps


def check_output(place: Path, rows: int) -> None:
    """A quick pipeline that loses rows is no pipeline."""
    if (place / "out.db").exists():
        database = sqlite3.connect(place / "out.db")
        found = database.execute("SELECT sum(count) FROM counts").fetchone()[0]
        database.close()
    else:
        found = sum(parquet.read_metadata(file).num_rows for file in (place / "out").glob("*.parquet"))
    assert found == rows, (found, rows)


def say(text: str) -> None:
    """One line that is written over; nothing where nobody watches."""
    if sys.stderr.isatty():
        print(text.ljust(100), end="\r", file=sys.stderr)


def put_files(folder: Path, count: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number in range(count):
        ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        lines = (json.dumps({"id": i, "key": f"key-{i * 7919 % KEYS}", "value": i}) + "\n" for i in ids)
        path = folder / f"{number:05}.json"
        path.write_text("".join(lines))
        os.utime(path, (1_700_000_000 + number,) * 2)


def report(samples: dict[tuple[str, str], Sample], steps: Any) -> list[dict[str, Any]]:
    results = []
    for pipeline in dict.fromkeys(key[0] for key in samples):
        print(f"\n{pipeline}: milliseconds an epoch")
        head = f"{'':26}{'median':>8}{'min':>6}{'ratio':>7}   of it (median): "
        print(head + " ".join(f"{part:>13}" for part in PARTS))
        rival = samples[pipeline, "plain, stock file:"].median()
        for (where, name), sample in samples.items():
            if where != pipeline:
                continue
            ratio = sample.median() / rival
            parts = {part: sample.median(part) for part in PARTS}
            row = f"{name:26}{sample.median():8.0f}{min(sample.times()):6}{ratio:7.2f}{'':19}"
            print(row + " ".join(f"{value:13.0f}" for value in parts.values()))
            found = {step: statistics.median(times) for step, times in steps[where, name].items()}
            results.append(
                {
                    "pipeline": pipeline,
                    "variant": name,
                    "epochs": len(sample.epochs),
                    "median_ms": sample.median(),
                    "min_ms": min(sample.times()),
                    "ratio": round(ratio, 3),
                    "spark_ms": parts,
                    "step_ms": {step: round(ms, 2) for step, ms in found.items()},
                }
            )
    print("\nsteps of the protocol: median milliseconds of one call; an epoch makes one of each")
    print(f"{'':50}" + " ".join(f"{step:>11}" for step in STEPS))
    for result in results:
        if result["step_ms"]:
            label = f"{result['pipeline']}, {result['variant'].removeprefix('fencepost, ')}"
            print(f"{label:50}" + " ".join(f"{result['step_ms'].get(step, 0):11.2f}" for step in STEPS))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description="Measure fencepost beside plain Spark.")
    parser.add_argument("--epochs", type=int, default=15, help="measured epochs per variant and round")
    parser.add_argument("--warmup", type=int, default=4, help="epochs left out at the start of each query")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--save", action="store_true", help="write bench/results/<date>.json")
    chosen = parser.parse_args()
    began, load = time.monotonic(), os.getloadavg()
    folder = Path(tempfile.mkdtemp(prefix="fencepost-bench-"))
    fsync = fsync_ms(folder)
    print(EXPECTED.format(fsync=fsync))
    conf = {"spark.ui.enabled": "false", "spark.sql.streaming.numRecentProgressUpdates": "1000"}
    spark = spark_session.make_session("bench", conf)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with timed_effects() as times:
            bench = Bench(spark, folder, times)
            samples, steps = measure(bench, chosen.epochs, chosen.warmup, chosen.rounds)
            found = facts(spark, fsync, load)
    finally:
        spark.stop()
        shutil.rmtree(folder)
    results = report(samples, steps)
    print("\n" + ", ".join(f"{name} {value}" for name, value in found.items()))
    print(f"{chosen.rounds} rounds of {chosen.epochs} epochs, {time.monotonic() - began:.0f} s")
    if chosen.save:
        print(f"saved to {save('', found, results)}")


if __name__ == "__main__":
    main()
