"""A Kafka topic, to read from or to write to: the settings of both ends."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar, Literal

from fencepost import credential
from fencepost.connectors.kafka import source
from fencepost.connectors.kafka.servers import Servers
from fencepost.contract import (
    Capabilities,
    Dataset,
    Keyed,
    Package,
    Session,
    Sink,
    Source,
    WriteInTask,
    names_of,
    problem_of_deletes,
    problem_of_order,
)
from fencepost.errors import BadConfig, require

Start = str | datetime | int | Mapping[str, Mapping[int, int]]
"""Where a new job begins: 'earliest', 'latest', a time, or offsets. A job with a checkpoint continues from there."""
Serializer = Callable[[Mapping[str, Any]], bytes | None]
"""From a row (a dict of plain Python values) to the message's value; None makes a tombstone."""

LONGEST_MS = 900_000
"""The brokers' default for the longest transaction (`transaction.max.timeout.ms`)."""
SHORT_MS = 60_000
"""With a timeout below this, the brokers are likely to abort a decided transaction sooner or later."""
OURS = frozenset(
    {
        "transactional.id",
        "transaction.timeout.ms",
        "enable.idempotence",
        "acks",
        "request.required.acks",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "bootstrap.servers",
        "metadata.broker.list",
        "enable.gapless.guarantee",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "queue.buffering.max.messages",
        "retries",
        "message.send.max.retries",
    }
)
"""Producer settings that the guarantee depends on."""
NOT_KEPT = (
    "keep_rows=False: if the driver is down for longer than the transaction timeout, the brokers abort what was "
    "decided. The epoch then reruns if none of it is visible; if part of it is, the job stops and an operator has to "
    "choose"
)


def _connector(version: str, clients: str, pool: str) -> tuple[str, ...]:
    return (
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        f"org.apache.kafka:kafka-clients:{clients}",
        f"org.apache.commons:commons-pool2:{pool}",
    )


TESTED = _connector("4.2.0", "3.9.2", "2.13.1")
"""Spark's Kafka connector with all that pyspark does not have; our own tests run with these."""

CONNECTORS = {
    "4.0": _connector("4.0.4", "3.9.1", "2.12.1"),
    "4.1": _connector("4.1.3", "3.9.1", "2.12.1"),
    "4.2": TESTED,
    "4.3": TESTED,
}
"""By release of Spark. 4.1 moved the classes that a connector is made of, so 4.0 and 4.1 need one of their own."""


@dataclass(frozen=True)
class Kafka(Sink, Source):
    """A Kafka topic.

        lines = job.read(fp.Kafka("lines", servers="localhost:9092"))
        job.write(counts, fp.Kafka("counts", servers="localhost:9092", key="word"))

    As a source it has Spark's own columns (key, value, topic, partition, offset, timestamp), and skips what other
    producers aborted. As a sink it writes each epoch in one transaction.

    Note: consumers read uncommitted messages by default, and then see rows that were never decided. Read the result
    with isolation.level=read_committed.
    """

    topic: str | Sequence[str] | re.Pattern[str] | None
    """One name; a source may also read several, or a pattern (`re.compile("orders-.*")`)."""
    _: KW_ONLY
    servers: str | Sequence[str]
    security: Mapping[str, str] = field(default_factory=dict)
    """How to log in, with librdkafka's setting names (security.protocol, sasl.mechanism, sasl.username,
    sasl.password …); a value may also say where to find it: `env:NAME`, `file:/path`."""

    start: Start = "earliest"
    """Reading, at the first start only: 'earliest', 'latest', a datetime, a Unix time in milliseconds, or offsets
    {topic: {partition: offset}}."""
    max_records_per_epoch: int | None = None
    """Reading: the maximum number of records in one epoch."""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """Reading: whether to see rows of open and aborted transactions."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Reading: further options for Spark's Kafka source."""

    key: str | None = None
    """Writing: the column that becomes the message's key."""
    value: str | None = None
    """Writing: the column that becomes the value, text or bytes; by default the whole row as JSON."""
    order_by: str | Sequence[str] | None = None
    """Writing: sort the messages of an epoch by this column, or by these, so that the greatest of a key comes last.
    Needed with `deletes` unless the plan aggregates by the key: `fencepost.contract.Keyed`. Messages of a later epoch
    are always behind those of an earlier one."""
    unique_key: bool = False
    """Writing: no two rows have the same key, so no order is needed. Nothing checks this."""
    deletes: str | None = None
    """Writing: a boolean column, which is not part of the value: where it is true, the message is a tombstone (the key
    without a value), with which a compacted topic forgets the key. Needs `key`."""
    headers: str | bool | None = None
    """Writing: the column that holds the headers. Reading: True adds a column `headers`."""
    partition: str | None = None
    """Writing: the column that holds the partition number; by default the key's hash decides."""
    topic_column: str | None = None
    """Writing: the column that holds each row's topic; rows where it is NULL go to `topic`."""
    serializer: Serializer | None = None
    """Writing: a function from a row (a dict, including the key column) to bytes, instead of JSON. It is called in the
    driver; with `parallel` it is pickled, and called in the tasks too. Times with a zone are in UTC in both."""
    keep_rows: bool = True
    """Writing: keep an epoch's rows until they are visible, so that they can be rewritten if the broker times the
    transaction out. Without it, such an epoch reruns if none of it is visible, and otherwise needs an operator."""
    parallel: bool = False
    """Writing: let the tasks write, one transaction each, for output that is too much for the driver. An epoch's
    transactions become visible one by one, and each writes a marker to every partition it touched: coalesce first. A
    task with up to 64 KiB of rows leaves them to the driver, whose own transaction is faster for so few."""
    transaction_timeout: float | None = None
    """Writing: seconds after which the broker aborts an open transaction; by default 900, or the brokers' limit if that
    is lower. An epoch plus a restart must fit into it."""
    prefix: str = "fencepost"
    """Writing: the start of every transactional id, for clusters that grant access to them by prefix."""
    producer: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Writing: more settings for librdkafka's producer (compression.type, linger.ms …)."""
    name: str = ""
    """By default derived from the topic. The ledger identifies the sink by it, so set it if the topic may change."""

    package: ClassVar[Package | None] = Package(
        "Kafka",
        "spark-sql-kafka-0-10",
        "org.apache.spark.sql.kafka010.KafkaSourceProvider",
        known=CONNECTORS,
    )

    def __post_init__(self) -> None:
        """Derive a name if none was given."""
        credential.hide(self, "security")
        if not self.name:
            named = self.topic if isinstance(self.topic, str) else "topics"
            object.__setattr__(self, "name", f"kafka:{named}")

    @cached_property
    def cluster(self) -> Servers:
        """Its addresses and login, checked at first use."""
        return Servers(self.servers, self.security)

    # --- as a source

    def load(self, reader: Any) -> Any:
        """A streaming DataFrame: key, value, topic, partition, offset, timestamp, timestampType (and headers)."""
        return reader.format("kafka").options(**source.spark_options(self), **self.cluster.for_spark()).load()

    def newest(self, most: int) -> Kafka:
        """Read only what arrives from now on."""
        return replace(self, start="latest", max_records_per_epoch=most)

    # --- as a sink

    def dataset(self) -> Dataset | None:
        """The topic, by the first server; None if each row names its own."""
        first = str(self.cluster.bootstrap).split(",")[0]
        return Dataset(f"kafka://{first}", self.topic) if isinstance(self.topic, str) else None

    @property
    def own_topic(self) -> str | None:
        """The sink's topic; None if every row names its own."""
        assert self.topic is None or isinstance(self.topic, str), "checked when the session or the task was made"
        return self.topic

    @property
    def timeout_ms(self) -> int | None:
        """None: fifteen minutes, or the brokers' limit if that is lower."""
        return None if self.transaction_timeout is None else int(self.transaction_timeout * 1000)

    @property
    def capabilities(self) -> Capabilities:
        """A transaction that has ended stays ended, but the broker may abort an open one by itself."""
        _check(self)
        return Capabilities(
            shape="transaction",
            repeatable=True,
            perishable=True,
            keeps_rows=self.keep_rows,
            atomic=False,  # readers are released partition by partition
            modes=frozenset({"append", "update"}),
            note="" if self.keep_rows else NOT_KEPT,
            names_rows=not self.parallel,
        )

    @property
    def keyed(self) -> Keyed | None:
        """A compacted topic keeps the last message of a key."""
        if self.key is None:
            return None
        order, unique = names_of(self.order_by), self.unique_key
        return Keyed(key=(self.key,), order_by=order, unique=unique, keeps_all=True, deletes=self.deletes)

    def in_tasks(self, job: str) -> WriteInTask | None:
        """With `parallel`, the tasks write, unless they have few rows."""
        _check(self)
        if not self.parallel:
            return None
        _require_clients()
        from fencepost.connectors.kafka import producers  # noqa: PLC0415 - its clients are an extra

        return producers.TaskWriter(job, replace(self, security=self.cluster.login()), producers.FEW_BYTES)

    def session(self, job: str) -> Session:
        """Open the driver's side."""
        _check(self)
        _require_clients()
        from fencepost.connectors.kafka.session import KafkaSession  # noqa: PLC0415 - as above

        return KafkaSession(self, job)

    def timing_notes(self, longest_s: float | None) -> list[str]:
        """The brokers abort a transaction that stays open for too long."""
        lasts, found = self.transaction_timeout or LONGEST_MS / 1000, []
        if longest_s is not None and longest_s >= lasts:
            found.append(
                f"an epoch may take {longest_s:g} s (timeout), but the brokers abort its transaction after {lasts:g} s "
                "(transaction_timeout); set the first well below the second"
            )
        if lasts * 1000 < SHORT_MS:
            found.append(
                f"transaction_timeout is {lasts:g} s; an epoch plus a restart must fit into it, or the brokers abort "
                "what is decided" + (" (it is then rewritten from the kept rows)" * self.keep_rows)
            )
        return found


def _require_clients() -> None:
    require("no_kafka_client", "confluent_kafka", "kafka", extra="kafka")


def _check(sink: Kafka) -> None:
    """Refuse sink settings that mean nothing, contradict each other or would break the guarantee."""
    if not (isinstance(sink.topic, str) or (sink.topic is None and sink.topic_column)):
        raise BadConfig(
            "one_topic",
            "A Kafka sink writes to one topic, or to the topic that a column names.",
            next="Give one topic name, or topic_column='…'.",
        ).at(sink=sink.name)
    if isinstance(sink.headers, bool):
        raise BadConfig(
            "headers_column",
            f"headers={sink.headers} is for reading; a sink needs the name of a column.",
            next="Write headers='…' with the column that holds the headers.",
        ).at(sink=sink.name)
    if sink.value is not None and sink.serializer is not None:
        raise BadConfig(
            "two_values", "value= and serializer= both define the message's value.", next="Give only one of them."
        ).at(sink=sink.name)
    is_keyed = sink.key is not None
    problem = problem_of_deletes(sink.deletes, names_of(sink.key), keyed=is_keyed)
    problem = problem or problem_of_order(sink.order_by, unique_key=sink.unique_key, keyed=is_keyed)
    if sink.parallel and names_of(sink.order_by):
        problem = problem or (
            "order_by= sorts the rows of all tasks, but with parallel=True each task writes its own",
            "Remove one of them",
        )
    if problem:
        raise BadConfig("bad_sink", f"Kafka: {problem[0]}.", next=f"{problem[1]}.").at(sink=sink.name)
    given = sink.transaction_timeout
    if given is not None and (type(given) not in (int, float) or not 1 <= given < math.inf):
        raise BadConfig(
            "transaction_timeout",
            f"transaction_timeout={given!r} does not leave time for an epoch and a restart.",
            next="Give a number of seconds; the brokers' default limit is 900.",
        ).at(sink=sink.name)
    login = {name for name in sink.producer if name.startswith(("sasl.", "ssl.", "security."))}
    if broken := sorted((OURS & {*sink.producer}) | login):
        raise BadConfig(
            "producer_setting",
            f"Producer setting {broken[0]!r} is reserved: exactly-once or the login depends on it.",
            next="Remove it from producer={…}. The timeout is set by transaction_timeout=…, the login by security={…}.",
        ).at(sink=sink.name)
    _ = sink.cluster  # runs its own checks
