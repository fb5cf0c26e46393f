"""Asks a cluster about transactions and ends them by id, from any process.

Only this module uses kafka-python, which talks to the coordinator. Where the coordinator has forgotten a transaction, a
read_committed consumer looks in the topic itself: the log forgets only when retention or compaction removes a message.

kafka-python has every request but no public call for EndTxn, so three of its private names are used here
(`_manager`, `_find_coordinator_ids`, `cluster._coordinators`); tests/connectors/kafka/test_coordinator.py pins them.

Never guesses: no answer from the coordinator is `Silent`, and an error code is passed on unchanged.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place
from kafka import TopicPartition, errors
from kafka.admin import ConfigResource, KafkaAdminClient, OffsetSpec
from kafka.protocol.admin.transactions import DescribeTransactionsRequest
from kafka.protocol.metadata import CoordinatorType
from kafka.protocol.producer.transaction import EndTxnRequest, WriteTxnMarkersRequest

from fencepost.connectors.kafka.fate import ONGOING, UNFINISHED, Denied, Fate, Held, Silent, Transaction
from fencepost.connectors.kafka.servers import Servers

T = TypeVar("T")

logging.getLogger("kafka").addHandler(logging.NullHandler())
"""Without it, kafka-python's errors about brokers that come and go fill the terminal of a program without logging."""
for talkative in ("kafka.admin.client", "kafka.net.connection", "kafka.protocol.parser"):
    # At DEBUG they print settings and bytes, passwords included.
    logging.getLogger(talkative).addFilter(lambda record: record.levelno > logging.DEBUG)

PATIENCE_S = 10.0
"""How long a request is retried while brokers are down or a coordinator is being elected."""
TOPIC_PATIENCE_S = 15.0
"""How long a topic may take to return a message."""

UNHEARD = (
    errors.NodeNotReadyError,
    errors.CoordinatorNotAvailableError,
    errors.CoordinatorLoadInProgressError,
    errors.NotCoordinatorError,
)
"""The request was not sent, or reached a broker that did nothing with it."""
PASSING = (*UNHEARD, errors.RetriableError, errors.UnknownBrokerIdError)
LEADER_AWAY = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
"""The partition's leader is away, and may answer later."""


class Admin(KafkaAdminClient):  # type: ignore[misc]
    """A client that stops its thread if it cannot connect."""

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except errors.KafkaError:
            self._closed = False
            self.close()
            raise


@dataclass(frozen=True, slots=True)
class Topic:
    """What a writer needs to know about a topic."""

    name: str
    id: str
    partitions: int
    writable: bool = True
    """May we write to it? True if we are not allowed to know."""


class Coordinator:
    """Asks one cluster; connects at the first request, and reconnects after a failure."""

    def __init__(self, servers: Servers, *, patience: float = PATIENCE_S) -> None:
        self._servers = servers
        self._patience = patience
        self._admin: Any = None
        self._version: int | None = None

    def describe(self, ids: Iterable[str]) -> dict[str, Transaction | None]:
        """The state of each transaction, in one round trip per coordinator; None for an unknown id."""
        wanted = list(ids)
        return self._ask(lambda admin: admin._manager.run(_describe, admin, wanted)) if wanted else {}

    def open_ids(self) -> list[str]:
        """Ids with an open transaction, as far as we are allowed to see them."""
        return self.ids_in([ONGOING])

    def ids_in(self, states: Iterable[str]) -> list[str]:
        """Ids whose last transaction is in one of these states, as far as we are allowed to see them."""

        def ask(admin: Any) -> list[str]:
            found = admin.list_transactions(state_filters=list(states))
            return sorted(row.transactional_id for rows in found.values() for row in rows)

        return self._ask(ask)

    def unfinished(self) -> list[Transaction]:
        """Every transaction that is open or being ended, as far as we are allowed to see them."""
        found = self.describe(self.ids_in(UNFINISHED))
        return [one for one in found.values() if one is not None and one.state in UNFINISHED]

    def held(self, partitions: Iterable[tuple[str, int]]) -> list[Held]:
        """The transactions open on partitions, as their leaders report them; needs READ on the topics."""
        wanted = [TopicPartition(*one) for one in partitions]
        return [
            Held(
                topic=place.topic,
                partition=place.partition,
                pid=one.producer_id,
                epoch=one.producer_epoch,
                first=one.current_transaction_start_offset,
                last_ms=one.last_timestamp,
            )
            for place, found in sorted(self._ask(lambda admin: admin.describe_producers(wanted)).items())
            for one in found.active_producers
            if one.current_transaction_start_offset >= 0
        ]

    def mark_committed(self, held: Iterable[Held], epoch: int) -> None:
        """Write the commit markers that a broker lost; `epoch` is the coordinator's. Needs ALTER on the cluster."""
        for one in held:
            self._mark(one, epoch)

    def _mark(self, held: Held, epoch: int) -> None:
        self._ask(lambda admin: admin._manager.run(_mark_committed, admin, held, epoch))

    def partitions(self) -> dict[str, list[tuple[str, int]]]:
        """Every topic that we are allowed to see, with its partitions."""
        found = self._ask(lambda admin: admin.describe_topics())
        return {
            one["name"]: [(one["name"], part["partition_index"]) for part in one["partitions"]]
            for one in found
            if not one["error_code"] and one["name"] != "__transaction_state"
        }

    def ends(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The offset after the last message of each partition, whether or not readers are there yet."""
        return self._offsets(partitions, OffsetSpec.LATEST)

    def starts(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The offset of the oldest message that each partition still has."""
        return self._offsets(partitions, OffsetSpec.EARLIEST)

    def _offsets(self, partitions: Iterable[tuple[str, int]], which: Any) -> dict[tuple[str, int], int]:
        wanted = {TopicPartition(*one): which for one in partitions}
        found = self._ask(lambda admin: admin.list_partition_offsets(wanted)) if wanted else {}
        return {(place.topic, place.partition): int(one.offset) for place, one in found.items()}

    def end(self, transaction: Mapping[str, Any], *, commit: bool) -> str | None:
        """End a transaction of another process; returns None, or the name of the error.

        The version is the one recorded when it was opened: the broker refuses to repeat an end in another version, even
        if the first one succeeded.
        """
        answer: str | None = self._ask(lambda admin: admin._manager.run(_end, admin, transaction, commit), ending=True)
        return answer

    def end_version(self) -> int:
        """The version of EndTxn to use with this cluster.

        Version 5 fences the producer that held the transaction. But where the cluster's finalized `transaction.version`
        is 0 it leaves the transaction stuck permanently, although the brokers advertise it.
        """
        if self._version is None:
            self._version = self._ask(_end_version)
        return self._version

    def cluster_id(self) -> str:
        """The cluster's own id."""
        return str(self._ask(lambda admin: admin.describe_cluster())["cluster_id"])

    def topic(self, name: str) -> Topic | None:
        """One topic; None if it does not exist."""
        (found,) = self._ask(lambda admin: admin.describe_topics([name]))
        if code := found["error_code"]:
            error = _error_name(code)
            if error in ("UnknownTopicOrPartitionError", "InvalidTopicError"):
                return None
            raise Denied(error)
        rights = found.get("authorized_operations") or ["WRITE"]
        return Topic(name, str(found["topic_id"]), len(found["partitions"]), "WRITE" in rights)

    def setting(self, kind: str, resource: str, name: str) -> str | None:
        """One setting of a topic or a broker (any broker if `resource` is ""); None if we may not read it."""

        def ask(admin: Any) -> Any:
            wanted = ConfigResource(kind, resource or str(_any_broker(admin)), configs={name: None})
            return admin.describe_configs([wanted], config_filter="all")

        try:
            ((values,),) = [list(by_name.values()) for by_name in self._ask(ask).values()]
            return str(values[name]["value"])
        except (Denied, KeyError, ValueError):
            return None

    def largest_timeout_ms(self) -> int | None:
        """The longest transaction timeout that the brokers allow; None if we are not allowed to know."""
        found = self.setting("BROKER", "", "transaction.max.timeout.ms")
        return None if found is None else int(found)

    def is_compacted(self, topic: str) -> bool:
        """May the topic drop a message once a newer one has its key? True if we are not allowed to know."""
        return self.setting("TOPIC", topic, "cleanup.policy") != "delete"

    @contextmanager
    def witness(self) -> Iterator[Callable[[str, int, int], Fate]]:
        """A function that looks for the first message of a transaction (topic, partition, offset): can a read_committed
        consumer see it? Raises `Silent` if the topic does not answer now.
        """
        consumer = Consumer(
            {
                **self._servers.for_writing(),
                "group.id": f"fencepost-witness-{uuid.uuid4().hex}",  # the client requires one; nothing is stored in it
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
                "logger": logging.getLogger("fencepost.librdkafka"),
            }
        )
        is_compacted = cache(self.is_compacted)
        try:
            yield lambda topic, *place: _look_for(consumer, Place(topic, *place), compacted=is_compacted(topic))
        finally:
            consumer.close()

    def close(self) -> None:
        """Close the connection."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def _ask(self, question: Callable[[Any], T], *, ending: bool = False) -> T:
        """Retry a request until it is answered or patience runs out.

        An EndTxn whose answer was lost is not retried: DescribeTransactions says whether it took effect.
        """
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return question(self._connect(deadline))
            except PASSING as error:
                if time.monotonic() > deadline or (ending and not isinstance(error, UNHEARD)):
                    self.close()
                    raise Silent(type(error).__name__) from error
                self._look_again(error)
                time.sleep(0.05)
            except errors.KafkaError as error:
                raise Denied(type(error).__name__) from error

    def _connect(self, deadline: float) -> Any:
        if self._admin is None:
            self._admin = Admin(
                **self._servers.for_asking(),
                bootstrap_timeout_ms=int(max(1.0, deadline - time.monotonic()) * 1000),
                request_timeout_ms=int(self._patience * 1000),
                reconnect_backoff_max_ms=500,
            )
        return self._admin

    def _look_again(self, error: Exception) -> None:
        """Find the coordinator again, or reconnect."""
        if isinstance(error, UNHEARD) and self._admin is not None:
            self._admin._manager.cluster._coordinators.clear()
        else:
            self.close()


async def _describe(admin: Any, ids: list[str]) -> dict[str, Transaction | None]:
    found: dict[str, Transaction | None] = {}
    for node, mine in (await _coordinators(admin, ids)).items():
        response = await admin._manager.send(DescribeTransactionsRequest(transactional_ids=mine), node_id=node)
        for row in response.transaction_states:
            name = _error_name(row.error_code)
            if name == "TransactionalIdNotFoundError":
                found[row.transactional_id] = None
                continue
            _raise(name)
            found[row.transactional_id] = Transaction(
                id=row.transactional_id,
                state=row.transaction_state,
                pid=row.producer_id,
                epoch=row.producer_epoch,
                started_ms=row.transaction_start_time_ms,
                timeout_ms=row.transaction_timeout_ms,
                partitions=tuple((topic.topic, number) for topic in row.topics for number in topic.partitions),
            )
    return found


async def _end(admin: Any, transaction: Mapping[str, Any], commit: bool) -> str | None:
    (node,) = await _coordinators(admin, [transaction["transactional_id"]])
    version = transaction["end_txn_version"]
    request = EndTxnRequest(
        transactional_id=transaction["transactional_id"],
        producer_id=transaction["producer_id"],
        producer_epoch=transaction["producer_epoch"],
        committed=commit,
        min_version=version,
        max_version=version,
    )
    name = _error_name((await admin._manager.send(request, node_id=node)).error_code)
    if issubclass(getattr(errors, name), UNHEARD):
        _raise(name)
    return None if name == "NoError" else name


async def _mark_committed(admin: Any, held: Held, epoch: int) -> None:
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    topic = marker.WritableTxnMarkerTopic(name=held.topic, partition_indexes=[held.partition])
    request = WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=held.pid,
                producer_epoch=epoch,
                transaction_result=True,
                topics=[topic],
                coordinator_epoch=-1,  # an operator's marker, as Kafka's own tool writes it
            )
        ]
    )
    place = TopicPartition(held.topic, held.partition)
    ((leader, _),) = (await admin._async_get_leader_for_partitions([place])).items()
    answer = await admin._manager.send(request, node_id=leader)
    for result in answer.markers:
        for one in (one for topics in result.topics for one in topics.partitions):
            _raise(_error_name(one.error_code))


async def _coordinators(admin: Any, ids: list[str]) -> dict[int, list[str]]:
    found = await admin._find_coordinator_ids(ids, key_type=CoordinatorType.TRANSACTION)
    return {node: [name for name in ids if found[name] == node] for node in set(found.values())}


def _end_version(admin: Any) -> int:
    finalized = admin.describe_features().get("transaction.version", {}).get("finalized", (0, 0))[1]
    known = int(admin._manager.broker_version_data.api_version(EndTxnRequest))
    return min(known, 5 if finalized >= 2 else 4)


def _any_broker(admin: Any) -> int:
    return int(next(iter(admin._manager.cluster.brokers())).node_id)


def _error_name(code: int) -> str:
    return str(errors.for_code(code).__name__)


def _raise(name: str) -> None:
    if name != "NoError":
        raise getattr(errors, name)


def _look_for(consumer: Consumer, first: Place, *, compacted: bool) -> Fate:
    try:
        low, _ = consumer.get_watermark_offsets(first, timeout=TOPIC_PATIENCE_S)
        if low == OFFSET_INVALID or low > first.offset:
            return Fate.UNKNOWN
        consumer.assign([first])
        return _first_seen(consumer, first.offset, compacted=compacted)
    except KafkaException as error:
        return _no_answer(error.args[0])


def _first_seen(consumer: Consumer, offset: int, *, compacted: bool) -> Fate:
    deadline = time.monotonic() + TOPIC_PATIENCE_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None:
            continue
        error, at = message.error(), message.offset() or 0
        if error is None and at == offset:
            return Fate.COMMITTED
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            continue  # about the consumer group, which is not used here
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            return _no_answer(error)
        # A later message, or the end of the partition: readers are past the message. While its transaction is still
        # open they are not: they wait at its first message.
        if at > offset:
            return Fate.UNKNOWN if compacted else Fate.ABORTED
        return Fate.OPEN
    raise Silent("the topic could not be read")


def _no_answer(error: KafkaError) -> Fate:
    if error.code() in LEADER_AWAY:
        raise Silent(error.name())
    return Fate.UNKNOWN
