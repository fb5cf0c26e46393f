"""Rows from Spark into topics, by the driver and by the tasks, under every level and over both bridges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fencepost_proof.rig.kafka import Broker
from topics import read

import fencepost as fp
from fencepost.connectors.kafka.coordinator import Coordinator
from fencepost.connectors.kafka.servers import Servers

pytestmark = pytest.mark.spark

LEVELS = ("exactly_once", "at_least_once", "at_most_once")


@pytest.mark.parametrize("parallel", [False, True], ids=["driver", "tasks"])
@pytest.mark.parametrize("guarantee", LEVELS)
def test_every_row_is_one_message_and_nothing_stays_open(
    spark: Any, broker: Broker, topic: str, tmp_path: Path, *, guarantee: str, parallel: bool
) -> None:
    seen = run(spark, broker, topic, tmp_path, guarantee=guarantee, parallel=parallel)
    assert [{"id": number, "word": f"w{number % 3}"} for number in range(20)] == seen


@pytest.mark.parametrize("keep_rows", [False, True], ids=["not kept", "kept"])
def test_tasks_write_over_foreach_batch_too(
    spark: Any, broker: Broker, topic: str, tmp_path: Path, keep_rows: bool
) -> None:
    seen = run(spark, broker, topic, tmp_path, bridge="foreach_batch", parallel=True, keep_rows=keep_rows)
    assert list(range(20)) == [row["id"] for row in seen]


def run(spark: Any, broker: Broker, topic: str, folder: Path, **chosen: Any) -> list[dict[str, Any]]:
    """Two files, two epochs; the messages that a reader of committed ones sees."""
    job = {name: chosen.pop(name) for name in ("guarantee", "bridge") if name in chosen}
    (folder / "in").mkdir()
    for number in range(2):
        rows = [{"id": i, "word": f"w{i % 3}"} for i in range(number * 10, number * 10 + 10)]
        (folder / "in" / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
    made = fp.Job("rows", checkpoint=folder / "checkpoint", spark=spark, **job)
    source = fp.Files(str(folder / "in"), format="json", schema="id BIGINT, word STRING", max_files_per_epoch=1)
    made.write(made.read(source), fp.Kafka(topic, servers=broker.servers, key="word", **chosen))
    made.run(until="available")
    coordinator = Coordinator(Servers(broker.servers))
    left = [name for name in coordinator.open_ids() if topic in name]
    coordinator.close()
    assert [] == left
    return sorted((json.loads(message.value()) for message in read(broker.servers, topic)), key=lambda row: row["id"])
