"""A driver's life: the real protocol, with a stand-in for Spark around it.

    recover, boot ─► epoch 0 ─► epoch 1 ─► epoch 2 ─► stop

A life is a row of phases. All that a phase starts from is a value, and what it does next depends on the answers it got
and on nothing else: so a life can be copied at any effect (by replaying the phase's answers), and two lives with equal
keys go on equally.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from fencepost.errors import FencepostError
from fencepost.protocol import effects as e
from fencepost.protocol import epoch, recover
from fencepost.protocol.append import Book
from fencepost.protocol.order import State
from fencepost.protocol.records import Epoch, Lineage, SinkRecord, Writer, WriterNumber
from fencepost.prove.model.check import Segment, Violation
from fencepost.prove.model.targets import Frozen, Job
from fencepost.prove.model.world import Boot, Complete, Plan, RunPlan

KEEP = 1
"""Retention so tight that a driver that slept finds freed numbers."""


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

    __slots__ = ("answers", "ended", "error", "id", "job", "number", "pending", "phase", "running", "steps", "writer")

    def __init__(self, number: int, job: Job, phase: Phase | None = None) -> None:
        self.number = number
        self.job = job
        self.ended = False
        self.error: Exception | None = None
        self.running: tuple[int, int, Segment] | None = None
        self.writer = 0
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
        self.steps: Generator[e.Effect[Any], Any, Phase | None] = _PHASES[self._kind(phase)](self, phase)
        self._step(None)

    def _kind(self, phase: Phase) -> str:
        if phase.state is None:
            return "recover"
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


def start_of(life: Life) -> recover.Start:
    """How a driver of the model's job starts."""
    sinks = Frozen({s.name: SinkRecord(s.shape, s.name) for s in life.job.sinks})
    return recover.Start(
        lineage=Lineage("job", "exactly_once", Epoch(0), sinks, Frozen()),
        sinks=tuple(s.facts for s in life.job.sinks),
        writer=Writer(f"driver-{life.number}", "host", 1, Frozen()),
        new_id=f"lineage-{life.number}",
        clock=_no_clock,
        keep=KEEP,
    )


def _no_clock() -> str:
    return ""


def _recover(life: Life, phase: Phase) -> e.Step[Phase | None]:
    book = yield from recover.recover(start_of(life))
    booted = yield from e.ask(Boot("boot"))
    if booted is None:
        raise QueryFailed("the engine's log cannot be read")
    return Phase(book.state, book.writer, book.present, *booted)


def _epoch(life: Life, phase: Phase) -> e.Step[Phase | None]:
    book = book_of(phase)
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
    yield from epoch.run_epoch(book, Epoch(phase.epoch), tuple(s.facts for s in life.job.sinks))
    if not (yield from e.ask(Complete("complete", phase.epoch, attempt))):
        raise QueryFailed("another query wrote commits")
    return Phase(book.state, book.writer, book.present, phase.epoch + 1, end, None, attempt)


def _stop(life: Life, phase: Phase) -> e.Step[Phase | None]:
    yield from epoch.mark_done(book_of(phase))
    return None


def book_of(phase: Phase) -> Book:
    """The driver's view of its ledger at the start of a phase."""
    assert phase.state is not None
    return Book(phase.state, WriterNumber(phase.writer), _no_clock, KEEP, phase.present)


_PHASES = {"recover": _recover, "epoch": _epoch, "stop": _stop}
