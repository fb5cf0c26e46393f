"""Must type-check: the public API as a user calls it."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
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


def keep(spark: SparkSession) -> list[fp.Job]:
    options = fp.Checkpoint("ck", interval="1 second", timeout="10 minutes", min_pause="0 s", retained=10)
    return [
        fp.Job("a", checkpoint=options, state=fp.RocksDB(incremental=False), spark=spark),
        fp.Job("b", state=fp.FileSystem("ck"), checkpoint=fp.Checkpoint(tolerable_failures=2), spark=spark),
        fp.Job("c", state=fp.Memory(), spark=spark),
    ]


def handle(error: fp.FencepostError) -> str:
    return error.code if isinstance(error, fp.Retryable) else error.next


def keyed(frame: DataFrame) -> DataFrame:
    def add(record: Row, state: Any) -> tuple[tuple[str, int], tuple[int]]:
        total = (state.total if state else 0) + record.amount
        return (record.account, total), (total,)

    sums = fp.map_with_state(
        frame, by="account", state="total BIGINT", output="account STRING, total BIGINT", ttl="1 day"
    )
    return sums(add)
