"""A sink that fails or waits where a test says so, and is otherwise the real one."""

from __future__ import annotations

import threading
from typing import Any

import fencepost as fp
from fencepost.contract import Capabilities, Session

PATIENCE_S = 180


class Boom(Exception):
    """What a broken client library raises."""


class Flaky(fp.Sink):
    """A sink whose session raises `Boom` at one call of one method, over all its sessions."""

    def __init__(self, inner: fp.Sink, method: str, *, at: int = 1) -> None:
        self.name = inner.name
        self._inner = inner
        self._method = method
        self._left = at

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def session(self, job: str) -> Session:
        session = self._inner.session(job)
        setattr(session, self._method, self._instead(getattr(session, self._method)))
        return session

    def _instead(self, method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self.reached()
            return method(*arguments)

        return call

    def reached(self) -> None:
        """What happens there."""
        raise Boom("secret=42")


class Slow(Flaky):
    """The same, but it waits there until it may go on."""

    def __init__(self, inner: fp.Sink, method: str, *, at: int = 1) -> None:
        super().__init__(inner, method, at=at)
        self.waiting = threading.Event()
        self.go_on = threading.Event()

    def reached(self) -> None:
        self.waiting.set()
        assert self.go_on.wait(PATIENCE_S), "nobody let the sink go on"
