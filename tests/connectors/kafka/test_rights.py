"""Logging in: the rights that writing needs, what is said without them, and passwords that are seen nowhere."""

from __future__ import annotations

import json
import logging
import traceback
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.rig.process import until
from transactions import open_of, seen, stranger, table

import fencepost as fp
from fencepost.connectors.kafka.coordinator import Coordinator
from fencepost.errors import BadConfig, FencepostError, OperatorNeeded, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import WriterNumber
from fencepost.testing import SinkDriver

Start = Callable[..., SinkDriver]
CANARY = "app-secret"
"""The password of the shared broker's user `app`."""


def security(user: str, password: str = "") -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password or f"{user}-secret",
    }


@contextmanager
def granted(broker: Broker, *rules: tuple[ResourceType, str, AclOperation]):
    """Rights of the user `weak`, for a while; those on transactional ids are for all that begin so."""
    admin = broker.admin()
    bindings = [
        AclBinding(
            kind,
            name,
            ResourcePatternType.PREFIXED if kind is ResourceType.TRANSACTIONAL_ID else ResourcePatternType.LITERAL,
            "User:weak",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for kind, name, operation in rules
    ]
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, "User:weak", None, AclOperation.ANY, AclPermissionType.ANY
    )

    def there() -> set[tuple[Any, ...]]:
        return {(one.restype, one.name, one.operation) for one in admin.describe_acls(everything).result(20)}

    try:
        for done in admin.create_acls(bindings).values() if bindings else ():
            done.result(20)
        until(lambda: set(rules) <= there(), "the rights were granted")
        yield
    finally:
        for deleted in admin.delete_acls([everything]).values():
            deleted.result(20)
        until(lambda: not there(), "the rights were taken away")


@pytest.fixture
def prefix() -> str:
    return f"team-{uuid.uuid4().hex[:8]}"


def weak(broker: Broker, topic: str, prefix: str, **settings: Any) -> fp.Kafka:
    return fp.Kafka(topic, servers=broker.sasl_servers, security=security("weak"), key="k", prefix=prefix, **settings)


def test_a_wrong_password_is_said_to_be_one(broker: Broker, topic: str) -> None:
    sink = fp.Kafka(topic, servers=broker.sasl_servers, security=security("app", "not-it"))
    with pytest.raises(BadConfig) as caught:
        sink.session("job").preflight(table(1).schema, "append")
    assert "log_in_refused" == caught.value.code
    assert "not-it" not in str(caught.value)


class TestRights:
    def test_write_on_the_topic_and_on_ids_that_begin_so_is_all_it_takes(
        self, broker: Broker, topic: str, prefix: str, start: Start
    ) -> None:
        """The life of two drivers: WRITE implies DESCRIBE, and no right on the cluster is needed."""
        sink = weak(broker, topic, prefix)
        with granted(
            broker,
            (ResourceType.TOPIC, topic, AclOperation.WRITE),
            (ResourceType.TRANSACTIONAL_ID, prefix, AclOperation.WRITE),
        ):
            first = start(sink)
            first.run(0, table(1))
            first.run(1, table(2))
            left = first.pre_commit(2, table(3))
            second = start(sink, writer=2)
            assert Outcome.DONE == second.commit(2, left)
            first.pre_commit(3, table(666))
            (orphan,) = second.session.orphans(WriterNumber(2))
            second.session.abort(orphan)
            second.run(3, table(4))
            driver = start(weak(broker, topic, prefix, parallel=True, name=f"parallel-{topic}"), writer=3)
            assert () == driver.session.orphans(WriterNumber(99))
        assert [1, 2, 3, 4] == seen(broker, topic)
        assert [] == open_of(broker, sink)

    @pytest.mark.parametrize("reads", [True, False])
    def test_read_on_the_topic_lets_it_tell_what_the_coordinator_forgot(
        self, broker: Broker, topic: str, prefix: str, start: Start, reads: bool
    ) -> None:
        """Without it nothing is guessed."""
        more = [(ResourceType.TOPIC, topic, AclOperation.READ)] * reads
        with granted(
            broker,
            (ResourceType.TOPIC, topic, AclOperation.WRITE),
            (ResourceType.TRANSACTIONAL_ID, prefix, AclOperation.WRITE),
            *more,
        ):
            sink = weak(broker, topic, prefix)
            driver = start(sink)
            handle = driver.run(0, table(1))
            stranger(broker, handle.body["transactional_id"])
            second = start(sink, writer=2)
            if reads:
                assert Outcome.DONE == second.commit(0, handle)
                return
            with pytest.raises(OperatorNeeded) as caught:
                second.commit(0, handle)
            assert "outcome_unknown" == caught.value.code

    @pytest.mark.parametrize(
        "rules",
        [
            (),
            (("topic", AclOperation.DESCRIBE),),
            (("topic", AclOperation.WRITE),),
            (("topic", AclOperation.WRITE), ("ids", AclOperation.DESCRIBE)),
            (("topic", AclOperation.DESCRIBE), ("ids", AclOperation.WRITE)),
            (("ids", AclOperation.WRITE),),
        ],
        ids=lambda rules: " and ".join(f"{operation.name} on {what}" for what, operation in rules) or "none",
    )
    def test_less_is_refused_with_the_rights_that_are_missing(
        self, broker: Broker, topic: str, prefix: str, start: Start, rules: tuple[tuple[str, AclOperation], ...]
    ) -> None:
        kinds = {"topic": (ResourceType.TOPIC, topic), "ids": (ResourceType.TRANSACTIONAL_ID, prefix)}
        with granted(broker, *((*kinds[what], operation) for what, operation in rules)):
            with pytest.raises(TargetRefused) as caught:
                start(weak(broker, topic, prefix)).pre_commit(0, table(1))
            assert "not_allowed" == caught.value.code
            assert "WRITE on the topic" in caught.value.next
        assert [] == seen(broker, topic)

    def test_no_right_on_a_topic_that_a_row_names_is_said_in_the_epoch(
        self, broker: Broker, topic: str, prefix: str, start: Start
    ) -> None:
        """The client drops the messages and tells the reason to its log only."""
        other = broker.create_topic(f"{topic}-other", partitions=1)
        rows = table(1, t=[other])
        with granted(
            broker,
            (ResourceType.TOPIC, topic, AclOperation.WRITE),
            (ResourceType.TOPIC, other, AclOperation.DESCRIBE),
            (ResourceType.TRANSACTIONAL_ID, prefix, AclOperation.WRITE),
        ):
            driver = start(weak(broker, topic, prefix, topic_column="t"), schema=rows.schema)
            with pytest.raises(FencepostError) as caught:
                driver.pre_commit(0, rows)
        assert caught.value.code in {"transaction_refused", "not_allowed"}
        assert ([], []) == (seen(broker, topic), seen(broker, other))


class TestSecrets:
    def test_a_password_is_in_no_handle_log_or_repr(
        self, broker: Broker, topic: str, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        for name in ("fencepost", "fencepost.librdkafka", "kafka"):
            caplog.set_level(logging.DEBUG, logger=name)
        sink = fp.Kafka(topic, servers=broker.sasl_servers, security=security("app"), key="k", transaction_timeout=5)
        driver = start(sink)
        handle = driver.run(0, table(1))
        driver.session.rollback()
        left = driver.pre_commit(1, table(2))
        second = start(sink, writer=2)
        assert Outcome.DONE == second.commit(1, left)
        assert [] == [orphan.id for orphan in second.session.orphans(WriterNumber(2))]
        texts = [json.dumps(asdict(handle)), json.dumps(asdict(left))]
        in_tasks = replace(sink, parallel=True).in_tasks("job")
        texts += [repr(sink), str(sink), repr(sink.cluster), repr(in_tasks)]
        texts += [repr(sink.capabilities), repr(driver.session), repr(driver.owner)]
        assert [] == [text for text in texts if CANARY in text]
        assert [] == [record.name for record in caplog.records if CANARY in record.getMessage()]
        assert caplog.records, "nothing was logged at all"

    def test_a_password_that_is_wrong_is_in_no_error(
        self,
        broker: Broker,
        topic: str,
        start: Start,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setitem(Coordinator.__init__.__kwdefaults__, "patience", 1.0)
        caplog.set_level(logging.DEBUG)
        sink = fp.Kafka(topic, servers=broker.sasl_servers, security=security("app", "canary-of-a-password"), key="k")
        with pytest.raises(FencepostError) as caught:
            start(sink)
        assert "security=" in caught.value.next or "password" in caught.value.next
        assert "canary-of-a" not in "".join(traceback.format_exception(caught.value))
        assert [] == [record.name for record in caplog.records if "canary-of-a" in record.getMessage()]
