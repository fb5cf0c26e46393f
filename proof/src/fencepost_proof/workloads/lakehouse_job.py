"""The job of five tables that is killed: two Delta, one Iceberg, DuckDB and PostgreSQL, one decision.

    in/00000.json …     ─►  every row once               ─►  Delta rows          added, partitioned by key
      {id, key, value}  ─►  running total of each key    ─►  Delta totals        MERGE
                        ─►  rows with even values        ─►  Iceberg evens       added, partitioned by bucket(4, id)
                        ─►  count and highest id         ─►  DuckDB newest       upsert
                        ─►  every row once               ─►  PostgreSQL rows

    python -m fencepost_proof.workloads.lakehouse_job FOLDER --postgres DSN --place NAME --endpoint URL [--plain] …

The catalog of the Iceberg table is in the same PostgreSQL, the first Delta table in S3. `--plain` is the sabotaged
twin: plain Spark, `foreachBatch` and `write_deltalake`, which is what people write.
"""

from __future__ import annotations

import sys
from typing import Any

import fencepost as fp
from fencepost import faults
from fencepost.spark import spark_session
from fencepost_proof.rig.s3 import KEY, REGION, SECRET
from fencepost_proof.workloads import process
from fencepost_proof.workloads.files_job import SCHEMA, totals_of


def catalog_of(dsn: str, folder: str, place: str) -> dict[str, str]:
    """An Iceberg catalog in PostgreSQL, with tables in a folder."""
    words = dict(word.split("=") for word in dsn.split())
    uri = f"postgresql+psycopg://{words['user']}@{words['host']}:{words['port']}/{words['dbname']}"
    return {"type": "sql", "uri": uri, "warehouse": f"file://{folder}/warehouse", "name": place}


def options_of(endpoint: str) -> dict[str, str]:
    """How `deltalake` reaches the S3 server of the rig."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
        "AWS_ALLOW_HTTP": "true",
    }


def run(told: process.Told) -> None:
    """Five sinks, one decision."""
    if told.plain:
        run_plain(told)
        return
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - pyspark is the user's

    where, folder = told.more, told.folder
    job = fp.Job("killed", checkpoint=told.checkpoint, conf=told.conf, bridge=told.bridge, **process.ANY_PLAN)
    rows = job.read(fp.Files(str(folder / "in"), format="json", schema=SCHEMA, max_files_per_epoch=1))
    rows = process.rows_in(job.spark, rows, told.kill_at)
    newest = rows.groupBy("key").agg(F.count("*").alias("count"), F.max("id").alias("newest"))
    url = f"s3://{where.place}/rows"
    catalog = catalog_of(where.postgres, str(folder), where.place)
    job.write(rows, fp.Delta(url, partition_by="key", storage_options=options_of(where.endpoint), name="rows"))
    job.write(totals_of(rows), fp.Delta(folder / "totals", key="key", name="totals"))
    job.write(
        rows.where("value % 2 = 0"),
        fp.Iceberg(f"{where.place}.evens", catalog=catalog, partition_by="bucket(4, id)", name="evens"),
    )
    job.write(newest, fp.DuckDB(folder / "newest.duckdb", table="newest", key="key", name="newest"))
    job.write(rows, fp.Postgres(f"{where.place}.rows", dsn=where.postgres, name="copies"))
    job.run(until="available")


def run_plain(told: process.Told) -> None:
    """No fencepost in it, but for the session's settings and a crash point."""
    from deltalake import write_deltalake  # noqa: PLC0415 - only the twin writes by itself

    spark = spark_session.make_session("plain", told.conf, jar=False)

    def body(frame: Any, epoch: int) -> None:
        write_deltalake(str(told.folder / "plain"), frame.toArrow(), mode="append")
        faults.reach("plain.written")

    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    writer = reader.json(str(told.folder / "in")).writeStream.foreachBatch(body).trigger(availableNow=True)
    writer.option("checkpointLocation", str(told.checkpoint)).start().awaitTermination()


if __name__ == "__main__":
    sys.exit(process.main(sys.argv[1:], run, "--postgres", "--place", "--endpoint"))
