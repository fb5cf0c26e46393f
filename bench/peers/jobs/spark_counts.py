"""The job of the benchmark for plain Spark: arguments are servers, topic in, topic out, folder, and settings as JSON.

It imports nothing of ours, which would make its start slower.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

SERVERS, ARRIVING, OUT, FOLDER = sys.argv[1:5]
OF_SESSION, OF_QUERY = json.loads(sys.argv[5])

builder = SparkSession.builder.appName("counts")
for name, value in OF_SESSION.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
for name, value in OF_QUERY.items():
    spark.conf.set(name, value)
kafka = {"kafka.bootstrap.servers": SERVERS}
records = spark.readStream.format("kafka").options(**kafka, subscribe=ARRIVING, startingOffsets="earliest").load()
rows = records.groupBy("key").count().select("key", F.col("count").cast("string").alias("value"))
writer = rows.writeStream.format("kafka").outputMode("update").trigger(processingTime="0 seconds")
writer.options(**kafka, topic=OUT, checkpointLocation=FOLDER).start().awaitTermination()
