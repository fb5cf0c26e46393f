"""Kafka passes the suite that every sink passes, on a real broker."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from topics import read

import fencepost as fp
from fencepost.prove.rig.kafka import Broker
from fencepost.testing import SinkContract, rows_of


class KafkaContract(SinkContract):
    remembers_owner = False
    replaces = False
    lists_orphans = True
    tells = True
    finds_strays = True
    keep_rows = True

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
        return fp.Kafka(self.topic(tmp_path), servers=self.broker.servers, key="k", keep_rows=self.keep_rows)

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
