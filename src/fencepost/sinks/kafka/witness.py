"""Asks the topic itself whether a transaction was committed: is its first message there for a reader of committed ones?

The coordinator forgets: an id expires after a week, or is initialised by somebody else. The log does not, until
retention or compaction takes the message; then nobody knows, and nothing is guessed.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from fencepost.kafka_servers import Servers
from fencepost.sinks.kafka.coordinator import Silent
from fencepost.sinks.kafka.outcome import Fate

PATIENCE_S = 15.0
PASSING = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
"""The partition's broker is away: it may still tell, later."""

log = logging.getLogger("fencepost.librdkafka")


def testify(servers: Servers, where: tuple[str, int, int], *, compacted: bool) -> Fate:
    """Read on from the transaction's first message; raise `Silent` if the topic does not answer now."""
    with witness(servers) as consumer:
        return first_seen(consumer, where, compacted=compacted)


@contextmanager
def witness(servers: Servers) -> Iterator[Consumer]:
    """Somebody who can read what is committed, of any topic, again and again."""
    consumer = Consumer(
        {
            **servers.for_writing(),
            "group.id": f"fencepost-witness-{uuid.uuid4().hex}",  # the client wants one; nothing is ever stored in it
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "logger": log,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def first_seen(consumer: Consumer, where: tuple[str, int, int], *, compacted: bool) -> Fate:
    """The same, with a witness that is there."""
    topic, number, offset = where
    place = TopicPartition(topic, number, offset)
    try:
        low, _ = consumer.get_watermark_offsets(place, timeout=PATIENCE_S)
        if low == OFFSET_INVALID or low > offset:
            return Fate.UNKNOWN
        consumer.assign([place])
        return _first_seen(consumer, offset, compacted=compacted)
    except KafkaException as error:
        return _no_answer(error.args[0])


def _first_seen(consumer: Consumer, offset: int, *, compacted: bool) -> Fate:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None:
            continue
        error, at = message.error(), message.offset() or 0
        if error is None and at == offset:
            return Fate.COMMITTED
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            continue  # about a group that nobody needs here
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            return _no_answer(error)
        # Something behind it, or the end: readers have passed it. At the end of a transaction that is still open they
        # have not, and stand at its first message.
        if at > offset:
            return Fate.UNKNOWN if compacted else Fate.ABORTED
        return Fate.OPEN
    raise Silent("the topic could not be read")


def _no_answer(error: KafkaError) -> Fate:
    if error.code() in PASSING:
        raise Silent(error.name())
    return Fate.UNKNOWN
