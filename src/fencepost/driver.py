"""One start of a job: recovery, then epoch after epoch, then a clean end. Knows no pyspark.

The bridge calls `run_epoch` once per epoch, from the engine's thread; `close` may come from any other.
"""

from __future__ import annotations

import os
import platform
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import pyarrow as pa

from fencepost import faults
from fencepost.errors import EpochFailed, Fenced, FencepostError, RecoveryNeeded, Where
from fencepost.guarantee import Guarantee
from fencepost.late import Deadline
from fencepost.ledger import RemotePath, Store, Unanswered
from fencepost.ledger.patience import at_most
from fencepost.observe.events import Kind
from fencepost.observe.observer import Observer
from fencepost.observe.pulse import PULSE
from fencepost.perform import NOTED_EVERY, Performer, Running
from fencepost.protocol.append import Book, append
from fencepost.protocol.epoch import (
    SinkFacts,
    check_not_replaced,
    mark_done,
    may_try_again,
    run_claimed,
    run_epoch,
    run_plainly,
    tidy,
)
from fencepost.protocol.records import Damaged, Epoch, Kept, Lineage, Sealed, SinkRecord, Writer, WriterNumber
from fencepost.protocol.recover import Start, begin, settle
from fencepost.sinks.contract import OutputMode, Sink
from fencepost.spark.checkpoint import SparkLog
from fencepost.supervise.reasons import Tolerance
from fencepost.times import now
from fencepost.unusable import unusable


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to run: everything but the engine."""

    job: str
    store: Store
    sinks: Mapping[str, Sink]
    schemas: Mapping[str, pa.Schema]
    modes: Mapping[str, OutputMode]
    guarantee: Guarantee
    formats: Mapping[str, str] = field(default_factory=dict)
    keep: int = 100
    adopt: bool = False
    sinks_changed: bool = False
    min_pause_s: float = 0.0
    timeout_s: float | None = None
    observer: Observer | None = None
    tolerance: Tolerance = field(default_factory=Tolerance)
    proof: Callable[[str], None] | None = None
    """Of the lineage; raises if a record of the epoch may be in the rows and in the dead letters, or in none."""
    looks_for_leftovers: bool = False
    """At the end, are the sinks asked what they hold that nobody decided? Whoever deletes the checkpoint must know."""


FENCED_S = 5.0
"""So long a store that does not answer is asked whether we were replaced: the reason of a failure is only told better
by it."""


EXPIRE_S = 1.0


class Stopping(Exception):
    """The driver is closed: the engine must not begin another epoch."""


class Driver:
    """The one writer of a checkpoint, from its recovery to its end."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._gate = threading.Lock()
        self._closed = False
        self.failure: FencepostError | None = None
        """What ended the run, with more in it than the engine's exception can carry."""
        self.turned_away = False
        """The engine came with another epoch after the end: its failure is then our own doing."""
        self.ending = threading.Event()
        """Nobody waits any more for the next epoch to begin."""
        self.finished: Epoch | None = None
        """The newest epoch that this driver carried to its end."""
        self.open_in: tuple[str, ...] = ()
        """Sinks that hold, after the end, what nobody decided."""
        self._deadline: Deadline | None = None
        self._entered: float | None = None
        """Since when an epoch is with the sinks."""
        self._one_more = False
        """Another quiet epoch is to follow: only a new start gives the engine its range."""
        assert all(name == sink.name for name, sink in plan.sinks.items()), "rows find their sink by its name"
        sessions = {name: sink.session(plan.job) for name, sink in plan.sinks.items()}
        often = max(1, min(NOTED_EVERY, plan.keep // 2))
        self._note = (plan.observer or Observer(plan.job)).note
        self._performer = Performer(
            plan.job, plan.store, SparkLog(plan.store), sessions, noted_every=often, note=self._note
        )
        self._facts = tuple(SinkFacts(name, sink.capabilities.perishable) for name, sink in plan.sinks.items())
        self._book: Book | None = None

    def recover(self) -> None:
        """Preflight the sinks, then bring ledger, sinks and Spark's log into one state."""
        plan = self._plan
        try:
            start = Start(
                lineage=Lineage(
                    job=plan.job,
                    guarantee=plan.guarantee.word,
                    first_epoch=Epoch(0),
                    sinks=self._preflight(),
                    formats=plan.formats,
                ),
                sinks=self._facts,
                writer=this_process(),
                new_id=str(uuid.uuid4()),
                clock=now,
                keep=plan.keep,
                adopt=plan.adopt,
                sinks_changed=plan.sinks_changed,
            )
            began = time.monotonic()
            self._book = self._performer.run(begin(start))
            if plan.observer is not None:
                plan.observer.write_to(plan.store.root, self._book.writer)
            self._note(Kind.STARTED, supervisor=PULSE.supervisor)
            self._performer.run(settle(self._book, start))
            newest = self._book.state.newest
            self._note(Kind.RECOVERED, epoch=newest and newest.epoch, seconds=time.monotonic() - began)
            if newest is not None:  # whoever is told of epochs may have missed the last one
                self._note(Kind.COMPLETE, epoch=newest.epoch, again=True)
            if plan.timeout_s is not None:
                self._deadline = Deadline(plan.job, plan.store.root, self._performer.log, plan.timeout_s)
        except FencepostError as error:
            reason = (self._book and self.fenced()) or error
            self._performer.close()
            raise reason.at(job=plan.job) from error.__cause__
        except OSError as error:
            self._performer.close()
            raise unusable(error, self._plan.job, self._plan.store.root) from error

    @property
    def book(self) -> Book:
        """Our view of the ledger; there once recovery is over."""
        assert self._book is not None, "recover first"
        return self._book

    @property
    def checkpoint(self) -> str:
        """Its place."""
        return self._plan.store.root

    @property
    def lineage(self) -> str:
        """Spark's query id."""
        return self.book.state.lineage_id

    @property
    def quiet_left(self) -> int:
        """How many epochs are still to run for their state only, each with the range that recovery gave it."""
        state = self.book.state
        return max(0, state.lineage.first_epoch + len(state.lineage.quiet) - state.next_epoch + 1)

    @property
    def durable(self) -> bool:
        """Do staged rows have to outlive a crash?"""
        exactly = self._plan.guarantee is Guarantee.EXACTLY_ONCE
        return exactly and any(sink.capabilities.keeps_rows for sink in self._plan.sinks.values())

    @property
    def staged(self) -> Mapping[str, str]:
        """Where the engine stages rows for this driver, and where it leaves a copy of what it brought to the driver."""
        staging = self._performer.owner.staging
        folder = staging.folder(self.book.writer)
        if isinstance(folder, RemotePath):
            return {"staged": folder.url, "local": str(staging.copies / str(self.book.writer))}
        return {"staged": f"file://{folder}"}

    def stage(self, epoch: int, table: pa.Table) -> tuple[Kept, ...]:
        """Stage rows that the engine brought to the driver."""
        staging = self._performer.owner.staging
        try:
            return staging.stage(self.book.writer, Epoch(epoch), table, durable=self.durable)
        except OSError as error:
            # A newer driver sweeps our folder away: that is the reason then, and it is final.
            self.failure = self.fenced() or self._explain(error, Epoch(epoch))
            raise self.failure from error

    def _gathered(self, epoch: Epoch, kept: tuple[Kept, ...]) -> tuple[Kept, ...]:
        try:
            return self._performer.owner.staging.gathered(self.book.writer, epoch, kept)
        except OSError as error:
            self.failure = self.fenced() or self._explain(error, epoch)
            raise self.failure from error

    def run_epoch(self, epoch: int, kept: tuple[Kept, ...], snapshot: Callable[[], str]) -> None:
        """Carry one epoch to the sinks; raise whatever must end the query."""
        with self._gate:
            if self._closed or self._one_more:
                self.turned_away = True
                raise Stopping
            number = Epoch(epoch)
            self._entered = began = time.monotonic()
            rows = sum(file.rows for file in kept)
            self._note(Kind.OPENED, epoch=number, rows=rows)
            self._performer.running = Running(self._gathered(number, kept), lambda: self._in_time(snapshot), number)
            while not self._carried(number):
                pass
            self.finished, self._entered = number, None
            self._plan.tolerance.reset()
            self._one_more = self.quiet_left > 0 and self.book.state.quiet_offsets(number) is not None
            self._note(Kind.COMPLETE, epoch=number, rows=rows, seconds=time.monotonic() - began)
            faults.reach("complete.before")  # the engine writes commits/N next
        self.ending.wait(self._plan.min_pause_s)

    def _carried(self, epoch: Epoch) -> bool:
        """Carry the epoch to its end; False if it failed, nothing of it is decided, and that is borne."""
        try:
            if self._plan.proof is not None:
                self._plan.proof(self.lineage)
            match self._plan.guarantee:
                case Guarantee.EXACTLY_ONCE:
                    self._performer.run(run_epoch(self.book, epoch, self._facts))
                case Guarantee.AT_LEAST_ONCE:
                    self._performer.run(run_plainly(self.book, epoch))
                case Guarantee.AT_MOST_ONCE:
                    self._performer.run(run_claimed(self.book, epoch))
        except BaseException as error:  # a cancelled client raises one; an epoch that did not return is never done
            undecided = may_try_again(self.book, epoch)
            self._performer.rollback(undecided=undecided)
            failure = self.fenced() or self._explain(error, epoch)
            if undecided and isinstance(error, Exception) and self._bears(failure):
                self._performer.undo()
                if self.ending.wait(min(0.1 * 2**self._plan.tolerance.failures, 10)):
                    self.turned_away = True
                    raise Stopping from None
                return False
            self._closed = True
            self.failure = failure
            raise failure from error
        return True

    def _bears(self, failure: FencepostError) -> bool:
        """May the failed epoch be tried again from the rows that are staged? Those that tasks wrote are not."""
        plan = self._plan
        by_tasks = any(sink.in_tasks(plan.job) is not None for sink in plan.sinks.values())
        if plan.guarantee is not Guarantee.EXACTLY_ONCE or by_tasks or failure.code == "epoch_timeout":
            return False
        if not plan.tolerance.bears(failure):
            return False
        self._note(Kind.TRIED_AGAIN, failure, attempt=plan.tolerance.failures)
        return True

    def expire(self) -> bool:
        """Drop the epoch whose tasks take too long; True if there was one.

        One that is with the sinks looks at the clock itself, right before its decision; after that it is never dropped.
        """
        if self._deadline is None or not self._gate.acquire(blocking=False):
            return False
        try:
            with at_most(EXPIRE_S), suppress(OSError):  # a store that does not answer is no late epoch
                if not self._closed and (late := self._deadline.missed(self.finished)) is not None:
                    self._closed = True
                    self.failure = late
                    return True
            return False
        finally:
            self._gate.release()

    def _in_time(self, snapshot: Callable[[], str]) -> str:
        """The last step before the decision."""
        if self._deadline is not None and (late := self._deadline.missed(self.finished)) is not None:
            raise late
        return snapshot()

    @property
    def is_stuck(self) -> bool:
        """Is an epoch with the sinks for so long past its timeout that only the end of the process will free it?"""
        limit, entered = self._plan.timeout_s, self._entered
        return limit is not None and entered is not None and time.monotonic() - entered > 2 * limit

    def close(self) -> None:
        """Wait for the epoch in flight, let no other begin, note that the last one is done."""
        self.ending.set()
        with self._gate:
            already, self._closed = self._closed, True
            if already and self.failure is None:
                return
            try:
                if self.failure is None and self._plan.guarantee is Guarantee.EXACTLY_ONCE:
                    self._performer.run(mark_done(self.book))
                    self._performer.run(tidy(self.book, self._facts))
                    self.open_in = self._leftovers() if self._plan.looks_for_leftovers else ()
            except FencepostError as error:
                self.failure = error.at(job=self._plan.job)
                raise
            except OSError as error:
                self.failure = unusable(error, self._plan.job, self._plan.store.root)
                raise self.failure from error
            finally:
                self._performer.close()

    def seal(self) -> str | None:
        """The last act, after a clean end: nobody goes on from here. Why not, if that cannot be.

        Only the latest writer can say so, and after it nobody else: the checkpoint may then be deleted.
        """
        if self.failure is not None:
            return f"the job ended with {self.failure.code}"
        if self.open_in:
            return f"{', '.join(self.open_in)} still hold what nobody decided"
        try:
            self._performer.run(append(self.book, Sealed("", self.book.state.done_through, ""), "cancel.seal"))
        except (FencepostError, Damaged, OSError) as error:
            return error.what.rstrip(".") if isinstance(error, FencepostError) else str(error)
        return None

    def _leftovers(self) -> tuple[str, ...]:
        mine_too = WriterNumber(self.book.writer + 1)
        return tuple(name for name, session in self._performer.sessions.items() if session.orphans(mine_too))

    def _preflight(self) -> dict[str, SinkRecord]:
        plan = self._plan
        found = {}
        for name, sink in plan.sinks.items():
            try:
                target = self._performer.sessions[name].preflight(plan.schemas[name], plan.modes[name])
            except FencepostError as error:
                raise error.at(job=plan.job, sink=name) from error.__cause__
            found[name] = SinkRecord(sink.capabilities.shape, target)
        return found

    def fenced(self) -> Fenced | None:
        """Is there a newer driver? Then that is the reason, whatever the symptom was."""
        try:
            with at_most(FENCED_S):
                self._performer.run(check_not_replaced(self.book))
        except Fenced as error:
            return error
        except (FencepostError, OSError):
            return None
        return None

    def _explain(self, error: BaseException, epoch: Epoch) -> FencepostError:
        """Our own errors as they are; anything else named by its type only, for its text may hold a row's value."""
        if isinstance(error, FencepostError):
            return error.at(job=self._plan.job, epoch=epoch)
        root = self._plan.store.root
        if isinstance(error, (Unanswered, PermissionError)) and str(error.filename).startswith(root):
            return unusable(error, self._plan.job, root).at(epoch=epoch)
        what = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        opened = self.book.state.open
        where = Where(job=self._plan.job, epoch=epoch)
        if opened is not None and opened.epoch == epoch:
            again = "Start the job again: recovery finishes the epoch."
            return RecoveryNeeded("commit_failed", f"The epoch is decided, then: {what}.", where=where, next=again)
        return EpochFailed(
            "epoch_failed",
            f"The epoch failed: {what}.",
            where=where,
            safe="Safe: if it was decided after all, the next start finishes it; if not, nothing of it is visible.",
            next="Look at the cause above; when it is mended, start the job again.",
        )


def this_process() -> Writer:
    """Who writes, for the ledger."""
    return Writer(uuid.uuid4().hex, socket.gethostname(), os.getpid(), _versions())


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("fencepost", "pyspark", "pyarrow"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
