"""Measures a start: from the launch of the process to the first row that a reader sees: `make bench-start`.

    plain     plain Spark, with the state store, formats, `file:` class and shuffle partitions that we set
    before    fencepost with the JVM as Spark starts it: FENCEPOST_JVM_OPTIONS=none
    after     fencepost as it is, with a class archive made by an earlier start

    files     a folder with lines → count → SQLite
    kafka     1,000 records a second → newest time per key → Kafka; then, warm, how old the newest record is when a
              reader sees it, and what the driver holds in memory

Processor seconds are those of the driver's whole process tree up to the first row. Variants take turns.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from bench.kafka import PARTITIONS
from bench.recovery import RATE, Watcher, until
from fencepost_proof.rig.kafka import Broker

JOB = Path(__file__).parent / "jobs" / "start.py"
TICKS = os.sysconf("SC_CLK_TCK")
WARM_S = 20.0
"""The last seconds of a Kafka run, in which it counts as warm."""


def variants(cache: Path, more: list[str]) -> dict[str, tuple[str, Mapping[str, str]]]:
    """By name: whose job, and its environment; `more` are options to compare: of the JVM, --conf …, or NAME=value."""
    none = {"FENCEPOST_JVM_OPTIONS": "none", "FENCEPOST_CACHE": ""}
    mine = {"FENCEPOST_CACHE": str(cache)}
    found: dict[str, tuple[str, Mapping[str, str]]] = {
        "plain": ("plain", none),
        "before": ("ours", none),
        "options": ("ours", {"FENCEPOST_CACHE": ""}),
        "after": ("ours", mine),
    }
    for text in more:
        name, _, value = text.partition("=")
        if text.startswith("--"):
            name, value = "PYSPARK_SUBMIT_ARGS", f"{text} pyspark-shell"
        elif text.startswith("-"):
            name, value = "SPARK_SUBMIT_OPTS", text
        found[text] = "ours", {**mine, name: value}
    return found


class Tree:
    """A process and all that it started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def pids(self) -> list[int]:
        parents: dict[int, list[int]] = defaultdict(list)
        for pid, fields in _stats():
            parents[int(fields[1])].append(pid)
        found = [self.pid]
        for pid in found:
            found += parents[pid]
        return found

    def cpu_s(self) -> float:
        """Of the living and of the children that they waited for."""
        mine = set(self.pids())
        return sum(sum(map(int, fields[11:15])) for pid, fields in _stats() if pid in mine) / TICKS

    def memory_mb(self) -> float:
        """The largest process: the JVM."""
        return max(_memory(pid) for pid in self.pids()) / 1024


def _stats() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        yield int(path.parent.name), text[text.rindex(")") + 2 :].split()


def _memory(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0.0)


@contextmanager
def running(who: str, folder: Path, environment: Mapping[str, str], *words: str) -> Iterator[tuple[float, Tree]]:
    """The job in a process of its own; when it was launched."""
    with (folder / "log").open("wb") as log:
        began = time.time()
        process = subprocess.Popen(
            [sys.executable, str(JOB), who, str(folder), *(words or ("", "", ""))],
            stdout=log, stderr=log, env={**os.environ, **environment, "FENCEPOST_HOME": str(folder / "home")},
        )  # fmt: skip
    try:
        yield began, Tree(process.pid)
    except TimeoutError:
        print((folder / "log").read_text()[-3000:], file=sys.stderr)
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def files(who: str, folder: Path, environment: Mapping[str, str], _: Any, __: float) -> dict[str, float]:
    (folder / "in").mkdir()
    (folder / "in" / "lines.txt").write_text("one two three\n" * 1000)
    with running(who, folder, environment) as (began, tree):
        until(lambda: _rows(folder / "out.db"))
        return {"first row s": time.time() - began, "cpu s": tree.cpu_s(), "memory MB": tree.memory_mb()}


def _rows(file: Path) -> int:
    if not file.exists():
        return 0
    try:
        database = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
        try:
            return int(database.execute("SELECT count(*) FROM counts").fetchone()[0])
        finally:
            database.close()
    except sqlite3.OperationalError:  # no table yet, or being written
        return 0


def kafka(who: str, folder: Path, environment: Mapping[str, str], broker: Broker, seconds: float) -> dict[str, float]:
    arriving, out = (broker.create_topic(f"{word}-{folder.name}", partitions=PARTITIONS) for word in ("in", "out"))
    feeder = subprocess.Popen([sys.executable, "-m", "bench.kafka", "feed", broker.servers, arriving, str(RATE)])
    watcher = Watcher(broker.servers, out)
    try:
        with running(who, folder, environment, broker.servers, arriving, out) as (began, tree):
            until(lambda: watcher.newest_ms)
            found = {"first row s": time.time() - began, "cpu s": tree.cpu_s()}
            time.sleep(seconds)
            ages = [(at, at - newest / 1000) for at, newest in watcher.seen]
            warm = [age for at, age in ages if at > time.time() - WARM_S]
            found["first age ms"] = 1000 * statistics.median(age for at, age in ages if at < ages[0][0] + WARM_S)
            return {**found, "warm age ms": 1000 * statistics.median(warm), "memory MB": tree.memory_mb()}
    finally:
        feeder.terminate()
        feeder.wait()
        watcher.close()


def archive(measure: Callable[..., Any], folder: Path, cache: Path, broker: Any) -> None:
    """Run it once for the archive, and wait until that is made."""
    before = set(cache.glob("*.jsa"))
    folder.mkdir()
    measure("ours", folder, {"FENCEPOST_CACHE": str(cache)}, broker, 5.0)
    deadline = time.monotonic() + 900
    while set(cache.glob("*.jsa")) == before and time.monotonic() < deadline:
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/start.py", description="Measure launch to first row.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=("files", "kafka"))
    parser.add_argument("--variants", nargs="+", help="of plain, before, options, after")
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        help="to try beside them: options of the JVM, --conf name=value, or a variable",
    )
    parser.add_argument("--seconds", type=float, default=60, help="that a Kafka job runs after its first row")
    parser.add_argument("--cache", type=Path, help="keep archives here, for another run")
    parser.add_argument("--prepare", action="store_true", help="only make the archives")
    chosen = parser.parse_args()
    folder, load = Path(tempfile.mkdtemp(prefix="fencepost-bench-")), os.getloadavg()
    cache = chosen.cache or folder / "cache"
    cache.mkdir(exist_ok=True)
    measures = {"files": files, "kafka": kafka}
    every = variants(cache, chosen.also)
    wanted = [*(chosen.variants or [name for name in every if name not in chosen.also]), *chosen.also]
    try:
        for what in [chosen.only] if chosen.only else measures:
            server = Broker(folder / what, heap_mb=512, java_options=("-XX:+UseSerialGC",)) if what == "kafka" else None
            with server or nullcontext() as broker:
                if chosen.prepare or not chosen.cache:
                    archive(measures[what], folder / f"{what}-archive", cache, broker)
                found = defaultdict[str, list[dict[str, float]]](list)
                for number in range(0 if chosen.prepare else chosen.rounds):
                    for variant in wanted:
                        who, environment = every[variant]
                        place = folder / f"{what}-{number}-{wanted.index(variant)}"
                        place.mkdir()
                        one = measures[what](who, place, environment, broker, chosen.seconds)
                        found[variant].append(one)
                        print(what, variant, {name: round(value, 1) for name, value in one.items()}, flush=True)
            report(what, found)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"cores {len(os.sched_getaffinity(0))}, load before {load[0]:.2f}, after {os.getloadavg()[0]:.2f}")


def report(what: str, found: Mapping[str, list[dict[str, float]]]) -> None:
    """Medians, and the ratio to plain Spark."""
    rival = found.get("plain", [{}])[0] and statistics.median(one["first row s"] for one in found["plain"])
    for variant, runs in found.items():
        medians = {name: statistics.median(one[name] for one in runs) for name in runs[0]}
        ratio = f"{medians['first row s'] / rival:6.2f} of plain" if rival else ""
        print(f"{what:6} {variant:10} " + "  ".join(f"{k} {v:7.1f}" for k, v in medians.items()), ratio)


if __name__ == "__main__":
    main()
