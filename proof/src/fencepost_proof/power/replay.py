"""Replays a recorded job up to each of its operations, loses what was not synced, and lets recovery try.

recording ─► after every operation: each way to lose ─► folder ─► recovery and the rest of the job ─► exact?
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fencepost.errors import FencepostError
from fencepost_proof.power import recorder
from fencepost_proof.power.remains import digest, lay_out, worlds
from fencepost_proof.power.trace import Recording, record

TARGETS = ("files", "sqlite")

Judge = Callable[[Path, int], str | None]
"""Recovers what a cut after so many operations left in a folder; says what is wrong with it then, or nothing."""


@dataclass
class Replayed:
    """What became of the worlds that were tried."""

    operations: int = 0
    worlds: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    last: str = ""
    """One of the wrong: after which operation, and what."""


def record_job(folder: Path, *more: str) -> Recording:
    """Record the stand-in job with an epoch, a kill between decision and commit, and a recovery."""
    disk = folder / "disk"
    disk.mkdir(parents=True)
    command = [sys.executable, "-m", "fencepost_proof.power.recorder", str(disk), *TARGETS, *more]
    return record(command, disk, folder / "trace", os.environ)


def judge_job(folder: Path, _: int) -> str | None:
    """Run the stand-in job to its end on what is there."""
    try:
        recorder.job(folder, TARGETS).run()
    except FencepostError as error:
        return error.code
    except Exception as error:  # noqa: BLE001 - the engine's own log, or a state file, that nobody can read
        return type(error).__name__
    return None if recorder.is_exact(folder, TARGETS) else "not exact"


def replay(
    recording: Recording, judge: Judge, place: Path, *, most: int, chance: random.Random, step: int = 1
) -> Replayed:
    """Every operation (or every `step`-th) as the last one, at most so many worlds for each; equal ones once."""
    found = Replayed()
    seen = set[bytes]()
    for end in range(len(recording.operations), recording.first, -step):
        found.operations += 1
        for tree in worlds(recording, end, most, chance):
            if (sum_ := digest(tree)) in seen:
                continue
            seen.add(sum_)
            found.worlds += 1
            lay_out(tree, place)
            if (why := judge(place, end)) is not None:
                found.wrong[why] += 1
                found.last = f"after {end} of {len(recording.operations)} operations: {why}"
    return found


@contextmanager
def quick_folder(other: Path) -> Iterator[Path]:
    """In memory, if there is such a place: the worlds are many, and what is synced in them does not matter."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else other) as folder:
        yield Path(folder) / "world"
