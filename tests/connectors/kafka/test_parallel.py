"""Transactions that tasks opened, as the driver sees them; without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from fencepost_proof.rig.kafka import Broker
from transactions import SCHEMA, open_of, seen, stranger, table, wait_for_timeout

import fencepost as fp
from fencepost.connectors.kafka import producers, session
from fencepost.contract import UNIT, UNIT_FACTS, Attempt
from fencepost.errors import EpochFailed, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle, WriterNumber
from fencepost.testing.sink_driver import LINEAGE, SinkDriver

Start = Callable[..., SinkDriver]


@pytest.fixture(autouse=True)
def _new_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of its own, and no producer made ahead: nobody would use it. Tasks write themselves if they have rows."""
    monkeypatch.setattr(producers, "_pools", {})
    monkeypatch.setattr(producers.TaskWriter, "_prepare", lambda *_: None)
    monkeypatch.setattr(producers, "FEW_BYTES", 0)


def a_sink(broker: Broker, topic: str, **settings: Any) -> fp.Kafka:
    return fp.Kafka(topic, servers=broker.servers, key="k", parallel=True, **settings)


def task(sink: fp.Kafka, *values: int, epoch: int = 0, writer: int = 1, few: int = 0) -> pa.Table:
    """What one task attempt hands to the driver; its transaction is open, if it has more than a few bytes."""
    write = sink.in_tasks("job")
    assert isinstance(write, producers.TaskWriter)
    attempt = Attempt(LINEAGE, WriterNumber(writer), Epoch(epoch))
    batches = list(replace(write, few=few)(attempt, iter(table(*values).to_batches())))
    return pa.Table.from_batches(batches)


def few(sink: fp.Kafka, *values: int, epoch: int = 0) -> pa.Table:
    """What a task with few rows hands to the driver: only these."""
    return task(sink, *values, epoch=epoch, few=1 << 20)


def handles(driver: SinkDriver, *tasks: pa.Table, epoch: int = 0) -> tuple[Handle, ...]:
    return driver.session.handles(Epoch(epoch), driver.rows(epoch, pa.concat_tables(tasks)))


def commit(driver: SinkDriver, found: tuple[Handle, ...], epoch: int = 0) -> list[Outcome]:
    answers = driver.session.commit(Epoch(epoch), found)
    return [answers[handle.id] for handle in found]


def again(driver: SinkDriver, lost: Handle) -> Handle:
    fresh = driver.session.again(Epoch(0), lost, driver.owner.staging.rows_again(lost))
    assert fresh is not None
    return fresh


def test_every_task_gives_a_handle_and_the_driver_ends_them_all(broker: Broker, topic: str, start: Start) -> None:
    sink = a_sink(broker, topic)
    driver = start(sink)
    for epoch in range(4):
        base = epoch * 10
        found = handles(driver, task(sink, base, base + 1, epoch=epoch), task(sink, base + 2, epoch=epoch), epoch=epoch)
        assert [2, 1] == [handle.rows for handle in found]
        assert () == driver.session.verify(Epoch(epoch), found)
        assert [Outcome.DONE] * 2 == commit(driver, found, epoch)
        assert [Outcome.DONE] * 2 == commit(driver, found, epoch)
    assert sorted(base + n for base in (0, 10, 20, 30) for n in range(3)) == seen(broker, topic)
    assert [] == open_of(broker, sink)


def test_a_task_keeps_its_rows_with_the_name_of_its_transaction_or_only_says_what_it_wrote(
    broker: Broker, topic: str
) -> None:
    kept = task(a_sink(broker, topic), 1, 2)
    assert ([1, 2, None], 1) == (kept["v"].to_pylist(), len(set(kept[UNIT].to_pylist())))
    assert [None, None] == kept[UNIT_FACTS].to_pylist()[:2]
    bare = task(a_sink(broker, topic, keep_rows=False), 1, 2)
    assert (1, [None]) == (bare.num_rows, bare["v"].to_pylist())


def test_a_task_without_rows_opens_nothing(broker: Broker, topic: str) -> None:
    sink = a_sink(broker, topic)
    write = sink.in_tasks("job")
    assert write is not None
    attempt = Attempt(LINEAGE, WriterNumber(1), Epoch(0))
    empty = pa.RecordBatch.from_pylist([], schema=SCHEMA)
    assert [] == list(write(attempt, iter([empty])))
    assert [] == open_of(broker, sink)


def test_some_committed_and_some_lost_are_made_whole_from_the_kept_rows(
    broker: Broker, topic: str, start: Start
) -> None:
    """And once more, when what was written again is lost as well: the rows are still those of the first task."""
    short, sink = a_sink(broker, topic, transaction_timeout=2), a_sink(broker, topic)
    first = start(sink)
    found = handles(first, task(sink, 1, 2), task(short, 3, 4, 5), task(sink, 6))
    assert [Outcome.DONE] == commit(first, found[:1])
    wait_for_timeout(broker, found[1].body["transactional_id"])

    second = start(short, writer=2)
    assert [Outcome.DONE, Outcome.GONE, Outcome.DONE] == commit(second, found)
    fresh = again(second, found[1])
    assert (3, found[1].kept) == (fresh.rows, fresh.kept)
    second.session.rollback(undecided=False)
    wait_for_timeout(broker, fresh.body["transactional_id"])

    third = start(sink, writer=3)
    assert [Outcome.GONE] == commit(third, (fresh,))
    last = again(third, fresh)
    assert 3 == last.rows
    assert [Outcome.DONE] == commit(third, (last,))
    assert [1, 2, 3, 4, 5, 6] == seen(broker, topic)
    assert [] == open_of(broker, sink)


def test_a_task_leaves_few_rows_to_the_driver_and_writes_more_itself_all_or_none(broker: Broker, topic: str) -> None:
    sink = a_sink(broker, topic)
    left = few(sink, 1, 2)
    assert ([1, 2], {None}) == (left["v"].to_pylist(), {*left[UNIT].to_pylist(), *left[UNIT_FACTS].to_pylist()})
    assert [] == open_of(broker, sink)
    batch = table(1).to_batches()[0]
    write = sink.in_tasks("job")
    assert isinstance(write, producers.TaskWriter)
    attempt = Attempt(LINEAGE, WriterNumber(1), Epoch(0))
    for size, units in ((3 * batch.nbytes, 0), (3 * batch.nbytes - 1, 1)):
        rows = pa.Table.from_batches(replace(write, few=size)(attempt, iter([batch] * 3)))
        assert units == len(set(rows[UNIT].to_pylist()) - {None})
        assert [None] * 3 == rows[UNIT_FACTS].to_pylist()[:3]
        assert (units == 0) == (None in rows[UNIT].to_pylist())


def test_epochs_of_small_tasks_of_large_ones_and_of_both_are_each_seen_once(
    broker: Broker, topic: str, start: Start
) -> None:
    sink = a_sink(broker, topic)
    driver = start(sink)
    units = []
    for epoch, (first, second) in enumerate([(few, few), (task, task), (few, task), (task, few), (few, few)]):
        at = epoch * 10
        tasks = [first(sink, at, at + 1, at + 2, epoch=epoch), second(sink, at + 5, at + 6, at + 7, epoch=epoch)]
        found = handles(driver, *tasks, epoch=epoch)
        units.append([handle.rows for handle in found])
        assert () == driver.session.verify(Epoch(epoch), found)
        before = seen(broker, topic)
        assert [] == [value for value in before if value >= at]
        assert [Outcome.DONE] * len(found) == commit(driver, found, epoch)
        assert [Outcome.DONE] * len(found) == commit(driver, found, epoch)
    assert [[6], [3, 3], [3, 3], [3, 3], [6]] == units
    assert [at + n for at in range(0, 50, 5) for n in range(3)] == seen(broker, topic)
    assert [] == open_of(broker, sink)


@pytest.mark.parametrize("lost", ["what the driver wrote", "what a task wrote", "both"])
def test_what_is_lost_of_a_mixed_epoch_is_made_whole_from_the_rows_that_it_held(
    broker: Broker, topic: str, start: Start, lost: str
) -> None:
    """Once more when that is lost as well, and by a driver whose sink is no longer parallel."""
    short, sink = a_sink(broker, topic, transaction_timeout=2), a_sink(broker, topic)
    by_driver = sink if lost == "what a task wrote" else short
    by_task = sink if lost == "what the driver wrote" else short
    first = start(by_driver)
    found = handles(first, few(sink, 1, 2), task(by_task, 3, 4, 5), few(sink, 6))
    assert [3, 3] == [handle.rows for handle in found]
    names = [handle.body["transactional_id"] for handle in found]
    gone = [name for name, by in zip(names, (by_task, by_driver), strict=True) if by is short]
    first.session.close()
    wait_for_timeout(broker, *gone)

    second = start(short, writer=2)
    expected = [Outcome.GONE if name in gone else Outcome.DONE for name in names]
    assert expected == commit(second, found)
    again_lost = [again(second, handle) for handle in found if handle.body["transactional_id"] in gone]
    second.session.close()
    wait_for_timeout(broker, *(handle.body["transactional_id"] for handle in again_lost))

    third = start(replace(sink, parallel=False), writer=3)
    assert [Outcome.GONE] * len(again_lost) == commit(third, tuple(again_lost))
    fresh = tuple(again(third, handle) for handle in again_lost)
    assert [Outcome.DONE] * len(fresh) == commit(third, fresh)
    assert [1, 2, 3, 4, 5, 6] == seen(broker, topic)
    assert [] == open_of(broker, sink)


def test_rows_decided_without_parallel_are_written_again_by_a_sink_with_it(
    broker: Broker, topic: str, start: Start
) -> None:
    plain = fp.Kafka(topic, servers=broker.servers, key="k", transaction_timeout=2)
    first = start(plain)
    found = first.pre_commit(0, table(1, 2))
    first.session.close()
    wait_for_timeout(broker, found.body["transactional_id"])
    second = start(replace(plain, parallel=True, transaction_timeout=None), writer=2)
    assert [Outcome.GONE] == commit(second, (found,))
    assert [Outcome.DONE] == commit(second, (again(second, found),))
    assert [1, 2] == seen(broker, topic)


def test_a_mixed_epoch_that_fails_before_its_decision_leaves_nothing_open(
    broker: Broker, topic: str, start: Start
) -> None:
    sink = a_sink(broker, topic)
    driver = start(sink)
    good, bad = few(sink, 1), task(sink, 2)
    stranger(broker, bad[UNIT][0].as_py())
    with pytest.raises(EpochFailed):
        handles(driver, good, bad)
    driver.session.rollback()
    assert [] == open_of(broker, sink)
    found = handles(driver, few(sink, 1), task(sink, 2))
    assert [Outcome.DONE] * 2 == commit(driver, found)
    assert [1, 2] == seen(broker, topic)


def test_a_commit_that_was_asked_twice_is_seen_through_as_a_whole(
    broker: Broker, topic: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker that did not answer may be one that forgot the markers of what was committed just before."""
    sink = a_sink(broker, topic)
    driver = start(sink)
    found = handles(driver, task(sink, 1), task(sink, 2))
    real = driver.session._commit  # type: ignore[attr-defined]

    def in_doubt(epoch: Epoch, handle: Handle) -> Outcome:
        return Outcome.IN_DOUBT if handle == found[1] else real(epoch, handle)

    monkeypatch.setattr(driver.session, "_commit", in_doubt)
    assert [Outcome.DONE, Outcome.IN_DOUBT] == commit(driver, found)
    monkeypatch.setattr(driver.session, "_commit", real)
    assert [Outcome.DONE] == commit(driver, found[1:])
    looked: list[str] = []
    monkeypatch.setattr(session.fate, "see_through", lambda _, body: looked.append(body["transactional_id"]))
    driver.session.verify(Epoch(1), ())
    assert [handle.body["transactional_id"] for handle in found] == looked


def test_a_transaction_that_is_gone_before_the_vote_fails_the_epoch(broker: Broker, topic: str, start: Start) -> None:
    sink = a_sink(broker, topic)
    driver = start(sink)
    good, bad = task(sink, 1), task(sink, 2)
    stranger(broker, bad[UNIT][0].as_py())
    with pytest.raises(EpochFailed) as caught:
        handles(driver, good, bad)
    assert ("vote_failed", 0) == (caught.value.code, caught.value.where.epoch)
    assert [] == seen(broker, topic)


def test_an_attempt_that_failed_is_swept_after_the_epoch(broker: Broker, topic: str, start: Start) -> None:
    sink = a_sink(broker, topic)
    driver = start(sink)
    failed, good = task(sink, 1), task(sink, 1, 2)
    found = handles(driver, good)
    assert [Outcome.DONE] == commit(driver, found)
    orphans = driver.session.orphans(WriterNumber(2), at_leisure=True)
    assert [failed[UNIT][0].as_py()] == [orphan.body["transactional_id"] for orphan in orphans]
    for orphan in orphans:
        driver.session.abort(orphan)
    assert [1, 2] == seen(broker, topic)
    assert [] == open_of(broker, sink)


def test_it_looks_for_orphans_after_each_epoch_that_tasks_wrote_and_else_now_and_then(
    broker: Broker, topic: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after one whose rows the targets held already: its tasks ran, and nobody asked for handles."""
    sink = a_sink(broker, topic)
    driver = start(sink)

    def swept() -> list[str]:
        found = driver.session.orphans(WriterNumber(2), at_leisure=True)
        return [orphan.body["transactional_id"] for orphan in found]

    lost = task(sink, 1)[UNIT][0].as_py()
    assert [Outcome.DONE] == commit(driver, handles(driver, few(sink, 1)))
    assert [] == swept()
    assert [lost] == swept()  # of an epoch without handles
    mixed = handles(driver, few(sink, 2, epoch=1), task(sink, 3, epoch=1), epoch=1)
    assert [Outcome.DONE] * 2 == commit(driver, mixed, 1)
    assert [lost] == swept()
    assert [Outcome.DONE] == commit(driver, handles(driver, few(sink, 4, epoch=2), epoch=2), 2)
    with monkeypatch.context() as patched:
        patched.setattr(session, "SWEEP_S", 0.0)
        assert [lost] == swept()
    assert 1 == len(handles(driver, few(sink, 5, epoch=3), epoch=3))
    driver.session.rollback()  # whatever the tasks of a failed epoch left, it must not ride along with the next
    assert [] == open_of(broker, sink)


def test_a_worker_uses_an_id_again_when_its_epoch_is_done_for_good_and_never_one_of_another_writer(
    broker: Broker, topic: str, start: Start
) -> None:
    sink = a_sink(broker, topic)
    driver = start(sink)
    used = []
    for epoch in range(5):
        found = handles(driver, task(sink, epoch, epoch=epoch), epoch=epoch)
        used.append(found[0].body["transactional_id"])
        assert [Outcome.DONE] == commit(driver, found, epoch)
    assert (used[:2] * 3)[:5] == used
    assert 2 == len(set(used))
    assert task(sink, 9, epoch=5, writer=2)[UNIT][0].as_py() not in used


def test_a_default_timeout_that_the_brokers_do_not_allow_is_refused_before_a_task_meets_it(
    broker: Broker, topic: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fencepost.connectors.kafka.coordinator import Coordinator  # noqa: PLC0415 - only here

    monkeypatch.setattr(Coordinator, "largest_timeout_ms", lambda self: 60_000)
    with pytest.raises(TargetRefused) as caught:
        start(a_sink(broker, topic))
    assert "transaction_timeout" == caught.value.code
    start(a_sink(broker, topic, transaction_timeout=60))
    start(fp.Kafka(topic, servers=broker.servers, key="k"))
