"""The Kafka job that is killed: one decision for a topic that the driver writes and one that the tasks write.

    in  ─►  running count of each word  ─►  counts     update mode, key = word, written by the driver
        ─►  every line once             ─►  lines      written by the tasks (parallel=True) and, of some, by the driver

    python -m fencepost_proof.workloads.kafka_job FOLDER --servers HOST:PORT --topics NAME [--plain] …

The topics are NAME-in, NAME-counts and NAME-lines. `--plain` is the sabotaged twin: the same plan on plain Spark and
its own Kafka sink.
"""

from __future__ import annotations

import sys
from typing import Any

import fencepost as fp
from fencepost import faults
from fencepost.connectors.kafka import producers
from fencepost.spark import spark_session
from fencepost_proof.rig.jars import SPARK_KAFKA, fetch
from fencepost_proof.workloads import process
from fencepost_proof.workloads.contract import ROWS_PER_EPOCH

FEW_BYTES = 103
"""A task has four lines, of 92 to 116 bytes: six in ten have more than this and write themselves, the others leave
their lines to the driver. So an epoch has tasks of one kind, or of both."""
LINE = "from_json(CAST(value AS STRING), 'id BIGINT, text STRING') AS line"


def with_connector(told: process.Told) -> dict[str, str]:
    """The settings, with Spark's Kafka connector, and with a log of Spark's that nothing is cut from."""
    jars = [str(jar) for jar in fetch(SPARK_KAFKA)]
    # On the class path of the JVM itself, an archive of classes holds it, too; only beside our jar can it get there.
    ours = told.bridge == "jvm"
    where = {"spark.driver.extraClassPath": ":".join(jars)} if ours else {"spark.jars": ",".join(jars)}
    # The checker folds the input epoch by epoch, and finds in this log where each one ended.
    return {**told.conf, **where, "spark.sql.streaming.minBatchesToRetain": "100000"}


def counts_of(lines: Any) -> Any:
    """The stateful branch."""
    return lines.selectExpr("explode(split(text, ' ')) AS word").groupBy("word").count()


def run(told: process.Told) -> None:
    """Two sinks, one decision."""
    if told.plain:
        run_plain(told)
        return
    servers, topics = told.more.servers, told.more.topics
    job = fp.Job(
        "killed",
        checkpoint=told.checkpoint,
        conf=with_connector(told),
        bridge=told.bridge,
        **process.ANY_PLAN,
    )
    read = job.read(fp.Kafka(f"{topics}-in", servers=servers, max_records_per_epoch=ROWS_PER_EPOCH))
    lines = process.rows_in(job.spark, read.selectExpr(LINE).select("line.*"), told.kill_at)
    job.write(counts_of(lines), fp.Kafka(f"{topics}-counts", servers=servers, key="word", name="counts"))
    producers.FEW_BYTES = FEW_BYTES
    job.write(lines, fp.Kafka(f"{topics}-lines", servers=servers, parallel=True, name="lines"))
    job.run(until="available")


def run_plain(told: process.Told) -> None:
    """No fencepost in it, but for the session's settings and a crash point."""
    servers, topics = told.more.servers, told.more.topics
    spark = spark_session.make_session("plain", with_connector(told), jar=False)
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    reader = reader.option("subscribe", f"{topics}-in").option("startingOffsets", "earliest")
    lines = reader.option("maxOffsetsPerTrigger", ROWS_PER_EPOCH).load().selectExpr(LINE).select("line.*")
    counts = counts_of(lines).selectExpr(f"'{topics}-counts' AS topic", "word AS key", "to_json(struct(*)) AS value")
    copies = lines.selectExpr(f"'{topics}-lines' AS topic", "NULL AS key", "to_json(struct(*)) AS value")

    def body(frame: Any, epoch: int) -> None:
        frame.write.format("kafka").option("kafka.bootstrap.servers", servers).save()
        faults.reach("plain.sent")

    writer = counts.unionAll(copies).writeStream.foreachBatch(body).outputMode("update").trigger(availableNow=True)
    writer.option("checkpointLocation", str(told.checkpoint)).start().awaitTermination()


if __name__ == "__main__":
    sys.exit(process.main(sys.argv[1:], run, "--servers", "--topics"))
