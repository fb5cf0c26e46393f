"""The pulse of a driver: once a second it says that it lives, to its supervisor and to whoever asks.

    fencepost/pulse/<host>-<pid>.json      written anew at every beat, gone after a clean end

A beat is proof of both halves: Python runs, and Spark's JVM answers. An epoch that is long past its timeout in a sink
that does not answer stops the pulse too: a new process is then the cure.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

EVERY_S: Final = 1.0
DEAD_AFTER_S: Final = 30.0
BORN: Final = time.time()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a driver says of itself."""

    job: str
    host: str
    pid: int
    supervisor: int | None
    writer: int
    epoch: int | None
    """The newest one that this driver finished."""
    since: float
    at: float

    @property
    def is_fresh(self) -> bool:
        """Was it written just now? Clocks of two hosts may differ; those of one do not."""
        return time.time() - self.at < DEAD_AFTER_S

    @property
    def is_here(self) -> bool:
        """Is it of a process on this machine that is there?"""
        return self.host == socket.gethostname() and exists(self.pid)

    @property
    def lives(self) -> bool:
        """As far as can be told from here."""
        return self.is_fresh and (self.is_here or self.host != socket.gethostname())


def this_driver(job: str, writer: int, epoch: int | None) -> Beat:
    """What a driver in this process says now."""
    return Beat(
        job=job,
        host=socket.gethostname(),
        pid=os.getpid(),
        supervisor=PULSE.supervisor,
        writer=writer,
        epoch=epoch,
        since=BORN,
        at=time.time(),
    )


Living = Callable[[], Beat | None]
"""What a driver says now; None while it is stuck."""


class Pulse:
    """Beats for all drivers of this process, in a thread of its own."""

    def __init__(self) -> None:
        self._living: dict[Path, Living] = {}
        self.supervisor: int | None = None
        """Its process."""
        self._ear: Callable[[], None] | None = None
        self._change = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self, ear: Callable[[], None] | None = None) -> None:
        """Beat from now on, to a supervisor's ear too; before any driver runs, a beat says that the process starts."""
        with self._change:
            self._ear = ear or self._ear
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fencepost-pulse", daemon=True)
                self._thread.start()

    def add(self, checkpoint: str, living: Living) -> None:
        """A driver runs: the first beat is now."""
        path = _folder(checkpoint) / f"{socket.gethostname()}-{os.getpid()}.json"
        with self._change, contextlib.suppress(OSError):
            _sweep(checkpoint)
            self._living[path] = living
            _write(path, living())
        self.begin()

    def remove(self, checkpoint: str, living: Living | None = None) -> None:
        """It ended in order; another one of this process may have begun."""
        path = _folder(checkpoint) / f"{socket.gethostname()}-{os.getpid()}.json"
        with self._change, contextlib.suppress(OSError):
            if living is None or self._living.get(path) == living:
                self._living.pop(path, None)
                path.unlink(missing_ok=True)

    def _run(self) -> None:
        while True:
            time.sleep(EVERY_S)
            with contextlib.suppress(Exception):  # no beat is the message
                self._beat()

    def _beat(self) -> None:
        _ask_engine()
        with self._change:
            beats = {path: living() for path, living in self._living.items()}
            if self._ear is not None and None not in beats.values():
                self._ear()
            for path, beat in beats.items():
                _write(path, beat)


PULSE = Pulse()
"""Of this process."""


def beats(checkpoint: str | os.PathLike[str]) -> list[Beat]:
    """What the drivers of a checkpoint said last, the newest writer first."""
    found = []
    for path in _folder(checkpoint).glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(Beat(**json.loads(path.read_bytes())))
    return sorted(found, key=lambda beat: -beat.writer)


def _folder(checkpoint: str | os.PathLike[str]) -> Path:
    return Path(checkpoint) / "fencepost" / "pulse"


def _write(path: Path, beat: Beat | None) -> None:
    if beat is not None:
        path.parent.mkdir(exist_ok=True)
        temp = path.with_suffix(".tmp")
        temp.write_text(json.dumps(asdict(beat)))
        temp.replace(path)


def _sweep(checkpoint: str) -> None:
    """Remove what drivers left that died."""
    for beat in beats(checkpoint):
        if not beat.lives:
            (_folder(checkpoint) / f"{beat.host}-{beat.pid}.json").unlink(missing_ok=True)


def _ask_engine() -> None:
    """Ask Spark's JVM, if there is one; a frozen one never answers, a dead one raises."""
    pyspark: Any = sys.modules.get("pyspark")
    context = pyspark and pyspark.SparkContext._active_spark_context
    if context is not None:
        context._jvm.java.lang.System.nanoTime()


def exists(pid: int) -> bool:
    """Is there a process of this number on this machine?"""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def was_there(pid: int, at: float) -> bool:
    """Is a process of this machine there, and the one that had this number at that time?"""
    if not exists(pid):
        return False
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return True
    return time.time() - (uptime_s - ticks / os.sysconf("SC_CLK_TCK")) < at + 1
