"""What a driver process and its supervisor say to each other, one line of JSON at a time.

    driver → supervisor    beat · job (its name, checkpoint, strategy) · warm · failed · over · ended (with what error)
    supervisor → driver    go (the failures that count, and the strategy)

The driver goes on if its supervisor dies, for a new one fences it; a standby ends, for nobody would ever call it.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, Literal, cast

from fencepost.errors import FencepostError
from fencepost.observe import requests
from fencepost.supervise.reasons import Reason
from fencepost.supervise.strategies import ExponentialDelay, Failures, Strategy, parse

DESCRIPTOR: Final = "FENCEPOST_SUPERVISOR"
"""The environment variable that names the driver's end."""
ROLE: Final = "FENCEPOST_ROLE"
Role = Literal["alone", "first", "standby"]
"""The only driver; the one that runs, with a standby beside it; the standby."""
SNAPSHOTS: Final = {"spark.sql.streaming.stateStore.maintenanceInterval": "10s"}
"""Whoever takes over replays what changed since the last snapshot of the state; Spark makes one a minute."""


@dataclass(frozen=True, slots=True)
class Go:
    """The supervisor's word: run."""

    failures: Failures
    restart: str | None
    """The strategy that the command line names."""

    def strategy(self, own: Strategy | None) -> Strategy:
        """The command line's, or the job's own, or Flink's default."""
        return parse(self.restart) if self.restart else own or ExponentialDelay()


BEAT: Final = b'{"what":"beat"}\n'


class Link:
    """The driver's end."""

    def __init__(self, descriptor: int, role: Role) -> None:
        self.role = role
        self._socket = socket.socket(fileno=descriptor)
        self._messages = Messages()
        self._one_writes = threading.Lock()
        self._go: Go | None = None

    def tell(self, what: str, **facts: Any) -> None:
        """Say something; a supervisor that is gone does not matter."""
        with self._one_writes:
            try:
                self._socket.sendall(json.dumps({"what": what, **facts}).encode() + b"\n")
            except OSError:
                return

    def beat(self) -> None:
        """Say that we live; a supervisor that sleeps must not hold us up."""
        with self._one_writes, suppress(OSError):
            self._socket.send(BEAT, socket.MSG_DONTWAIT)

    def tell_error(self, what: str, error: FencepostError) -> None:
        """Say that something failed, in the error's own four lines."""
        told = {"code": error.code, "said": error.what, "safe": error.safe, "next": error.next, "text": str(error)}
        self.tell(what, reason=Reason.of(error).word, **told)

    @property
    def was_called(self) -> bool:
        """Has the word come? For a second job of the same file it has."""
        return self._go is not None

    def go(self) -> Go:
        """Wait for the word; a second job in the same file has it already."""
        while self._go is None:
            data = self._socket.recv(65536)
            if not data:
                raise SystemExit(0)  # the supervisor is gone before we were needed
            for message in self._messages.feed(data):
                self._go = Go(tuple(message["failures"]), message["restart"])
        return self._go


class Messages:
    """Cuts what comes through a socket into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are whole by now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


@cache
def link() -> Link | None:
    """To the supervisor of this process, if it has one."""
    descriptor = os.environ.pop(DESCRIPTOR, None)  # our own children have none
    return None if descriptor is None else Link(int(descriptor), cast("Role", os.environ.pop(ROLE)))


Told = tuple[Failures, Strategy | None, Callable[[FencepostError], None]]


def when_told_to(job: str, checkpoint: str, own: Strategy | None, warm_up: Callable[[], None]) -> Told:
    """Wait until this process is to run the job: at once, or as a standby when it is called.

    Gives the failures that count already, the strategy, and whom to tell of more.
    """
    supervisor = link()
    if supervisor is None:
        requests.clear(checkpoint)
        return (), own, lambda error: None
    supervisor.tell("job", name=job, checkpoint=checkpoint, restart=own.word if own else None)
    if supervisor.role == "standby" and not supervisor.was_called:
        warm_up()
        supervisor.tell("warm")
    go = supervisor.go()
    return go.failures, go.strategy(own), partial(supervisor.tell_error, "failed")


@contextmanager
def telling_the_end() -> Iterator[None]:
    """Tell the supervisor how a job ended, even if its file makes something else of it."""
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
    """What a session of this process should have, where the user does not say otherwise."""
    supervisor = link()
    return SNAPSHOTS if supervisor is not None and supervisor.role != "alone" else {}
