"""Measures fencepost beside plain Spark, Kafka Streams and Flink, with one generator, broker and meter:
`make bench-peers`.

Each system counts the records of 10,000 keys, Kafka (4 partitions) to Kafka, and is read with read_committed. A life of
a system is one launch while records arrive:

    start      from the launch to the first row that a reader sees
    steady     how long after it was produced is a record in a count that a reader sees: in the first minute after the
               first row, and warm after that; CPU and memory while warm
    kill       kill -9; from then to the first row with a record that was produced later
    catch-up   (a life of its own) a topic full of records; from the launch until all of them are counted

Every life ends with a check: each key's last count is the number of its records, and no row is there twice. Systems
take turns. `--only` and `--systems` choose. The lives are added to those that were saved for the same sources of
fencepost on the same day, and the tables of docs/PERFORMANCE.md are written from all of them, unless `--no-save` is
given. Before the first one that counts, fencepost runs until it has its class archive, in a folder of this benchmark;
what a launch takes without one is measured apart (`first`).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.common import fsync_ms, machine
from bench.peers import tables
from bench.peers.meter import PARTITIONS, PATIENCE_S, Child, Stat, first_of, late_ms, others_s, until
from bench.peers.systems import SYSTEMS, Life, System
from fencepost_proof.rig.jars import RigFailed, java
from fencepost_proof.rig.kafka import Broker

KINDS = ("start", "steady", "kill", "catch-up")
SETTLE_S = 15
"""From the first row to a kill, where nothing is measured between them."""
AFTER_S = 10
"""How long a life goes on after a takeover."""
PREPARED_S = 900
"""How long a class archive may take: its making begins after a minute, and gets what the machine has to spare."""


class Bench:
    def __init__(self, broker: Broker, folder: Path, chosen: argparse.Namespace) -> None:
        self.broker, self.folder, self.chosen = broker, folder, chosen
        self.made = 0

    def live(self, system: System, rate: int, kinds: set[str]) -> dict[str, Any]:
        """One life; what was measured in it. Of no kind: one that only leaves what later ones find."""
        self.made += 1
        topics = [f"{word}-{self.made}" for word in ("in", "out")]
        for topic in topics:
            self.broker.create_topic(topic, partitions=PARTITIONS)
        servers, keys = self.broker.servers, self.chosen.keys
        folder = self.folder / f"life-{self.made}"
        found: dict[str, Any] = {"system": system.name, "rate": rate, "at": now(), "load": round(os.getloadavg()[0], 2)}
        life = Life(system, f"{os.getpid()}-{self.made}", (servers, *topics), folder)
        records = self.chosen.records if "catch-up" in kinds else 0
        reader = Child("read", servers, topics[1], log=folder / "seen", keys=keys)
        feeder = Child("feed", servers, topics[0], log=folder / "produced", keys=keys, rate=rate, records=records)
        try:
            meter = Meter(self.broker, life, reader, feeder)
            marks = meter.catch_up(records, found) if records else meter.run(self.chosen, rate, kinds, found)
            produced = feeder.finish()
            found["records"] = len(produced)
            with suppress(TimeoutError):
                meter.wait(lambda: reader.last["covered"] >= len(produced), "all records were counted")
            time.sleep(0.5)
            seen = reader.finish()
            found |= reader.verdict(len(produced))
            with suppress(LookupError):  # the verdict says that records are missing
                figures(found, marks, produced, seen)
        except (TimeoutError, Ended) as error:
            found["failed"] = str(error)
            say(f"{system.name}: {error}\n{life.last_words()}")
        finally:
            life.close()
            reader.close()
            feeder.close()
            shutil.rmtree(folder)
        return found


class Ended(Exception):
    """The system stopped by itself."""


class Meter:
    """Drives one life, and notes the times between which figures are taken."""

    def __init__(self, broker: Broker, life: Life, reader: Child, feeder: Child) -> None:
        self.broker, self.life, self.reader, self.feeder = broker, life, reader, feeder

    def run(self, chosen: argparse.Namespace, rate: int, kinds: set[str], found: dict[str, Any]) -> dict[str, float]:
        until(lambda: self.feeder.first, "records arrived")
        marks, others = {"launch": time.time()}, others_s()
        self.life.launch()
        self.wait(lambda: self.reader.first, "a row was seen")
        marks["first row"] = self.reader.first["at"]
        found["start_cpu_s"] = round(self.life.usage.look()[0], 1)
        if not kinds:
            until(self.life.system.is_prepared, "the class archive was made", PREPARED_S)
        if "steady" in kinds:
            time.sleep(max(0, marks["first row"] + chosen.first - time.time()))
            marks["warm"], before, rows = time.time(), self._cpu(), self.reader.last["rows"]
            memory = []
            while (left := marks["warm"] + chosen.warm - time.time()) > 0:
                time.sleep(min(1, left))
                memory.append(self.life.usage.look()[1])
            marks["end"], after = time.time(), self._cpu()
            found["mb"] = round(max(memory))
            millions = (marks["end"] - marks["warm"]) * rate / 1e6
            found["cpu_s_per_million"] = round((after[0] - before[0]) / millions, 1)
            found["broker_cpu_s_per_million"] = round((after[1] - before[1]) / millions, 1)
            found["rows_per_s"] = round((self.reader.last["rows"] - rows) / (marks["end"] - marks["warm"]))
            self._catch_up_with(marks["end"] + 1, rate)  # or else what a kill delays would count as late
        found["others_cores"] = round((others_s() - others) / (time.time() - marks["launch"]), 2)
        if "kill" in kinds:
            if "steady" not in kinds:
                time.sleep(SETTLE_S)
            self.life.system.wait_ready(self.life)
            marks["kill"] = time.time()
            self.life.kill()
            self._catch_up_with(time.time(), rate)
            time.sleep(AFTER_S)
        return marks

    def _catch_up_with(self, at: float, rate: int) -> None:
        """Wait until about all that was produced by then is seen."""
        produced = (at - self.feeder.first["at"]) * rate
        self.wait(lambda: self.reader.last["covered"] >= produced, "what had been produced was counted")

    def catch_up(self, records: int, found: dict[str, Any]) -> dict[str, float]:
        self.feeder.wait()
        launched = time.time()
        self.life.launch()
        self.wait(lambda: self.reader.last.get("covered", 0) >= records, "all records were counted")
        found["catch_up_s"] = round(self.reader.last["at"] - launched, 2)
        found["catch_up_cpu_s"] = round(self.life.usage.look()[0], 1)
        return {}

    def wait(self, true: Callable[[], Any], what: str) -> None:
        def true_and_living() -> bool:
            if not self.life.lives:
                raise Ended(f"it ended before {what}")
            return bool(true())

        until(true_and_living, what, PATIENCE_S)

    def _cpu(self) -> tuple[float, float]:
        broker = Stat.of(self.broker.pid)
        assert broker is not None, "the broker is gone"
        return self.life.usage.look()[0], broker.cpu_s


def figures(found: dict[str, Any], marks: dict[str, float], produced: array[float], seen: array[float]) -> None:
    """What the times of all records say about the spans between the marks."""
    if "first row" in marks:
        found["start_s"] = round(marks["first row"] - marks["launch"], 2)
    if "warm" in marks:
        found["first"] = spread(late_ms(produced, seen, marks["first row"], marks["warm"]))
        found["warm"] = spread(late_ms(produced, seen, marks["warm"], marks["end"]))
    if "kill" in marks:
        back = first_of(produced, seen, marks["kill"])
        found["kill_s"] = round(back - marks["kill"], 2)
        found["after"] = spread(late_ms(produced, seen, back, back + AFTER_S / 2))


def spread(late: list[float]) -> dict[str, float]:
    """The distribution, in ms."""
    parts = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {word: round(late[min(len(late) - 1, int(part * len(late)))], 1) for word, part in parts.items()}


# --- the whole


def lives(systems: list[System], chosen: argparse.Namespace) -> list[tuple[System, int, set[str]]]:
    """One round. Kills are at the lowest rate, at the end of a life that was measured if there is one."""
    kinds, low = set(chosen.only), min(chosen.rates)
    planned = []
    for rate in sorted(chosen.rates) if "steady" in kinds else [low]:
        for system in systems:
            now = kinds & system.kinds & ({"start", "steady", "kill"} if rate == low else {"start", "steady"})
            if now and (rate == low or "steady" in now):
                planned.append((system, rate, now))
    return planned + [(system, 0, {"catch-up"}) for system in systems if "catch-up" in kinds & system.kinds]


def prepare(bench: Bench, systems: list[System], rate: int) -> None:
    """Let each live once that leaves something which later lives find; nothing of it counts."""
    for system in systems:
        if not system.is_prepared():
            say(f"{system.name} runs until it has a class archive")
            found = bench.live(system, rate, set())
            if mismatch := tables.mismatch(found):
                raise RigFailed(f"{system.name} could not be prepared: {mismatch}")


def source() -> dict[str, str]:
    """Which fencepost this is."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = [shutil.which("git") or "git", *arguments]
        return subprocess.run(command, cwd=here, capture_output=True, text=True, check=False).stdout.strip()

    changed = " and what is not committed" if git("status", "--porcelain", ":/src", ":/java") else ""
    return {"commit": git("rev-parse", "--short", "HEAD") + changed, "src": git("rev-parse", "--short", "HEAD:src")}


def java_version() -> str:
    said = subprocess.run([java(), "-version"], capture_output=True, text=True, check=True).stderr
    found = re.search(r'version "([^"]+)"', said)
    return found[1] if found else "unknown"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="Measure fencepost beside its peers.")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rates", type=int, nargs="+", default=[1000, 10_000], help="records per second")
    parser.add_argument("--first", type=float, default=60, help="seconds of the first minute")
    parser.add_argument("--warm", type=float, default=60, help="seconds after those")
    parser.add_argument("--records", type=int, default=1_000_000, help="for catch-up")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    saves = "add to bench/results, and write the tables of docs/PERFORMANCE.md"
    parser.add_argument("--save", action=argparse.BooleanOptionalAction, default=True, help=saves)
    parser.add_argument("--tables", action="store_true", help="measure nothing, write the tables of what is saved")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    chosen = parse(arguments)
    if chosen.tables:
        tables.write(tables.newest())
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended, whoever ends us
    load, folder = os.getloadavg(), Path(tempfile.mkdtemp(prefix="fencepost-bench-"))
    found: list[dict[str, Any]] = []
    results: dict[str, Any] = {"began": now(), "command": " ".join(arguments), "lives": found}
    try:
        systems = [SYSTEMS[name] for name in chosen.systems]
        for system in systems:
            system.set_up(folder)
        fsync, version = fsync_ms(folder), java_version()
        results["facts"] = machine(version, fsync, load) | source()
        with Broker(folder / "kafka", heap_mb=1024, java_options=("-XX:+UseSerialGC",)) as broker:
            bench = Bench(broker, folder, chosen)
            prepare(bench, systems, min(chosen.rates))
            for number in range(chosen.rounds):
                for system, rate, kinds in lives(systems, chosen):
                    found.append(bench.live(system, rate, kinds))
                    say(f"round {number + 1}: {tables.line(found[-1])}")
                    results["facts"] = machine(version, fsync, load) | source()
                    if chosen.save:  # after each life: a long run may be ended
                        tables.write(tables.add(results))
    except RigFailed as error:
        say(str(error))
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(tables.text([results]))
    ours = {system.name for system in SYSTEMS.values() if system.ours}
    return int(any(tables.mismatch(each) for each in found if each["system"] in ours))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
