"""Kills a real Spark job N times, at every crash point and at random moments, and counts what its sinks hold.

    python -m fencepost.prove.kill 50 [--seed 7] [--bridge foreach_batch] [--folder evidence]

One checkpoint lives through all of it: a kill, a restart with the next fault armed, and so on, while input keeps
arriving; so a kill costs one process start. A scout runs first and notes which points this job passes. Exit 1 if a row
is lost, doubled or wrong, if an armed point was never hit, or if the code has a point that nobody can account for.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fencepost.prove.points import out_of_reach, points_in_code
from fencepost.prove.scene import KILLED, ROWS_PER_FILE, Scene, SceneFailed, class_archive, end_group

FILES_PER_START = 3
TASK = "in a task"
MOMENT = "a random moment"
ANYWHERE = (TASK, MOMENT)
DECIDED, UNDECIDED = "decide.after=kill", "decide.before=kill"
"""Kills after which recovery has something to do: finish a decision; abort orphans and forget an epoch."""


@dataclass
class Tally:
    """What happened at one point."""

    armed: int = 0
    hits: int = 0
    epochs: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Scouted:
    """What a job passes, in a first start, in one that has a decision to finish, in one that has orphans to abort."""

    first: Counter[str]
    finishing: Counter[str]
    aborting: Counter[str]
    seconds: float
    """How long a whole start took."""

    @property
    def only_first(self) -> list[str]:
        """Points that only the first start of a checkpoint passes, in the order in which it does."""
        later = self.finishing | self.aborting
        return [point for point in self.first if point not in later]

    @property
    def later(self) -> list[str]:
        """All others."""
        return sorted(self.finishing | self.aborting)

    def setup(self, point: str) -> str:
        """The kill that must come before, so that the next start passes this point."""
        if point in self.finishing and point in self.aborting:
            return ""
        return DECIDED if point in self.finishing else UNDECIDED

    def visits(self, point: str) -> int:
        """How often one start passes it, surely."""
        found = [passed[point] for passed in (self.finishing, self.aborting) if passed[point]]
        return min(found)


class Killer:
    """One chain of kills through one checkpoint."""

    def __init__(self, scene: Scene, scouted: Scouted, chance: random.Random, console: Console) -> None:
        self.scene = scene
        self.tallies = {point: Tally() for point in (*ANYWHERE, *scouted.only_first, *scouted.later)}
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
            self._arm(point, f"{point}=kill")
        for point in self._points():
            if self.kills >= wanted:
                break
            self._kill(point)
        if self.scene.run() != 0:
            raise SceneFailed(f"The last start, without any fault, failed; see {self.scene.folder / 'job.log'}")

    def _points(self) -> Iterator[str]:
        """Endless: every point in a new order each round, every third kill somewhere else."""
        while True:
            for number, point in enumerate(self._chance.sample(self._scouted.later, len(self._scouted.later))):
                if number % 3 == 0:
                    yield ANYWHERE[number // 3 % 2]
                yield point

    def _kill(self, point: str) -> None:
        if point == TASK:
            self._arm(TASK, "")
            return
        if point == MOMENT:
            self._at_random()
            return
        if setup := self._scouted.setup(point):
            self._arm(setup.partition("=")[0], setup)
        visit = self._chance.randint(1, min(4, self._scouted.visits(point)))
        if not self._arm(point, f"{point}=kill@{visit}") and visit > 1:
            self._arm(point, f"{point}=kill")

    def _arm(self, point: str, fault: str) -> bool:
        self._feed()
        row = (self.scene.epoch() + 1) * ROWS_PER_FILE + self._chance.randrange(ROWS_PER_FILE)
        ended = self.scene.run(fault, None, *(("--kill-at-id", str(row)) if point == TASK else ()))
        return self._note(point, fault, ended)

    def _at_random(self) -> None:
        """SIGKILL from outside, to the driver and its JVM at once."""
        self._feed()
        job = self.scene.start()
        moment = self._chance.uniform(0.3, self._scouted.seconds)
        deadline = time.monotonic() + moment
        while job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        ended = job.wait()
        end_group(job)
        self._note(MOMENT, f"after {moment:.2f} s", ended)

    def _feed(self) -> None:
        """Let so much input arrive that the next start has some epochs to run."""
        waiting = self.scene.files - (self.scene.epoch() + 1)
        self.scene.feed(max(0, FILES_PER_START - waiting))

    def _note(self, point: str, fault: str, ended: int) -> bool:
        if ended not in (0, KILLED):
            raise SceneFailed(f"{point} ({fault}): exit code {ended}; see {self.scene.folder / 'job.log'}")
        tally = self.tallies[point]
        tally.armed += 1
        hit = ended == KILLED
        tally.hits += hit
        if hit:
            tally.epochs.append(self.scene.epoch())
        text = f"{self.kills:4} {fault or point}" + ("" if hit else "   not reached: the job was through before")
        self._console.print(text, highlight=False)
        return hit


def scout(folder: Path, bridge: str, archive: Path) -> Scouted:
    """Three starts on a checkpoint of their own: which points are passed, how often, and how long a start takes."""
    scene = Scene(folder, bridge=bridge, archive=archive)
    logs = [folder / f"passed-{number}" for number in range(3)]
    scene.feed(FILES_PER_START)
    ended = [scene.run(DECIDED, logs[0])]
    scene.feed(FILES_PER_START)
    ended.append(scene.run("decide.before=kill@2", logs[1]))
    scene.feed(FILES_PER_START)
    began = time.monotonic()
    ended.append(scene.run("", logs[2]))
    if ended != [KILLED, KILLED, 0]:
        raise SceneFailed(f"The scout's starts ended with {ended}; see {folder / 'job.log'}")
    first, finishing, aborting = (scene.points(log) for log in logs)
    return Scouted(first, finishing, aborting, time.monotonic() - began)


def report(console: Console, killer: Killer, scouted: Scouted, seconds: float) -> bool:
    """The tables and the verdict; True if everything is right."""
    table = Table("point", "armed", "kills", "in epochs")
    for point, tally in sorted(killer.tallies.items(), key=lambda item: (item[0] not in ANYWHERE, item[0])):
        if tally.armed:
            epochs = " ".join(str(epoch) if epoch >= 0 else "–" for epoch in tally.epochs[-6:])
            table.add_row(point, str(tally.armed), str(tally.hits), epochs)
    console.print(table)

    passed = {*scouted.only_first, *scouted.later}
    rest = sorted(points_in_code() - passed)
    reasons = Counter(out_of_reach(point) or "unknown" for point in rest)
    for why, count in sorted(reasons.items()):
        console.print(f"{count:3} points out of reach: {why}", highlight=False)
    strange = [point for point in rest if out_of_reach(point) is None]
    never = [p for p, t in killer.tallies.items() if t.armed and not t.hits]
    verdicts = killer.scene.verdict()
    table = Table("sink", "rows in", "lost", "doubled", "wrong")
    for sink, found in verdicts.items():
        table.add_row(sink, str(killer.scene.files * ROWS_PER_FILE), *(str(found[k]) for k in found))
    console.print(table)
    hit = sum(bool(tally.hits) for point, tally in killer.tallies.items() if point not in ANYWHERE)
    kills = killer.kills
    console.print(
        f"{kills} kills in {seconds:.0f} s; {hit} of the {len(passed)} points that this job passes were hit; "
        f"{len(rest)} more are out of its reach",
        highlight=False,
    )
    if strange:
        console.print(f"[red]not accounted for:[/red] {', '.join(strange)}")
    if never:
        console.print(f"[red]armed and never hit:[/red] {', '.join(never)}")
    wrong = sum(sum(found.values()) for found in verdicts.values())
    if wrong:
        console.print(f"[red]{wrong} rows are lost, doubled or wrong.[/red]")
    else:
        console.print(f"0 in {kills} kills: at most {3 / max(1, kills):.2g} per kill at 95 %", highlight=False)
    return not (strange or never or wrong) and kills > 0


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Kill a real Spark job again and again, and count its output.")
    parser.add_argument("kills", type=int, nargs="?", default=20)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--bridge", choices=["jvm", "foreach_batch"], default="jvm")
    parser.add_argument("--folder", type=Path, help="a new folder for the evidence; by default one is made")
    chosen = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 110)
    seed = random.randrange(1_000_000) if chosen.seed is None else chosen.seed
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="fencepost-kill-"))
    console.print(f"seed {seed}, bridge {chosen.bridge}; everything is in {folder}", highlight=False)
    chance = random.Random(seed)
    began = time.monotonic()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        archive = class_archive(folder, chosen.bridge)
        scouted = scout(folder / "scout", chosen.bridge, archive)
        scene = Scene(folder / "scene", bridge=chosen.bridge, archive=archive, chance=chance)
        killer = Killer(scene, scouted, chance, console)
        killer.run(chosen.kills)
        right = report(console, killer, scouted, time.monotonic() - began)
    except SceneFailed as error:
        console.print(f"[red]{error}[/red]")
        return 1
    if right and chosen.folder is None:
        shutil.rmtree(folder)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
