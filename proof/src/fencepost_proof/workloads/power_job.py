"""A streaming job that outlives the disk under it: one JVM runs it again and again, each time from what the disk kept.

    python -m fencepost_proof.workloads.power_job [--plain]

    stdin    {"fault": "", "folder": …, "checkpoint": …, "target": …}     one line a run: what to arm, where things are
    stdout   answer <exit code> <error code>                              one line a run

Nothing of a run may help the next one: sinks, ledger and query are made anew, and the JVM's state stores are unloaded.
`--plain` is the sabotaged twin: the same two plans on plain Spark, `foreachBatch` and SQLite, with no setting of ours.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import fencepost as fp
from fencepost import faults
from fencepost.spark import spark_session
from fencepost_proof.workloads.files_job import SCHEMA, totals_of
from fencepost_proof.workloads.process import AGAIN, FENCED, OPTIONS, QUICK

JOB = "cut"
FAILED = 1
ROWS = "CREATE TABLE IF NOT EXISTS rows (id INTEGER, key TEXT, value INTEGER)"
TOTALS = "CREATE TABLE IF NOT EXISTS totals (key TEXT PRIMARY KEY, count INTEGER, total INTEGER)"
ADD = "INSERT INTO rows VALUES (?, ?, ?)"
SET = (
    "INSERT INTO totals VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET count = excluded.count, total = excluded.total"
)


@dataclass(frozen=True)
class Order:
    """One run: the input's folder, which is never cut, and the two that are."""

    fault: str
    folder: str
    checkpoint: str
    target: str


def run(spark: Any, order: Order) -> None:
    """Two sinks, one decision."""
    job = fp.Job(JOB, checkpoint=order.checkpoint, spark=spark)
    totals, every = sinks(order.target)
    rows = job.read(fp.Files(f"{order.folder}/in", format="json", schema=SCHEMA, max_files_per_epoch=1))
    job.write(totals_of(rows), totals)
    job.write(rows, every)
    job.run(until="available")


def sinks(target: str) -> tuple[fp.Sink, fp.Sink]:
    """Of the totals, and of every row."""
    totals = fp.SQLite(f"{target}/totals.db", table="totals", key="key")
    return totals, fp.Files(f"{target}/rows", format="json", name="rows")


def run_plain(spark: Any, order: Order) -> None:
    """No fencepost in it, but for crash points. Two queries, for plain Spark has no branches."""
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(f"{order.folder}/in")
    plans = (
        ("totals", totals_of(rows).writeStream.outputMode("update"), TOTALS, SET),
        ("rows", rows.writeStream, ROWS, ADD),
    )
    for name, writer, table, statement in plans:
        with closing(
            sqlite3.connect(f"{order.target}/{name}.db", isolation_level=None, check_same_thread=False)
        ) as file:
            file.execute(table)
            query = writer.foreachBatch(writing(file, statement)).trigger(availableNow=True)
            query.option("checkpointLocation", f"{order.checkpoint}/{name}").start().awaitTermination()


def writing(database: sqlite3.Connection, statement: str) -> Callable[[Any, int], None]:
    """What people write: one transaction an epoch, as durable as SQLite is by itself."""

    def body(frame: Any, epoch: int) -> None:
        found = [tuple(row) for row in frame.collect()]
        database.execute("BEGIN")
        database.executemany(statement, found)
        database.execute("COMMIT")
        faults.reach("plain.stored")

    return body


def answer(spark: Any, order: Order, *, plain: bool) -> str:
    """Run once with a fault armed; say how it ended."""
    faults.arm({faults.ARM: order.fault})
    try:
        (run_plain if plain else run)(spark, order)
    except fp.FencepostError as error:
        print(error, file=sys.stderr)
        code = FENCED if isinstance(error, fp.Fenced) else AGAIN if isinstance(error, fp.Retryable) else FAILED
        return f"{code} {error.code}"
    except Exception as error:
        if not plain:
            raise
        print(error, file=sys.stderr)
        return f"{FAILED} {type(error).__name__}"
    finally:
        for query in spark.streams.active:
            query.stop()
        spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
    return "0 -"


def main(arguments: list[str]) -> int:
    """Until stdin ends."""
    parser = argparse.ArgumentParser(description="A job whose disk is cut.")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--java", default="", help="one more option for the JVM")
    told = parser.parse_args(arguments)
    conf = QUICK | {OPTIONS: f"{QUICK[OPTIONS]} {told.java}"}
    spark = spark_session.make_session(JOB, conf, jar=not told.plain)
    print("answer ready", flush=True)
    for line in sys.stdin:
        print("answer", answer(spark, Order(**json.loads(line)), plain=told.plain), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
