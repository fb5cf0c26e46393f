"""Temporary files that writers of Spark's log and state left when they died. Never touches a file that has its name.

An object store has none: there a file is there when it is whole.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from fencepost.ledger import Place, RemotePath, place
from fencepost.ledger.local import STALE_S
from fencepost.ledger.places import scheme_of

TEMPORARY = re.compile(r"\..+\.[0-9a-f-]{32,36}(\.TID\d+)?\.tmp(\.crc)?")
"""`.7.<uuid>.tmp`, `.8.delta.<uuid>.TID12.tmp`, and Hadoop's sum beside it, `..7.<uuid>.tmp.crc`."""

FOLDERS = ("offsets", "commits", "sources", "state")
MOST = 20_000
"""So many at one start; what is left goes at the next one."""


def sweep(root: str | Place) -> int:
    """Remove what dead writers left long ago; by age, for one that lives may be about to rename its own."""
    found = _files(place(root))
    removed = 0
    old = _now(found) - STALE_S
    for path in filter(_is_temporary, found):
        if removed >= MOST:
            return removed
        try:
            if path.stat().st_mtime < old:
                path.unlink()
                removed += 1
        except OSError:  # its writer lives after all, and was quicker; or it is another user's: it does no harm
            continue
    return removed


def count(root: str | Place) -> int:
    """How many there are, old enough or not."""
    return sum(map(_is_temporary, _files(place(root))))


def _files(root: Place) -> list[Place]:
    """Where there can be any. On HDFS from one look; temporary ones and all others, whose times say what time it is."""
    if not isinstance(root, RemotePath):
        walks = (walk for folder in FOLDERS for walk in os.walk(root / folder))
        return [Path(where) / name for where, _, names in walks for name in names if TEMPORARY.fullmatch(name)]
    if scheme_of(root.url) == "s3a":
        return []
    there = root.seen()
    return [file for folder in FOLDERS for file in (there / folder).rglob("*")]


def _now(found: list[Place]) -> float:
    """Of files on other machines the newest says what time it is there: their clock is not ours."""
    if not any(isinstance(file, RemotePath) for file in found):
        return time.time()
    return max(file.stat().st_mtime for file in found)


def _is_temporary(path: Place) -> bool:
    return TEMPORARY.fullmatch(path.name) is not None
