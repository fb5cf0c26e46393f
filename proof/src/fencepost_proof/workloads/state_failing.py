"""Lets the stateful job fail at every crash point, in one process that lives on, as `fp.MemoryState()` must survive.

    python -m fencepost_proof.workloads.state_failing FOLDER [--fails 20] [--seed 7] [--backend memory] [--plan update]

A failed query is started again at once, with the next fault armed, while input keeps arriving. Exit 1 if state or sinks
differ from a recount of the input, if an armed point was never reached, or if the job ends in a way that no fault
explains.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

import fencepost as fp
from fencepost import faults
from fencepost.store import staging
from fencepost_proof.kill.points import in_worker
from fencepost_proof.kill.report import show_verdicts
from fencepost_proof.kill.scene import Scene, SceneFailed
from fencepost_proof.kill.scouting import DECIDED, EPOCHS_PER_START, UNDECIDED, Scouted
from fencepost_proof.workloads import process, state_job
from fencepost_proof.workloads.contract import ROWS_PER_EPOCH
from fencepost_proof.workloads.state import BACKENDS, PLANS, StateWorkload
from fencepost_proof.workloads.state_reader import states

ONLY_FAILING, FAILED = "failed.", "decide.before=fail"
"""Points that only a start which fails passes, and the failure that lets it."""


class Failing:
    """One checkpoint, and every start of its query in this process."""

    def __init__(self, work: StateWorkload) -> None:
        self.work = work
        more = argparse.Namespace(backend=work.backend, plan=work.plan, worker="lives")
        self._told = process.Told(work.folder, None, None, plain=False, conf=process.QUICK, more=more)
        self.spark: Any = None

    @property
    def checkpoint(self) -> Path:
        """Wherever the backend keeps it."""
        in_memory = self.work.backend == "memory"
        return Path(staging.process_folder(self.work.folder.name)) if in_memory else self.work.checkpoint

    def run(self, fault: str = "") -> Counter[str]:
        """One start with new input, to its end or its failure; what it passed."""
        log = self.work.folder / "passed"
        log.unlink(missing_ok=True)
        waiting = (self.work.rows - self._read()) // ROWS_PER_EPOCH
        self.work.feed(max(0, EPOCHS_PER_START - waiting))
        faults.arm({faults.ARM: fault, faults.LOG: str(log)})
        failed = ""
        try:
            job = state_job.job_of(self._told)
            self.spark = job.spark
            job.run(until="available")
        except (fp.Retryable, faults.Injected) as error:
            failed = str(error)
        finally:
            faults.arm({})
        if failed and not fault:
            raise SceneFailed(f"A start without any fault failed: {failed}")
        return Counter(log.read_text().split())

    def _read(self) -> int:
        offsets = self.checkpoint / "offsets"
        newest = max((int(path.name) for path in offsets.glob("[0-9]*") if path.name.isdigit()), default=None)
        if newest is None:
            return 0
        position: int = json.loads((offsets / str(newest)).read_text().splitlines()[-1])["logOffset"]
        return (position + 1) * ROWS_PER_EPOCH


def scouted(failing: Failing) -> Scouted:
    """Three starts, as `scouting` has them; what only a start that fails passes stands beside."""
    first = mine(failing.run(as_failure(DECIDED)))
    finishing = mine(failing.run(as_failure(UNDECIDED) + "@2"))
    began = time.monotonic()
    return Scouted(first, finishing, mine(failing.run()), time.monotonic() - began)


def mine(passed: Counter[str]) -> Counter[str]:
    """Faults are armed in this process, not in the Python workers."""
    return Counter({point: count for point, count in passed.items() if not in_worker(point)})


def as_failure(fault: str) -> str:
    """Not a kill."""
    return fault.replace("=kill", "=fail")


def chain(known: Scouted, chance: random.Random) -> Iterator[tuple[str, str]]:
    """Endless: points with the fault that must come before; those of the first start first."""
    for point in known.only_first:
        yield "", f"{point}=fail"
    yield "", "complete.before=fail"  # from here on there is a decision that recovery looks at
    while True:
        for point in chance.sample(known.later, len(known.later)):
            if point.startswith(ONLY_FAILING):
                yield "", f"{FAILED},{point}=fail"
            else:
                yield as_failure(known.setup(point)), f"{point}=fail@{chance.randint(1, min(4, known.visits(point)))}"


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Let a stateful job fail again and again, and count its output.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fails", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=BACKENDS, default="memory")
    parser.add_argument("--plan", choices=PLANS, default="update")
    told = parser.parse_args(arguments)
    chance, console = random.Random(told.seed), Console(width=110)
    make = partial(StateWorkload, backend=told.backend, plan=told.plan)
    began = time.monotonic()
    known = scouted(Failing(make(told.folder / "scout")))
    work = make(told.folder / "scene", chance)
    failing = Failing(work)
    work.read_state = lambda _: states(failing.spark, str(failing.checkpoint))
    hits: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for before, fault in chain(known, chance):
        if hits.total() + missed.total() >= told.fails:
            break
        if before:
            failing.run(before)
        point, _, visit = fault.rpartition(",")[2].replace("=fail", "").partition("@")
        hit = failing.run(fault)[point] >= int(visit or 1)
        if not hit:  # the failure before it left nothing of that kind to do
            failing.run(as_failure(DECIDED))
            hit = failing.run(f"{point}=fail")[point] > 0
        (hits if hit else missed)[point] += 1
        console.print(f"{hits.total():4} {fault}{'' if hit else '   not reached'}", highlight=False)
    failing.run()
    verdict = Scene(work).verdict()
    show_verdicts(console, work.rows, verdict)
    never = sorted(set(missed) - set(hits))
    console.print(
        f"{hits.total()} failures in {time.monotonic() - began:.0f} s at {len(hits)} of the "
        f"{len({*known.only_first, *known.later})} points that this job passes",
        highlight=False,
    )
    if never:
        console.print(f"armed and never reached: {', '.join(never)}", highlight=False)
    return 1 if never or any(sum(found.values()) for found in verdict.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
