"""The demo: a streaming job is killed with SIGKILL again and again, and nothing is lost or counted twice.

    part 1   1, 3, 5, 7, 9, 11 … and their running sum, killed after 9, under all three levels side by side
    part 2   lines and word counts into two databases, killed at random; a table with every kill

Reads the results with sqlite3 alone, not through fencepost.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from fencepost import faults

STORY = ((1, 3, 5), (7, 9), (11, 13), (15, 17, 19))
"""One file, hence one epoch, each."""
LEVELS = ("at_most_once", "at_least_once", "exactly_once")
CAUGHT = "claim.write.before=hang@2,write.after=hang@2,decide.after=kill@2"
"""In the second epoch: claimed but not sent, sent but not complete, decided but not committed."""
FILES, LINES_PER_FILE = 24, 200
AIMED = ("decide.after=kill@2", "commit.before=kill@4")
"""Every other kill is aimed: right after a decision, and between the commits of the two sinks. The rest is chance."""
WORDS = ("epoch", "barrier", "snapshot", "vote", "decision", "commit", "ledger", "orphan")
PATIENCE_S = 120


class DemoFailed(Exception):
    """Something did not run at all; wrong figures are reported by the exit code."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL and where it hit."""

    epoch: int
    where: str


@click.command()
@click.option(
    "--kills", type=click.IntRange(min=1), default=4, show_default=True, help="How often the second job is killed."
)
@click.option("--seed", type=int, help="Repeat a run: the same data, the same random choices.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep everything here instead of a temporary folder.")
def demo(kills: int, seed: int | None, folder: Path | None) -> None:
    """Kill a streaming job with SIGKILL, again and again, and count what its sinks hold."""
    if folder is not None and folder.exists():
        raise click.BadParameter("it exists already; name a new folder", param_hint="--folder")
    chosen = random.randrange(1_000_000) if seed is None else seed  # noqa: S311 - not a secret
    sys.exit(_run(kills=kills, seed=chosen, folder=folder))


def _run(*, kills: int, seed: int, folder: Path | None) -> int:
    """Run both parts; 0 if every figure is right, 1 if not."""
    console = Console(width=None if sys.stdout.isatty() else 100)
    place = folder or Path(tempfile.mkdtemp(prefix="fencepost-demo-"))
    console.print(f"seed {seed}; working in {place}", highlight=False)
    try:
        chance = random.Random(seed)  # noqa: S311 - not a secret
        right = [_story(console, place / "story"), _words(console, place / "words", kills, chance)]
    except (DemoFailed, OSError) as error:
        console.print(f"[red]{error}[/red]")
        return 1
    if all(right):
        console.print("[green]Off by none.[/green]")
        if folder is None:
            shutil.rmtree(place)
        return 0
    console.print(f"[red]A figure is wrong.[/red] The evidence is in {place}")
    return 1


# --- part 1


def _story(console: Console, folder: Path) -> bool:
    console.rule("1. The same job under three levels", align="left")
    _write_numbers(folder / "numbers")
    log = folder / "reached"
    with _progress(console, "the numbers arrive; the job is killed with SIGKILL after 9 …"):
        first = _spawn("story", folder, {faults.ARM: CAUGHT, faults.LOG: str(log)})
        if _wait(first) != -signal.SIGKILL:
            raise DemoFailed(f"The first run ended by itself; see {folder / 'job.log'}")
    with _progress(console, "killed. A new process starts and goes on …"):
        if _wait(_spawn("story", folder)) != 0:
            raise DemoFailed(f"The second run failed; see {folder / 'job.log'}")
    sums = list(accumulate(number for part in STORY for number in part))
    table = Table("guarantee", "the sums in the sink", "lost", "duplicated")
    found = {level: _query(folder / f"{level}.db", 'SELECT "sum" FROM "sums" ORDER BY "sum"') for level in LEVELS}
    verdicts = {}
    for level in LEVELS:
        counts = Counter(row[0] for row in found[level])
        lost, doubled = [s for s in sums if not counts[s]], [s for s in sums if counts[s] > 1]
        verdicts[level] = (lost, doubled)
        shown = " ".join(_mark(s, counts[s]) for s in sums)
        table.add_row(level, shown, _numbers(lost), _numbers(doubled))
    console.print(table)
    caught = list(accumulate(number for part in STORY[:2] for number in part))[len(STORY[0]) :]
    return verdicts == {"at_most_once": (caught, []), "at_least_once": ([], caught), "exactly_once": ([], [])}


def _mark(number: int, count: int) -> str:
    if count == 1:
        return str(number)
    return "[red]" + (" ".join([str(number)] * count) or "·" * len(str(number))) + "[/red]"


def _numbers(found: list[int]) -> str:
    return f"[red]{', '.join(map(str, found))}[/red]" if found else "none"


def _write_numbers(folder: Path) -> None:
    folder.mkdir(parents=True)
    position = 0
    for index, part in enumerate(STORY):
        lines = [json.dumps({"position": position + i, "number": number}) for i, number in enumerate(part)]
        position += len(part)
        _put(folder, f"{index}.json", lines, index)


# --- part 2


def _words(console: Console, folder: Path, kills: int, chance: random.Random) -> bool:
    console.rule("2. Two sinks, one decision, random kills", align="left")
    lines = _write_lines(folder / "lines", chance)
    hits: list[Kill] = []
    with _progress(console, "lines and word counts …") as say:
        while True:
            if not _run_and_kill(folder, len(hits), kills, chance):
                break
            hits.append(_where(folder))
            say(f"kill {len(hits)}: in epoch {hits[-1].epoch}, {hits[-1].where}")
    return _verdict(console, folder, lines, len(hits))


def _run_and_kill(folder: Path, number: int, kills: int, chance: random.Random) -> bool:
    """Start the job and kill it; False if it finished."""
    if number >= kills or number % 2:
        aim = AIMED[number // 2 % len(AIMED)] if number < kills else ""
        code = _wait(_spawn("words", folder, {faults.ARM: aim}))
        if code not in (0, -signal.SIGKILL):
            raise DemoFailed(f"The job failed; see {folder / 'job.log'}")
        return code != 0
    enough = _decided(folder) + chance.randint(1, 4)
    job = _spawn("words", folder)
    if not _until(job, partial(_has_decided, folder, enough)):
        if _wait(job) != 0:
            raise DemoFailed(f"The job failed; see {folder / 'job.log'}")
        return False
    time.sleep(chance.uniform(0, 0.4))
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    return True


def _verdict(console: Console, folder: Path, lines: dict[int, str], kills: int) -> bool:
    out = Counter(_query(folder / "lines.db", "SELECT id, line FROM lines"))
    wanted = set(lines.items())
    counts = dict(_query(folder / "counts.db", "SELECT word, count FROM counts"))
    words = Counter(word for line in lines.values() for word in line.split())
    lost, doubled = len(wanted - set(out)), sum(n - 1 for n in out.values()) + len(set(out) - wanted)
    short = sum(max(0, n - counts.get(word, 0)) for word, n in words.items())
    over = sum(max(0, n - words[word]) for word, n in counts.items())
    table = Table("sink", "in", "out", "lost", "duplicated", "kills", "restarts")
    both = (str(kills), str(kills))
    table.add_row("lines", str(len(lines)), str(sum(out.values())), str(lost), str(doubled), *both)
    table.add_row("word counts", str(words.total()), str(sum(counts.values())), str(short), str(over), *both)
    console.print(table)
    return (lost, doubled, short, over) == (0, 0, 0, 0) and kills > 0


def _write_lines(folder: Path, chance: random.Random) -> dict[int, str]:
    folder.mkdir(parents=True)
    lines: dict[int, str] = {}
    for index in range(FILES):
        new = {len(lines) + i: " ".join(chance.choices(WORDS, k=5)) for i in range(LINES_PER_FILE)}
        lines |= new
        _put(folder, f"{index:03}.json", [json.dumps({"id": i, "line": line}) for i, line in new.items()], index)
    return lines


def _decided(folder: Path) -> int:
    """How many decisions the ledger holds."""
    return sum(b'"kind":"decision"' in path.read_bytes() for path in _records(folder))


def _has_decided(folder: Path, enough: int) -> bool:
    return _decided(folder) >= enough


def _records(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoint").glob("fencepost/*/ledger/*.json"))


def _where(folder: Path) -> Kill:
    """What the dead driver had done, by the files it left."""
    checkpoint = folder / "checkpoint"
    begun, complete = (
        max((int(path.name) for path in (checkpoint / log).glob("[0-9]*")), default=-1)
        for log in ("offsets", "commits")
    )
    bodies = [json.loads(path.read_text())["body"] for path in _records(folder)]
    decided = max((body["epoch"] for body in bodies if "snapshot" in body), default=-1)
    if decided > complete:
        return Kill(decided, "after its decision, before Spark had completed it")
    if begun > decided:
        return Kill(begun, "before its decision")
    return Kill(complete, "after it was complete")


# --- processes and files


def _spawn(what: str, folder: Path, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    log = (folder / "job.log").open("ab")
    command = [sys.executable, "-m", "fencepost.cli.demo_job", what, str(folder)]
    # A session of its own: the kill takes Python and its JVM together, as a power cut or the OOM killer would.
    with log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **(environment or {})}, start_new_session=True
        )


def _until(job: subprocess.Popen[bytes], true: Callable[[], bool]) -> bool:
    """Wait until something is true; False if the job ended before."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if job.poll() is not None:
            return False
        if time.monotonic() > deadline:
            os.killpg(job.pid, signal.SIGKILL)
            raise DemoFailed(f"The job made no progress in {PATIENCE_S} s.")
        time.sleep(0.02)
    return True


def _wait(job: subprocess.Popen[bytes]) -> int:
    try:
        return job.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        raise DemoFailed(f"The job did not end in {PATIENCE_S} s.") from None
    finally:
        _end_group(job.pid)


def _end_group(pid: int) -> None:
    """A killed driver's JVM lives on for a second or two; it must not meet the next one."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _put(folder: Path, name: str, lines: list[str], order: int) -> None:
    """Move a complete file into the folder; the timestamps make Spark read the files in our order."""
    temp = folder / f".{name}"
    temp.write_text("\n".join(lines) + "\n")
    os.utime(temp, (1_700_000_000 + order, 1_700_000_000 + order))
    temp.rename(folder / name)


def _query(database: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(database)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


@contextmanager
def _progress(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """A live line in a terminal, plain lines elsewhere; gives a function that adds a line. Not on stdout."""
    aside = Console(stderr=True, width=console.width)
    if not aside.is_terminal:
        aside.print(text)
        yield aside.print
        return
    with aside.status(text):
        yield aside.print
