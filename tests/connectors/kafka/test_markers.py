"""A broker that is killed right after a commit, before it wrote the markers: the rows must become visible all the same.

Whether a kill hits that moment is chance; each test tries some times, and the result has to be right in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fencepost_proof.rig.kafka import Broker
from transactions import asking, seen, table

import fencepost as fp
from fencepost.protocol.effects import Outcome
from fencepost.testing import SinkDriver

Start = Callable[..., SinkDriver]
ROUNDS = 3


@pytest.fixture
def mortal(tmp_path: Path, require: Any) -> Iterator[Broker]:
    require("kafka")
    with Broker(tmp_path / "broker") as broker:
        yield broker


def test_recovery_sees_a_commit_through_that_the_broker_forgot(mortal: Broker, start: Start) -> None:
    for number in range(ROUNDS):
        topic = mortal.create_topic(f"recovered-{number}", partitions=1)
        sink = fp.Kafka(topic, servers=mortal.servers, key="k", name=topic)
        handle = start(sink, writer=1).pre_commit(0, table(1, 2))
        with asking(mortal) as coordinator:
            assert None is coordinator.end(handle.body, commit=True)
        mortal.kill()
        mortal.start()
        assert Outcome.DONE == start(sink, writer=2).commit(0, handle)
        assert [1, 2] == seen(mortal, topic)


@pytest.mark.long
def test_a_running_driver_sees_its_last_commit_through_before_the_next_decision(mortal: Broker, start: Start) -> None:
    for number in range(ROUNDS):
        topic = mortal.create_topic(f"running-{number}", partitions=1)
        driver = start(fp.Kafka(topic, servers=mortal.servers, key="k", name=topic))
        driver.run(0, table(1))
        driver.run(1, table(2))
        mortal.kill()
        mortal.start()
        handle = driver.pre_commit(2, table(3))
        assert () == driver.vote(2, handle)
        assert [1, 2] == seen(mortal, topic)
        assert Outcome.DONE == driver.commit(2, handle)
        assert [1, 2, 3] == seen(mortal, topic)
