"""What a killed job reads and writes: its input, its process, its checker. Never looks at results by itself."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

TASK = "in a task"
MOMENT = "a random moment"
BROKER = "the broker"
SLEEPER = "asleep past a takeover"
"""What can be attacked beside a named point."""
BY_CHANCE = (MOMENT, BROKER)
"""Of these, some come when the job has ended already."""

ROWS_PER_EPOCH = 12


@dataclass
class Workload(ABC):
    """One checkpoint's input and targets, in a folder of their own. Rows are numbered from 0 on."""

    folder: Path
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    rows: int = 0
    """So many have arrived."""

    job: ClassVar[str]
    """The module that is started."""
    checker: ClassVar[str]
    """The file that counts the results, run by path."""
    attacks: ClassVar[tuple[str, ...]] = (TASK, MOMENT)
    """What is attacked between the named points, in turn."""
    out_of_reach: ClassVar[Mapping[str, str]] = {}
    """Points that this job cannot pass and others can, with the reason; see `points`."""

    @property
    def checkpoint(self) -> Path:
        """Of the job."""
        return self.folder / "checkpoint"

    @abstractmethod
    def feed(self, epochs: int) -> int:
        """Let input for so many epochs arrive; return the id of the first row."""

    @abstractmethod
    def unread(self) -> list[int]:
        """Ids that arrived and that no epoch has begun to read, by Spark's own log."""

    def job_arguments(self) -> list[str]:
        """What the job is told beside its folder."""
        return []

    @abstractmethod
    def checker_arguments(self, *places: str) -> list[str]:
        """What the checker is told; without a place, all of them."""

    def epoch(self) -> int:
        """The epoch that was running, or ran last, by Spark's own log."""
        names = [path.name for path in (self.checkpoint / "offsets").glob("[0-9]*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)
