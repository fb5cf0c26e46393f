"""Which jobs were started on this machine, and where their checkpoints are: `fencepost status orders` finds them here.

    <home>/jobs/<name>.<checkpoint's digest>.json        one file each, replaced whole at every start
    <home>/checkpoints/<name>.<its digest>/              of one on a remote store: its journal

Only a convenience, and nothing depends on it: it may be deleted at any time, and a start never fails because of it.
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

from fencepost.protocol.format import StoredFormat, known
from fencepost.store import RemotePath, place

REGISTRY = StoredFormat("The registry", 1)
HOME = "FENCEPOST_HOME"
"""The environment variable that overrides the XDG folder."""


@dataclass(frozen=True, slots=True)
class Noted:
    """One job and one checkpoint, as of its last start."""

    name: str
    checkpoint: str
    script: str | None
    """The file that started it; None for a notebook or a shell."""
    host: str
    at: str

    @property
    def is_there(self) -> bool:
        """Does the checkpoint exist, seen from here? A remote store is not asked, because it may be slow."""
        where = place(self.checkpoint)
        return isinstance(where, RemotePath) or where.is_dir()


def home() -> Path:
    """The folder for what we know about jobs outside their checkpoints."""
    if told := os.environ.get(HOME):
        return Path(told)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "fencepost"


def whole(checkpoint: str | os.PathLike[str] | RemotePath) -> str:
    """As the registry writes it: a folder by its real path, a remote checkpoint by its URL."""
    where = place(checkpoint)
    return where.url if isinstance(where, RemotePath) else os.path.realpath(where)


def key_of(checkpoint: str | os.PathLike[str] | RemotePath) -> str:
    """A short name for a checkpoint, made of hexadecimal digits; the same on every machine that sees the same path."""
    return _digest(whole(checkpoint))


def folder_for(checkpoint: RemotePath) -> Path:
    """Where this machine keeps a remote checkpoint's journal."""
    return home() / "checkpoints" / f"{_safe(checkpoint.name)}.{_digest(checkpoint.url)}"


def note(name: str, checkpoint: str | os.PathLike[str], file: str | os.PathLike[str] | None = None) -> None:
    """Record a start. Never raises: without a writable folder, the job just cannot be found by its name."""
    with suppress(OSError, RuntimeError, ValueError):
        there = whole(checkpoint)
        script = None if file is None else os.path.realpath(file)
        noted = Noted(name, there, script, socket.gethostname(), datetime.now(UTC).isoformat(timespec="seconds"))
        folder = home() / "jobs"
        folder.mkdir(parents=True, exist_ok=True)
        _forget_gone(folder, name)
        temp = folder / f".{uuid.uuid4().hex}"
        temp.write_text(json.dumps({**asdict(noted), **REGISTRY.stamp}, indent=1), encoding="utf-8")
        temp.replace(folder / f"{_safe(name)}.{_digest(there)}.json")


def forget(checkpoint: RemotePath) -> None:
    """A remote checkpoint was deleted: delete what this machine kept about it."""
    with suppress(OSError, RuntimeError):
        for path in (home() / "jobs").glob(f"*.{_digest(checkpoint.url)}.json"):
            path.unlink(missing_ok=True)
        shutil.rmtree(folder_for(checkpoint), ignore_errors=True)


def by_name(name: str) -> list[Noted]:
    """The existing checkpoints of jobs with this name, newest start first."""
    return [noted for noted in _read(f"{_safe(name)}.*.json") if noted.name == name]


def by_file(file: str | os.PathLike[str]) -> list[Noted]:
    """The jobs that this script started last and whose checkpoints exist."""
    script = os.path.realpath(file)
    return [noted for noted in everything() if noted.script == script]


def everything() -> list[Noted]:
    """All known jobs, newest start first."""
    return _read("*.json")


def _read(pattern: str) -> list[Noted]:
    found = []
    with suppress(OSError, RuntimeError):
        for path in (home() / "jobs").glob(pattern):
            if (noted := _one(path)) is not None and noted.is_there:
                found.append(noted)
    return sorted(found, key=lambda noted: noted.at, reverse=True)


def _one(path: Path) -> Noted | None:
    """None for a file that cannot be read or is not ours; from a newer version, the fields that we know."""
    try:
        noted: Noted = known(Noted, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return noted


def _forget_gone(folder: Path, name: str) -> None:
    """Forget deleted checkpoints; otherwise tests and notebooks would fill the folder."""
    for path in folder.glob(f"{_safe(name)}.*.json"):
        noted = _one(path)
        if noted is not None and noted.host == socket.gethostname() and not noted.is_there:
            path.unlink(missing_ok=True)


def _digest(checkpoint: str) -> str:
    return hashlib.sha256(checkpoint.encode()).hexdigest()[:12]


def _safe(name: str) -> str:
    """A job's name as part of a file name; if two names look the same here, the files' contents tell them apart."""
    return re.sub(r"[^\w-]", "_", name)[:100]
