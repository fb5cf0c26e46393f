"""The jobs of bench/start.py: counts per key, from files to SQLite or from Kafka to Kafka, by plain Spark or by us.

In a folder of its own: beside it, bench/kafka.py would hide the client of that name.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from fencepost_proof.rig.jars import SPARK_KAFKA, fetch
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import fencepost as fp
from fencepost.spark import spark_session

WHO, FOLDER, SERVERS, ARRIVING, OUT = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]
CONF = {"spark.jars": ",".join(map(str, fetch(SPARK_KAFKA)))} if SERVERS else {}


def counted(rows: Any) -> Any:
    """Lines are counted by word; of records the newest time of each key is kept."""
    if SERVERS:
        newest = F.max(F.unix_millis("timestamp")).cast("string")
        return rows.groupBy(F.col("key").cast("string").alias("key")).agg(newest.alias("value"))
    return rows.select(F.explode(F.split("value", " ")).alias("word")).groupBy("word").count()


def ours() -> None:
    job = fp.Job("start", checkpoint=FOLDER / "ck", conf=CONF)
    files = fp.Files(str(FOLDER / "in"), format="text")
    rows = job.read(fp.Kafka(ARRIVING, servers=SERVERS) if SERVERS else files)
    table = fp.SQLite(FOLDER / "out.db", table="counts", key="word")
    job.write(counted(rows), fp.Kafka(OUT, servers=SERVERS, key="key", value="value", name="out") if SERVERS else table)
    job.run()


def plain() -> None:
    """With the state store, the formats and the `file:` class that we set, and as many shuffle partitions."""
    builder = SparkSession.builder.config("spark.driver.extraClassPath", str(spark_session.JAR))
    files = {f"spark.hadoop.{name}": value for name, value in spark_session.CHECKPOINT_FILES.items()}
    tuned = {**spark_session.OWN, **spark_session.LOCAL, **spark_session.FORMATS, **files}
    for name, value in {**CONF, **tuned, "spark.sql.shuffle.partitions": "2"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if SERVERS:
        kafka = {"kafka.bootstrap.servers": SERVERS, "startingOffsets": "earliest"}
        rows = spark.readStream.format("kafka").options(**kafka, subscribe=ARRIVING).load()
        writer = counted(rows).writeStream.format("kafka").options(**kafka, topic=OUT)
    else:
        rows = spark.readStream.text(str(FOLDER / "in"))
        writer = counted(rows).writeStream.foreachBatch(write)
    writer.outputMode("update").option("checkpointLocation", str(FOLDER / "ck")).start().awaitTermination()


def write(frame: Any, _: int) -> None:
    with closing(sqlite3.connect(FOLDER / "out.db")) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS counts (word PRIMARY KEY, count)")
        database.executemany("INSERT OR REPLACE INTO counts VALUES (?, ?)", [tuple(row) for row in frame.collect()])


if __name__ == "__main__":
    {"ours": ours, "plain": plain}[WHO]()
