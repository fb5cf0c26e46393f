"""Temporary files that writers of Spark's log and state left when they died. Never touches a file that has its name."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from fencepost.ledger.local import STALE_S

TEMPORARY = re.compile(r"\..+\.[0-9a-f-]{32,36}(\.TID\d+)?\.tmp(\.crc)?")
"""`.7.<uuid>.tmp`, `.8.delta.<uuid>.TID12.tmp`, and Hadoop's sum beside it, `..7.<uuid>.tmp.crc`."""

FOLDERS = ("offsets", "commits", "sources", "state")
MOST = 20_000
"""So many at one start; what is left goes at the next one."""


def sweep(root: str | os.PathLike[str]) -> int:
    """Remove what dead writers left long ago; by age, for one that lives may be about to rename its own."""
    removed = 0
    old = time.time() - STALE_S
    for folder in FOLDERS:
        for path in _temporary(Path(root) / folder):
            if removed >= MOST:
                return removed
            try:
                if path.stat().st_mtime < old:
                    path.unlink()
                    removed += 1
            except OSError:  # its writer lives after all, and was quicker; or it is another user's: it does no harm
                continue
    return removed


def _temporary(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place) / name for name in names if TEMPORARY.fullmatch(name))


def count(root: str | os.PathLike[str]) -> int:
    """How many there are, old enough or not."""
    return sum(1 for folder in FOLDERS for _ in _temporary(Path(root) / folder))
