"""Every kind of record after every state a ledger can be in: legal exactly as the protocol's table says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fencepost.protocol import order
from fencepost.protocol.format import digest
from fencepost.protocol.order import IllegalOrder, State, advance, begin, fold, oldest_needed
from fencepost.protocol.records import (
    NOTHING_BEFORE,
    Body,
    Claim,
    Decision,
    Done,
    Epoch,
    Lineage,
    Number,
    Record,
    Redo,
    Sealed,
    Void,
    Writer,
    WriterNumber,
    encode,
)

WRITER = Writer("start", "host", 1, {})
NEXT_WRITER = 1


def decision(epoch: int, start: str | None = None, done_through: int | None = None) -> Decision:
    begun = NOTHING_BEFORE if epoch == 0 else f"end {epoch - 1}"
    done = epoch - 1 if done_through is None else done_through
    return Decision(Epoch(epoch), "", start or begun, f"end {epoch}", Epoch(done), (), "")


def ledger(*bodies: Body, guarantee: str = "exactly_once") -> State:
    return fold(chain(bodies, guarantee))


def chain(bodies: tuple[Body, ...], guarantee: str = "exactly_once") -> list[tuple[Record, bytes]]:
    first = Record(
        Number(0), "l", WriterNumber(0), "", NOTHING_BEFORE, Number(1), Lineage("job", guarantee, Epoch(0), {}, {})
    )
    records = [(first, encode(first))]
    state = begin(*records[0])
    for body in bodies:
        record = following(state, body)
        records.append((record, encode(record)))
        state = advance(state, record)
    return records


def following(state: State, body: Body, writer: int | None = None) -> Record:
    number = Number(state.last + 1)
    by = number if isinstance(body, Writer) else state.writer
    return Record(number, "l", WriterNumber(by if writer is None else writer), "", state.last_sum, state.oldest, body)


def legal(state: State, body: Body, writer: int | None = None) -> bool:
    try:
        advance(state, following(state, body, writer))
    except IllegalOrder:
        return False
    return True


STATES = {
    "begun": ledger(),
    "taken over": ledger(WRITER),
    "0 open": ledger(WRITER, decision(0)),
    "0 redone": ledger(WRITER, decision(0), Redo(Epoch(0), Number(2), (), ())),
    "0 void": ledger(WRITER, decision(0), Void(Epoch(0), Number(2), ())),
    "0 done": ledger(WRITER, decision(0), Done(Epoch(0))),
    "1 open": ledger(WRITER, decision(0), decision(1)),
    "1 void": ledger(WRITER, decision(0), decision(1), Void(Epoch(1), Number(3), ())),
    "1 done": ledger(WRITER, decision(0), decision(1), Done(Epoch(1))),
    "0 open, taken over": ledger(WRITER, decision(0), WRITER),
    "sealed": ledger(WRITER, decision(0), Done(Epoch(0)), Sealed("next", Epoch(0), "quiet")),
}
BODIES: dict[str, Body] = {
    "lineage": Lineage("job", "exactly_once", Epoch(0), {}, {}),
    "writer": WRITER,
    "decision 0": decision(0),
    "decision 1": decision(1),
    "decision 2": decision(2),
    "decision 1 with a gap": decision(1, start="elsewhere"),
    "decision 1 that leaves 0 open": decision(1, done_through=-1),
    "redo 0": Redo(Epoch(0), Number(2), (), ()),
    "redo 1": Redo(Epoch(1), Number(3), (), ()),
    "redo of another record": Redo(Epoch(0), Number(1), (), ()),
    "void 0": Void(Epoch(0), Number(2), ()),
    "void 1": Void(Epoch(1), Number(3), ()),
    "done 0": Done(Epoch(0)),
    "done 1": Done(Epoch(1)),
    "sealed": Sealed("next", Epoch(0), "quiet"),
    "claim 0": Claim(Epoch(0), ""),
}
LEGAL: dict[str, set[str]] = {
    "begun": {"writer", "decision 0", "sealed"},
    "taken over": {"writer", "decision 0", "sealed"},
    "0 open": {"writer", "decision 1", "redo 0", "void 0", "done 0"},
    "0 redone": {"writer", "decision 1", "redo 0", "void 0", "done 0"},
    "0 void": {"writer", "decision 0", "sealed"},
    "0 done": {"writer", "decision 1", "sealed"},
    "1 open": {"writer", "decision 2", "redo 1", "void 1", "done 1"},
    "1 void": {"writer", "decision 1", "sealed"},
    "1 done": {"writer", "decision 2", "sealed"},
    "0 open, taken over": {"writer", "decision 1", "redo 0", "void 0", "done 0"},
    "sealed": set(),
}


@pytest.mark.parametrize("state", STATES)
def test_exactly_these_records_may_follow(state: str) -> None:
    assert LEGAL[state] == {name for name, body in BODIES.items() if legal(STATES[state], body)}


@pytest.mark.parametrize("name", [name for name in BODIES if name not in {"writer", "lineage"}])
def test_a_replaced_writer_may_append_nothing(name: str) -> None:
    assert not legal(STATES["0 open, taken over"], BODIES[name], writer=NEXT_WRITER)


def test_claims_are_in_turn_and_only_at_most_once() -> None:
    state = ledger(WRITER, Claim(Epoch(4), ""), guarantee="at_most_once")
    assert [False, True, False] == [legal(state, Claim(Epoch(epoch), "")) for epoch in (4, 5, 6)]
    assert not legal(STATES["taken over"], Claim(Epoch(0), ""))


def test_a_record_follows_only_the_bytes_before_it() -> None:
    state = STATES["taken over"]
    stranger = Record(Number(2), "l", state.writer, "", NOTHING_BEFORE, state.oldest, decision(0))
    with pytest.raises(IllegalOrder):
        advance(state, stranger)


def test_a_ledger_without_its_retired_records_says_the_same() -> None:
    records = chain((WRITER, decision(0), decision(1), decision(2)))
    kept = fold([records[0], *records[3:]])
    assert (Epoch(1), "end 2", Epoch(2)) == (kept.done_through, kept.end, kept.open.epoch if kept.open else None)


def test_retention_counts_no_decision_that_may_still_be_voided() -> None:
    assert Number(1) == oldest_needed(STATES["1 open"], keep=1)
    assert Number(3) == oldest_needed(STATES["1 done"], keep=1)


@pytest.mark.parametrize("many", [2, 3, 5])
def test_a_long_ledger_reads_like_a_short_one(monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    """Decisions that are put aside come back, but for those that retention or a void took."""
    void = Void(Epoch(5), Number(7), ())
    records = chain((WRITER, *map(decision, range(6)), void, *map(decision, range(5, 9)), Done(Epoch(8))))
    cut = [(replace(record, oldest=Number(4)) if record.number > 9 else record) for record, _ in records]
    short = linked(cut)
    expected = fold(short)
    assert [2, 3, 4, 5, 6, 9, 10, 11, 12] == [number for number, _ in fold(records).decisions]
    assert [4, 5, 6, 9, 10, 11, 12] == [number for number, _ in expected.decisions]
    monkeypatch.setattr(order, "MANY", many)
    assert expected == fold(short)


def linked(records: list[Record]) -> list[tuple[Record, bytes]]:
    """Each with the sum of the one before it."""
    found: list[tuple[Record, bytes]] = []
    for record in records:
        one = replace(record, previous=digest(found[-1][1])) if found else record
        found.append((one, encode(one)))
    return found
