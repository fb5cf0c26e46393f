"""A Kafka topic, to read from or to write to."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

from fencepost.errors import BadConfig
from fencepost.kafka_servers import Servers
from fencepost.sinks.contract import Capabilities, Session, Sink, WriteInTask
from fencepost.sinks.kafka.ids import PREFIX
from fencepost.sinks.kafka.messages import Columns, Serializer
from fencepost.sinks.kafka.sink import KafkaSink
from fencepost.sources.kafka import KafkaSource, Start


@dataclass(frozen=True)
class Kafka(Sink):
    """A Kafka topic.

        lines = job.read(fp.Kafka("lines", servers="localhost:9092"))
        job.write(counts, fp.Kafka("counts", servers="localhost:9092", key="word"))

    As a source it has Spark's own columns (key, value, topic, partition, offset, timestamp); aborted transactions of
    other writers are not read. As a sink an epoch is one transaction. The mistake people make: reading the result with
    a consumer whose isolation.level is read_uncommitted, the default of Kafka's own. It sees rows that were never
    decided; set read_committed.
    """

    topic: str | Sequence[str] | re.Pattern[str] | None
    """A name; for reading also several, or a pattern (`re.compile("orders-.*")`)."""
    _: KW_ONLY
    servers: str | Sequence[str]
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How to log in, by librdkafka's names (security.protocol, sasl.mechanism, sasl.username, sasl.password …)."""

    start: Start = "earliest"
    """Reading, at the first start only: 'earliest', 'latest', a time, or offsets {topic: {partition: offset}}."""
    max_records_per_epoch: int | None = None
    """Reading: at most so many records in one epoch."""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """Reading: whether rows of open and aborted transactions count."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Reading: Spark's own options of its Kafka source."""

    key: str | None = None
    """Writing: the column that becomes the message's key."""
    value: str | None = None
    """Writing: the column that becomes the value, text or bytes; by default the whole row, as JSON."""
    headers: str | bool | None = None
    """Writing: the column with headers. Reading: True adds a column of that name."""
    partition: str | None = None
    """Writing: the column with the partition's number; by default the key's hash."""
    topic_column: str | None = None
    """Writing: the column with the topic of each row; a row without one goes to `topic`."""
    serializer: Serializer | None = None
    """Writing: a function from a row (a dict, with the key column in it) to bytes, instead of JSON. With `parallel` it
    is pickled."""
    keep_rows: bool = True
    """Writing: keep an epoch's rows until they are visible, so that a transaction which the broker times out is written
    again. Without it such an epoch runs again if nothing of it is visible, and needs a person otherwise."""
    parallel: bool = False
    """Writing: let the tasks write, a transaction each, for outputs that outgrow one driver. An epoch's transactions
    become visible one by one, and each writes a marker to every partition it touched: coalesce first."""
    transaction_timeout: float | None = None
    """Writing: seconds after which the broker aborts an open transaction; by default 900, or what the brokers allow. An
    epoch and a restart have to fit into it."""
    prefix: str = PREFIX
    """Writing: what transactional ids begin with; for clusters that grant them by prefix."""
    producer: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Writing: more settings of librdkafka's producer (compression.type, linger.ms …)."""
    name: str = ""
    """By default made of the topic. The ledger knows the sink by it: give it, if the topic may change."""

    connector = "kafka"

    def __post_init__(self) -> None:
        """A name of its own, if none was given."""
        if not self.name:
            named = self.topic if isinstance(self.topic, str) else "topics"
            object.__setattr__(self, "name", f"kafka:{named}")

    def load(self, reader: Any) -> Any:
        """As a source."""
        topics = self.topic
        if topics is None:
            raise BadConfig("no_topic", "There is no topic to read.", next="Name it: fp.Kafka('lines', …).")
        if isinstance(topics, str):
            topics = (topics,)
        return KafkaSource(
            servers=self._servers,
            topics=topics if isinstance(topics, re.Pattern) else tuple(topics),
            start=self.start,
            max_records_per_epoch=self.max_records_per_epoch,
            isolation=self.isolation,
            headers=bool(self.headers),
            options=dict(self.options),
        ).load(reader)

    def newest(self, most: int) -> Kafka:
        """As a source: what arrives from now on, so many records an epoch at most. For the warm-up of a standby."""
        return replace(self, start="latest", max_records_per_epoch=most)

    @property
    def capabilities(self) -> Capabilities:
        """As a sink."""
        return self._sink.capabilities

    def in_tasks(self, job: str) -> WriteInTask | None:
        """As a sink."""
        return self._sink.in_tasks(job)

    def session(self, job: str) -> Session:
        """As a sink."""
        return self._sink.session(job)

    @property
    def _servers(self) -> Servers:
        return Servers(self.servers, self.security)

    @property
    def _sink(self) -> KafkaSink:
        topic = self.topic
        if not (isinstance(topic, str) or (topic is None and self.topic_column)):
            raise BadConfig(
                "one_topic",
                "A sink writes to one topic, or to the one that a column names.",
                next="Give one name, or topic_column=….",
            ).at(sink=self.name)
        if isinstance(self.headers, bool):
            raise BadConfig(
                "headers_column",
                f"headers={self.headers} says nothing to a sink.",
                next="Name the column that holds the headers.",
            ).at(sink=self.name)
        if self.value is not None and self.serializer is not None:
            raise BadConfig(
                "two_values",
                "value= and serializer= both say what a message's value is.",
                next="Give one of them.",
            ).at(sink=self.name)
        given = self.transaction_timeout
        if given is not None and (type(given) not in (int, float) or not 1 <= given < math.inf):
            raise BadConfig(
                "transaction_timeout",
                f"transaction_timeout={given!r} is no time for an epoch and a restart.",
                next="Give seconds; 900 is the brokers' usual limit.",
            ).at(sink=self.name)
        return KafkaSink(
            name=self.name,
            servers=self._servers,
            columns=Columns(
                topic=topic,
                key=self.key,
                value=self.value,
                headers=self.headers,
                partition=self.partition,
                topic_column=self.topic_column,
                serializer=self.serializer,
            ),
            keep_rows=self.keep_rows,
            parallel=self.parallel,
            timeout_ms=None if self.transaction_timeout is None else int(self.transaction_timeout * 1000),
            prefix=self.prefix,
            producer=dict(self.producer),
        )
