"""Committing an epoch beside the next one's tasks: who waits for whom, and what is said when it fails."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fencepost_proof.stand_in import SCHEMA, StandIn

from fencepost.config import Checkpoint, RunConfig
from fencepost.connectors.custom import WriteAheadLog
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.errors import FencepostError, Retryable, Tolerance
from fencepost.observe.events import Event, Kind
from fencepost.observe.journal import Observer
from fencepost.runtime.driver import Driver, Plan
from fencepost.runtime.performer import Performer
from fencepost.store import LocalStore


class Held:
    """A target whose commits wait until they are let through; `failing` says which epochs it refuses."""

    def __init__(self, *failing: int) -> None:
        self.begun, self.may = threading.Event(), threading.Event()
        self.failing = failing
        self.sent: list[int] = []

    def sink(self) -> WriteAheadLog:
        return WriteAheadLog(self._send, name="api", idempotent=True)

    def _send(self, context: Any, batches: Any) -> None:
        self.begun.set()
        assert self.may.wait(30)
        if context.epoch in self.failing:
            raise SystemExit  # as a cancelled client: nobody asks again
        self.sent.append(context.epoch)


class Engine:
    """The stand-in, epoch by epoch: what the engine does between two calls is up to the test."""

    def __init__(
        self, folder: Path, *sinks: Any, observer: Observer | None = None, bears: int = 0, **options: Any
    ) -> None:
        job = StandIn(folder, tuple(range(9)), 1, {sink.name: sink for sink in sinks})
        self.job = job
        options = {"overlap": True, **options}
        self.driver = Driver(
            Plan(
                config=RunConfig(job="stand-in", checkpoint=Checkpoint(folder, **options)),
                store=LocalStore(folder),
                sinks=job.sinks,
                schemas=dict.fromkeys(job.sinks, SCHEMA),
                modes=dict.fromkeys(job.sinks, "append"),
                observer=observer,
                tolerance=Tolerance(bears),
            )
        )
        self.driver.recover()

    def run(self, epoch: int) -> None:
        """One epoch, until it is complete for the engine."""
        self.job._run_epoch(self.driver, epoch, epoch)


@pytest.fixture
def held() -> Iterator[Held]:
    target = Held()
    yield target
    target.may.set()


def test_the_engine_goes_on_while_an_epoch_is_committed_and_the_commit_does_not_wait_for_another(
    tmp_path: Path, held: Held
) -> None:
    engine = Engine(tmp_path, held.sink())
    engine.run(0)  # returns, although the commit stands still
    assert (tmp_path / "commits" / "0").exists()
    assert held.begun.wait(30)
    assert (None, []) == (engine.driver.finished, held.sent)
    held.may.set()
    engine.driver.close()
    assert (0, [0]) == (engine.driver.finished, held.sent)


def test_the_next_epoch_reaches_no_sink_before_the_commit_is_over(tmp_path: Path, held: Held) -> None:
    order: list[tuple[str, int | None]] = []
    observer = Observer("stand-in")
    observer.call(lambda event: order.append((event.kind.value, event.epoch)), Kind.OPENED, Kind.DECIDED, Kind.COMPLETE)
    engine = Engine(tmp_path, held.sink(), observer=observer)
    engine.run(0)
    next_one = threading.Thread(target=engine.run, args=(1,))
    next_one.start()
    assert held.begun.wait(30)
    assert [("opened", 0), ("decided", 0)] == order
    held.may.set()
    next_one.join(30)
    engine.driver.close()
    assert [(kind, epoch) for epoch in (0, 1) for kind in ("opened", "decided", "complete")] == order


def test_a_close_waits_for_the_commit_and_the_ledger_says_that_it_is_done(tmp_path: Path, held: Held) -> None:
    engine = Engine(tmp_path, held.sink())
    engine.run(0)
    closing = threading.Thread(target=engine.driver.close)
    closing.start()
    assert held.begun.wait(30)
    assert closing.is_alive()
    held.may.set()
    closing.join(30)
    assert (0, None, [0]) == (engine.driver.book.state.done_through, engine.driver.book.state.open, held.sent)


def test_a_close_that_is_interrupted_leaves_the_sinks_to_the_commit_that_still_runs(
    tmp_path: Path, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second Ctrl-C, while a target does not answer: rolling back would wait for the same target."""
    engine = Engine(tmp_path, held.sink())
    engine.run(0)
    assert held.begun.wait(30)

    def interrupted(*_: Any) -> bool:
        raise KeyboardInterrupt

    waiting: Any = engine.driver._performer._beside
    monkeypatch.setattr(waiting, "wait", interrupted)
    monkeypatch.setattr(Performer, "rollback", lambda *_, **__: pytest.fail("the commit uses the sinks"))
    with pytest.raises(KeyboardInterrupt):
        engine.driver.close()
    assert engine.driver.failure is None
    monkeypatch.undo()
    held.may.set()
    engine.driver.close()
    assert [0] == held.sent


@pytest.mark.parametrize("bears", [0, 9])
def test_a_commit_that_failed_ends_the_query_by_its_own_epoch_and_is_never_tried_as_the_next_one(
    tmp_path: Path, bears: int
) -> None:
    """The model found it: a failure of N that shows up in N+1 looks like an epoch that is not decided."""
    target = Held(0)
    target.may.set()
    table = SQLite(tmp_path / "out.db", table="sums")
    engine = Engine(tmp_path / "ck", target.sink(), table, bears=bears)
    engine.run(0)
    with pytest.raises(Retryable) as failed:
        engine.run(1)
    assert ("commit_failed", 0) == (failed.value.code, failed.value.where.epoch)
    engine.driver.close()
    opened = engine.driver.book.state.open
    assert opened is not None
    assert 0 == opened.epoch
    target.failing = ()
    again = Engine(tmp_path / "ck", target.sink(), table)
    again.driver.close()
    assert ([0], [0]) == (target.sent, rows(tmp_path / "out.db"))


def test_without_another_epoch_a_commit_that_failed_is_told_to_whoever_watches_the_query(tmp_path: Path) -> None:
    target = Held(0)
    engine = Engine(tmp_path, target.sink())
    engine.run(0)
    assert not engine.driver.expire()
    target.may.set()
    over = engine.driver._performer._beside
    assert over is not None
    assert over.wait(30)
    assert engine.driver.expire()
    engine.driver.close()
    assert isinstance(engine.driver.failure, FencepostError)
    assert 0 == engine.driver.failure.where.epoch


def test_the_time_that_an_epoch_waits_for_the_one_before_is_not_its_own(tmp_path: Path, held: Held) -> None:
    engine = Engine(tmp_path, held.sink(), timeout="10 minutes")
    deadline = engine.driver._deadline
    assert deadline is not None
    before = deadline.began_s
    engine.run(0)
    held.may.set()
    engine.driver.close()
    assert deadline.began_s > before


def test_callbacks_hear_of_an_epoch_when_every_sink_has_it(tmp_path: Path, held: Held) -> None:
    heard: list[tuple[int | None, list[int]]] = []
    observer = Observer("stand-in")

    def tell(event: Event) -> None:
        heard.append((event.epoch, list(held.sent)))

    observer.call(tell, Kind.COMPLETE)
    engine = Engine(tmp_path, held.sink(), observer=observer)
    engine.run(0)
    assert [] == heard
    held.may.set()
    engine.driver.close()
    assert [(0, [0])] == heard


def test_without_overlap_the_engine_waits(tmp_path: Path, held: Held) -> None:
    engine = Engine(tmp_path, held.sink(), overlap=None)
    held.may.set()
    engine.run(0)
    assert (0, [0]) == (engine.driver.finished, held.sent)
    engine.driver.close()


def rows(database: Path) -> list[int]:
    """What the table holds, read without us."""
    connection = sqlite3.connect(database)
    try:
        return [row[0] for row in connection.execute('SELECT "id" FROM sums ORDER BY "id"')]
    finally:
        connection.close()
