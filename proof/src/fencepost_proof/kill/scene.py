"""The job of a workload as a process: started, killed, stopped, woken, and its results judged.

Never reads the job's results through fencepost: `verdict` runs the checker by path, in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fencepost import faults
from fencepost.errors import TRACE
from fencepost.spark.spark_session import JAR
from fencepost_proof import checkers
from fencepost_proof.workloads.contract import Workload

PATIENCE_S = 300
KILLED = -signal.SIGKILL
MAKE = "-XX:ArchiveClassesAtExit"
"""The option by which a JVM writes an archive of its classes."""


class SceneFailed(Exception):
    """A process did something that no fault explains."""


@dataclass
class Scene:
    """One workload, and every start of its job."""

    workload: Workload
    bridge: str = "jvm"
    archive: Path | None = None
    """Loaded classes of an earlier start, see `class_archive`."""
    overlap: bool = False
    """Is an epoch committed beside the next one's tasks?"""
    starts: int = 0
    _said: int = 0
    """How long the log was before the last start."""

    @property
    def folder(self) -> Path:
        """Where everything is."""
        return self.workload.folder

    @property
    def log(self) -> Path:
        """What every start of the job said."""
        return self.folder / "job.log"

    def feed(self, epochs: int) -> int:
        """Let input arrive; return the id of the first row."""
        return self.workload.feed(epochs)

    def start(self, fault: str = "", log: Path | None = None, *more: str) -> subprocess.Popen[bytes]:
        """Start the job in a session of its own, so that a kill can take Python and its JVM together."""
        self.starts += 1
        environment = {**os.environ, faults.ARM: fault, TRACE: "1"}  # with Spark's own words
        environment["FENCEPOST_OVERLAP"] = "yes" if self.overlap else "no"
        environment.pop(faults.LOG, None)
        if any(MAKE in option for option in more):
            environment.pop("SPARK_SUBMIT_OPTS", None)  # a JVM that uses an archive makes none
        if log is not None:
            environment[faults.LOG] = str(log)
        command = [sys.executable, "-m", self.workload.job, str(self.folder), *self.workload.job_arguments(), *more]
        if "--plain" not in more:
            command += ["--bridge", self.bridge]
        if self.archive is not None:
            command.append(f"--java=-XX:SharedArchiveFile={self.archive}")
        with self.log.open("ab") as out:
            self._said = out.tell()
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
            raise SceneFailed(f"The job did not end in {PATIENCE_S} s; see {self.log}") from None
        finally:
            end_group(job)

    def said(self) -> str:
        """What the log says since the last start."""
        with self.log.open("rb") as log:
            log.seek(self._said)
            return log.read().decode(errors="replace")

    def points(self, log: Path) -> Counter[str]:
        """How often each crash point was passed."""
        return Counter(log.read_text().split())

    def records(self) -> list[dict[str, Any]]:
        """The ledger, as anybody can read it."""
        files = sorted(self.workload.checkpoint.glob("fencepost/*/ledger/*.json"))
        return [json.loads(file.read_text()) for file in files]

    def writers(self) -> list[int]:
        """The drivers that took over so far."""
        return [record["number"] for record in self.records() if record["kind"] == "writer"]

    def verdict(self, *places: str) -> dict[str, dict[str, int]]:
        """What the independent checker finds in the targets."""
        checker = Path(checkers.__file__).with_name(self.workload.checker)
        command = [sys.executable, "-I", str(checker), *self.workload.checker_arguments(*places)]
        found = subprocess.run(command, check=False, capture_output=True, text=True)
        if found.returncode not in (0, 1) or not found.stdout:
            raise SceneFailed(f"The checker failed: {found.stderr}")
        verdicts: dict[str, dict[str, int]] = json.loads(found.stdout)["places"]
        assert (found.returncode == 1) == any(sum(each.values()) for each in verdicts.values())
        return {place.partition(":")[0]: each for place, each in verdicts.items()}


def archive_file(folder: Path, name: str, bridge: str = "jvm") -> Path:
    """Where `class_archive` keeps it."""
    about = f"{version('pyspark')} {JAR} {JAR.stat().st_mtime_ns}".encode()  # the JVM looks at the jar's age, too
    made = hashlib.sha256(JAR.read_bytes() + about).hexdigest()[:12]
    return folder.absolute() / f"classes-{name}-{bridge}-{made}.jsa"


def class_archive(folder: Path, name: str, make: Callable[[Path], Workload], bridge: str) -> Path:
    """Run the job once and let its JVM write down the classes it loaded; starts that share them take half the time.

    An archive that does not fit (another jar, another Java) is ignored by the JVM, so the worst is a slow start.
    """
    archive = archive_file(folder, name, bridge)
    if not archive.exists():
        for old in folder.glob(f"classes-{name}-{bridge}-*.jsa"):
            old.unlink()
        with tempfile.TemporaryDirectory(dir=folder) as place:
            scene = Scene(make(Path(place) / "scene"), bridge=bridge)
            scene.feed(2)
            temp = Path(place) / "classes.jsa"
            job = scene.start("", None, f"--java={MAKE}={temp}")
            try:
                if job.wait(PATIENCE_S) != 0:
                    raise SceneFailed(f"The job failed:\n{scene.said()}")
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
