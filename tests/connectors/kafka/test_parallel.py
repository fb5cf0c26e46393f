"""Transactions that tasks opened, as the driver sees them; without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from fencepost_proof.rig.kafka import Broker
from transactions import SCHEMA, open_of, seen, stranger, table, wait_for_timeout

import fencepost as fp
from fencepost.connectors.kafka import producers
from fencepost.contract import UNIT, UNIT_FACTS, Attempt
from fencepost.errors import EpochFailed, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle, WriterNumber
from fencepost.testing.sink_driver import LINEAGE, SinkDriver

Start = Callable[..., SinkDriver]


@pytest.fixture(autouse=True)
def _new_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of its own, and no producer made ahead: nobody would use it."""
    monkeypatch.setattr(producers, "_pools", {})
    monkeypatch.setattr(producers.TaskWriter, "_prepare", lambda *_: None)


def a_sink(broker: Broker, topic: str, **settings: Any) -> fp.Kafka:
    return fp.Kafka(topic, servers=broker.servers, key="k", parallel=True, **settings)


def task(sink: fp.Kafka, *values: int, epoch: int = 0, writer: int = 1) -> pa.Table:
    """What one task attempt hands to the driver; its transaction is open."""
    write = sink.in_tasks("job")
    assert write is not None
    attempt = Attempt(LINEAGE, WriterNumber(writer), Epoch(epoch))
    batches = list(write(attempt, iter(table(*values).to_batches())))
    return pa.Table.from_batches(batches)


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
