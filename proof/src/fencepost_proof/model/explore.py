"""Enumerates all histories with at most k faults, and counts each once.

    kill      the driver dies before an effect: this is also "after the one before", and "its answer was lost"
    power     all drivers die; each unsynced file survives, vanishes or is empty
    unknown   the effect happened, or did not, and the living driver is not told (creating a record, committing)
    perish    a target times out a transaction that was pre-committed and is not committed
    pause     the driver stops before an effect, another starts; the first wakes before each effect of the other, and
              after its last one, and runs to its own end. Pausing the very first effect is: two drivers start at once

A fault may strike at every effect of every driver. After the last fault the job must come to its end by itself, and
without any fault its first driver must.

Where a commit runs beside the next epoch, either may take the next step: that is a choice at every effect, not a fault.

A history is one path of choices. Equal situations (world, lives, faults left) have equal futures, so their paths are
counted once and added wherever they are reached; `visited` says how many effects were really performed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fencepost.errors import FencepostError, Retryable
from fencepost.protocol import effects as e
from fencepost_proof.model import check
from fencepost_proof.model.check import Violation
from fencepost_proof.model.lives import Life
from fencepost_proof.model.targets import Frozen, Job
from fencepost_proof.model.world import READS, World

DRIVERS = 16
"""A job that needs more starts than this does not get on."""

Tail = tuple[int, dict[tuple[int, int], tuple[int, World | None]]]
"""Histories that ended, and (world, faults left) → (in how many ways, that world; None: as it was)."""


class Found(Exception):
    """A violation, with the faults that led to it."""

    def __init__(self, violation: Violation, faults: tuple[str, ...]) -> None:
        super().__init__(str(violation), faults)
        self.violation = violation
        self.faults = faults


class Explorer:
    """All histories of one job."""

    def __init__(
        self,
        job: Job,
        world: type[World] = World,
        share: tuple[int, int] = (0, 1),
        *,
        mixed: bool = True,
        stop: bool = False,
    ) -> None:
        self.job = job
        self.world = world
        self.mixed = mixed
        """Also histories in which a pause comes together with other faults: they are 95 of 100, and take as long."""
        self.most = 0
        self.stop = stop
        """Raise the first thing found instead of going on."""
        self.share = share
        """Which of how many processes this is: the work is split by the place of the first fault."""
        self.visited = 0
        self.ends = 0
        """Different ends of histories that were looked at."""
        self.memo: dict[Any, int] = {}
        self.tails: dict[Any, Tail] = {}
        self.trail: list[str] = []
        self.found: list[Found] = []

    def run(self, faults: int) -> int:
        """The number of histories; what was violated is in `found`, and nothing found ends a history."""
        self.most = faults
        world = self.world(self.job.sinks)
        life = Life(world.start_driver(), self.job)
        mine, of = self.share
        total = 0
        place = 0
        while not life.ended:
            if faults and place % of == mine:
                total += self._deaths(life, world, faults) + self._strike(life, world, faults)
            if place % of == mine:
                total += self._turned(life, world, faults)
            place += 1
            try:
                self._do(life, world)
            except Violation as violation:
                return total + self._violated(violation)
        return total + (self._settle(life, world, 0) if mine == 0 else 0)

    # --- one driver

    def _start(self, world: World, k: int) -> int:
        """A new driver in a world that has none."""
        key = (world.id, k)
        if key not in self.memo:
            self.memo[key] = self._alone(Life(world.start_driver(), self.job), world, k)
        return self.memo[key]

    def _alone(self, life: Life, world: World, k: int) -> int:
        """`life` runs to its end; it and `world` are used up."""
        total = 0
        deaths: int | None = None
        passed: list[tuple[Any, int]] = []
        while True:
            if k or not life.answers or life.is_beside:
                key = (world.id, life.id, k)
                if key in self.memo:
                    total += self.memo[key]
                    break
                passed.append((key, total))
            if life.ended:
                total += self._settle(life, world, k)
                break
            total += self._turned(life, world, k)
            if k:
                if deaths is None:
                    deaths = self._deaths(life, world, k)
                total += deaths + self._strike(life, world, k)
            if type(life.pending) not in READS:
                deaths = None
            try:
                self._do(life, world)
            except Violation as violation:
                total += self._violated(violation)
                break
        for key, before in passed:
            self.memo[key] = total - before
        return total

    def _deaths(self, life: Life, world: World, k: int) -> int:
        """The driver dies before its pending effect, by itself or with the power."""
        if life.is_turned:
            return 0
        at = life.pending.point
        self.trail.append(f"kill before {at}")
        dead = world.copy()
        dead.end_driver(life.number)
        total = self._start(dead, k - 1)
        self.trail.pop()
        return total + self._power(world, at, k)

    def _power(self, world: World, at: str, k: int) -> int:
        self.trail.append(f"power loss before {at}")
        total = sum(self._start(cut, k - 1) for cut in world.power_losses())
        self.trail.pop()
        return total

    def _strike(self, life: Life, world: World, k: int) -> int:
        """Every fault at the pending effect of a lone driver that it outlives."""
        at = life.pending.point
        total = 0
        for what, other, answer in self._surprises(life, world):
            self.trail.append(f"{what} at {at}")
            total += self._go_on(life, other, k - 1, answer)
            self.trail.pop()
        if (self.mixed or k == self.most) and not life.is_turned:
            self.trail.append(f"driver {life.number} paused before {at}")
            total += self._together(life, None, world.copy(), k - 1 if self.mixed else 0)
            self.trail.pop()
        return total

    def _surprises(self, life: Life, world: World) -> Iterator[tuple[str, World, Any]]:
        """Faults that a driver outlives: what happened, the world then, and what the driver is told (None: nothing)."""
        effect = life.pending
        answer: Any = None
        if isinstance(effect, e.Create):
            answer = e.Created.UNKNOWN
        elif isinstance(effect, e.Commit):
            answer = Frozen({h.id: e.Outcome.IN_DOUBT for h in effect.handles})
        if answer is not None:
            yield "unknown, not done,", world.copy(), answer
            other = world.copy()
            try:
                other.do(life, effect)
            except Violation as violation:
                self._violated(violation)
            except FencepostError:
                pass  # it failed at once: nothing was left unknown
            else:
                yield "unknown, done,", other, answer
        for key in () if life.is_turned else world.perishable():
            other = world.copy()
            other.drop(key)
            yield f"{key[2]} lost", other, None

    def _go_on(self, life: Life, world: World, k: int, answer: Any = None) -> int:
        """`life` goes on alone from where it stands (told `answer`, if any); it and `world` are left as they are."""
        key = (world.id, life.id if answer is None else life.id_after(answer), k)
        if key not in self.memo:
            self.memo[key] = self._alone(_told(life, answer), world.copy(), k)
        return self.memo[key]

    def _turned(self, life: Life, world: World, k: int) -> int:
        """The other strand of `life` takes the next step."""
        return self._go_on(life.turn(), world, k) if life.may_turn else 0

    # --- two drivers

    def _together(self, sleeper: Life, life: Life | None, world: World, k: int) -> int:  # noqa: C901 - one walk
        """`sleeper` is paused while `life` (None: a new driver) runs; it wakes at every effect of the other one."""
        total = 0
        deaths: int | None = None
        passed: list[tuple[Any, int]] = []
        while True:
            key = (world.id, sleeper.id, life.id if life else 0, k)
            if key in self.memo:
                total += self.memo[key]
                break
            passed.append((key, total))
            if life is None:
                life = Life(world.start_driver(), self.job)
            self.trail.append("it wakes at the end" if life.ended else f"it wakes before {life.pending.point}")
            total += self._wake(sleeper, life, world, k)
            self.trail.pop()
            if life.ended:
                world.end_driver(life.number)
                if stuck := _needs_a_person(life, world):
                    total += self._violated(stuck)
                if stuck or life.error is None:
                    break
                life, deaths = None, None
                continue
            total += self._together(sleeper, life.turn(), world.copy(), k) if life.may_turn else 0
            if k:
                if deaths is None:
                    deaths = self._deaths_beside(sleeper, life, world, k)
                total += deaths + self._strike_beside(sleeper, life, world, k)
            if type(life.pending) not in READS:
                deaths = None
            try:
                self._do(life, world)
            except Violation as violation:
                total += self._violated(violation)
                break
        for key, before in passed:
            self.memo[key] = total - before
        return total

    def _deaths_beside(self, sleeper: Life, life: Life, world: World, k: int) -> int:
        """The second driver dies and a third starts, the first still asleep; or the power goes, for all."""
        if life.is_turned:
            return 0
        at = f"{life.pending.point} of the second driver"
        self.trail.append(f"kill before {at}")
        dead = world.copy()
        dead.end_driver(life.number)
        total = self._together(sleeper, None, dead, k - 1)
        self.trail.pop()
        return total + self._power(world, at, k)

    def _strike_beside(self, sleeper: Life, life: Life, world: World, k: int) -> int:
        """Every fault at the pending effect of the second driver that it outlives."""
        total = 0
        for what, other, answer in self._surprises(life, world):
            self.trail.append(f"{what} at {life.pending.point} of the second driver")
            total += self._together(sleeper, _told(life, answer), other, k - 1)
            self.trail.pop()
        return total

    def _wake(self, sleeper: Life, other: Life, world: World, k: int) -> int:
        """The paused driver runs to its end while `other` stands still; then `other` goes on."""
        if other.is_turned:
            return 0
        ended, ends = self._tail(sleeper, world, k)
        return ended + sum(
            times * self._go_on(other, after or world, left) for (_, left), (times, after) in ends.items()
        )

    def _tail(self, sleeper: Life, world: World, k: int) -> Tail:  # noqa: C901 - one walk
        """All ways in which the woken driver may come to its end, whatever the other one is about to do."""
        key = (sleeper.id, world.id, k)
        if key in self.tails:
            return self.tails[key]
        ended = 0
        ends: dict[tuple[int, int], tuple[int, World | None]] = {}

        def add(after: World, left: int, times: int = 1) -> None:
            before = ends.get((after.id, left), (0, None))[0]
            ends[(after.id, left)] = (before + times, None if after.id == world.id else after)

        def branch(life: Life, changed: World, left: int) -> int:
            more, others = self._tail(life, changed, left)
            for (_, rest), (times, after) in others.items():
                add(after or changed, rest, times)
            return more

        now, life = world.copy(), sleeper.copy()
        while not life.ended:
            if life.may_turn:
                ended += branch(life.turn(), now.copy(), k)
            if k:
                at = f"{life.pending.point} of the woken driver"
                if not life.is_turned:
                    dead = now.copy()
                    dead.end_driver(life.number)
                    add(dead, k - 1)
                    ended += self._power(now, at, k)
                for what, changed, answer in self._surprises(life, now):
                    self.trail.append(f"{what} at {at}")
                    ended += branch(_told(life, answer), changed, k - 1)
                    self.trail.pop()
            try:
                self._do(life, now)
            except Violation as violation:
                ended += self._violated(violation)
                break
        else:
            now.end_driver(life.number)
            if stuck := _needs_a_person(life, now):
                ended += self._violated(stuck)
            else:
                add(now, k)
        self.tails[key] = (ended, ends)
        return ended, ends

    # --- ends

    def _settle(self, life: Life, world: World, k: int) -> int:
        """A driver ended and nobody else is there: start again, or look at what was achieved."""
        world.end_driver(life.number)
        if life.error is None:
            return self._look(world)
        if not self.trail and not self.job.upkeep:  # a person's command ends the first driver
            return self._violated(Violation("stuck", f"without any fault: {life.error}"))
        if stuck := _needs_a_person(life, world):
            return self._violated(stuck)
        return self._start(world, k)

    def _look(self, world: World) -> int:
        key = world.id
        if key not in self.memo:
            self.memo[key] = 1
            self.ends += 1
            last = Life(world.start_driver(), self.job)
            try:
                while not last.ended:
                    self._do(last, world)
                if last.error is not None:
                    raise Violation("stuck", f"the last recovery ended with {last.error}")
                check.at_the_end(world, self.job.epochs)
            except Violation as violation:
                self._violated(violation)
        return 1

    def _violated(self, violation: Violation) -> int:
        self.found.append(Found(violation, tuple(self.trail)))
        if self.stop:
            raise self.found[-1]
        return 1

    def _do(self, life: Life, world: World) -> None:
        self.visited += 1
        try:
            answer = world.do(life, life.pending)
        except FencepostError as error:  # the effect itself failed: the driver ends as it would for real
            life.fail(error)
        else:
            life.send(answer)


def _needs_a_person(life: Life, world: World) -> Violation | None:
    """Would a job stand still here? A replaced driver may end as it likes; any other has to be worth another start."""
    error = life.error
    if error is None:
        return None
    final = isinstance(error, FencepostError) and not isinstance(error, Retryable)
    try:
        other = life.lineage not in ("", world.facts.get(("metadata",)))
        replaced = other or (bool(world.numbers("ledger")) and check.ledger(world).writer > life.writer)
    except Violation as damage:
        return damage
    if (final and not replaced) or world.facts[("drivers",)] >= DRIVERS:
        return Violation("stuck", f"{type(error).__name__}: {error}")
    return None


def _told(life: Life, answer: Any) -> Life:
    other = life.copy()
    if answer is not None:
        other.send(answer)
    return other
