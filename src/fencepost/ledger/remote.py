"""A checkpoint on a store that several machines share: HDFS, or an S3-compatible object store.

    hdfs://   temp file ─► hsync ─► rename, which fails if the name is taken
    s3a://    one PUT with `If-None-Match: *`, which fails if the name is taken

Never creates by asking first whether a name is free: between question and write another driver may come.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

STALE_S: Final = 3600
TEMP: Final = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
AT_ONCE: Final = 16
"""So many requests for files that are expected: each waits for an answer, none for a processor."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file or a folder, as a listing tells of it."""

    name: str
    """Below what was asked for."""
    is_folder: bool
    size: int
    changed_s: float
    """By the store's clock."""
    stamp: str


def together(do: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Do it for each, many at a time; the answers are in the order of the items."""
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        # A thread begins without the context, which says how long a store is waited for.
        return [done.result() for done in [pool.submit(copy_context().run, do, item) for item in items]]
    finally:
        pool.shutdown(cancel_futures=True)  # a store that does not answer to one answers to none of the rest


class Remote(ABC):
    """A file system somewhere else, by whole URLs. Raises OSError, and `Unanswered` if it may have done it or not."""

    @abstractmethod
    def create(self, url: str, data: bytes) -> bool:
        """Create a file, whole and durable; False if the name is taken."""

    @abstractmethod
    def replace(self, url: str, data: bytes) -> None:
        """Write a file, whole and durable, over whatever is there."""

    @abstractmethod
    def read(self, url: str) -> bytes | None:
        """The whole file; None if it is not there."""

    @abstractmethod
    def look(self, url: str) -> Found | None:
        """What is there; the name is the last part of the URL."""

    @abstractmethod
    def list(self, url: str) -> Sequence[Found]:
        """What is in a folder, by name; nothing if there is none."""

    @abstractmethod
    def below(self, url: str) -> Sequence[Found]:
        """All files in a folder and in its folders, by name; nothing if there is none."""

    @abstractmethod
    def delete(self, url: str) -> None:
        """Remove a file or a whole folder; gone already is fine."""

    def unlink(self, url: str) -> None:
        """Remove one file; gone already is fine."""
        self.delete(url)

    @abstractmethod
    def fetch(self, url: str, to: Path) -> None:
        """Copy a file here; FileNotFoundError if it is not there."""

    @abstractmethod
    def send(self, path: Path, url: str) -> None:
        """Copy a file there, durably, under a name that nobody else uses."""


class RemoteStore:
    """Files under a folder of a remote file system."""

    def __init__(self, root: str, remote: Remote) -> None:
        self._root = root
        self._remote = remote
        self._expected: dict[str, bytes | None] = {}

    @property
    def root(self) -> str:
        """The folder's URL."""
        return self._root

    def create(self, name: str, data: bytes) -> bool:
        """Create a file, whole and durable; False if the name is taken."""
        return self._remote.create(self._url(name), data)

    def replace(self, name: str, data: bytes) -> None:
        """Write a file, whole and durable, over whatever is there."""
        self._expected.pop(name, None)
        self._remote.replace(self._url(name), data)

    def read(self, name: str) -> bytes | None:
        """The whole file; None if it is not there. One that was expected is the file as it was then."""
        if name in self._expected:
            return self._expected.pop(name)
        return self._remote.read(self._url(name))

    def expect(self, names: Iterable[str]) -> None:
        """Fetch files together that will be read next, each once."""
        wanted = list(names)
        self._expected = dict(zip(wanted, together(self._remote.read, map(self._url, wanted)), strict=True))

    def stamp(self, name: str) -> str | None:
        """What the store itself tells files apart by, and the time: an object store's is made of the content alone."""
        found = self._remote.look(self._url(name))
        return None if found is None else f"{found.stamp} {found.changed_s}"

    def list(self, folder: str) -> tuple[str, ...]:
        """Names in a folder, sorted; none if there is no such folder. Temporary files have no name yet."""
        return tuple(found.name for found in self._remote.list(self._url(folder)) if not TEMP.fullmatch(found.name))

    def sweep(self, folder: str) -> None:
        """Remove temporary files of dead processes; by the store's own clock, newest file against oldest."""
        found = self._remote.list(self._url(folder))
        newest = max((file.changed_s for file in found), default=0.0)
        for file in found:
            if TEMP.fullmatch(file.name) and newest - file.changed_s > STALE_S:
                self.delete(f"{folder}/{file.name}")

    def delete(self, name: str) -> None:
        """Remove a file or a whole folder; gone already is fine."""
        self._expected.clear()
        self._remote.delete(self._url(name))

    def unlink(self, name: str) -> None:
        """Remove one file; gone already is fine."""
        self._remote.unlink(self._url(name))

    def _url(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root
