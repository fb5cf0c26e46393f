"""Which record may follow which: one table, as data, and the fold over it.

    state of a ledger = (latest writer, done_through, the open decision or none)

At most one decision is open at any time, and it is the newest. Recovery depends on this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fencepost.protocol.format import Damaged, digest
from fencepost.protocol.records import (
    NOTHING_BEFORE,
    Body,
    Claim,
    Decision,
    Done,
    Epoch,
    Handle,
    Lineage,
    Number,
    Record,
    Redo,
    Sealed,
    SinkRecord,
    Void,
    Writer,
    WriterNumber,
    encode,
    positions,
)


@dataclass(frozen=True, slots=True)
class Open:
    """The one decision whose commits are not known to be finished."""

    number: Number
    epoch: Epoch
    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True)
class State:
    """What the records up to `last` say."""

    lineage_id: str
    lineage: Lineage
    last: Number
    last_sum: str
    writer: WriterNumber
    done_through: Epoch
    end: str
    """Digest of the offsets up to which epochs are decided."""
    open: Open | None = None
    decisions: tuple[tuple[Number, Decision], ...] = ()
    """Retained decisions that are not void, oldest first."""
    claims: tuple[tuple[Number, Claim], ...] = ()
    writers: tuple[Number, ...] = ()
    voided: Epoch | None = None
    """The epoch whose decision was voided and which has not been decided again yet."""
    sealed: Sealed | None = None
    oldest: Number = Number(1)
    driver: Writer | None = None
    """The latest writer, for error messages; None if its record was retired."""
    taken_at: str = ""
    """When it took over, by its clock; also for error messages."""

    @property
    def newest(self) -> Decision | None:
        """The newest decision that is not void."""
        return self.decisions[-1][1] if self.decisions else None

    @property
    def held(self) -> Mapping[str, Epoch]:
        """By sink, the newest epoch that its target must hold."""
        if self.newest is None:
            return {}
        return self.newest.held if self.open else self.newest.held_after

    @property
    def files(self) -> Mapping[str, str]:
        """Checksums of files, by name, from the retained decisions."""
        return {name: total for _, decision in self.decisions for name, total in decision.files.items()}

    @property
    def next_epoch(self) -> Epoch:
        """The epoch that may be decided next."""
        return Epoch((self.open.epoch if self.open else self.done_through) + 1)

    @property
    def sinks(self) -> Mapping[str, SinkRecord]:
        """The sinks and their targets; empty if the first driver of this lineage has yet to record them."""
        declared = self.newest.sinks if self.newest else None
        return self.lineage.sinks if declared is None else declared

    def quiet_offsets(self, epoch: Epoch) -> str | None:
        """The range of an epoch that runs only for its state, because the targets hold its rows; else None."""
        place = epoch - self.lineage.first_epoch - 1
        return self.lineage.quiet[place] if 0 <= place < len(self.lineage.quiet) else None


Condition = Callable[[State, Record], bool]
Changes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """When a kind of record is legal (every condition holds), and what it changes in the state."""

    when: tuple[Condition, ...]
    then: Callable[[State, Record], Changes]


# --- conditions: each docstring is part of an error message


def not_sealed(state: State, record: Record) -> bool:
    """the ledger is not sealed"""
    return not state.sealed


def by_latest_writer(state: State, record: Record) -> bool:
    """its writer is the latest one"""
    return record.writer == state.writer


def next_to_decide(state: State, record: Record) -> bool:
    """no decision is open, or the open one is the previous epoch and this record says that it is done"""
    body = record.body
    assert isinstance(body, Decision)
    return body.epoch == state.next_epoch and body.done_through == body.epoch - 1


def starts_where_the_last_ended(state: State, record: Record) -> bool:
    """it starts where the previous decision ended"""
    assert isinstance(record.body, Decision)
    return record.body.start == state.end


def names_the_open_decision(state: State, record: Record) -> bool:
    """it names the open decision"""
    body = record.body
    assert isinstance(body, Redo | Void)
    return state.open is not None and (body.epoch, body.decision) == (state.open.epoch, state.open.number)


def ends_the_open_decision(state: State, record: Record) -> bool:
    """it ends the open decision"""
    assert isinstance(record.body, Done)
    return state.open is not None and record.body.through == state.open.epoch


def none_open(state: State, record: Record) -> bool:
    """no decision is open"""
    return state.open is None


def claims_in_turn(state: State, record: Record) -> bool:
    """the job is at_most_once and the epoch is the one after the last claim"""
    assert isinstance(record.body, Claim)
    last = state.claims[-1][1].epoch if state.claims else record.body.epoch - 1
    return state.lineage.guarantee == "at_most_once" and record.body.epoch == last + 1


def quiet_where_it_must_be(state: State, record: Record) -> bool:
    """an epoch whose rows the targets already hold has its old range and writes nothing"""
    assert isinstance(record.body, Decision)
    wanted = state.quiet_offsets(record.body.epoch)
    return wanted is None or (record.body.end == positions(wanted) and not record.body.handles)


# --- effects on the state


def _take_over(state: State, record: Record) -> Changes:
    body = record.body
    assert isinstance(body, Writer)
    writers = (*state.writers, record.number)
    return {"writer": WriterNumber(record.number), "writers": writers, "driver": body, "taken_at": record.at}


def _decide(state: State, record: Record) -> Changes:
    body = record.body
    assert isinstance(body, Decision)
    return {
        "done_through": body.done_through,
        "end": body.end,
        "open": Open(record.number, body.epoch, body.handles),
        "decisions": (*state.decisions, (record.number, body)),
        "voided": None,
    }


def _redo(state: State, record: Record) -> Changes:
    assert isinstance(record.body, Redo)
    assert state.open is not None
    stay = tuple(h for h in state.open.handles if h.id not in record.body.lost)
    return {"open": replace(state.open, handles=stay + record.body.handles)}


def _void(state: State, record: Record) -> Changes:
    _, taken_back = state.decisions[-1]
    return {"open": None, "end": taken_back.start, "decisions": state.decisions[:-1], "voided": taken_back.epoch}


def _done(state: State, record: Record) -> Changes:
    assert isinstance(record.body, Done)
    return {"open": None, "done_through": record.body.through}


def _claim(state: State, record: Record) -> Changes:
    assert isinstance(record.body, Claim)
    return {"claims": (*state.claims, (record.number, record.body))}


def _seal(state: State, record: Record) -> Changes:
    assert isinstance(record.body, Sealed)
    return {"sealed": record.body}


ORDER: Mapping[type[Body], Rule] = {
    Writer: Rule((not_sealed,), _take_over),
    Decision: Rule(
        (not_sealed, by_latest_writer, next_to_decide, starts_where_the_last_ended, quiet_where_it_must_be), _decide
    ),
    Redo: Rule((not_sealed, by_latest_writer, names_the_open_decision), _redo),
    Void: Rule((not_sealed, by_latest_writer, names_the_open_decision), _void),
    Done: Rule((not_sealed, by_latest_writer, ends_the_open_decision), _done),
    Claim: Rule((not_sealed, by_latest_writer, claims_in_turn), _claim),
    Sealed: Rule((not_sealed, by_latest_writer, none_open), _seal),
}
"""`lineage` is not in the table: it is always record 0, and only that (`begin`)."""


MANY = 200
"""Decisions, from which on those that are read are put aside."""


class IllegalOrder(Damaged):
    """An intact record in a place where it is not allowed."""


def begin(record: Record, data: bytes) -> State:
    """The state after record 0."""
    if record.number != 0 or not isinstance(record.body, Lineage) or record.previous != NOTHING_BEFORE:
        raise IllegalOrder("record 0 is not a lineage")
    return State(
        lineage_id=record.lineage,
        lineage=record.body,
        last=Number(0),
        last_sum=digest(data),
        writer=WriterNumber(0),
        done_through=Epoch(record.body.first_epoch - 1),
        end=NOTHING_BEFORE,
    )


def resume(state: State, record: Record) -> State:
    """The state before `record`, the oldest one retained: a record says enough to start reading in the middle."""
    body = record.body
    return replace(
        state,
        last=Number(record.number - 1),
        last_sum=record.previous,
        # A writer record names itself; every other one was written by the latest writer.
        writer=state.writer if isinstance(body, Writer) else record.writer,
        done_through=body.done_through if isinstance(body, Decision) else state.done_through,
        end=body.start if isinstance(body, Decision) else state.end,
    )


def advance(state: State, record: Record, data: bytes | None = None) -> State:
    """The state after `record`; raise `IllegalOrder` with the condition that does not hold."""
    if record.number != state.last + 1 or record.previous != state.last_sum or record.lineage != state.lineage_id:
        raise IllegalOrder(f"record {record.number} does not follow record {state.last}")
    rule = ORDER.get(type(record.body))
    if rule is None:
        raise IllegalOrder(f"record {record.number} is a second lineage")
    for condition in rule.when:
        if not condition(state, record):
            raise IllegalOrder(f"record {record.number} is a {record.kind}, allowed only if {condition.__doc__}")
    changes = rule.then(state, record)
    changes.update(last=record.number, last_sum=digest(encode(record) if data is None else data))
    after = replace(state, **changes)
    if (oldest := record.oldest) == after.oldest:
        return after
    return replace(
        after,
        oldest=oldest,
        decisions=tuple(d for d in after.decisions if d[0] >= oldest),
        claims=tuple(c for c in after.claims if c[0] >= oldest),
        writers=tuple(w for w in after.writers if w >= oldest),
    )


def fold(chain: Iterable[tuple[Record, bytes]]) -> State:
    """Read a whole ledger: record 0 first, then every retained record in order."""
    records = iter(chain)
    state = begin(*next(records))
    aside: list[tuple[Number, Decision]] = []
    first = True
    for record, data in records:
        if first and record.number > 1:
            state = resume(state, record)
        first = False
        state = advance(state, record, data)
        if len(state.decisions) > MANY:
            # Each step copies them, and looks at the last two at most.
            aside += state.decisions[:-2]
            state = replace(state, decisions=state.decisions[-2:])
    return replace(state, decisions=(*(one for one in aside if one[0] >= state.oldest), *state.decisions))


def oldest_needed(state: State, keep: int) -> Number:
    """The lowest number to retain, so that the last `keep` decisions (or claims, or writers) stay."""
    by_guarantee = {
        # The open decision may still be voided; the one before it has to outlive it.
        "exactly_once": tuple(n for n, _ in state.decisions if state.open is None or n != state.open.number),
        "at_most_once": tuple(number for number, _ in state.claims),
        "at_least_once": state.writers,
    }
    anchors = by_guarantee[state.lineage.guarantee]
    if len(anchors) <= keep:
        return state.oldest
    return max(state.oldest, anchors[-keep])
