"""Named crash points: inert unless armed by an environment variable.

    FENCEPOST_FAULT="decide.after=kill@3"      SIGKILL to this process, the third time it gets there
    FENCEPOST_FAULT="vote.after=stop,done.before=kill"     SIGSTOP; several are separated by commas
    FENCEPOST_FAULT="write.after=hang"         this thread waits forever, the others go on
    FENCEPOST_FAULT="decide.after=fail"        an OSError; the process lives on
    FENCEPOST_FAULT_LOG=/some/file             log every point that is reached, one name per line

An effect of the protocol has two points, `<its point>.before` and `.after`; the few inside a module are calls to
`reach`. Never does anything in a process whose environment does not ask for it.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

ARM = "FENCEPOST_FAULT"
LOG = "FENCEPOST_FAULT_LOG"


class Injected(OSError):
    """What `fail` raises."""


def _fail() -> None:
    raise Injected(errno.EIO, "injected")


ACTIONS: Mapping[str, Callable[[], object]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": lambda: threading.Event().wait(),
    "fail": _fail,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Do something to ourselves the n-th time we reach a point."""

    point: str
    action: str
    visit: int


def parse(text: str) -> tuple[Fault, ...]:
    """Read `point=action@visit,…`; a typo is an error, never a fault that silently does not happen."""
    faults = []
    for part in filter(None, text.split(",")):
        point, equals, rest = part.partition("=")
        action, _, visit = rest.partition("@")
        if not point or not equals or action not in ACTIONS or not (visit or "1").isdigit() or visit == "0":
            raise ValueError(f"{ARM}: {part!r} is not point=kill, =stop, =hang or =fail, with an optional @visit")
        faults.append(Fault(point, action, int(visit or 1)))
    return tuple(faults)


is_armed = False
"""Is a fault or the log active? Code that passes many points asks first."""
_armed: tuple[Fault, ...] = ()
_log: str | None = None
_visits: Counter[str] = Counter()


def arm(environment: Mapping[str, str]) -> None:
    """Take the faults from these variables, and count visits from zero."""
    global is_armed, _armed, _log  # noqa: PLW0603 - one process, one set of faults
    _armed = parse(environment.get(ARM, ""))
    _log = environment.get(LOG)
    is_armed = bool(_armed) or _log is not None
    _visits.clear()


def reach(point: str) -> None:
    """Arrive at a crash point."""
    if not is_armed:
        return
    _visits[point] += 1
    if _log is not None:
        with open(_log, "a") as file:
            file.write(point + "\n")
    for fault in _armed:
        if fault.point == point and fault.visit == _visits[point]:
            ACTIONS[fault.action]()


arm(os.environ)
