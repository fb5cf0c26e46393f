"""Kafka topics as a source: Spark's own connector, told what exactly-once needs. Never skips a lost record."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal

from fencepost.errors import BadConfig
from fencepost.kafka_servers import Servers

Start = str | datetime | int | Mapping[str, Mapping[int, int]]
"""Where a new job begins: 'earliest', 'latest', a moment, positions. One that has a checkpoint goes on where it was."""

TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")

OURS: Mapping[str, str] = {
    "subscribe": "topics",
    "subscribepattern": "topics=re.compile(…)",
    "assign": "topics, and start={topic: {partition: offset}}",
    "startingoffsets": "start",
    "startingoffsetsbytimestamp": "start",
    "startingtimestamp": "start",
    "kafka.auto.offset.reset": "start",
    "maxoffsetspertrigger": "max_records_per_epoch",
    "includeheaders": "headers",
    "kafka.bootstrap.servers": "servers",
    "kafka.isolation.level": "isolation",
    "kafka.group.id": "the option groupIdPrefix: two jobs of one group would take each other's records",
}
"""Options of Spark's that have an argument here, which checks them."""

PATIENCE: Mapping[str, str] = {
    "kafka.default.api.timeout.ms": "15000",
    "kafka.request.timeout.ms": "15000",
    "fetchOffset.numRetries": "8",
}
"""A broker may be away for two minutes before the query fails. Spark's own values wait three, but in steps of a minute,
in which a job cannot be stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource:
    """Settings of topics that are read. See `fencepost.Kafka`.

    The mistake people make: reading what other jobs write in transactions with `read_uncommitted`, which is Spark's
    default. Rows that the writer took back are then counted. Here the default is `read_committed`.
    """

    connector: ClassVar[str] = "kafka"
    """What a session must bring along to read this."""

    servers: Servers
    topics: tuple[str, ...] | re.Pattern[str]
    start: Start = "earliest"
    max_records_per_epoch: int | None = None
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    headers: bool = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if not isinstance(self.topics, re.Pattern):
            _check_topics(self.topics)
        if self.isolation not in ("read_committed", "read_uncommitted"):
            raise BadConfig(
                "unknown_isolation",
                f"There is no isolation {self.isolation!r}.",
                next="Use 'read_committed', or 'read_uncommitted' to see rows of transactions that may be taken back.",
            )
        most: Any = self.max_records_per_epoch
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise BadConfig(
                "bad_rate", "max_records_per_epoch is no whole number above 0.", next="Use 1 or more, or leave it out."
            )
        for name in self.options:
            _check_option(name)
        self.spark_options()

    def load(self, reader: Any) -> Any:
        """A streaming DataFrame: key, value, topic, partition, offset, timestamp, timestampType (and headers)."""
        reader = reader.format("kafka")
        for name, value in {**self.spark_options(), **self.servers.for_spark()}.items():
            reader = reader.option(name, value)
        return reader.load()

    def spark_options(self) -> dict[str, str]:
        """All but where the servers are and who we are."""
        found = {**_subscription(self.topics), **_beginning(self.start, self.topics), **self.options}
        if not {name.lower() for name in self.options} & {name.lower() for name in PATIENCE}:
            found |= PATIENCE  # all or none: Kafka refuses some mixtures
        found["kafka.isolation.level"] = self.isolation
        if self.max_records_per_epoch is not None:
            found["maxOffsetsPerTrigger"] = str(self.max_records_per_epoch)
        if self.headers:
            found["includeHeaders"] = "true"
        return found


def _check_topics(topics: Any) -> None:
    if isinstance(topics, str) or not topics:
        raise BadConfig("no_topics", "No topic is named.", next="Give topics=('orders',), or a compiled pattern.")
    for topic in topics:
        if not isinstance(topic, str) or not TOPIC.fullmatch(topic):
            raise BadConfig(
                "bad_topic",
                f"{topic!r} is no name of a topic.",
                next="Use letters, digits, dots, underscores and dashes; for many topics, a compiled pattern.",
            )


def _check_option(name: str) -> None:
    low = name.lower()
    if low == "failondataloss":
        raise BadConfig(
            "fail_on_data_loss",
            "failOnDataLoss is not for choice: with false, lost records are skipped without a word.",
            next="Remove the option; if records were lost, the job stops and says so.",
        )
    if low.startswith(("kafka.security.", "kafka.sasl.", "kafka.ssl.")):
        raise BadConfig(
            "option_is_ours", f"The option {name!r} has an argument here.", next="Use security={…}, librdkafka's names."
        )
    if low in OURS:
        raise BadConfig("option_is_ours", f"The option {name!r} has an argument here.", next=f"Use {OURS[low]}.")


def _subscription(topics: tuple[str, ...] | re.Pattern[str]) -> dict[str, str]:
    if not isinstance(topics, re.Pattern):
        return {"subscribe": ",".join(dict.fromkeys(topics))}
    if topics.flags & ~(re.UNICODE | re.IGNORECASE):
        raise BadConfig(
            "bad_pattern", "The pattern has flags that Java does not share.", next="Use no flag but re.IGNORECASE."
        )
    return {"subscribePattern": ("(?i)" if topics.flags & re.IGNORECASE else "") + topics.pattern}


def _beginning(start: Start, topics: tuple[str, ...] | re.Pattern[str]) -> dict[str, str]:
    """Spark's options for where a new job begins."""
    if isinstance(start, str) and start in ("earliest", "latest"):
        return {"startingOffsets": start}
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise BadConfig(
                "naive_time",
                "start has no time zone: it would mean another moment on another machine.",
                next="Give one: datetime(2026, 1, 31, tzinfo=UTC).",
            )
        return _from_time(int(start.timestamp() * 1000))
    if isinstance(start, int) and not isinstance(start, bool):
        if start < 100_000_000_000:
            raise BadConfig(
                "bad_start", "start is no time of our days in milliseconds.", next="Seconds? Multiply them by 1000."
            )
        return _from_time(start)
    if isinstance(start, Mapping):
        return {"startingOffsets": _positions(start, topics)}
    raise BadConfig(
        "bad_start",
        "start is none of the ways to begin.",
        next="Use 'earliest', 'latest', a datetime with a zone, milliseconds, or {topic: {partition: offset}}.",
    )


def _from_time(ms: int) -> dict[str, str]:
    """A partition without a record that young is read from its end; Spark's default is to fail."""
    return {"startingTimestamp": str(ms), "startingOffsetsByTimestampStrategy": "latest"}


def _positions(start: Mapping[str, Any], topics: tuple[str, ...] | re.Pattern[str]) -> str:
    if not isinstance(topics, re.Pattern) and set(start) != set(topics):
        raise BadConfig(
            "bad_start",
            "start names other topics than topics does.",
            next="Give every topic all its partitions; -2 means its first record, -1 its end.",
        )
    for partitions in start.values():
        if not isinstance(partitions, Mapping) or not partitions:
            raise BadConfig("bad_start", "A topic of start has no partitions.", next="{'orders': {0: 500, 1: -2}}.")
        for partition, offset in partitions.items():
            if not all(type(number) is int for number in (partition, offset)) or partition < 0 or offset < -2:
                raise BadConfig(
                    "bad_start",
                    "A partition or an offset of start is no such number.",
                    next="Whole numbers: {'orders': {0: 500, 1: -2}}; -2 means the first record, -1 the end.",
                )
    return json.dumps({topic: {str(p): offset for p, offset in ps.items()} for topic, ps in start.items()})
