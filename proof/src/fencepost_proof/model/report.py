"""Runs the explorer over several jobs in several processes, and adds up. The test suite and the command use it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

from fencepost_proof.model.explore import Explorer
from fencepost_proof.model.hunt import Caught, hunt
from fencepost_proof.model.sabotage import SABOTAGES
from fencepost_proof.model.swap import remembered, swapped
from fencepost_proof.model.targets import APPLY, BARE, KEPT, PUBLISH, TASKS, Job

SINKS = ((KEPT, APPLY), (BARE, PUBLISH), (APPLY, PUBLISH))
OVERLAPPED = (*SINKS, (TASKS, APPLY))


class Task(NamedTuple):
    """A job to explore."""

    job: Job
    faults: int
    mixed: bool = True

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.job.name}, ≤ {self.faults} faults" + ("" if self.mixed else ", pauses alone")


class Verdict(NamedTuple):
    """What exploring a job gave."""

    name: str
    histories: int
    effects: int
    """Really performed: equal situations are explored once."""
    kinds: dict[str, int]
    examples: tuple[str, ...]
    seconds: float
    """Of all processes together."""


def tasks(faults: int) -> tuple[Task, ...]:
    """Two sinks at a time, three epochs; and a longer job, in which retention frees numbers.

    Up to two faults of all kinds in one history; a third one only without pauses, or it would take days. With
    overlapped commits every order of the two strands is tried, so a pause comes alone there.
    """
    two = (
        *(Task(Job(sinks), min(faults, 2)) for sinks in SINKS),
        Task(Job((BARE, PUBLISH), 4), min(faults, 1)),
        *(Task(job, min(faults, 2), mixed=False) for job in upkept()),
        *(Task(job, min(faults, 1)) for job in upkept()),
        *(Task(Job(sinks, overlap=True), min(faults, 1)) for sinks in OVERLAPPED),
        *(Task(Job(sinks, overlap=True), min(faults, 2), mixed=False) for sinks in OVERLAPPED),
        *(Task(job._replace(overlap=True), min(faults, 1)) for job in upkept()),
    )
    return two if faults <= 2 else (*two, *(Task(Job(sinks), faults, mixed=False) for sinks in SINKS))


def upkept() -> tuple[Job, ...]:
    """Jobs that a person rewinds or rescales after two epochs."""
    return (
        *(Job(sinks, 3, "quiet") for sinks in SINKS),
        *(Job(sinks, 4, "rescale") for sinks in SINKS),
        Job((APPLY, PUBLISH), 3, "overwrite"),
    )


def quick() -> tuple[Task, ...]:
    """What every run of the tests explores: a part of `tasks(2)` that takes seconds."""
    return (
        *(Task(Job(sinks), 2, mixed=False) for sinks in SINKS),
        *(Task(Job(sinks, 1), 2) for sinks in SINKS),
        *(Task(Job(sinks, 4), 1) for sinks in SINKS),
        *(Task(job, 1) for job in upkept()[::3]),
        *(Task(Job(sinks, 2, overlap=True), 1) for sinks in OVERLAPPED),
    )


def explore(wanted: Iterable[Task], processes: int) -> Iterator[Verdict]:
    """Explore each; with fewer jobs than processes, a job is split by the place of the first fault."""
    wanted = tuple(wanted)
    # The parts of a job cannot share what they learned, so splitting it costs almost as much again.
    split = max(1, processes // max(1, len(wanted)))
    # A process per part: what it remembers of one job is of no use to the next, and is half a gigabyte.
    with _pool(processes, each=1) as pool:
        parts = [[pool.submit(_part, task, (n, split)) for n in range(split)] for task in wanted]
        for task, futures in zip(wanted, parts, strict=True):
            done = [future.result() for future in futures]
            kinds: Counter[str] = Counter()
            for part in done:
                kinds.update(part.kinds)
            yield Verdict(
                task.name,
                sum(part.histories for part in done),
                sum(part.effects for part in done),
                dict(kinds),
                tuple(example for part in done for example in part.examples),
                sum(part.seconds for part in done),
            )


def hunt_all(processes: int) -> Iterator[tuple[str, str, Caught | None]]:
    """Every sabotage, and how it was caught."""
    with _pool(processes) as pool:
        caught = [pool.submit(_hunt, number) for number in range(len(SABOTAGES))]
        for sabotage, future in zip(SABOTAGES, caught, strict=True):
            yield sabotage.name, sabotage.what, future.result()


def _pool(processes: int, each: int | None = None) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"), max_tasks_per_child=each)


def _part(task: Task, share: tuple[int, int]) -> Verdict:
    began = time.perf_counter()
    explorer = Explorer(task.job, share=share, mixed=task.mixed)
    with swapped(*remembered()):
        histories = explorer.run(task.faults)
    kinds = Counter(found.violation.kind for found in explorer.found)
    shortest = sorted(explorer.found, key=lambda found: len(found.faults))[:3]
    examples = tuple(f"{'; '.join(found.faults)} → {found.violation}" for found in shortest)
    return Verdict(task.name, histories, explorer.visited, dict(kinds), examples, time.perf_counter() - began)


def _hunt(number: int) -> Caught | None:
    return hunt(SABOTAGES[number])
