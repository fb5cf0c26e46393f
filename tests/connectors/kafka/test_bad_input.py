"""Clusters, rights, topics and strangers as they come: refused with the fix, or survived; never a loss."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewPartitions
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.rig.process import free_ports
from killing import FAILED, FENCED, wait, wait_until_stopped
from transactions import (
    SCHEMA,
    TopicScene,
    describe,
    make_scene,
    open_of,
    seen,
    send,
    stranger,
    table,
)

import fencepost as fp
from fencepost.connectors.kafka import producers, session
from fencepost.connectors.kafka.coordinator import Coordinator
from fencepost.errors import EpochFailed, FencepostError, Retryable
from fencepost.protocol import epoch as protocol_epoch
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import WriterNumber
from fencepost.testing import SinkDriver

Start = Callable[..., SinkDriver]
VANISHED = -signal.SIGKILL


def refused(step: Callable[[], object]) -> FencepostError:
    with pytest.raises(FencepostError) as caught:
        step()
    return caught.value


class TestAtTheStart:
    @pytest.mark.serial
    def test_no_broker_is_said_within_seconds(self, start: Start) -> None:
        (port,) = free_ports(1)
        began = time.monotonic()
        error = refused(lambda: start(fp.Kafka("t", servers=f"127.0.0.1:{port}")))
        assert time.monotonic() - began < 15
        assert ("target_silent", True) == (error.code, isinstance(error, Retryable))
        assert all(word in str(error) for word in ("job 'job'", "sink 'kafka:t'", "servers=", "security="))

    def test_a_topic_that_is_not_there(self, broker: Broker, start: Start) -> None:
        error = refused(lambda: start(fp.Kafka("nowhere", servers=broker.servers)))
        assert ("no_topic", True) == (error.code, "kafka-topics.sh --create" in error.next)

    def test_a_timeout_above_what_the_brokers_allow(self, broker: Broker, topic: str, start: Start) -> None:
        error = refused(lambda: start(fp.Kafka(topic, servers=broker.servers, transaction_timeout=901)))
        assert ("transaction_timeout", True) == (error.code, "901000 ms, the brokers' limit is 900000 ms" in str(error))

    def test_a_timeout_above_what_brokers_allow_that_do_not_say_so(
        self, broker: Broker, topic: str, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Coordinator, "largest_timeout_ms", lambda self: None)
        driver = start(fp.Kafka(topic, servers=broker.servers, transaction_timeout=901))
        assert "transaction_timeout" == refused(lambda: driver.pre_commit(0, table(1))).code


class TestTheTopic:
    def test_deleted_while_running(self, broker: Broker, topic: str, start: Start) -> None:
        sink = fp.Kafka(topic, servers=broker.servers, key="k", producer={"topic.metadata.propagation.max.ms": "500"})
        driver = start(sink)
        driver.run(0, table(1))
        broker.delete_topic(topic)
        error = refused(lambda: driver.pre_commit(1, table(2)))
        assert ("no_topic", True) == (error.code, "reruns" in error.safe)
        assert [] == open_of(broker, sink)
        assert topic not in broker.admin().list_topics(timeout=20).topics, (
            "it was made again, with the brokers' defaults"
        )

    def test_made_anew_under_its_old_name_is_another_target(self, broker: Broker, tmp_path: Path) -> None:
        scene = make_scene(broker, tmp_path)
        assert 0 == scene.run()
        (topic,) = scene.targets
        broker.delete_topic(topic)
        broker.create_topic(topic, partitions=2)
        longer = TopicScene(scene.folder, scene.targets, numbers=(*scene.numbers, 99), broker=broker)
        assert FAILED == longer.run()
        assert longer.error().startswith("[target_replaced]")

    def test_gets_more_partitions_while_running(self, broker: Broker, topic: str, start: Start) -> None:
        sink = fp.Kafka(topic, servers=broker.servers, key="k", producer={"topic.metadata.refresh.interval.ms": "300"})
        driver = start(sink)
        driver.run(0, table(*range(50)))
        admin = broker.admin()
        admin.create_partitions([NewPartitions(topic, 12)])[topic].result(20)
        for epoch in range(1, 6):
            driver.run(epoch, table(*range(epoch * 50, epoch * 50 + 50)))
            time.sleep(0.1)
        assert list(range(300)) == seen(broker, topic)


class TestStrangers:
    """A foreign producer takes the id of an epoch that runs. Never a wrong decision."""

    @pytest.mark.parametrize(
        ("when", "writes"),
        [("kafka.begun", False), ("kafka.sent", True), ("kafka.flushed", False), ("kafka.flushed", True)],
    )
    def test_before_the_vote_the_epoch_fails(  # noqa: PLR0917 - fixtures and cases
        self, broker: Broker, topic: str, start: Start, monkeypatch: pytest.MonkeyPatch, when: str, writes: bool
    ) -> None:
        sink = fp.Kafka(topic, servers=broker.servers, key="k")
        driver = start(sink)
        taken = []

        def meet(point: str) -> None:
            if point == when:
                monkeypatch.undo()
                other = stranger(broker, driver.session._slots[0].id)  # type: ignore[attr-defined]
                taken.append(other)
                if writes:
                    other.begin_transaction()
                    assert [] == send(other, topic, 666)

        monkeypatch.setattr(session.faults, "reach", meet)
        error = refused(lambda: driver.pre_commit(0, table(1)))
        assert (True, True) == (isinstance(error, EpochFailed), error.code in {"vote_failed", "producer_fenced"}), error
        (other,) = taken
        if writes:
            assert 1 == len(open_of(broker, sink)), "the stranger's own was touched"
            other.abort_transaction(20)
        driver.session.rollback()
        driver.run(0, table(1))
        assert [1] == seen(broker, topic)

    def test_after_the_vote_the_stranger_is_not_committed_in_our_place(
        self, broker: Broker, topic: str, start: Start
    ) -> None:
        sink = fp.Kafka(topic, servers=broker.servers, key="k")
        driver = start(sink)
        handle = driver.pre_commit(0, table(1))
        assert () == driver.vote(0, handle)
        other = stranger(broker, handle.body["transactional_id"])
        other.begin_transaction()
        assert [] == send(other, topic, 666)
        assert Outcome.GONE == driver.commit(0, handle)
        other.abort_transaction(20)
        assert [] == seen(broker, topic)

    def test_two_jobs_with_one_prefix_on_one_topic_do_not_disturb_each_other(
        self, broker: Broker, topic: str, start: Start
    ) -> None:
        sinks = [fp.Kafka(topic, servers=broker.servers, key="k", prefix="shared") for _ in range(2)]
        one, two = (start(sink, job=f"job-{number}") for number, sink in enumerate(sinks))
        left = one.pre_commit(0, table(1))
        two.run(0, table(2))
        assert () == two.session.orphans(WriterNumber(99))
        assert () == one.vote(0, left)
        assert Outcome.DONE == one.commit(0, left)
        copy = start(sinks[0], job="job-0", lineage="cccccccc-0000-4000-8000-000000000003", writer=9)
        one.pre_commit(1, table(3))
        assert () == copy.session.orphans(WriterNumber(99)), "same name, another checkpoint"
        one.session.rollback()
        assert [1, 2] == seen(broker, topic)


class TestCommits:
    """A decided transaction is never aborted, whatever its own producer says."""

    @pytest.mark.parametrize(
        "error", [KafkaError._TIMED_OUT, KafkaError._STATE, KafkaError.INVALID_TXN_STATE, KafkaError._FENCED], ids=str
    )
    def test_a_producer_that_cannot_commit_is_let_go_and_the_driver_ends_it_by_name(
        self, broker: Broker, topic: str, start: Start, monkeypatch: pytest.MonkeyPatch, error: int
    ) -> None:
        sink = fp.Kafka(topic, servers=broker.servers, key="k")
        driver = start(sink)
        handle = driver.pre_commit(0, table(1))

        def fail(_: object) -> None:
            raise KafkaException(KafkaError(error))

        monkeypatch.setattr(producers.Slot, "commit", fail)
        assert Outcome.DONE == driver.commit(0, handle)
        monkeypatch.undo()
        driver.run(1, table(2))
        assert [1, 2] == seen(broker, topic)
        assert [] == open_of(broker, sink)

    def test_a_staged_file_that_cannot_be_read_leaves_no_transaction_open(
        self, broker: Broker, topic: str, start: Start
    ) -> None:
        sink = fp.Kafka(topic, servers=broker.servers, key="k")
        driver = start(sink)
        rows = driver.rows(0, table(1))
        count = iter([1])

        class Broken:
            kept = ()
            schema = SCHEMA

            @property
            def count(self) -> int:
                return next(count)

            def batches(self) -> Any:
                yield from rows.batches()
                raise OSError(5, "Input/output error")

        with pytest.raises(OSError, match="Input/output"):
            driver.session.pre_commit(protocol_epoch.Epoch(0), Broken())
        assert [] == open_of(broker, sink)
        driver.run(0, table(1))
        assert [1] == seen(broker, topic)


PHASES = ("engine.planned", "kafka.begun", "kafka.sent", "kafka.flushed", "decide.before", "decide.after")
"""Before the transaction, in it, before and after the decision."""


@pytest.fixture(scope="module")
def fragile(root: Path, require: Callable[[str], None]) -> Iterator[Broker]:
    require("kafka")
    with Broker(root / "fragile") as made:
        yield made


class TestTheBrokerGoesAway:
    """Six drivers sleep at six places; the broker freezes, they wake and ask it, and it dies."""

    def asleep(self, broker: Broker, tmp_path: Path) -> dict[str, tuple[TopicScene, int]]:
        found = {}
        for phase in PHASES:
            scene = make_scene(broker, tmp_path)
            child = scene.start(f"{phase}=stop@2")
            assert wait_until_stopped(child)
            found[phase] = (scene, child)
        return found

    def test_and_comes_back(self, fragile: Broker, tmp_path: Path) -> None:
        children = self.asleep(fragile, tmp_path)
        fragile.pause()
        for _, child in children.values():
            os.kill(child, signal.SIGCONT)
        time.sleep(1)
        fragile.kill()
        fragile.start()
        ended = {phase: wait(child) for phase, (_, child) in children.items()}
        assert {*ended.values()} <= {0, FAILED}
        self.finish(children)

    @pytest.mark.long
    def test_and_stays_away(self, fragile: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Everybody gives up, in his own words; at the next start nothing is lost."""
        monkeypatch.setattr(producers, "INIT_S", 8.0)
        monkeypatch.setattr(producers, "DELIVERY_S", 3)
        monkeypatch.setattr(producers, "COMMIT_S", 2.0)
        monkeypatch.setitem(Coordinator.__init__.__kwdefaults__, "patience", 3.0)  # type: ignore[arg-type]
        monkeypatch.setattr(protocol_epoch, "PATIENCE", 2)
        children = self.asleep(fragile, tmp_path)
        fragile.kill()
        for _, child in children.values():
            os.kill(child, signal.SIGCONT)
        ended = {phase: wait(child) for phase, (_, child) in children.items()}
        assert dict.fromkeys(PHASES, FAILED) == ended
        said = {phase: scene.error().split("]")[0][1:] for phase, (scene, _) in children.items()}
        assert {phase: "in_doubt" if phase.startswith("decide") else "target_silent" for phase in PHASES} == said
        monkeypatch.undo()
        fragile.start()
        self.finish(children)

    def finish(self, children: dict[str, tuple[TopicScene, int]]) -> None:
        ended = {phase: scene.run() for phase, (scene, _) in children.items()}
        assert dict.fromkeys(PHASES, 0) == ended
        assert [] == [(phase, scene.verdict()) for phase, (scene, _) in children.items() if not scene.is_exact()]
        assert [] == [name for scene, _ in children.values() for name in scene.open()]


class TestNothingIsLeftOpen:
    def test_after_a_clean_stop(self, broker: Broker, tmp_path: Path) -> None:
        scene = make_scene(broker, tmp_path, count=2)
        assert 0 == scene.run()
        assert ([], True) == (scene.open(), scene.is_exact())

    def test_after_a_failure_before_the_decision(self, broker: Broker, topic: str, start: Start) -> None:
        sink = fp.Kafka(topic, servers=broker.servers, key="k")
        driver = start(sink)
        handle = driver.pre_commit(0, table(1))
        assert [handle.body["transactional_id"]] == open_of(broker, sink)
        driver.session.rollback(undecided=False)
        assert [handle.body["transactional_id"]] == open_of(broker, sink), "it may be decided"
        second = start(sink, writer=2)
        second.pre_commit(0, table(1))
        second.session.rollback()
        assert [handle.body["transactional_id"]] == open_of(broker, sink)
        for orphan in second.session.orphans(WriterNumber(2)):
            second.session.abort(orphan)
        assert [] == open_of(broker, sink)

    def test_after_a_driver_was_fenced(self, broker: Broker, tmp_path: Path) -> None:
        scene = make_scene(broker, tmp_path)
        sleeper = scene.start("decide.before=stop@2")
        assert wait_until_stopped(sleeper)
        assert 0 == scene.run()
        os.kill(sleeper, signal.SIGCONT)
        assert FENCED == wait(sleeper)
        assert ([], True) == (scene.open(), scene.is_exact())

    @pytest.mark.parametrize("point", ["kafka.flushed", "commit.before"])
    def test_after_a_recovery(self, broker: Broker, tmp_path: Path, point: str) -> None:
        scene = make_scene(broker, tmp_path, count=2)
        assert VANISHED == scene.run(f"{point}=kill@2")
        assert 0 == scene.run()
        assert ([], True) == (scene.open(), scene.is_exact())


def test_an_id_that_was_never_ours_is_never_ended(broker: Broker, topic: str, start: Start) -> None:
    """Names that look almost like ours."""
    sink = fp.Kafka(topic, servers=broker.servers, key="k")
    almost = [f"fencepost.job.zzzzzzzz.1.{sink.name}-0", f"fencepost.job.aaaaaaaa.1.{sink.name}", "fencepost.job"]
    for name in almost:
        other = stranger(broker, name)
        other.begin_transaction()
        assert [] == send(other, topic, 1)
    assert () == start(sink, writer=9).session.orphans(WriterNumber(99))
    assert ["Ongoing"] * 3 == [describe(broker, name).state for name in almost]  # type: ignore[union-attr]
