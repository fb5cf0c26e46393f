"""A real streaming job in a process of its own, written as a user would, so that it can be killed for real.

    in/00000.json, 00001.json …  ─►  totals per key  ─►  totals.db     one file an epoch,
      {id, key, value}           ─►  every row once  ─►  rows/         two sinks, one decision

    python -m fencepost_proof.workloads.files_job FOLDER [--bridge foreach_batch] [--kill-at-id 37] [--plain]

`--kill-at-id` lets a task kill the driver, when it comes to that row. `--plain` is the sabotaged twin: the same plan on
plain Spark, `foreachBatch` and INSERT, which is what people write; it must lose or double something when killed.
"""

from __future__ import annotations

import sqlite3
import sys
from typing import Any

import fencepost as fp
from fencepost import faults
from fencepost.spark import spark_session
from fencepost_proof.workloads import process

SCHEMA = "id BIGINT, key STRING, value BIGINT"


def totals_of(rows: Any) -> Any:
    """The stateful branch: what it says of a key depends on every row of that key there ever was."""
    return rows.groupBy("key").agg({"id": "count", "value": "sum"}).toDF("key", "count", "total")


def run(told: process.Told) -> None:
    """Two sinks, one decision."""
    if told.plain:
        run_plain(told)
        return
    folder = told.folder
    job = fp.Job("killed", checkpoint=told.checkpoint, conf=told.conf, bridge=told.bridge, **process.ANY_PLAN)
    rows = job.read(fp.Files(str(folder / "in"), format="json", schema=SCHEMA, max_files_per_epoch=1))
    rows = process.rows_in(job.spark, rows, told.kill_at)
    job.write(totals_of(rows), fp.SQLite(folder / "totals.db", table="totals", key="key"))
    job.write(rows, fp.Files(str(folder / "rows"), format="json", name="rows"))
    job.run(until="available")


def run_plain(told: process.Told) -> None:
    """No fencepost in it, but for the session's settings and a crash point."""
    spark = spark_session.make_session("plain", told.conf, jar=False)
    database = sqlite3.connect(told.folder / "rows.db", isolation_level=None, check_same_thread=False)
    database.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER, key TEXT, value INTEGER)")

    def body(frame: Any, epoch: int) -> None:
        found = [tuple(row) for row in frame.collect()]
        database.execute("BEGIN")
        database.executemany("INSERT INTO rows VALUES (?, ?, ?)", found)
        database.execute("COMMIT")
        faults.reach("plain.inserted")

    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    writer = reader.json(str(told.folder / "in")).writeStream.foreachBatch(body).trigger(availableNow=True)
    writer.option("checkpointLocation", str(told.checkpoint)).start().awaitTermination()


if __name__ == "__main__":
    sys.exit(process.main(sys.argv[1:], run))
