"""Must type-check: the public API as a user calls it."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import fencepost as fp


def build(spark: SparkSession) -> fp.Job:
    job = fp.Job("typed", checkpoint="ck", guarantee="exactly_once", spark=spark)
    lines: DataFrame = job.read(fp.Files("in", format="text", max_files_per_epoch=1))
    job.write(lines, fp.SQLite("out.db", table="lines")).write(lines, fp.Files("out", format="json"))
    job.run(until="available")
    return job


def adopt(frame: DataFrame) -> StreamingQuery:
    sink = fp.SQLite("out.db", table="t", key=("a", "b"))
    return fp.start(frame.writeStream.outputMode("update"), to=sink, checkpoint="ck")


def handle(error: fp.FencepostError) -> str:
    return error.code if isinstance(error, fp.Retryable) else error.next
