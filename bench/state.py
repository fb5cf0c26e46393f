"""Measures what state costs on each backend, in one session, in one run: `make bench-state`.

    files ─► count per key ─► SQLite      a first epoch with every key, then epochs that change 1,000 of them

For each size of the state and each backend: bytes written under the checkpoint in an epoch (every file that is new
there, by its size), the epoch's time (Spark's own `durationMs.triggerExecution`), and after a restart the time of the
first epoch, which reads the state back.

Spark writes whole states in the background, once a minute at most. Here it does so once a second, and what it writes
counts for the epoch it falls into: so "median" is what an epoch itself writes, "mean" has the whole states in it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from bench.common import facts, fsync_ms, save
from pyarrow import parquet

import fencepost as fp
from fencepost.spark import spark_session

SCHEMA = "key STRING, value BIGINT"
BACKENDS: dict[str, Any] = {
    "RocksDBState(incremental=True)": fp.RocksDBState(),
    "RocksDBState(incremental=False)": fp.RocksDBState(incremental=False),
    "FileSystemState()": fp.FileSystemState(),
}
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
}
EXPECTED = """\
Expected, written before the first measurement and left as it was (1,000 changed keys are about 60 KB of changes):
  RocksDB(incremental=True)    median the same at every size; the mean some 2 × of it, for new SST files go up as well.
  RocksDB(incremental=False)   each epoch flushes and uploads its own SST: near the above, plus what compaction writes
                               again, so it grows, but not with every epoch; slower by the flush.
  FileSystem()                 median the same (changes only); the mean grows with the state, which is written whole.
  first epoch after a restart  grows with the state for all; FileSystem most, it reads and unpacks every key.
"""


@dataclass(frozen=True)
class Result:
    keys: int
    backend: str
    bytes_median: float
    bytes_mean: float
    epoch_ms: float
    restored_ms: float
    state_bytes: int


class Bench:
    def __init__(self, spark: Any, folder: Path, changed: int) -> None:
        self.spark, self.folder, self.changed = spark, folder, changed
        self.files = 0

    def put(self, keys: list[int]) -> None:
        """One input file, whole."""
        table = pa.table({"key": [f"key-{key:09}" for key in keys], "value": pa.array(keys, pa.int64())})
        temp = self.folder / f".{self.files}"
        parquet.write_table(table, temp)
        os.utime(temp, (1_700_000_000 + self.files,) * 2)
        temp.rename(self.folder / "in" / f"{self.files:05}.parquet")
        self.files += 1

    def job(self, backend: Any) -> fp.Job:
        job = fp.Job("state", checkpoint=self.folder / "checkpoint", state=backend, spark=self.spark)
        rows = job.read(fp.Files(str(self.folder / "in"), format="parquet", schema=SCHEMA, max_files_per_epoch=1))
        sink = fp.SQLite(self.folder / "out.db", table="counts", key="key")
        return job.write(rows.groupBy("key").count(), sink)

    def written(self, seen: set[tuple[str, int]]) -> int:
        """Bytes of the files that were not there before."""
        total = 0
        for place, _, names in os.walk(self.folder / "checkpoint"):
            for name in names:
                try:
                    found = os.stat(os.path.join(place, name))  # noqa: PTH118, PTH116 - a million times
                except FileNotFoundError:
                    continue
                if (key := (f"{place}/{name}", found.st_ino)) not in seen:
                    seen.add(key)
                    total += found.st_size
        return total

    def measure(self, name: str, keys: int, epochs: int) -> Result:
        chance = random.Random(keys)
        (self.folder / "in").mkdir(parents=True)
        self.put(list(range(keys)))
        job = self.job(BACKENDS[name])
        query = job.start()
        query.processAllAvailable()
        seen: set[tuple[str, int]] = set()
        self.written(seen)
        sizes, times = [], []
        for _ in range(epochs):
            self.put(chance.sample(range(keys), self.changed))
            query.processAllAvailable()
            sizes.append(self.written(seen))
            times.append(query.lastProgress["durationMs"]["triggerExecution"])
        job.stop()
        self.put(chance.sample(range(keys), self.changed))
        job = self.job(BACKENDS[name])
        query = job.start(until="available")
        query.awaitTermination()
        job.stop()
        restored = [each for each in query.recentProgress if each["numInputRows"]]
        self.check(keys + (epochs + 1) * self.changed)
        state = sum(file.stat().st_size for file in (self.folder / "checkpoint" / "state").rglob("*") if file.is_file())
        return Result(
            keys,
            name,
            statistics.median(sizes),
            statistics.mean(sizes),
            statistics.median(times),
            restored[0]["durationMs"]["triggerExecution"],
            state,
        )

    def check(self, rows: int) -> None:
        """A quick state that forgets is no state."""
        database = sqlite3.connect(self.folder / "out.db")
        found = database.execute("SELECT sum(count) FROM counts").fetchone()[0]
        database.close()
        assert found == rows, (found, rows)


def report(results: list[Result]) -> None:
    print(f"{'':28}{'keys':>10}{'KB/epoch median':>17}{'mean':>9}{'ms/epoch':>10}{'restored ms':>13}{'state MB':>10}")
    for name in BACKENDS:
        mine = [result for result in results if result.backend == name]
        for each in mine:
            print(
                f"{name:28}{each.keys:>10,}{each.bytes_median / 1e3:>17,.1f}{each.bytes_mean / 1e3:>9,.1f}"
                f"{each.epoch_ms:>10,.0f}{each.restored_ms:>13,.0f}{each.state_bytes / 1e6:>10,.1f}"
            )
        sizes = [each.bytes_median for each in mine]
        means = [each.bytes_mean for each in mine]
        print(f"{'':28}largest / smallest: median {max(sizes) / min(sizes):.2f}, mean {max(means) / min(means):.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure state backends.")
    parser.add_argument("--keys", default="10000,100000,1000000", help="sizes of the state")
    parser.add_argument("--changed", type=int, default=1000, help="keys that an epoch changes")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--no-save", action="store_true")
    told = parser.parse_args()
    load = os.getloadavg()
    folder = Path(tempfile.mkdtemp(prefix="bench-state-"))
    try:
        fsync = fsync_ms(folder)
        print(EXPECTED)
        spark = spark_session.make_session("bench", SETTINGS)
        spark.sparkContext.setLogLevel("ERROR")
        results = []
        # The first one warms the JVM and is thrown away.
        for keys in [told.changed, *map(int, told.keys.split(","))]:
            for name in BACKENDS:
                place = folder / "place"
                found = Bench(spark, place, told.changed).measure(name, keys, told.epochs)
                shutil.rmtree(place)
                if keys != told.changed:
                    results.append(found)
        report(results)
        if not told.no_save:
            print(save("state-", facts(spark, fsync, load), [asdict(each) for each in results]))
        spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
