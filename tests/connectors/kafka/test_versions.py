"""Clusters whose transaction.version is 0, 1 and 2: the whole life of a transaction, and a writer that will not die."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from fencepost_proof.rig.kafka import Broker
from transactions import SCHEMA, asking, make_scene, open_of, seen, send, stranger, table, wait_for_timeout

import fencepost as fp
from fencepost.connectors.kafka import coordinator
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Handle, WriterNumber
from fencepost.testing import SinkDriver

pytestmark = pytest.mark.in_memory
Start = Callable[..., SinkDriver]
WITH_PARTITION = SCHEMA.append(pa.field("p", pa.int64()))


@pytest.fixture(scope="module", params=[0, 1, 2])
def version(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def cluster(
    version: int, request: pytest.FixtureRequest, root: Path, require: Callable[[str], None]
) -> Iterator[Broker]:
    if version == 2:
        yield request.getfixturevalue("broker")
        return
    require("kafka")
    with Broker(root / f"version-{version}", transaction_version=version, reaper_ms=500) as made:
        yield made


@pytest.fixture
def sink(cluster: Broker) -> fp.Kafka:
    topic = cluster.create_topic(f"versions-{uuid.uuid4().hex[:8]}", partitions=2)
    return fp.Kafka(topic, servers=cluster.servers, key="k", partition="p")


def rows(*values: int, partition: int | None = None) -> pa.Table:
    return table(*values, p=pa.array([partition] * len(values), pa.int64()))


def topic_of(sink: fp.Kafka) -> str:
    assert isinstance(sink.topic, str)
    return sink.topic


def decided(start: Start, sink: fp.Kafka, *values: int) -> tuple[Handle, Producer]:
    """A driver decides an epoch in partition 0 and falls asleep."""
    first = start(sink, schema=WITH_PARTITION)
    handle = first.pre_commit(0, rows(*values, partition=0))
    assert () == first.vote(0, handle)
    (slot,) = first.session._slots  # type: ignore[attr-defined]
    return handle, slot._producer


def sweep(driver: SinkDriver, before: int) -> list[str]:
    found = driver.session.orphans(WriterNumber(before))
    for orphan in found:
        driver.session.abort(orphan)
    return [orphan.body["transactional_id"] for orphan in found]


def test_an_end_fences_its_writer_only_where_the_cluster_has_finalized_it(cluster: Broker, version: int) -> None:
    """Brokers say that they know version 5 in any case; where 0 is finalized it would wedge the transaction."""
    with asking(cluster) as coordinator:
        assert {0: 4, 1: 4, 2: 5}[version] == coordinator.end_version()


def test_epochs_are_committed_by_their_own_producers(cluster: Broker, sink: fp.Kafka, start: Start) -> None:
    driver = start(sink, schema=WITH_PARTITION)
    handles = [driver.run(epoch, rows(epoch)) for epoch in range(7)]
    assert 2 == len({handle.body["transactional_id"] for handle in handles}), "two take turns"
    assert 7 == len({handle.id for handle in handles})
    assert list(range(7)) == seen(cluster, topic_of(sink))
    assert [] == open_of(cluster, sink)


def test_a_second_driver_ends_and_repeats_what_the_first_decided(cluster: Broker, sink: fp.Kafka, start: Start) -> None:
    handle, _ = decided(start, sink, 1, 2)
    second = start(sink, writer=2, schema=WITH_PARTITION)
    assert [Outcome.DONE] * 3 == [second.commit(0, handle) for _ in range(3)]
    assert [Outcome.DONE] * 2 == [start(sink, writer=3, schema=WITH_PARTITION).commit(0, handle) for _ in range(2)]
    assert [1, 2] == seen(cluster, topic_of(sink))
    assert [] == open_of(cluster, sink)


def test_an_orphan_is_aborted_and_its_writer_cannot_bring_it_back(
    cluster: Broker, sink: fp.Kafka, start: Start
) -> None:
    handle, asleep = decided(start, sink, 1)
    second = start(sink, writer=2, schema=WITH_PARTITION)
    assert [handle.body["transactional_id"]] == sweep(second, 2)
    assert [] == sweep(second, 2)
    with pytest.raises(Exception, match=r"TXN_STATE|FENCED|EPOCH"):
        asleep.commit_transaction(20)
    assert Outcome.GONE == second.commit(0, handle)
    second.run(0, rows(2))
    assert [2] == seen(cluster, topic_of(sink))


def test_a_writer_that_goes_on_after_its_transaction_was_ended_adds_nothing(
    cluster: Broker, sink: fp.Kafka, start: Start, version: int
) -> None:
    """Where an end does not fence, it silently opens another transaction under the same producer id and epoch."""
    handle, zombie = decided(start, sink, 1)
    second = start(sink, writer=2, schema=WITH_PARTITION)
    assert Outcome.DONE == second.commit(0, handle)
    wrong = send(zombie, topic_of(sink), 666, partition=1)
    opened = [handle.body["transactional_id"]] if version < 2 else []
    assert opened == open_of(cluster, sink)
    assert bool(opened) == (wrong == [])

    assert Outcome.DONE == second.commit(0, handle), "the topic remembers what the coordinator forgot"
    third = start(sink, writer=3, schema=WITH_PARTITION)
    assert Outcome.DONE == third.commit(0, handle)
    assert opened == open_of(cluster, sink), "a repeated commit ended the zombie's transaction"
    assert opened == sweep(third, 3)
    third.run(1, rows(2, 3))
    third.run(2, rows(4, partition=1))
    assert [1, 2, 3, 4] == seen(cluster, topic_of(sink))
    assert [] == open_of(cluster, sink)


def test_a_zombie_is_not_committed_even_where_somebody_else_holds_up_the_readers(
    cluster: Broker, sink: fp.Kafka, start: Start, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic cannot tell yet, and the coordinator's memory is of the zombie: in doubt, not a commit."""
    monkeypatch.setattr(coordinator, "TOPIC_PATIENCE_S", 2.0)
    other = stranger(cluster)
    other.begin_transaction()
    assert [] == send(other, topic_of(sink), 0, partition=0)
    handle, zombie = decided(start, sink, 1)
    second = start(sink, writer=2, schema=WITH_PARTITION)
    assert Outcome.DONE == second.commit(0, handle)
    send(zombie, topic_of(sink), 666, partition=1)
    answer = second.commit(0, handle)
    assert (Outcome.IN_DOUBT if version < 2 else Outcome.DONE) is answer
    assert [] == seen(cluster, topic_of(sink))
    other.abort_transaction(20)
    assert Outcome.DONE == second.commit(0, handle)
    assert [handle.body["transactional_id"]] * (version < 2) == sweep(second, 2)
    assert [1] == seen(cluster, topic_of(sink))


def test_a_killed_driver_is_recovered(cluster: Broker, tmp_path: Path) -> None:
    scene = make_scene(cluster, tmp_path)
    assert -signal.SIGKILL == scene.run("decide.after=kill@2")
    assert 0 == scene.run()
    assert scene.is_exact(), scene.verdict()
    assert [] == scene.open()


def test_a_transaction_that_timed_out_is_gone(cluster: Broker, start: Start, sink: fp.Kafka) -> None:
    short: Any = fp.Kafka(topic_of(sink), servers=cluster.servers, key="k", partition="p", transaction_timeout=1)
    handle, _ = decided(start, short, 1)
    second = start(sink, writer=2, schema=WITH_PARTITION)
    wait_for_timeout(cluster, handle.body["transactional_id"])
    assert [Outcome.GONE] * 2 == [second.commit(0, handle) for _ in range(2)]
    assert [] == seen(cluster, topic_of(sink))
