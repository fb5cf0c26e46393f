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

from fencepost.config import Failures
from fencepost.supervise import machine
from fencepost.supervise.link import DESCRIPTOR, ROLE, Messages, Role


class Process:
    """A driver, or the standby for one: a Python process and its JVM, in a process group of their own.

    Ctrl-C in a terminal does not reach them: the supervisor decides what happens, and in which order.
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
        if role == "standby":
            machine.hold_back(self.pid)
        self._role = role
        self._messages = Messages()
        self._heard_at = self._born_at = time.monotonic()
        self._hurries = False
        self.job: dict[str, Any] | None = None
        """What it reported about its job."""
        self.ended: dict[str, Any] | None = None
        """What it reported when it ended."""
        self.is_warm = False
        self.is_over = False
        """Its job ended cleanly; what the file does after that is not our concern."""

    @property
    def pid(self) -> int:
        """The pid of the Python process."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit code, negative for a signal; None while it is running."""
        return self._process.poll()

    @property
    def silent_s(self) -> float:
        """Seconds since its last heartbeat."""
        return time.monotonic() - self._heard_at

    def hurry_after(self, seconds: float) -> None:
        """Let a standby that is not warm by then give way no longer: others may need the processors for hours."""
        if not (self._hurries or self.is_warm) and time.monotonic() - self._born_at > seconds:
            self._hurries = True
            machine.hurry(self.pid)

    def hear(self) -> list[dict[str, Any]] | None:
        """The failures it reported; None if it will send nothing more. Other messages are stored here."""
        try:
            data = self.socket.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []  # it is dead, but a child of its own keeps the socket open
        except OSError:
            data = b""
        if not data:
            with suppress(subprocess.TimeoutExpired):  # its end of the socket closes a moment before it is gone
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
        """Let it run the job; from now on it counts as much as any."""
        with suppress(OSError):  # it is dead, and its status says so
            self.socket.sendall(json.dumps({"failures": failures, "restart": restart}).encode() + b"\n")
        if self._role == "standby":
            machine.let_go(self.pid)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the Python process."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it, its JVM and its workers, or what is left of them."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self.socket.close()
