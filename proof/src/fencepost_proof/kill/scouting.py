"""Which crash points a job passes, found by letting it pass them: a few starts on a checkpoint of their own."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace

from fencepost_proof.kill.points import in_worker
from fencepost_proof.kill.scene import KILLED, Scene, SceneFailed
from fencepost_proof.workloads.process import AGAIN

EPOCHS_PER_START = 3
DECIDED, UNDECIDED = "decide.after=kill", "decide.before=kill"
"""Kills after which recovery has something to do: finish a decision; abort orphans and forget an epoch."""


@dataclass(frozen=True)
class Scouted:
    """What a job passes, in a first start, in one that has a decision to finish, in one that has orphans to abort."""

    first: Counter[str]
    finishing: Counter[str]
    aborting: Counter[str]
    seconds: float
    """How long a whole start took."""
    failing: Counter[str] = field(default_factory=Counter)
    """What it passes when a Python worker dies; nothing, if there is none."""

    @property
    def only_first(self) -> list[str]:
        """Points that only the first start of a checkpoint passes, in the order in which it does."""
        later = set(self.later)
        return [point for point in self.first if point not in later]

    @property
    def later(self) -> list[str]:
        """All others."""
        return sorted(self.finishing | self.aborting | self.failing)

    @property
    def worker(self) -> str:
        """The fault that ends a Python worker, if the job has any that we can end."""
        found = [point for point in self.finishing if in_worker(point)]
        return f"{found[-1]}=kill" if found else ""

    def setup(self, point: str) -> str:
        """The kill that must come before, so that the next start passes this point."""
        if (point in self.finishing and point in self.aborting) or self.beside(point):
            return ""
        return DECIDED if point in self.finishing else UNDECIDED

    def beside(self, point: str) -> str:
        """The fault that must happen in the same start, so that it passes this point."""
        return "" if point in self.finishing or point in self.aborting else self.worker

    def visits(self, point: str) -> int:
        """How often one start passes it, surely."""
        found = [passed[point] for passed in (self.finishing, self.aborting) if passed[point]]
        return min(found, default=1)


def scout(scene: Scene) -> Scouted:
    """Three starts: which points are passed, how often, and how long a start takes; a fourth in which a worker dies."""
    logs = [scene.folder / f"passed-{number}" for number in range(4)]
    scene.feed(EPOCHS_PER_START)
    ended = [scene.run(DECIDED, logs[0])]
    scene.feed(EPOCHS_PER_START)
    ended.append(scene.run("decide.before=kill@2", logs[1]))
    scene.feed(EPOCHS_PER_START)
    began = time.monotonic()
    ended.append(scene.run("", logs[2]))
    seconds = time.monotonic() - began
    if ended != [KILLED, KILLED, 0]:
        raise SceneFailed(f"The scout's starts ended with {ended}; see {scene.log}")
    first, finishing, aborting = (scene.points(log) for log in logs[:3])
    found = Scouted(first, finishing, aborting, seconds)
    if not found.worker:
        return found
    scene.feed(EPOCHS_PER_START)
    if (code := scene.run(found.worker, logs[3])) != AGAIN:
        raise SceneFailed(f"The scout's start with a dying worker ended with {code}; see {scene.log}")
    return replace(found, failing=scene.points(logs[3]))
