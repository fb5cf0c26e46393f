"""The job that is killed on a cluster, run by `fencepost run`; FOLDER/told.json says the rest.

    in  ─►  running count of each word  ─►  counts     Kafka, by the driver      or PostgreSQL, by upsert
        ─►  every line once             ─►  lines      Kafka, by the tasks       or PostgreSQL, staged by the tasks

    fencepost run proof/src/fencepost_proof/cluster/job.py FOLDER --master spark://…

A driver notes its process id and every crash point that it passes, and takes one fault from FOLDER/armed in its life.
The sabotaged twin ("plain" in told.json) is the same plan on plain Spark with `foreachBatch`, and must be caught.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fencepost as fp
from fencepost import faults
from fencepost.connectors.kafka import producers
from fencepost.spark import spark_session
from fencepost_proof.workloads.contract import ROWS_PER_EPOCH
from fencepost_proof.workloads.kafka_job import FEW_BYTES, LINE, counts_of
from fencepost_proof.workloads.process import ANY_PLAN

LOOK_S = 0.05
SLOW_ONE_IN, SLOW_S = 60, 3.0


def main(folder: Path) -> None:
    """As told."""
    told = json.loads((folder / "told.json").read_text())
    (folder / "driver.pid").write_text(str(os.getpid()))
    take_fault(folder)
    if told["plain"]:
        run_plain(told)
    else:
        run(told)


def run(told: dict[str, Any]) -> None:
    """Two sinks, one decision."""
    servers, topics = told["servers"], told["topics"]
    state = fp.FileSystemState() if told["heap"] else None
    job = fp.Job("killed", checkpoint=told["checkpoint"], conf=told["conf"], state=state, **ANY_PLAN)
    read = job.read(fp.Kafka(f"{topics}-in", servers=servers, max_records_per_epoch=ROWS_PER_EPOCH))
    lines = slow_at_times(job.spark, read.selectExpr(LINE).select("line.*"))
    if told["job"] == "kafka":
        job.write(counts_of(lines), fp.Kafka(f"{topics}-counts", servers=servers, key="word", name="counts"))
        producers.FEW_BYTES = FEW_BYTES
        job.write(lines, fp.Kafka(f"{topics}-lines", servers=servers, parallel=True, name="lines"))
    else:
        place, dsn = told["place"], told["dsn"]
        job.write(counts_of(lines), fp.Postgres(f"{place}.counts", dsn=dsn, key="word", name="counts"))
        job.write(lines, fp.Postgres(f"{place}.lines", dsn=dsn, staging="target", name="lines"))
    job.run()


def run_plain(told: dict[str, Any]) -> None:
    """What people write; started again when it fails, as fencepost would."""
    import psycopg  # noqa: PLC0415 - only the twin talks to a server by itself

    servers, topics, place = told["servers"], told["topics"], told["place"]
    spark = spark_session.make_session("plain", told["conf"], jar=False)
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    reader = reader.option("subscribe", f"{topics}-in").option("startingOffsets", "earliest")
    reader = reader.option("maxOffsetsPerTrigger", ROWS_PER_EPOCH)

    def to_kafka(frame: Any) -> None:
        out = frame.selectExpr(f"'{topics}-lines' AS topic", "to_json(struct(*)) AS value")
        out.write.format("kafka").option("kafka.bootstrap.servers", servers).save()

    def to_postgres(frame: Any) -> None:
        found = [tuple(row) for row in frame.collect()]
        with psycopg.connect(told["dsn"]) as database, database.cursor() as cursor:
            cursor.execute(f"CREATE TABLE IF NOT EXISTS {place}.lines (id bigint, text text)".encode())
            cursor.execute(f"CREATE TABLE IF NOT EXISTS {place}.counts (word text, count bigint)".encode())  # for looks
            cursor.executemany(f"INSERT INTO {place}.lines VALUES (%s, %s)".encode(), found)  # noqa: S608 - ours

    write: Callable[[Any], None] = to_kafka if told["job"] == "kafka" else to_postgres

    def body(frame: Any, epoch: int) -> None:
        write(frame)
        faults.reach("plain.done")

    lines = slow_at_times(spark, reader.load().selectExpr(LINE).select("line.*"))
    writer = lines.writeStream.foreachBatch(body).option("checkpointLocation", told["checkpoint"])
    while True:
        try:
            writer.start().awaitTermination()
        except Exception as error:  # noqa: BLE001 - whatever it was, it is tried again
            print(f"plain Spark failed: {type(error).__name__}", file=sys.stderr)
            time.sleep(1)


def slow_at_times(spark: Any, lines: Any) -> Any:
    """The lines as they are, through a Python worker that now and then sleeps, so that Spark speculates."""

    def passed_on(number: int) -> int:
        if random.randrange(SLOW_ONE_IN) == 0:
            time.sleep(SLOW_S)
        return number

    spark.udf.register("passed_on", passed_on, "bigint")
    return lines.selectExpr("passed_on(id) AS id", "text")


def take_fault(folder: Path) -> None:
    """Arm the next fault that waits: now if there is one, else as soon as one comes. The first alone."""
    log = str(folder / f"passed-{os.getpid()}")
    faults.arm({faults.LOG: log})

    def taken() -> bool:
        for file in sorted((folder / "armed").iterdir()):
            if file.suffix == ".fault":
                fault = file.read_text()
                file.rename(folder / "taken" / file.name)
                faults.arm({faults.ARM: fault, faults.LOG: log})
                return True
        return False

    def look() -> None:
        while not taken():
            time.sleep(LOOK_S)

    if not taken():
        threading.Thread(target=look, name="take-fault", daemon=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
