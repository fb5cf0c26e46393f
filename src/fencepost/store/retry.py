"""Waits for a store that does not answer: retries with backoff, and says so in the log.

Never retries a create: it may have happened, and the caller must read to find out. Everything else is safe to repeat.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from fencepost.store.base import Remote, Store, Unanswered, altered

T = TypeVar("T")

LONGEST_S: Final = 300.0
"""If a store is down for longer, the query fails; then the restart strategy takes over."""

SILENT_S: Final = 2.0
WORDS_EVERY_S: Final = 30.0

log = logging.getLogger("fencepost")
_longest: ContextVar[float] = ContextVar("longest", default=LONGEST_S)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Wait no longer than this inside the block: somebody is sitting at the terminal."""
    token = _longest.set(min(seconds, _longest.get()))
    try:
        yield
    finally:
        _longest.reset(token)


AGAIN: Final = ("replace", "read", "look", "list", "below", "delete", "unlink", "fetch", "send")


def patient(remote: Remote) -> Remote:
    """The same remote, with every request retried until it answers, except a create: see `Store.create`."""
    again = {name: partial(_patiently, getattr(remote, name)) for name in AGAIN}
    return altered(remote, create=remote.create, **again)


def surely_created(store: Store, name: str, data: bytes) -> bool:
    """Create a file whose bytes nobody else writes; True if it is ours, whatever the answer was.

    A client may retry by itself, and then be told that the name is taken: by its own first attempt.
    """
    began = time.monotonic()
    while True:
        try:
            return store.create(name, data) or store.read(name) == data
        except Unanswered:
            if (found := store.read(name)) is not None:
                return found == data
            if time.monotonic() - began > _longest.get():
                raise
        time.sleep(0.5)


def longest_s() -> float:
    """How long we wait here for a store that does not answer."""
    return _longest.get()


def _patiently(ask: Callable[..., T], *what: Any) -> T:
    began = time.monotonic()
    attempt = 0
    words_at = began + SILENT_S
    while True:
        asked = time.monotonic()
        try:
            return ask(*what)
        except Unanswered as error:
            now = time.monotonic()
            if now - began + (now - asked) > _longest.get():  # the next attempt would take as long as this one
                raise
            if now > words_at:
                log.warning("the store does not answer (%s), retrying: %s", error.strerror, error.filename)
                words_at = now + WORDS_EVERY_S
        time.sleep(min(0.1 * 2**attempt, 5.0) * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the requests
        attempt += 1


class Aside:
    """Asks a store that may never answer, in its own daemon thread, which never keeps the process alive.

    Never queues up requests: while one is unanswered, the next is not sent.
    """

    def __init__(self, name: str, patience_s: float = 0.0) -> None:
        self._name = name
        self._patience_s = patience_s
        """How long a request is retried; by default the caller asks again next time."""
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._change = threading.Lock()
        self._thread: threading.Thread | None = None
        self._last: Future[Any] | None = None

    def ask(self, what: Callable[[], T], wait_s: float, *, after: bool = False) -> T | None:
        """The answer; None if it failed, did not come in time, or the previous request is still unanswered.

        With `after`, the request is sent anyway, as soon as the previous one is answered.
        """
        with self._change:
            if self._last is not None and not self._last.done() and not after:
                return None
            answer = self._put(what)
        with suppress(Exception):
            return answer.result(wait_s)
        return None

    def begin(self, what: Callable[[], T]) -> Future[T]:
        """The answer that will come, to this request or to the one that is still unanswered."""
        with self._change:
            if self._last is not None and not self._last.done():
                return self._last
            return self._put(what)

    def _put(self, what: Callable[[], T]) -> Future[T]:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"fencepost-{self._name}", daemon=True)
            thread.start()
            self._thread = thread
        answer: Future[T] = Future()
        self._last = answer
        self._tasks.put((answer, what))
        return answer

    def _run(self) -> None:
        while True:
            answer, what = self._tasks.get()
            try:
                with at_most(self._patience_s):
                    answer.set_result(what())
            except Exception as error:  # noqa: BLE001 - the caller gets it
                answer.set_exception(error)
            except BaseException as error:  # noqa: BLE001 - a SystemExit would end this thread, and no request would end
                answer.set_exception(RuntimeError(type(error).__name__))
            del answer, what  # nothing is held while it waits for the next request
