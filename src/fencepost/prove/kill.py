"""Kills a real Spark job N times, at every crash point and at random moments, and counts what its sinks hold.

    python -m fencepost.prove.kill 50 [--workload kafka] [--seed 7] [--bridge foreach_batch] [--folder evidence]
    python -m fencepost.prove.kill 50 --workload state [--backend filesystem] [--plan append]

One checkpoint lives through all of it: a kill, a restart with the next fault armed, and so on, while input keeps
arriving; so a kill costs one process start. A scout runs first and notes which points this job passes. Exit 1 if a row
is lost, doubled or wrong, if an armed point was never hit, or if the code has a point that nobody can account for.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fencepost.prove import nemesis
from fencepost.prove.nemesis import Blow
from fencepost.prove.points import in_worker, out_of_reach, points_in_code
from fencepost.prove.rig.databases import Servers
from fencepost.prove.rig.jars import RigFailed
from fencepost.prove.rig.kafka import Broker
from fencepost.prove.scene import KILLED, Scene, SceneFailed, class_archive
from fencepost.prove.scouting import EPOCHS_PER_START, Scouted, scout
from fencepost.prove.workloads.contract import (
    BY_CHANCE,
    JVM,
    MOMENT,
    ROWS_PER_EPOCH,
    SERVER,
    SLEEPER,
    STATE,
    TASK,
    Workload,
)
from fencepost.prove.workloads.databases import DatabasesWorkload
from fencepost.prove.workloads.files import FilesWorkload
from fencepost.prove.workloads.kafka import KafkaWorkload
from fencepost.prove.workloads.state import BACKENDS, PLANS, StateWorkload

Make = Callable[[Path], Workload]


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


def report(console: Console, killer: Killer, scouted: Scouted, seconds: float) -> bool:
    """The tables and the verdict; True if everything is right."""
    table = Table("point", "armed", "kills", "in epochs")
    for point, tally in sorted(killer.tallies.items(), key=lambda item: (item[0] not in killer.attacks, item[0])):
        if tally.armed:
            epochs = " ".join(str(epoch) if epoch >= 0 else "–" for epoch in tally.epochs[-6:])
            table.add_row(point, str(tally.armed), str(tally.hits), epochs)
    console.print(table)

    passed = {*scouted.only_first, *scouted.later}
    rest = sorted(points_in_code() - passed)
    why_not = {point: out_of_reach(point, killer.scene.workload.out_of_reach) for point in rest}
    reasons = Counter(why or "unknown" for why in why_not.values())
    for why, count in sorted(reasons.items()):
        console.print(f"{count:3} points out of reach: {why}", highlight=False)
    strange = [point for point, why in why_not.items() if why is None]
    never = [p for p, t in killer.tallies.items() if t.armed and not t.hits and p not in BY_CHANCE]
    verdicts = killer.scene.verdict()
    table = Table("sink", "rows in", "lost", "doubled", "wrong")
    for sink, found in verdicts.items():
        table.add_row(sink, str(killer.scene.workload.rows), *(str(found[k]) for k in found))
    console.print(table)
    hit = sum(bool(tally.hits) for point, tally in killer.tallies.items() if point not in killer.attacks)
    kills = killer.kills
    console.print(
        f"{kills} kills in {seconds:.0f} s ({seconds / max(1, kills):.1f} s each); "
        f"{hit} of the {len(passed)} points that this job passes were hit; "
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


def watch_report(console: Console, seen: Mapping[str, Mapping[str, int]]) -> bool:
    """What a reader saw who looked all the time; True if it never saw half an epoch, or something go back."""
    for sink, found in seen.items():
        said = (
            f"a reader looked {found['looks']} times at {sink}: {found['torn']} half epochs, {found['back']} steps back"
        )
        console.print(said, highlight=False)
    return not any(found["torn"] or found["back"] or not found["looks"] for found in seen.values())


@contextmanager
def workload(chosen: argparse.Namespace, folder: Path, chance: random.Random) -> Iterator[tuple[Make, Make]]:
    """Ways to make this workload in a folder: one for rehearsals, and one whose rows are by chance."""
    if chosen.workload == "files":
        yield FilesWorkload, partial(FilesWorkload, chance=chance)
        return
    if chosen.workload == "state":
        stateful = partial(StateWorkload, backend=chosen.backend, plan=chosen.plan)
        yield stateful, partial(stateful, chance=chance)
        return
    if chosen.workload == "databases":
        with Servers.started(folder) as servers:
            made = partial(DatabasesWorkload, servers_=servers)
            yield made, partial(made, chance=chance)
        return
    with Broker(folder / "kafka") as broker:
        yield partial(KafkaWorkload, broker=broker), partial(KafkaWorkload, broker=broker, chance=chance)


def run_failing(fails: int, seed: int, plan: str, folder: Path) -> int:
    """State in memory ends with its process, so there the query fails and the process lives on."""
    module = "fencepost.prove.workloads.state_failing"
    told = [str(folder), "--fails", str(fails), "--seed", str(seed), "--plan", plan, "--backend", "memory"]
    return subprocess.run([sys.executable, "-m", module, *told], check=False).returncode


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Kill a real Spark job again and again, and count its output.")
    parser.add_argument("kills", type=int, nargs="?", default=20)
    parser.add_argument("--workload", choices=["files", "kafka", "databases", "state"], default="files")
    parser.add_argument("--backend", choices=BACKENDS, default="rocksdb", help="of the workload state")
    parser.add_argument("--plan", choices=PLANS, default="update", help="of the workload state")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--bridge", choices=["jvm", "foreach_batch"], default="jvm")
    parser.add_argument("--folder", type=Path, help="a new folder for the evidence; by default one is made")
    chosen = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 110)
    seed = random.randrange(1_000_000) if chosen.seed is None else chosen.seed
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="fencepost-kill-"))
    what = f"{chosen.workload} {chosen.backend} {chosen.plan}" if chosen.workload == "state" else chosen.workload
    about = f"seed {seed}, workload {what}, bridge {chosen.bridge}"
    console.print(f"{about}; everything is in {folder}", highlight=False)
    chance = random.Random(seed)
    began = time.monotonic()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if chosen.workload == "state" and chosen.backend == "memory":
            return run_failing(chosen.kills, seed, chosen.plan, folder)
        with workload(chosen, folder, chance) as (rehearsed, made):
            archive = class_archive(folder, chosen.workload, rehearsed, chosen.bridge)
            scouted = scout(Scene(rehearsed(folder / "scout"), bridge=chosen.bridge, archive=archive))
            killer = Killer(Scene(made(folder / "scene"), chosen.bridge, archive), scouted, chance, console)
            with killer.scene.workload.watched() as seen:
                killer.run(chosen.kills)
            right = report(console, killer, scouted, time.monotonic() - began)
            right = watch_report(console, seen) and right
    except (SceneFailed, RigFailed) as error:
        console.print(f"[red]{error}[/red]")
        return 1
    if right and chosen.folder is None:
        shutil.rmtree(folder)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
