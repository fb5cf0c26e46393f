"""Drivers on a topic without Spark, the stand-in job on topics, and a stranger who takes their transactional ids."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaException, Producer
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.rig.process import until
from fencepost_proof.stand_in import StandIn
from killing import PER_EPOCH, Scene
from topics import read

import fencepost as fp
from fencepost.connectors.kafka.coordinator import Coordinator
from fencepost.connectors.kafka.fate import ONGOING, Transaction, owner_of
from fencepost.connectors.kafka.servers import Servers
from fencepost.contract import Sink

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


MARKERS_S = 0.5


def table(*values: int, **more: list[Any]) -> pa.Table:
    """A row for each value, keyed by it."""
    return pa.table({"k": [f"key-{value}" for value in values], "v": list(values), **more})


def seen(broker: Broker, topic: str, isolation: str = "read_committed") -> list[int]:
    """The values that a reader sees, sorted.

    A commit is answered before its markers are in every partition: what is not seen at once is looked for a while.
    """

    def values(isolation: str) -> list[int]:
        return sorted(json.loads(message.value())["v"] for message in read(broker.servers, topic, isolation))

    end = time.monotonic() + MARKERS_S
    found = values(isolation)
    while isolation == "read_committed" and time.monotonic() < end and found != values("read_uncommitted"):
        found = values(isolation)
    return found


@contextmanager
def asking(broker: Broker, **settings: Any):
    """A coordinator client of our own."""
    coordinator = Coordinator(Servers(broker.servers), **settings)
    try:
        yield coordinator
    finally:
        coordinator.close()


def describe(broker: Broker, name: str) -> Transaction | None:
    """What the cluster says of an id."""
    with asking(broker) as coordinator:
        return coordinator.describe([name])[name]


def open_of(broker: Broker, sink: Sink) -> list[str]:
    """The transactions that are open for a sink; its name has to be its own."""
    with asking(broker) as coordinator:
        owned = [owner_of(name) for name in coordinator.open_ids()]
    return [one.id for one in owned if one is not None and one.sink == sink.name]


def wait_for_timeout(broker: Broker, *names: str) -> None:
    """Until the broker itself has ended these."""
    with asking(broker) as coordinator:
        until(
            lambda: all(one is None or one.state != ONGOING for one in coordinator.describe(names).values()),
            "the broker ended the transactions",
        )


def stranger(broker: Broker, name: str = "", **settings: Any) -> Producer:
    """Somebody else's producer; under our id it ends what we have open, and fences us."""
    name = name or f"stranger-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": name, "log_level": 0, **settings})
    producer.init_transactions(30)
    return producer


def send(producer: Producer, topic: str, value: int, partition: int = -1) -> list[Any]:
    """One row into the open transaction, of a producer that may be fenced; what went wrong."""
    wrong: list[Any] = []
    producer.produce(
        topic,
        json.dumps({"k": "x", "v": value}),
        partition=partition,
        on_delivery=lambda error, _: wrong.append(error) if error else None,
    )
    try:
        assert 0 == producer.flush(30)
    except (KafkaException, SystemError) as error:  # the client raises the latter if it has both to tell
        return [error]
    return wrong


@dataclass(frozen=True)
class TopicScene(Scene):
    """The stand-in job on topics of a broker, each with settings of its own."""

    broker: Broker = field(kw_only=True)
    settings: Callable[[str], Mapping[str, Any]] = field(default=lambda name: {}, kw_only=True)

    def job(self) -> StandIn:
        sinks = {name: self.sink(name) for name in self.targets}
        return StandIn(self.folder / "checkpoint", self.numbers, PER_EPOCH, sinks)

    def sink(self, name: str) -> fp.Kafka:
        return fp.Kafka(name, servers=self.broker.servers, key="id", name=name, **self.settings(name))

    def places(self) -> list[str]:
        return [f"kafka:{self.broker.servers}/{name}" for name in self.targets]

    def open(self) -> list[str]:
        return [name for target in self.targets for name in open_of(self.broker, self.sink(target))]

    def kinds(self) -> list[str]:
        """The kinds of the ledger's records, in order."""
        return [json.loads(path.read_text())["kind"] for path in self.records()]

    def error(self) -> str:
        """What the last child that failed said."""
        return (self.folder / "error").read_text()


def make_scene(
    broker: Broker, place: Path, count: int = 1, settings: Callable[[str], Mapping[str, Any]] = lambda name: {}
) -> TopicScene:
    """A job in a folder of its own, on new topics."""
    folder = place / uuid.uuid4().hex[:8]
    folder.mkdir()
    names = [f"{'abc'[number]}-{folder.name}" for number in range(count)]
    for name in names:
        broker.create_topic(name, partitions=2)
    return TopicScene(folder, tuple(names), broker=broker, settings=settings)
