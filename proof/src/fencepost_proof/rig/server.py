"""What the servers of the rig share: processes on loopback, killed, frozen and started again on their port and data.

    Server    one process
    Several   what is more than one process and started as one thing: a store, a cluster

Never listens on anything but loopback, and never outlives the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from fencepost_proof.rig.jars import RigFailed
from fencepost_proof.rig.process import HOST, PATIENCE_S, free_ports, is_free, keep, until

ATTEMPTS = 5


class PortTaken(RigFailed):
    """Somebody bound a port between our look and the server's."""


@dataclass
class Server(ABC):
    """One server with all its files in `folder`. A kill is no power cut: what the kernel has is kept, fsync or not."""

    folder: Path
    settings: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Added to those of the rig, by the names that the server has for them."""
    port: int = field(default=0, kw_only=True)
    """Where it answers on loopback; 0 for any that is free. Chosen at the first start, kept for all others."""
    _ports: list[int] = field(default_factory=list, init=False, repr=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _keeper: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)

    ports_needed: ClassVar[int] = 1
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    @property
    def name(self) -> str:
        """As people call it."""
        return type(self).__name__

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Was it started, and has it not ended since? A frozen one runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        """What it said in all its starts."""
        return self.folder / "server.log"

    @property
    def data(self) -> Path:
        """Its files."""
        return self.folder.resolve() / "data"

    def start(self) -> Self:
        """Start and wait until it answers. The first time its data is made and its port is chosen."""
        if self._process is not None:
            assert self._process.poll() is not None, "already started"
            self.kill()  # it died by another hand: only what it left is to be ended
        if not self._ports and self.port:
            self._check_free([self.port])
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.data.exists():
            new = self.data.with_name("new")
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            self._initialise(new)
            new.rename(self.data)
        chosen, asked = self._ports, self.port
        for attempt in range(1, ATTEMPTS + 1):
            first, *others = chosen or free_ports(self.ports_needed)
            self.port = asked or first
            self._ports = [self.port, *others]
            try:
                self._start_once()
            except PortTaken:
                if attempt == ATTEMPTS:
                    raise
                time.sleep(0.2)
            else:
                break
        return self

    def kill(self) -> None:
        """End it like a power switch, but for the page cache."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order; nothing happens if it does not run."""
        self._end(self.stop_signal)

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing answers."""
        freeze([self.pid])  # itself first: then there come no more children
        freeze(self._children())

    def resume(self) -> None:
        """Let a frozen server go on."""
        for pid in (*self._children(), self.pid):
            send(signal.SIGCONT, pid)

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Kill it: whoever uses it so has no more need of its data."""
        self.kill()

    @abstractmethod
    def _initialise(self, data: Path) -> None:
        """Fill the empty folder of a new server. It is moved to its place when this is done."""

    @abstractmethod
    def _command(self) -> Sequence[str | Path]:
        """What to run: in the foreground, on `HOST` and the chosen ports only."""

    def _environment(self) -> Mapping[str, str]:
        """Added to ours."""
        return {}

    def _answers(self) -> bool:
        """Does it serve clients? Here: does it let them connect?"""
        try:
            socket.create_connection((HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _children(self) -> list[int]:
        """Processes of its that outlive it for a moment, and would be in the way of the next start."""
        return []

    def _start_once(self) -> None:
        """One try with these ports."""
        self._check_free(self._ports)
        command = list(map(str, self._command()))
        with self.log.open("ab") as out:
            seen = out.tell()
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=os.environ | self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # a Ctrl-C is for us, not for it
            )
        try:
            self._keeper = keep(self._process)
            until(self._lives_and_answers, f"{self.name} answered")
        except BaseException as error:
            self.kill()
            said = self.log.read_bytes()[seen:].decode(errors="replace")
            if "ddress already in use" in said or "in use by another process" in said:
                raise PortTaken(f"Port {self.port} of {HOST} is taken: choose another.") from None
            if isinstance(error, RigFailed):
                raise RigFailed(f"{error} Its last words, in {self.log}:\n{said[-2000:]}") from None
            raise

    def _check_free(self, ports: Sequence[int]) -> None:
        if not all(map(is_free, ports)):
            raise PortTaken(f"Port {self.port} of {HOST} is taken: choose another.")

    def _lives_and_answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RigFailed(f"{self.name} ended with code {self._process.returncode}.")
        return self._answers()

    def _end(self, by: signal.Signals) -> None:
        """Signal, and wait for the end of it, of its children and of its keeper."""
        if self._process is None:
            return
        self._process.send_signal(by)
        for pid in (*self._children(), self.pid):
            send(signal.SIGCONT, pid)  # what is frozen cannot end
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._keeper is not None:
            self._keeper.wait()
        self._process = self._keeper = None
        until(lambda: not self._children(), f"all processes of {self.name} were gone")


class Several(ABC):
    """Servers that belong together, each of which a test kills and starts on its own.

    `start` starts those that do not run, so it is also how a killed one comes back.
    """

    @property
    @abstractmethod
    def servers(self) -> tuple[Server, ...]:
        """All of them; the first is the one whose port the others have to know."""

    def start(self) -> Self:
        """Start what does not run, at once but for the first time, and wait until all answer."""
        first, *_ = self.servers
        if not first._ports:
            first.start()
        with ThreadPoolExecutor() as pool:
            list(pool.map(Server.start, [server for server in self.servers if not server.runs]))
        return self

    def kill(self) -> None:
        """End all of them like a power switch, but for the page cache."""
        for server in reversed(self.servers):
            server.kill()

    def stop(self) -> None:
        """End all of them in order."""
        for server in reversed(self.servers):
            server.stop()

    def pause(self) -> None:
        """Freeze all that run."""
        for server in self.servers:
            if server.runs:
                server.pause()

    def resume(self) -> None:
        """Let all that are frozen go on."""
        for server in self.servers:
            if server.runs:
                server.resume()

    def __enter__(self) -> Self:
        """Start them; if one does not, none is left."""
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, *_: object) -> None:
        """Kill them: whoever uses them so has no more need of their data."""
        self.kill()


def run(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
    folder: Path | str | None = None,
) -> str:
    """What a program that ends by itself wrote; `RigFailed` with its last words if it failed."""
    try:
        done = subprocess.run(
            list(map(str, command)),
            env=os.environ | (environment or {}),
            cwd=folder,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            input=stdin,
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        raise RigFailed(f"{Path(command[0]).name} took more than {PATIENCE_S} s.") from None
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:]
        raise RigFailed(f"{Path(command[0]).name} ended with code {done.returncode}:\n{said}")
    return done.stdout


def send(what: signal.Signals, pid: int) -> None:
    """Signal a process, if it still is there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, what)


def freeze(pids: list[int]) -> None:
    """Stop processes, and wait until they are."""
    for pid in pids:
        send(signal.SIGSTOP, pid)
    until(lambda: all(state(pid) in "TZ" for pid in pids), "it froze")


def state(pid: int) -> str:
    """As in /proc: R runs, S sleeps, T is frozen, Z is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"
