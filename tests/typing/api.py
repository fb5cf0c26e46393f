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
    job.write(lines, fp.DuckDB("out.duckdb", table="lines", key="k", mode="upsert"))
    shared: DataFrame = job.share(
        job.read(lines, replayable=True).withColumn("r", fp.rand()).withColumn("u", fp.uuid())
    )
    dead = fp.SQLite("dead.db", table="dead")
    job.write(shared, fp.SQLite("out.db", table="shared"), on_bad_record="dead_letter", dead_letters=dead)
    job.run(until="available")
    return job


def adopt(frame: DataFrame) -> StreamingQuery:
    sink = fp.SQLite("out.db", table="t", key=("a", "b"), deletes="gone")
    return fp.start(frame.writeStream.outputMode("update"), to=sink, checkpoint="ck")


def keep(spark: SparkSession) -> list[fp.Job]:
    options = fp.Checkpoint(
        "ck", interval="1 second", timeout="10 minutes", min_pause="0 s", keep_epochs=10, overlap=True
    )
    return [
        fp.Job("a", checkpoint=options, state=fp.RocksDBState(incremental=False), spark=spark),
        fp.Job("b", state=fp.FileSystemState("ck"), checkpoint=fp.Checkpoint(tolerable_failures=2), spark=spark),
        fp.Job("c", state=fp.MemoryState(), spark=spark),
    ]


def place(error: fp.Refused) -> fp.Refused:
    return error.at(job="typed")


def handle(error: fp.FencepostError) -> str:
    return error.code if isinstance(error, fp.Retryable) else error.next


def keyed(frame: DataFrame) -> DataFrame:
    def add(record: Row, state: Any) -> tuple[tuple[str, int], tuple[int]]:
        total = (state.total if state else 0) + record.amount
        return (record.account, total), (total,)

    sums: DataFrame = fp.map_with_state(
        frame, add, by="account", state="total BIGINT", output="account STRING, total BIGINT", ttl="1 day"
    )

    @fp.map_with_state(sums, by="account", state="n BIGINT", output="n BIGINT")
    def counts(record: Row, state: Any) -> tuple[tuple[int], tuple[int]]:
        n = (state.n if state else 0) + 1
        return (n,), (n,)

    return counts
