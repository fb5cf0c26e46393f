"""What a killed job reads and writes: its input, its process, its checker. Never looks at results by itself."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

TASK = "in a task"
MOMENT = "a random moment"
SERVER = "a server"
SLEEPER = "asleep past a takeover"
JVM = "the JVM alone"
STATE = "a worker at the state"
"""What can be attacked beside a named point."""
BY_CHANCE = (MOMENT, SERVER)
"""Of these, some come when the job has ended already."""

ROWS_PER_EPOCH = 12


class Mortal(Protocol):
    """A server that can be killed and comes back with what it had."""

    def kill(self) -> None:
        """SIGKILL."""

    def start(self) -> object:
        """On the same port, with the same data."""


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
    beds: ClassVar[tuple[str, ...]] = (
        "precommit.after",
        "decide.before",
        "decide.after",
        "commit.before",
        "commit.after",
        "complete.before",
    )
    """Where a driver falls asleep: from the barrier to the end of an epoch, in every one of which it comes by."""
    out_of_reach: ClassVar[Mapping[str, str]] = {}
    """Points that this job cannot pass and others can, with the reason; see `points`."""

    @property
    def alone(self) -> bool:
        """Must a driver be alone, so that a second one is refused while the first lives, even asleep?"""
        return False

    @property
    def servers(self) -> Mapping[str, Mortal]:
        """What it reads from and writes to, by name."""
        return {}

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

    @contextmanager
    def watched(self) -> Iterator[dict[str, dict[str, int]]]:
        """A reader who does not wait for the end; what it saw is there when the block is over."""
        yield {}

    def epoch(self) -> int:
        """The epoch that was running, or ran last, by Spark's own log."""
        names = [path.name for path in (self.checkpoint / "offsets").glob("[0-9]*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)
