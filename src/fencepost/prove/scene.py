"""One folder in which the real job lives: its input arrives, its process is started, killed, stopped, woken.

Never reads the job's results through fencepost: `verdict` runs the checker by path, in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fencepost import faults
from fencepost.spark.session import JAR

PATIENCE_S = 120
ROWS_PER_FILE = 12
KEYS = tuple("abcde")
KILLED = -signal.SIGKILL


class SceneFailed(Exception):
    """A process did something that no fault explains."""


@dataclass
class Scene:
    """The job's input, checkpoint and targets."""

    folder: Path
    bridge: str = "jvm"
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    archive: Path | None = None
    """Loaded classes of an earlier start, see `class_archive`."""
    files: int = 0
    starts: int = 0

    def __post_init__(self) -> None:
        """An empty folder for the input."""
        self.input.mkdir(parents=True)

    @property
    def input(self) -> Path:
        """Where input files arrive."""
        return self.folder / "in"

    def feed(self, count: int) -> int:
        """Let files arrive, one an epoch; return the id of the first row."""
        first = self.files * ROWS_PER_FILE
        for _ in range(count):
            ids = range(self.files * ROWS_PER_FILE, (self.files + 1) * ROWS_PER_FILE)
            rows = [{"id": i, "key": self.chance.choice(KEYS), "value": self.chance.randrange(1000)} for i in ids]
            temp = self.input / f".{self.files:05}"
            temp.write_text("".join(json.dumps(row) + "\n" for row in rows))
            at = 1_700_000_000 + self.files  # Spark takes files by age
            os.utime(temp, (at, at))
            temp.rename(self.input / f"{self.files:05}.json")
            self.files += 1
        return first

    def start(self, fault: str = "", log: Path | None = None, *more: str) -> subprocess.Popen[bytes]:
        """Start the job in a session of its own, so that a kill can take Python and its JVM together."""
        self.starts += 1
        environment = {**os.environ, faults.ARM: fault}
        environment.pop(faults.LOG, None)
        if log is not None:
            environment[faults.LOG] = str(log)
        command = [sys.executable, "-m", "fencepost.prove.spark_job", str(self.folder), *more]
        if "--plain" not in more:
            command += ["--bridge", self.bridge]
        if self.archive is not None:
            command.append(f"--java=-XX:SharedArchiveFile={self.archive}")
        with (self.folder / "job.log").open("ab") as out:
            out.write(f"--- start {self.starts}, fault {fault or 'none'} {' '.join(more)}\n".encode())
            out.flush()
            return subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)

    def run(self, fault: str = "", log: Path | None = None, *more: str) -> int:
        """Run the job to its end: an exit code, or minus the signal that killed it."""
        return self.wait(self.start(fault, log, *more))

    def wait(self, job: subprocess.Popen[bytes]) -> int:
        """The end of a process and of everything that it started."""
        try:
            return job.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise SceneFailed(f"The job did not end in {PATIENCE_S} s; see {self.folder / 'job.log'}") from None
        finally:
            end_group(job)

    def points(self, log: Path) -> Counter[str]:
        """How often each crash point was passed."""
        return Counter(log.read_text().split())

    def records(self) -> list[dict[str, Any]]:
        """The ledger, as anybody can read it."""
        files = sorted((self.folder / "checkpoint").glob("fencepost/*/ledger/*.json"))
        return [json.loads(file.read_text()) for file in files]

    def writers(self) -> list[int]:
        """The drivers that took over so far."""
        return [record["number"] for record in self.records() if record["kind"] == "writer"]

    def epoch(self) -> int:
        """The epoch that was running, or ran last, by Spark's own log."""
        names = [path.name for path in (self.folder / "checkpoint" / "offsets").glob("[0-9]*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def verdict(self, *places: str) -> dict[str, dict[str, int]]:
        """What the independent checker finds in the targets."""
        checker = Path(__file__).with_name("recount.py")
        places = places or (f"totals:{self.folder / 'totals.db'}", f"rows:{self.folder / 'rows'}")
        command = [sys.executable, "-I", str(checker), str(self.input), *places]
        found = subprocess.run(command, check=False, capture_output=True, text=True)
        if found.returncode not in (0, 1) or not found.stdout:
            raise SceneFailed(f"The checker failed: {found.stderr}")
        verdicts: dict[str, dict[str, int]] = json.loads(found.stdout)["places"]
        assert (found.returncode == 1) == any(sum(each.values()) for each in verdicts.values())
        return {place.partition(":")[0]: each for place, each in verdicts.items()}


def class_archive(folder: Path, bridge: str) -> Path:
    """Run the job once and let its JVM write down the classes it loaded; starts that share them take half the time.

    An archive that does not fit (another jar, another Java) is ignored by the JVM, so the worst is a slow start.
    """
    made = hashlib.sha256(JAR.read_bytes() + version("pyspark").encode() + bridge.encode()).hexdigest()[:12]
    archive = folder.absolute() / f"classes-{made}.jsa"
    if not archive.exists():
        with tempfile.TemporaryDirectory(dir=folder) as place:
            scene = Scene(Path(place) / "scene", bridge=bridge)
            scene.feed(2)
            temp = Path(place) / "classes.jsa"
            job = scene.start("", None, f"--java=-XX:ArchiveClassesAtExit={temp}")
            try:
                if job.wait(PATIENCE_S) != 0:
                    raise SceneFailed(f"The job failed:\n{(scene.folder / 'job.log').read_text()}")
                deadline = time.monotonic() + PATIENCE_S
                while group_lives(job) and time.monotonic() < deadline:
                    time.sleep(0.05)  # the JVM writes the file when Python has left
            finally:
                end_group(job)
            temp.rename(archive)
    return archive


def group_lives(job: subprocess.Popen[bytes]) -> bool:
    """Is any process left of those that this one started?"""
    try:
        os.killpg(job.pid, 0)
    except ProcessLookupError:
        return False
    return True


def end_group(job: subprocess.Popen[bytes]) -> None:
    """End a process of ours with its JVM: a killed driver leaves it for a second or two."""
    try:
        os.killpg(job.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        if job.poll() is None:
            job.wait()


def until(job: subprocess.Popen[bytes], true: Callable[[], bool], what: str) -> None:
    """Wait for something that a living job does."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if job.poll() is not None or time.monotonic() > deadline:
            end_group(job)
            raise SceneFailed(f"The job ended, or slept, before {what}.")
        time.sleep(0.02)


def is_stopped(job: subprocess.Popen[bytes]) -> bool:
    """Does the process sleep by SIGSTOP?"""
    state = Path(f"/proc/{job.pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"
