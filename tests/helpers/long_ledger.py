"""Ledgers of any length, made and not run: every record is a real one, chained and summed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fencepost.protocol.format import digest
from fencepost.protocol.records import (
    NOTHING_BEFORE,
    Body,
    Decision,
    Done,
    Epoch,
    Handle,
    Lineage,
    Number,
    Record,
    SinkRecord,
    Writer,
    WriterNumber,
    encode,
    positions,
)
from fencepost.store.base import record_name

LINEAGE = "00000000-0000-4000-8000-000000000001"
START = datetime(2026, 1, 1, tzinfo=UTC)
NOTED = 500
"""Epochs at the end that the journal still has."""


def make(checkpoint: Path, epochs: int, *, job: str = "long", every: int = 1000, sink: str = "db") -> Path:
    """A checkpoint of a job that ran all these epochs, was started again every so many, and stopped cleanly."""
    folder = checkpoint / record_name(LINEAGE, 0)
    folder.parent.mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": LINEAGE}))
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir()
    previous, number, writer = NOTHING_BEFORE, 0, 0

    def add(body: Body, at: datetime) -> None:
        nonlocal previous, number, writer
        writer = number if isinstance(body, Writer) else writer
        data = encode(
            Record(
                number=Number(number),
                lineage=LINEAGE,
                writer=WriterNumber(writer),
                at=at.isoformat(timespec="milliseconds"),
                previous=previous,
                oldest=Number(min(number, 1)),
                body=body,
            )
        )
        (checkpoint / record_name(LINEAGE, number)).write_bytes(data)
        previous, number = digest(data), number + 1

    add(Lineage(job, "exactly_once", Epoch(0), {sink: SinkRecord("apply", "made")}, {}), START)
    end = NOTHING_BEFORE
    with (checkpoint / "fencepost" / "journal.jsonl").open("w") as journal:
        for epoch in range(epochs):
            at = START + timedelta(seconds=epoch)
            if epoch % every == 0:
                add(Writer(f"{epoch}", "made", 1, {"fencepost": "0.1.0"}), at)
            offsets = f'v1\n{{"conf":{{}}}}\n{{"position":{epoch + 1}}}'
            handles = (Handle(f"{epoch}", sink, epoch % 7),) if epoch % 7 else ()
            held = {sink: Epoch(epoch - 1 if (epoch - 1) % 7 else epoch - 2)} if epoch > 1 else {}
            start, end = end, positions(offsets)
            snapshot = 'v1\n{"nextBatchWatermarkMs":0}'
            add(Decision(Epoch(epoch), offsets, start, end, Epoch(epoch - 1), handles, snapshot, held=held), at)
            if epoch >= epochs - 100:
                (checkpoint / "offsets" / str(epoch)).write_text(offsets)
                (checkpoint / "commits" / str(epoch)).write_text(snapshot)
            if epoch >= epochs - NOTED:
                journal.writelines(_lines(job, epoch, at, writer=writer, sink=sink))
        add(Done(Epoch(epochs - 1)), at)
        stop = {"kind": "stopped", "job": job, "at": _at(at, 1000), "pid": 1, "writer": writer, "format": 1}
        journal.write(json.dumps(stop, separators=(",", ":")) + "\n")
    return checkpoint


def _lines(job: str, epoch: int, at: datetime, *, writer: int, sink: str) -> list[str]:
    common = {"job": job, "pid": 1, "writer": writer, "epoch": epoch, "format": 1}
    rows = epoch % 7
    slow = 0.02 + (epoch % 50) / 500
    told = [
        {"kind": "opened", "at": _at(at, 0), "rows": rows},
        {"kind": "pre_committed", "at": _at(at, 10), "seconds": 0.01, "units": 1},
        {"kind": "voted", "at": _at(at, 30), "seconds": slow, "sink": sink},
        {"kind": "decided", "at": _at(at, 40), "seconds": 0.01},
        {"kind": "committed", "at": _at(at, 45), "seconds": 0.005, "sink": sink, "rows": rows, "units": 1},
        {"kind": "complete", "at": _at(at, 50), "seconds": slow + 0.03, "rows": rows},
    ]
    return [json.dumps({**one, **common}, separators=(",", ":")) + "\n" for one in told]


def _at(at: datetime, ms: int) -> str:
    return (at + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")
