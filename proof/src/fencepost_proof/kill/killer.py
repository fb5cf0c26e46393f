"""One chain of kills through one checkpoint: which point is next, how it is hit, and what came of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle

from rich.console import Console

from fencepost_proof.kill import nemesis
from fencepost_proof.kill.nemesis import Blow
from fencepost_proof.kill.points import in_worker
from fencepost_proof.kill.scene import KILLED, Scene, SceneFailed
from fencepost_proof.kill.scouting import EPOCHS_PER_START, Scouted
from fencepost_proof.workloads.contract import (
    JVM,
    MOMENT,
    ROWS_PER_EPOCH,
    SERVER,
    SLEEPER,
    STATE,
    TASK,
)


@dataclass
class Tally:
    """What happened at one point."""

    armed: int = 0
    hits: int = 0
    epochs: list[int] = field(default_factory=list)


class Killer:
    """One chain of kills through one checkpoint."""

    def __init__(self, scene: Scene, scouted: Scouted, chance: random.Random, console: Console) -> None:
        self.scene = scene
        self.attacks = scene.workload.attacks
        self.tallies = {point: Tally() for point in (*self.attacks, *scouted.only_first, *scouted.later)}
        self._scouted = scouted
        self._chance = chance
        self._console = console

    @property
    def kills(self) -> int:
        """Kills that happened."""
        return sum(tally.hits for tally in self.tallies.values())

    def run(self, wanted: int) -> None:
        """Kill so often, each point before any point twice; then let the job finish in peace."""
        first = self._scouted.only_first[: max(1, wanted // 3)]  # these can be killed at the chain's beginning only
        for point in first:
            self._strike(point, partial(self._at, f"{point}=kill"))
        for point in self._points():
            if self.kills >= wanted:
                break
            self._kill(point)
        if self.scene.run() != 0:
            raise SceneFailed(f"The last start, without any fault, failed; see {self.scene.log}")

    def _points(self) -> Iterator[str]:
        """Endless: every point in a new order each round, every third kill somewhere else."""
        attacks = cycle(self.attacks)
        while True:
            for number, point in enumerate(self._chance.sample(self._scouted.later, len(self._scouted.later))):
                if number % 3 == 0:
                    yield next(attacks)
                yield point

    def _kill(self, point: str) -> None:
        scene, chance, seconds = self.scene, self._chance, self._scouted.seconds
        if point == TASK:
            self._strike(point, partial(nemesis.in_a_task, scene, chance))
        elif point == MOMENT:
            self._strike(point, partial(nemesis.at_random, scene, chance, seconds))
        elif point == SERVER:
            name = chance.choice(sorted(scene.workload.servers))
            when = self._somewhere() if chance.random() < 0.5 else chance.uniform(seconds / 4, seconds)
            away = chance.uniform(0, 3)
            self._strike(point, partial(nemesis.server_dies, scene, name, when, away))
        elif point == STATE:
            tries = 1 if scene.workload.alone else chance.choice((1, 3))
            self._strike(point, partial(nemesis.at_the_state, scene, tries))
        elif point == JVM:
            bed = chance.choice([bed for bed in scene.workload.beds if not bed.startswith("commit")])  # nor in recovery
            self._strike(point, partial(nemesis.jvm_dies, scene, f"{bed}@{chance.randint(1, 2)}"))
        elif point == SLEEPER and scene.workload.alone:
            self._strike(point, partial(nemesis.keeps_others_out, scene, self._somewhere()))
        elif point == SLEEPER:
            late = chance.random() < 0.5
            self._strike(point, partial(nemesis.sleeps_past_a_takeover, scene, self._somewhere(), late=late))
        else:
            self._arm(point)

    def _somewhere(self) -> str:
        return f"{self._chance.choice(self.scene.workload.beds)}@{self._chance.randint(1, 2)}"

    def _arm(self, point: str) -> None:
        """Kill at a named point; if it is not passed so often, at the first visit."""
        if setup := self._scouted.setup(point):
            self._strike(setup.partition("=")[0], partial(self._at, setup))
        beside = self._scouted.beside(point)
        most = 2 if in_worker(point) else min(4, self._scouted.visits(point))  # workers count for themselves
        visit = self._chance.randint(1, most)
        for at in (f"@{visit}", "") if visit > 1 else ("",):
            fault = ",".join(filter(None, [beside, f"{point}=kill{at}"]))
            if self._strike(point, partial(self._at, fault)):
                break

    def _at(self, fault: str) -> Blow:
        if in_worker(fault.rpartition(",")[2]):
            return nemesis.in_a_worker(self.scene, fault)
        return Blow(fault, nemesis.allowed(self.scene, self.scene.run(fault), 0, KILLED) == KILLED)

    def _strike(self, point: str, attack: Callable[[], Blow]) -> bool:
        """Let so much input arrive that the next start has some epochs to run; attack; note it."""
        waiting = len(self.scene.workload.unread()) // ROWS_PER_EPOCH
        self.scene.feed(max(0, EPOCHS_PER_START - waiting))
        began = time.monotonic()
        try:
            blow = attack()
        except SceneFailed as error:
            raise SceneFailed(f"{point}: {error}") from error
        tally = self.tallies[point]
        tally.armed += 1
        tally.hits += blow.hit
        if blow.hit:
            tally.epochs.append(self.scene.workload.epoch())
        text = f"{self.kills:4} {blow.how}" + ("" if blow.hit else "   not reached: the job was through before")
        self._console.print(f"{text}   ({time.monotonic() - began:.0f} s)", highlight=False)
        return blow.hit
