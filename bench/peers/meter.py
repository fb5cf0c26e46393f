"""What is the same for every system: who makes the records, who reads the counts, and who looks at the processes.

    feed    a process that produces records at a steady rate: number i has key i mod keys
    read    a process that reads committed counts, and notes when the count was seen that has record i in it
    Usage   CPU time and memory of a system, however many processes it is made of

Count c of key k has the records k, k + keys, … in it, c of them: so a row names the newest record in it, and nobody
has to read the input again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

PARTITIONS, SIZE = 4, 100
PATIENCE_S = 180
MARK = "FENCEPOST_BENCH_SYSTEM"
"""In the environment of all processes of a system."""


# --- what a reader saw


class Tally:
    """The counts that were seen, per key and per record."""

    def __init__(self, keys: int) -> None:
        self.counts = [0] * keys
        self.seen = array("d")
        """When record i was in a count, 0 if it was not."""
        self.newest = -1
        self.covered = 0
        """The sum of all counts."""
        self.repeated = 0
        """Rows that did not raise the count of their key: an epoch that was written twice."""

    def add(self, key: int, count: int, at: float) -> None:
        before, keys = self.counts[key], len(self.counts)
        if count <= before:
            self.repeated += 1
            return
        self.counts[key] = count
        self.covered += count - before
        newest = key + (count - 1) * keys
        if newest >= len(self.seen):
            self.seen.extend([0.0] * (newest + 1 - len(self.seen)))
        for number in range(key + before * keys, newest + 1, keys):
            self.seen[number] = at
        self.newest = max(self.newest, newest)

    def wrong(self, produced: int) -> list[int]:
        """Keys whose count is not the number of their records."""
        keys = len(self.counts)
        return [key for key, count in enumerate(self.counts) if count != len(range(key, produced, keys))]


def late_ms(produced: array[float], seen: array[float], since: float, until: float) -> list[float]:
    """How long after it was produced each record of a time was seen, sorted; one that never was is an error."""
    found = []
    for number, at in enumerate(produced):
        if since <= at < until:
            if number >= len(seen) or not seen[number]:
                raise LookupError(f"record {number} was never seen")
            found.append((seen[number] - at) * 1000)
    return sorted(found)


def first_of(produced: array[float], seen: array[float], since: float) -> float:
    """When the first row was seen with a record in it that was produced later than this."""
    return min(at for made, at in zip(produced, seen, strict=False) if made > since and at)


# --- processes of their own, so that nobody waits for anybody


def feed(servers: str, topic: str, *, keys: int, rate: int, records: int, log: str) -> None:
    """Produce until SIGTERM, or as many records as were asked for as fast as they go; note when each was made."""
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1, "queue.buffering.max.messages": 200_000})
    payload, produced = b"x" * SIZE, array("d")
    names = [name(key) for key in range(keys)]
    began = time.time()
    print(json.dumps({"at": began}), flush=True)
    while not stop and (not records or len(produced) < records):
        if records:
            due = min(len(produced) + 10_000, records)
            producer.flush()
        else:
            due = int((time.time() - began) * rate)
        for number in range(len(produced), due):
            key = number % keys
            now = time.time()
            producer.produce(topic, key=names[key], value=payload, partition=key % PARTITIONS)
            produced.append(now)
        producer.poll(0)
        if not records:
            time.sleep(0.002)
    producer.flush()
    with open(log, "wb") as file:
        produced.tofile(file)


def read(servers: str, topic: str, *, keys: int, log: str) -> None:
    """Read committed counts until SIGTERM; tell on stdout how far they are."""
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    settings = {"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False, "fetch.wait.max.ms": 5}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    tally, numbers, rows, told = Tally(keys), {name(key): key for key in range(keys)}, 0, 0.0
    while not stop:
        messages = consumer.consume(5000, 0.01)
        now = time.time()
        for message in messages:
            if message.error() is None:
                tally.add(numbers[message.key()], int(message.value()), now)
                rows += 1
        if rows and now - told > 0.05:
            told = now
            print(json.dumps({"at": now, "newest": tally.newest, "covered": tally.covered, "rows": rows}), flush=True)
    with open(log, "wb") as file:
        tally.seen.tofile(file)
    Path(f"{log}.json").write_text(json.dumps({"counts": tally.counts, "repeated": tally.repeated, "rows": rows}))


def name(key: int) -> bytes:
    return b"k%05d" % key


class Child:
    """One of the two, and the last that it told."""

    def __init__(self, what: str, servers: str, topic: str, *, log: Path, **numbers: int) -> None:
        self.log = log
        self.last: dict[str, Any] = {}
        self.first: dict[str, Any] = {}
        command = [sys.executable, "-m", "bench.peers.meter", what, servers, topic, str(log), json.dumps(numbers)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.last = json.loads(line)
            self.first = self.first or self.last

    def finish(self) -> array[float]:
        """Let it end, and get the time of each record."""
        self.end()
        times: array[float] = array("d")
        times.frombytes(self.log.read_bytes())
        return times

    def verdict(self, produced: int) -> dict[str, int]:
        """Of a reader that has ended: how right is what it saw?"""
        found = json.loads(Path(f"{self.log}.json").read_text())
        tally = Tally(len(found["counts"]))
        tally.counts = found["counts"]
        return {"rows": found["rows"], "wrong_keys": len(tally.wrong(produced)), "repeated": found["repeated"]}

    def wait(self) -> None:
        """Until it ends by itself."""
        self._process.wait(PATIENCE_S)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait(30)
        self._thread.join()

    def close(self) -> None:
        """Whatever happened."""
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def until(true: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not in {patience_s:.0f} s")
        time.sleep(0.01)


# --- processes of a system


class Usage:
    """CPU seconds and memory of every process with our mark, looked at once a second.

    A process's time includes that of its children which have ended; of one that ended with its parent, the last look.
    """

    def __init__(self, mark: str) -> None:
        self._mark = f"{MARK}={mark}".encode()
        self._found: dict[tuple[int, int], Stat] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(1):
            self.look()

    def look(self) -> tuple[float, float]:
        """CPU seconds so far, and MB resident now."""
        with self._lock:
            living = {}
            for pid in processes():
                if (now := Stat.of(pid)) and ((pid, now.started) in self._found or self._is_marked(pid)):
                    living[pid, now.started] = now
            pids = {pid for pid, _ in living}
            ended = {each: last for each, last in self._found.items() if each not in living and last.parent not in pids}
            self._found = living | ended
            return sum(each.cpu_s for each in self._found.values()), sum(each.mb for each in living.values())

    def pids(self) -> list[int]:
        """Those that live."""
        self.look()
        return [pid for pid, last in self._found if (now := Stat.of(pid)) and now.started == last]

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _is_marked(self, pid: int) -> bool:
        try:
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False


class Stat(NamedTuple):
    """A process as /proc shows it."""

    started: int
    cpu_s: float
    mb: float
    parent: int

    @classmethod
    def of(cls, pid: int) -> Stat | None:
        """None if it is gone or dead."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        if fields[0] == "Z":
            return None
        cpu = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        return cls(int(fields[19]), cpu, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6, int(fields[1]))


def processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def others_s() -> float:
    """CPU seconds that this machine has spent on anything but us and what we started, since it runs."""
    user, nice, system, _, _, irq, softirq, steal, *_ = map(int, Path("/proc/stat").read_text().split()[1:11])
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return busy - sum(found.cpu_s for pid in with_children(os.getpid()) if (found := Stat.of(pid)))


def with_children(pid: int) -> list[int]:
    """A process and all that it started, children last."""
    parents = {each: found.parent for each in processes() if (found := Stat.of(each))}
    family = [pid]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family


if __name__ == "__main__":
    run: Callable[..., None] = {"feed": feed, "read": read}[sys.argv[1]]
    run(*sys.argv[2:4], log=sys.argv[4], **json.loads(sys.argv[5]))
