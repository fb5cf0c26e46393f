"""One driver process, as its supervisor sees it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from fencepost.supervise.link import DESCRIPTOR, ROLE, Messages, Role
from fencepost.supervise.strategies import Failures


class Process:
    """A driver, or the standby for one: a Python process and its JVM, in a process group of their own.

    Ctrl-C in a terminal does not reach them: the supervisor says in order what is to happen.
    """

    def __init__(self, command: Sequence[str], role: Role) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fencepost.supervise.child", *command],
                env={**os.environ, DESCRIPTOR: str(theirs.fileno()), ROLE: role},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._messages = Messages()
        self._heard_at = time.monotonic()
        self.job: dict[str, Any] | None = None
        """What it said about its job."""
        self.ended: dict[str, Any] | None = None
        """What it said at its end."""
        self.is_warm = False
        self.is_over = False
        """Its job ended in order; what its file does after that is its own."""

    @property
    def pid(self) -> int:
        """Of the Python process."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit code, below 0 for a signal; None while it lives."""
        return self._process.poll()

    @property
    def silent_s(self) -> float:
        """How long it had no pulse."""
        return time.monotonic() - self._heard_at

    def hear(self) -> list[dict[str, Any]] | None:
        """The failures that it told; None if it will say no more. What else it said is noted here."""
        try:
            data = self.socket.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []  # dead, and a child of its own holds the line
        except OSError:
            data = b""
        if not data:
            with suppress(subprocess.TimeoutExpired):  # its end of the line closes a moment before it is gone
                self._process.wait(0.5)
            return None
        self._heard_at = time.monotonic()
        failures = []
        for message in self._messages.feed(data):
            match message["what"]:
                case "job":
                    self.job = message
                case "warm":
                    self.is_warm = True
                case "over":
                    self.is_over = True
                case "failed":
                    failures.append(message)
                case "ended":
                    self.ended, self.is_over = message, False
        return failures

    def go(self, failures: Failures, restart: str | None) -> None:
        """Let it run the job."""
        with suppress(OSError):  # it is dead: its status says so
            self.socket.sendall(json.dumps({"failures": failures, "restart": restart}).encode() + b"\n")

    def signal(self, number: signal.Signals) -> None:
        """Ask the Python process."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it, its JVM and its workers, or what is left of them."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self.socket.close()
