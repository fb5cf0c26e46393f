"""What fencepost needs from the place that holds a checkpoint.

    Store          files under one root, by relative names: LocalStore, RemoteStore
    Remote         what a RemoteStore is built on, a remote file system, by full URLs: S3Remote and WebHdfsRemote
                   without Spark, HadoopRemote through Spark's session

A store that cannot create a file exclusively and whole cannot hold a ledger: two drivers could both decide. Never
checks whether a name is free and then writes: another driver could write in between.
"""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

STALE_S: Final = 3600
TEMP: Final = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
AT_ONCE: Final = 16
"""How many requests run at the same time: they wait for answers, not for a processor."""
CONNECT_S: Final = 3.0
READ_S: Final = 10.0
"""After this long without a byte, a remote counts as not answering. Both together are less than people will wait."""


class Unanswered(OSError):
    """The store did not answer: it may or may not have done what was asked. Find out by reading; never guess."""


class Store(ABC):
    """Files under one root, named by relative paths with `/`."""

    root: str
    """For people and for Spark: the path of the checkpoint."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Create a file, whole and durable; False if the name is taken. Two callers never both get True.

        Raises `Unanswered` if the file may or may not have been created.
        """

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Write a file, whole and durable, replacing whatever is there."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The whole file; None if it does not exist."""

    def expect(self, names: Iterable[str]) -> None:
        """Announce files that will be read next, each once: a remote store fetches them all at the same time."""

    @abstractmethod
    def stamp(self, name: str) -> str | None:
        """Something that another file of the same name will not have; None if the file does not exist."""

    @abstractmethod
    def list(self, folder: str) -> tuple[str, ...]:
        """Names in a folder, sorted; empty if there is no such folder."""

    @abstractmethod
    def sweep(self, folder: str) -> None:
        """Remove half-written files that crashed writers left, if they are too old to belong to a live one."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file or a whole folder, if it exists."""

    def unlink(self, name: str) -> None:
        """Remove one file, if it exists. An object store need not check first whether it is a folder."""
        self.delete(name)


def altered(whole: T, **methods: Callable[..., Any]) -> T:
    """The same store or remote with some of its methods replaced."""
    other = copy(whole)
    for name, method in methods.items():
        setattr(other, name, method)
    return other


def read_only(store: Store) -> Store:
    """The same store for checks that would record what they saw: everything that writes does nothing."""

    def nothing(*_: object) -> None:
        pass

    def would_create(name: str, _: bytes) -> bool:
        return store.read(name) is None

    return altered(store, create=would_create, replace=nothing, sweep=nothing, delete=nothing, unlink=nothing)


def ledger_folder(lineage: str) -> str:
    """The folder of a lineage's records, relative to the checkpoint."""
    return f"fencepost/{lineage}/ledger"


def record_name(lineage: str, number: int) -> str:
    """The file of one record; names sort like numbers."""
    return f"{ledger_folder(lineage)}/{number:020d}.json"


def record_numbers(store: Store, lineage: str) -> tuple[int, ...]:
    """The numbers of a lineage's records, ascending."""
    names = store.list(ledger_folder(lineage))
    return tuple(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit())


@dataclass(frozen=True, slots=True)
class Found:
    """A file or a folder, as a listing reports it."""

    name: str
    """Relative to what was listed."""
    is_folder: bool
    size: int
    changed_s: float
    """By the store's clock."""
    stamp: str


class Remote(ABC):
    """A remote file system, by full URLs. Raises OSError, or `Unanswered` if it may or may not have done it.

    hdfs://   temp file ─► hsync ─► rename, which fails if the name is taken
    s3a://    one PUT with `If-None-Match: *`, which fails if the name is taken
    """

    @abstractmethod
    def create(self, url: str, data: bytes) -> bool:
        """Create a file, whole and durable; False if the name is taken."""

    @abstractmethod
    def replace(self, url: str, data: bytes) -> None:
        """Write a file, whole and durable, replacing whatever is there."""

    @abstractmethod
    def read(self, url: str) -> bytes | None:
        """The whole file; None if it does not exist."""

    @abstractmethod
    def look(self, url: str) -> Found | None:
        """What is there, named by the last part of the URL; None if nothing is."""

    @abstractmethod
    def list(self, url: str) -> Sequence[Found]:
        """What is in a folder, sorted by name; empty if there is no such folder."""

    @abstractmethod
    def below(self, url: str) -> Sequence[Found]:
        """All files in a folder and its subfolders, sorted by name; empty if there is no such folder."""

    @abstractmethod
    def delete(self, url: str) -> None:
        """Remove a file or a whole folder, if it exists."""

    def unlink(self, url: str) -> None:
        """Remove one file, if it exists."""
        self.delete(url)

    @abstractmethod
    def fetch(self, url: str, to: Path) -> None:
        """Download a file; FileNotFoundError if it does not exist."""

    @abstractmethod
    def send(self, path: Path, url: str) -> None:
        """Upload a file, durably, under a name that nobody else uses."""


class RemoteStore(Store):
    """Files under a folder of a remote file system."""

    def __init__(self, root: str, remote: Remote) -> None:
        self.root = root
        self._remote = remote
        self._expected: dict[str, bytes | None] = {}

    def create(self, name: str, data: bytes) -> bool:
        return self._remote.create(self._url(name), data)

    def replace(self, name: str, data: bytes) -> None:
        self._expected.pop(name, None)
        self._remote.replace(self._url(name), data)

    def read(self, name: str) -> bytes | None:
        """A file that was expected is returned as it was then."""
        if name in self._expected:
            return self._expected.pop(name)
        return self._remote.read(self._url(name))

    def expect(self, names: Iterable[str]) -> None:
        wanted = list(names)
        self._expected = dict(zip(wanted, together(self._remote.read, map(self._url, wanted)), strict=True))

    def stamp(self, name: str) -> str | None:
        """The store's own stamp plus the time, because an object store's stamp depends on the content alone."""
        found = self._remote.look(self._url(name))
        return None if found is None else f"{found.stamp} {found.changed_s}"

    def list(self, folder: str) -> tuple[str, ...]:
        """Without temporary files, which do not have their name yet."""
        return tuple(found.name for found in self._remote.list(self._url(folder)) if not TEMP.fullmatch(found.name))

    def sweep(self, folder: str) -> None:
        """By the store's own clock: the newest file there tells the time."""
        found = self._remote.list(self._url(folder))
        newest = max((file.changed_s for file in found), default=0.0)
        for file in found:
            if TEMP.fullmatch(file.name) and newest - file.changed_s > STALE_S:
                self.delete(f"{folder}/{file.name}")

    def delete(self, name: str) -> None:
        self._expected.clear()
        self._remote.delete(self._url(name))

    def unlink(self, name: str) -> None:
        self._remote.unlink(self._url(name))

    def _url(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root


def together(do: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Call `do` for each item, many at a time; the results are in the order of the items."""
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        # A new thread has no context of its own, and the context says how long to wait for a store.
        return [done.result() for done in [pool.submit(copy_context().run, do, item) for item in items]]
    finally:
        pool.shutdown(cancel_futures=True)  # a store that failed to answer one request will not answer the rest


def temp_beside(url: str) -> str:
    """A name that nobody else uses, for a file that is still being written; see `TEMP`."""
    folder, _, name = url.rpartition("/")
    return f"{folder}/.{name}.{uuid.uuid4().hex}.tmp"


def split(url: str) -> tuple[str, str]:
    """The store's name, and the path in it. Nothing in a URL is escaped: `%`, `?` and `#` stand for themselves."""
    store, _, path = url.partition("://")[2].partition("/")
    return store, path
