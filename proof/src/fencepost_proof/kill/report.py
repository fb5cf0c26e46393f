"""What an attack says at its end: tables, the verdict and the exit code. Evidence of what went wrong is kept."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fencepost_proof.kill.killer import Killer
from fencepost_proof.kill.points import out_of_reach, points_in_code
from fencepost_proof.kill.scene import SceneFailed
from fencepost_proof.kill.scouting import Scouted
from fencepost_proof.rig.jars import RigFailed
from fencepost_proof.workloads.contract import (
    BY_CHANCE,
)


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
    scene = killer.scene
    why_not = {point: out_of_reach(point, scene.workload.out_of_reach, overlap=scene.overlap) for point in rest}
    reasons = Counter(why or "unknown" for why in why_not.values())
    for why, count in sorted(reasons.items()):
        console.print(f"{count:3} points out of reach: {why}", highlight=False)
    strange = [point for point, why in why_not.items() if why is None]
    never = [p for p, t in killer.tallies.items() if t.armed and not t.hits and p not in BY_CHANCE]
    verdicts = killer.scene.verdict()
    show_verdicts(console, killer.scene.workload.rows, verdicts)
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
        console.print(f"[red]{wrong} rows are lost, duplicated or wrong.[/red]")
    else:
        show_rate(console, kills)
    return not (strange or never or wrong) and kills > 0


def watch_report(console: Console, seen: Mapping[str, Mapping[str, int]]) -> bool:
    """What a reader saw who looked all the time; True if it never saw half an epoch, or something go back."""
    for sink, found in seen.items():
        said = (
            f"a reader looked {found['looks']} times at {sink}: {found['torn']} half epochs, {found['back']} steps back"
        )
        console.print(said, highlight=False)
    return not any(found["torn"] or found["back"] or not found["looks"] for found in seen.values())


def show_verdicts(console: Console, rows: int, verdicts: Mapping[str, Mapping[str, int]]) -> None:
    """What the checker found in each place."""
    table = Table("sink", "rows in", *map(in_words, next(iter(verdicts.values()), {})))
    for sink, found in verdicts.items():
        table.add_row(sink, str(rows), *map(str, found.values()))
    console.print(table)


def in_words(kind: str) -> str:
    """A checker's key as people read it."""
    return "duplicated" if kind == "doubled" else kind


def show_rate(console: Console, kills: int) -> None:
    """How seldom nothing in so many kills is."""
    console.print(f"0 in {kills} kills: at most {3 / max(1, kills):.2g} per kill at 95 %", highlight=False)


def new_console(width: int = 110) -> Console:
    """As wide as the terminal, or fixed where there is none."""
    return Console(width=None if sys.stdout.isatty() else width)


def concluded(
    attack: Callable[[], bool],
    folder: Path,
    console: Console,
    *,
    keep: bool,
    failures: tuple[type[Exception], ...] = (SceneFailed, RigFailed),
) -> int:
    """Run an attack to its end: 0 if all is right, and then its folder goes, unless it is to be kept."""
    try:
        right = attack()
    except failures as error:
        console.print(f"[red]{error}[/red]")
        return 1
    if right and not keep:
        shutil.rmtree(folder)
    return 0 if right else 1
