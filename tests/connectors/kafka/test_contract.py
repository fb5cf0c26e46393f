"""Kafka passes the suite that every sink passes, on a real broker."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fencepost_proof.rig.kafka import Broker
from topics import read

import fencepost as fp
from fencepost.protocol.effects import Outcome
from fencepost.testing import SinkContract, SinkDriver, rows_of

WORDS = pa.schema({"k": pa.string(), "v": pa.int64()})


@pytest.fixture(scope="module")
def broker(root: Path, require: Callable[[str], None]) -> Iterator[Broker]:
    """One that may be frozen."""
    require("kafka")
    with Broker(root / "contract", reaper_ms=500) as made:
        yield made


class KafkaContract(SinkContract):
    remembers_owner = False
    replaces = False
    lists_orphans = True
    tells = True
    finds_strays = True
    keep_rows = True
    parallel = False

    @pytest.fixture(autouse=True)
    def _on_a_broker(self, broker: Broker) -> None:
        self.broker = broker
        self.made: set[str] = set()

    def topic(self, tmp_path: Path) -> str:
        name = f"contract-{hashlib.sha1(str(tmp_path).encode(), usedforsecurity=False).hexdigest()[:12]}"
        if name not in self.made:
            self.made.add(self.broker.create_topic(name, partitions=2))
        return name

    def make_sink(self, tmp_path: Path) -> fp.Sink:
        topic, servers = self.topic(tmp_path), self.broker.servers
        return fp.Kafka(topic, servers=servers, key="k", keep_rows=self.keep_rows, parallel=self.parallel)

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        found = [json.loads(m.value()) for m in read(self.broker.servers, self.topic(tmp_path))]
        return [(row["k"], row["v"]) for row in found]

    def silence(self, tmp_path: Path) -> AbstractContextManager[object]:
        @contextmanager
        def paused() -> Iterator[None]:
            self.broker.pause()
            try:
                yield
            finally:
                self.broker.resume()

        return paused()

    def test_rows_of_a_failed_attempt_do_not_ride_along_with_the_next(self, tmp_path: Path) -> None:
        """A failed attempt is always rolled back; until then it holds up readers, as any open transaction does."""
        driver = self._driver(tmp_path)
        driver.vote(0, driver.pre_commit(0, self.table(0)))
        driver.session.rollback()
        driver.run(0, self.table(1))
        assert rows_of(self.table(1)) == self._seen(tmp_path)


class TestKafka(KafkaContract):
    pass


class TestKafkaWithoutKeptRows(KafkaContract):
    keep_rows = False


class TestKafkaParallel(KafkaContract):
    """The driver's part: what tasks with few rows leave to it."""

    parallel = True


def test_two_sinks_of_a_job_may_share_a_topic_because_their_transactions_are_apart(
    broker: Broker, tmp_path: Path
) -> None:
    topic = broker.create_topic("shared", partitions=1)
    drivers = [
        SinkDriver(fp.Kafka(topic, servers=broker.servers, key="k", name=name), tmp_path / name) for name in "ab"
    ]
    try:
        for driver in drivers:
            driver.start(WORDS)
        handles = [
            driver.pre_commit(0, pa.table({"k": [driver.sink.name], "v": [number]}, WORDS))
            for number, driver in enumerate(drivers)
        ]
        for driver, handle in zip(drivers, handles, strict=True):
            assert (None, ()) == (driver.session.territory(), driver.vote(0, handle))
        assert [Outcome.DONE] * 2 == [d.commit(0, handle) for d, handle in zip(drivers, handles, strict=True)]
        found = [json.loads(message.value()) for message in read(broker.servers, topic)]
        assert [("a", 0), ("b", 1)] == sorted((row["k"], row["v"]) for row in found)
    finally:
        for driver in drivers:
            driver.session.close()
