"""Files in; totals by upsert into SQLite and every row once into files out."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fencepost_proof.workloads.contract import ROWS_PER_EPOCH, Workload

KEYS = tuple("abcde")
KAFKA = "a sink whose open transactions hold readers up (--workload kafka)"
DATABASES = "a sink of a database (--workload databases)"
LAKEHOUSE = "a Delta or Iceberg table (--workload lakehouse)"


@dataclass
class FilesWorkload(Workload):
    """A file is an epoch."""

    job: ClassVar = "fencepost_proof.workloads.files_job"
    checker: ClassVar = "recount.py"
    out_of_reach: ClassVar = {
        "cassandra.*": DATABASES,
        "kafka.*": KAFKA,
        "lake.*": LAKEHOUSE,
        "redis.*": DATABASES,
        "staged.*": DATABASES,
        "sweep.abort": KAFKA,
        "sweep.orphans": KAFKA,
    }

    def __post_init__(self) -> None:
        """An empty folder for the input."""
        self.input.mkdir(parents=True)

    @property
    def input(self) -> Path:
        """Where input files arrive."""
        return self.folder / "in"

    def feed(self, epochs: int) -> int:
        """Let files arrive, one an epoch."""
        began = self.rows
        for number in range(self.rows // ROWS_PER_EPOCH, self.rows // ROWS_PER_EPOCH + epochs):
            ids = range(self.rows, self.rows + ROWS_PER_EPOCH)
            rows = [{"id": i, "key": self.chance.choice(KEYS), "value": self.chance.randrange(1000)} for i in ids]
            temp = self.input / f".{number:05}"
            temp.write_text("".join(json.dumps(row) + "\n" for row in rows))
            at = 1_700_000_000 + number  # Spark takes files by age
            os.utime(temp, (at, at))
            temp.rename(self.input / f"{number:05}.json")
            self.rows += ROWS_PER_EPOCH
        return began

    def unread(self) -> list[int]:
        """A file an epoch."""
        return list(range((self.epoch() + 1) * ROWS_PER_EPOCH, self.rows))

    def checker_arguments(self, *places: str) -> list[str]:
        """The input and both targets."""
        return [
            str(self.input),
            *(places or (f"totals:sqlite:{self.folder / 'totals.db'}", f"rows:files:{self.folder / 'rows'}")),
        ]
