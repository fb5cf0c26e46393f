"""Measures Delta and Iceberg tables beside their own libraries, used by hand: `make bench-lakehouse`.

    append     one epoch of rows, from the staged rows to the end of the commit; and the library's own append
    upsert     rows by key into a table of a million: ours, and the library's own merge or upsert
    small      an epoch of ten rows, in milliseconds
    versions   the same after so many commits: does it grow with the table's history?

One process, a local disk, no Spark. Ways take turns in every round; what is shown is the median. By hand nothing is
asked before a commit, no mark is written, and nothing is synced to the disk: what a crash does to it is not measured.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from bench.common import fsync_ms, machine, save
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from rich.console import Console
from rich.table import Table

import fencepost as fp
from fencepost.testing import SinkDriver

TEN = 10
_numbers = count(1)


def rows_of(size: int, first: int = 0) -> pa.Table:
    """A bigint, a text of 16 characters and a double, in no order of the key."""
    dice = random.Random(size)
    ids = list(range(first, first + size))
    dice.shuffle(ids)
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "key": [f"key-{n:012}" for n in ids], "value": [dice.random() for _ in ids]}
    )


class Place:
    """A table of its own, and its ways in."""

    product: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder / f"t{next(_numbers)}"
        self.folder.mkdir()

    def sink(self, **settings: Any) -> fp.Sink:
        raise NotImplementedError

    def by_hand(self, rows: pa.Table) -> None:
        raise NotImplementedError

    def merged_by_hand(self, rows: pa.Table) -> None:
        raise NotImplementedError

    @contextmanager
    def ours(self, schema: pa.Schema, **settings: Any) -> Iterator[Callable[[pa.Table], float]]:
        """An epoch at each call; the seconds from the staged rows to the end of the commit."""
        driver = SinkDriver(self.sink(**settings), self.folder)
        driver.start(schema, "update" if "key" in settings else "append")
        numbers = count()

        def run(rows: pa.Table) -> float:
            epoch = next(numbers)
            staged = driver.rows(epoch, rows)
            began = time.perf_counter()
            for handle in (driver.session.pre_commit(epoch, staged),):  # type: ignore[arg-type]
                assert handle is not None
                driver.vote(epoch, handle)
                driver.commit(epoch, handle)
            return time.perf_counter() - began

        try:
            yield run
        finally:
            driver.session.close()


class OnDelta(Place):
    product = "Delta"

    @property
    def path(self) -> str:
        return str(self.folder / "table")

    def sink(self, **settings: Any) -> fp.Sink:
        return fp.Delta(self.path, **settings)

    def by_hand(self, rows: pa.Table) -> None:
        write_deltalake(self.path, rows, mode="append")

    def merged_by_hand(self, rows: pa.Table) -> None:
        merge = DeltaTable(self.path).merge(rows, "s.key = t.key", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()


class OnIceberg(Place):
    product = "Iceberg"

    @property
    def catalog(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.folder}/c.db", "warehouse": f"file://{self.folder}/w"}

    def sink(self, **settings: Any) -> fp.Sink:
        return fp.Iceberg("bench.t", catalog=self.catalog, **settings)

    def _table(self, schema: pa.Schema) -> Any:
        catalog = load_catalog("default", **self.catalog)
        catalog.create_namespace_if_not_exists("bench")
        return catalog.create_table_if_not_exists("bench.t", schema)

    def by_hand(self, rows: pa.Table) -> None:
        self._table(rows.schema).append(rows)

    def merged_by_hand(self, rows: pa.Table) -> None:
        self._table(rows.schema).upsert(rows, join_cols=["key"])


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compare_append(kind: type[Place], folder: Path, size: int, rounds: int) -> dict[str, Any]:
    rows, found = rows_of(size), {"ours": [], "by hand": []}  # type: ignore[var-annotated]
    hand = kind(folder)
    hand.by_hand(rows.slice(0, TEN))
    with kind(folder).ours(rows.schema) as ours:
        ours(rows.slice(0, TEN))
        for number in range(rounds):
            ways = [("ours", lambda: ours(rows)), ("by hand", lambda: seconds(lambda: hand.by_hand(rows)))]
            for name, way in ways if number % 2 else reversed(ways):
                found[name].append(way())
    return result(kind, f"append {size:,} rows", found)


def compare_upsert(kind: type[Place], folder: Path, size: int, into: int, rounds: int) -> dict[str, Any]:
    base, found = rows_of(into), {"ours": [], "by hand": []}  # type: ignore[var-annotated]
    ours_, hand = kind(folder), kind(folder)
    ours_.by_hand(base)
    hand.by_hand(base)
    with ours_.ours(base.schema, key="key", unique_key=True) as ours:
        for number in range(rounds):
            rows = rows_of(size, first=into - size // 2 + number * size)
            ways = [
                ("ours", lambda r=rows: ours(r)),
                ("by hand", lambda r=rows: seconds(lambda: hand.merged_by_hand(r))),
            ]  # type: ignore[misc]
            for name, way in ways if number % 2 else reversed(ways):
                found[name].append(way())
    return result(kind, f"upsert {size:,} into {into:,}", found)


def compare_small(kind: type[Place], folder: Path, versions: list[int]) -> list[dict[str, Any]]:
    """Ten rows an epoch; the figure at a number of versions is the median of the next twenty."""
    rows, results = rows_of(TEN), []
    hand = kind(folder)
    with kind(folder).ours(rows.schema) as ours:
        done = 0
        for wanted in versions:
            for _ in range(wanted - done):
                ours(rows)
                hand.by_hand(rows)
            found = {"ours": [], "by hand": []}  # type: ignore[var-annotated]
            for _ in range(20):
                found["ours"].append(ours(rows))
                found["by hand"].append(seconds(lambda: hand.by_hand(rows)))
            done = wanted + 20
            results.append(result(kind, f"append {TEN} rows, {wanted:,} versions", found))
    return results


def result(kind: type[Place], what: str, found: dict[str, list[float]]) -> dict[str, Any]:
    medians = {name: statistics.median(times) for name, times in found.items()}
    return {
        "format": kind.product,
        "what": what,
        "rounds": len(found["ours"]),
        "ours ms": round(medians["ours"] * 1000, 1),
        "by hand ms": round(medians["by hand"] * 1000, 1),
        "by hand / ours": round(medians["by hand"] / medians["ours"], 2),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Delta and Iceberg beside their own libraries.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--upsert", type=int, default=10_000)
    parser.add_argument("--versions", type=int, nargs="*", default=[10, 1000])
    parser.add_argument("--save", action="store_true")
    chosen = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="fencepost-lakehouse-"))
    load, results = os.getloadavg(), []
    try:
        for kind in (OnDelta, OnIceberg):
            results.append(compare_append(kind, folder, chosen.rows, chosen.rounds))
            results.append(compare_upsert(kind, folder, chosen.upsert, chosen.rows, chosen.rounds))
            results += compare_small(kind, folder, chosen.versions)
        found = machine("none", fsync_ms(folder), load)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = Table(*results[0])
    for row in results:
        table.add_row(*map(str, row.values()))
    Console(width=120).print(table, found)
    if chosen.save:
        print(save("lakehouse-", found, results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
