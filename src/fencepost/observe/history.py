"""A job's epochs: what the ledger decided, joined with the times from the journal.

    barrier ─► tasks ─► opened ─► pre-commit ─► vote ─► decide ─► commit ─► complete

The ledger says what happened, the journal how long it took; an epoch that the journal no longer has is without times.
Never a row's value: only offsets, numbers and names.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from fencepost.errors import UNCHANGED, BadConfig, CheckpointRefused, Where
from fencepost.observe import journal
from fencepost.observe.events import Event, Kind
from fencepost.protocol.format import Damaged
from fencepost.protocol.order import State
from fencepost.protocol.records import Claim, Decision, Record, decode
from fencepost.protocol.records import Epoch as Number
from fencepost.store import Place, RemotePath, Store, ledger, place, store_at
from fencepost.store.base import record_name
from fencepost.store.spark_log import SparkLog, source_lines

Standing = Literal["complete", "decided", "claimed", "begun", "failed"]

PHASES: Mapping[Kind, str] = {
    Kind.PRE_COMMITTED: "pre-commit",
    Kind.VOTED: "vote",
    Kind.DECIDED: "decide",
    Kind.COMMITTED: "commit",
}


@dataclass(frozen=True, slots=True)
class Share:
    """What one sink got in an epoch."""

    rows: int
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One epoch. Whatever is no longer known is None."""

    epoch: int
    standing: Standing
    record: int | None = None
    """The ledger record of its decision or claim."""
    at: str | None = None
    writer: int | None = None
    cause: str | None = None
    sinks: Mapping[str, Share] = field(default_factory=dict)
    rows: int | None = None
    ranges: Mapping[str, tuple[str | None, str]] = field(default_factory=dict)
    """By source, the first and last offset, as Spark writes them."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """In seconds; several sinks are added up."""
    seconds: float | None = None
    """From the arrival of its rows to their commit."""
    attempts: int | None = None
    failure: Event | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    """The retained epochs, oldest first."""

    job: str
    guarantee: str
    epochs: tuple[Epoch, ...]


def read(checkpoint: str | os.PathLike[str] | RemotePath) -> Epochs:
    """Everything that is known; raises `CheckpointRefused` if the ledger cannot be trusted."""
    root = place(checkpoint).absolute()
    state = ledger.read(root)
    steps: dict[int, list[Event]] = defaultdict(list)
    for event in journal.read(root):
        if event.epoch is not None and not event.again:
            steps[event.epoch].append(event)
    store = store_at(root)
    log = SparkLog(store)
    complete = {epoch for epoch in log.names("commits") if journal.is_committed(steps[epoch], epoch)}
    written: dict[int, tuple[int, Claim | Decision]] = {
        **{body.epoch: (number, body) for number, body in state.claims},
        **{body.epoch: (number, body) for number, body in state.decisions},
    }
    known = set(written) | {epoch for epoch in {*complete, *log.names("offsets")} if _is_known(epoch, state)}
    store.expect(record_name(state.lineage_id, number) for number, _ in written.values())
    found = []
    before: str | None = None
    for epoch in sorted(known):
        number, body = written.get(epoch, (None, None))
        offsets = log.read("offsets", Number(epoch)) if body is None else body.offsets
        record = None if number is None else _record(store, state, number)
        standing = standing_of(epoch, body, complete, state)
        first = epoch == state.lineage.first_epoch and state.lineage.parent is None
        found.append(joined(epoch, standing, record, ranges_of(before, offsets, first=first), steps[epoch], root))
        before = offsets
    return Epochs(job=state.lineage.job, guarantee=state.lineage.guarantee, epochs=tuple(found))


def unknown_epoch(epoch: int, known: tuple[int | None, int | None], job: str, root: Place) -> BadConfig:
    """The error for an unknown epoch; `known`: the oldest and the newest epoch on record."""
    oldest, newest = known
    there = "none" if newest is None else f"{oldest} to {newest}"
    return BadConfig(
        "unknown_epoch",
        f"Nothing is known about epoch {epoch}.",
        where=Where(job=job, path=str(root)),
        safe=UNCHANGED,
        next=f"Known epochs: {there}. fp.Checkpoint(keep_epochs=…) sets how many are kept.",
    )


def _is_known(epoch: int, state: State) -> bool:
    """The weaker guarantees have no decisions, and the newest epoch may not be decided yet."""
    return state.lineage.guarantee != "exactly_once" or epoch >= state.next_epoch


def standing_of(epoch: int, body: Claim | Decision | None, complete: set[int], state: State) -> Standing:
    """How far it is, by the ledger and by Spark's log."""
    decided = isinstance(body, Decision)
    if epoch in complete or (decided and epoch <= state.done_through):  # Spark forgets its old entries
        return "complete"
    return "decided" if decided else "begun" if body is None else "claimed"


def _record(store: Store, state: State, number: int) -> Record | None:
    """Who wrote it, and when; the chain was verified a moment ago, and retention may have taken it since."""
    try:
        return decode(store.read(record_name(state.lineage_id, number)) or b"")
    except (Damaged, CheckpointRefused, OSError):
        return None


def joined(  # noqa: PLR0917 - the parts of one epoch
    epoch: int,
    standing: Standing,
    record: Record | None,
    ranges: Mapping[str, tuple[str | None, str]],
    events: list[Event],
    root: Place,
) -> Epoch:
    """One epoch from all that is known about it."""
    body = record.body if record else None
    opened = [event for event in events if event.kind is Kind.OPENED]
    last = last_attempt(events)
    ended = next((event for event in last if event.kind is Kind.COMPLETE), None)
    failure = next((event for event in reversed(events) if event.kind in {Kind.FAILED, Kind.TRIED_AGAIN}), None)
    rows = last[0].rows if last else None
    handles = body.handles if isinstance(body, Decision) else ()
    return Epoch(
        epoch=epoch,
        standing="failed" if standing == "begun" and last and last[-1].kind is Kind.FAILED else standing,
        record=record.number if record else None,
        at=record.at if record else ended.at if ended else None,
        writer=record.writer if record else last[0].writer if last else None,
        cause=body.cause if isinstance(body, Decision) else "data" if isinstance(body, Claim) else None,
        sinks={
            name: Share(sum(h.rows for h in handles if h.sink == name), sum(h.sink == name for h in handles))
            for name in sorted({handle.sink for handle in handles})
        },
        rows=rows if rows is not None or not isinstance(body, Decision) else sum(handle.rows for handle in handles),
        ranges=ranges,
        phases={**_tasks(root, epoch, last if len(opened) == 1 else []), **phases_of(last)},
        seconds=ended.seconds if ended else None,
        attempts=len(opened) + sum(event.kind is Kind.TRIED_AGAIN for event in events) if opened else None,
        failure=failure,
    )


def last_attempt(events: list[Event]) -> list[Event]:
    """An epoch's events since its rows last came to the driver."""
    opened = [n for n, event in enumerate(events) if event.kind is Kind.OPENED]
    return events[opened[-1] :] if opened else []


def phases_of(events: Iterable[Event]) -> dict[str, float]:
    """In seconds, by phase; several sinks are added up."""
    found: dict[str, float] = {}
    for event in events:
        if (phase := PHASES.get(event.kind)) is not None and event.seconds is not None:
            found[phase] = found.get(phase, 0.0) + event.seconds
    return found


def _tasks(root: Place, epoch: int, events: list[Event]) -> dict[str, float]:
    """From the barrier, which is a file, to the driver, if the epoch ran once. A remote store has its own clock."""
    if isinstance(root, RemotePath):
        return {}
    try:
        barrier = (root / "offsets" / str(epoch)).stat().st_mtime
        took = datetime.fromisoformat(events[0].at).timestamp() - barrier
    except (OSError, IndexError, ValueError):
        return {}
    return {"tasks": took} if took >= 0 else {}


def ranges_of(before: str | None, offsets: str | None, *, first: bool) -> dict[str, tuple[str | None, str]]:
    """By source, from where to where, as Spark writes it."""
    if offsets is None:
        return {}
    starts = {} if before is None else source_lines(before)
    nothing = "-" if first else None
    return {name: (starts.get(name, nothing), end) for name, end in source_lines(offsets).items()}
