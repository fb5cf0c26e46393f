"""The pulse of a driver: once a second it says that it lives, to its supervisor and to whoever asks.

    fencepost/pulse/<host>-<pid>.json      written anew at every beat, gone after a clean end

On a remote store it is written every ten seconds: each time is a request. Nothing is decided by a beat: it is for
people, and for the supervisor, which hears it by another way and never waits for a store.

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
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from fencepost.errors import FencepostError
from fencepost.ledger import Place, RemotePath, place, store_at
from fencepost.observe.aside import Aside

EVERY_S: Final = 1.0
FAR_EVERY_S: Final = 10.0
"""On a remote store."""
FAR_WAIT_S: Final = 5.0
"""So long a start and an end wait for a remote store, to write or remove a beat."""
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
        """Was it written just now? By our clock: that of another host may differ, see `is_elsewhere`."""
        return time.time() - self.at < DEAD_AFTER_S

    @property
    def is_here(self) -> bool:
        """Is it of a process on this machine that is there?"""
        return self.host == socket.gethostname() and exists(self.pid)

    @property
    def is_elsewhere(self) -> bool:
        """Is it of another machine? Then its age is only as good as the two clocks."""
        return self.host != socket.gethostname()

    @property
    def lives(self) -> bool:
        """As far as can be told from here."""
        return self.is_fresh and (self.is_here or self.is_elsewhere)


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
        self._living: dict[Place, Living] = {}
        self.supervisor: int | None = None
        """Its process."""
        self._ear: Callable[[], None] | None = None
        self._change = threading.Lock()
        self._thread: threading.Thread | None = None
        self._aside = Aside("pulse-far")
        self._far_from = 0.0
        """When remote stores get their next beat."""

    def begin(self, ear: Callable[[], None] | None = None) -> None:
        """Beat from now on, to a supervisor's ear too; before any driver runs, a beat says that the process starts."""
        with self._change:
            self._ear = ear or self._ear
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fencepost-pulse", daemon=True)
                self._thread.start()

    def add(self, checkpoint: str, living: Living) -> None:
        """A driver runs: the first beat is now."""
        path = _mine(checkpoint)
        with self._change, contextlib.suppress(OSError):
            self._living[path] = living
            beat = living()
            if isinstance(path, RemotePath):
                self._aside.ask(partial(_begin_far, checkpoint, path, beat), FAR_WAIT_S, after=True)
            else:
                _sweep(checkpoint)
                _write(path, beat)
        self.begin()

    def remove(self, checkpoint: str, living: Living | None = None) -> None:
        """It ended in order; another one of this process may have begun."""
        path = _mine(checkpoint)
        with self._change, contextlib.suppress(OSError):
            if living is None or self._living.get(path) == living:
                self._living.pop(path, None)
                if isinstance(path, RemotePath):  # after a beat that is under way, which would outlive it
                    self._aside.ask(lambda: path.unlink(missing_ok=True), FAR_WAIT_S, after=True)
                else:
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
                if isinstance(path, Path):
                    _write(path, beat)
            self._beat_far({path: beat for path, beat in beats.items() if isinstance(path, RemotePath)})

    def _beat_far(self, beats: Mapping[Place, Beat | None]) -> None:
        """Leave it to another thread: a store that does not answer must not stop the beats to the supervisor."""
        if beats and time.monotonic() >= self._far_from:
            self._far_from = time.monotonic() + FAR_EVERY_S
            self._aside.ask(partial(_write_all, beats), 0.0)


PULSE = Pulse()
"""Of this process."""


class Ear:
    """What the drivers of a checkpoint said, for one who asks all the time and must not wait."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self._aside = Aside("ear")
        self._heard: list[Beat] = []
        self._next = 0.0

    def beats(self) -> list[Beat]:
        """As of now; on a remote store, as of some seconds ago."""
        if isinstance(place(self._checkpoint), Path):
            return beats(self._checkpoint)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + FAR_EVERY_S / 2
            self._aside.ask(self._listen, 0.0)
        return self._heard

    def _listen(self) -> None:
        self._heard = beats(self._checkpoint)


def beats(checkpoint: str | os.PathLike[str] | RemotePath) -> list[Beat]:
    """What the drivers of a checkpoint said last, the newest writer first."""
    found = []
    with contextlib.suppress(OSError, FencepostError):
        for path in _folder(checkpoint).glob("*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError):
                found.append(Beat(**json.loads(path.read_bytes())))
    return sorted(found, key=lambda beat: -beat.writer)


def _folder(checkpoint: str | os.PathLike[str] | RemotePath) -> Place:
    return place(checkpoint) / "fencepost" / "pulse"


def _mine(checkpoint: str) -> Place:
    return _folder(checkpoint) / f"{socket.gethostname()}-{os.getpid()}.json"


def _write(path: Place, beat: Beat | None) -> None:
    if beat is None:
        return
    if isinstance(path, RemotePath):
        store_at(path.parent).replace(path.name, json.dumps(asdict(beat)).encode())
    else:
        path.parent.mkdir(exist_ok=True)
        temp = path.with_suffix(".tmp")
        temp.write_text(json.dumps(asdict(beat)))
        temp.replace(path)


def _write_all(beats: Mapping[Place, Beat | None]) -> None:
    for path, beat in beats.items():
        _write(path, beat)


def _begin_far(checkpoint: str, path: Place, beat: Beat | None) -> None:
    _sweep(checkpoint)
    _write(path, beat)


def _sweep(checkpoint: str) -> None:
    """Remove what drivers left that died; one that lives after all, on a host with another clock, beats again."""
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
