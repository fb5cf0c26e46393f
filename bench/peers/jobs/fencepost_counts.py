"""The job of the benchmark for fencepost, as a user writes it.

Arguments are servers, topic in, topic out, folder, jars.
"""

from __future__ import annotations

import sys

from pyspark.sql import functions as F  # noqa: N812

import fencepost as fp

SERVERS, ARRIVING, OUT, FOLDER, JARS = sys.argv[1:]

job = fp.Job("counts", checkpoint=FOLDER, conf={"spark.jars": JARS})
counts = job.read(fp.Kafka(ARRIVING, servers=SERVERS)).groupBy("key").count()
rows = counts.select("key", F.col("count").cast("string").alias("value"))
job.write(rows, fp.Kafka(OUT, servers=SERVERS, key="key", value="value", name="out"))

if __name__ == "__main__":
    job.run()
