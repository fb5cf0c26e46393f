"""The transaction coordinator, asked by name from any process: the one module that knows kafka-python.

kafka-python has every request but no public call for EndTxn, so three of its private names are used here
(`_manager`, `_find_coordinator_ids`, `cluster._coordinators`); tests/sinks/kafka/test_coordinator.py pins them.

Never guesses: what the coordinator does not answer is `Silent`, and an error code is passed on as it came.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kafka import TopicPartition, errors
from kafka.admin import ConfigResource, KafkaAdminClient
from kafka.protocol.admin.transactions import DescribeTransactionsRequest
from kafka.protocol.metadata import CoordinatorType
from kafka.protocol.producer.transaction import EndTxnRequest, WriteTxnMarkersRequest

from fencepost.kafka_servers import Servers

T = TypeVar("T")

logging.getLogger("kafka").addHandler(logging.NullHandler())
"""Where nobody set up logging, its errors about brokers that come and go do not fill the terminal."""
for talkative in ("kafka.admin.client", "kafka.net.connection", "kafka.protocol.parser"):
    # At DEBUG they print settings and bytes, passwords included.
    logging.getLogger(talkative).addFilter(lambda record: record.levelno > logging.DEBUG)

ONGOING = "Ongoing"
COMMITTED = ("PrepareCommit", "CompleteCommit")
ABORTED = ("PrepareAbort", "CompleteAbort")
UNFINISHED = (ONGOING, "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""Open, or its end is still being written to the partitions."""

PATIENCE_S = 10.0
"""How long one question is repeated while brokers are away or a coordinator is being elected."""


UNHEARD = (
    errors.NodeNotReadyError,
    errors.CoordinatorNotAvailableError,
    errors.CoordinatorLoadInProgressError,
    errors.NotCoordinatorError,
)
"""The request did not leave, or came to a broker that did nothing with it."""
PASSING = (*UNHEARD, errors.RetriableError, errors.UnknownBrokerIdError)


class Admin(KafkaAdminClient):  # type: ignore[misc]
    """A client that ends its thread if it cannot connect."""

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except errors.KafkaError:
            self._closed = False
            self.close()
            raise


class Silent(Exception):
    """Nobody answered in time; what happened is not known."""


class Denied(Exception):
    """The cluster answered: no. The error's name is the message."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """What the coordinator says about one id."""

    id: str
    state: str
    pid: int
    epoch: int
    started_ms: int
    timeout_ms: int
    partitions: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Held:
    """A transaction as a partition sees it: readers of committed messages wait at its first one."""

    topic: str
    partition: int
    pid: int
    epoch: int
    first: int
    """The offset of its first message here."""
    last_ms: int
    """When its producer last wrote here, by the producer's clock."""


@dataclass(frozen=True, slots=True)
class Topic:
    """What a topic is, as far as a writer cares."""

    name: str
    id: str
    partitions: int
    writable: bool = True
    """May we write to it? Yes, if we may not know."""


class Coordinator:
    """Asks one cluster; connects at the first question, and again after a failure."""

    def __init__(self, servers: Servers, *, patience: float = PATIENCE_S) -> None:
        self._servers = servers
        self._patience = patience
        self._admin: Any = None
        self._version: int | None = None

    def describe(self, ids: Iterable[str]) -> dict[str, Transaction | None]:
        """The state of each transaction, in one round trip per coordinator; None for an id that nobody knows."""
        wanted = list(ids)
        return self._ask(lambda admin: admin._manager.run(_describe, admin, wanted)) if wanted else {}

    def open_ids(self) -> list[str]:
        """Ids that have a transaction open, as far as we may see them."""
        return self.ids_in([ONGOING])

    def ids_in(self, states: Iterable[str]) -> list[str]:
        """Ids whose last transaction is in one of these states, as far as we may see them."""

        def ask(admin: Any) -> list[str]:
            found = admin.list_transactions(state_filters=list(states))
            return sorted(row.transactional_id for rows in found.values() for row in rows)

        return self._ask(ask)

    def unfinished(self) -> list[Transaction]:
        """Every transaction that is open or being ended, as far as we may see them."""
        found = self.describe(self.ids_in(UNFINISHED))
        return [one for one in found.values() if one is not None and one.state in UNFINISHED]

    def held(self, partitions: Iterable[tuple[str, int]]) -> list[Held]:
        """The transactions that partitions have open, by the word of their leaders; needs READ on the topics."""
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
        """Write the commit markers that a broker forgot; `epoch` is the coordinator's. Needs ALTER on the cluster."""
        for one in held:
            self._mark(one, epoch)

    def _mark(self, held: Held, epoch: int) -> None:
        self._ask(lambda admin: admin._manager.run(_mark_committed, admin, held, epoch))

    def partitions(self) -> dict[str, list[tuple[str, int]]]:
        """Every topic that we may see, with its partitions."""
        found = self._ask(lambda admin: admin.describe_topics())
        return {
            one["name"]: [(one["name"], part["partition_index"]) for part in one["partitions"]]
            for one in found
            if not one["error_code"] and one["name"] != "__transaction_state"
        }

    def end(self, transaction: Mapping[str, Any], *, commit: bool) -> str | None:
        """End a transaction of another process; None, or the name of the error.

        The version is the one noted when it was opened: a repeated end in another version is refused by the broker
        even if the first one went through.
        """
        answer: str | None = self._ask(lambda admin: admin._manager.run(_end, admin, transaction, commit), ending=True)
        return answer

    def end_version(self) -> int:
        """The version of EndTxn for this cluster.

        Version 5 fences the writer that held the transaction, but wedges it for ever where the cluster's finalized
        `transaction.version` is 0, although brokers advertise it.
        """
        if self._version is None:
            self._version = self._ask(_end_version)
        return self._version

    def cluster_id(self) -> str:
        """The cluster's own id."""
        return str(self._ask(lambda admin: admin.describe_cluster())["cluster_id"])

    def topic(self, name: str) -> Topic | None:
        """One topic; None if there is none of this name."""
        (found,) = self._ask(lambda admin: admin.describe_topics([name]))
        if code := found["error_code"]:
            error = _error_name(code)
            if error in ("UnknownTopicOrPartitionError", "InvalidTopicError"):
                return None
            raise Denied(error)
        rights = found.get("authorized_operations") or ["WRITE"]
        return Topic(name, str(found["topic_id"]), len(found["partitions"]), "WRITE" in rights)

    def setting(self, kind: str, resource: str, name: str) -> str | None:
        """One setting of a broker (any, if unnamed) or a topic; None if we may not read it."""

        def ask(admin: Any) -> Any:
            wanted = ConfigResource(kind, resource or str(_any_broker(admin)), configs={name: None})
            return admin.describe_configs([wanted], config_filter="all")

        try:
            ((values,),) = [list(by_name.values()) for by_name in self._ask(ask).values()]
            return str(values[name]["value"])
        except (Denied, KeyError, ValueError):
            return None

    def largest_timeout_ms(self) -> int | None:
        """The longest transaction timeout that the brokers allow; None if we may not know."""
        found = self.setting("BROKER", "", "transaction.max.timeout.ms")
        return None if found is None else int(found)

    def is_compacted(self, topic: str) -> bool:
        """May the topic lose a message that a newer one of its key replaces? Yes, if we may not know."""
        return self.setting("TOPIC", topic, "cleanup.policy") != "delete"

    def close(self) -> None:
        """Let go of the connection."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def _ask(self, question: Callable[[Any], T], *, ending: bool = False) -> T:
        """Repeat a question until it is answered or patience ends.

        An EndTxn whose answer was lost is not repeated: whether it went through is for DescribeTransactions to say.
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
        """The coordinator moved, or the connection is gone."""
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
    (node,) = await _coordinators(admin, [transaction["id"]])
    version = transaction["end_version"]
    request = EndTxnRequest(
        transactional_id=transaction["id"],
        producer_id=transaction["pid"],
        producer_epoch=transaction["epoch"],
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
                coordinator_epoch=-1,  # by hand, as Kafka's own tool does
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
