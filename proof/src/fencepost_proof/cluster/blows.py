"""What is killed, and how: each blow kills something for real, sees to it that what died comes back, and says so."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from fencepost_proof.cluster.scene import ClusterScene
from fencepost_proof.rig.server import send

POINT, RECOVERY, MOMENT = "driver, at a named point", "driver, in its recovery", "driver, at any moment"
EXECUTOR, PYTHON, DAEMON = "an executor", "a Python worker", "a worker daemon"
TWIN_DIES = "the plain driver, between its write and Spark's note of it"
BEFORE = ("decide.before", "decide.after")
"""Kills after which recovery has something to do: abort orphans and forget an epoch; finish a decision."""
MOST_AWAY_S = 6.0
HIT_S = 120
"""So long an armed point is waited for."""


@dataclass(frozen=True)
class Blow:
    """What was done."""

    how: str
    kills: int


class Nemesis:
    """Deals blows to one scene, each kind before any kind twice."""

    def __init__(self, scene: ClusterScene) -> None:
        self.scene = scene
        self._chance = scene.chance
        self._points: list[str] = []
        self._kinds: Mapping[str, Callable[[], Blow]] = {
            POINT: self._at_a_point,
            RECOVERY: self._in_recovery,
            MOMENT: self._at_a_moment,
            EXECUTOR: self._an_executor,
            PYTHON: self._a_python_worker,
            DAEMON: self._a_daemon,
            TWIN_DIES: partial(self._at, "plain.done"),
            **{name: self._killer_of(name) for name in scene.place.victims},
        }

    @property
    def kinds(self) -> list[str]:
        """What can be done to a job of fencepost's."""
        return [kind for kind in self._kinds if kind != TWIN_DIES]

    def order(self) -> Iterator[str]:
        """Endless, each kind before any twice, and one more kill of a driver in each round."""
        while True:
            yield from self._chance.sample(self.kinds, len(self.kinds))
            yield POINT

    def strike(self, kind: str) -> Blow:
        """One blow of a kind."""
        return self._kinds[kind]()

    # --- the driver

    def _at_a_point(self) -> Blow:
        """One that drivers pass in every epoch."""
        return self._at(self._next_point())

    def _at(self, point: str) -> Blow:
        """The driver that runs is told to end itself there."""
        driver = self.scene.driver()
        visit = self._chance.randint(1, 2)
        taken = self.scene.arm(f"{point}=kill@{visit}")
        self.scene.until(taken.exists, "a driver took the fault")
        if not self.scene.seen(lambda: self._is_gone(driver), HIT_S):
            return Blow(f"the driver was to die at {point}, and did not come by", 0)
        return Blow(f"the driver at {point}, visit {visit}", 1)

    def _in_recovery(self) -> Blow:
        """Twice: once where recovery has then something to do, once within recovery."""
        first = self._chance.choice(BEFORE)
        known = [point for point in self.scene.passed() if point.startswith("recover.")]
        second = self._chance.choice(sorted(known) or ["recover.list.after"])
        driver = self.scene.driver()
        self.scene.arm(f"{first}=kill")
        taken = self.scene.arm(f"{second}=kill")
        self.scene.until(lambda: self._is_gone(driver), f"{first} was reached")
        self.scene.until(lambda: taken.exists() and self._is_gone(driver), "the next driver took its fault")
        driver = self.scene.driver()
        if not self.scene.seen(lambda: self._is_gone(driver), HIT_S):
            return Blow(f"the driver at {first}; {second} was not passed after it", 1)
        return Blow(f"the driver at {first}, and the next at {second}", 2)

    def _at_a_moment(self) -> Blow:
        """SIGKILL to the driver and its JVM at once."""
        time.sleep(self._chance.uniform(0, 3))
        driver = self.scene.driver()
        try:
            os.killpg(driver, signal.SIGKILL)
        except ProcessLookupError:
            return Blow("a driver that had ended by itself", 0)
        self.scene.until(lambda: self._is_gone(driver), "the driver was gone")
        return Blow("the driver and its JVM", 1)

    def _next_point(self) -> str:
        """One that drivers pass in every epoch, in a new order each round."""
        if not self._points:
            self.scene.until(lambda: bool(self._often()), "crash points were passed more than once")
            self._points = self._chance.sample(self._often(), len(self._often()))
        return self._points.pop()

    def _often(self) -> list[str]:
        found = self.scene.passed()
        starts = max(1, found["recover.list.before"])
        return sorted(point for point, count in found.items() if count > starts and not is_startup(point))

    def _is_gone(self, driver: int) -> bool:
        """Its supervisor starts the next one."""
        return self.scene.driver() != driver

    # --- the cluster

    def _an_executor(self) -> Blow:
        self.scene.until(lambda: bool(self.scene.standalone.executors()), "there was an executor")
        pid = self._chance.choice(self.scene.standalone.executors())
        send(signal.SIGKILL, pid)
        return Blow("an executor", 1)

    def _a_python_worker(self) -> Blow:
        found: list[int] = []

        def seen() -> bool:
            found[:] = self.scene.standalone.python_workers()
            return bool(found)

        self.scene.until(seen, "there was a Python worker")
        send(signal.SIGKILL, self._chance.choice(found))
        return Blow("a Python worker", 1)

    def _a_daemon(self) -> Blow:
        number = self._chance.randrange(len(self.scene.standalone.workers))
        away = self._chance.uniform(1, MOST_AWAY_S)
        self.scene.standalone.workers[number].kill()
        time.sleep(away)
        self.scene.standalone.start()
        return Blow(f"worker daemon {number}, for {away:.1f} s", 1)

    # --- the store

    def _killer_of(self, name: str) -> Callable[[], Blow]:
        def kill() -> Blow:
            time.sleep(self._chance.uniform(0, 2))
            away = self._chance.uniform(1, MOST_AWAY_S)
            self.scene.place.victims[name].kill()
            time.sleep(away)
            self.scene.place.system.start()
            return Blow(f"{name}, for {away:.1f} s", 1)

        return kill


def is_startup(point: str) -> bool:
    """Is it passed when a driver starts, not in every epoch?"""
    return point.startswith(("recover.", "sweep.", "failed."))
