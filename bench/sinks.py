"""Measures the database sinks beside each server's own bulk path and beside foreachBatch by hand: `make bench-sinks`.

    without Spark   an epoch of rows in one process: raw bulk path, by hand, ours (bench.sinks_alone); rows per second
    in Spark        the same epochs in a streaming query: by hand, ours with each staging (bench.sinks_spark)

Rows are a bigint, a text of 16 characters and a double, in no order of the key; an upsert finds all of its keys there.
Real servers on this machine. Ways take turns in every round, each round beginning with another one, so that a noisy
minute hits all alike; what is shown is the median. The goal: 0.8 of the raw path at a million rows, and ahead of every
way by hand at every size.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from bench import sinks_alone
from bench.common import facts, fsync_ms, save, timed_effects
from bench.sinks_spark import SMALL, Input, InSpark
from bench.sinks_stores import Cassandra, Redis, RedisString
from bench.sinks_tables import MySQL, Postgres, Target, Work

import fencepost as fp
from fencepost.spark import spark_session

TARGETS: dict[str, type[Target]] = {each.name: each for each in (Postgres, MySQL, Redis, RedisString, Cassandra)}
TINY = 12
MORE = 5
"""Times as many rounds without Spark for small epochs, which take milliseconds."""
WARMING = 20_000
STEPS = ("precommit", "vote", "snapshot", "decide", "append.list", "commit", "sweep")
PARTS = ("triggerExecution", "latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets")


@cache
def make_rows(size: int, value: float | None = None) -> pa.Table:
    """Always the same."""
    dice = random.Random(size)
    ids = list(range(size))
    dice.shuffle(ids)
    values = [dice.random() * 1000 if value is None else value for _ in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "key": [f"key-{n:012}" for n in ids], "value": values})


class Bench:
    """One server, everything that is measured with it."""

    _numbers: Iterator[int] = count(1)

    def __init__(self, target: Target, folder: Path, chosen: argparse.Namespace) -> None:
        self.target, self.folder, self.chosen = target, folder, chosen
        limit = chosen.limit.get(target.name, target.limit)
        self.sizes = [size for size in chosen.sizes if limit is None or size <= limit]
        self.left_out = [size for size in chosen.sizes if size not in self.sizes]

    def _work(self, mode: str) -> Work:
        return Work(f"{self.target.schema}t{next(self._numbers)}", mode == "upsert", self.target.kind)

    def alone(self) -> list[dict[str, Any]]:
        self._warm_up()
        found = []
        for mode in self.chosen.modes:
            for size in self.sizes:
                found += self._alone(mode, size)
        return found

    def _warm_up(self) -> None:
        """A server that was just started is slow, above all one in Java."""
        work = self._work("upsert")
        self.target.make(work)
        self.target.fill(work, make_rows(WARMING).select(self.target.columns))
        self.target.drop(work)

    def _alone(self, mode: str, size: int) -> list[dict[str, Any]]:
        target = self.target
        table, before = (make_rows(size, value).select(target.columns) for value in (None, 0.0))
        times: dict[str, list[float]] = defaultdict(list)
        for number in range(self.chosen.rounds * (MORE if size <= SMALL else 1)):
            for name, prepare in turned(sinks_alone.ways(target, self.folder, size), number):
                taken = sinks_alone.seconds(target, prepare, self._work(mode), table, before)
                times[name].append(taken)
                say(f"{target.name}, {mode} of {size:,}, round {number}: {name} {size / taken:,.0f} rows/s")
        speed = {name: size / statistics.median(taken) for name, taken in times.items()}
        by_hand = max(speed[name] for name in target.by_hand if name in speed)
        return [
            {
                "sink": target.name,
                "where": "without Spark",
                "mode": mode,
                "rows": size,
                "way": name,
                "seconds": [round(each, 4) for each in times[name]],
                "rows_per_s": round(speed[name]),
                "to_raw": round(speed[name] / speed[target.raw_title], 3),
                "to_by_hand": round(speed[name] / by_hand, 3),
            }
            for name in sinks_alone.ways(target, self.folder, size)
        ]

    def in_spark(self, spark: InSpark) -> list[dict[str, Any]]:
        found = []
        for size in [TINY, *self.sizes]:
            epochs = 1 if size > SMALL else -(-self.chosen.epochs // self.chosen.rounds)
            given = Input.write(self.folder / f"in-{size}", make_rows, size, epochs)
            for mode in self.chosen.modes:
                found += self._in_spark(spark, mode, size, given)
            shutil.rmtree(given.folder)
        return found

    def _in_spark(self, spark: InSpark, mode: str, size: int, given: Input) -> list[dict[str, Any]]:
        target = self.target
        before = make_rows(given.rows.num_rows, 0.0).select(target.columns)
        ways = spark.ways(target, size)
        epochs: dict[str, list[dict[str, int]]] = defaultdict(list)
        steps = {}
        for number in range(self.chosen.rounds):
            for name, start in turned(ways, number):
                found = spark.run(target, start, self._work(mode), given, before)
                epochs[name] += found["epochs"]
                steps[name] = found["steps"]
                middle = statistics.median(each["triggerExecution"] for each in found["epochs"])
                say(f"{target.name} in Spark, {mode} of {size:,}, round {number}: {name} {middle:,.0f} ms")
        p50 = {name: statistics.median(each["triggerExecution"] for each in epochs[name]) for name in ways}
        by_hand = min(p50[name] for name in ways if name.startswith("by hand"))
        return [
            {
                "sink": target.name,
                "where": "in Spark",
                "mode": mode,
                "rows": size,
                "way": name,
                "epochs": len(epochs[name]),
                "ms": [each["triggerExecution"] for each in epochs[name]],
                "p50_ms": p50[name],
                "rows_per_s": round(size / p50[name] * 1000),
                "to_by_hand": round(by_hand / p50[name], 3),
                "spark_ms": {part: statistics.median(each.get(part, 0) for each in epochs[name]) for part in PARTS},
                "step_ms": {step: round(ms, 2) for step, ms in steps[name].items()},
            }
            for name in ways
        ]


def turned(ways: dict[str, Any], number: int) -> list[tuple[str, Any]]:
    """The same circle, beginning at another one each time."""
    items = list(ways.items())
    first = number % len(items)
    return items[first:] + items[:first]


# --- tables


def report(bench: Bench, results: list[dict[str, Any]]) -> None:
    target = bench.target
    print(f"\n## {target.title} {target.version()}\n")
    for where, shown in (("without Spark", alone_table), ("in Spark", spark_tables)):
        if mine := [each for each in results if each["where"] == where]:
            shown(mine)
    if bench.left_out:
        print(f"Left out, as it would take too long here: {', '.join(f'{size:,}' for size in bench.left_out)} rows.\n")


def rows_of(results: list[dict[str, Any]]) -> Iterator[tuple[str, int, dict[str, dict[str, Any]]]]:
    """Mode, size, and the results by way."""
    for mode, size in dict.fromkeys((each["mode"], each["rows"]) for each in results):
        yield mode, size, {each["way"]: each for each in results if (each["mode"], each["rows"]) == (mode, size)}


def alone_table(results: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(each["way"] for each in results if each["way"] != sinks_alone.OURS))
    print("Without Spark, rows/s:\n")
    heading("", "rows", *names, sinks_alone.OURS, "to raw", "to by hand")
    for mode, size, found in rows_of(results):
        ours = found[sinks_alone.OURS]
        speeds = [f"{found[name]['rows_per_s']:,}" if name in found else "" for name in (*names, sinks_alone.OURS)]
        row(mode, f"{size:,}", *speeds, f"{ours['to_raw']:.2f}", f"{ours['to_by_hand']:.2f}")
    print()


def spark_tables(results: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(each["way"] for each in results))
    print("In Spark, an epoch, median ms; behind it the best of ours to the best by hand (more is faster):\n")
    heading("", "rows", "epochs", *names, "to by hand")
    for mode, size, found in rows_of(results):
        times = [f"{found[name]['p50_ms']:,.0f}" if name in found else "" for name in names]
        best = max(each["to_by_hand"] for name, each in found.items() if name.startswith("fencepost"))
        row(mode, f"{size:,}", str(max(each["epochs"] for each in found.values())), *times, f"{best:.2f}")
    print("\nIn Spark, rows/s:\n")
    heading("", "rows", *names)
    for mode, size, found in rows_of(results):
        if size > TINY:
            row(mode, f"{size:,}", *(f"{found[name]['rows_per_s']:,}" if name in found else "" for name in names))
    print("\nOf it, median ms: Spark's addBatch, in which all of the others lie, and the steps of the protocol:\n")
    heading("", "rows", "", "addBatch", *STEPS)
    for mode, size, found in rows_of(results):
        for name, each in found.items():
            steps = (f"{each['step_ms'].get(step, 0):.1f}" for step in STEPS) if each["step_ms"] else [""] * len(STEPS)
            row(mode, f"{size:,}", name, f"{each['spark_ms']['addBatch']:.0f}", *steps)
    print()


def heading(*cells: str) -> None:
    row(*cells)
    row(*["---"] * len(cells))


def row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |")


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


# --- the whole


def words(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[int]:
    return [int(word.replace("_", "")) for word in words(text)]


def limits(text: str) -> dict[str, int]:
    return {name: int(rows) for name, _, rows in (word.partition("=") for word in words(text))}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/sinks.py", description="Measure the database sinks.")
    parser.add_argument("--sizes", type=numbers, default=[1000, 100_000, 1_000_000], help="rows of an epoch")
    parser.add_argument("--sinks", type=words, default=list(TARGETS), help=", ".join(TARGETS))
    parser.add_argument("--modes", type=words, default=["insert", "upsert"], help="insert, upsert")
    parser.add_argument("--layers", type=words, default=["alone", "spark"], help="alone, spark")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30, help="of up to 1,000 rows in Spark, in all rounds together")
    parser.add_argument("--limit", type=limits, default={}, help="most rows for a sink: cassandra=100000 unless told")
    parser.add_argument("--save", action="store_true", help="write bench/results/sinks-<date>.json")
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    began, load = time.monotonic(), os.getloadavg()
    folder = Path(tempfile.mkdtemp(prefix="fencepost-bench-"))
    conf = {"spark.ui.enabled": "false", "spark.sql.streaming.numRecentProgressUpdates": "1000"}
    spark = spark_session.make_session("bench", conf)
    spark.sparkContext.setLogLevel("ERROR")
    results: list[dict[str, Any]] = []
    about: dict[str, Any] = {}
    try:
        with timed_effects() as steps:
            for name in chosen.sinks:
                if name == "mysql" and not hasattr(fp, "MySQL"):
                    continue
                target = TARGETS[name](folder / f"{name}-server")
                (folder / name).mkdir()
                with target.server:
                    bench = Bench(target, folder / name, chosen)
                    mine = bench.alone() if "alone" in chosen.layers else []
                    if "spark" in chosen.layers:
                        mine += bench.in_spark(InSpark(spark, folder / name, steps))
                    report(bench, mine)
                    versions = {key: value for key, value in about.items() if key in TARGETS}
                    about = facts(spark, fsync_ms(folder), load) | versions | {name: target.version()}
                results += mine
                if chosen.save:
                    say(f"so far in {save('sinks-', about, results)}")
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(f"{chosen.rounds} rounds, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
