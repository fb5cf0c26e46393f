"""A driver's heartbeat: once a second it says that it is alive, to its supervisor and to whoever asks.

    fencepost/pulse/<host>-<pid>.json      rewritten at every beat, removed after a clean end

On a remote store it is written every ten seconds, because each write is a request. Nothing is decided by a heartbeat:
it is for people, and for the supervisor, which gets it over a socket and never waits for a store.

A beat proves both halves: Python runs, and Spark's JVM answers. The heartbeat also stops when an epoch is far past its
timeout in a sink that does not answer: then only a new process helps.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from fencepost.errors import LATER, Fenced, FencepostError, Where
from fencepost.protocol.format import StoredFormat, known
from fencepost.store import Place, RemotePath, place, store_at
from fencepost.store.retry import Aside

EVERY_S: Final = 1.0
FAR_EVERY_S: Final = 10.0
"""On a remote store."""
FAR_WAIT_S: Final = 5.0
"""How long a start or an end waits for a remote store to write or remove a beat."""
DEAD_AFTER_S: Final = 30.0
BEAT: Final = StoredFormat("The heartbeat", 1)
BORN: Final = time.time()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a driver reports about itself."""

    job: str
    host: str
    pid: int
    supervisor: int | None
    writer: int
    epoch: int | None
    """The newest epoch that this driver finished."""
    since_s: float
    at_s: float
    awaited: Sequence[str] = ()
    """The sources that a watermark waits for, by their names in Spark's `offsets`."""
    rest_s: float | None = None
    """How long it rested after that epoch; None if its user sets the pace."""
    lag: Mapping[str, int] = field(default_factory=dict)
    """By topic, the records that it has not read yet, as Spark last said."""

    @property
    def is_fresh(self) -> bool:
        """Was it written recently? By our clock; another host's clock may differ, see `is_elsewhere`."""
        return time.time() - self.at_s < DEAD_AFTER_S

    @property
    def is_here(self) -> bool:
        """Is it from a process on this machine that still exists?"""
        return self.host == socket.gethostname() and exists(self.pid)

    @property
    def is_elsewhere(self) -> bool:
        """Is it from another machine? Then its age depends on two clocks."""
        return self.host != socket.gethostname()

    @property
    def lives(self) -> bool:
        """Is the driver alive, as far as we can tell from here?"""
        return self.is_fresh and (self.is_here or self.is_elsewhere)


def this_driver(
    job: str,
    writer: int,
    epoch: int | None,
    awaited: Sequence[str] = (),
    rest_s: float | None = None,
    *,
    lag: Mapping[str, int] | None = None,
) -> Beat:
    """The heartbeat of a driver in this process."""
    return Beat(
        job=job,
        host=socket.gethostname(),
        pid=os.getpid(),
        supervisor=PULSE.supervisor,
        writer=writer,
        epoch=epoch,
        since_s=BORN,
        at_s=time.time(),
        awaited=awaited,
        rest_s=rest_s,
        lag=lag or {},
    )


Living = Callable[[], Beat | None]
"""Returns a driver's heartbeat; None while it is stuck."""


class Parent(Protocol):
    """This process's supervisor, as its driver sees it."""

    @property
    def pid(self) -> int:
        """Its process."""

    def beat(self) -> None:
        """Send it a heartbeat."""

    def is_gone(self) -> bool:
        """Has it ended?"""


class Pulse:
    """Sends heartbeats for all drivers of this process, in its own thread."""

    def __init__(self) -> None:
        self._living: dict[Place, Living] = {}
        self._parent: Parent | None = None
        self.ask_engine: Callable[[], None] = lambda: None
        """Returns if the engine answers; set by the code that knows the engine."""
        self._change = threading.Lock()
        self._thread: threading.Thread | None = None
        self._aside = Aside("pulse-far")
        self._far_from = 0.0
        """When remote stores get their next beat."""

    @property
    def supervisor(self) -> int | None:
        """The supervisor's process, if there is one."""
        return None if self._parent is None else self._parent.pid

    def check_supervised(self, job: str) -> None:
        """Called right before a takeover: a driver whose supervisor is gone must not fence another supervisor's driver.

        It may have slept since it was started. A driver that already runs carries on: its successor fences it.
        """
        if self._parent is not None and self._parent.is_gone():
            raise Fenced(
                "supervisor_gone",
                f"The supervisor that started this driver (process {self._parent.pid}) is gone. The driver does not "
                "take over the checkpoint, because another supervisor's driver may have it.",
                where=Where(job=job),
                safe=LATER,
                next="Check with `fencepost status` whether the job is running. If not, start it with `fencepost run`.",
            )

    def begin(self, parent: Parent | None = None) -> None:
        """Start the heartbeat, also to a supervisor; before any driver runs, it says that the process is starting."""
        with self._change:
            self._parent = parent or self._parent
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fencepost-pulse", daemon=True)
                self._thread.start()

    def add(self, checkpoint: str, living: Living) -> None:
        """A driver is running: send its first heartbeat now."""
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
        """A driver ended cleanly; another one in this process may have started since."""
        path = _mine(checkpoint)
        with self._change, contextlib.suppress(OSError):
            if living is None or self._living.get(path) == living:
                self._living.pop(path, None)
                if isinstance(path, RemotePath):  # after any write under way, which would bring the file back
                    self._aside.ask(lambda: path.unlink(missing_ok=True), FAR_WAIT_S, after=True)
                else:
                    path.unlink(missing_ok=True)

    def _run(self) -> None:
        while True:
            time.sleep(EVERY_S)
            with contextlib.suppress(Exception):  # no beat is the message
                self._beat()

    def _beat(self) -> None:
        self.ask_engine()
        with self._change:
            beats = {path: living() for path, living in self._living.items()}
            if self._parent is not None and None not in beats.values():
                self._parent.beat()
            for path, beat in beats.items():
                if isinstance(path, Path):
                    _write(path, beat)
            self._beat_far({path: beat for path, beat in beats.items() if isinstance(path, RemotePath)})

    def _beat_far(self, beats: Mapping[Place, Beat | None]) -> None:
        """Write in another thread: a silent store must not stop the heartbeat to the supervisor."""
        if beats and time.monotonic() >= self._far_from:
            self._far_from = time.monotonic() + FAR_EVERY_S
            self._aside.ask(partial(_write_all, beats), 0.0)


PULSE = Pulse()
"""Of this process."""


class Ear:
    """The heartbeats of a checkpoint's drivers, for a caller that polls often and must not wait."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self._aside = Aside("ear")
        self._heard: list[Beat] = []
        self._next = 0.0

    def beats(self) -> list[Beat]:
        """The current heartbeats; on a remote store, those of some seconds ago."""
        if isinstance(place(self._checkpoint), Path):
            return beats(self._checkpoint)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + FAR_EVERY_S / 2
            self._aside.ask(self._listen, 0.0)
        return self._heard

    def _listen(self) -> None:
        self._heard = beats(self._checkpoint)


def beats(checkpoint: str | os.PathLike[str] | RemotePath) -> list[Beat]:
    """The last heartbeats of a checkpoint's drivers, newest writer first."""
    found = []
    with contextlib.suppress(OSError, FencepostError):
        for path in _folder(checkpoint).glob("*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
                found.append(known(Beat, json.loads(path.read_bytes())))
    return sorted(found, key=lambda beat: -beat.writer)


def _folder(checkpoint: str | os.PathLike[str] | RemotePath) -> Place:
    return place(checkpoint) / "fencepost" / "pulse"


def _mine(checkpoint: str) -> Place:
    return _folder(checkpoint) / f"{socket.gethostname()}-{os.getpid()}.json"


def _write(path: Place, beat: Beat | None) -> None:
    if beat is None:
        return
    if isinstance(path, RemotePath):
        store_at(path.parent).replace(path.name, _text(beat).encode())
    else:
        path.parent.mkdir(exist_ok=True)
        temp = path.with_suffix(".tmp")
        temp.write_text(_text(beat))
        temp.replace(path)


def _text(beat: Beat) -> str:
    return json.dumps({**asdict(beat), **BEAT.stamp})


def _write_all(beats: Mapping[Place, Beat | None]) -> None:
    for path, beat in beats.items():
        _write(path, beat)


def _begin_far(checkpoint: str, path: Place, beat: Beat | None) -> None:
    _sweep(checkpoint)
    _write(path, beat)


def _sweep(checkpoint: str) -> None:
    """Remove the heartbeats of dead drivers; if one is alive after all (its clock differs), it writes another."""
    for beat in beats(checkpoint):
        if not beat.lives:
            (_folder(checkpoint) / f"{beat.host}-{beat.pid}.json").unlink(missing_ok=True)


def exists(pid: int) -> bool:
    """Is there a process with this pid on this machine? One that ended and was not waited for yet is gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _stat(pid)[:1] != ["Z"]


def was_there(pid: int, at: float) -> bool:
    """Is there a process with this pid here, and is it the same one that had the pid at that time?"""
    if not exists(pid):
        return False
    try:
        ticks = int(_stat(pid)[19])
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return True
    return time.time() - (uptime_s - ticks / os.sysconf("SC_CLK_TCK")) < at + 1


def _stat(pid: int) -> list[str]:
    """What the system says about a process, from its state on; nothing if it does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
