"""The checker of the Kafka kills, on topics written by hand: right ones, and every way to be wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Producer
from fencepost_proof.checkers import recount_kafka
from fencepost_proof.rig.kafka import Broker

Message = tuple[str | None, dict[str, object]]

LINES: list[dict[str, object]] = [{"id": 0, "text": "a b"}, {"id": 1, "text": "a a"}, {"id": 2, "text": "b"}]
ENDS = (1, 2, 3)
"""Three epochs of one line each."""
COUNTS: list[Message] = [
    (word, {"word": word, "count": count}) for word, count in [("a", 1), ("b", 1), ("a", 3), ("b", 2)]
]
NOTHING = {"lost": 0, "doubled": 0, "wrong": 0}


@dataclass
class Topics:
    """One input and two outputs, of one partition each, and Spark's log."""

    broker: Broker
    folder: Path
    name: str = field(default_factory=lambda: f"recount-{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        for topic in ("in", "counts", "lines"):
            self.broker.create_topic(f"{self.name}-{topic}", partitions=1)
        for epoch, end in enumerate(ENDS):
            (self.folder / str(epoch)).write_text(f'v1\n{{}}\n{{"{self.name}-in":{{"0":{end}}}}}')
        self.send("in", *[(None, line) for line in LINES])

    def send(self, topic: str, *messages: Message, abort: bool | None = None) -> Producer:
        """Plainly, or in a transaction that is taken back or left open."""
        settings: dict[str, object] = {"bootstrap.servers": self.broker.servers}
        if abort is not None:
            settings["transactional.id"] = uuid.uuid4().hex
        producer = Producer(settings)
        if abort is not None:
            producer.init_transactions(30)
            producer.begin_transaction()
        for key, value in messages:
            producer.produce(f"{self.name}-{topic}", json.dumps(value), key)
        assert 0 == producer.flush(30)
        if abort:
            producer.abort_transaction(30)
        return producer

    def check(self) -> dict[str, dict[str, int]]:
        """By path, as a process of its own."""
        command = [sys.executable, "-I", str(recount_kafka.__file__), self.broker.servers, self.name, str(self.folder)]
        done = subprocess.run([*command, "counts", "lines"], check=False, capture_output=True, text=True)
        assert done.stdout, done.stderr
        found: dict[str, dict[str, int]] = json.loads(done.stdout)["places"]
        assert done.returncode == any(sum(each.values()) for each in found.values())
        return found


@pytest.fixture
def topics(broker: Broker, tmp_path: Path) -> Topics:
    return Topics(broker, tmp_path)


def test_right_topics_are_right_and_what_was_taken_back_is_not_seen(topics: Topics) -> None:
    topics.send("counts", *COUNTS[:2])
    topics.send("counts", *COUNTS[2:], abort=True)
    topics.send("counts", *COUNTS[2:])
    topics.send("lines", *[(None, line) for line in LINES])
    topics.send("lines", (None, LINES[0]), abort=True)
    assert {"counts": NOTHING, "lines": NOTHING} == topics.check()


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (COUNTS[:3], {"lost": 1}),
        (COUNTS[1:], {"lost": 1}),  # an update that a later one hides: the last counts are right
        ([*COUNTS, COUNTS[3]], {"doubled": 1}),
        ([*COUNTS[:2], ("a", {"word": "a", "count": 2}), *COUNTS[2:]], {"wrong": 1}),  # no epoch ended there
        ([COUNTS[2], COUNTS[1], COUNTS[0], COUNTS[3]], {"wrong": 1}),  # late
        ([*COUNTS, ("c", {"word": "c", "count": 1})], {"wrong": 1}),
        ([*COUNTS[:3], ("a", {"word": "b", "count": 2})], {"lost": 1, "wrong": 1}),  # under another word's key
        ([], {"lost": 4}),
    ],
)
def test_wrong_counts_are_found(topics: Topics, counts: list[Message], expected: dict[str, int]) -> None:
    topics.send("counts", *counts)
    assert NOTHING | expected == topics.check()["counts"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (LINES[1:], {"lost": 1}),
        ([*LINES, LINES[0], LINES[0]], {"doubled": 2}),
        ([*LINES[1:], {"id": 0, "text": "a"}], {"lost": 1, "wrong": 1}),
        ([*LINES, {"number": 1}], {"wrong": 1}),
    ],
)
def test_wrong_lines_are_found(topics: Topics, lines: list[dict[str, object]], expected: dict[str, int]) -> None:
    topics.send("lines", *[(None, line) for line in lines])
    assert NOTHING | expected == topics.check()["lines"]


def test_a_transaction_left_open_is_found_even_if_it_holds_nothing_of_worth(topics: Topics) -> None:
    topics.send("counts", *COUNTS)
    topics.send("lines", *[(None, line) for line in LINES])
    left = topics.send("lines", (None, LINES[0]), abort=False)
    assert {"counts": NOTHING, "lines": NOTHING | {"wrong": 1}} == topics.check()
    left.abort_transaction(30)


def test_a_hole_in_sparks_log_is_no_verdict(topics: Topics) -> None:
    (topics.folder / "1").unlink()
    with pytest.raises(AssertionError, match="hole"):
        topics.check()
