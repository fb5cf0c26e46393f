"""A stand-in for the engine that keeps its log as Spark does, so that every crash point can be killed in a fraction of
a second with the real protocol, ledger and sinks.

    offsets/N ─► plan (running sum; state under a name of its own attempt) ─► Driver.run_epoch ─► commits/N

The source is a list of numbers; a row is (id, value, sum). It is not a test double of a sink or of the ledger: those
are the real ones. Nor of a sink's tasks: two of them get each half of the rows, in this process.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from fencepost import faults
from fencepost.config import Checkpoint, RunConfig
from fencepost.contract import Attempt, Sink
from fencepost.errors import Tolerance
from fencepost.guarantee import Guarantee
from fencepost.observe.journal import Observer
from fencepost.protocol.records import Epoch
from fencepost.runtime.driver import Driver, Plan
from fencepost.store import LocalStore
from fencepost.store.staging import TAG

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64()), ("sum", pa.int64())])
Row = tuple[int, int, int]
JOB = "stand-in"


@dataclass(frozen=True, slots=True)
class StandIn:
    """One job on the stand-in engine."""

    checkpoint: Path
    numbers: tuple[int, ...]
    per_epoch: int
    sinks: Mapping[str, Sink]
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    keep: int = 100
    observer: Observer | None = None
    bears: int = 0
    """Failed epochs in a row."""
    overlap: bool = False
    """Commit an epoch beside the next one's plan."""

    def run(self) -> None:
        """Recover, process everything there is, end cleanly."""
        driver = Driver(
            Plan(
                config=RunConfig(
                    job=JOB,
                    checkpoint=Checkpoint(self.checkpoint, overlap=self.overlap),
                    guarantee=self.guarantee,
                ),
                store=LocalStore(self.checkpoint),
                sinks=self.sinks,
                schemas=dict.fromkeys(self.sinks, SCHEMA),
                modes={name: "complete" if self._is_whole(name) else "append" for name in self.sinks},
                keep=self.keep,
                observer=self.observer,
                tolerance=Tolerance(self.bears),
            )
        )
        driver.recover()
        epoch, start = self._resume()
        while start < len(self.numbers) or self._begun(epoch):
            start = self._run_epoch(driver, epoch, start)
            epoch += 1
        driver.close()
        if driver.failure is not None:  # of a commit beside an epoch that did not come
            raise driver.failure

    def _run_epoch(self, driver: Driver, epoch: int, start: int) -> int:
        end = self._begun(epoch) or min(start + self.per_epoch, len(self.numbers))
        if not self._begun(epoch):
            self._log("offsets", epoch, f'v1\n{{"conf":{{}}}}\n{{"position":{end}}}')
        faults.reach("engine.begun")
        total, rows = self._state(epoch), []
        for index in range(start, end):
            total += self.numbers[index]
            rows.append((index, self.numbers[index], total))
        whole = list(zip(range(end), self.numbers[:end], accumulate(self.numbers[:end]), strict=True))
        attempt = uuid.uuid4().hex
        # Durable before the decision that names it, as our `file:` class makes Spark's.
        LocalStore(self.checkpoint).create(f"state/0/0/{epoch + 1}_{attempt}.changelog", str(total).encode())
        snapshot = f"v2\n{json.dumps({'nextBatchWatermarkMs': 0, 'stateUniqueIds': {'0': [[attempt]]}})}"
        faults.reach("engine.planned")
        driver.run_epoch(epoch, driver.stage(epoch, self._table(rows, whole, driver, epoch)), lambda: snapshot)
        faults.reach("engine.returned")
        self._log("commits", epoch, snapshot)
        faults.reach("engine.completed")
        return end

    def _resume(self) -> tuple[int, int]:
        """As Spark: the last begun epoch again if it is not complete, otherwise the next one."""
        complete = self._names("commits")
        epoch = complete[-1] + 1 if complete else 0
        return epoch, (self._begun(epoch - 1) or 0) if epoch else 0

    def _begun(self, epoch: int) -> int:
        path = self.checkpoint / "offsets" / str(epoch)
        return int(json.loads(path.read_text().split("\n")[2])["position"]) if path.exists() else 0

    def _state(self, epoch: int) -> int:
        if epoch == 0:
            return 0
        text = (self.checkpoint / "commits" / str(epoch - 1)).read_text().split("\n")[1]
        attempt = json.loads(text)["stateUniqueIds"]["0"][0][0]
        return int((self.checkpoint / "state" / "0" / "0" / f"{epoch}_{attempt}.changelog").read_text())

    def _names(self, log: str) -> list[int]:
        folder = self.checkpoint / log
        return sorted(int(name) for name in os.listdir(folder) if name.isdigit()) if folder.is_dir() else []

    def _log(self, log: str, epoch: int, text: str) -> None:
        """As Spark on a local disk: a temp file and a rename, no fsync."""
        folder = self.checkpoint / log
        folder.mkdir(parents=True, exist_ok=True)
        temp = folder / f".{epoch}.{uuid.uuid4().hex}.tmp"
        temp.write_text(text)
        faults.reach(f"engine.{log}.before_rename")
        temp.rename(folder / str(epoch))

    def _is_whole(self, name: str) -> bool:
        """Output mode complete: does the sink get the whole result in every epoch?"""
        return "complete" in self.sinks[name].capabilities.modes

    def _by_tasks(self, name: str, table: pa.Table, driver: Driver, epoch: int) -> pa.Table:
        """The rows as the tasks of a sink leave them; first no task, then one, then both have many rows."""
        write: Any = self.sinks[name].in_tasks(JOB)
        if write is None:
            return table
        attempt, half = Attempt(driver.lineage, driver.writer, Epoch(epoch)), table.num_rows // 2
        left = []
        for task, rows in enumerate((table[:half], table[half:])):
            few = 0 if task < epoch % 3 else table.nbytes
            left += list(replace(write, few=few)(attempt, iter(rows.to_batches())))
        return pa.Table.from_batches(left)

    def _table(self, rows: list[Row], whole: list[Row], driver: Driver, epoch: int) -> pa.Table:
        tables = {
            name: self._by_tasks(name, _table_of(whole if self._is_whole(name) else rows), driver, epoch)
            for name in self.sinks
        }
        if len(tables) == 1:
            return next(iter(tables.values()))
        # Several branches: every sink gets every row, tagged as `spark/branches.py` does.
        tagged = []
        for index, (name, table) in enumerate(tables.items(), start=1):
            structs = pa.array(table.to_pylist(), pa.struct(list(table.schema)))
            branches = {
                other: structs if other == name else pa.nulls(len(structs), pa.struct(list(its.schema)))
                for other, its in tables.items()
            }
            tagged.append(pa.table({TAG: pa.array([index] * len(structs), pa.int32()), **branches}))
        return pa.concat_tables(tagged)


def _table_of(rows: list[Row]) -> pa.Table:
    return pa.table([list(column) for column in zip(*rows, strict=True)] or [[], [], []], schema=SCHEMA)
