"""Measures how the protocol grows, with its real code and without Spark, on a local disk: `make bench-scale`.

    ledger       read and verify, and a whole recovery, against the number of records
    partitions   an epoch's own time, its record and a recovery, against partitions of source and state
    executors    handles of a `parallel` sink, and the record that names them, against executors of four cores

What grows with Spark is measured by `make bench-state` (size of the state) and `make bench-stores` (requests).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from bench.common import fsync_ms, save
from fencepost_proof.stand_in import SCHEMA

from fencepost.config import Checkpoint, RunConfig
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.guarantee import Guarantee
from fencepost.protocol.append import Book, append
from fencepost.protocol.effects import Create, Created, Names, Step
from fencepost.protocol.order import begin
from fencepost.protocol.records import (
    NOTHING_BEFORE,
    Decision,
    Done,
    Epoch,
    Handle,
    Kept,
    Lineage,
    Number,
    Record,
    Writer,
    WriterNumber,
    encode,
    positions,
)
from fencepost.runtime.driver import Driver, Plan
from fencepost.store import LocalStore
from fencepost.store.base import record_name
from fencepost.store.ledger import read

STATELESS = 'v1\n{"nextBatchWatermarkMs":0}'
SUM_OF_NOTHING = '{"algorithm":"CRC32C","value":0,"mainFileSize":0}'
"""As Spark 4.1 and later write it beside each state file."""
CORES = 4
ROWS = pa.table([range(1000)] * 3, schema=SCHEMA)


class Clock:
    """Time that passes, or with `--cpu` only this process's own: for a machine that does other things too."""

    now = staticmethod(time.perf_counter)


CLOCK = Clock()


def ms(do: Callable[[], object], times: int) -> float:
    """The median."""
    taken = []
    for _ in range(times):
        began = CLOCK.now()
        do()
        taken.append(1000 * (CLOCK.now() - began))
    return statistics.median(taken)


def offsets(epoch: int, partitions: int) -> str:
    """As Spark writes them for a Kafka source."""
    line = json.dumps({"topic": {str(number): epoch for number in range(partitions)}}, separators=(",", ":"))
    return f'v1\n{{"batchWatermarkMs":0,"conf":{{}}}}\n{line}'


# --- the ledger


class Ledger:
    """Records as a driver appends them, in memory until they are written, without waiting for a disk."""

    def __init__(self, keep: int) -> None:
        self.lineage = str(uuid.uuid4())
        self.records: dict[int, bytes] = {}
        body = Lineage(job="bench", guarantee="exactly_once", first_epoch=Epoch(0), sinks={}, settings={})
        first = Record(Number(0), self.lineage, WriterNumber(0), "", NOTHING_BEFORE, Number(0), body)
        self.records[0] = encode(first)
        self.book = Book(begin(first, self.records[0]), WriterNumber(0), lambda: "2026-01-01T00:00:00+00:00", keep)
        self.append(Writer(start_id="bench", host="bench", pid=1, versions={}))

    def append(self, body: Any) -> None:
        step: Step[None] = append(self.book, body, "bench")
        answer: Any = None
        with suppress(StopIteration):
            while True:
                effect = step.send(answer)
                match effect:
                    case Create(number=number, data=data):
                        self.records[number] = data
                        answer = Created.CREATED
                    case Names():
                        answer = (number - 1, number)
                    case _:
                        raise AssertionError(effect)

    def decide(self, epoch: int, handles: tuple[Handle, ...]) -> None:
        text = offsets(epoch, 4)
        before = self.book.state.end
        done, end = Epoch(epoch - 1), positions(text)
        self.append(Decision(Epoch(epoch), text, before, end, done, handles, STATELESS))

    def write(self, place: Path) -> int:
        """What retention leaves; returns how many records these are."""
        left = {number: data for number, data in self.records.items() if not 0 < number < self.book.state.oldest}
        path = place / record_name(self.lineage, 0)
        path.parent.mkdir(parents=True)
        for number, data in left.items():
            (path.parent / f"{number:020d}.json").write_bytes(data)
        (place / "metadata").write_text(json.dumps({"id": self.lineage}))
        return len(left)


def ledgers(folder: Path, sizes: Iterable[int], keeps: Iterable[int | None], rounds: int) -> list[dict[str, Any]]:
    found = []
    for keep in keeps:
        for epochs in sizes:
            place = folder / f"ledger-{epochs}-{keep}"
            ledger = Ledger(keep or epochs)
            for epoch in range(epochs):
                kept = (Kept(f"staged/1/{epoch}-{uuid.uuid4().hex}.arrow", 1000, "0" * 64),)
                ledger.decide(epoch, (Handle(f"{ledger.lineage}-1-{epoch}-{'0' * 8}", "sqlite:t", 1000, kept, {}),))
            ledger.append(Done(Epoch(epochs - 1)))
            records = ledger.write(place)
            size = sum(map(len, ledger.records.values())) // len(ledger.records)
            taken = ms(lambda place=place: read(place), rounds)  # type: ignore[misc]
            row = {"epochs": epochs, "kept": keep or "all", "records": records, "bytes": size, "read_ms": taken}
            found.append(row)
            say(row)
            shutil.rmtree(place)
    return found


# --- partitions


def driver(place: Path, sink: SQLite) -> Driver:
    config = RunConfig(job="bench", checkpoint=Checkpoint(place), guarantee=Guarantee.EXACTLY_ONCE)
    schemas, modes = {sink.name: SCHEMA}, {sink.name: "append"}
    return Driver(Plan(config=config, store=LocalStore(place), sinks={sink.name: sink}, schemas=schemas, modes=modes))  # type: ignore[arg-type]


def partitions(folder: Path, sizes: Iterable[int], epochs: int) -> list[dict[str, Any]]:
    found = []
    for size in sizes:
        place = folder / f"partitions-{size}"
        sink = SQLite(folder / f"{size}.db", table="rows")
        one = driver(place, sink)
        one.recover()
        taken = [run_epoch(one, place, epoch, size) for epoch in range(epochs)]
        one.close()
        record = max((len(path.read_bytes()) for path in place.rglob("ledger/*.json")), default=0)
        again = ms(lambda: recover(place, sink), 3)  # noqa: B023 - called at once
        row = {"partitions": size, "epoch_ms": statistics.median(taken[2:]), "bytes": record, "recover_ms": again}
        found.append(row)
        say(row)
    return found


def run_epoch(one: Driver, place: Path, epoch: int, size: int) -> float:
    """What an epoch adds to Spark's own work. Spark's log and its state files are written here, and not measured."""
    ids = [uuid.uuid4().hex for _ in range(size)]
    for number, attempt in enumerate(ids):
        path = place / "state" / "0" / str(number) / f"{epoch + 1}_{attempt}.changelog"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.with_name(f"{path.name}.crc").write_text(SUM_OF_NOTHING)
    log(place, "offsets", epoch, offsets(epoch, size))
    text = {"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": [[attempt] for attempt in ids]}}
    snapshot = f"v2\n{json.dumps(text, separators=(',', ':'))}"
    began = CLOCK.now()
    one.run_epoch(epoch, one.stage(epoch, ROWS), lambda: snapshot)
    taken = 1000 * (CLOCK.now() - began)
    log(place, "commits", epoch, snapshot)
    return taken


def log(place: Path, name: str, epoch: int, text: str) -> None:
    (place / name).mkdir(exist_ok=True)
    (place / name / str(epoch)).write_text(text)


def recover(place: Path, sink: SQLite) -> None:
    again = driver(place, sink)
    again.recover()
    again.close()


# --- executors


def executors(folder: Path, sizes: Iterable[int], rounds: int) -> list[dict[str, Any]]:
    found = []
    for size in sizes:
        ledger = Ledger(100)
        handles = tuple(
            Handle(
                id=f"bench.{ledger.lineage[:8]}.1.{uuid.uuid4().hex[:8]}.{number % 3}",
                sink="kafka:out", rows=1000, kept=(),
                body={"pid": 1000 + number, "epoch": 7, "started_ms": 1_760_000_000_000, "end_txn_version": 5},
            )
            for number in range(size * CORES)
        )  # fmt: skip
        store = LocalStore(folder / f"executors-{size}")
        taken = []
        for epoch in range(rounds):
            began = CLOCK.now()
            ledger.decide(epoch, handles)
            number, data = max(ledger.records.items())
            assert store.create(record_name(ledger.lineage, number), data)
            taken.append(1000 * (CLOCK.now() - began))
        row = {"executors": size, "handles": len(handles), "bytes": len(data), "decide_ms": statistics.median(taken)}
        found.append(row)
        say(row)
    return found


def say(row: dict[str, Any]) -> None:
    said = {name: f"{value:,.1f}" if isinstance(value, float) else value for name, value in row.items()}
    print("  ".join(f"{name} {value}" for name, value in said.items()), flush=True)


def numbers(text: str) -> list[int]:
    return [int(word.replace("_", "")) for word in text.split(",")]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Measure how the protocol grows.")
    parser.add_argument("--ledger", type=numbers, default=[10, 10_000, 100_000], help="epochs")
    parser.add_argument("--most-kept", type=int, default=10_000, help="epochs without retention: slow to make")
    parser.add_argument("--partitions", type=numbers, default=[2, 20, 200, 2_000, 10_000])
    parser.add_argument("--executors", type=numbers, default=[1, 10, 100, 1_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="CPU time, without waiting for the disk")
    parser.add_argument("--save", action="store_true", help="write bench/results/scale-<date>.json")
    chosen = parser.parse_args(arguments)
    if chosen.cpu:
        CLOCK.now = time.process_time  # type: ignore[method-assign]
    folder = Path(tempfile.mkdtemp(prefix="fencepost-scale-"))
    try:
        results = {
            "ledger": ledgers(folder, chosen.ledger, (100,), chosen.rounds)
            + ledgers(folder, [size for size in chosen.ledger if size <= chosen.most_kept], (None,), chosen.rounds),
            "partitions": partitions(folder, chosen.partitions, 2 + chosen.rounds),
            "executors": executors(folder, chosen.executors, chosen.rounds),
        }
        if chosen.save:
            print(save("scale-", {"cpu": chosen.cpu, "fsync ms": round(fsync_ms(folder), 2)}, results))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
