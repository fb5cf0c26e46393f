"""Does the protocol's effects for real: the store, Spark's log, the sinks.

Never decides anything: what happens next is `protocol/`'s word alone.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fencepost import faults
from fencepost.ledger import Store, Unanswered, place
from fencepost.ledger.names import ledger_folder, record_name
from fencepost.ledger.patience import longest_s
from fencepost.ledger.places import is_remote
from fencepost.observe.events import Kind
from fencepost.protocol import effects as e
from fencepost.protocol.records import Handle, Kept
from fencepost.rows import Staging
from fencepost.sinks.contract import Owner, Session
from fencepost.spark.checkpoint import SparkLog

T = TypeVar("T")

NOTED_EVERY = 50
IN_DOUBT_S = 0.5
SWEPT_EVERY = 10
"""Epochs, on a remote store: a listing is a request, and staged rows that nobody needs any more do no harm."""

log = logging.getLogger("fencepost")


@dataclass(slots=True)
class Running:
    """What the engine hands over with an epoch: its staged rows, and a way to ask what it will write as `commits/N`."""

    kept: tuple[Kept, ...]
    snapshot: Callable[[], str]
    epoch: int | None = None


@dataclass(slots=True)
class Performer:
    """The real world of one driver."""

    job: str
    store: Store
    log: SparkLog
    sessions: Mapping[str, Session]
    running: Running = field(default_factory=lambda: Running((), str))
    repartition: Callable[[e.Repartition], e.Repartitioned] | None = None
    """What Spark does for a rescale."""
    noted_every: int = NOTED_EVERY
    """Epochs, after which a decision has the sums of all files that have none elsewhere; before retention takes it."""
    note: Callable[..., None] = lambda *_, **__: None
    """Told of the steps that people want to know."""
    _owner: Owner | None = None
    _doubted: float | None = None
    """Since when a create has not been answered."""
    _noted: bool = False
    _made: list[Handle] = field(default_factory=list)
    """The units of the last pre-commit."""

    def run(self, step: e.Step[T]) -> T:
        """Drive a piece of protocol to its end, with a crash point before and after every effect."""
        answer: Any = None
        while True:
            try:
                effect = step.send(answer)
            except StopIteration as stop:
                value: T = stop.value
                return value
            faults.reach(f"{effect.point}.before")
            began = time.monotonic()
            answer = _DO[type(effect)](self, effect)
            if (step_of := _TOLD.get(type(effect))) is not None:
                step_of(self, effect, answer, time.monotonic() - began)
            faults.reach(f"{effect.point}.after")

    @property
    def owner(self) -> Owner:
        """Who we are; known once recovery took over."""
        assert self._owner is not None, "recovery has not taken over yet"
        return self._owner

    def staging(self, lineage: str) -> Staging:
        """The staged rows of a lineage."""
        return Staging(place(self.store.root) / "fencepost" / lineage / "staged")

    def rollback(self, *, undecided: bool) -> None:
        """An epoch failed: sinks let go of what they hold."""
        for session in self.sessions.values():
            session.rollback(undecided=undecided)

    def undo(self) -> None:
        """The failed epoch is tried again, not recovered: undo its units here, or they stay as long as the driver."""
        for handle in self._made:
            with suppress(Exception):  # what cannot be undone now is an orphan for the next start
                self.sessions[handle.sink].abort(handle)

    def close(self) -> None:
        """Let go of the sinks."""
        for session in self.sessions.values():
            session.close()

    def _repartition(self, effect: e.Repartition) -> e.Repartitioned:
        assert self.repartition is not None, "only a rescale asks for it"
        return self.repartition(effect)

    # --- ledger

    def _names(self, effect: e.Names) -> tuple[int, ...]:
        names = self.store.list(ledger_folder(effect.lineage))
        found = tuple(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit())
        if effect.point == "recover.list":
            self.store.expect(record_name(effect.lineage, number) for number in found)
        return found

    def _read(self, effect: e.Read) -> bytes | None:
        return self.store.read(record_name(effect.lineage, effect.number))

    def _create(self, effect: e.Create) -> e.Created:
        try:
            created = self.store.create(record_name(effect.lineage, effect.number), effect.data)
        except Unanswered as error:
            now = time.monotonic()
            self._doubted = self._doubted or now
            if now - self._doubted > longest_s():  # a store that reads and does not write: recovery asks again
                raise
            log.warning("job %s: record %d is in doubt (%s); reading it", self.job, effect.number, error.strerror)
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

    def _take_snapshot(self, effect: e.TakeSnapshot) -> e.Snapshot:
        text = self.running.snapshot()
        # All of it at first and now and then: retention takes the decisions that have the sums.
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


def _mute(performer: Performer, effect: e.Mute) -> None:
    log.warning(
        "job %s: epoch %d was claimed by a driver that died; its rows may have left, so they are not sent again. "
        "Its range is in the ledger, in the claim of epoch %d.",
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
    done = sum(outcome is e.Outcome.DONE for outcome in answer.values())
    open_ = {outcome.value for outcome in answer.values()} - {e.Outcome.DONE.value}
    performer.note(
        Kind.COMMITTED, epoch=effect.epoch, sink=effect.sink, units=done, seconds=took, what=" ".join(open_) or None
    )


_TOLD: Mapping[type[e.Effect[Any]], Callable[[Performer, Any, Any, float], None]] = {
    e.PreCommit: _told_units,
    e.Vote: lambda p, effect, answer, took: p.note(Kind.VOTED, epoch=effect.epoch, sink=effect.sink, seconds=took),
    e.Create: _told_record,
    e.Commit: _told_outcome,
    e.Abort: lambda p, effect, answer, took: p.note(Kind.ABORTED, sink=effect.handle.sink, seconds=took),
}

_DO: Mapping[type[e.Effect[Any]], Callable[[Performer, Any], Any]] = {
    e.ReadIdentity: lambda p, effect: p.log.identity(),
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
    e.Again: Performer._again,
    e.Orphans: lambda p, effect: p.sessions[effect.sink].orphans(effect.before, at_leisure=effect.at_leisure),
    e.Abort: lambda p, effect: p.sessions[effect.handle.sink].abort(effect.handle),
    e.SweepStaged: Performer._sweep,
    e.WritePlainly: Performer._write_plainly,
    e.Mute: _mute,
    e.Wait: _wait,
}
