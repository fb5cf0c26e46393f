"""How a job is, from what it left: its ledger, Spark's log, its pulse and its journal.

    running    a driver lives                        stopped    it ended in order
    starting   one is on its way                     failed     it ended with an error, or gave up
    waiting    one will be started                   dead       its driver is gone without a word
    silent     the process is there, its pulse not   unknown    from here nobody can tell

Only reads, and never asks Spark or a sink. Whatever cannot be read is said, and the rest is told all the same. A beat
of another machine is as old as two clocks say: where it looks old, nothing is concluded from it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Final, Literal

from fencepost.checkpoints import reader
from fencepost.errors import CheckpointRefused
from fencepost.ledger import Place, RemotePath, place, store_at
from fencepost.observe import journal, pulse
from fencepost.observe.events import Event, Kind
from fencepost.observe.pulse import Beat
from fencepost.protocol.order import State
from fencepost.spark.checkpoint import SparkLog
from fencepost.supervise.reasons import Policy, Reason

Condition = Literal["running", "starting", "waiting", "silent", "stopped", "failed", "dead", "unknown"]

SLACK_S: Final = 60.0
"""So long after it was said, a start may still be on its way."""
RECENT_S: Final = 600.0
"""The rate of epochs is that of the job's last ten minutes."""

ASIDE: Final = {Kind.CALLBACK_FAILED, Kind.ABORTED, Kind.WARM}
"""Says nothing about whether the job runs."""
FAILURES: Final = {Kind.FAILED, Kind.FENCED, Kind.DIED, Kind.GAVE_UP, Kind.TRIED_AGAIN}
DOUBT: Final = "in_doubt"
Found = tuple[Condition, float | None, float | None]
"""The condition, since when, and the end of a wait."""
ENDS: Final[dict[Kind, Condition]] = {
    Kind.STOPPED: "stopped",
    Kind.GAVE_UP: "failed",
    Kind.FAILED: "failed",
    Kind.FENCED: "failed",
}
STEPS: Final = {Kind.OPENED, Kind.PRE_COMMITTED, Kind.VOTED, Kind.DECIDED, Kind.COMMITTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """An epoch that began and is not complete."""

    epoch: int
    step: str
    """The last one known: begun, opened, pre_committed, voted, decided, committed."""
    since: float
    doubt: str | None = None
    """The sink that did not say whether it holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """All that can be told of a job from outside. The mistake people make: taking `stopped` for "nothing is open"."""

    job: str
    checkpoint: str
    condition: Condition
    since: float | None = None
    until: float | None = None
    """Of a wait: its end."""
    writer: int | None = None
    pid: int | None = None
    host: str | None = None
    supervisor: int | None = None
    standby: int | None = None
    standby_is_warm: bool = False
    guarantee: str | None = None
    generation: int = 0
    epoch: int | None = None
    """The newest complete one."""
    epoch_at: float | None = None
    flight: Flight | None = None
    restarts: int = 0
    known_since: float | None = None
    """The journal's first event: what was before is not counted."""
    failure: Event | None = None
    """The last one."""
    is_over: bool = False
    """An epoch was completed since that failure."""
    per_minute: float | None = None
    median_s: float | None = None
    damage: CheckpointRefused | None = None
    notes: tuple[str, ...] = ()

    @property
    def needs_a_person(self) -> bool:
        """Nothing gets better by waiting, or by starting it again."""
        ended = self.condition in ("failed", "dead") and self.failure is not None and not self.is_over
        asks = ended and self.failure is not None and self.failure.reason in ("operator", "silent_sink")
        return self.damage is not None or asks or bool(self.flight and self.flight.doubt)

    @property
    def is_well(self) -> bool:
        """It runs, will run, or ended in order."""
        return self.condition in ("running", "starting", "waiting", "stopped")


def look(checkpoint: str | os.PathLike[str] | RemotePath) -> Health:
    """How the job of this checkpoint is; `CheckpointRefused` if there never was one."""
    root = place(checkpoint).absolute()
    events = list(journal.read(root))
    beats = pulse.beats(root)
    state, damage = _ledger(root)
    if damage is not None and damage.code == "no_ledger" and not events and not beats:
        raise damage
    facts = _Facts(root, state, events, beats, (state and state.writer) or journal.newest_writer(root))
    condition, since, until = facts.condition()
    epoch, epoch_at = facts.complete()
    # Of a job that does not run: as it was when it did.
    per_minute, median_s = _speed(events, time.time() if condition == "running" else epoch_at or 0.0)
    failed = next((n for n in range(len(events) - 1, -1, -1) if events[n].kind in FAILURES and events[n].code), None)
    standby = facts.standby()
    beat = facts.beat
    ended = condition in ("stopped", "failed")
    return Health(
        job=facts.job,
        checkpoint=str(root),
        condition=condition,
        since=since,
        until=until,
        writer=facts.writer,
        pid=None if ended else beat.pid if beat else facts.pid,
        host=None if ended else facts.host,
        supervisor=beat.supervisor if beat and condition == "running" else None,
        standby=None if standby is None else standby.process,
        standby_is_warm=standby is not None and standby.kind is Kind.WARM,
        guarantee=state.lineage.guarantee if state else None,
        generation=state.lineage.generation if state else 0,
        epoch=epoch,
        epoch_at=epoch_at,
        flight=facts.flight(epoch),
        restarts=sum(event.kind is Kind.RESTARTED for event in events),
        known_since=_time(events[0]) if events else None,
        failure=None if failed is None else events[failed],
        is_over=failed is not None and any(e.kind is Kind.COMPLETE and not e.again for e in events[failed + 1 :]),
        per_minute=per_minute,
        median_s=median_s,
        damage=damage,
        notes=tuple(facts.notes()),
    )


def _ledger(root: Place) -> tuple[State | None, CheckpointRefused | None]:
    try:
        return reader.read(root), None
    except CheckpointRefused as error:
        if error.code == "checkpoint_unreadable" and isinstance(root, RemotePath):
            raise  # it is not damaged: who knows
        return None, error


@dataclass(frozen=True, slots=True)
class _Facts:
    """What was read, and what follows from it."""

    root: Place
    state: State | None
    events: Sequence[Event]
    beats: Sequence[Beat]
    writer: int | None
    """The newest driver's number."""

    @property
    def job(self) -> str:
        """Its name, wherever it is said."""
        if self.state is not None:
            return self.state.lineage.job
        return self.beats[0].job if self.beats else self.events[-1].job if self.events else self.root.name

    @property
    def beat(self) -> Beat | None:
        """Of the newest driver, if it ever came so far."""
        return next((beat for beat in self.beats if beat.writer == self.writer), None)

    @property
    def host(self) -> str | None:
        """Its machine."""
        if self.beat is not None:
            return self.beat.host
        return self.state.driver.host if self.state and self.state.driver else None

    @property
    def pid(self) -> int | None:
        """The newest process that is known, with or without a beat."""
        last = self._last()
        return (
            (last.process or last.pid) if last else self.state.driver.pid if self.state and self.state.driver else None
        )

    def _last(self) -> Event | None:
        """The last word about the job's life; an old driver that learns that it was fenced has none."""
        for event in reversed(self.events):
            old = event.writer is not None and event.writer != self.writer
            if not old and event.kind not in ASIDE and not (event.kind is Kind.SPAWNED and event.what == "standby"):
                return event
        return None

    @property
    def is_elsewhere(self) -> bool:
        """Did the newest driver run on another machine, whose journal is not here?"""
        return isinstance(self.root, RemotePath) and self.host not in (None, socket.gethostname())

    def notes(self) -> Iterator[str]:
        """What is not known, and why."""
        beat = self.beat
        if self.is_elsewhere:
            yield f"The newest driver ran on {self.host}, and its journal is there: what happened is not known here."
        elif not self.events:
            yield "There is no journal: what happened before is not known."
        if beat is not None and beat.is_elsewhere:
            age = max(0.0, time.time() - beat.at)
            yield f"By this machine's clock its last beat is {age:.0f} s old; the clock of {beat.host} may differ."

    def condition(self) -> Found:
        """Since when, and until when if it waits."""
        beat, last = self.beat, None if self.is_elsewhere else self._last()
        if beat is not None and beat.lives:
            # The process may be older: a standby, a notebook.
            began = [_time(e) for e in self.events if e.kind is Kind.STARTED and e.writer == beat.writer]
            return "running", began[-1] if began else beat.since, None
        if last is None:
            return self._by_the_ledger_alone()
        at = _time(last)
        if last.kind is Kind.FAILED and self._will_be_started_again(last, at):
            return "waiting", at, None
        if (end := ENDS.get(last.kind)) is not None:
            return end, at, None
        return self._on_its_way(last, at) or (
            ("silent" if beat is not None and beat.is_here else "dead"),
            at if beat is None else beat.at,
            None,
        )

    def _will_be_started_again(self, failed: Event, at: float) -> bool:
        """Its process is about to end, and its supervisor is there and has not said yet what follows."""
        started = [event for event in self._of_the_driver() if event.kind is Kind.STARTED]
        supervisor = started[-1].supervisor if started else None
        final = any(failed.reason == reason.word and reason.policy is Policy.FINAL for reason in Reason)
        recent = time.time() - at < SLACK_S
        return supervisor is not None and recent and not final and self._may_live(supervisor, at)

    def _on_its_way(self, last: Event, at: float) -> Found | None:
        """Will a driver be there soon?"""
        if last.kind in {Kind.RESTARTED, Kind.DIED}:
            until = at + (last.seconds or 0.0)
            if time.time() < until + SLACK_S and self._may_live(last.pid, at):
                return ("waiting", at, until) if time.time() < until else ("starting", until, None)
        # A driver has no pulse before its query runs; recovery of a large ledger takes its time.
        begins = last.kind in {Kind.SPAWNED, Kind.TOOK_OVER, Kind.STARTED, Kind.RECOVERED}
        again = last.kind is Kind.COMPLETE and bool(last.again)
        left = self.beat is not None and self.beat.is_here  # one that died by force leaves its last beat
        if (begins or again) and not left and self._may_live(last.process or last.pid, at):
            return "starting", at, None
        return None

    def _may_live(self, pid: int, at: float) -> bool:
        """Is the process there that an event was about? Of another host's only so much is known that it was."""
        if self.host not in (None, socket.gethostname()):
            return time.time() - at < SLACK_S
        return pulse.was_there(pid, at)

    def _by_the_ledger_alone(self) -> Found:
        """Without a journal: a clean end has a record of its own, and of a process it can be seen that it is gone."""
        state, beat = self.state, self.beat
        if beat is not None and beat.is_elsewhere and isinstance(self.root, RemotePath):
            return "unknown", beat.at, None
        if beat is not None:
            return ("silent" if beat.is_here else "dead"), beat.at, None
        if self.is_elsewhere and state is not None and state.open is None:
            return "stopped", None, None  # one that dies leaves its beat, one that runs has one
        if state is None or state.driver is None or state.driver.host != socket.gethostname():
            return "unknown", None, None
        if pulse.exists(state.driver.pid):
            return "unknown", None, None
        return ("dead" if state.open else "stopped"), None, None

    def complete(self) -> tuple[int | None, float | None]:
        """The newest complete epoch, by Spark's own log: it is written last."""
        try:
            names = SparkLog(store_at(self.root)).names("commits")
        except OSError:
            return None, None
        if not names:
            return None, None
        told = (
            _time(e) for e in reversed(self.events) if e.kind is Kind.COMPLETE and e.epoch == names[-1] and not e.again
        )
        try:
            return names[-1], next(told, None) or (self.root / "commits" / str(names[-1])).stat().st_mtime
        except OSError:
            return names[-1], None

    def flight(self, complete: int | None) -> Flight | None:
        """The epoch after the complete one, if it has begun."""
        epoch = -1 if complete is None else complete
        mine = [e for e in self._of_the_driver() if e.epoch == epoch + 1 and e.kind in STEPS]
        opened = self.state.open if self.state else None
        if opened is not None and opened.epoch > epoch and not mine:
            return Flight(epoch=opened.epoch, step="decided", since=self._changed("offsets", opened.epoch))
        if not mine:
            begun = (self.root / "offsets" / str(epoch + 1)).exists()
            return Flight(epoch=epoch + 1, step="begun", since=self._changed("offsets", epoch + 1)) if begun else None
        last = mine[-1]
        doubt = last.sink if last.kind is Kind.COMMITTED and DOUBT in (last.what or "") else None
        return Flight(epoch=epoch + 1, step=last.kind.value, since=_time(last), doubt=doubt)

    def _of_the_driver(self) -> Sequence[Event]:
        """What the newest driver noted; a rewind begins its numbers anew."""
        mine = [event for event in self.events if event.writer == self.writer]
        began = [n for n, event in enumerate(mine) if event.kind is Kind.STARTED]
        return mine[began[-1] :] if began else mine

    def _changed(self, log: str, epoch: int) -> float:
        try:
            return (self.root / log / str(epoch)).stat().st_mtime
        except OSError:
            return time.time()

    def standby(self) -> Event | None:
        """The last word about a second driver that waits, if it lives."""
        for event in reversed(self.events):
            if event.kind is Kind.TOOK_OVER:
                return None
            if event.kind is Kind.WARM or (event.kind is Kind.SPAWNED and event.what == "standby"):
                return event if event.process is not None and self._may_live(event.process, _time(event)) else None
        return None


def _speed(events: Sequence[Event], now: float) -> tuple[float | None, float | None]:
    """Epochs a minute and the median epoch, over the last minutes before `now`."""
    begin = now - RECENT_S
    done = [e.seconds for e in events if e.kind is Kind.COMPLETE and e.seconds is not None and _time(e) > begin]
    if not done:
        return None, None
    span = now - max(begin, _time(events[0]))
    return (60 * len(done) / span if span >= 1 else None), median(done)


def _time(event: Event) -> float:
    try:
        return datetime.fromisoformat(event.at).timestamp()
    except (ValueError, TypeError):
        return 0.0


def instant(seconds: float | None) -> str | None:
    """As the ledger writes times."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
