"""The job on its disks: cut at a named point or at a random moment, with the process's death or without it, and started
again from what the disks kept. Never restarts from anything but the disks.
"""

from __future__ import annotations

import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fencepost_proof.kill.scene import PATIENCE_S, Scene, SceneFailed, end_group, is_stopped
from fencepost_proof.power.disk import Disk, DiskFailed
from fencepost_proof.workloads.power import PowerWorkload
from fencepost_proof.workloads.process import AGAIN

READY = "ready"


class Resident:
    """One process that runs the job whenever it is asked to; see `workloads/power_job.py`."""

    def __init__(self, scene: Scene) -> None:
        command = [sys.executable, "-m", scene.workload.job, *scene.workload.job_arguments()]
        if scene.archive is not None:
            command.append(f"--java=-XX:SharedArchiveFile={scene.archive}")
        with scene.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        self._selector = selectors.DefaultSelector()
        assert self.process.stdout is not None
        self._selector.register(self.process.stdout, selectors.EVENT_READ)
        self._text = b""
        if self.answer(PATIENCE_S) != READY:
            self.end()
            raise SceneFailed(f"The job's process did not start; see {scene.log}")

    def ask(self, order: str) -> None:
        """Run the job once."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n".encode())
        self.process.stdin.flush()

    def answer(self, seconds: float) -> str | None:
        """`<exit code> <error code>`; None if there is none yet, and "" if the process is gone."""
        deadline = time.monotonic() + seconds
        while True:
            for line in self._text.split(b"\n")[:-1]:
                self._text = self._text.partition(b"\n")[2]
                if line.startswith(b"answer "):
                    return line.removeprefix(b"answer ").decode()
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                return None
            assert self.process.stdout is not None
            found = os.read(self.process.stdout.fileno(), 4096)
            if not found:
                return ""
            self._text += found

    def stopped_or_answered(self) -> str | None:
        """Wait until the process stopped itself (None) or the run is over (its answer)."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if (found := self.answer(0.005)) is not None:
                return found
            if is_stopped(self.process):
                return None
        raise SceneFailed("The job neither ended nor got to its point.")

    def wake(self) -> None:
        """After a stop."""
        os.kill(self.process.pid, signal.SIGCONT)

    def end(self) -> None:
        """SIGKILL, with its JVM."""
        self._selector.close()
        end_group(self.process)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@dataclass
class Stage(Scene):
    """One workload on its disks."""

    workload: PowerWorkload
    disks: Sequence[Disk] = ()
    ends: Counter[str] = field(default_factory=Counter)
    """How runs ended whose disk was cut under them."""
    resident: Resident | None = None

    def run(self, fault: str = "", log: Path | None = None, *more: str) -> int:
        """Run the job to its end, with no cut."""
        job = self._resident()
        job.ask(self.workload.order(fault))
        found = job.answer(PATIENCE_S)
        if not found:
            raise SceneFailed(f"The job did not end; see {self.log}")
        return int(found.split()[0])

    def cut(self, when: str | float, cut: Sequence[Disk], *, dies: bool) -> bool:
        """Let the job run, cut these disks at `point=stop@visit` or after so many seconds; False if it was through
        before. Then the process dies too, or lives to see its disks fail. The disks come back at the end.
        """
        job = self._resident()
        job.ask(self.workload.order(when if isinstance(when, str) else ""))
        found = job.stopped_or_answered() if isinstance(when, str) else job.answer(when)
        if found is not None:
            if found.split()[:1] != ["0"]:
                raise SceneFailed(f"The job failed without a cut ({found or 'the process ended'}); see {self.log}")
            return False
        for disk in cut:
            disk.cut()
        if dies:
            self.end()
            self.ends["was killed with the cut"] += 1
        else:
            job.wake()
            self._await_end(job)
        self._power_on(cut)
        return True

    def cut_after_the_end(self) -> None:
        """Cut every disk while nothing runs, and end the process: what it called done must be there."""
        for disk in self.disks:
            disk.cut()
        self.end()
        self._power_on(self.disks)

    def _await_end(self, job: Resident) -> None:
        found = job.answer(PATIENCE_S)
        if found is None:
            raise SceneFailed(f"The job did not notice for {PATIENCE_S} s that its disk is gone; see {self.log}")
        code, _, why = found.partition(" ")
        self.ends["went on to its end" if code == "0" else f"said {why}"] += 1
        if code not in ("0", str(AGAIN), "1"):
            raise SceneFailed(f"The job ended with {found or 'its process'} when its disk was cut; see {self.log}")

    def _power_on(self, cut: Sequence[Disk]) -> None:
        for disk in cut:
            try:
                disk.remount()
            except DiskFailed:
                self.ends["held a file open, and was killed"] += 1
                self.end()
                disk.remount()

    def _resident(self) -> Resident:
        if self.resident is None:
            self.starts += 1
            self.resident = Resident(self)
        return self.resident

    def end(self) -> None:
        """End the process, if there is one."""
        if self.resident is not None:
            self.resident.end()
            self.resident = None


def moment(chance: random.Random, seconds: float) -> float:
    """Somewhere in a run that takes so long."""
    return chance.uniform(0.02, seconds)
