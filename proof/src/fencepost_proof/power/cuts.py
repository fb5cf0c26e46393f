"""Cuts the power under a real Spark job, at every crash point and at random moments; the same under plain Spark.

One checkpoint lives through all cuts of a layout while input keeps arriving. Layouts: checkpoint and targets on one
disk (a sync of the one then also commits names of the other), and on two, of which one or both are cut.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from rich.console import Console

from fencepost_proof.kill.killer import Killer
from fencepost_proof.kill.nemesis import Blow
from fencepost_proof.kill.report import in_words
from fencepost_proof.kill.scene import SceneFailed
from fencepost_proof.kill.scouting import DECIDED, EPOCHS_PER_START, UNDECIDED, Scouted
from fencepost_proof.power.disk import Disk
from fencepost_proof.power.stage import Stage, moment
from fencepost_proof.workloads.contract import MOMENT
from fencepost_proof.workloads.power import PowerWorkload

LAYOUTS: Mapping[str, tuple[str, ...]] = {"one disk": ("disk",), "two disks": ("checkpoint", "target")}
DEATHS = 0.25
"""Of so many cuts the process dies; at the others it lives to see its disks fail, and its JVM starts the job again."""

SETUPS = (DECIDED, UNDECIDED)


@contextmanager
def staged(folder: Path, layout: str, archive: Path | None, chance: random.Random) -> Iterator[Stage]:
    """A job on disks of its own; everything is unmounted and ended, whatever happens."""
    with ExitStack() as stack:
        names = LAYOUTS[layout]
        disks = [stack.enter_context(Disk(folder / f"{name}.img", folder / name)) for name in names]
        workload = on_disks(folder / "scene", disks, chance)
        stage = Stage(workload, archive=archive, disks=disks)
        stack.callback(stage.end)
        yield stage


def on_disks(folder: Path, disks: Sequence[Disk], chance: random.Random, *, plain: bool = False) -> PowerWorkload:
    """The checkpoint on the first disk, the targets on the last."""
    return PowerWorkload(folder, chance, checkpoint_disk=disks[0].place, target_disk=disks[-1].place, plain=plain)


class Cutter(Killer):
    """One chain of cuts through one checkpoint: every kill of a `Killer` is a power cut."""

    scene: Stage

    def __init__(self, stage: Stage, scouted: Scouted, chance: random.Random, console: Console) -> None:
        super().__init__(stage, scouted, chance, console)
        self.seconds = 2.0
        """How long a whole run takes, as far as we know."""

    def finish(self) -> None:
        """After the last run: what the job called done must survive one more cut, without a start."""
        before = self.scene.verdict()
        self.scene.cut_after_the_end()
        if before != self.scene.verdict():
            raise SceneFailed(f"A cut after the job's end changed its targets: {before}, {self.scene.verdict()}")

    def _points(self) -> Iterator[str]:
        """Endless: every point in a new order each round, and as many random moments."""
        while True:
            for point in self._chance.sample(self._scouted.later, len(self._scouted.later)):
                yield MOMENT
                yield point

    def _kill(self, point: str) -> None:
        if point == MOMENT:
            self._strike(point, self._at_random)
        else:
            self._arm(point)

    def _at_random(self) -> Blow:
        when = moment(self._chance, self.seconds)
        began = time.monotonic()
        blow = self._cut(when, f"after {when:.2f} s")
        if not blow.hit:
            self.seconds = time.monotonic() - began
        return blow

    def _at(self, fault: str) -> Blow:
        return self._cut(fault.replace("=kill", "=stop"), fault.replace("=kill", ""), whole=fault in SETUPS)

    def _cut(self, when: str | float, how: str, *, whole: bool = False) -> Blow:
        """With `whole` nothing goes on that could reach a disk: the next start finds exactly this moment."""
        disks = self.scene.disks
        cut = disks if whole else self._chance.choice([disks, *([disk] for disk in disks)])
        dies = whole or self._chance.random() < DEATHS
        hit = self.scene.cut(when, cut, dies=dies)
        names = " and ".join(disk.place.name for disk in cut)
        return Blow(f"{names} cut {how}, the process {'dies' if dies else 'lives'}", hit)


@dataclass
class Fates:
    """What cuts did to plain Spark."""

    cuts: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    """Each cut under every kind that it is of: a job may have lost some rows and duplicated others."""
    rows: Counter[str] = field(default_factory=Counter)

    def note(self, kinds: Sequence[str]) -> None:
        """One more cut."""
        self.cuts += 1
        self.kinds.update(kinds or ["unharmed"])


class PlainCuts:
    """The same under plain Spark: a job that is harmed by a cut is beyond repair, so the next one begins anew."""

    def __init__(self, stage: Stage, chance: random.Random, console: Console) -> None:
        self.stage = stage
        self.fates = Fates()
        self._chance = chance
        self._console = console
        self._numbers = count()
        self._root = stage.folder.parent
        self._begin_anew()

    def run(self, wanted: int) -> None:
        """Cut so often: between a write and Spark's note of it, and at random moments, in turn."""
        places = (f"plain.stored=stop@{visit}" for visit in self._visits())
        while self.fates.cuts < wanted:
            for when in (next(places), moment(self._chance, 2 * EPOCHS_PER_START)):
                self._one(when)

    def _visits(self) -> Iterator[int]:
        while True:
            yield self._chance.randint(1, 2 * EPOCHS_PER_START)

    def _one(self, when: str | float) -> None:
        self.stage.feed(EPOCHS_PER_START)
        disks = self.stage.disks
        cut = self._chance.choice([disks, *([disk] for disk in disks)])
        if not self.stage.cut(when, cut, dies=self._chance.random() < DEATHS):
            return
        kinds = self._harm()
        self.fates.note(kinds)
        names = " and ".join(disk.place.name for disk in cut)
        said = f"{self.fates.cuts:4} plain Spark, {names} cut {when}: {', '.join(kinds) or 'unharmed'}"
        self._console.print(said, highlight=False)
        if kinds:
            self._begin_anew()

    def _harm(self) -> list[str]:
        """Start it again; if it does not start, once more, to be fair."""
        if self.stage.run() != 0 and self.stage.run() != 0:
            return ["does not start any more"]
        found = Counter[str]()
        for place in self.stage.verdict().values():
            found.update(place)
        self.fates.rows.update(found)
        return [in_words(kind) for kind, rows in found.items() if rows]

    def _begin_anew(self) -> None:
        for disk in self.stage.disks:
            shutil.rmtree(disk.place / self.stage.folder.name, ignore_errors=True)
        folder = self._root / f"plain-{next(self._numbers)}"
        self.stage.workload = on_disks(folder, self.stage.disks, self._chance, plain=True)
