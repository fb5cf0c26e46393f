"""Measures how long a job is away after a failure, at a steady 1,000 records a second, Kafka to Kafka:
`make bench-recovery`.

    query     an epoch fails and the query is started again in the living driver
    process   the driver is killed with SIGKILL; `fencepost run` starts another: time per phase
    standby   the driver is killed with SIGKILL; `fencepost run --standby` has one that is warm
    early     the same, some seconds after the standby was started: it is not warm yet
    ledger    the protocol's own recovery, of a local ledger with 10,000 records

A job is back when a reader of committed messages sees a row made of a record that was produced after the failure. Its
latency is back to normal when the result is again as fresh as before: the median age of its newest record over three
seconds is at most 1.5 times that of the five seconds before the failure.

`--package DIR` measures another version's `src`, for a comparison in one run.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from bench.kafka import PARTITIONS
from confluent_kafka import Consumer, TopicPartition
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.stand_in import SCHEMA, StandIn

from fencepost import faults
from fencepost.config import Checkpoint, RunConfig
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.observe import journal
from fencepost.observe.events import Event, Kind
from fencepost.observe.heartbeat import beats
from fencepost.runtime.driver import Driver, Plan
from fencepost.store import LocalStore

RATE = 1000
MOMENTS = (3, 9, 15, 21)
"""Seconds after the start of a standby at which it is called."""
EVERY = 12
"""A failed vote each so many epochs."""
PATIENCE_S = 180


class Watcher:
    """Sees, as a reader of committed messages, how new the newest record is that the result has."""

    def __init__(self, servers: str, topic: str) -> None:
        self.newest_ms = 0
        self._stop = threading.Event()
        settings = {"bootstrap.servers": servers, "group.id": "watch", "enable.auto.commit": False}
        self._consumer = Consumer({**settings, "isolation.level": "read_committed", "fetch.wait.max.ms": 5})
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.seen: list[tuple[float, int]] = []
        """When, and the newest record by then."""

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(1000, 0.01):
                if message.error() is None and int(message.value()) > self.newest_ms:
                    self.newest_ms = int(message.value())
                    self.seen.append((time.time(), self.newest_ms))
        self._consumer.close()

    def back_after(self, failed_at: float) -> float:
        """Seconds from a failure to the first row of a record that came after it."""
        until(lambda: self.newest_ms / 1000 > failed_at)
        return next(at for at, newest in self.seen if newest / 1000 > failed_at) - failed_at

    def age(self, since: float, seconds: float) -> float:
        """The median age of the newest record of the result, in a span of time."""
        seen, moments = list(self.seen), [since + step / 20 for step in range(int(seconds * 20))]
        newest = [seen[max(0, bisect.bisect_right(seen, (moment, 1 << 62)) - 1)][1] for moment in moments]
        return statistics.median(moment - at / 1000 for moment, at in zip(moments, newest, strict=True))

    def normal_after(self, failed_at: float) -> float:
        """Seconds from a failure until the result is as fresh as before; infinite if it has not been so far."""
        usual, last = self.age(failed_at - 5, 5), time.time() - 3
        moments = (failed_at + step / 2 for step in range(int((last - failed_at) * 2)))
        return next((at - failed_at for at in moments if self.age(at, 3) <= 1.5 * usual), float("inf"))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


class Place:
    """A supervised job with records that arrive all the time."""

    def __init__(self, folder: Path, broker: Broker, number: int, package: str | None) -> None:
        self.folder = folder / str(number)
        self.folder.mkdir()
        self.broker = broker
        self.environment = {} if package is None else {"PYTHONPATH": package}
        self.arriving, self.out = (
            broker.create_topic(f"{word}-{number}", partitions=PARTITIONS) for word in ("in", "out")
        )

    @contextmanager
    def running(self, *options: str, environment: dict[str, str] | None = None) -> Iterator[Watcher]:
        job = [str(Path(__file__).parent / "jobs" / "recovery.py"), str(self.folder), self.broker.servers]
        feeder = subprocess.Popen(
            [sys.executable, "-m", "bench.kafka", "feed", self.broker.servers, self.arriving, str(RATE)]
        )
        with (self.folder / "log").open("wb") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "fencepost", "run", *options, *job, self.arriving, self.out],
                stdout=log, stderr=log, env={**os.environ, **self.environment, **(environment or {})},
            )  # fmt: skip
        watcher = Watcher(self.broker.servers, self.out)
        try:
            until(lambda: watcher.newest_ms)
            time.sleep(3)
            yield watcher
        except TimeoutError:
            print(self.log[-3000:], file=sys.stderr)
            raise
        finally:
            supervisor.terminate()
            supervisor.wait(PATIENCE_S)
            feeder.terminate()
            feeder.wait()
            watcher.close()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def events(self) -> list[Event]:
        return list(journal.read(self.folder / "ck"))

    def kill(self) -> float:
        """Kill the driver; when that was."""
        driver = next(beat for beat in beats(self.folder / "ck") if beat.lives)
        at = time.time()
        os.kill(driver.pid, signal.SIGKILL)
        return at

    def phases(self, killed_at: float, back: float) -> dict[str, float]:
        """Where the time went between a kill and the first new row."""
        steps = {}
        for line in (self.folder / "steps").read_text().splitlines():
            step, at = line.split()
            if float(at) > killed_at:
                steps.setdefault(step, float(at))
        found: dict[Kind, float] = {}
        for event in self.events:
            if (at := when(event)) > killed_at:
                found.setdefault(event.kind, at)
        ends = {
            "notice": found[Kind.RESTARTED],
            "process": steps["python"],
            "JVM and Spark": steps["spark"],
            "plan": steps["run"],
            "recovery": found[Kind.RECOVERED],
            "first epoch": killed_at + back,
        }
        before, phases = killed_at, {}
        for phase, end in ends.items():
            phases[phase] = end - before
            before = end
        return phases


def when(event: Event) -> float:
    return datetime.fromisoformat(event.at).timestamp()


def query(place: Place, times: int) -> list[float]:
    visits = ",".join(f"vote.before=fail@{EVERY * (number + 3)}" for number in range(times))
    strategy = ("--restart", f"fixed-delay:attempts={times},delay=0s")
    with place.running(*strategy, environment={faults.ARM: visits}) as watcher:
        until(lambda: sum(event.kind is Kind.FAILED for event in place.events) >= times)
        failed = [when(event) for event in place.events if event.kind is Kind.FAILED]
        return [watcher.back_after(at) for at in failed]


def process(place: Place, times: int) -> tuple[list[float], list[dict[str, float]]]:
    found, phases = [], []
    with place.running("--restart", f"fixed-delay:attempts={times},delay=0s") as watcher:
        for _ in range(times):
            at = place.kill()
            found.append(watcher.back_after(at))
            phases.append(place.phases(at, found[-1]))
            time.sleep(3)
    return found, phases


def standby(place: Place, times: int) -> tuple[list[float], list[float]]:
    """How long the job was away, and how long until its latency was normal, for each kill."""
    back, normal, killed_at = [], [], 0.0
    with place.running("--standby", "--restart", f"fixed-delay:attempts={times},delay=0s") as watcher:
        for number in range(times):
            until(lambda needed=number + 1: place.log.count("is warm") >= needed)
            time.sleep(5)
            if killed_at:
                normal.append(watcher.normal_after(killed_at))
                print(f"  {back[-1]:.2f} s; normal after {normal[-1]:.1f} s", flush=True)
            killed_at = place.kill()
            back.append(watcher.back_after(killed_at))
    return back, normal


def early(place: Place, moments: Sequence[float]) -> list[float]:
    """How long the job was away if the standby is called so many seconds after it was started."""
    found = []
    with place.running("--standby", "--restart", f"fixed-delay:attempts={len(moments)},delay=0s") as watcher:
        for number, moment in enumerate(moments):
            until(lambda needed=number + 1: len(re.findall(r"standby \d+ started", place.log)) >= needed)
            time.sleep(moment)
            found.append(watcher.back_after(place.kill()))
    return found


def ledger(folder: Path, records: int) -> list[float]:
    """Recovery of a ledger in which nothing was retired yet."""
    sink = SQLite(folder / "sums.db", table="sums")
    StandIn(folder / "long", tuple(range(records)), 1, {sink.name: sink}, keep=records).run()
    times = []
    for _ in range(5):
        plan = Plan(
            config=RunConfig(job="stand-in", checkpoint=Checkpoint(folder / "long")),
            store=LocalStore(folder / "long"),
            sinks={sink.name: sink},
            schemas={sink.name: SCHEMA},
            modes={sink.name: "append"},
            keep=records,
        )
        driver = Driver(plan)
        began = time.perf_counter()
        driver.recover()
        times.append(time.perf_counter() - began)
        driver.close()
    return times


KINDS = ("query", "process", "standby", "early", "ledger")


def say(name: str, times: list[float]) -> None:
    print(f"{name:<10} p50 {statistics.median(times):6.2f} s   least {min(times):6.2f}   most {max(times):6.2f}   "
          f"({len(times)} times)", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/recovery.py", description="Measure how long a failure takes.")
    parser.add_argument("--times", type=int, default=10, help="failures of each kind")
    parser.add_argument("--records", type=int, default=10_000, help="in the ledger")
    parser.add_argument("--only", choices=KINDS, action="append")
    parser.add_argument("--moment", type=float, action="append", help="seconds after a standby's start, for early")
    parser.add_argument("--package", help="the src folder of another version")
    chosen = parser.parse_args()
    wanted = chosen.only or KINDS
    folder = Path(tempfile.mkdtemp(prefix="fencepost-bench-"))
    try:
        with Broker(folder / "kafka", heap_mb=512, java_options=("-XX:+UseSerialGC",)) as broker:
            places = (Place(folder, broker, number, chosen.package) for number in itertools.count())
            if "query" in wanted:
                say("query", query(next(places), chosen.times))
            if "process" in wanted:
                times, phases = process(next(places), chosen.times)
                say("process", times)
                for phase in phases[0]:
                    print(f"  {phase:<14} {statistics.median(found[phase] for found in phases):6.2f} s")
            if "standby" in wanted:
                back, normal = standby(next(places), chosen.times)
                say("standby", back)
                if normal:
                    say("  normal", normal)
            if "early" in wanted:
                moments = chosen.moment or MOMENTS
                for moment, seconds in zip(moments, early(next(places), moments), strict=True):
                    print(f"early      {seconds:6.2f} s, called {moment:g} s after the standby's start", flush=True)
        if "ledger" in wanted:
            say("ledger", ledger(folder, chosen.records))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
