"""Replays recorded file operations with losses; cuts the power under a real Spark job, and under plain Spark.

    python -m fencepost.prove.power 200 [--plain 50] [--worlds 16] [--seed 7] [--folder evidence]

Exit 1 if fencepost lost, doubled or damaged a row, or if a sabotaged twin or plain Spark came through unharmed (then
nothing is proved). Where disks cannot be cut it says what is missing, and only replays.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fencepost.prove.power.cuts import LAYOUTS, Cutter, Fates, PlainCuts, staged
from fencepost.prove.power.disk import DiskFailed, why_not
from fencepost.prove.power.replay import Replayed, judge_job, quick_folder, record_job, replay
from fencepost.prove.power.spark_files import STOCK, SparkJudge, record_spark
from fencepost.prove.power.trace import NotRecorded
from fencepost.prove.scene import Scene, SceneFailed, class_archive
from fencepost.prove.scouting import scout
from fencepost.prove.workloads.files import FilesWorkload

TWINS = ("file", "folder")
"""What a sabotaged ledger does not sync."""


def replay_all(most: int, folder: Path, chance: random.Random, console: Console) -> bool:
    """The job and its sabotaged twins; True if only the twins are caught."""
    tried: list[tuple[str, Replayed, bool]] = []
    with quick_folder(folder) as place:
        for name, more in (("stand-in", ()), *((f"no sync of a {what}", ("--without", what)) for what in TWINS)):
            recording = record_job(folder / name.replace(" ", "-"), *more)
            tried.append((name, replay(recording, judge_job, place, most=most, chance=chance), bool(more)))
        for name, recording in record_spark(folder / "spark").items():
            judge = SparkJudge(recording, folder / "spark" / name / "in")
            found = replay(recording, judge, place, most=most, chance=chance)
            tried.append((f"Spark, {name} file class", found, name == STOCK))
    table = Table("recorded", "operations", "worlds", "wrong", "as")
    for name, found, _ in tried:
        kinds = ", ".join(f"{number} {why}" for why, number in found.wrong.most_common())
        table.add_row(name, str(found.operations), str(found.worlds), str(found.wrong.total()), kinds)
    console.print(table)
    return all(bool(found.wrong) == sabotaged for _, found, sabotaged in tried)


def cut_fencepost(wanted: int, folder: Path, chance: random.Random, console: Console) -> bool:
    """Every layout gets its share of the cuts; True if everything is right."""
    archive = class_archive(folder, "files", FilesWorkload, "jvm")
    scouted = scout(Scene(FilesWorkload(folder / "scout"), archive=archive))
    right, cuts, ends = True, 0, Counter[str]()
    armed, hit = set[str](), set[str]()
    table = Table("layout", "cuts", "at points", "at moments", "starts", "sink", "rows in", "lost", "doubled", "wrong")
    for layout in LAYOUTS:
        with staged(folder / layout.replace(" ", "-"), layout, archive, chance) as stage:
            cutter = Cutter(stage, scouted, chance, console)
            cutter.run(wanted // len(LAYOUTS))
            cutter.finish()
            tallies = cutter.tallies
            moments = sum(tallies[point].hits for point in cutter.attacks)
            cuts += cutter.kills
            hit |= {point for point, tally in tallies.items() if tally.hits and point not in cutter.attacks}
            ends += stage.ends
            for sink, found in stage.verdict().items():
                counts = (cutter.kills, cutter.kills - moments, moments, stage.starts)
                table.add_row(layout, *map(str, counts), sink, str(stage.workload.rows), *map(str, found.values()))
                right &= not any(found.values())
            armed |= {point for point, tally in tallies.items() if tally.armed and point not in cutter.attacks}
    console.print(table)
    passed = {*scouted.only_first, *scouted.later}
    console.print(f"{cuts} cuts; {len(hit)} of the {len(passed)} points that this job passes were hit", highlight=False)
    if never := sorted(armed - hit):
        console.print(f"armed and never reached: {', '.join(never)}", highlight=False)
    for end, number in ends.most_common():
        console.print(f"{number:5} times the job {end}", highlight=False)
    return right and len(hit) > len(never)


def cut_plain(wanted: int, folder: Path, chance: random.Random, console: Console) -> bool:
    """True if the cuts did harm, as they must."""
    table = Table("plain Spark", "cuts", "unharmed", "does not start any more", "lost", "doubled", "wrong")
    harmed = 0
    for layout in LAYOUTS:
        with staged(folder / f"plain-{layout.replace(' ', '-')}", layout, None, chance) as stage:
            cuts = PlainCuts(stage, chance, console)
            cuts.run(wanted // len(LAYOUTS))
            fates: Fates = cuts.fates
        kinds = ("unharmed", "does not start any more", "lost", "doubled", "wrong")
        table.add_row(layout, str(fates.cuts), *(str(fates.kinds[kind]) for kind in kinds))
        harmed += fates.cuts - fates.kinds["unharmed"]
        rows = ", ".join(f"{number} {kind}" for kind, number in fates.rows.items())
        console.print(f"{layout}: of those that started again, rows: {rows}", highlight=False)
    console.print(table)
    return harmed > 0


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Cut the power under a real Spark job again and again.")
    parser.add_argument("cuts", type=int, nargs="?", default=20)
    parser.add_argument("--plain", type=int, help="cuts under plain Spark; by default as many")
    parser.add_argument("--worlds", type=int, default=16, help="at most so many for each recorded operation; 0: none")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--folder", type=Path, help="a new folder for the evidence; by default one is made")
    chosen = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 130)
    seed = random.randrange(1_000_000) if chosen.seed is None else chosen.seed
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="fencepost-power-"))
    folder.mkdir(parents=True, exist_ok=True)
    console.print(f"seed {seed}; everything is in {folder}", highlight=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that every block is left, and every disk unmounted
    began, right = time.monotonic(), True
    plain = chosen.cuts if chosen.plain is None else chosen.plain
    try:
        if chosen.worlds:
            right &= replay_all(chosen.worlds, folder, random.Random(seed), console)
            console.print(f"{time.monotonic() - began:.0f} s\n", highlight=False)
        if (why := why_not()) is not None:
            console.print(f"Disks cannot be cut here: {why}. Only recorded operations were replayed.", highlight=False)
            chosen.cuts = plain = 0
        if chosen.cuts:
            right &= cut_fencepost(chosen.cuts, folder, random.Random(seed), console)
            console.print(f"{time.monotonic() - began:.0f} s\n", highlight=False)
        if plain:
            right &= cut_plain(plain, folder, random.Random(seed), console)
    except (SceneFailed, DiskFailed, NotRecorded) as error:
        console.print(f"[red]{error}[/red]")
        return 1
    console.print(f"{time.monotonic() - began:.0f} s in all", highlight=False)
    if right and chosen.folder is None:
        shutil.rmtree(folder)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
