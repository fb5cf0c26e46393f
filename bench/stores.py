"""Measures what a checkpoint's place costs: local disk, HDFS, and an S3 server, in one run: `make bench-stores`.

    append     one ledger record: create exclusively and durably, then list the ledger
    recovery   read and verify a ledger of 100 records
    epoch      files ─► count per word ─► SQLite, epoch by epoch: Spark's own phases, and ours
    requests   what one epoch asks of the object store, counted by a door before it: with and without state

All servers are on this machine: there is no network in these figures. Add the round trip of your store to each request
that an epoch waits for.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.common import facts, fsync_ms, save
from fencepost_proof.rig.hdfs import Hdfs
from fencepost_proof.rig.s3 import S3
from fencepost_proof.rig.s3_door import S3Door
from fencepost_proof.stand_in import SCHEMA

import fencepost as fp
from fencepost.config import Checkpoint, RunConfig
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.guarantee import Guarantee
from fencepost.observe import journal
from fencepost.observe.events import Kind
from fencepost.runtime.driver import Driver, Plan
from fencepost.store import store_at
from fencepost.store.ledger import read
from fencepost.store.probe import check_store

SETTINGS = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
PHASES = (Kind.PRE_COMMITTED, Kind.VOTED, Kind.DECIDED, Kind.COMMITTED)


@dataclass
class Results:
    append_ms: dict[str, float] = field(default_factory=dict)
    recovery_ms: dict[str, float] = field(default_factory=dict)
    epoch_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    requests: dict[str, dict[str, float]] = field(default_factory=dict)


@contextmanager
def places(folder: Path) -> Iterator[tuple[dict[str, str], dict[str, str], S3Door]]:
    """Roots by name, settings of the session, the door before S3."""
    with ExitStack() as stack:
        hdfs = stack.enter_context(Hdfs(folder / "hdfs"))
        s3 = stack.enter_context(S3(folder / "s3"))
        door = stack.enter_context(S3Door(s3.endpoint))
        bucket = s3.make_bucket("bench")
        jars = {"spark.jars": ",".join(map(str, s3.jars))}
        roots = {"local disk": str(folder / "local"), "HDFS": f"{hdfs.url}/bench", "S3": bucket}
        yield roots, {**hdfs.settings, **door.settings, **jars}, door


def append_and_recover(root: str, records: int) -> tuple[list[float], list[float]]:
    """A driver without an engine: its claims are one record each, and nothing else happens."""
    place = f"{root}/ledger-{uuid.uuid4().hex[:8]}"
    store = store_at(place)
    sink = SQLite(Path(tempfile.mkdtemp()) / "none.db", table="none")

    def driver() -> Driver:
        plan = Plan(
            config=RunConfig(job="bench", checkpoint=Checkpoint(store.root), guarantee=Guarantee.AT_MOST_ONCE),
            store=store, sinks={sink.name: sink}, schemas={sink.name: SCHEMA},
            modes={sink.name: "append"}, keep=records,
        )  # fmt: skip
        return Driver(plan)

    one = driver()
    one.recover()
    appended = []
    for epoch in range(records):
        store.replace(f"offsets/{epoch}", b'v1\n{"batchWatermarkMs":0}\n{"logOffset":%d}' % epoch)
        began = time.perf_counter()
        one.run_epoch(epoch, (), lambda: 'v1\n{"nextBatchWatermarkMs":0}')
        appended.append(time.perf_counter() - began)
        store.replace(f"commits/{epoch}", b'v1\n{"nextBatchWatermarkMs":0}')
    one.close()
    read_in = []
    for _ in range(5):
        began = time.perf_counter()
        read(place)
        read_in.append(time.perf_counter() - began)
    return appended, read_in


class Job:
    """One job on one store, in a session that all share."""

    def __init__(self, spark: Any, root: str, folder: Path, *, stateful: bool) -> None:
        name = f"{'counts' if stateful else 'lines'}-{uuid.uuid4().hex[:6]}"
        self.folder = folder / name
        (self.folder / "in").mkdir(parents=True)
        self.checkpoint = f"{root}/{name}"
        self.progress: list[dict[str, Any]] = []
        self.job = fp.Job(name, checkpoint=self.checkpoint, spark=spark)
        read = self.job.read(fp.Files(self.folder / "in", format="text", max_files_per_epoch=1))
        if stateful:
            sink = fp.SQLite(self.folder / "out.db", table="out", key="value")
            self.job.write(read.groupBy("value").count(), sink)
        else:
            self.job.write(read, fp.SQLite(self.folder / "out.db", table="out"))

    def run(self, epochs: int) -> None:
        """One file an epoch, in a new query."""
        begun = len(list((self.folder / "in").iterdir()))
        for number in range(begun, begun + epochs):
            (self.folder / "in" / f"{number}.txt").write_text("\n".join(f"word{n}" for n in range(1000)))
        query = self.job.start(until="available")
        query.awaitTermination()
        self.progress += [json.loads(one.json) for one in query.recentProgress if one.numInputRows]

    def phases(self, skip: int) -> dict[str, float]:
        """Milliseconds, median over epochs: Spark's own, then ours."""
        found: dict[str, list[float]] = {}
        for one in self.progress[skip:]:
            for phase, took in one["durationMs"].items():
                found.setdefault(f"Spark: {phase}", []).append(took)
        for event in journal.read(self.checkpoint):
            if event.kind in PHASES and (event.epoch or 0) >= skip and event.seconds is not None:
                found.setdefault(event.kind.value, []).append(1000 * event.seconds)
        return {phase: statistics.median(took) for phase, took in found.items()}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Measure what a checkpoint's place costs.")
    parser.add_argument("--records", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=30)
    chosen = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="fencepost-stores-"))
    results = Results()
    load = os.getloadavg()
    with places(folder) as (roots, settings, door):
        host = fp.Job("session", checkpoint=folder / "none", conf={**SETTINGS, **settings})
        spark = host.spark
        for root in roots.values():
            if "://" in root:
                check_store(store_at(f"{root}/trial"), "bench")
        for name, root in roots.items():
            appended, read_in = append_and_recover(root, chosen.records)
            results.append_ms[name] = 1000 * statistics.median(appended[10:])
            results.recovery_ms[name] = 1000 * statistics.median(read_in)
        for name, root in roots.items():
            job = Job(spark, root, folder, stateful=True)
            job.run(chosen.epochs)
            results.epoch_ms[name] = job.phases(skip=5)
        for stateful in (False, True):
            job = Job(spark, roots["S3"], folder, stateful=stateful)
            job.run(5)
            few, many = _counted(door, job, 5), _counted(door, job, 5 + chosen.epochs)
            kind = "counts per word, 2 partitions of state" if stateful else "without state"
            per_epoch = {one: (many[one] - few[one]) / chosen.epochs for one in sorted({*few, *many})}
            results.requests[kind] = {one: number for one, number in per_epoch.items() if number > 0.01}
        found = facts(spark, fsync_ms(folder), load)
    shutil.rmtree(folder, ignore_errors=True)
    for title, each in vars(results).items():
        print(f"\n{title}")
        for name, value in each.items():
            said = {key: round(one, 2) for key, one in value.items()} if isinstance(value, dict) else round(value, 2)
            print(f"  {name:40} {said}")
    print(save("stores-", found, {"arguments": vars(chosen), **vars(results)}))
    return 0


def _counted(door: S3Door, job: Job, epochs: int) -> Counter[str]:
    """The difference of two runs leaves what each start and end costs out."""
    door.reset()
    job.run(epochs)
    return door.reset()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
