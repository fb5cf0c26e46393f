"""What is decided and then lost by the broker: redone, voided or left to a person, never silently gone."""

from __future__ import annotations

import signal
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from fencepost_proof.rig.kafka import Broker
from killing import FAILED, wait
from transactions import TopicScene, describe, make_scene, open_of, seen, send, stranger, table, wait_for_timeout

import fencepost as fp
from fencepost.connectors.kafka.fate import owner_of
from fencepost.connectors.kafka.session import KafkaSession
from fencepost.errors import OperatorNeeded
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle
from fencepost.testing import SinkDriver

pytestmark = pytest.mark.in_memory
Start = Callable[..., SinkDriver]
VANISHED = -signal.SIGKILL
DECIDED = "decide.after=kill@2"
KEPT: Mapping[str, Any] = {}
BARE: Mapping[str, Any] = {"keep_rows": False}
CASES: Mapping[str, tuple[int, tuple[int, ...], Mapping[str, Any]]] = {
    "one": (1, (0,), KEPT),
    "again": (1, (0,), KEPT),
    "careless": (1, (0,), KEPT),
    "first of two": (2, (0,), KEPT),
    "second of two": (2, (1,), KEPT),
    "bare": (1, (0,), BARE),
    "bare, first of two": (2, (0,), BARE),
    "bare, second of two": (2, (1,), BARE),
}
"""How many topics, which of them lose their transaction, and what else is set."""


def dying(scene: TopicScene, lost: Container[str], **settings: Any) -> TopicScene:
    """The same job with little time for these topics."""

    def of(name: str) -> Mapping[str, Any]:
        return {**settings, **({"transaction_timeout": 6} if name in lost else {})}

    return TopicScene(scene.folder, scene.targets, broker=scene.broker, settings=of)


@pytest.fixture(scope="module")
def lost(broker: Broker, root: Path) -> Mapping[str, TopicScene]:
    """Drivers that decided and died, all at once; then the broker ended transactions. With time enough from now on."""
    found, children, gone = {}, [], []
    for case, (count, which, settings) in CASES.items():
        scene = make_scene(broker, root, count, lambda name, settings=settings: settings)
        short = [scene.targets[number] for number in which]
        children.append(dying(scene, short, **settings).start(DECIDED))
        gone += short
        found[case] = scene
    assert {VANISHED} == {wait(child) for child in children}
    wait_for_timeout(broker, *(name for scene in found.values() for name in scene.open() if _sink(name) in gone))
    return found


def _sink(name: str) -> str:
    owned = owner_of(name)
    assert owned is not None
    return owned.sink


@pytest.mark.parametrize("case", ["one", "first of two", "second of two"])
def test_what_timed_out_is_written_again_from_the_kept_rows_and_the_rest_is_committed(
    lost: Mapping[str, TopicScene], case: str
) -> None:
    scene = lost[case]
    assert 0 == scene.run()
    assert scene.is_exact(), scene.verdict()
    assert 1 == scene.kinds().count("redo")
    assert [] == scene.open()


def test_it_may_be_lost_again_after_it_was_written_again(lost: Mapping[str, TopicScene]) -> None:
    scene = lost["again"]
    assert VANISHED == dying(scene, scene.targets).run("recover.redo.record.after=kill")
    wait_for_timeout(scene.broker, *scene.open())
    assert 0 == scene.run()
    assert scene.is_exact(), scene.verdict()
    assert 2 == scene.kinds().count("redo")
    assert [] == scene.open()


@pytest.mark.parametrize("case", ["bare", "bare, first of two"])
def test_without_kept_rows_an_epoch_of_which_nothing_is_visible_runs_again(
    lost: Mapping[str, TopicScene], case: str
) -> None:
    """Of two topics the first is lost, so the second, whose transaction is still open, must not become visible."""
    scene = lost[case]
    assert len(scene.targets) - 1 == len(scene.open())
    assert 0 == scene.run()
    assert scene.is_exact(), scene.verdict()
    assert 1 == scene.kinds().count("void")
    assert [] == scene.open()


def test_without_kept_rows_an_epoch_that_is_partly_visible_is_left_to_a_person(lost: Mapping[str, TopicScene]) -> None:
    scene = lost["bare, second of two"]
    for _ in range(2):
        assert FAILED == scene.run()
        assert scene.error().startswith("[partly_lost] 1 units of a decided epoch are visible (")
        assert f"epoch 1, sink '{scene.targets[1]}'" in scene.error()
    whole, part = scene.verdict().values()
    assert ({"lost": 4, "doubled": 0, "wrong": 0}, {"lost": 8, "doubled": 0, "wrong": 0}) == (whole, part)
    assert ["decision", "decision"] == [kind for kind in scene.kinds() if kind in {"decision", "void", "redo", "done"}]


def test_a_recovery_that_took_lost_for_done_would_be_seen(
    lost: Mapping[str, TopicScene], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotaged twin: it goes on silently, and the checker counts what is missing."""
    scene, honest = lost["careless"], KafkaSession._end

    def careless(*arguments: Any) -> Outcome:
        outcome = honest(*arguments)
        return Outcome.DONE if outcome is Outcome.GONE else outcome

    monkeypatch.setattr(KafkaSession, "_end", careless)
    assert 0 == scene.run()
    assert [{"lost": 4, "doubled": 0, "wrong": 0}] == list(scene.verdict().values())


def decided(start: Start, broker: Broker, topic: str, **settings: Any) -> tuple[fp.Kafka, Handle]:
    """A driver decides an epoch and vanishes."""
    sink = fp.Kafka(topic, servers=broker.servers, key="k", **settings)
    first = start(sink)
    handle = first.pre_commit(0, table(1, 2))
    assert () == first.vote(0, handle)
    first.session.rollback(undecided=False)
    return sink, handle


class TestAnIdThatSomebodyElseInitialised:
    """The coordinator's memory is of the stranger then; the topic itself is asked."""

    def test_after_the_decision_our_transaction_is_aborted_and_written_again(
        self, broker: Broker, topic: str, start: Start
    ) -> None:
        sink, handle = decided(start, broker, topic)
        stranger(broker, handle.body["transactional_id"])
        second = start(sink, writer=2)
        assert [Outcome.GONE] * 2 == [second.commit(0, handle) for _ in range(2)]
        rows = second.owner.staging.rows_again(handle)
        fresh = second.session.again(Epoch(0), handle, rows)
        assert fresh is not None
        assert Outcome.DONE == second.commit(0, fresh)
        assert [1, 2] == seen(broker, topic)
        assert [] == open_of(broker, sink)

    def test_with_a_transaction_of_his_own_it_is_still_not_committed_for_him(
        self, broker: Broker, topic: str, start: Start
    ) -> None:
        sink, handle = decided(start, broker, topic)
        other = stranger(broker, handle.body["transactional_id"])
        other.begin_transaction()
        assert [] == send(other, topic, 666)
        assert Outcome.GONE == start(sink, writer=2).commit(0, handle)
        found = describe(broker, handle.body["transactional_id"])
        assert found is not None
        assert "Ongoing" == found.state
        other.abort_transaction(20)
        assert [] == seen(broker, topic)

    def test_after_the_commit_ours_is_done(self, broker: Broker, topic: str, start: Start) -> None:
        sink, handle = decided(start, broker, topic)
        second = start(sink, writer=2)
        assert Outcome.DONE == second.commit(0, handle)
        other = stranger(broker, handle.body["transactional_id"])
        assert [Outcome.DONE] * 2 == [second.commit(0, handle) for _ in range(2)]
        other.begin_transaction()
        assert [] == send(other, topic, 666)
        assert Outcome.DONE == second.commit(0, handle)
        other.abort_transaction(20)
        assert [1, 2] == seen(broker, topic)

    @pytest.mark.parametrize("committed", [True, False])
    def test_nobody_knows_once_retention_has_eaten_the_first_message(
        self, broker: Broker, topic: str, start: Start, committed: bool
    ) -> None:
        sink, handle = decided(start, broker, topic)
        second = start(sink, writer=2)
        if committed:
            assert Outcome.DONE == second.commit(0, handle)
        stranger(broker, handle.body["transactional_id"])
        name, partition, offset = handle.body["first_record"]
        plain = stranger(broker)
        plain.begin_transaction()
        assert [] == send(plain, name, 3, partition)
        plain.commit_transaction(20)
        eaten = TopicPartition(name, partition, offset + 1)
        admin = broker.admin()
        admin.delete_records([eaten])[eaten].result(20)
        with pytest.raises(OperatorNeeded) as caught:
            second.commit(0, handle)
        assert "outcome_unknown" == caught.value.code
        assert all(
            word in str(caught.value) for word in (handle.body["transactional_id"], "2 rows", "epoch 0", sink.name)
        )

    def test_nobody_knows_once_the_topic_is_gone(self, broker: Broker, topic: str, start: Start) -> None:
        sink, handle = decided(start, broker, topic)
        second = start(sink, writer=2)
        stranger(broker, handle.body["transactional_id"])
        broker.delete_topic(topic)
        with pytest.raises(OperatorNeeded) as caught:
            second.commit(0, handle)
        assert "outcome_unknown" == caught.value.code

    def test_in_a_compacted_topic_a_message_that_is_missing_proves_nothing(
        self, broker: Broker, topic: str, start: Start
    ) -> None:
        compacted = broker.create_topic(f"{topic}-compacted", partitions=1, cleanup_policy="compact")
        sink, handle = decided(start, broker, compacted)
        second = start(sink, writer=2)
        stranger(broker, handle.body["transactional_id"])
        with pytest.raises(OperatorNeeded) as caught:
            second.commit(0, handle)
        assert "outcome_unknown" == caught.value.code

    def test_in_a_compacted_topic_a_message_that_is_there_proves_the_commit(
        self, broker: Broker, topic: str, start: Start
    ) -> None:
        compacted = broker.create_topic(f"{topic}-compacted", partitions=1, cleanup_policy="compact")
        sink, handle = decided(start, broker, compacted)
        second = start(sink, writer=2)
        assert Outcome.DONE == second.commit(0, handle)
        stranger(broker, handle.body["transactional_id"])
        assert Outcome.DONE == second.commit(0, handle)
