"""One start of a job: recovery, then epoch after epoch, then a clean end. Does not import pyspark.

The bridge calls `run_epoch` once per epoch, from the engine's thread; `close` may come from any other. With `overlap`
the commit of an epoch runs in a thread of its own; both begin by waiting for it, so a sink is used by one at a time.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import pyarrow as pa

from fencepost import faults
from fencepost.config import RunConfig
from fencepost.contract import OutputMode, Session, Sink, check_apart
from fencepost.errors import EpochFailed, Fenced, FencepostError, RecoveryNeeded, Tolerance, Where, now
from fencepost.guarantee import Guarantee
from fencepost.observe.events import Kind
from fencepost.observe.heartbeat import PULSE
from fencepost.observe.journal import Observer
from fencepost.protocol.append import Book, append
from fencepost.protocol.epoch import (
    SinkFacts,
    check_not_replaced,
    join,
    may_try_again,
    run_claimed,
    run_epoch,
    run_plainly,
    stop,
)
from fencepost.protocol.format import Damaged
from fencepost.protocol.records import Epoch, Kept, Lineage, Sealed, SinkRecord, Writer, WriterNumber
from fencepost.protocol.recovery import Start, recover
from fencepost.runtime.deadline import Deadline
from fencepost.runtime.pace import records, rest_s
from fencepost.runtime.performer import NOTED_EVERY, Known, Performer, Running
from fencepost.runtime.sieve import DeadLetters, Sieve
from fencepost.store import RemotePath, Store, Unanswered
from fencepost.store.refusal import unusable
from fencepost.store.retry import at_most
from fencepost.store.spark_log import SourceFile, SparkLog

log = logging.getLogger("fencepost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything about a start except the engine."""

    config: RunConfig
    store: Store
    sinks: Mapping[str, Sink]
    schemas: Mapping[str, pa.Schema]
    modes: Mapping[str, OutputMode]
    formats: Mapping[str, str] = field(default_factory=dict)
    keep: int = 100
    observer: Observer | None = None
    tolerance: Tolerance = field(default_factory=Tolerance)
    proofs: tuple[Callable[[str], None], ...] = ()
    """Each is given the lineage before every decision, and raises if the epoch's rows cannot be trusted."""
    unchanged: Callable[[int, Sequence[SourceFile], bool], None] | None = None
    """Given an epoch, the files it read and whether it is quiet, raises if one of them is gone or changed."""
    uses: Sequence[int] = ()
    """The folder of each source without a name, in the order of their uses."""
    known: Known | None = None
    """What was already read from the checkpoint before recovery."""
    aside: Mapping[str, DeadLetters] = field(default_factory=dict)
    """By sink: where the rows go that it refuses."""
    rests: bool = False
    """Does it rest after a small epoch, because nobody set another pace?"""

    @property
    def job(self) -> str:
        """Its name."""
        return self.config.job

    @property
    def is_exact(self) -> bool:
        """Is this exactly-once, and not one of the weaker guarantees?"""
        return self.config.guarantee is Guarantee.EXACTLY_ONCE


REFUSED = ("rows_refused", "message_too_large", "bad_message")
"""What a sink says of rows that it may be able to name."""
FENCED_S = 5.0
"""How long to ask a silent store whether we were replaced: the answer only makes a failure's message better."""


EXPIRE_S = 1.0


class Stopping(Exception):
    """The driver is closed: the engine must not start another epoch."""


class Driver:
    """The one writer of a checkpoint, from its recovery to its end."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._gate = threading.Lock()
        self._closed = False
        self.failure: FencepostError | None = None
        """What ended the run, in more detail than the engine's exception can carry."""
        self.turned_away = False
        """The engine brought another epoch after the end, so its failure is our own doing."""
        self.ending = threading.Event()
        """Set when the driver ends: stop waiting for the next epoch."""
        self.finished: Epoch | None = None
        """The newest epoch that this driver completed: every sink has it."""
        self._returned: Epoch | None = None
        """The newest epoch that is over for the engine; with overlap, before it is finished."""
        self.rest_s: float | None = None
        """How long it rests after its last epoch; None if the user sets the pace."""
        self._rested_at: float | None = None
        """When the last rest was over."""
        self.open_in: tuple[str, ...] = ()
        """Sinks that still hold undecided rows after the end."""
        self._pause_s, self._timeout_s = plan.config.checkpoint.min_pause_s, plan.config.checkpoint.timeout_s
        self._deadline: Deadline | None = None
        self._entered: float | None = None
        """When the current epoch reached the sinks."""
        self._one_more = False
        """Another quiet epoch follows: the engine takes its range only from a new start."""
        assert all(name == sink.name for name, sink in plan.sinks.items()), "rows find their sink by its name"
        sessions = {name: _session(plan.job, name, sink) for name, sink in plan.sinks.items()}
        often = max(1, min(NOTED_EVERY, plan.keep // 2))
        self._note = (plan.observer or Observer(plan.job)).note
        self._performer = Performer(
            plan.job,
            plan.store,
            SparkLog(plan.store, plan.uses),
            sessions,
            noted_every=often,
            note=self._note,
            known=plan.known,
            unchanged=plan.unchanged,
        )
        self._facts = facts_of(plan.sinks)
        self._book: Book | None = None
        self._recovered = False

    def recover(self) -> None:
        """Preflight the sinks, then make the ledger, the sinks and Spark's log agree."""
        plan = self._plan
        try:
            targets = self._preflight()
            start = start_of(
                plan.config, plan.sinks, targets, formats=plan.formats, keep=plan.keep, took_over=self._took_over
            )
            began = time.monotonic()
            newest = self._performer.run(recover(start)).state.newest
            self._note(Kind.RECOVERED, epoch=newest and newest.epoch, seconds=time.monotonic() - began)
            if newest is not None:  # a callback may have missed the last one
                self._note(Kind.COMPLETE, epoch=newest.epoch, again=True)
            if self._timeout_s is not None:
                self._deadline = Deadline(plan.job, plan.store.root, self._performer.log, self._timeout_s)
            self._recovered = True
        except FencepostError as error:
            self._closed = True
            reason = (self._book and self.fenced()) or error
            self._performer.close()
            raise reason.at(job=plan.job) from error.__cause__
        except OSError as error:
            self._closed = True
            self._performer.close()
            raise unusable(error, plan.job, plan.store.root) from error

    def _took_over(self, book: Book) -> None:
        """From here on the ledger is ours: any later failure first checks whether we were replaced."""
        self._book = book
        if self._plan.observer is not None:
            self._plan.observer.write_to(self._plan.store.root, book.writer)
        self._note(Kind.STARTED, supervisor=PULSE.supervisor)

    @property
    def book(self) -> Book:
        """Our view of the ledger; available after recovery."""
        assert self._book is not None, "recover first"
        return self._book

    @property
    def job(self) -> str:
        """Its name."""
        return self._plan.job

    @property
    def checkpoint(self) -> str:
        """Its place."""
        return self._plan.store.root

    @property
    def writer(self) -> WriterNumber:
        """Our number in the ledger."""
        return self.book.writer

    @property
    def lineage(self) -> str:
        """Spark's query id."""
        return self.book.state.lineage_id

    @property
    def quiet_left(self) -> int:
        """How many epochs still have to run only to rebuild state, each with the range that recovery gave it."""
        state = self.book.state
        return max(0, state.lineage.first_epoch + len(state.lineage.quiet) - state.next_epoch + 1)

    @property
    def durable(self) -> bool:
        """Must staged rows survive a crash?"""
        return self._plan.is_exact and any(sink.capabilities.keeps_rows for sink in self._plan.sinks.values())

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
            # If a newer driver swept our folder away, that is the real cause, and it is final.
            self.failure = self.fenced() or self._explain(error, Epoch(epoch))
            raise self.failure from error

    def _gathered(self, epoch: Epoch, kept: tuple[Kept, ...]) -> tuple[Kept, ...]:
        try:
            return self._performer.owner.staging.gathered(self.book.writer, epoch, kept)
        except OSError as error:
            self.failure = self.fenced() or self._explain(error, epoch)
            raise self.failure from error

    def run_epoch(self, epoch: int, kept: tuple[Kept, ...], snapshot: Callable[[], str]) -> None:
        """Write one epoch to the sinks; raise whatever must end the query."""
        with self._gate:
            if self._closed or self._one_more:
                self.turned_away = True
                raise Stopping
            self._join()
            number = Epoch(epoch)
            self._entered = began = time.monotonic()
            offsets = self._offsets
            rows = sum(file.rows for file in kept)
            self._note(Kind.OPENED, epoch=number, rows=rows)
            self._performer.running = Running(
                self._gathered(number, kept),
                lambda: self._in_time(snapshot),
                number,
                self.book.state.quiet_offsets(number) is not None,
            )

            def over(error: BaseException | None) -> None:
                if error is not None:
                    self._fail(error, number)
                    return
                self.finished, self._entered = number, None
                if self._deadline is not None:
                    self._deadline.begin()  # the next epoch may have waited for this one: that is not its own time
                self._plan.tolerance.reset()
                self._note(Kind.COMPLETE, epoch=number, rows=rows, seconds=time.monotonic() - began)

            self._performer.over = over
            while not self._carried(number):
                pass
            if not self._performer.is_beside:
                over(None)
            self._returned = number
            self._one_more = self.quiet_left > 0 and self.book.state.quiet_offsets(number) is not None
            faults.reach("complete.before")  # the engine writes commits/N next
        if self._plan.rests:
            took = time.monotonic() - (self._rested_at or began)  # with the engine's part, and its wait for records
            self.rest_s = rest_s(max(rows, records(offsets, self._offsets)), took)
        self.ending.wait(self.rest_s or self._pause_s)
        self._rested_at = time.monotonic()

    @property
    def _offsets(self) -> str:
        """Where the newest decided epoch ended; nothing with the weaker guarantees, which decide none."""
        newest = self.book.state.newest
        return newest.offsets if newest else ""

    def _join(self) -> None:
        """Wait for the commit of the last epoch; raise what ended it. Before anything of another epoch is touched.

        The protocol waits once more (`epoch.run_epoch`, `epoch.stop`), which returns at once: the rule is the
        protocol's own, and the model tries it there. Here it is earlier, because what follows belongs to the next
        epoch already (`running`, `over`, its clock), and a failure found here must not count as that epoch's.
        """
        if self._performer.is_beside:
            try:
                self._performer.run(join())
            except BaseException as error:
                if self._performer.is_beside:  # the wait was interrupted, and the commit still uses the sinks
                    raise
                if self.failure is None:
                    self._fail(error, Epoch(self.book.state.next_epoch - 1))
        if self.failure is not None:
            self._closed = True
            raise self.failure

    def _fail(self, error: BaseException, epoch: Epoch) -> None:
        """The commit of a decided epoch failed, beside the next one."""
        self.failure = self._explain(error, epoch)  # first: whatever fails below, it is heard of
        self._performer.rollback(undecided=False)
        self.failure = self.fenced() or self.failure

    def _carried(self, epoch: Epoch) -> bool:
        """Complete the epoch; False if it failed before its decision and may be retried."""
        try:
            for proof in self._plan.proofs:
                proof(self.lineage)
            match self._plan.config.guarantee:
                case Guarantee.EXACTLY_ONCE:
                    overlap = self._plan.config.checkpoint.overlaps
                    self._performer.run(run_epoch(self.book, epoch, self._facts, overlap=overlap))
                case Guarantee.AT_LEAST_ONCE:
                    self._performer.run(run_plainly(self.book, epoch))
                case Guarantee.AT_MOST_ONCE:
                    self._performer.run(run_claimed(self.book, epoch))
        except BaseException as error:  # a cancelled client raises one, and an epoch that raised is never done
            undecided = may_try_again(self.book, epoch)
            self._performer.rollback(undecided=undecided)
            failure = self.fenced() or self._explain(error, epoch)
            if undecided and isinstance(error, Exception):
                failure, again = self._tried_again(failure, epoch)
                if again:
                    return False
            self._closed = True
            self.failure = failure
            raise failure from error
        return True

    def _tried_again(self, failure: FencepostError, epoch: Epoch) -> tuple[FencepostError, bool]:
        """May the undecided epoch be retried: without the rows that a sink refused, or after a pause?"""
        try:
            is_sifted = self._set_aside(failure, epoch)
        except (NotImplementedError, OverflowError, ValueError) as error:  # a value that nobody can write as JSON
            log.warning("job %s, epoch %d: no dead letters (%s)", self.job, epoch, type(error).__name__)
            is_sifted = False
        except Exception as error:  # noqa: BLE001 - the target does not answer any more, the disk is full
            failure, is_sifted = self._explain(error, epoch), False
        if not is_sifted and not self._bears(failure):
            return failure, False
        self._performer.undo()
        if not is_sifted and self.ending.wait(min(0.1 * 2**self._plan.tolerance.failures, 10)):
            self.turned_away = True
            raise Stopping from None
        return failure, True

    def _set_aside(self, failure: FencepostError, epoch: Epoch) -> bool:
        """Move the rows that a sink refused, and can name, to the dead letters; True if there were any."""
        sink, performer = failure.where.sink or "", self._performer
        aside = self._plan.aside.get(sink)
        if failure.code not in REFUSED or aside is None:
            return False
        kept, staging = performer.running.kept, performer.owner.staging
        sieve = Sieve(sink, aside, lambda batch: performer.sessions[sink].refused(epoch, batch))
        sifted = staging.stage_batches(
            self.book.writer, epoch, staging.schema(kept), sieve.sift(staging.batches(kept)), durable=self.durable
        )
        if sieve.moved:
            performer.running.kept = (sifted,)
            what = "job %s, epoch %d: sink %s refused %d rows, which go to the dead letters in %s"
            log.warning(what, self.job, epoch, sink, sieve.moved, aside.sink)
        return sieve.moved > 0

    def _bears(self, failure: FencepostError) -> bool:
        """May the failed epoch be retried from its staged rows? Not if tasks wrote them to the sink themselves."""
        plan = self._plan
        by_tasks = any(sink.in_tasks(plan.job) is not None for sink in plan.sinks.values())
        if not plan.is_exact or by_tasks or failure.code == "epoch_timeout":
            return False
        if not plan.tolerance.bears(failure):
            return False
        self._note(Kind.TRIED_AGAIN, failure, attempt=plan.tolerance.failures)
        return True

    def expire(self) -> bool:
        """Drop an epoch whose tasks exceeded the timeout, or follow a commit that failed; True if there was one.

        An epoch that has reached the sinks checks the clock itself, right before its decision, and is never dropped
        after that.
        """
        if self.failure is not None and self._performer.is_beside:
            return True  # nobody has met it yet, and without new data nobody would
        if self._deadline is None or not self._gate.acquire(blocking=False):
            return False
        try:
            with at_most(EXPIRE_S), suppress(OSError):  # a store that does not answer says nothing about the epoch
                if not self._closed and (late := self._deadline.missed(self._returned)) is not None:
                    self._closed = True
                    self.failure = late
                    return True
            return False
        finally:
            self._gate.release()

    def _in_time(self, snapshot: Callable[[], str]) -> str:
        """The last step before the decision: check the timeout once more."""
        if self._deadline is not None and (late := self._deadline.missed(self._returned)) is not None:
            raise late
        return snapshot()

    @property
    def is_stuck(self) -> bool:
        """Has an epoch been in the sinks so far past its timeout that only ending the process will free it?"""
        limit, entered = self._timeout_s, self._entered
        return limit is not None and entered is not None and time.monotonic() - entered > 2 * limit

    def close(self) -> None:
        """Wait for the epoch in flight and its commit, start no other, and record that the last one is done."""
        self.ending.set()
        with self._gate:
            with suppress(FencepostError):  # whoever ends the query raises `failure`
                self._join()
            already, self._closed = self._closed, True
            if already and self.failure is None:
                return
            if not self._recovered:  # only recovery may call an open decision done
                self._performer.close()
                return
            try:
                if self.failure is None and self._plan.is_exact:
                    self._performer.run(stop(self.book, self._facts))
                    self.open_in = self._leftovers() if self._plan.config.checkpoint.deletes else ()
            except FencepostError as error:
                self.failure = error.at(job=self._plan.job)
                raise
            except OSError as error:
                self.failure = unusable(error, self._plan.job, self._plan.store.root)
                raise self.failure from error
            finally:
                self._performer.close()

    def seal(self) -> str | None:
        """The last act, after a clean end: nobody continues from here. Returns the reason if that is not possible.

        Only the newest writer can do this, and nobody can write after it: the checkpoint may then be deleted.
        """
        if self.failure is not None:
            return f"the job ended with {self.failure.code}"
        if self.open_in:
            return f"uncommitted rows are left in {', '.join(self.open_in)}"
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
        try:
            check_apart({name: session.territory() for name, session in self._performer.sessions.items()})
        except FencepostError as error:
            raise error.at(job=plan.job) from None
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
        """Our own errors as they are; anything else by its type only, because its text may quote a row."""
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
            failed = f"The epoch was decided, but its commit failed: {what}."
            return RecoveryNeeded("commit_failed", failed, where=where, next=again)
        return EpochFailed(
            "epoch_failed",
            f"The epoch failed: {what}.",
            where=where,
            safe="Safe: if it was decided after all, the next start finishes it; if not, nothing of it is visible.",
            next="Fix the cause (FENCEPOST_TRACE=1 shows all of it), then start the job again.",
        )


def start_of(
    config: RunConfig,
    sinks: Mapping[str, Sink],
    targets: Mapping[str, SinkRecord],
    *,
    formats: Mapping[str, str] | None = None,
    keep: int = 100,
    took_over: Callable[[Book], None] = lambda book: None,
) -> Start:
    """What recovery needs, once every sink has identified its target."""
    return Start(
        lineage=Lineage(
            job=config.job,
            guarantee=config.guarantee.word,
            first_epoch=Epoch(0),
            sinks=targets,
            settings=formats or {},
        ),
        sinks=facts_of(sinks),
        writer=this_process(),
        new_id=str(uuid.uuid4()),
        clock=now,
        keep=keep,
        adopt=config.adopt,
        allow_sink_changes=config.allow_sink_changes,
        took_over=took_over,
    )


def _session(job: str, name: str, sink: Sink) -> Session:
    try:
        return sink.session(job)
    except FencepostError as error:  # a client that is not installed, for one
        raise error.at(job=job, sink=name) from error.__cause__


def facts_of(sinks: Mapping[str, Sink]) -> tuple[SinkFacts, ...]:
    """What the protocol knows about the sinks."""
    return tuple(SinkFacts(name, sink.capabilities.perishable) for name, sink in sinks.items())


def this_process() -> Writer:
    """This process, as the ledger records a writer."""
    return Writer(uuid.uuid4().hex, socket.gethostname(), os.getpid(), _versions())


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("fencepost", "pyspark", "pyarrow"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
