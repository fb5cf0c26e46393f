"""Runs the stand-in job in child processes that are really killed, stopped and woken."""

from __future__ import annotations

import base64
import faulthandler
import gc
import importlib
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fencepost_proof.checkers import exactly
from fencepost_proof.stand_in import StandIn
from fencepost_proof.targets import TARGETS

from fencepost import faults
from fencepost.errors import Fenced, FencepostError
from fencepost.guarantee import Guarantee

NUMBERS = tuple(range(1, 24, 2))
PER_EPOCH = 4
FENCED = 3
FAILED = 4
MODULES = "modules"
"""Where a child that came to its end says what it imported."""
PATIENCE_S = 120
"""More than the product's own: a child that waits for a slow server ends by itself, and says why."""


@dataclass(frozen=True)
class Scene:
    """A checkpoint and its targets in one folder."""

    folder: Path
    targets: tuple[str, ...]
    keep: int = 100
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    numbers: tuple[int, ...] = NUMBERS
    overlap: bool = False

    def job(self) -> StandIn:
        """A fresh job object, as a new process would make it."""
        sinks = [TARGETS[name].sink(self.folder) for name in self.targets]
        return StandIn(
            checkpoint=self.folder / "checkpoint",
            numbers=self.numbers,
            per_epoch=PER_EPOCH,
            sinks={sink.name: sink for sink in sinks},
            guarantee=self.guarantee,
            keep=self.keep,
            overlap=self.overlap,
        )

    def start(self, fault: str = "", log: Path | None = None) -> int:
        """Run the job in a child; return its pid. A fork, not a new interpreter: imports are paid once."""
        if any("delta" in name for name in self.targets) and _has_tokio():
            return self._start_afresh(fault, log)
        pid = os.fork()
        if not pid:
            self._run_here(fault, log)
        return pid

    def _start_afresh(self, fault: str, log: Path | None) -> int:
        """Threads of Delta's library, which another test of this process has used, do not survive a fork."""
        told = base64.b64encode(pickle.dumps((self, fault, log))).decode()
        program = "import base64, pickle, sys; one, *rest = pickle.loads(base64.b64decode(sys.argv[1]))"
        program += "; one._run_here(*rest)"
        where = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        return os.posix_spawn(sys.executable, [sys.executable, "-c", program, told], where)

    def _run_here(self, fault: str, log: Path | None) -> NoReturn:
        gc.freeze()  # the parent's clients: their threads are not here, so to collect one would wait for ever
        faulthandler.register(signal.SIGUSR1)
        code = FAILED
        try:
            environment = {faults.ARM: fault}
            if log is not None:
                environment[faults.LOG] = str(log)
            faults.arm(environment)
            self.job().run()
            code = 0
            (self.folder / MODULES).write_text("\n".join(sys.modules))
        except Fenced:
            code = FENCED
        except FencepostError as error:
            (self.folder / "error").write_text(str(error))
        except BaseException:  # noqa: BLE001 - the parent reads it, the child must end
            (self.folder / "error").write_text(traceback.format_exc())
        finally:
            os._exit(code)

    def run(self, fault: str = "", log: Path | None = None) -> int:
        """Run the job to its end: an exit code, or minus the signal that killed it."""
        ended = wait(self.start(fault, log))
        if ended == 0:
            _import_as(self.folder / MODULES)
        return ended

    def places(self) -> list[str]:
        """For the checker."""
        return [TARGETS[name].place(self.folder) for name in self.targets]

    def verdict(self) -> dict[str, dict[str, int]]:
        """What readers of every target see, against the source."""
        wanted = exactly.expected(list(self.numbers))
        return {place: exactly.compare(wanted, exactly.seen(place)) for place in self.places()}

    def torn(self) -> dict[str, list[int]]:
        """Tables whose versions are not the epochs, each whole and once: how many rows each version has."""
        wanted = exactly.expected(list(self.numbers))
        ends = range(PER_EPOCH, len(wanted) + PER_EPOCH, PER_EPOCH)
        epochs = [wanted[:end] for end in ends]
        found = {place: exactly.versions(place) for place in self.places()}
        return {
            place: [len(rows) for rows in versions]
            for place, versions in found.items()
            if versions is not None and versions != epochs
        }

    def is_exact(self) -> bool:
        """Every record once in every target. A broker says that it committed before its readers see all of it."""
        if self.torn():
            return False
        until = time.monotonic() + exactly.MARKERS_S
        while wrong := {place: found for place, found in self.verdict().items() if any(found.values())}:
            is_late = all(place.startswith("kafka:") and found["lost"] for place, found in wrong.items())
            if not is_late or time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def records(self) -> list[Path]:
        """The files of the ledger."""
        return sorted((self.folder / "checkpoint").glob("fencepost/*/ledger/*.json"))

    def writers(self) -> int:
        """How many drivers took over so far."""
        return sum('"kind":"writer"' in path.read_text() for path in self.records())

    def leftovers(self) -> list[str]:
        """Staged files and open transactions after a clean end."""
        patterns = ("checkpoint/fencepost/*/staged/*/*", "*/open/*", "*/_fencepost/staged/*")
        return [str(path) for pattern in patterns for path in self.folder.glob(pattern)]


def _import_as(modules: Path) -> None:
    """Import what a child did while it ran, so that the next ones need not: that is half of a small job's time."""
    for name in modules.read_text().splitlines():
        if name not in sys.modules:
            with suppress(ImportError):  # other names of modules that have been imported by then
                importlib.import_module(name)


def _has_tokio() -> bool:
    """Does this process have threads of that library?"""
    names = (path.read_text() for path in Path("/proc/self/task").glob("*/comm"))
    return any(name.startswith("tokio") for name in names)


def wait(pid: int) -> int:
    """The end of a child, within bounds."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGUSR1)  # where it hangs: it prints its stacks
    time.sleep(1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the child did not end")


def wait_until_stopped(pid: int) -> bool:
    """True when the child stopped itself, False when it ended without ever getting there."""
    _, status = os.waitpid(pid, os.WUNTRACED)
    return os.WIFSTOPPED(status)


def check_by_path(scene: Scene) -> int:
    """The checker as a process of its own that does not import fencepost."""
    numbers = scene.folder / "numbers.txt"
    numbers.write_text(" ".join(map(str, scene.numbers)))
    command = [sys.executable, str(exactly.__file__), str(numbers), *scene.places()]
    return subprocess.run(command, check=False, capture_output=True).returncode
