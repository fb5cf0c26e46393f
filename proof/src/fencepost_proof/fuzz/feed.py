"""Numbered rows into the sources of a job, and what was fed so far."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fencepost_proof.fuzz.plans import BEGIN, FILTERED, PACE_S, Place

ROWS = 40
JITTER_S = 60
END = 10**8
"""The number of the records that come last, years after the others: their time closes every window before them."""


class Feed:
    """Folders of files and Kafka topics. Some rows are there twice, as a source that repeats itself has them.

    If the job looks at the time, only shortly after the first: no row is late. Else, if it keeps the greatest row by an
    order, portions come in any order, some of them several epochs behind the one with greater rows.
    """

    def __init__(
        self,
        place: Place,
        sources: Iterable[tuple[str, str]],
        rng: random.Random,
        *,
        timed: bool,
        late: random.Random | None,
    ) -> None:
        self._place, self._rng, self._timed, self._late = place, rng, timed, late
        self._waiting: dict[str, list[list[dict[str, Any]]]] = {}
        self._kinds = dict(sources)
        self._next, self._files, self._ends = 0, 0, 0
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in self._kinds}
        for name, kind in self._kinds.items():
            if kind == "kafka":
                create_topic(place.kafka, place.topic(name))
            else:
                self._folder(name).mkdir(parents=True, exist_ok=True)

    def more(self) -> None:
        """Two portions for each source."""
        for name in [*self._kinds, *self._kinds]:
            if self._timed or self._late is None:
                self._give(name, self._portion(name))
                continue
            waiting = self._waiting.setdefault(name, [self._portion(name), self._portion(name)])
            waiting.append(self._portion(name))
            self._give(name, waiting.pop(-1 if self._late.random() < 1 / 3 else 0))

    def _portion(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for _ in range(ROWS):
            rows.append(self._row(rows if self._timed else [*self.rows[name], *rows]))
        return rows

    def end(self) -> None:
        """The time is over in every source, for every condition: Spark filters first, then looks at the time."""
        for name in self._kinds:
            self._ends += 1
            numbers = range(END + ROWS * self._ends, END + ROWS * (self._ends + 1))
            self._give(name, [_record(number, 0, number // 2 % 3) for number in numbers])

    def _row(self, before: list[dict[str, Any]]) -> dict[str, Any]:
        luck = self._late or self._rng
        if before and luck.random() < 0.1:
            return luck.choice(before)
        self._next += 1
        return _record(self._next, self._rng.randrange(-JITTER_S, JITTER_S), self._rng.randrange(100))

    def _give(self, name: str, rows: list[dict[str, Any]]) -> None:
        self.rows[name] += rows
        lines = [json.dumps(row) for row in rows]
        if self._kinds[name] == "kafka":
            _produce(self._place.kafka, self._place.topic(name), lines)
            return
        self._files += 1
        temp = self._place.root / f"{self._files}.tmp"
        temp.write_text("".join(f"{line}\n" for line in lines))
        os.utime(temp, (BEGIN + self._files,) * 2)  # Spark reads the files of a folder in the order of their times
        before = f"{name}-" if self._kinds[name] == "filter" else ""
        temp.rename(self._folder(name) / f"{before}{self._files:04d}.json")

    def _folder(self, name: str) -> Path:
        return self._place.root / "in" / (FILTERED if self._kinds[name] == "filter" else name)


def _record(number: int, late: int, v: int) -> dict[str, Any]:
    time = datetime.fromtimestamp(BEGIN + PACE_S * number + late, UTC)
    return {"id": number, "k": number % 7, "v": v, "w": f"a{number % 3} b", "t": time.isoformat()}


def create_topic(servers: str, topic: str) -> None:
    """With two partitions, unless it is there."""
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - not needed without a broker
    from confluent_kafka.cimpl import NewTopic  # noqa: PLC0415

    admin = AdminClient({"bootstrap.servers": servers})  # kept: an answer to a client that is gone never comes
    if topic not in admin.list_topics(timeout=60).topics:
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(60)


def _produce(servers: str, topic: str, lines: list[str]) -> None:
    from confluent_kafka import Producer  # noqa: PLC0415 - not needed without a broker

    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for number, line in enumerate(lines):
        producer.produce(topic, line.encode(), partition=number % 2)
    assert producer.flush(60) == 0
