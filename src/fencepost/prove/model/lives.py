"""A driver's life: the real protocol, with a stand-in for Spark around it.

    recover, boot ─► epoch 0 ─► epoch 1 ─► [upkeep, start again] ─► epoch 2 ─► stop

A life is a row of phases. All that a phase starts from is a value, and what it does next depends on the answers it got
and on nothing else: so a life can be copied at any effect (by replaying the phase's answers), and two lives with equal
keys go on equally.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, cast

from fencepost.errors import CheckpointRefused, FencepostError, Retryable
from fencepost.protocol import effects as e
from fencepost.protocol import epoch, lineages, recover
from fencepost.protocol.append import Book, read_ledger
from fencepost.protocol.order import State
from fencepost.protocol.records import Epoch, Lineage, SinkRecord, Writer, WriterNumber
from fencepost.prove.model.check import Segment, Violation
from fencepost.prove.model.targets import Frozen, Job
from fencepost.prove.model.world import Boot, Complete, Plan, RunPlan

KEEP = 1
"""Retention so tight that a driver that slept finds freed numbers."""

UPKEEP = 2
"""When so many epochs are done, a person stops the job and does something with its checkpoint."""


class QueryFailed(Exception):
    """Spark gave up: somebody else wrote its log, or it cannot be read."""


class Phase(NamedTuple):
    """Where a phase starts from; `state` None is recovery, an epoch beyond the job's is the orderly stop."""

    state: State | None = None
    writer: int = 0
    present: tuple[int, ...] = ()
    epoch: int = 0
    start: int = 0
    end: int | None = None
    attempt: str | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """A state is what the records up to its last one say."""
        return (self.state.last_sum if self.state else "", *self[1:])


class Life:
    """One driver from its start to its end, one effect at a time."""

    __slots__ = (
        "ancestors",
        "answers",
        "ended",
        "error",
        "id",
        "job",
        "lineage",
        "number",
        "pending",
        "phase",
        "running",
        "steps",
        "writer",
    )

    def __init__(self, number: int, job: Job, phase: Phase | None = None) -> None:
        self.number = number
        self.job = job
        self.ended = False
        self.error: Exception | None = None
        self.running: tuple[int, int, Segment] | None = None
        self.writer = 0
        self.lineage = ""
        self.ancestors: tuple[str, ...] = ()
        self._enter(phase or Phase())

    def copy(self) -> Life:
        """The same life at the same effect, free to go another way."""
        other = Life(self.number, self.job, self.phase)
        for answer in self.answers:
            other.send(answer)
        if self.error is not None:
            other.fail(self.error)
        return other

    def send(self, answer: Any) -> None:
        """Answer the pending effect and go on to the next."""
        self.answers.append(answer)
        self.id = self.id_after(answer)
        self._step(answer)

    def id_after(self, answer: Any) -> int:
        """The id of this life if it is answered so."""
        return hash((self.id, answer))

    def fail(self, error: Exception) -> None:
        """The pending effect could not be done: the driver ends with the error."""
        self.ended = True
        self.error = error
        self.id = self.id_after(type(error))

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.answers: list[Any] = []
        self.id = hash((self.number, phase.key))
        """Lives with equal ids in equal worlds have equal futures."""
        self.writer = phase.writer
        if phase.state is not None:
            self.lineage, self.ancestors = phase.state.lineage_id, phase.state.lineage.ancestors
        self.steps: Generator[e.Effect[Any], Any, Phase | None] = _PHASES[self._kind(phase)](self, phase)
        self._step(None)

    def _kind(self, phase: Phase) -> str:
        if phase.state is None:
            return "recover"
        if self.job.upkeep and phase.epoch == UPKEEP and not _kept_up(self.job, phase.state):
            return "upkeep"
        return "epoch" if phase.epoch < self.job.epochs else "stop"

    def _step(self, answer: Any) -> None:
        try:
            self.pending: e.Effect[Any] = self.steps.send(answer)
        except StopIteration as stop:
            if stop.value is None:
                self.ended = True
            else:
                self._enter(stop.value)
        except (FencepostError, QueryFailed) as error:
            self.ended = True
            self.error = error
        except Violation:
            raise
        except Exception as error:  # a bug in the protocol is a finding of the model
            raise Violation("stuck", f"{type(error).__name__}: {error}") from error
        else:
            if type(self.pending) is e.OpenSinks:
                self.writer = self.pending.writer
                self.lineage, self.ancestors = self.pending.lineage, self.pending.ancestors


def start_of(life: Life) -> recover.Start:
    """How a driver of the model's job starts."""
    sinks = Frozen({s.name: SinkRecord(s.shape, s.name) for s in life.job.sinks})
    return recover.Start(
        lineage=Lineage("job", "exactly_once", Epoch(0), sinks, Frozen()),
        sinks=tuple(s.facts for s in life.job.sinks),
        writer=Writer(f"driver-{life.number}", "host", 1, Frozen()),
        new_id=f"lineage-{life.number}",
        clock=_no_clock,
        keep=_keep(life.job),
    )


def _keep(job: Job) -> int:
    """A rewind needs the epoch it goes back to."""
    return UPKEEP if job.upkeep else KEEP


def _kept_up(job: Job, state: State) -> bool:
    """Has the person done it?"""
    return state.lineage.generation > 0 if job.upkeep != "rescale" else state.next_epoch > UPKEEP


def _upkeep(life: Life, phase: Phase) -> e.Step[Phase | None]:
    """The job is stopped, a person's command runs, and the job is started again."""
    yield from epoch.mark_done(book_of(phase, life.job))
    assert phase.state is not None
    yield from _command(life, phase.state.lineage_id)
    return None


def _command(life: Life, lineage: str) -> e.Step[None]:
    person = Writer(f"person-{life.number}", "host", 1, Frozen())
    if life.job.upkeep == "rescale":
        yield from lineages.rescale("job", lineage, 1, person, _no_clock)
    else:
        fate = cast("lineages.Fate", life.job.upkeep)
        wish = lineages.Anew("job", Epoch(0), fate, person, f"anew-{life.number}", _no_clock)
        yield from lineages.rewind(wish, lineage)
    raise QueryFailed("the command is done: the job is to be started")


def _no_clock() -> str:
    return ""


def _recover(life: Life, phase: Phase) -> e.Step[Phase | None]:
    try:
        book = yield from recover.recover(start_of(life))
    except CheckpointRefused as error:
        if error.code != "sealed":
            raise
        found = yield from e.ask(e.ReadIdentity("repeat"))
        assert found.metadata is not None
        if (yield from read_ledger(found.metadata, "job")).sealed is None:
            raise QueryFailed("it goes on by another name") from error
        yield from _command(life, found.metadata)
        return None
    booted = yield from e.ask(Boot("boot"))
    if booted is None:
        raise QueryFailed("the engine's log cannot be read")
    return Phase(book.state, book.writer, book.present, *booted)


def _epoch(life: Life, phase: Phase) -> e.Step[Phase | None]:
    book = book_of(phase, life.job)
    end = phase.end
    if end is None:
        end = yield from e.ask(Plan("plan", phase.epoch))
    if end is None:
        raise QueryFailed("another query wrote offsets")
    run = RunPlan("run", phase.epoch, phase.start, end, phase.attempt, phase.writer)
    attempt = yield from e.ask(run)
    if attempt is None:
        raise QueryFailed("the state is not there")
    life.running = (phase.writer, phase.epoch, (phase.start, end, attempt))
    sinks = tuple(s.facts for s in life.job.sinks)
    try:
        yield from epoch.run_epoch(book, Epoch(phase.epoch), sinks)
    except Retryable:
        if not epoch.may_try_again(book, Epoch(phase.epoch)):
            raise
        yield from epoch.run_epoch(book, Epoch(phase.epoch), sinks)  # as a driver does that bears a failed epoch
    if not (yield from e.ask(Complete("complete", phase.epoch, attempt))):
        raise QueryFailed("another query wrote commits")
    return Phase(book.state, book.writer, book.present, phase.epoch + 1, end, None, attempt)


def _stop(life: Life, phase: Phase) -> e.Step[Phase | None]:
    yield from epoch.mark_done(book_of(phase, life.job))
    return None


def book_of(phase: Phase, job: Job) -> Book:
    """The driver's view of its ledger at the start of a phase."""
    assert phase.state is not None
    return Book(phase.state, WriterNumber(phase.writer), _no_clock, _keep(job), phase.present)


_PHASES = {"recover": _recover, "epoch": _epoch, "upkeep": _upkeep, "stop": _stop}
