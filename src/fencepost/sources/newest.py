"""Where the newest records of Kafka topics begin: for the warm-up of a standby, which reads a few and no more."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import TopicPartition

from fencepost.kafka_servers import Servers
from fencepost.sinks.kafka.witness import PATIENCE_S, witness


def positions(servers: Servers, topics: Iterable[str], most: int) -> dict[str, dict[int, int]]:
    """At most so many records before each partition's end."""
    found: dict[str, dict[int, int]] = {}
    with witness(servers) as consumer:
        for topic in topics:
            numbers = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
            ends = {n: consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=PATIENCE_S) for n in numbers}
            found[topic] = {number: max(low, high - most) for number, (low, high) in ends.items()}
    return found
