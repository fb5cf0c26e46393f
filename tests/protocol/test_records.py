"""A record comes back from its bytes as it was, and no damage to them goes unnoticed."""

from __future__ import annotations

import pytest

from fencepost.protocol.records import (
    KINDS,
    NOTHING_BEFORE,
    Body,
    Claim,
    Damaged,
    Decision,
    Done,
    Epoch,
    Handle,
    Kept,
    Lineage,
    Number,
    Record,
    Redo,
    Sealed,
    SinkRecord,
    Void,
    Writer,
    WriterNumber,
    decode,
    encode,
    positions,
)

HANDLE = Handle("h-1", "orders", 3, (Kept("1/0-a.arrow", 3, "ab"),), {"slot": 1})
BODIES: tuple[Body, ...] = (
    Lineage("job", "exactly_once", Epoch(0), {"orders": SinkRecord("apply", "id")}, {"ledger": "1"}),
    Writer("start", "höst", 1, {"fencepost": "0"}),
    Claim(Epoch(2), "v1\n{}\n7"),
    Decision(Epoch(1), "v1\n{}\n7", "a", "b", Epoch(0), (HANDLE,), "v2\n{}", {"0/1": "cd"}),
    Redo(Epoch(1), Number(2), ("h-0",), (HANDLE,)),
    Void(Epoch(1), Number(2), ("h-0",)),
    Done(Epoch(1)),
    Sealed("next", Epoch(1), "quiet"),
)


def test_every_kind_has_an_example_here() -> None:
    assert set(KINDS.values()) == {type(body) for body in BODIES}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_record_comes_back_from_its_bytes(body: Body) -> None:
    record = record_of(body)
    assert record == decode(encode(record))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_every_single_flipped_bit_is_noticed(body: Body) -> None:
    data = encode(record_of(body))
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            with pytest.raises(Damaged):
                decode(bytes(flipped))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_every_truncation_is_noticed(body: Body) -> None:
    data = encode(record_of(body))
    for length in range(len(data)):
        with pytest.raises(Damaged):
            decode(data[:length])


def test_bytes_that_mean_the_same_but_are_written_otherwise_are_refused() -> None:
    with pytest.raises(Damaged, match="canonical"):
        decode(b" " + encode(record_of(Done(Epoch(1)))))


def test_positions_leave_out_sparks_own_settings() -> None:
    assert positions('v1\n{"batchWatermarkMs":0}\n7') == positions('v1\n{"batchWatermarkMs":5}\n7')
    assert positions("v1\n{}\n7") != positions("v1\n{}\n8")


def record_of(body: Body) -> Record:
    return Record(Number(3), "lineage", WriterNumber(1), "2026-01-01T00:00:00Z", NOTHING_BEFORE, Number(1), body)
