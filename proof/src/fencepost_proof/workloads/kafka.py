"""Kafka in; the running count of each word and every line once to Kafka out."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from confluent_kafka import KafkaError, Message, Producer

from fencepost_proof.rig.kafka import Broker
from fencepost_proof.workloads.contract import MOMENT, ROWS_PER_EPOCH, SERVER, SLEEPER, TASK, Mortal, Workload
from fencepost_proof.workloads.files import DATABASES, LAKEHOUSE

WORDS = ("ash", "birch", "cedar", "elm", "fir", "hazel", "larch", "oak")
PARTITIONS = 3
PATIENCE_S = 60


@dataclass
class KafkaWorkload(Workload):
    """Line i is message i // 3 of partition i % 3, so Spark's positions tell which lines were read."""

    broker: Broker = field(kw_only=True)
    topics: str = field(default_factory=lambda: f"killed-{uuid.uuid4().hex[:8]}", kw_only=True)

    job: ClassVar = "fencepost_proof.workloads.kafka_job"
    checker: ClassVar = "recount_kafka.py"
    attacks: ClassVar = (TASK, MOMENT, SERVER, SLEEPER)
    beds: ClassVar = ("kafka.begun", "kafka.flushed", *Workload.beds)
    out_of_reach: ClassVar = {
        "cassandra.*": DATABASES,
        "lake.*": LAKEHOUSE,
        "publish.*": "a sink of files",
        "redis.*": DATABASES,
        "staged.*": DATABASES,
        "vote.during": "a sink of a database",
    }

    def __post_init__(self) -> None:
        """Three topics."""
        self.folder.mkdir(parents=True)
        for name in ("in", "counts", "lines"):
            self.broker.create_topic(f"{self.topics}-{name}", partitions=PARTITIONS)

    @property
    def servers(self) -> Mapping[str, Mortal]:
        """One."""
        return {"the broker": self.broker}

    def feed(self, epochs: int) -> int:
        """Let lines arrive, from a producer that knows nothing of transactions."""
        began = self.rows
        failed: list[KafkaError] = []

        def note(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        producer = Producer({"bootstrap.servers": self.broker.servers, "enable.idempotence": True, "log_level": 0})
        for number in range(began, began + epochs * ROWS_PER_EPOCH):
            text = " ".join(self.chance.choices(WORDS, k=3))
            producer.produce(
                f"{self.topics}-in",
                json.dumps({"id": number, "text": text}),
                partition=number % PARTITIONS,
                on_delivery=note,
            )
        assert (producer.flush(PATIENCE_S), failed) == (0, []), "the input could not be written"
        self.rows += epochs * ROWS_PER_EPOCH
        return began

    def unread(self) -> list[int]:
        """By the positions in Spark's newest entry."""
        newest = self.checkpoint / "offsets" / str(self.epoch())
        ends: Mapping[str, int] = {}
        if newest.exists():
            ends = json.loads(newest.read_text().splitlines()[-1])[f"{self.topics}-in"]
        return [i for i in range(self.rows) if i // PARTITIONS >= ends.get(str(i % PARTITIONS), 0)]

    def job_arguments(self) -> list[str]:
        """Where the topics are."""
        return ["--servers", self.broker.servers, "--topics", self.topics]

    def checker_arguments(self, *places: str) -> list[str]:
        """The topics, and Spark's own log, which says where epochs ended."""
        wanted = places or ("counts", "lines")
        return [self.broker.servers, self.topics, str(self.checkpoint / "offsets"), *wanted]
