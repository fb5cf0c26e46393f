"""Which jobs were started on this machine, and where their checkpoints are: `fencepost status orders` finds them here.

    <home>/jobs/<name>.<checkpoint's digest>.json        one file each, replaced whole at every start
    <home>/checkpoints/<name>.<its digest>/              of one on a remote store: its journal

A help to find things, and nothing rests on it: it may be deleted at any time, and a start never fails for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from fencepost.ledger import RemotePath, place

HOME = "FENCEPOST_HOME"
"""Names the folder, if it is not to be where the XDG rules put it."""


@dataclass(frozen=True, slots=True)
class Noted:
    """One job at one checkpoint, as of its last start."""

    name: str
    checkpoint: str
    file: str | None
    """The script that started it; None for a notebook or a shell."""
    host: str
    time: str

    @property
    def is_there(self) -> bool:
        """Does the checkpoint exist, seen from here? A remote one is not asked for that: it may take its time."""
        where = place(self.checkpoint)
        return isinstance(where, RemotePath) or where.is_dir()


def home() -> Path:
    """The folder for what is known about jobs beyond their checkpoints."""
    if told := os.environ.get(HOME):
        return Path(told)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "fencepost"


def whole(checkpoint: str | os.PathLike[str] | RemotePath) -> str:
    """As it is noted: a folder by its real path, a remote one by its URL."""
    where = place(checkpoint)
    return where.url if isinstance(where, RemotePath) else os.path.realpath(where)


def folder_for(checkpoint: RemotePath) -> Path:
    """Where this machine keeps what people may want to know of a remote checkpoint, and what is appended to."""
    return home() / "checkpoints" / f"{_safe(checkpoint.name)}.{_digest(checkpoint.url)}"


def note(name: str, checkpoint: str | os.PathLike[str], file: str | os.PathLike[str] | None = None) -> None:
    """Note a start. Never raises: a home that cannot be written only means that the job is not found by its name."""
    with suppress(OSError, RuntimeError, ValueError):
        there = whole(checkpoint)
        script = None if file is None else os.path.realpath(file)
        noted = Noted(name, there, script, socket.gethostname(), datetime.now(UTC).isoformat(timespec="seconds"))
        folder = home() / "jobs"
        folder.mkdir(parents=True, exist_ok=True)
        _forget_gone(folder, name)
        temp = folder / f".{uuid.uuid4().hex}"
        temp.write_text(json.dumps(asdict(noted), indent=1), encoding="utf-8")
        temp.replace(folder / f"{_safe(name)}.{_digest(there)}.json")


def forget(checkpoint: RemotePath) -> None:
    """A remote checkpoint was deleted; what was beside it here goes too."""
    with suppress(OSError, RuntimeError):
        for path in (home() / "jobs").glob(f"*.{_digest(checkpoint.url)}.json"):
            path.unlink(missing_ok=True)
        shutil.rmtree(folder_for(checkpoint), ignore_errors=True)


def by_name(name: str) -> list[Noted]:
    """Where a job of this name has a checkpoint that is there, newest start first."""
    return [noted for noted in _read(f"{_safe(name)}.*.json") if noted.name == name]


def by_file(file: str | os.PathLike[str]) -> list[Noted]:
    """The jobs that this script started last, with checkpoints that are there."""
    script = os.path.realpath(file)
    return [noted for noted in everything() if noted.file == script]


def everything() -> list[Noted]:
    """All that is known, newest start first."""
    return _read("*.json")


def _read(pattern: str) -> list[Noted]:
    found = []
    with suppress(OSError, RuntimeError):
        for path in (home() / "jobs").glob(pattern):
            if (noted := _one(path)) is not None and noted.is_there:
                found.append(noted)
    return sorted(found, key=lambda noted: noted.time, reverse=True)


def _one(path: Path) -> Noted | None:
    """None for a file that cannot be read: somebody's, or a newer version's."""
    try:
        return Noted(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _forget_gone(folder: Path, name: str) -> None:
    """Checkpoints that were deleted since; otherwise tests and notebooks would fill the folder."""
    for path in folder.glob(f"{_safe(name)}.*.json"):
        noted = _one(path)
        if noted is not None and noted.host == socket.gethostname() and not noted.is_there:
            path.unlink(missing_ok=True)


def _digest(checkpoint: str) -> str:
    return hashlib.sha256(checkpoint.encode()).hexdigest()[:12]


def _safe(name: str) -> str:
    """Part of a file's name; two names that look alike in it differ in the text of their files."""
    return re.sub(r"[^\w-]", "_", name)[:100]
