"""All that a checkpoint tells about its job, for somebody who looks again and again: a page, a metric, a terminal.

    ledger     what was decided: the newest records, and any page of older ones
    journal    how long it took, every start, every failure
    pulse      is the driver alive
    offsets    what Spark is reading now

Only reads, and never asks Spark or a sink: the job may be running, stopped or dead. A ledger of any length is opened
by its newest records; an older epoch is found by halving. Never a row's value and never a secret: none is kept.
"""

from __future__ import annotations

import json
import os
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil
from typing import Any, Final

from fencepost.errors import CheckpointRefused, FencepostError
from fencepost.observe import health, history
from fencepost.observe.events import Event, Kind
from fencepost.observe.health import DOUBT, Health
from fencepost.observe.history import Epoch
from fencepost.observe.journal import Follower, is_committed
from fencepost.protocol.format import Damaged
from fencepost.protocol.order import State
from fencepost.protocol.records import Claim, Decision, Done, Handle, Record, Redo, Void, Writer, decode
from fencepost.protocol.records import Epoch as Number
from fencepost.store import Place, Store, place
from fencepost.store.ledger import LedgerReader
from fencepost.store.notes import BranchNote, read_plan
from fencepost.store.spark_log import SparkLog, source_lines

WINDOW: Final = 200
"""Records of the ledger's end that every look reads; by default a job keeps a hundred decisions."""
SCANNED: Final = 2000
"""Records that one page looks through for what was asked; the next page goes on from there."""
FRESH_S: Final = 60.0
"""After this long everything is read again: a damaged record that was repaired, or one that was damaged since."""
MOST: Final = 500
"""Epochs on one page."""
TIMELINE: Final = frozenset(Kind) - {
    Kind.OPENED,
    Kind.PRE_COMMITTED,
    Kind.VOTED,
    Kind.DECIDED,
    Kind.COMMITTED,
    Kind.COMPLETE,
}
"""Events of starts, ends and failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which epochs a page shows."""

    before: int | None = None
    """Only epochs below this one."""
    count: int = 50
    standing: str | None = None
    sink: str | None = None
    """Only those with rows for it."""
    trouble: bool = False
    """Only those that were tried more than once, or failed."""

    @property
    def is_filtered(self) -> bool:
        """Are some left out?"""
        return self.standing is not None or self.sink is not None or self.trouble

    def takes(self, epoch: Epoch) -> bool:
        """Is it one of those?"""
        return (
            (self.standing is None or epoch.standing == self.standing)
            and (self.sink is None or self.sink in epoch.sinks)
            and (not self.trouble or epoch.failure is not None or (epoch.attempts or 1) > 1)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPage:
    """Some epochs, newest first."""

    epochs: tuple[Epoch, ...]
    before: int | None
    """Where the next page begins; None if this is the last one."""
    oldest: int | None
    newest: int | None
    """Of all that are retained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a figure is spread over some epochs; all in seconds."""

    count: int
    p50: float
    p90: float
    p99: float
    longest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """By the nearest rank; None without values."""
        if not values:
            return None
        ranked = sorted(values)
        p50, p90, p99 = (ranked[ceil(share * len(ranked)) - 1] for share in (0.5, 0.9, 0.99))
        return cls(count=len(ranked), p50=p50, p90=p90, p99=p99, longest=ranked[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStanding:
    """What the ledger says a sink must hold, against what it confirmed."""

    name: str
    shape: str
    target: str
    decided: int | None
    """The newest decided epoch that had rows for it."""
    confirmed: int | None
    """The newest epoch with rows for it that it is known to hold."""
    rows: int | None
    """In the newest decided epoch that had rows for it, if that is among the newest records."""
    at: str | None
    """When it confirmed, if the journal still has it."""
    doubt: bool
    """It did not say whether it holds the newest one."""
    deadline_s: float | None
    """Until its open transaction times out; negative: it has."""
    timeout_s: float | None
    """Of that transaction."""
    aborted: int
    """Units that no decision named and that were undone, as far as the journal goes back."""
    dead_letters: int
    """Rows that it confirmed and that are dead letters, as far as the journal goes back."""

    @property
    def meets(self) -> bool:
        """Does it hold all that is decided?"""
        return self.decided is None or self.decided == self.confirmed


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStanding:
    """How far a source is read, as Spark writes it."""

    name: str
    what: str
    """Its kind, and the folder, topic or table; "" if nobody noted it."""
    reading: str | None
    """Where the newest barrier is."""
    decided: str | None

    @property
    def meets(self) -> bool:
        """Is all that is being read decided?"""
        return self.reading == self.decided


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One look at a job."""

    health: Health
    rows_per_s: float | None
    """Over the last minute of its epochs."""
    spread: Spread | None
    """From the rows of an epoch to their commit, as far as the journal goes back."""
    recent: tuple[Epoch, ...] = ()
    """The newest epochs, oldest first."""
    sinks: tuple[SinkStanding, ...] = ()
    sources: tuple[SourceStanding, ...] = ()
    records: int | None = None
    """The number of the ledger's newest record."""
    first: int = 0
    """The epoch that this lineage began with."""
    verified: int | None = None
    """The oldest record that this look verified; older ones were not read."""
    journal: str | None = None
    """Why the journal cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochDetail:
    """Everything known about one epoch."""

    epoch: Epoch
    events: tuple[Event, ...] = ()
    handles: tuple[Handle, ...] = ()
    """Without the names of staged files."""
    record: Record | None = None
    text: str = ""
    """The record itself, indented."""
    oldest: int = 0
    newest: int = 0
    """Of all that are retained."""


@dataclass(slots=True)
class _Reading:
    """What was read together."""

    events: list[Event]
    steps: Mapping[int, list[Event]]
    log: SparkLog
    reader: LedgerReader
    state: State
    numbers: tuple[int, ...]
    """Of the ledger's records that count, without record 0."""
    offsets: tuple[int, ...]
    commits: tuple[int, ...]
    complete: set[int]

    def record(self, number: int) -> Record | None:
        """None for one that is damaged, or that retention took a moment ago."""
        return _decoded(self.reader.record(number))


class JobArchive:
    """One checkpoint. May be used by several threads; each look waits for the one before it."""

    def __init__(self, checkpoint: str | os.PathLike[str] | Place) -> None:
        self.root = place(checkpoint).absolute()
        self._follower = Follower(self.root)
        self._change = threading.RLock()
        self._reader: LedgerReader | None = None
        self._reader_from = 0.0

    # --- what people ask

    def health(self) -> Health:
        """How the job is; raises `CheckpointRefused` if there never was one."""
        with self._change:
            return health.judge(self.root, self._follower.events(), lambda: self._state(self._kept()))

    def summary(self, recent: int = 78) -> Summary:
        """All that a job's own page shows."""
        with self._change:
            found = self.health()
            try:
                look = self._look()
            except CheckpointRefused:  # damaged: the health says so
                events = self._follower.events()
                return Summary(
                    health=found,
                    rows_per_s=None,
                    spread=Spread.of(_durations(events)),
                    journal=self._follower.problem,
                )
            return Summary(
                health=found,
                rows_per_s=rows_per_s(look.events),
                spread=Spread.of(_durations(look.events)),
                recent=tuple(reversed(self._page(look, Wanted(count=recent)).epochs)),
                sinks=tuple(_sinks(look.state, look)),
                sources=tuple(_sources(look)),
                records=look.state.last,
                first=look.state.lineage.first_epoch,
                verified=max(look.state.oldest, look.state.last - WINDOW),
                journal=self._follower.problem,
            )

    def page(self, wanted: Wanted) -> EpochPage:
        """Some epochs; raises `CheckpointRefused` if the ledger cannot be trusted."""
        with self._change:
            return self._page(self._look(), wanted)

    def epoch(self, number: int) -> EpochDetail:
        """One epoch; raises `BadConfig` if nothing is known of it."""
        with self._change:
            look = self._look()
            page = self._page(look, Wanted(before=number + 1, count=1))
            if not page.epochs or page.epochs[0].epoch != number:
                known = (page.oldest, page.newest)
                raise history.unknown_epoch(number, known, look.state.lineage.job, self.root)
            one = page.epochs[0]
            data = b"" if one.record is None else look.reader.record(one.record)
            record = _decoded(data)
            handles = record.body.handles if record and isinstance(record.body, Decision) else ()
            return EpochDetail(
                epoch=one,
                events=tuple(look.steps.get(number, ())),
                handles=tuple(replace(handle, kept=()) for handle in handles),
                record=record,
                text="" if record is None else json.dumps(json.loads(data), indent=1, ensure_ascii=False),
                oldest=number if page.oldest is None else page.oldest,
                newest=number if page.newest is None else page.newest,
            )

    def spreads(self, first: int | None = None, last: int | None = None) -> dict[str, Spread]:
        """By phase, and for the whole epoch ("all"), over a range of epochs: those that the journal still has."""
        with self._change:
            steps = _by_epoch(self._follower.events())
        found: dict[str, list[float]] = defaultdict(list)
        for number, events in steps.items():
            if (first is None or number >= first) and (last is None or number <= last):
                for phase, took in history.phases_of(history.last_attempt(events)).items():
                    found[phase].append(took)
                found["all"].extend(_durations(events))
        spreads = {name: Spread.of(found[name]) for name in (*history.PHASES.values(), "all")}
        return {name: spread for name, spread in spreads.items() if spread is not None}

    def timeline(self) -> tuple[Event, ...]:
        """Starts, ends, failures and what recovery did, newest first, as far as the journal goes back."""
        with self._change:
            return tuple(event for event in reversed(self._follower.events()) if event.kind in TIMELINE)

    def rewrites(self, after: int, upto: int) -> int:
        """How many of the newest records, of those after the one and up to the other, say that rows were rewritten."""
        with self._change:
            look = self._look()
            new = (look.record(number) for number in look.numbers[-WINDOW:] if after < number <= upto)
            return sum(record is not None and isinstance(record.body, Redo) for record in new)

    def drivers(self) -> tuple[Record, ...]:
        """The drivers that the ledger's newest records name, newest first: also where there is no journal."""
        with self._change:
            look = self._look()
            records = (look.record(number) for number in reversed(look.state.writers))
            return tuple(record for record in records if record is not None and isinstance(record.body, Writer))

    def events(self) -> list[Event]:
        """All that the journal has, oldest first."""
        with self._change:
            return self._follower.events()

    def ledger(self) -> State:
        """The ledger's state, by its newest records."""
        with self._change:
            return self._state(self._kept())

    def plan(self) -> tuple[State, list[BranchNote]]:
        """The ledger's state, and the branches of the job as its newest start noted them."""
        with self._change:
            state = self._state(self._kept())
            return state, _plan(self._kept().store, state)

    # --- how it is found

    def _kept(self) -> LedgerReader:
        if self._reader is None or time.monotonic() - self._reader_from > FRESH_S:
            self._reader, self._reader_from = LedgerReader(self.root), time.monotonic()
        return self._reader

    def _state(self, reader: LedgerReader) -> State:
        try:
            return reader.state(WINDOW)
        except (FencepostError, OSError):
            self._reader = None  # what was remembered may be what is wrong
            raise

    def _look(self) -> _Reading:
        reader = self._kept()
        events = self._follower.events()
        log = SparkLog(reader.store)
        commits = log.names("commits")  # before the ledger, which then has what is complete
        state = self._state(reader)
        steps = _by_epoch(events)
        complete = {epoch for epoch in commits if is_committed(steps.get(epoch, ()), epoch)}
        numbers = reader.numbers()
        numbers = numbers[bisect_left(numbers, max(1, state.oldest)) :]
        return _Reading(events, steps, log, reader, state, numbers, log.names("offsets"), commits, complete)

    def _page(self, look: _Reading, wanted: Wanted) -> EpochPage:
        count = max(1, min(wanted.count, MOST))
        shown: list[Epoch] = []
        scanned = 0
        last = None
        walk = self._walk(look, wanted.before)
        following = next(walk, None)
        while following is not None and len(shown) < count and scanned < SCANNED:
            last, following = following, next(walk, None)
            scanned += 1
            one = self._joined(look, last, following)
            if wanted.takes(one):
                shown.append(one)
        oldest, newest = self._span(look)
        more = None if following is None or last is None else last[0]
        return EpochPage(epochs=tuple(shown), before=more, oldest=oldest, newest=newest)

    def _joined(self, look: _Reading, one: _Walked, before: _Walked | None) -> Epoch:
        number, record = one
        state = look.state
        body = record.body if record is not None else None
        told = body if isinstance(body, Decision | Claim) else None
        offsets = told.offsets if told is not None else look.log.read("offsets", Number(number))
        earlier = None if before is None else _offsets(look, before)
        first = number == state.lineage.first_epoch and state.lineage.parent is None
        return history.joined(
            number,
            history.standing_of(number, told, look.complete, state),
            record,
            history.ranges_of(earlier, offsets, first=first),
            look.steps.get(number, []),
            self.root,
        )

    def _walk(self, look: _Reading, before: int | None) -> Iterator[_Walked]:
        """Every known epoch below `before`, downwards, with its decision or claim."""
        state = look.state
        decides = state.lineage.guarantee != "at_least_once"
        for epoch in sorted({*look.offsets, *look.commits}, reverse=True):
            if (before is None or epoch < before) and (not decides or epoch >= _undecided(state)):
                yield epoch, None
        if decides:
            yield from self._decided(look, before)

    def _decided(self, look: _Reading, before: int | None) -> Iterator[_Walked]:
        end = len(look.numbers)
        if before is not None:
            end = bisect_left(range(end), before, key=lambda index: _reached(look, index))
        void: set[int] = set()
        for number in reversed(look.numbers[:end]):
            record = look.record(number)
            if record is not None and isinstance(record.body, Void):
                void.add(record.body.decision)
            if record is not None and isinstance(record.body, Decision | Claim) and number not in void:
                yield record.body.epoch, record

    def _span(self, look: _Reading) -> tuple[int | None, int | None]:
        """The oldest and the newest epoch that is known."""
        newest = next(self._walk(look, None), None)
        if newest is None:
            return None, None
        if look.state.lineage.guarantee == "at_least_once":
            return min((*look.offsets, *look.commits)), newest[0]
        for number in look.numbers:
            record = look.record(number)
            if record is not None and isinstance(record.body, Decision | Claim):
                return record.body.epoch, newest[0]
        return newest[0], newest[0]


_Walked = tuple[int, Record | None]
"""An epoch, and the record of its decision or claim."""


def _reached(look: _Reading, index: int) -> int:
    """The newest epoch that is decided up to that record: it only grows."""
    for number in reversed(look.numbers[: index + 1]):
        record = look.record(number)
        body = None if record is None else record.body
        if isinstance(body, Decision | Claim | Redo | Void):
            return body.epoch
        if isinstance(body, Done):
            return body.through
    return -1


def rows_per_s(events: Sequence[Event]) -> float | None:
    """Rows a second, over the last minute before the newest complete epoch."""
    done = [event for event in events if event.kind is Kind.COMPLETE and event.rows is not None and not event.again]
    if len(done) < 2:
        return None
    end = time_of(done[-1])
    late = [event for event in done if time_of(event) > end - 60]
    before = next((event for event in reversed(done) if time_of(event) <= end - 60), None)
    begin = time_of(before) if before is not None and end - time_of(before) < 600 else time_of(late[0])
    counted = late if before is not None and end - time_of(before) < 600 else late[1:]
    return sum(event.rows or 0 for event in counted) / (end - begin) if end > begin and counted else None


def time_of(event: Event) -> float:
    """In seconds since 1970."""
    return datetime.fromisoformat(event.at).timestamp()


def _by_epoch(events: Sequence[Event]) -> dict[int, list[Event]]:
    steps: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.epoch is not None and not event.again:
            steps[event.epoch].append(event)
    return steps


def _durations(events: Sequence[Event]) -> list[float]:
    return [
        event.seconds
        for event in events
        if event.kind is Kind.COMPLETE and event.seconds is not None and not event.again
    ]


def _decoded(data: bytes) -> Record | None:
    """None for one that is damaged, or that retention took a moment ago."""
    try:
        return decode(data)
    except (Damaged, CheckpointRefused):
        return None


def _undecided(state: State) -> int:
    """The first epoch without a decision or a claim."""
    if state.lineage.guarantee == "at_most_once":
        return state.claims[-1][1].epoch + 1 if state.claims else 0
    return state.next_epoch


def _offsets(look: _Reading, one: _Walked) -> str | None:
    number, record = one
    if record is not None and isinstance(record.body, Decision | Claim):
        return record.body.offsets
    return look.log.read("offsets", Number(number))


def _plan(store: Store, state: State) -> list[BranchNote]:
    try:
        return read_plan(store, (state.lineage_id, *reversed(state.lineage.ancestors))) or []
    except (OSError, FencepostError):
        return []


def _sinks(state: State, look: _Reading) -> Iterator[SinkStanding]:
    newest = state.newest
    decided: Mapping[str, int] = newest.held_after if newest is not None else {}
    done = state.done_through
    if newest is not None and state.open is not None and newest.epoch in look.complete:
        done = newest.epoch
    for name, known in sorted(state.sinks.items()):
        mine = [one for one in state.decisions if any(handle.sink == name for handle in one[1].handles)]
        confirmed = [e for e in look.events if e.kind is Kind.COMMITTED and e.sink == name]
        surely = [e for e in confirmed if DOUBT not in (e.what or "") and e.epoch is not None and not e.again]
        # By epoch, because recovery commits the newest decided one again.
        dead = {e.epoch: e.rows or 0 for e in confirmed if e.dead and DOUBT not in (e.what or "")}
        wanted = decided.get(name)
        told = {e.epoch for e in surely}
        holds = wanted if wanted is not None and (wanted <= done or wanted in told) else None
        if wanted is not None and holds is None:
            holds = newest.held.get(name) if newest is not None else None
        elif state.lineage.guarantee != "exactly_once" and surely:
            holds = surely[-1].epoch
        handles = [h for h in (state.open.handles if state.open else ()) if h.sink == name]
        is_open = wanted is not None and holds != wanted
        last = mine[-1][1] if mine else None
        yield SinkStanding(
            name=name,
            shape=known.shape,
            target=known.target,
            decided=wanted,
            confirmed=holds,
            rows=None if last is None else sum(h.rows for h in last.handles if h.sink == name),
            at=next((e.at for e in reversed(surely) if e.epoch == holds), None),
            doubt=is_open and bool(confirmed) and confirmed[-1].epoch == wanted and confirmed[-1] not in surely,
            deadline_s=_deadline(handles) if is_open else None,
            timeout_s=_timeout(handles) if is_open else None,
            aborted=sum(e.kind is Kind.ABORTED and e.sink == name for e in look.events),
            dead_letters=sum(dead.values()),
        )


def _deadline(handles: Sequence[Handle]) -> float | None:
    """Of a transaction in a broker: the earliest."""
    ends = [_end(handle.body) for handle in handles]
    known = [end for end in ends if end is not None]
    return min(known) - time.time() if known else None


def _timeout(handles: Sequence[Handle]) -> float | None:
    told = [handle.body.get("timeout_ms") for handle in handles]
    known = [ms / 1000 for ms in told if isinstance(ms, int)]
    return min(known) if known else None


def _end(body: Mapping[str, Any]) -> float | None:
    started, timeout = body.get("started_ms"), body.get("timeout_ms")
    both = isinstance(started, int) and isinstance(timeout, int)
    return (started + timeout) / 1000 if both else None  # type: ignore[operator]


def _sources(look: _Reading) -> Iterator[SourceStanding]:
    state = look.state
    barrier = look.log.read("offsets", Number(look.offsets[-1])) if look.offsets else None
    last: Decision | Claim | None = state.newest or (state.claims[-1][1] if state.claims else None)
    decided = None if last is None else last.offsets
    if state.lineage.guarantee == "at_least_once" and look.commits:
        decided = look.log.read("offsets", Number(look.commits[-1]))
    reading = source_lines(barrier or decided or "")
    done = source_lines(decided or "")
    uses = [source for branch in _plan(look.reader.store, state) for source in branch.sources]
    names = {source.name or str(number): source.what for number, source in enumerate(uses)}
    for name in sorted({*reading, *done}):
        yield SourceStanding(
            name=name, what=names.get(name, ""), reading=reading.get(name, done.get(name)), decided=done.get(name)
        )
