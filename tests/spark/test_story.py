"""The textbook story: 1, 3, 5, 7, 9, 11 come in, running sums go out, the driver dies with 25 in its hands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from fencepost_proof.kill.scene import KILLED, class_archive
from fencepost_proof.rig.jars import SPARK_KAFKA, fetch
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.workloads.kafka import KafkaWorkload
from fencepost_proof.workloads.process import OPTIONS, QUICK
from topics import read

pytestmark = pytest.mark.spark

JOB = """
import json, sys
import fencepost as fp

told = json.loads(sys.argv[1])
job = fp.Job("story", checkpoint=told["checkpoint"], conf=told["conf"])
numbers = job.read(fp.Kafka(told["numbers"], servers=told["servers"], max_records_per_epoch=1))
sums = numbers.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS number").groupBy().sum("number").toDF("sum")
job.write(sums.selectExpr("CAST(sum AS STRING) AS sum"), fp.Kafka(told["sums"], servers=told["servers"], value="sum"))
job.run(until="available")
"""


@pytest.mark.long
def test_the_running_sums_come_out_once_and_in_order(
    tmp_path: Path, broker: Broker, topic: str, archives: Path
) -> None:
    """A reader that does not ask for committed messages sees the 25 of the driver that died before it decided."""
    numbers, sums = (broker.create_topic(f"{topic}-{name}", partitions=1) for name in ("numbers", "sums"))
    producer = Producer({"bootstrap.servers": broker.servers})
    for number in (1, 3, 5, 7, 9, 11):
        producer.produce(numbers, str(number))
    assert 0 == producer.flush(30)
    archive = class_archive(archives, "kafka", partial(KafkaWorkload, broker=broker), "jvm")
    conf = {
        **QUICK,
        OPTIONS: f"{QUICK[OPTIONS]} -XX:SharedArchiveFile={archive}",
        "spark.driver.extraClassPath": ":".join(map(str, fetch(SPARK_KAFKA))),
    }
    told = {"checkpoint": str(tmp_path / "checkpoint"), "servers": broker.servers, "conf": conf}
    command = [sys.executable, "-c", JOB, json.dumps(told | {"numbers": numbers, "sums": sums})]

    def start(fault: str = "") -> int:
        environment = {**os.environ, "FENCEPOST_FAULT": fault}
        return subprocess.run(command, check=False, capture_output=True, timeout=300, env=environment).returncode

    def seen(isolation: str = "read_committed") -> list[int]:
        return [int(message.value() or b"") for message in read(broker.servers, sums, isolation)]

    assert KILLED == start("precommit.after=kill@5")
    assert [1, 4, 9, 16] == seen()
    assert [1, 4, 9, 16, 25] == seen("read_uncommitted")

    assert KILLED == start("decide.after=kill")
    assert [1, 4, 9, 16] == seen()
    assert [1, 4, 9, 16, 25, 25] == seen("read_uncommitted")

    assert 0 == start()
    assert [1, 4, 9, 16, 25, 36] == seen()
    assert [1, 4, 9, 16, 25, 25, 36] == seen("read_uncommitted")
