"""The stateful job that is killed: one query with several kinds of state, also such as no replay gives again.

    in/00000.json …           --plan update
      {id, key, value, at}      count and sum of each key                      ─►  counts.db   upsert
                                count of each key, sum of random numbers       ─►  drawn.db    upsert
                                running sum of numbers from uuid(), keyed state ─►  sums/      every row once
                              --plan append
                                count and sum of each key in 10 s              ─►  windows/    once, when they are over
                                each even row with the odd one 13 after it     ─►  joined/     left outer join

    python -m fencepost_proof.workloads.state_job FOLDER --backend rocksdb --plan update --worker lives [--plain]

`--worker dies:3` lets a Python worker behind a state store die once, after its task has committed the store; Spark may
try a task 3 times. `--plain` is the sabotaged twin: `drawn` as the textbooks have it, a `foreachBatch` that keeps the
number of the batch in the table's own transaction.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the usual name

import fencepost as fp
from fencepost import faults
from fencepost.spark import spark_session
from fencepost_proof.workloads import process

SCHEMA = "id BIGINT, key STRING, value BIGINT, at BIGINT"
BACKENDS: Mapping[str, fp.RocksDBState | fp.FileSystemState | fp.MemoryState] = {
    "rocksdb": fp.RocksDBState(incremental=True),
    "rocksdb-full": fp.RocksDBState(incremental=False),
    "filesystem": fp.FileSystemState(),
    "memory": fp.MemoryState(),
}
DIED = "worker-died"
"""A file that is there once the worker has died."""


def run(told: process.Told) -> None:
    """All branches, one decision."""
    if told.plain:
        run_plain(told)
        return
    job_of(told).run(until="available")


def job_of(told: process.Told) -> fp.Job:
    """The job, not started."""
    folder, plan, backend = told.folder, told.more.plan, told.more.backend
    dies, _, tries = told.more.worker.partition(":")
    job = fp.Job(
        folder.name,
        checkpoint=None if backend == "memory" else told.checkpoint,
        state=BACKENDS[backend],
        conf={**told.conf, "spark.master": f"local[2,{tries or 1}]"},
        bridge=told.bridge,
        output_mode=plan,
        **process.ANY_PLAN,
    )
    rows = job.read(fp.Files(str(folder / "in"), format="json", schema=SCHEMA, max_files_per_epoch=1))
    rows = process.rows_in(job.spark, rows, told.kill_at)
    behind = F.udf(dies_once(folder / DIED), "bigint") if dies == "dies" else F.col
    if plan == "append":
        windows = counted(timed(rows), "value", F.window("time", "10 seconds"), "key")
        windows = windows.withColumn("start", F.unix_timestamp("window.start")).drop("window")
        job.write(windows, fp.Files(str(folder / "windows"), format="json", name="windows"))
        pairs = joined(rows).withColumn("id", behind("id"))
        job.write(pairs, fp.Files(str(folder / "joined"), format="json", name="joined"))
        return job
    counts = counted(rows, "value", "key").withColumn("count", behind("count"))
    job.write(counts, fp.SQLite(folder / "counts.db", table="counts", key="key"))
    drawn = counted(rows.select("id", F.col("key").alias("who"), random_number().alias("drawn")), "drawn", "who")
    job.write(drawn.toDF("key", "count", "total"), fp.SQLite(folder / "drawn.db", table="drawn", key="key"))
    if backend.startswith("rocksdb"):
        job.write(summed(rows), fp.Files(str(folder / "sums"), format="json", name="sums"))
    return job


def counted(rows: DataFrame, what: str, *keys: Any) -> DataFrame:
    """How many there are of a key, and their sum; by id, for that is what passes the worker that kills."""
    return rows.groupBy(*keys).agg(F.count("id").alias("count"), F.sum(what).alias("total"))


def timed(rows: DataFrame) -> DataFrame:
    """No row is late."""
    return rows.withColumn("time", F.timestamp_seconds("at")).withWatermark("time", "5 seconds")


def joined(rows: DataFrame) -> DataFrame:
    """Each even row with what the odd row 13 after it has found, which comes in a later epoch; a third finds none."""
    left = timed(rows).where("id % 2 = 0").select("id", "key", "time")
    right = timed(rows).where("id % 2 = 1 AND value % 3 <> 0")
    right = right.selectExpr("id - 13 AS partner", "value AS found", "time AS later")
    within = F.expr("id = partner AND later >= time AND later <= time + INTERVAL 20 SECONDS")
    return left.join(right, within, "leftOuter").select("id", "key", "found")


def random_number() -> Any:
    """Another one whenever the plan runs."""
    return F.floor(F.rand() * 1000)


def summed(rows: DataFrame) -> DataFrame:
    """Every row with the sum of its key so far."""
    rows = rows.selectExpr("id", "key", "CAST(conv(substr(uuid(), 1, 4), 16, 10) AS BIGINT) AS drawn")
    output = "id BIGINT, key STRING, drawn BIGINT, count BIGINT, total BIGINT"
    return fp.map_with_state(rows, add, by="key", state="count BIGINT, total BIGINT", output=output)


def add(row: Row, state: Row | None) -> tuple[Any, Any]:
    """Move the sum on."""
    count, total = state or (0, 0)
    return (row.id, row.key, row.drawn, count + 1, total + row.drawn), (count + 1, total + row.drawn)


def dies_once(mark: Path) -> Callable[[int], int]:
    """A function for a Python worker that ends it, unless the mark is there."""

    def passed_on(number: int) -> int:
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return number
        os.kill(os.getpid(), signal.SIGKILL)
        return number

    return passed_on


def run_plain(told: process.Told) -> None:
    """No fencepost in it, but for the session's settings and a crash point. Right for a plan that gives the same rows
    again: what the replay brings is skipped, for the table has it already.
    """
    spark = spark_session.make_session("plain", {**told.conf, **spark_session.FORMATS}, jar=False)
    database = sqlite3.connect(told.folder / "drawn.db", isolation_level=None, check_same_thread=False)
    database.execute("CREATE TABLE IF NOT EXISTS drawn (key TEXT PRIMARY KEY, count INTEGER, total INTEGER)")
    database.execute("CREATE TABLE IF NOT EXISTS batch (number INTEGER)")

    def body(frame: Any, epoch: int) -> None:
        found = [tuple(row) for row in frame.collect()]
        database.execute("BEGIN IMMEDIATE")
        if not database.execute("SELECT 1 FROM batch WHERE number = ?", (epoch,)).fetchall():
            database.executemany("INSERT OR REPLACE INTO drawn VALUES (?, ?, ?)", found)
            database.execute("INSERT INTO batch VALUES (?)", (epoch,))
        database.execute("COMMIT")
        faults.reach("plain.replaced")

    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    rows = reader.json(str(told.folder / "in"))
    rows = rows.select("id", F.col("key").alias("who"), random_number().alias("drawn"))
    drawn = counted(rows, "drawn", "who")
    writer = drawn.writeStream.outputMode("update").foreachBatch(body).trigger(availableNow=True)
    writer.option("checkpointLocation", str(told.checkpoint)).start().awaitTermination()


if __name__ == "__main__":
    sys.exit(process.main(sys.argv[1:], run, "--backend", "--plan", "--worker"))
