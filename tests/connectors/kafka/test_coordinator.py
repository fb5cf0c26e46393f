"""The coordinator, asked by name: what we use of kafka-python, and what a real broker answers."""

from __future__ import annotations

import inspect
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.rig.process import until
from kafka import errors
from kafka.admin import KafkaAdminClient
from kafka.protocol.metadata import CoordinatorType
from kafka.protocol.producer.transaction import EndTxnRequest
from transactions import asking, describe, seen, send, stranger

from fencepost.connectors.kafka.coordinator import PASSING, UNHEARD, Coordinator, Topic
from fencepost.connectors.kafka.fate import Silent


@pytest.fixture
def coordinator(broker: Broker) -> Iterator[Coordinator]:
    with asking(broker) as made:
        yield made


def opened(broker: Broker, topic: str, value: int = 1) -> tuple[Producer, dict[str, Any]]:
    """An open transaction with a row, and the handle's body for it."""
    name = f"coordinator-{uuid.uuid4().hex[:8]}"
    producer = stranger(broker, name)
    producer.begin_transaction()
    assert [] == send(producer, topic, value)
    found = describe(broker, name)
    assert found is not None
    with asking(broker) as one:
        version = one.end_version()
    return producer, {
        "transactional_id": name,
        "producer_id": found.pid,
        "producer_epoch": found.epoch,
        "end_txn_version": version,
    }


def state_of(broker: Broker, body: dict[str, Any]) -> str | None:
    found = describe(broker, body["transactional_id"])
    return None if found is None else found.state.replace("Prepare", "Complete")


class TestOfKafkaPython:
    """If one of these fails after an upgrade, `coordinator.py` is the one module to mend."""

    def test_the_private_names_are_there(self, broker: Broker, coordinator: Coordinator) -> None:
        coordinator.describe(["a"])  # the first question of all makes the topic behind it, and waits for it
        admin = KafkaAdminClient(bootstrap_servers=broker.servers)
        try:
            manager = admin._manager
            assert {"node_id"} <= inspect.signature(manager.send).parameters.keys()
            assert {"key_type"} <= inspect.signature(admin._find_coordinator_ids).parameters.keys()
            assert {"a": 1, "b": 1} == manager.run(_find, admin, ["a", "b"])
            assert hasattr(manager.cluster._coordinators, "clear")
            assert [1] == [node.node_id for node in manager.cluster.brokers()]
            assert 5 == manager.broker_version_data.api_version(EndTxnRequest)
        finally:
            admin.close()

    def test_the_errors_have_the_names_that_are_compared(self) -> None:
        codes = {3: "UnknownTopicOrPartitionError", 105: "TransactionalIdNotFoundError", 0: "NoError"}
        assert codes == {code: errors.for_code(code).__name__ for code in codes}

    def test_a_request_that_was_not_heard_may_be_repeated_and_nothing_else_of_an_end(self) -> None:
        unheard = {14: True, 15: True, 16: True, 47: False, 51: False, 48: False, 90: False, 7: False}
        assert unheard == {code: issubclass(errors.for_code(code), UNHEARD) for code in unheard}
        assert not issubclass(errors.TransactionalIdAuthorizationFailedError, PASSING)
        assert not issubclass(errors.TopicAuthorizationFailedError, PASSING)


async def _find(admin: Any, names: list[str]) -> Any:
    return await admin._find_coordinator_ids(names, key_type=CoordinatorType.TRANSACTION)


class TestAsking:
    def test_an_id_that_nobody_knows_is_none_beside_one_that_is_known(
        self, broker: Broker, topic: str, coordinator: Coordinator
    ) -> None:
        _, body = opened(broker, topic)
        found = coordinator.describe([body["transactional_id"], "nobody"])
        assert None is found["nobody"]
        known = found[body["transactional_id"]]
        assert known is not None
        assert ("Ongoing", body["producer_id"], body["producer_epoch"], 60_000) == (
            known.state,
            known.pid,
            known.epoch,
            known.timeout_ms,
        )
        assert topic == known.partitions[0][0]
        assert abs(known.started_ms / 1000 - time.time()) < 60
        assert body["transactional_id"] in coordinator.open_ids()
        assert None is coordinator.end(body, commit=False)

    def test_no_ids_are_no_question(self) -> None:
        assert {} == Coordinator.describe(Coordinator.__new__(Coordinator), [])

    def test_a_topic_is_known_by_its_id_and_an_unknown_one_is_none(
        self, broker: Broker, topic: str, coordinator: Coordinator
    ) -> None:
        found = coordinator.topic(topic)
        assert isinstance(found, Topic)
        assert (topic, 3) == (found.name, found.partitions)
        assert None is coordinator.topic("no-such-topic")
        broker.delete_topic(topic)
        broker.create_topic(topic, partitions=3)
        again = coordinator.topic(topic)
        assert isinstance(again, Topic)
        assert found.id != again.id

    def test_there_is_no_topic_of_a_bad_name(self, coordinator: Coordinator) -> None:
        assert None is coordinator.topic("not a name!")

    def test_settings_are_read_and_what_is_not_there_is_none(
        self, broker: Broker, topic: str, coordinator: Coordinator
    ) -> None:
        compacted = broker.create_topic(f"{topic}-compacted", cleanup_policy="compact")
        both = broker.create_topic(f"{topic}-both", cleanup_policy="compact,delete")
        assert 900_000 == coordinator.largest_timeout_ms()
        assert None is coordinator.setting("TOPIC", topic, "no.such.setting")
        assert None is coordinator.setting("TOPIC", "no-such-topic", "cleanup.policy")
        asked = (topic, compacted, both, "no-such-topic")
        assert [False, True, True, True] == [coordinator.is_compacted(name) for name in asked]


class TestEnding:
    @pytest.mark.parametrize("commit", [True, False])
    def test_an_end_is_final_and_may_be_repeated(self, broker: Broker, topic: str, commit: bool) -> None:
        _, body = opened(broker, topic)
        ended = "CompleteCommit" if commit else "CompleteAbort"
        with asking(broker) as coordinator:
            assert None is coordinator.end(body, commit=commit)
            assert ended == state_of(broker, body)
            # At once the markers may still be under way; then it is refused, and nothing changes.
            assert coordinator.end(body, commit=commit) in {None, "ConcurrentTransactionsError"}
            wait_until_complete(coordinator, body)
            assert None is coordinator.end(body, commit=commit)
            assert "InvalidTxnStateError" == coordinator.end(body, commit=not commit)
        assert ended == state_of(broker, body)
        assert [1] * commit == seen(broker, topic)

    def test_an_end_in_another_version_is_refused_although_it_went_through(self, broker: Broker, topic: str) -> None:
        _, body = opened(broker, topic)
        with asking(broker) as coordinator:
            assert None is coordinator.end(body, commit=True)
            wait_until_complete(coordinator, body)
            assert coordinator.end({**body, "end_txn_version": 4}, commit=True) is not None
        assert "CompleteCommit" == state_of(broker, body)

    @pytest.mark.parametrize(
        ("other", "error"),
        [
            ({"producer_id": 999_999}, "InvalidProducerIdMappingError"),
            ({"transactional_id": "nobody"}, "InvalidProducerIdMappingError"),
            ({"producer_epoch": 1}, "ProducerFencedError"),
        ],
        ids=str,
    )
    def test_another_transaction_is_not_ended_by_mistake(
        self, broker: Broker, topic: str, coordinator: Coordinator, other: dict[str, Any], error: str
    ) -> None:
        _, body = opened(broker, topic)
        assert error == coordinator.end({**body, **other}, commit=True)
        assert "Ongoing" == state_of(broker, body)
        assert [] == seen(broker, topic)
        assert None is coordinator.end(body, commit=False)


def wait_until_complete(coordinator: Coordinator, body: dict[str, Any]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = coordinator.describe([body["transactional_id"]])[body["transactional_id"]]
        if found is not None and found.state.startswith("Complete"):
            return
        time.sleep(0.02)
    pytest.fail("the markers were never written")


def test_a_broker_that_is_away_is_silence_and_heard_again_when_it_is_back(tmp_path: Path, require: Any) -> None:
    """Frozen, then dead: both end within patience. The transaction and the client outlive it."""
    require("kafka")
    with Broker(tmp_path / "broker") as broker, asking(broker, patience=1) as coordinator:
        broker.create_topic("t", partitions=1)
        _, body = opened(broker, "t")
        assert "Ongoing" == state_of(broker, body)
        assert coordinator.describe([body["transactional_id"]])[body["transactional_id"]] is not None

        broker.pause()
        began = time.monotonic()
        with pytest.raises(Silent):
            coordinator.end(body, commit=True)
        with pytest.raises(Silent):
            coordinator.describe([body["transactional_id"]])
        broker.resume()
        # Whether the end that got no answer went through, only a question tells; mostly it lay in the broker's queue.
        if state_of(broker, body) == "Ongoing":
            coordinator.end(body, commit=True)
        assert "CompleteCommit" == state_of(broker, body)
        # Killed before it wrote the markers, this broker was seen to come back with the transaction committed for its
        # coordinator and open for its readers, for ever.
        until(lambda: seen(broker, "t") == [1], "the row was visible")

        broker.kill()
        with pytest.raises(Silent):
            coordinator.describe([body["transactional_id"]])
        with pytest.raises(Silent):
            coordinator.end(body, commit=True)
        assert time.monotonic() - began < 30
        broker.start()
        with asking(broker, patience=30) as patient:
            assert "CompleteCommit" == patient.describe([body["transactional_id"]])[body["transactional_id"]].state  # type: ignore[union-attr]
        found = coordinator.describe([body["transactional_id"]])[body["transactional_id"]]
        assert found is not None
        assert "CompleteCommit" == found.state
        assert None is coordinator.end(body, commit=True)
        until(lambda: seen(broker, "t") == [1], "the row was visible again")
