"""The job of five sinks that is killed: four databases and a folder, five DataFrames, one decision.

    in/00000.json …     ─►  every row once               ─►  PostgreSQL rows     staged in the target, by the tasks
      {id, key, value}  ─►  running total of each key    ─►  MariaDB totals      upsert
                        ─►  one more for each row's key  ─►  Redis counts        counters: a row twice would show
                        ─►  count and highest id         ─►  Cassandra newest    keyed writes with the epoch's time
                        ─►  rows with even values        ─►  files

    python -m fencepost_proof.workloads.databases_job FOLDER --postgres DSN --mariadb PORT --redis URL --cassandra PORT
        --place NAME [--plain] …

`--plain` is the sabotaged twin: plain Spark, `foreachBatch`, INSERT and INCRBY.
"""

from __future__ import annotations

import sys
from typing import Any

import fencepost as fp
from fencepost import faults
from fencepost.spark import spark_session
from fencepost_proof.workloads import process
from fencepost_proof.workloads.files_job import SCHEMA, totals_of


def run(told: process.Told) -> None:
    """Five sinks, one decision."""
    if told.plain:
        run_plain(told)
        return
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - pyspark is the user's

    where, place = told.more, told.more.place
    job = fp.Job("killed", checkpoint=told.checkpoint, conf=told.conf, bridge=told.bridge, **process.ANY_PLAN)
    rows = job.read(fp.Files(str(told.folder / "in"), format="json", schema=SCHEMA, max_files_per_epoch=1))
    rows = process.rows_in(job.spark, rows, told.kill_at)
    newest = rows.groupBy("key").agg(F.count("*").alias("count"), F.max("id").alias("newest"))
    mysql = {"host": "127.0.0.1", "port": int(where.mariadb), "user": "test", "password": "test", "database": place}
    job.write(rows, fp.Postgres(f"{place}.rows", dsn=where.postgres, staging="target", name="rows"))
    job.write(totals_of(rows), fp.MySQL("totals", **mysql, key="key", name="totals"))
    job.write(
        rows.selectExpr("key", "1L AS n"),
        fp.Redis(where.redis, key="key", shape="counter", prefix=f"{place}:", name=f"counts-{place}"),
    )
    job.write(newest, fp.Cassandra(f"{place}.newest", port=int(where.cassandra), key="key", name="newest"))
    job.write(rows.where("value % 2 = 0"), fp.Files(str(told.folder / "evens"), format="json", name="evens"))
    job.run(until="available")


def run_plain(told: process.Told) -> None:
    """No fencepost in it, but for the session's settings and a crash point."""
    import psycopg  # noqa: PLC0415 - only the twin talks to a server by itself
    import redis  # noqa: PLC0415 - as above

    place = told.more.place
    spark = spark_session.make_session("plain", told.conf, jar=False)
    database = psycopg.connect(told.more.postgres)
    counters = redis.Redis.from_url(told.more.redis)
    database.execute(f"CREATE TABLE IF NOT EXISTS {place}.rows (id bigint, key text, value bigint)".encode())
    database.commit()

    def body(frame: Any, epoch: int) -> None:
        found = [tuple(row) for row in frame.collect()]
        with database.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {place}.rows VALUES (%s, %s, %s)".encode(), found)  # noqa: S608 - ours
        database.commit()
        for _, key, _ in found:
            counters.incrby(f"{place}:{key}", 1)
        faults.reach("plain.written")

    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    writer = reader.json(str(told.folder / "in")).writeStream.foreachBatch(body).trigger(availableNow=True)
    writer.option("checkpointLocation", str(told.checkpoint)).start().awaitTermination()


if __name__ == "__main__":
    sys.exit(process.main(sys.argv[1:], run, "--postgres", "--mariadb", "--redis", "--cassandra", "--place"))
