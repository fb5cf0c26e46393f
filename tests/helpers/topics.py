"""Reads topics as an ordinary consumer would; imports nothing of fencepost."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition


def read(servers: str, topic: str, isolation: str = "read_committed", patience: int = 60) -> list[Message]:
    """Every message up to where a reader of this isolation gets now, in order of partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "an-ordinary-reader",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        waiting, found = set(partitions), []
        while waiting:
            message = consumer.poll(1)
            patience -= message is None
            assert patience, "the topic could not be read"
            if message is None:
                continue
            if message.error() is None:
                found.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                waiting.discard(message.partition())
            else:
                raise AssertionError(message.error())
    finally:
        consumer.close()
    return sorted(found, key=lambda m: (m.partition(), m.offset()))


def read_before(servers: str, ends: Mapping[str, Mapping[str, int]], patience: int = 60) -> list[Message]:
    """What a read_committed reader sees that reads each partition from its beginning and stops before an offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "a-reader-that-stops",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
    )
    waiting = {(topic, int(number)): end for topic, known in ends.items() for number, end in known.items() if end}
    found = []
    try:
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in waiting])
        while waiting:
            message = consumer.poll(1)
            patience -= message is None
            assert patience, f"readers do not get to {waiting}"
            if message is None:
                continue
            place = (message.topic(), message.partition())
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                # Markers and what was aborted are skipped: the reader is past the offset, or has to wait.
                if message.offset() >= waiting.get(place, 0):
                    waiting.pop(place, None)
            elif message.offset() < waiting.get(place, 0):
                found.append(message)
                if message.offset() + 1 == waiting[place]:
                    waiting.pop(place)
            else:
                waiting.pop(place, None)
    finally:
        consumer.close()
    return found
