"""Servers that all tests share, owned by the process that the user started and asked for by its workers.

Never owned by a worker: when one crashes, its servers would go with it, and with them the tests of all others.
"""

from __future__ import annotations

import io
import pickle
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from fencepost_proof.rig.server import state

Server = AbstractContextManager[Any]
"""What is started and ended: one process, or several that belong together."""

Answer = Callable[[str, str], Any]
"""`answer("why_not", "kafka")`, `answer("server", "broker")`: the same from the owner itself and from a worker."""


class Owner:
    """Looks for a service and starts a server when somebody first asks, and ends all of them."""

    def __init__(self, why_not: Callable[[str], str | None], servers: Mapping[str, Callable[[], Server]]) -> None:
        self._why_not = why_not
        self._servers = servers
        self._locks: defaultdict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)
        self._known: dict[tuple[str, str], bytes] = {}
        self._started: list[Server] = []
        self._listener: Listener | None = None

    @property
    def address(self) -> str:
        """Where workers ask. Its folder is ours alone."""
        if self._listener is None:
            self._listener = Listener(family="AF_UNIX")
            threading.Thread(target=self._listen, args=(self._listener,), daemon=True).start()
        return str(self._listener.address)

    def answer(self, kind: str, name: str) -> Any:
        """Why a service is missing, or where a server is: a copy that can be asked and not ended."""
        return said(self._answer(kind, name))

    def close(self) -> None:
        """End what was started. If we are killed before this, the keeper of each server does it."""
        if self._listener is not None:
            self._listener.close()
        for server in reversed(self._started):
            server.__exit__(None, None, None)

    def _answer(self, kind: str, name: str) -> bytes:
        with self._locks[kind, name]:
            if (kind, name) not in self._known:
                try:
                    found = self._why_not(name) if kind == "why_not" else self._start(name)
                except Exception as error:  # noqa: BLE001 - it is raised where it was asked for
                    found = error
                self._known[kind, name] = packed(found)
            return self._known[kind, name]

    def _start(self, name: str) -> Any:
        server = self._servers[name]()
        made = server.__enter__()
        self._started.append(server)
        return made

    def _listen(self, listener: Listener) -> None:
        while True:
            try:
                asking = listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(asking,), daemon=True).start()

    def _serve(self, asking: Connection) -> None:
        with asking, suppress(EOFError, OSError):
            asking.send_bytes(self._answer(*asking.recv()))


def asked_of(address: str) -> Answer:
    """How a worker asks."""

    def answer(kind: str, name: str) -> Any:
        with Client(address) as owner:
            owner.send((kind, name))
            return said(owner.recv_bytes())

    return answer


class Elsewhere:
    """The process of a shared server, which tests see and never end: who wants to kill one starts one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        return -1 if state(self.pid) == "Z" else None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AssertionError(f"{name} of a server that other tests use at the same time: start one of your own")


class Packer(pickle.Pickler):
    """Processes do not travel."""

    def reducer_override(self, value: Any) -> Any:
        return (Elsewhere, (value.pid,)) if isinstance(value, subprocess.Popen) else NotImplemented


def packed(value: Any) -> bytes:
    into = io.BytesIO()
    Packer(into).dump(value)
    return into.getvalue()


def said(data: bytes) -> Any:
    found = pickle.loads(data)  # noqa: S301 - our own
    if isinstance(found, Exception):
        raise found
    return found
