"""Spark's own files under recorded losses: after recovery, without Spark, is everything there that Spark will read?

Of each decided epoch: the state files that the decision names, byte by byte, the operators' metadata, and in the
targets exactly the rows up to it. (Whether Spark then goes on is what the real cuts show.)
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from fencepost.admin.savepoint import verify
from fencepost.config import Checkpoint, RunConfig
from fencepost.errors import FencepostError
from fencepost.runtime.driver import Driver, Plan
from fencepost.spark.spark_session import FORMATS
from fencepost.store import LocalStore
from fencepost.store.savepoints import find, home
from fencepost.store.spark_log import state_ids
from fencepost_proof.checkers import recount
from fencepost_proof.power.remains import Tree, remains
from fencepost_proof.power.trace import Recording, read, record
from fencepost_proof.workloads.contract import ROWS_PER_EPOCH
from fencepost_proof.workloads.files import FilesWorkload
from fencepost_proof.workloads.power_job import JOB, sinks

EPOCHS = 2
TARGET = "target"
"""A folder that is the user's, made long ago."""
OURS, STOCK = "ours", "stock"
TOTALS = pa.schema([("key", pa.string()), ("count", pa.int64()), ("total", pa.int64())])
ROWS = pa.schema([("id", pa.int64()), ("key", pa.string()), ("value", pa.int64())])


def record_spark(folder: Path) -> dict[str, Recording]:
    """One JVM runs the job twice: with our `file:` classes, and with Hadoop's own."""
    places = {name: folder / name for name in (OURS, STOCK)}
    for place in places.values():
        FilesWorkload(place).feed(EPOCHS)
        (place / "disk" / TARGET).mkdir(parents=True)
    command = [sys.executable, "-m", "fencepost_proof.workloads.recorded_job", *map(str, places.values())]
    log = folder / "trace"
    ours = record(command, places[OURS] / "disk", log, os.environ, [TARGET])
    with log.open() as lines:
        return {OURS: ours, STOCK: read(lines, places[STOCK] / "disk", [TARGET])}


@dataclass(frozen=True)
class SparkJudge:
    """Recovers what lies in a folder, and looks at it as Spark would."""

    recording: Recording
    input: Path

    @cached_property
    def _whole(self) -> Tree:
        return remains(self.recording, len(self.recording.operations), {})

    def __call__(self, folder: Path, end: int) -> str | None:
        """What is wrong, or nothing."""
        if (why := self._bad_savepoint(folder, finished=end == len(self.recording.operations))) is not None:
            return why
        try:
            self._recover(folder)
        except FencepostError as error:
            return error.code
        decided = self._decided(folder / "checkpoint")
        return self._lost_state(folder, decided) or self._wrong_rows(folder / TARGET, len(decided))

    def _bad_savepoint(self, folder: Path, *, finished: bool) -> str | None:
        """There whole, or not there; there, if it was reported made."""
        whole, damaged = find(home(folder / "checkpoint"))
        if damaged or any(map(verify, whole)):
            return "savepoint damaged"
        return "savepoint lost" if finished and not whole else None

    def _recover(self, folder: Path) -> None:
        totals, every = sinks(str(folder / TARGET))
        driver = Driver(
            Plan(
                config=RunConfig(job=JOB, checkpoint=Checkpoint(folder / "checkpoint")),
                store=LocalStore(folder / "checkpoint"),
                sinks={totals.name: totals, every.name: every},
                schemas={totals.name: TOTALS, every.name: ROWS},
                modes={totals.name: "update", every.name: "append"},
                formats=FORMATS,
            )
        )
        driver.recover()
        driver.close()

    def _decided(self, checkpoint: Path) -> list[str]:
        """The snapshots of decided epochs, from the first on."""
        records = [json.loads(file.read_text()) for file in sorted(checkpoint.glob("fencepost/*/ledger/*.json"))]
        return [record["body"]["snapshot"] for record in records if record["kind"] == "decision"]

    def _lost_state(self, folder: Path, decided: list[str]) -> str | None:
        whole = self._whole
        wanted = [path for path in whole if decided and path.startswith("checkpoint/state/") and "/_metadata/" in path]
        for epoch, snapshot in enumerate(decided):
            for operator, partitions in state_ids(snapshot).items():
                stems = [f"{n}/{epoch + 1}_{id_}" for n, ids in enumerate(partitions) for id_ in ids]
                wanted += [p for p in whole for stem in stems if p.startswith(f"checkpoint/state/{operator}/{stem}")]
        for path in wanted:
            file = folder / path
            if whole[path] is not None and (not file.is_file() or file.read_bytes() != whole[path]):
                return "state differs"
        return None

    def _wrong_rows(self, target: Path, epochs: int) -> str | None:
        rows = sorted(recount.rows_in(self.input))[: epochs * ROWS_PER_EPOCH]
        places = (f"totals:sqlite:{target / 'totals.db'}", f"rows:files:{target / 'rows'}")
        wrong = sum(sum(recount.verdict(rows, place).values()) for place in places)
        return "not exact" if wrong else None
