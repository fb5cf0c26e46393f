"""A wish to stop or to cancel a job, left for its driver: `fencepost/request.json`.

A file, so that it needs no signal, works from another machine that has the folder, and reaches no stranger: it names
the writer that it is meant for, and every later one leaves it alone.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Literal

from fencepost.observe.journal import newest_writer

Wish = Literal["stop", "cancel"]


def leave(checkpoint: str | os.PathLike[str], wish: Wish, writer: int) -> None:
    """Ask the driver with this number."""
    path = _path(checkpoint)
    temp = path.with_suffix(f".{os.getpid()}.tmp")
    temp.write_text(json.dumps({"wish": wish, "writer": writer}))
    temp.replace(path)


def find(checkpoint: str | os.PathLike[str], writer: int) -> Wish | None:
    """What this driver is asked to do."""
    path = _path(checkpoint)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        if path.exists():
            left = json.loads(path.read_bytes())
            wish: Wish = left["wish"]
            return wish if left["writer"] == writer and wish in ("stop", "cancel") else None
    return None


def find_between(checkpoint: str | os.PathLike[str]) -> Wish | None:
    """While no driver runs and another is to come: what the last one was asked."""
    with contextlib.suppress(OSError):
        last = newest_writer(checkpoint) if _path(checkpoint).exists() else None
        return None if last is None else find(checkpoint, last)
    return None


def take_back(checkpoint: str | os.PathLike[str], writer: int) -> None:
    """It was heeded."""
    if find(checkpoint, writer) is not None:
        with contextlib.suppress(OSError):
            _path(checkpoint).unlink(missing_ok=True)


def clear(checkpoint: str | os.PathLike[str]) -> None:
    """Somebody starts the job: what was asked of those before him is not meant for him."""
    with contextlib.suppress(OSError):
        _path(checkpoint).unlink(missing_ok=True)


def _path(checkpoint: str | os.PathLike[str]) -> Path:
    return Path(checkpoint) / "fencepost" / "request.json"
