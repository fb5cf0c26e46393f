"""Performs the protocol's effects for real: on the store, Spark's log and the sinks.

Never decides anything: what happens next is up to `protocol/` alone.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from fencepost import faults
from fencepost.contract import Owner, Session
from fencepost.observe.events import Kind
from fencepost.observe.heartbeat import PULSE
from fencepost.protocol import effects as e
from fencepost.protocol.records import Epoch, Handle, Kept
from fencepost.store import Store, Unanswered, place
from fencepost.store.base import ledger_folder, record_name, record_numbers
from fencepost.store.path import is_remote
from fencepost.store.retry import longest_s
from fencepost.store.spark_log import SourceFile, SparkLog
from fencepost.store.staging import Staging

T = TypeVar("T")

NOTED_EVERY = 50
IN_DOUBT_S = 0.5
SWEPT_EVERY = 10
"""Epochs between sweeps on a remote store: a listing costs a request, and old staged rows do no harm."""

log = logging.getLogger("fencepost")


@dataclass(slots=True)
class Running:
    """What the engine hands over with an epoch: its staged rows, and a way to get the text of its `commits/N`."""

    kept: tuple[Kept, ...]
    snapshot: Callable[[], str]
    epoch: int | None = None
    is_quiet: bool = False
    """It reads again what a sealed lineage read."""


@dataclass(frozen=True, slots=True)
class Known:
    """What was read from a checkpoint before recovery, so that recovery need not read it again.

    Never more than this. A stale identity does no harm (a driver may always sleep right after reading it), and record
    number 0 never changes. Recovery reads everything else itself.
    """

    identity: e.Identity
    lineage: str
    """The lineage whose record number 0 was read; "" if there is no ledger."""
    first: bytes | None
    """Record number 0."""


LOOKS = (e.ReadIdentity, e.Names, e.Read, e.LogNames, e.LogRead)
"""Effects that change nothing."""


@dataclass(slots=True)
class Performer:
    """Performs the effects for one driver."""

    job: str
    store: Store
    log: SparkLog
    sessions: Mapping[str, Session]
    running: Running = field(default_factory=lambda: Running((), str))
    repartition: Callable[[e.Repartition], e.Repartitioned] | None = None
    """What Spark does for a rescale."""
    noted_every: int = NOTED_EVERY
    """Every so many epochs, a decision has checksums of all files that have none elsewhere. Below the retention."""
    note: Callable[..., None] = lambda *_, **__: None
    """Called for the steps that go to the journal."""
    known: Known | None = None
    """Already read; the identity in it is used once."""
    unchanged: Callable[[int, Sequence[SourceFile], bool], None] | None = None
    """Given an epoch and the files it read, raises if one of them is gone or changed."""
    over: Callable[[BaseException | None], None] = lambda error: None
    """Called when a step that ran beside us has ended, in its own thread."""
    _works: SimpleQueue[Callable[[], None] | None] | None = None
    """For the one thread in which steps run beside us: the JVM keeps a connection for each that talks to it."""
    _beside: threading.Event | None = None
    """Of the step that nobody has waited for yet: is it over?"""
    _failed: BaseException | None = None
    """What ended a step beside us: from then on only recovery may continue."""
    _owner: Owner | None = None
    _doubted: float | None = None
    """When creates began to go unanswered."""
    _noted: bool = False
    _identified: bool = False
    _made: list[Handle] = field(default_factory=list)
    """The handles of the last pre-commit."""

    def run(self, step: e.Step[T]) -> T:
        """Run a protocol step to its end, with a crash point before and after every effect."""
        answer: Any = None
        while True:
            try:
                effect = step.send(answer)
            except StopIteration as stop:
                value: T = stop.value
                return value
            if faults.is_armed:
                faults.reach(f"{effect.point}.before")
            began = time.monotonic()
            answer = _DO[type(effect)](self, effect)
            if (step_of := _TOLD.get(type(effect))) is not None:
                step_of(self, effect, answer, time.monotonic() - began)
            if faults.is_armed:
                faults.reach(f"{effect.point}.after")

    def look(self, step: e.Step[T]) -> T | None:
        """Run a protocol step until it would change something: what it refuses before that, it refuses here."""
        answer: Any = None
        while True:
            try:
                effect = step.send(answer)
            except StopIteration as stop:
                value: T = stop.value
                return value
            if not isinstance(effect, LOOKS):
                step.close()
                return None
            answer = _DO[type(effect)](self, effect)

    @property
    def owner(self) -> Owner:
        """Who we are; known once recovery has taken over."""
        assert self._owner is not None, "recovery has not taken over yet"
        return self._owner

    def staging(self, lineage: str) -> Staging:
        """The staged rows of a lineage."""
        return Staging(place(self.store.root) / "fencepost" / lineage / "staged")

    def rollback(self, *, undecided: bool) -> None:
        """An epoch failed: let the sinks roll back."""
        for session in self.sessions.values():
            session.rollback(undecided=undecided)

    def undo(self) -> None:
        """The failed epoch is retried, not recovered: abort its handles here, or they stay as long as the driver."""
        for handle in self._made:
            with suppress(Exception):  # what cannot be undone now is an orphan for the next start
                self.sessions[handle.sink].abort(handle)

    def close(self) -> None:
        """Close the sinks' sessions."""
        if self._works is not None:
            self._works.put(None)
        for session in self.sessions.values():
            session.close()

    # --- beside

    @property
    def is_beside(self) -> bool:
        """Has a step been started that nobody has waited for yet?"""
        return self._beside is not None

    def _start_beside(self, effect: e.Beside) -> None:
        assert self._beside is None, "join first: at most one epoch is behind"
        over = self._beside = threading.Event()

        def work() -> None:
            try:
                self.run(effect.step)
            except BaseException as error:  # noqa: BLE001 - raised by the next join; a cancelled client raises such
                self._failed = error
            try:
                self.over(self._failed)
            except BaseException as error:  # noqa: BLE001 - as above
                self._failed = self._failed or error
            finally:
                over.set()

        if self._works is None:
            self._works = SimpleQueue()
            # A daemon: a sink that never answers must not keep an ended process alive; that is a crash like any other.
            threading.Thread(target=_work_off, args=(self._works,), name="fencepost-commit", daemon=True).start()
        self._works.put(work)

    def _join(self, effect: e.Join) -> None:
        if self._beside is not None:
            self._beside.wait()
            self._beside = None
        if self._failed is not None:
            raise self._failed

    def _repartition(self, effect: e.Repartition) -> e.Repartitioned:
        assert self.repartition is not None, "only a rescale asks for it"
        return self.repartition(effect)

    # --- ledger

    def _names(self, effect: e.Names) -> tuple[int, ...]:
        found = record_numbers(self.store, effect.lineage)
        if effect.point == "recover.list":
            wanted = [number for number in found if not self._knows(effect.lineage, number)]
            self.store.expect(record_name(effect.lineage, number) for number in wanted)
        return found

    def _read_identity(self, effect: e.ReadIdentity) -> e.Identity:
        if self.known is None or self._identified:
            return self.log.identity()
        self._identified = True
        return self.known.identity

    def _read(self, effect: e.Read) -> bytes | None:
        if self.known is not None and self._knows(effect.lineage, effect.number):
            return self.known.first
        return self.store.read(record_name(effect.lineage, effect.number))

    def _knows(self, lineage: str, number: int) -> bool:
        known = self.known
        return known is not None and known.first is not None and (lineage, number) == (known.lineage, 0)

    def _create(self, effect: e.Create) -> e.Created:
        if effect.point == "recover.takeover":
            PULSE.check_supervised(self.job)
        try:
            created = self.store.create(record_name(effect.lineage, effect.number), effect.data)
        except Unanswered as error:
            now = time.monotonic()
            self._doubted = self._doubted or now
            if now - self._doubted > longest_s():  # the store reads but does not write: recovery asks again
                raise
            doubt = "job %s: the store did not confirm ledger record %d (%s); reading it back"
            log.warning(doubt, self.job, effect.number, error.strerror)
            time.sleep(min(IN_DOUBT_S + (now - self._doubted) / 4, 5.0))
            return e.Created.UNKNOWN
        self._doubted = None
        return e.Created.CREATED if created else e.Created.TAKEN

    def _forget(self, effect: e.Forget) -> None:
        self.store.unlink(record_name(effect.lineage, effect.number))

    def _log_read(self, effect: e.LogRead) -> str | None:
        if (effect.point, effect.log) == ("barrier.previous", "offsets"):  # the other two are read next
            self.store.expect((f"offsets/{effect.epoch}", f"commits/{effect.epoch}", f"offsets/{effect.epoch + 1}"))
        return self.log.read(effect.log, effect.epoch)

    # --- sinks

    def _open_sinks(self, effect: e.OpenSinks) -> None:
        self._owner = Owner(
            job=self.job,
            lineage=effect.lineage,
            generation=effect.generation,
            writer=effect.writer,
            staging=self.staging(effect.lineage),
            held=effect.held,
            older=effect.older,
            ancestors=frozenset(effect.ancestors),
        )
        for session in self.sessions.values():
            session.open(self._owner)

    def _pre_commit(self, effect: e.PreCommit) -> tuple[Handle, ...]:
        kept = self.running.kept
        self._made = []
        for name, session in self.sessions.items():
            if kept or session.empties:
                self._made += session.handles(effect.epoch, self.owner.staging.rows(kept, name))
        return tuple(self._made)

    def _check_files(self, effect: e.TakeSnapshot) -> None:
        """The plan has read everything by now, and nothing is decided."""
        if self.unchanged is not None:
            before = effect.before
            if before is None and effect.epoch > 0:  # the first one after an adoption
                before = self.log.read("offsets", Epoch(effect.epoch - 1))
            self.unchanged(effect.epoch, self.log.files_read(before, effect.offsets), self.running.is_quiet)

    def _take_snapshot(self, effect: e.TakeSnapshot) -> e.Snapshot:
        self._check_files(effect)
        text = self.running.snapshot()
        # All files at first and then from time to time, because retention removes the decisions that have the sums.
        whole = not self._noted or effect.epoch % self.noted_every == 0
        names = [
            *self.log.source_files(None if whole else effect.before, effect.offsets),
            *self.log.unsigned_files(effect.epoch, text, whole=whole),
            *(self.log.schema_files() if whole else ()),
        ]
        sums = self.log.sums(names)
        self._noted = True
        return e.Snapshot(text, sums)

    def _again(self, effect: e.Again) -> tuple[Handle, ...]:
        session = self.sessions[effect.sink]
        fresh = (session.again(effect.epoch, h, self.owner.staging.rows_again(h)) for h in effect.handles)
        return tuple(handle for handle in fresh if handle is not None)

    def _write_plainly(self, effect: e.WritePlainly) -> None:
        for name, session in self.sessions.items():
            if self.running.kept or session.empties:
                session.write(effect.epoch, self.owner.staging.rows(self.running.kept, name))
        self._sweep(e.SweepStaged("", self.owner.writer, effect.epoch, recovering=False))

    def _sweep(self, effect: e.SweepStaged) -> None:
        if effect.recovering or not is_remote(self.store.root) or effect.through % SWEPT_EVERY == 0:
            self.owner.staging.sweep(effect.writer, effect.through)
        else:
            self.owner.staging.sweep_copies(effect.writer, effect.through)
        if effect.recovering:
            self.owner.staging.sweep_older(effect.writer)
            self.store.sweep(ledger_folder(self.owner.lineage))
            for ancestor in self.owner.ancestors:
                self.store.delete(f"fencepost/{ancestor}/staged")


def _work_off(works: SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := works.get()) is not None:
        work()


def _mute(performer: Performer, effect: e.Mute) -> None:
    log.warning(
        "job %s: epoch %d was claimed by a driver that died. Its rows may already have been written, so under "
        "at_most_once they are not written again. Its offsets are in the ledger, in the claim of epoch %d.",
        performer.job,
        effect.epoch,
        effect.epoch,
    )


def _wait(performer: Performer, effect: e.Wait) -> None:
    time.sleep(min(0.05 * 2**effect.attempt, 5.0) * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries


def _told_units(performer: Performer, effect: e.PreCommit, answer: tuple[Handle, ...], took: float) -> None:
    performer.note(Kind.PRE_COMMITTED, epoch=effect.epoch, units=len(answer), seconds=took)


def _told_record(performer: Performer, effect: e.Create, answer: e.Created, took: float) -> None:
    if effect.point == "decide" and answer is e.Created.CREATED:
        performer.note(Kind.DECIDED, epoch=performer.running.epoch, seconds=took)


def _told_outcome(performer: Performer, effect: e.Commit, answer: Mapping[str, e.Outcome], took: float) -> None:
    done = [handle for handle in effect.handles if answer.get(handle.id) is e.Outcome.DONE]
    open_ = {outcome.value for outcome in answer.values()} - {e.Outcome.DONE.value}
    performer.note(
        Kind.COMMITTED,
        epoch=effect.epoch,
        sink=effect.sink,
        units=len(done),
        rows=sum(handle.rows for handle in done),
        seconds=took,
        what=" ".join(open_) or None,
    )


_TOLD: Mapping[type[e.Effect[Any]], Callable[[Performer, Any, Any, float], None]] = {
    e.PreCommit: _told_units,
    e.Vote: lambda p, effect, answer, took: p.note(Kind.VOTED, epoch=effect.epoch, sink=effect.sink, seconds=took),
    e.Create: _told_record,
    e.Commit: _told_outcome,
    e.Abort: lambda p, effect, answer, took: p.note(Kind.ABORTED, sink=effect.handle.sink, seconds=took),
}

_DO: Mapping[type[e.Effect[Any]], Callable[[Performer, Any], Any]] = {
    e.ReadIdentity: Performer._read_identity,
    e.NameLineage: lambda p, effect: p.log.name_lineage(effect.lineage),
    e.SwitchLineage: lambda p, effect: p.log.switch_lineage(effect.sealed, effect.lineage),
    e.Repartition: Performer._repartition,
    e.Names: Performer._names,
    e.Read: Performer._read,
    e.Create: Performer._create,
    e.Forget: Performer._forget,
    e.LogNames: lambda p, effect: p.log.names(effect.log),
    e.LogRead: Performer._log_read,
    e.LogWrite: lambda p, effect: p.log.write(effect.log, effect.epoch, effect.text),
    e.LogDelete: lambda p, effect: p.log.delete(effect.log, effect.epoch),
    e.Strays: lambda p, effect: p.log.strays(effect.epoch, effect.offsets),
    e.Discard: lambda p, effect: p.log.discard(effect.strays),
    e.LostFiles: lambda p, effect: p.log.lost_files(effect.epoch, effect.snapshot, effect.files),
    e.OpenSinks: Performer._open_sinks,
    e.PreCommit: Performer._pre_commit,
    e.Vote: lambda p, effect: p.sessions[effect.sink].verify(effect.epoch, effect.handles),
    e.TakeSnapshot: Performer._take_snapshot,
    e.Commit: lambda p, effect: p.sessions[effect.sink].commit(effect.epoch, effect.handles),
    e.Beside: Performer._start_beside,
    e.Join: Performer._join,
    e.Again: Performer._again,
    e.Orphans: lambda p, effect: p.sessions[effect.sink].orphans(effect.before, at_leisure=effect.at_leisure),
    e.Abort: lambda p, effect: p.sessions[effect.handle.sink].abort(effect.handle),
    e.SweepStaged: Performer._sweep,
    e.WritePlainly: Performer._write_plainly,
    e.Mute: _mute,
    e.Wait: _wait,
}
