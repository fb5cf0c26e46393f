"""The job of bench/recovery.py: records are counted per key, Kafka to Kafka; it notes when it got how far.

In a folder of its own: beside it, bench/kafka.py would hide the client of that name.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fencepost_proof.rig.jars import SPARK_KAFKA, fetch
from pyspark.sql import functions as F  # noqa: N812

import fencepost as fp

FOLDER, SERVERS, ARRIVING, OUT = Path(sys.argv[1]), *sys.argv[2:]


def note(step: str) -> None:
    with (FOLDER / "steps").open("a") as file:
        file.write(f"{step} {time.time()}\n")


note("python")
jars = ",".join(map(str, fetch(SPARK_KAFKA)))
job = fp.Job("recovery", checkpoint=FOLDER / "ck", conf={"spark.jars": jars, "spark.ui.enabled": "false"})
job.spark.sparkContext.setLogLevel("ERROR")
note("spark")
records = job.read(fp.Kafka(ARRIVING, servers=SERVERS))
newest = F.max(F.unix_millis("timestamp")).cast("string")
counted = records.groupBy(F.col("key").cast("string").alias("key")).agg(newest.alias("value"))
job.write(counted, fp.Kafka(OUT, servers=SERVERS, key="key", value="value", name="out"))

if __name__ == "__main__":
    note("run")
    job.run()
