"""What a driver process and its supervisor say to each other, one line of JSON at a time.

    driver → supervisor    beat · job (its name, checkpoint, strategy) · warm · failed · over · ended (with what error)
    supervisor → driver    go (the failures that count, and the strategy)

If a supervisor dies, its running driver carries on until another supervisor's driver fences it. A driver that has yet
to take over the checkpoint (also to restart its query) ends, because it might fence that other driver. A standby ends
too, whatever it is doing, because nothing would ever start it.

A standby warms up in a thread of its own, so that a call never waits for that.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, Literal, cast

from fencepost.config import ExponentialDelay, Failures, Strategy, parse
from fencepost.errors import FencepostError, Reason
from fencepost.observe import commands

log = logging.getLogger("fencepost")

DESCRIPTOR: Final = "FENCEPOST_SUPERVISOR"
"""The environment variable with the driver's end of the socket."""
ROLE: Final = "FENCEPOST_ROLE"
Role = Literal["alone", "first", "standby"]
"""A driver without a standby; a driver with one; the standby."""
SNAPSHOTS: Final = {"spark.sql.streaming.stateStore.maintenanceInterval": "10s"}
"""A standby that takes over replays what changed since the last state snapshot; Spark's default is one a minute."""


@dataclass(frozen=True, slots=True)
class Go:
    """The supervisor's order to run."""

    failures: Failures
    restart: str | None
    """The strategy from the command line."""

    def strategy(self, own: Strategy | None) -> Strategy:
        """The command line's, or the job's own, or Flink's default."""
        return parse(self.restart) if self.restart else own or ExponentialDelay()


BEAT: Final = b'{"what":"beat"}\n'


class Line:
    """The driver's end."""

    def __init__(self, descriptor: int, role: Role) -> None:
        self.role = role
        self.pid = os.getppid()
        self._socket = socket.socket(fileno=descriptor)
        self._messages = Messages()
        self._one_writes = threading.Lock()
        self._go: Go | None = None
        self._waits = False
        self.called = threading.Event()
        """Set when the order to run has come, or never will."""

    def listen(self) -> None:
        """Wait for the order to run, in a thread of its own: the file may take long to come to its job."""
        threading.Thread(target=self._listen, name="fencepost-link", daemon=True).start()

    def _listen(self) -> None:
        """After the order nothing more is read: `is_gone` looks at what the socket holds."""
        while self._go is None and (data := self._received()):
            for message in self._messages.feed(data):
                self._go = Go(tuple(message["failures"]), message["restart"])
        self.called.set()
        if self._go is None and not self._waits:  # the file is still busy with what comes before its job
            os.killpg(0, signal.SIGTERM)

    def _received(self) -> bytes:
        try:
            return self._socket.recv(65536)
        except OSError:
            return b""

    def tell(self, what: str, **facts: Any) -> None:
        """Send a message; it does not matter if the supervisor is gone."""
        with self._one_writes:
            try:
                self._socket.sendall(json.dumps({"what": what, **facts}).encode() + b"\n")
            except OSError:
                return

    def beat(self) -> None:
        """Send a heartbeat, without blocking: a supervisor that sleeps must not hold us up."""
        with self._one_writes, suppress(OSError):
            self._socket.send(BEAT, socket.MSG_DONTWAIT)

    def is_gone(self) -> bool:
        """Is the supervisor's end of the socket closed? Only its death does that."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def tell_error(self, what: str, error: FencepostError) -> None:
        """Report a failure, with the error's own four parts."""
        told = {"code": error.code, "said": error.what, "safe": error.safe, "next": error.next, "text": str(error)}
        self.tell(what, reason=Reason.of(error).word, **told)

    def go(self) -> Go:
        """Wait for the order to run; a second job in the same file has it already."""
        self._waits = True
        self.called.wait()
        if self._go is None:
            raise SystemExit(0)  # the supervisor died before we were needed
        return self._go


class Messages:
    """Splits the bytes from a socket into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are complete so far."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


@cache
def link() -> Line | None:
    """The line to this process's supervisor, if it has one."""
    descriptor = os.environ.pop(DESCRIPTOR, None)  # not inherited by our own children
    return None if descriptor is None else Line(int(descriptor), cast("Role", os.environ.pop(ROLE)))


Told = tuple[Failures, Strategy | None, Callable[[FencepostError], None]]


WarmUp = Callable[[threading.Event], None]
"""Ends early when the event is set."""


def when_told_to(job: str, checkpoint: str, own: Strategy | None, warm_up: WarmUp) -> Told:
    """Wait until this process is to run the job: at once, or, as a standby, when it takes over.

    A standby that is called while it warms up goes on at once, to the same start as any driver.

    Returns the failures that count so far, the strategy, and a function to report further failures.
    """
    supervisor = link()
    if supervisor is None:
        commands.clear(checkpoint)
        return (), own, lambda error: None
    supervisor.tell("job", name=job, checkpoint=checkpoint, restart=own.word if own else None)
    if supervisor.role == "standby" and not supervisor.called.is_set():
        threading.Thread(target=_warm, args=(supervisor, job, warm_up), name="fencepost-warm-up", daemon=True).start()
    go = supervisor.go()
    return go.failures, go.strategy(own), partial(supervisor.tell_error, "failed")


def _warm(supervisor: Line, job: str, warm_up: WarmUp) -> None:
    try:
        warm_up(supervisor.called)
    except Exception as error:  # noqa: BLE001 - if it matters, the start reports it; until then we are of use, not warm
        if not supervisor.called.is_set():
            log.warning("standby of job %s is not warm: %s", job, error)
    else:
        if not supervisor.called.is_set():
            supervisor.tell("warm")


@contextmanager
def telling_the_end() -> Iterator[None]:
    """Tell the supervisor how a job ended, even if the file catches the error."""
    supervisor = link()
    try:
        yield
    except FencepostError as error:
        if supervisor is not None:
            supervisor.tell_error("ended", error)
        raise
    if supervisor is not None:
        supervisor.tell("over")


def settings() -> Mapping[str, str]:
    """Defaults for a session in this process; the user's settings override them."""
    supervisor = link()
    return SNAPSHOTS if supervisor is not None and supervisor.role != "alone" else {}
