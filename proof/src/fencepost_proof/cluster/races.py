"""Two drivers on two hosts race for one checkpoint on a store, again and again:

    python -m fencepost_proof.cluster.races 100 [--store hdfs] [--through client] [--seed 7]

Half of the races are of starts: both recover at once, then both run. In the other half one driver runs, falls asleep
at any moment (SIGSTOP), the other takes over and finishes; then every file of the store is listed with its stamp, the
first wakes, ends, and all is listed again. Of each race: one driver ended in order, the other was fenced, every epoch
was decided once, by the driver that the checkpoint belonged to then, every row is in the sink once, and what woke
changed nothing; rows that it had still to stage, in a folder of its own that no record names, are gone with the next
start. Exit 1 if one of that is not so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fencepost_proof.cluster import stores
from fencepost_proof.cluster.racer import ROWS
from fencepost_proof.cluster.stores import Place
from fencepost_proof.kill.report import new_console
from fencepost_proof.rig.jars import RigFailed
from fencepost_proof.rig.standalone import apart

EPOCHS = 3
TEMP = re.compile(r"(.*/)?\.[^/]+\.tmp")
"""On HDFS, a file before its rename."""
WAYS = {"client": "the client of the store", "hadoop": "Hadoop, in two JVMs"}


class RaceFailed(Exception):
    """A race had no winner, or two."""


class Host:
    """A process with a host name of its own, that is told to race."""

    def __init__(self, name: str, folder: Path, place: Place, settings: Path | None) -> None:
        folder.mkdir(parents=True)
        command = [*apart(name), sys.executable, "-m", "fencepost_proof.cluster.racer"]
        self._log = (folder / "racer.log").open("wb")
        self._process = subprocess.Popen(
            [*command, *([str(settings)] if settings else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=folder,
            env={**os.environ, **place.environment, "FENCEPOST_HOME": str(folder / "home")},
            start_new_session=True,
        )

    def tell(self, **order: Any) -> None:
        """One order."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self) -> Mapping[str, Any]:
        """The answer to it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = Path(self._log.name).read_text(errors="replace")
            raise RaceFailed(f"A racer died:\n{said[-2000:]}")
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def send(self, number: signal.Signals) -> None:
        """To all its processes."""
        os.killpg(self._process.pid, number)

    def end(self) -> None:
        """Whatever it does."""
        self.send(signal.SIGKILL)
        self._process.communicate()
        self._log.close()


@dataclass
class Races:
    """Two hosts and a store."""

    place: Place
    hosts: tuple[Host, Host]
    folder: Path
    chance: random.Random
    longest_s: float = 1.0
    """How long a driver alone takes from its recovery to its end."""

    def run(self, number: int) -> str:
        """One race; what it was."""
        name = f"race-{number}"
        asleep = number % 2 == 1
        how = self._asleep(name) if asleep else self._at_once(name)
        self._check(name)
        return how

    def _at_once(self, name: str) -> str:
        """Both start, then both run."""
        self._tell(name, *self.chance.sample(self.hosts, 2))
        answers = [host.hear() for host in self.hosts]
        started = [host for host, answer in zip(self.hosts, answers, strict=True) if "writer" in answer]
        ended = [answer["ended"] for answer in answers if "ended" in answer]
        for host in self.chance.sample(started, len(started)):
            host.tell(do="run", epochs=EPOCHS, pause_s=self.chance.uniform(0, 0.05))
        ended += [host.hear()["ended"] for host in started]
        again = ""
        if sorted(ended) == ["fenced", "overtaken"]:  # its supervisor would start it again
            again = "; the other found an epoch begun, and was started again"
            [host] = [host for host, how in zip(started, ended[-len(started) :], strict=True) if how == "overtaken"]
            self._tell(name, host)
            host.hear()
            host.tell(do="run", epochs=EPOCHS, pause_s=0)
            ended = ["fenced", host.hear()["ended"]]
        if sorted(ended) != ["done", "fenced"]:
            raise RaceFailed(f"{name}: two that started at once ended with {ended}")
        return f"at once: {'both recovered' if len(started) == 2 else 'one recovered'}, one was fenced{again}"

    def _asleep(self, name: str) -> str:
        """One sleeps past the other's takeover; when it wakes, it must change nothing."""
        first, second = self.chance.sample(self.hosts, 2)
        self._tell(name, first)
        writer = first.hear()["writer"]
        began = time.monotonic()
        first.tell(do="run", epochs=EPOCHS, pause_s=0)
        time.sleep(self.chance.uniform(0, self.longest_s))
        first.send(signal.SIGSTOP)
        slept = time.monotonic() - began
        self._tell(name, second)
        second.hear()
        second.tell(do="run", epochs=EPOCHS, pause_s=0)
        if (ended := second.hear()) != {"ended": "done"}:
            raise RaceFailed(f"{name}: the one that took over ended with {ended}")
        before, rows = self.place.stamps(name), self._rows(name)
        first.send(signal.SIGCONT)
        ended = first.hear()
        after = self.place.stamps(name)
        if ended["ended"] == "done":
            self.longest_s *= 0.9  # it was through before it slept
            return "asleep: too late, it was through before"
        self.longest_s *= 1.03
        if ended["ended"] != "fenced":
            raise RaceFailed(f"{name}: the one that slept after {slept:.3f} s ended with {ended}")
        named = {path for path in before if path in after or not TEMP.fullmatch(path)}  # it may take back its own
        changed = sorted(path for path in named | after.keys() if before.get(path) != after.get(path))
        litter = [path for path in changed if path not in before and f"/staged/{writer}/" in path]
        if changed != litter or rows != self._rows(name):
            raise RaceFailed(f"{name}: the one that woke, asleep since {slept:.3f} s, changed {changed}")
        self._check(name)
        if litter:
            self._check_swept(name, second, litter)
        left = "left staged rows that no record names, which the next start swept" if litter else "changed nothing"
        return f"asleep: it was fenced by {ended.get('by', 'the ledger')}, and {left}"

    def _check_swept(self, name: str, host: Host, litter: list[str]) -> None:
        """Rows that were staged by a driver that slept are gone with the next start."""
        self._tell(name, host)
        host.hear()
        host.tell(do="run", epochs=EPOCHS, pause_s=0)
        host.hear()
        if left := self.place.stamps(name).keys() & set(litter):
            raise RaceFailed(f"{name}: a later start did not sweep {left}")

    def _tell(self, name: str, *hosts: Host) -> None:
        for host in hosts:
            told = {"checkpoint": f"{self.place.url}/{name}", "target": str(self.folder / name)}
            host.tell(do="recover", **told)

    def _rows(self, name: str) -> list[int]:
        files = (file for file in (self.folder / name).glob("*.json") if not file.name.startswith((".", "_")))
        return sorted(json.loads(line)["id"] for file in files for line in file.read_text().splitlines())

    def _check(self, name: str) -> None:
        """The ledger, as anybody can read it, and the files."""
        files = [file for file in self.place.names(f"{name}/fencepost") if "/ledger/" in file]
        records = [json.loads(self.place.read(f"{name}/fencepost/{file}")) for file in sorted(files)]
        owner = 0
        decided: Counter[int] = Counter()
        for record in records:
            owner = record["number"] if record["kind"] == "writer" else owner
            if record["kind"] == "decision":
                decided[record["body"]["epoch"]] += 1
            if record["kind"] != "lineage" and record["writer"] != owner:
                raise RaceFailed(f"{name}: record {record['number']} is not by the driver that it belonged to then")
        if decided != Counter(range(EPOCHS)):
            raise RaceFailed(f"{name}: the epochs were decided {dict(decided)} times")
        if self._rows(name) != list(range(EPOCHS * ROWS)):
            raise RaceFailed(f"{name}: the rows are {self._rows(name)}")


@contextmanager
def two_hosts(place: Place, through: str, folder: Path) -> Iterator[tuple[Host, Host]]:
    """Two processes, with a JVM each if they go through Hadoop."""
    settings = None
    if through == "hadoop":
        settings = folder / "settings.json"
        jars = {"spark.jars": ",".join(map(str, place.jars))} if place.jars else {}
        quick = {"spark.ui.enabled": "false", "spark.master": "local[1]", "spark.driver.memory": "512m"}
        settings.write_text(json.dumps({**place.settings, **jars, **quick}))
    with ExitStack() as stack:
        hosts = []
        for name in ("one", "two"):
            host = Host(f"{name}.test", folder / name, place, settings)
            stack.callback(host.end)
            hosts.append(host)
        for host in hosts:
            host.hear()
        yield hosts[0], hosts[1]


def race(store: str, through: str, count: int, chosen: argparse.Namespace, console: Console) -> Counter[str]:
    """All races on one store by one way."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="fencepost-races-") as temp, stores.started(store, Path(temp)) as place:
        folder = Path(temp)
        with two_hosts(place, through, folder) as hosts:
            races = Races(place, hosts, folder, random.Random(f"{chosen.seed} {store} {through}"))
            began, number = time.monotonic(), 0
            while sum(found[how] for how in found if "too late" not in how) < count:
                found[races.run(number)] += 1
                number += 1
            took = time.monotonic() - began
    console.print(f"{store}, through {WAYS[through]}: {count} races in {took:.0f} s", highlight=False)
    for how, times in sorted(found.items()):
        console.print(f"{times:5} {how}", highlight=False)
    return found


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Let two drivers race for one checkpoint.")
    parser.add_argument("races", type=int, nargs="?", default=100, help="for each store and way")
    parser.add_argument("--store", choices=["hdfs", "s3"], help="by default both")
    parser.add_argument("--through", choices=WAYS, help="by default both")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    chosen = parser.parse_args(arguments)
    console = new_console()
    console.print(f"seed {chosen.seed}", highlight=False)
    try:
        for store in [chosen.store] if chosen.store else ["hdfs", "s3"]:
            for through in [chosen.through] if chosen.through else WAYS:
                race(store, through, chosen.races, chosen, console)
    except (RaceFailed, RigFailed) as error:
        console.print(f"[red]{error}[/red]", highlight=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
