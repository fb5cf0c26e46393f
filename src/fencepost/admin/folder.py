"""Folders that appear whole or not at all: savepoints and restored checkpoints while they are written.

    local     a hidden folder beside its final name, locked ─► the files ─► the last file ─► rename
    remote    .begun, created exclusively ─► the files ─► the last file, created exclusively ─► .begun is removed

A lock dies with its process, so what a dead command left can be told from what a running one writes. An object store
renames file by file; there only the last file makes the folder valid, and what a dead command left stays until a person
removes it. Never removes a folder that another command has claimed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fencepost.errors import UNCHANGED, BadConfig, CheckpointRefused, Where
from fencepost.observe.terminal import Tell, nobody
from fencepost.store import Place, RemotePath, Store, each, store_at
from fencepost.store.local import make_folder, sync_folder
from fencepost.store.parts import Measured, Part, Problem, examine
from fencepost.store.retry import surely_created

BEGUN = ".begun"
YOUNG_S = 60
"""A folder this young is never swept, locked or not: its creator may be about to lock it."""


class Half(ABC):
    """A folder being written. Note: until `appear` it does not count, whatever files it has."""

    folder: Place
    """Where its files go."""

    @abstractmethod
    def finish(self, name: str, data: bytes) -> bool:
        """Make everything durable and create the last file; False if somebody else has the place by now."""

    @abstractmethod
    def appear(self) -> bool:
        """Give it its final name; False if that is taken."""


@contextmanager
def making(place: Place) -> Iterator[Half | None]:
    """A folder to be written there; None if something exists already. What did not appear is removed at the end."""
    if isinstance(place, RemotePath):
        with _claimed(place) as claim:
            yield claim
        return
    make_folder(place.parent)
    sweep(place.parent)
    with hidden_folder(place) as temp:
        yield _Hidden(temp, place)
    sync_folder(place.parent)


@dataclass(slots=True)
class _Hidden(Half):
    """On a local disk."""

    folder: Path
    place: Path

    def finish(self, name: str, data: bytes) -> bool:
        created = store_at(self.folder).create(name, data)
        for folder, _, _ in os.walk(self.folder, topdown=False):
            sync_folder(Path(folder))
        return created

    def appear(self) -> bool:
        try:
            self.folder.rename(self.place)
        except OSError:
            if self.place.exists():
                return False
            raise
        return True


@dataclass(slots=True)
class _Claim(Half):
    """On a remote store: one command's claim to a place."""

    folder: RemotePath
    store: Store
    mark: bytes
    is_over: bool = False
    is_ours: bool = True
    """May we remove what is there? Not once the last file may exist, nor if somebody else took the claim."""

    def finish(self, name: str, data: bytes) -> bool:
        self.is_ours = False
        if self.store.read(BEGUN) != self.mark:
            return False
        created = surely_created(self.store, name, data)
        self.is_over = True
        return created

    def appear(self) -> bool:
        return True  # with its last file


@contextmanager
def _claimed(place: RemotePath) -> Iterator[_Claim | None]:
    claim = _Claim(place, store_at(place), uuid.uuid4().hex.encode())
    # Claim first, then look: the other way round, something could appear in between.
    if not surely_created(claim.store, BEGUN, claim.mark):
        yield None
        return
    # HDFS lists the temporary files of other claims as `.begun-…`; those claims will fail.
    if not all(name.startswith(BEGUN) for name in claim.store.list("")):
        claim.store.unlink(BEGUN)
        yield None
        return
    try:
        yield claim
    finally:
        with suppress(OSError):  # what stays is half a folder, or a whole one with an extra file that nobody reads
            if claim.is_over:
                claim.store.unlink(BEGUN)
            elif claim.is_ours and claim.store.read(BEGUN) == claim.mark:
                clear(place)


def clear(place: RemotePath) -> None:
    """Remove everything there, the claim last: until it is gone, nobody else starts."""
    store = store_at(place)
    for name in store.list(""):
        if name != BEGUN:
            store.delete(name)
    store.delete("")


def half_made(place: Place) -> BadConfig:
    """Only a person can tell whether the command that began it is still running."""
    return BadConfig(
        "half_made",
        "There is an unfinished folder here: the command that began it died, or is still running.",
        where=Where(path=str(place)),
        safe=UNCHANGED,
        next="Check that no other machine is running this command, remove the folder with the store's own tools, then "
        "repeat the command.",
    )


@contextmanager
def hidden_folder(place: Path) -> Iterator[Path]:
    """A locked folder beside `place`; removed at the end, unless it was renamed."""
    temp = hidden(place)
    temp.mkdir()
    try:
        with _locked(temp):
            yield temp
    finally:
        shutil.rmtree(temp, ignore_errors=True)


def hidden(place: Path) -> Path:
    """A name beside `place` that nobody else uses."""
    return place.with_name(f".{place.name}.{uuid.uuid4().hex}.half")


def sweep(folder: Path) -> None:
    """Remove what dead commands left, judged by lock and age."""
    for path in filter(_is_hidden, folder.iterdir()):
        with suppress(OSError):  # its creator is alive, or somebody else is sweeping too
            if time.time() - path.stat().st_mtime > YOUNG_S:
                with _locked(path):
                    shutil.rmtree(path)


def _is_hidden(path: Path) -> bool:
    return re.fullmatch(r"\..+\.[0-9a-f]{32}\.half", path.name) is not None and path.is_dir()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def copy_files(root: Place, to: Place, names: Iterable[str], tell: Tell = nobody) -> None:
    """Copy files durably; their names become durable with their folders. On a remote store, many at a time."""
    far = to if isinstance(to, RemotePath) else root
    watch = partial(tell, "Copying")
    for _, problem in each(far, lambda name: copy_part(root, Part(name, "other"), to / name), names, watch):
        if problem is not None:
            raise CheckpointRefused(
                "copy_failed",
                f"{problem}.",
                where=Where(path=str(root)),
                safe="Safe: the incomplete copy was removed.",
                next="Check that nothing else changes the folder, then repeat the command.",
            )


def copy_part(root: Place, part: Part, to: Place) -> tuple[Measured | None, Problem | None]:
    """Copy a part of a checkpoint to a new file, verifying its checksums on the way.

    A damaged part is not uploaded to a remote store.
    """
    if not isinstance(to, RemotePath):
        make_folder(to.parent)
        with open(to, "xb") as out:
            examined = examine(root, part, out)
            out.flush()
            os.fsync(out.fileno())
        return examined
    with tempfile.TemporaryDirectory(prefix="fencepost-") as folder:
        here = Path(folder) / "part"
        with here.open("xb") as out:
            measured, problem = examine(root, part, out)
        if problem is None:
            to.send(here)
    return measured, problem
