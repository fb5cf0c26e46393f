"""Waits for a store that does not answer: asks again, ever more rarely, and says so in the log.

Never asks again for a create: it may have been done, and whoever asked must read. Everything else may be done twice.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final, TypeVar

from fencepost.ledger.remote import Found, Remote
from fencepost.ledger.store import Store, Unanswered

T = TypeVar("T")

LONGEST_S: Final = 300.0
"""A store that is away for longer ends the query; the restart strategy goes on from there."""

SILENT_S: Final = 2.0
WORDS_EVERY_S: Final = 30.0

log = logging.getLogger("fencepost")
_longest: ContextVar[float] = ContextVar("longest", default=LONGEST_S)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Wait no longer than that: somebody sits before the terminal."""
    token = _longest.set(min(seconds, _longest.get()))
    try:
        yield
    finally:
        _longest.reset(token)


class Patient(Remote):
    """A remote that is asked again."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def create(self, url: str, data: bytes) -> bool:
        """Once: see `Store.create`."""
        return self._remote.create(url, data)

    def replace(self, url: str, data: bytes) -> None:
        """Until it is done."""
        _patiently(url, lambda: self._remote.replace(url, data))

    def read(self, url: str) -> bytes | None:
        """Until it answers."""
        return _patiently(url, lambda: self._remote.read(url))

    def look(self, url: str) -> Found | None:
        """Until it answers."""
        return _patiently(url, lambda: self._remote.look(url))

    def list(self, url: str) -> Sequence[Found]:
        """Until it answers."""
        return _patiently(url, lambda: self._remote.list(url))

    def below(self, url: str) -> Sequence[Found]:
        """Until it answers."""
        return _patiently(url, lambda: self._remote.below(url))

    def delete(self, url: str) -> None:
        """Until it is done."""
        _patiently(url, lambda: self._remote.delete(url))

    def unlink(self, url: str) -> None:
        """Until it is done."""
        _patiently(url, lambda: self._remote.unlink(url))

    def fetch(self, url: str, to: Path) -> None:
        """Until it is here."""
        _patiently(url, lambda: self._remote.fetch(url, to))

    def send(self, path: Path, url: str) -> None:
        """Until it is there."""
        _patiently(url, lambda: self._remote.send(path, url))


def surely_created(store: Store, name: str, data: bytes) -> bool:
    """Create a file whose bytes nobody else writes; True if it is ours, whatever was answered.

    A client may have asked a second time by itself, and been told that the name is taken: by its own first try.
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
    """How long a silent store is waited for here."""
    return _longest.get()


def _patiently(url: str, ask: Callable[[], T]) -> T:
    began = time.monotonic()
    attempt = 0
    words_at = began + SILENT_S
    while True:
        asked = time.monotonic()
        try:
            return ask()
        except Unanswered as error:
            now = time.monotonic()
            if now - began + (now - asked) > _longest.get():  # the next try would take as long as this one
                raise
            if now > words_at:
                log.warning("the store does not answer (%s), asking again: %s", error.strerror, url)
                words_at = now + WORDS_EVERY_S
        time.sleep(min(0.1 * 2**attempt, 5.0) * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the questions
        attempt += 1
