"""Files in; one stateful branch of every kind out, on a state backend of choice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fencepost_proof.workloads.contract import JVM, MOMENT, ROWS_PER_EPOCH, SLEEPER, STATE, TASK
from fencepost_proof.workloads.files import KEYS, FilesWorkload

BACKENDS = ("rocksdb", "rocksdb-full", "filesystem", "memory")
PLANS = ("update", "append")
FILES = "a sink of files (--plan append, or a RocksDB)"
BEGAN = 1_700_000_000
PLACES = {"update": ("counts:sqlite", "drawn:sqlite", "sums:files"), "append": ("windows:files", "joined:files")}
"""What each plan holds, and in what; `sums` only where the backend knows keyed state."""

ReadState = Callable[[Path], dict[str, list[Any]]]


def read_state(checkpoint: Path) -> dict[str, list[Any]]:
    """What is in the state after the last epoch, by Spark's own reader, in a process without fencepost."""
    reader = Path(__file__).with_name("state_reader.py")
    command = [sys.executable, "-I", str(reader), str(checkpoint)]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    if found.returncode != 0:
        raise RuntimeError(f"The state could not be read:\n{found.stderr}")
    states: dict[str, list[Any]] = json.loads(found.stdout.splitlines()[-1])
    return states


@dataclass
class StateWorkload(FilesWorkload):
    """A file is an epoch, and each start ends with one that has no input: the watermark has moved."""

    backend: str = field(default="rocksdb", kw_only=True)
    plan: str = field(default="update", kw_only=True)
    read_state: ReadState = field(default=read_state, kw_only=True)

    job: ClassVar = "fencepost_proof.workloads.state_job"
    checker: ClassVar = "recount_state.py"
    attacks: ClassVar = (STATE, JVM, TASK, SLEEPER, MOMENT)
    beds: ClassVar = ("precommit.after", "complete.before")
    """Between vote and commit a sleeper would have SQLite's one lock, and the second driver gives up after a while."""
    out_of_reach: ClassVar = {
        **FilesWorkload.out_of_reach,
        "publish.*": FILES,
        "recover.abort": FILES,
        "vote.during": "a sink of a database (--plan update)",
    }

    @property
    def alone(self) -> bool:
        """State on the heap: its files carry no attempt's id."""
        return self.backend in ("filesystem", "memory")

    def feed(self, epochs: int) -> int:
        """Let files arrive; a second passes from row to row."""
        began = self.rows
        for number in range(self.rows // ROWS_PER_EPOCH, self.rows // ROWS_PER_EPOCH + epochs):
            ids = range(self.rows, self.rows + ROWS_PER_EPOCH)
            rows: list[dict[str, Any]] = [
                {"id": i, "key": self.chance.choice(KEYS), "value": self.chance.randrange(1000), "at": BEGAN + i}
                for i in ids
            ]
            rows[-1]["value"] -= rows[-1]["value"] % 3 - 1  # each file moves the watermark of both sides of the join
            temp = self.input / f".{number:05}"
            temp.write_text("".join(json.dumps(row) + "\n" for row in rows))
            at = BEGAN + number  # Spark takes files by age
            os.utime(temp, (at, at))
            temp.rename(self.input / f"{number:05}.json")
            self.rows += ROWS_PER_EPOCH
        return began

    def unread(self) -> list[int]:
        """By the position in Spark's newest entry: not every epoch reads a file."""
        newest = self.checkpoint / "offsets" / str(self.epoch())
        read = json.loads(newest.read_text().splitlines()[-1])["logOffset"] + 1 if newest.exists() else 0
        return list(range(read * ROWS_PER_EPOCH, self.rows))

    def job_arguments(self) -> list[str]:
        """What to build; the worker behind the state lives, if no attack says otherwise."""
        return ["--backend", self.backend, "--plan", self.plan, "--worker", "lives"]

    @property
    def places(self) -> tuple[str, ...]:
        """For the checker."""
        found = []
        for place in PLACES[self.plan]:
            name, _, kind = place.partition(":")
            if name != "sums" or self.backend.startswith("rocksdb"):
                found.append(f"{place}:{self.folder / (f'{name}.db' if kind == 'sqlite' else name)}")
        return tuple(found)

    def checker_arguments(self, *places: str) -> list[str]:
        """The input, the state, and all targets."""
        states = self.folder / "states.json"
        states.write_text(json.dumps(self.read_state(self.checkpoint)))
        return [str(self.input), str(states), *(places or self.places)]
