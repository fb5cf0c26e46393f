"""A real streaming job in a process of its own, written as a user would, so that it can be killed for real.

    in/00000.json, 00001.json …  ─►  totals per key  ─►  totals.db     one file an epoch,
      {id, key, value}           ─►  every row once  ─►  rows/         two sinks, one decision

    python -m fencepost.prove.spark_job FOLDER [--bridge foreach_batch] [--kill-at-id 37] [--plain]

`--kill-at-id` lets a task kill the driver, when it comes to that row. `--plain` is the sabotaged twin: the same plan on
plain Spark, `foreachBatch` and INSERT, which is what people write; it must lose or double something when killed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fencepost as fp
from fencepost import faults
from fencepost.spark import session

SCHEMA = "id BIGINT, key STRING, value BIGINT"
FENCED = 3
"""Exit code of a driver that was replaced."""
OPTIONS = "spark.driver.extraJavaOptions"
QUICK = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # A short run never reaches the second compiler; the first one alone starts sooner.
    OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}


def totals_of(rows: Any) -> Any:
    """The stateful branch: what it says of a key depends on every row of that key there ever was."""
    return rows.groupBy("key").agg({"id": "count", "value": "sum"}).toDF("key", "count", "total")


def killing(driver: int, at: int) -> Callable[[int], int]:
    """A function for a task that ends the driver when it is given one certain id."""

    def passed_on(number: int) -> int:
        if number == at:
            os.kill(driver, signal.SIGKILL)
        return number

    return passed_on


def rows_in(spark: Any, rows: Any, kill_at: int | None) -> Any:
    """The rows as they are; with `kill_at` they pass through a Python worker that kills."""
    if kill_at is None:
        return rows
    spark.udf.register("passed_on", killing(os.getpid(), kill_at), "bigint")
    return rows.selectExpr("passed_on(id) AS id", "key", "value")


def run(folder: Path, bridge: Any, kill_at: int | None, conf: Mapping[str, str]) -> None:
    """Two sinks, one decision."""
    job = fp.Job("killed", checkpoint=folder / "checkpoint", conf=conf, bridge=bridge)
    rows = job.read(fp.Files(str(folder / "in"), format="json", schema=SCHEMA, max_files_per_epoch=1))
    rows = rows_in(job.spark, rows, kill_at)
    job.write(totals_of(rows), fp.SQLite(folder / "totals.db", table="totals", key="key"))
    job.write(rows, fp.Files(str(folder / "rows"), format="json", name="rows"))
    job.run(until="available")


def run_plain(folder: Path, conf: Mapping[str, str]) -> None:
    """No fencepost in it, but for the session's settings and a crash point."""
    spark = session.make_session("plain", conf, jar=False)
    database = sqlite3.connect(folder / "rows.db", isolation_level=None, check_same_thread=False)
    database.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER, key TEXT, value INTEGER)")

    def body(frame: Any, epoch: int) -> None:
        found = [tuple(row) for row in frame.collect()]
        database.execute("BEGIN")
        database.executemany("INSERT INTO rows VALUES (?, ?, ?)", found)
        database.execute("COMMIT")
        faults.reach("plain.inserted")

    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    writer = reader.json(str(folder / "in")).writeStream.foreachBatch(body).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="A job to be killed.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bridge", choices=["jvm", "foreach_batch"])
    parser.add_argument("--kill-at-id", type=int)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--java", default="", help="one more option for the JVM")
    chosen = parser.parse_args(arguments)
    conf = QUICK | {OPTIONS: f"{QUICK[OPTIONS]} {chosen.java}"}
    try:
        if chosen.plain:
            run_plain(chosen.folder, conf)
        else:
            run(chosen.folder, chosen.bridge, chosen.kill_at_id, conf)
    except fp.FencepostError as error:
        print(error, file=sys.stderr)
        return FENCED if isinstance(error, fp.Fenced) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
