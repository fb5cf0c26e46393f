"""A job's health, judged from what it left: its ledger, Spark's log, its heartbeat and its journal.

    running    a driver is alive                     stopped    it ended cleanly
    starting   a driver is starting                  failed     it ended with an error, or gave up
    waiting    a driver will be started              dead       its driver is gone without an error
    silent     the process exists, but no heartbeat  unknown    cannot be told from this machine

Only reads, and never asks Spark or a sink. What cannot be read is reported, and the rest is shown all the same. The age
of a heartbeat from another machine depends on two clocks: if it looks old, nothing is concluded from that.
"""

from __future__ import annotations

import os
import socket
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from statistics import median
from typing import Final, Literal

from fencepost.errors import CheckpointRefused, FencepostError, Policy, Reason
from fencepost.observe import heartbeat, journal
from fencepost.observe.events import Event, Kind
from fencepost.observe.heartbeat import Beat
from fencepost.protocol.order import State
from fencepost.protocol.records import Epoch
from fencepost.store import Place, RemotePath, ledger, place, store_at
from fencepost.store.notes import read_plan
from fencepost.store.spark_log import SparkLog, source_lines, watermark_ms

Condition = Literal["running", "starting", "waiting", "silent", "stopped", "failed", "dead", "unknown"]

SLACK_S: Final = 60.0
"""How long after its announcement a start may still be under way."""
RECENT_S: Final = 600.0
"""The rate of epochs covers the job's last ten minutes."""

ASIDE: Final = {Kind.CALLBACK_FAILED, Kind.ABORTED, Kind.WARM, Kind.ASKED}
"""Events that say nothing about whether the job is running."""
FAILURES: Final = {Kind.FAILED, Kind.FENCED, Kind.DIED, Kind.GAVE_UP, Kind.TRIED_AGAIN}
DOUBT: Final = "in_doubt"
Found = tuple[Condition, float | None, float | None]
"""The condition, since when, and when a wait ends."""
ENDS: Final[dict[Kind, Condition]] = {
    Kind.STOPPED: "stopped",
    Kind.GAVE_UP: "failed",
    Kind.FAILED: "failed",
    Kind.FENCED: "failed",
}
NOWHERE: Final = "-"
"""How Spark writes the position of a source that had nothing yet."""
STEPS: Final = {Kind.OPENED, Kind.PRE_COMMITTED, Kind.VOTED, Kind.DECIDED, Kind.COMMITTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """An epoch that has begun and is not complete."""

    epoch: int
    step: str
    """The last known step: begun, opened, pre_committed, voted, decided, committed."""
    since: float
    doubt: str | None = None
    """The sink that did not answer whether it holds the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """A source that the watermark of a running job waits for."""

    what: str
    """Its kind, and the folder, topic or table."""
    epoch: int | None
    """The newest that read new records of it, or the oldest known; None if none did."""
    at: float | None
    """When that epoch began."""
    is_behind: bool
    """Another one of them had new records since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Everything that can be said about a job from outside. Note: `stopped` does not mean that nothing is open."""

    job: str
    checkpoint: str
    condition: Condition
    since: float | None = None
    until: float | None = None
    """When a wait ends."""
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
    """The journal's first event: nothing before it is counted."""
    failure: Event | None = None
    """The last failure."""
    is_over: bool = False
    """An epoch was completed after that failure."""
    per_minute: float | None = None
    median_s: float | None = None
    rest_s: float | None = None
    """How long it rested after its last epoch; None if its user sets the pace."""
    lag: Mapping[str, int] = field(default_factory=dict)
    """While it runs: by topic, the records that it has not read yet."""
    watermark: float | None = None
    """Of the next epoch; None if there is none, or if it has not moved yet."""
    feeds: tuple[Feed, ...] = ()
    damage: CheckpointRefused | None = None
    notes: tuple[str, ...] = ()

    @property
    def needs_a_person(self) -> bool:
        """Neither waiting nor a restart will help."""
        ended = self.condition in ("failed", "dead") and self.failure is not None and not self.is_over
        asks = ended and self.failure is not None and self.failure.reason in ("operator", "silent_sink")
        return self.damage is not None or asks or bool(self.flight and self.flight.doubt)

    @property
    def is_well(self) -> bool:
        """It is running, will run, or ended cleanly."""
        return self.condition in ("running", "starting", "waiting", "stopped")


def look(checkpoint: str | os.PathLike[str] | RemotePath) -> Health:
    """The health of this checkpoint's job; raises `CheckpointRefused` if there never was one."""
    root = place(checkpoint).absolute()
    return judge(root, list(journal.read(root)), lambda: ledger.read(root))


def judge(root: Place, events: Sequence[Event], read: Callable[[], State]) -> Health:
    """The same from events that were read before the ledger."""
    beats = heartbeat.beats(root)
    state, damage = _ledger(root, read)
    if damage is not None and damage.code == "no_ledger" and not events and not beats:
        raise damage
    evidence = _Evidence(root, state, events, beats, (state and state.writer) or journal.newest_writer(root))
    condition, since, until = evidence.condition()
    epoch, epoch_at = evidence.complete()
    # For a job that is not running: its speed when it last was.
    per_minute, median_s = _speed(events, time.time() if condition == "running" else epoch_at or 0.0)
    failed = next((n for n in range(len(events) - 1, -1, -1) if events[n].kind in FAILURES and events[n].code), None)
    standby = evidence.standby()
    beat = evidence.beat
    ended = condition in ("stopped", "failed")
    return Health(
        job=evidence.job,
        checkpoint=str(root),
        condition=condition,
        since=since,
        until=until,
        writer=evidence.writer,
        pid=None if ended else beat.pid if beat else evidence.pid,
        host=None if ended else evidence.host,
        supervisor=beat.supervisor if beat and condition == "running" else None,
        standby=None if standby is None else standby.process,
        standby_is_warm=standby is not None and standby.kind is Kind.WARM,
        guarantee=state.lineage.guarantee if state else None,
        generation=state.lineage.generation if state else 0,
        epoch=epoch,
        epoch_at=epoch_at,
        flight=evidence.flight(epoch),
        restarts=sum(event.kind is Kind.RESTARTED for event in events),
        known_since=_time(events[0]) if events else None,
        failure=None if failed is None else events[failed],
        is_over=failed is not None and any(e.kind is Kind.COMPLETE and not e.again for e in events[failed + 1 :]),
        per_minute=per_minute,
        median_s=median_s,
        rest_s=beat.rest_s if beat and condition == "running" else None,
        lag=beat.lag if beat and condition == "running" else {},
        watermark=evidence.watermark(epoch),
        feeds=evidence.feeds() if condition == "running" else (),
        damage=damage,
        notes=tuple(evidence.notes()),
    )


def _ledger(root: Place, read: Callable[[], State]) -> tuple[State | None, CheckpointRefused | None]:
    try:
        return read(), None
    except CheckpointRefused as error:
        if isinstance(error.__cause__, OSError) and isinstance(root, RemotePath):
            raise  # the store did not answer, which does not mean that the ledger is damaged
        return None, error


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What was read, and what follows from it."""

    root: Place
    state: State | None
    events: Sequence[Event]
    beats: Sequence[Beat]
    writer: int | None
    """The newest driver's number."""

    @property
    def job(self) -> str:
        """Its name, from wherever it is known."""
        if self.state is not None:
            return self.state.lineage.job
        return self.beats[0].job if self.beats else self.events[-1].job if self.events else self.root.name

    @property
    def beat(self) -> Beat | None:
        """The newest driver's heartbeat, if it got that far."""
        return next((beat for beat in self.beats if beat.writer == self.writer), None)

    @property
    def host(self) -> str | None:
        """The newest driver's machine."""
        if self.beat is not None:
            return self.beat.host
        return self.state.driver.host if self.state and self.state.driver else None

    @property
    def pid(self) -> int | None:
        """The newest known process, with or without a heartbeat."""
        last = self._last()
        return (
            (last.process or last.pid) if last else self.state.driver.pid if self.state and self.state.driver else None
        )

    def _last(self) -> Event | None:
        """The last event that says whether the job runs; a fenced driver's, or one's that never took over, does not."""
        for event in reversed(self.events):
            old = event.code == "supervisor_gone" or event.writer not in (None, self.writer)
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
            yield f"The newest driver ran on {self.host}, and its journal is there: run this command on that machine."
        elif not self.events:
            yield "There is no journal, so the job's history is not known."
        if beat is not None and beat.is_elsewhere:
            age = max(0.0, time.time() - beat.at_s)
            yield f"By this machine's clock the last heartbeat is {age:.0f} s old; the clock of {beat.host} may differ."

    def condition(self) -> Found:
        """The condition, since when, and until when if it waits."""
        beat, last = self.beat, None if self.is_elsewhere else self._last()
        if beat is not None and beat.lives:
            # The process may be older than the start: a standby, a notebook.
            began = [_time(e) for e in self.events if e.kind is Kind.STARTED and e.writer == beat.writer]
            return "running", began[-1] if began else beat.since_s, None
        if last is None:
            return self._by_the_ledger_alone()
        at = _time(last)
        if last.kind is Kind.FAILED and self._will_be_started_again(last, at):
            return "waiting", at, None
        if (end := ENDS.get(last.kind)) is not None:
            return end, at, None
        return self._on_its_way(last, at) or (
            ("silent" if beat is not None and beat.is_here else "dead"),
            at if beat is None else beat.at_s,
            None,
        )

    def _will_be_started_again(self, failed: Event, at: float) -> bool:
        """Its process is about to end, and its supervisor is alive and has not reported yet what comes next."""
        started = [event for event in self._of_the_driver() if event.kind is Kind.STARTED]
        supervisor = started[-1].supervisor if started else None
        final = any(failed.reason == reason.word and reason.policy is Policy.FINAL for reason in Reason)
        recent = time.time() - at < SLACK_S
        return supervisor is not None and recent and not final and self._may_live(supervisor, at)

    def _on_its_way(self, last: Event, at: float) -> Found | None:
        """Is a new driver under way?"""
        if last.kind in {Kind.RESTARTED, Kind.DIED}:
            until = at + (last.seconds or 0.0)
            if time.time() < until + SLACK_S and self._may_live(last.pid, at):
                return ("waiting", at, until) if time.time() < until else ("starting", until, None)
        # A driver sends no heartbeat before its query runs, and recovery of a large ledger takes time.
        begins = last.kind in {Kind.SPAWNED, Kind.TOOK_OVER, Kind.STARTED, Kind.RECOVERED}
        again = last.kind is Kind.COMPLETE and bool(last.again)
        left = self.beat is not None and self.beat.is_here  # a driver that was killed leaves its last heartbeat
        if (begins or again) and not left and self._may_live(last.process or last.pid, at):
            return "starting", at, None
        return None

    def _may_live(self, pid: int, at: float) -> bool:
        """Does the event's process still exist? On another host we can only go by how recent the event is."""
        if self.host not in (None, socket.gethostname()):
            return time.time() - at < SLACK_S
        return heartbeat.was_there(pid, at)

    def _by_the_ledger_alone(self) -> Found:
        """Without a journal: a clean end has its own record, and we can see whether a local process is gone."""
        state, beat = self.state, self.beat
        if beat is not None and beat.is_elsewhere and isinstance(self.root, RemotePath):
            return "unknown", beat.at_s, None
        if beat is not None:
            return ("silent" if beat.is_here else "dead"), beat.at_s, None
        if self.is_elsewhere and state is not None and state.open is None:
            return "stopped", None, None  # a running driver has a heartbeat, and one that died leaves it behind
        if state is None or state.driver is None or state.driver.host != socket.gethostname():
            return "unknown", None, None
        if heartbeat.exists(state.driver.pid):
            return "unknown", None, None
        return ("dead" if state.open else "stopped"), None, None

    def complete(self) -> tuple[int | None, float | None]:
        """The newest complete epoch, according to Spark's own log, if its commit is over too."""
        try:
            names = SparkLog(store_at(self.root)).names("commits")
        except OSError:
            return None, None
        if names and not journal.is_committed(self.events, names[-1]):
            names = names[:-1]
        if not names:
            return None, None
        told = (
            _time(e) for e in reversed(self.events) if e.kind is Kind.COMPLETE and e.epoch == names[-1] and not e.again
        )
        try:
            return names[-1], next(told, None) or (self.root / "commits" / str(names[-1])).stat().st_mtime
        except OSError:
            return names[-1], None

    def watermark(self, complete: int | None) -> float | None:
        """As Spark's log has it after the newest complete epoch."""
        try:
            text = None if complete is None else SparkLog(store_at(self.root)).read("commits", Epoch(complete))
        except OSError:
            return None
        return watermark_ms(text or "") / 1000 or None

    def feeds(self) -> tuple[Feed, ...]:
        """The sources that the watermark waits for: which epoch was the last to find something new in each."""
        if self.beat is None or not self.beat.awaited or self.state is None:
            return ()
        store, lineage = store_at(self.root), self.state.lineage
        log = SparkLog(store)
        try:
            noted = read_plan(store, (self.state.lineage_id, *reversed(lineage.ancestors))) or []
            uses = [source for branch in noted for source in branch.sources]
            what = {source.name or str(number): source.what for number, source in enumerate(uses)}
            epochs = log.names("offsets")
            lines = cache(lambda epoch: source_lines(log.read("offsets", Epoch(epoch)) or ""))
            newest = {what.get(name, name): _since(name, epochs, lines) for name in self.beat.awaited}
        except (OSError, FencepostError):
            return ()
        last = max((epoch for epoch in newest.values() if epoch is not None), default=-1)
        return tuple(
            Feed(
                what=what,
                epoch=epoch,
                at=None if epoch is None else self._changed("offsets", epoch),
                is_behind=epoch is None or epoch < last,
            )
            for what, epoch in newest.items()
        )

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
        """The newest driver's events; after a rewind, writer numbers start over."""
        mine = [event for event in self.events if event.writer == self.writer]
        began = [n for n, event in enumerate(mine) if event.kind is Kind.STARTED]
        return mine[began[-1] :] if began else mine

    def _changed(self, log: str, epoch: int) -> float:
        try:
            return (self.root / log / str(epoch)).stat().st_mtime
        except OSError:
            return time.time()

    def standby(self) -> Event | None:
        """The last event about a standby, if it is alive."""
        for event in reversed(self.events):
            if event.kind is Kind.TOOK_OVER:
                return None
            if event.kind is Kind.WARM or (event.kind is Kind.SPAWNED and event.what == "standby"):
                return event if event.process is not None and self._may_live(event.process, _time(event)) else None
        return None


def _since(source: str, epochs: Sequence[int], lines: Callable[[int], Mapping[str, str]]) -> int | None:
    """The first epoch that ends where the newest one does: positions only go forward."""
    ends = lines(epochs[-1]).get(source, NOWHERE) if epochs else NOWHERE
    if ends == NOWHERE:
        return None
    return epochs[bisect_left(epochs, True, key=lambda epoch: lines(epoch).get(source) == ends)]


def _speed(events: Sequence[Event], now: float) -> tuple[float | None, float | None]:
    """Epochs per minute and the median epoch, over the last minutes before `now`."""
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
