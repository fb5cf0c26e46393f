"""Kafka in, Kafka out, real Spark, a real broker, real SIGKILL; `make kill ARGS="--workload kafka"` kills every point.

The checker reads the topics as any `read_committed` consumer would and imports nothing of fencepost.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from fencepost_proof.kill import nemesis
from fencepost_proof.kill.scene import KILLED, Scene, class_archive
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.workloads.contract import ROWS_PER_EPOCH
from fencepost_proof.workloads.kafka import KafkaWorkload

pytestmark = pytest.mark.spark

NOTHING = {"lost": 0, "doubled": 0, "wrong": 0}
EXACT = {"counts": NOTHING, "lines": NOTHING}


@pytest.fixture
def mortal(tmp_path: Path, broker: Broker) -> Iterator[Broker]:
    """A broker of the test's own, after the shared one showed that there can be one."""
    assert broker.servers
    with Broker(tmp_path / "kafka") as made:
        yield made


def kafka_scene(folder: Path, broker: Broker, archives: Path) -> Scene:
    make = partial(KafkaWorkload, broker=broker)
    return Scene(make(folder / "scene"), archive=class_archive(archives, "kafka", make, "jvm"))


def test_kills_around_the_decision_lose_and_double_nothing(tmp_path: Path, broker: Broker, archives: Path) -> None:
    """Every kill must have happened; each restart first recovers from the kill before it."""
    scene = kafka_scene(tmp_path, broker, archives)
    scene.feed(1)
    missed = []
    for fault in (
        "decide.after=kill@2",
        "commit.before=kill@4",  # 1 and 2 are recovery's own; 4 is between the two sinks of the first new epoch
    ):
        scene.feed(1)
        if scene.run(fault) != KILLED:
            missed.append(fault)
        if "@4" in fault:
            halves = scene.verdict()
            assert 0 == halves["counts"]["wrong"]
            assert halves["lines"]["wrong"] > 0, "an open transaction holds readers up, and the checker must say so"
    assert [] == missed
    assert 0 == scene.run()
    assert EXACT == scene.verdict()


@pytest.mark.long
def test_a_worker_that_dies_and_a_driver_that_sleeps_lose_and_double_nothing(
    tmp_path: Path, broker: Broker, archives: Path
) -> None:
    """The sleeper has decided an epoch: the second driver ends its transactions; when it wakes, it changes nothing."""
    scene = kafka_scene(tmp_path, broker, archives)
    scene.feed(2)
    assert nemesis.in_a_worker(scene, "kafka.task.flushed=kill").hit
    assert nemesis.sleeps_past_a_takeover(scene, "decide.after@1", late=True).hit
    assert EXACT == scene.verdict()


@pytest.mark.long
def test_a_broker_that_dies_after_the_decision_loses_and_doubles_nothing(
    tmp_path: Path, mortal: Broker, archives: Path
) -> None:
    """Decided and not committed: the driver tries, the broker is gone, and comes back."""
    scene = kafka_scene(tmp_path, mortal, archives)
    scene.feed(2)
    assert nemesis.server_dies(scene, "the broker", "decide.after@1", away=0.5).hit
    assert 0 == scene.run()
    assert EXACT == scene.verdict()


@pytest.mark.long
def test_the_checker_finds_the_duplicates_of_a_plain_job(tmp_path: Path, broker: Broker, archives: Path) -> None:
    """A sabotaged twin: Spark's own Kafka sink, killed between the messages and `commits/N`. Nothing else is wrong."""
    scene = kafka_scene(tmp_path, broker, archives)
    scene.feed(2)
    assert KILLED == scene.run("plain.sent=kill@2", None, "--plain")
    assert 0 == scene.run("", None, "--plain")
    found = scene.verdict()
    assert NOTHING | {"doubled": ROWS_PER_EPOCH} == found["lines"]
    assert found["counts"]["doubled"] > 0
    assert (0, 0) == (found["counts"]["lost"], found["counts"]["wrong"])
