"""Folders that get their name in one step, when they are complete: there is no half one.

Whoever makes one holds a lock on it, which dies with its process; so what a dead maker left is told from what a living
one makes.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

YOUNG_S = 60
"""A folder this young is never swept, locked or not: its maker may be about to lock it."""


def hidden(place: Path) -> Path:
    """A name beside `place` that nobody else uses."""
    return place.with_name(f".{place.name}.{uuid.uuid4().hex}.half")


@contextmanager
def hidden_folder(place: Path) -> Iterator[Path]:
    """A folder beside `place`, to be renamed to it; gone at the end if it was not."""
    temp = hidden(place)
    temp.mkdir()
    try:
        with _locked(temp):
            yield temp
    finally:
        shutil.rmtree(temp, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what dead makers left; by their lock, and by age."""
    for path in filter(_is_hidden, folder.iterdir()):
        with suppress(OSError):  # its maker lives, or somebody else sweeps as well
            if time.time() - path.stat().st_mtime > YOUNG_S:
                with _locked(path):
                    shutil.rmtree(path)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _is_hidden(path: Path) -> bool:
    return re.fullmatch(r"\..+\.[0-9a-f]{32}\.half", path.name) is not None and path.is_dir()
