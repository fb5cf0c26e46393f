"""A driver's life: the real protocol, with a stand-in for Spark around it.

    recover, boot ─► epoch 0 ─► epoch 1 ─► [upkeep, start again] ─► epoch 2 ─► stop

With `overlap` a life has two strands: what the engine and the driver do, and the commit of the last epoch beside it.
Which of them takes the next step is not known to anybody, so the explorer tries both, at every step.

A life is a row of phases. All that a phase starts from is a value, and what it does next depends on the answers it got
and on nothing else: so a life can be copied at any effect (by replaying the phase's answers), and two lives with equal
keys go on equally.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple, cast

from fencepost.errors import CheckpointRefused, FencepostError, Retryable
from fencepost.protocol import effects as e
from fencepost.protocol import epoch, lineages, recovery
from fencepost.protocol.append import Book, read_ledger
from fencepost.protocol.order import State
from fencepost.protocol.records import Epoch, Lineage, SinkRecord, Writer, WriterNumber
from fencepost_proof.model.check import Segment, Violation
from fencepost_proof.model.targets import Frozen, Job
from fencepost_proof.model.world import Boot, Complete, Plan, RunPlan

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
    owed: bool = False
    """The last epoch is decided; it is not complete for the engine, and its commit has not begun."""

    @property
    def key(self) -> tuple[Any, ...]:
        """A state is what the records up to its last one say."""
        return (self.state.last_sum if self.state else "", *self[1:])


class Strand:
    """One row of effects; what it does next depends on the answers it got and on nothing else."""

    __slots__ = ("error", "id", "pending", "result", "steps")

    def __init__(self, steps: Generator[e.Effect[Any], Any, Any], key: int) -> None:
        self.steps = steps
        self.id = key
        self.error: Exception | None = None
        self.result: Any = None
        self.pending: e.Effect[Any] | None = None
        """None: it is over."""
        self.step(lambda: next(steps))

    def send(self, answer: Any) -> None:
        """Answer the pending effect and go on to the next."""
        self.id = hash((self.id, answer))
        self.step(lambda: self.steps.send(answer))

    def fail(self, error: Exception) -> None:
        """The pending effect could not be done: the strand ends with the error."""
        self.id = hash((self.id, type(error)))
        self.error, self.pending = error, None

    def step(self, go: Callable[[], e.Effect[Any]]) -> None:
        """Go on to the next effect, or to the end."""
        self.pending = None
        try:
            self.pending = go()
        except StopIteration as stop:
            self.result = stop.value
        except (FencepostError, QueryFailed) as error:
            self.error = error
        except Violation:
            raise
        except Exception as error:  # a bug in the protocol is a finding of the model
            raise Violation("stuck", f"{type(error).__name__}: {error}") from error


class Life:
    """One driver from its start to its end, one effect at a time."""

    __slots__ = (
        "ancestors",
        "answers",
        "behind",
        "front",
        "job",
        "lineage",
        "number",
        "phase",
        "running",
        "turned",
        "writer",
    )

    def __init__(self, number: int, job: Job, phase: Phase | None = None) -> None:
        self.number = number
        self.job = job
        self.running: tuple[int, int, Segment] | None = None
        self.turned: bool = False
        """Does the commit beside it take the next step?"""
        self.writer = 0
        self.lineage = ""
        self.ancestors: tuple[str, ...] = ()
        self._enter(phase or Phase())

    def copy(self) -> Life:
        """The same life at the same effect, free to go another way."""
        other = Life(self.number, self.job, self.phase)
        for turned, answer in self.answers:
            other.turned = turned
            other.send(answer)
        other.turned = self.turned
        return other

    @property
    def strand(self) -> Strand:
        """The one that takes the next step."""
        return self.behind if self.behind is not None and self.turned else self.front

    @property
    def pending(self) -> e.Effect[Any]:
        """What it is about to do."""
        assert self.strand.pending is not None
        return self.strand.pending

    @property
    def is_beside(self) -> bool:
        """Is a commit still running beside it?"""
        return self.behind is not None and self.behind.pending is not None

    @property
    def may_turn(self) -> bool:
        """May the other strand take the next step instead?"""
        return self.is_beside and not self.turned

    @property
    def is_turned(self) -> bool:
        """Was the other strand chosen, where this one could have gone on? Whatever else may happen here, did there."""
        return self.turned and self.is_beside and self.front.pending is not None and not self._waits

    def turn(self) -> Life:
        """A copy in which the other strand takes the next step."""
        other = self.copy()
        other.turned = True
        return other

    @property
    def ended(self) -> bool:
        """Are both strands over?"""
        return self.front.pending is None and not self.is_beside

    @property
    def error(self) -> Exception | None:
        """What ended it."""
        return self.front.error or (self.behind.error if self.behind is not None else None)

    @property
    def id(self) -> int:
        """Lives with equal ids in equal worlds have equal futures."""
        return hash((self.front.id, self.behind.id if self.behind is not None else 0, self.turned))

    def id_after(self, answer: Any) -> int:
        """The id of this life if it is answered so."""
        front, behind = self.front.id, self.behind.id if self.behind is not None else 0
        told = hash((self.strand.id, answer))
        return hash((front, told, False) if self.strand is self.behind else (told, behind, False))

    def send(self, answer: Any) -> None:
        """Answer the pending effect and go on to the next; an `Exception` says that it could not be done."""
        self.answers.append((self.turned, answer))
        if isinstance(answer, Exception):
            self.strand.fail(answer)
        else:
            self.strand.send(answer)
        self.turned = False
        self._go_on()

    def fail(self, error: Exception) -> None:
        """The pending effect could not be done."""
        self.send(error)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.answers: list[tuple[bool, Any]] = []
        self.turned = False
        self.writer = phase.writer
        if phase.state is not None:
            self.lineage, self.ancestors = phase.state.lineage_id, phase.state.lineage.ancestors
        self.behind: Strand | None = None
        self.front = Strand(_PHASES[self._kind(phase)](self, phase), hash((self.number, phase.key)))
        self._go_on()

    def _kind(self, phase: Phase) -> str:
        if phase.state is None:
            return "recover"
        if self.job.upkeep and phase.epoch == UPKEEP and not _kept_up(self.job, phase.state):
            return "upkeep"
        return "epoch" if phase.epoch < self.job.epochs else "stop"

    @property
    def _waits(self) -> bool:
        return isinstance(self.front.pending, e.Join)

    def _go_on(self) -> None:
        """Take the steps that are nobody's choice."""
        while self._waits or isinstance(self.front.pending, e.Beside):
            effect, front = self.front.pending, self.front
            if isinstance(effect, e.Beside):
                assert not self.is_beside, "at most one epoch behind"
                self.behind = Strand(effect.step, hash((front.id, "beside")))
                front.send(None)
            elif self.is_beside:
                break
            elif self.behind is not None and self.behind.error is not None:
                front.step(partial(front.steps.throw, self.behind.error))  # at every join: it stays so
            else:
                front.id = hash((front.id, self.behind.id if self.behind is not None else 0))
                self.behind = None
                front.send(None)
        self.turned = self.is_beside and (self.front.pending is None or self._waits)
        if self.front.pending is None and self.front.error is None and not self.is_beside:
            if self.front.result is not None:
                self._enter(self.front.result)
        elif isinstance(self.front.pending, e.OpenSinks):
            opened = self.front.pending
            self.writer, self.lineage, self.ancestors = opened.writer, opened.lineage, opened.ancestors


def start_of(life: Life) -> recovery.Start:
    """How a driver of the model's job starts."""
    sinks = Frozen({s.name: SinkRecord(s.shape, s.name) for s in life.job.sinks})
    return recovery.Start(
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
    yield from _stop(life, phase)
    assert phase.state is not None
    yield from _command(life, phase.state.lineage_id)
    return None


def _command(life: Life, lineage: str) -> e.Step[None]:
    person = Writer(f"person-{life.number}", "host", 1, Frozen())
    if life.job.upkeep == "rescale":
        yield from lineages.rescale("job", lineage, 1, person, _no_clock)
    else:
        fate = cast("lineages.Fate", life.job.upkeep)
        wish = lineages.Continuation("job", Epoch(0), fate, person, f"anew-{life.number}", _no_clock)
        yield from lineages.rewind(wish, lineage)
    raise QueryFailed("the command is done: the job is to be started")


def _no_clock() -> str:
    return ""


def _recover(life: Life, phase: Phase) -> e.Step[Phase | None]:
    try:
        book = yield from recovery.recover(start_of(life))
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
    book = yield from _begin(life, phase)
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
    try:
        owed = yield from _run_epoch(life, book, phase)
    except Retryable:
        if not epoch.may_try_again(book, Epoch(phase.epoch)):
            raise
        owed = yield from _run_epoch(life, book, phase)  # as a driver does that bears a failed epoch
    if not owed:
        yield from _complete(phase.epoch, attempt)
    return Phase(book.state, book.writer, book.present, phase.epoch + 1, end, None, attempt, owed)


def _run_epoch(life: Life, book: Book, phase: Phase) -> e.Step[bool]:
    """The real one; True if it leaves its commit to the next phase, which begins with that."""
    sinks = tuple(s.facts for s in life.job.sinks)
    step = epoch.run_epoch(book, Epoch(phase.epoch), sinks, overlap=life.job.overlap)
    go: Callable[[], e.Effect[Any]] = step.__next__
    while True:
        try:
            effect = go()
        except StopIteration:
            return False
        if isinstance(effect, e.Beside):
            return True
        try:
            go = partial(step.send, (yield effect))
        except FencepostError as error:
            go = partial(step.throw, error)


def _begin(life: Life, phase: Phase) -> e.Step[Book]:
    """What is owed of the last epoch: its commit begins, and the engine goes on beside it."""
    book = book_of(phase, life.job)
    if phase.owed:
        order = epoch.in_commit_order(s.facts for s in life.job.sinks)
        yield from e.ask(e.Beside("overlap.begin", epoch.commit_beside(book, order)))
        assert phase.attempt is not None
        yield from _complete(phase.epoch - 1, phase.attempt)
    return book


def _complete(number: int, attempt: str) -> e.Step[None]:
    if not (yield from e.ask(Complete("complete", number, attempt))):
        raise QueryFailed("another query wrote commits")


def _stop(life: Life, phase: Phase) -> e.Step[Phase | None]:
    book = yield from _begin(life, phase)
    if life.job.overlap:
        yield from epoch.stop(book, tuple(s.facts for s in life.job.sinks))
    else:
        yield from epoch.mark_done(book)  # what it tidies up after that, every epoch has shown
    return None


def book_of(phase: Phase, job: Job) -> Book:
    """The driver's view of its ledger at the start of a phase."""
    assert phase.state is not None
    return Book(phase.state, WriterNumber(phase.writer), _no_clock, _keep(job), phase.present)


_PHASES = {"recover": _recover, "epoch": _epoch, "upkeep": _upkeep, "stop": _stop}
