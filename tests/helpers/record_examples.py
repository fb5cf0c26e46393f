"""A record of each kind, for tests of their bytes."""

from __future__ import annotations

from fencepost.protocol.records import (
    NOTHING_BEFORE,
    Body,
    Claim,
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


def record_of(body: Body) -> Record:
    return Record(Number(3), "lineage", WriterNumber(1), "2026-01-01T00:00:00Z", NOTHING_BEFORE, Number(1), body)
