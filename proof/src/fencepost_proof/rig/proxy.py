"""A TCP proxy before a server, for tests that lose a connection at the worst moment.

Never looks inside TLS: what is to be recognised has to pass as it is.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from fencepost_proof.rig.process import HOST, free_ports

QUIET_S = 0.3
"""A server that has said something and then nothing for so long has said all: one answer may come in many pieces."""

Marker = bytes | Callable[[bytes], bool]
"""What to wait for in the bytes of clients: these, or any that a function says yes to."""


@dataclass(frozen=True)
class _Trap:
    marker: Marker
    forwards: bool

    def sees(self, before: bytes, new: bytes) -> bool:
        """Is it in what came, or does it end there?"""
        if not isinstance(self.marker, bytes):
            return self.marker(new)
        return self.marker in before[max(0, len(before) - len(self.marker) + 1) :] + new


@dataclass
class Proxy:
    """Passes all bytes to a server's port and back, until told otherwise. Each trap is for one connection, once.

    A cut before COMMIT and a lost answer look the same to the client, and only the server knows which it was.
    """

    server_port: int
    port: int = field(default=0, init=False)
    """Where clients connect."""
    connections: int = field(default=0, init=False)
    """How many were let through."""
    answers_dropped: int = field(default=0, init=False)
    cuts: int = field(default=0, init=False)
    """How many connections were closed by `cut_before` and `cut`."""
    _listener: socket.socket = field(default_factory=socket.socket, init=False, repr=False)
    _open: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _closed: bool = field(default=False, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _traps: list[_Trap] = field(default_factory=list, init=False, repr=False)
    _links: list[_Link] = field(default_factory=list, init=False, repr=False)

    def __enter__(self) -> Self:
        """Listen on a free port."""
        while True:  # somebody may be quicker
            [self.port] = free_ports(1)  # chosen by us, as one that the kernel chose is lost when not listened on
            with contextlib.suppress(OSError):
                self._listener.bind((HOST, self.port))
                break
        self.refuse(False)
        threading.Thread(target=self._accept, daemon=True, name="proxy").start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close all there is."""
        self._closed = True
        self.refuse(True)
        self._open.set()
        self._close_all()
        self._listener.close()

    def drop_answer_after(self, marker: Marker) -> None:
        """Let the next such request be done, and lose its answer: the server has it, and the client cannot know."""
        self._arm(_Trap(marker, forwards=True))

    def cut_before(self, marker: Marker) -> None:
        """Close the connection that the next such request comes on. The server never gets it."""
        self._arm(_Trap(marker, forwards=False))

    def cut(self) -> None:
        """Close all connections now. New ones are let through."""
        self.count(cuts=self._close_all())

    def refuse(self, yes: bool) -> None:
        """Whether new connections are refused, as by a server that is down. Open ones stay."""
        if yes and self._open.is_set():
            self._open.clear()
            self._listener.shutdown(socket.SHUT_RDWR)  # it keeps its port, and can listen again
        elif not yes and not self._open.is_set():
            self._listener.listen()
            self._open.set()

    def _arm(self, trap: _Trap) -> None:
        with self._lock:
            self._traps.append(trap)

    def sprung(self, before: bytes, new: bytes) -> _Trap | None:
        """The trap that these bytes of a client went into; it is used up."""
        with self._lock:
            for trap in self._traps:
                if trap.sees(before, new):
                    self._traps.remove(trap)
                    return trap
        return None

    def count(self, *, answers_dropped: int = 0, cuts: int = 0) -> None:
        """So many more."""
        with self._lock:
            self.answers_dropped += answers_dropped
            self.cuts += cuts

    def _accept(self) -> None:
        while not self._closed:
            self._open.wait()
            try:
                client, _ = self._listener.accept()
            except OSError:  # it was told to refuse, or to end
                continue
            try:
                server = socket.create_connection((HOST, self.server_port))
            except OSError:
                client.close()
                continue
            link = _Link(self, client, server)
            with self._lock:
                self.connections += 1
                self._links = [one for one in self._links if not one.closed] + [link]
            link.start()

    def _close_all(self) -> int:
        with self._lock:
            return sum(link.close() for link in self._links)


@dataclass(eq=False)
class _Link:
    """One client's connection and the one to the server that stands for it, with a thread for each direction."""

    proxy: Proxy
    client: socket.socket
    server: socket.socket
    dropping: bool = False
    closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        for end in (self.client, self.server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for direction in (self._up, self._down):
            threading.Thread(target=self._run, args=(direction,), daemon=True, name="proxy").start()

    def close(self) -> bool:
        """Close both ends; was this the first time?"""
        with self._lock:
            first, self.closed = not self.closed, True
        if first:
            for end in (self.client, self.server):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
                end.close()
        return first

    def _run(self, direction: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):
            direction()
        self.close()

    def _up(self) -> None:
        before = b""
        while new := self.client.recv(65536):
            trap = self.proxy.sprung(before, new)
            if trap is not None:
                if not trap.forwards:
                    self.proxy.count(cuts=1)
                    return
                self.dropping = True
            self.server.sendall(new)
            before = (before + new)[-1024:]

    def _down(self) -> None:
        while answer := self.server.recv(65536):
            if self.dropping:
                while select.select([self.server], [], [], QUIET_S)[0] and self.server.recv(65536):
                    pass
                self.proxy.count(answers_dropped=1)
                return
            self.client.sendall(answer)
