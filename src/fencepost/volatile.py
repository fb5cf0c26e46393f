"""Folders that are gone with the process that made them: checkpoints in memory, and copies of remote files.

    /dev/shm/fencepost-<user>/<random>/<job>       where there is no such place, the folder for temporary files
    /dev/shm/fencepost-<user>/<random>.lock        held by the process, so that others see whether it lives

Never survives the process on purpose: whoever needs that names a path.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
import uuid
from pathlib import Path
from typing import IO
from urllib.parse import quote

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own in it, not a file that others can guess

_lock = threading.Lock()
_mine: dict[tuple[int, bool], tuple[Path, IO[bytes]]] = {}
"""By process, for a fork has a folder of its own, and by where it is: its folder, and the open lock file."""


def folder(name: str, *, on_disk: bool = False) -> str:
    """The folder of this name in this process: the same at every call."""
    key = os.getpid(), on_disk
    with _lock:
        if key not in _mine:
            place = _place(on_disk=on_disk)
            sweep(place)
            _mine[key] = _make(place)
            atexit.register(remove)
        return str(_mine[key][0] / quote(name, safe=""))


def remove() -> None:
    """Let go of this process's folders."""
    for on_disk in (False, True):
        if (mine := _mine.pop((os.getpid(), on_disk), None)) is not None:
            _delete(*mine)


def sweep(place: Path) -> None:
    """Remove the folders of processes that died without doing so."""
    for lost in place.glob("*[!k]"):  # a JVM that ended after its Python wrote once more, when the lock was gone
        if not lost.with_suffix(".lock").exists():
            shutil.rmtree(lost, ignore_errors=True)
    for lock in place.glob("*.lock"):
        try:
            file = open(lock, "rb")  # noqa: SIM115 - closing lets go of the lock
        except FileNotFoundError:
            continue
        if _alone(file, lock):
            _delete(lock.with_suffix(""), file)
        else:
            file.close()


def _place(*, on_disk: bool) -> Path:
    shared = os.access(SHARED_MEMORY, os.W_OK) and not on_disk
    root = SHARED_MEMORY if shared else Path(tempfile.gettempdir())
    place = root / f"fencepost-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    if place.stat().st_uid != os.getuid():  # somebody took the name: a folder that nobody can foresee
        return Path(tempfile.mkdtemp(prefix="fencepost-", dir=root))
    return place


def _make(place: Path) -> tuple[Path, IO[bytes]]:
    while True:
        made = place / uuid.uuid4().hex
        file = open(made.with_suffix(".lock"), "xb")  # noqa: SIM115 - held as long as the process lives
        if _alone(file, made.with_suffix(".lock")):
            made.mkdir()
            return made, file
        file.close()  # a sweep came between


def _alone(file: IO[bytes], path: Path) -> bool:
    """Is it locked by us now, and still the file of that name? The kernel takes a lock back when its process dies."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _delete(made: Path, file: IO[bytes]) -> None:
    shutil.rmtree(made, ignore_errors=True)
    made.with_suffix(".lock").unlink(missing_ok=True)
    file.close()
