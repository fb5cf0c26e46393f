"""A job without state or Spark: a real driver, ledger and sinks, and a log that is kept as Spark keeps it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from killing import wait

from fencepost import faults
from fencepost.admin.verify import Verified, compare
from fencepost.config import Checkpoint, RunConfig
from fencepost.contract import Sink
from fencepost.guarantee import Guarantee
from fencepost.observe.journal import Observer
from fencepost.runtime.driver import Driver, Plan
from fencepost.store import LocalStore

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64()), ("sum", pa.int64())])
SNAPSHOT = 'v1\n{"nextBatchWatermarkMs":0}'


@dataclass(frozen=True)
class Small:
    """One row an epoch, to every sink."""

    folder: Path
    sinks: Mapping[str, Sink]
    keep: int = 100
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    allow_sink_changes: bool = False
    overlap: bool = False
    observer: Observer | None = None
    """Without one there is no journal."""

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @contextmanager
    def driver(self) -> Iterator[Driver]:
        names = self.sinks
        driver = Driver(
            Plan(
                config=RunConfig(
                    job="small",
                    checkpoint=Checkpoint(self.checkpoint, overlap=self.overlap),
                    guarantee=self.guarantee,
                    allow_sink_changes=self.allow_sink_changes,
                ),
                store=LocalStore(self.checkpoint),
                sinks=names,
                schemas=dict.fromkeys(names, SCHEMA),
                modes=dict.fromkeys(names, "append"),
                keep=self.keep,
                observer=self.observer,
            )
        )
        driver.recover()
        yield driver
        driver.close()

    def epoch(self, driver: Driver) -> None:
        log = self.checkpoint / "commits"
        number = max((int(name) for name in os.listdir(log)), default=-1) + 1 if log.is_dir() else 0
        self._log("offsets", number, f'v1\n{{"conf":{{}}}}\n{{"position":{number}}}')
        table = pa.table([[number], [number], [number]], schema=SCHEMA)
        driver.run_epoch(number, driver.stage(number, table), lambda: SNAPSHOT)
        self._log("commits", number, SNAPSHOT)

    def run(self, epochs: int) -> None:
        with self.driver() as driver:
            for _ in range(epochs):
                self.epoch(driver)

    def killed(self, fault: str, epochs: int = 1) -> None:
        """Run in a child that kills itself."""
        if not (pid := os.fork()):
            faults.arm({faults.ARM: fault})
            try:
                self.run(epochs)
            finally:
                os._exit(0)
        assert -9 == wait(pid)

    def verify(self, **changes: Any) -> Verified:
        return compare(self.checkpoint, **{"sinks": self.sinks, **changes})

    def _log(self, log: str, number: int, text: str) -> None:
        folder = self.checkpoint / log
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(number)).write_text(text)
