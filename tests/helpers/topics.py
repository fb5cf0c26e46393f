"""Reads topics as an ordinary consumer would; imports nothing of fencepost."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition


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
