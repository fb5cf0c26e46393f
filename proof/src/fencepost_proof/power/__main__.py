"""Replays recorded file operations with losses; cuts the power under a real Spark job, and under plain Spark.

    python -m fencepost_proof.power 200 [--plain 50] [--worlds 16] [--seed 7] [--folder evidence]

Exit 1 if fencepost lost, duplicated or damaged a row, or if a sabotaged twin or plain Spark came through unharmed (then
nothing is proved). Where disks cannot be cut it says what is missing, and only replays.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fencepost_proof.kill.report import concluded, in_words, new_console
from fencepost_proof.kill.scene import Scene, SceneFailed, class_archive
from fencepost_proof.kill.scouting import scout
from fencepost_proof.power.cuts import LAYOUTS, Cutter, Fates, PlainCuts, staged
from fencepost_proof.power.disk import DiskFailed, why_not
from fencepost_proof.power.replay import Replayed, judge_job, quick_folder, record_job, replay
from fencepost_proof.power.spark_files import STOCK, SparkJudge, record_spark
from fencepost_proof.power.trace import NotRecorded
from fencepost_proof.workloads.files import FilesWorkload

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
    harm = ("lost", "duplicated", "wrong")
    table = Table("layout", "cuts", "at points", "at moments", "starts", "sink", "rows in", *harm)
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
    kinds = ("unharmed", "does not start any more", "lost", "duplicated", "wrong")
    table = Table("plain Spark", "cuts", *kinds)
    harmed = 0
    for layout in LAYOUTS:
        with staged(folder / f"plain-{layout.replace(' ', '-')}", layout, None, chance) as stage:
            cuts = PlainCuts(stage, chance, console)
            cuts.run(wanted // len(LAYOUTS))
            fates: Fates = cuts.fates
        table.add_row(layout, str(fates.cuts), *(str(fates.kinds[kind]) for kind in kinds))
        harmed += fates.cuts - fates.kinds["unharmed"]
        rows = ", ".join(f"{number} {in_words(kind)}" for kind, number in fates.rows.items())
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
    console = new_console(130)
    seed = random.randrange(1_000_000) if chosen.seed is None else chosen.seed
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="fencepost-power-"))
    folder.mkdir(parents=True, exist_ok=True)
    console.print(f"seed {seed}; everything is in {folder}", highlight=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that every block is left, and every disk unmounted
    plain = chosen.cuts if chosen.plain is None else chosen.plain

    def attack() -> bool:
        began, right, cuts, plain_cuts = time.monotonic(), True, chosen.cuts, plain
        if chosen.worlds:
            right &= replay_all(chosen.worlds, folder, random.Random(seed), console)
            console.print(f"{time.monotonic() - began:.0f} s\n", highlight=False)
        if (why := why_not()) is not None:
            console.print(f"Disks cannot be cut here: {why}. Only recorded operations were replayed.", highlight=False)
            cuts = plain_cuts = 0
        if cuts:
            right &= cut_fencepost(cuts, folder, random.Random(seed), console)
            console.print(f"{time.monotonic() - began:.0f} s\n", highlight=False)
        if plain_cuts:
            right &= cut_plain(plain_cuts, folder, random.Random(seed), console)
        console.print(f"{time.monotonic() - began:.0f} s in all", highlight=False)
        return right

    failures = (SceneFailed, DiskFailed, NotRecorded)
    return concluded(attack, folder, console, keep=chosen.folder is not None, failures=failures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
