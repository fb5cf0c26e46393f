"""What a start would find in a target, and what it would make there; for `fencepost check`, which changes nothing."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A target that a start would take."""

    identity: str
    """As `preflight` would return it; "" if there is none yet."""
    makes: tuple[str, ...] = ()
    """What a start would make, in words."""


def check_can_write(folder: Path) -> None:
    """Raise `OSError` if this user cannot write files into a folder, or cannot make it."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise _because(errno.ENOTDIR, place)
    if not os.access(place, os.W_OK | os.X_OK):
        raise _because(errno.EACCES, place)


def check_can_write_file(path: Path) -> None:
    """The same for a file, in a folder that has to be there."""
    if not path.parent.is_dir():
        raise _because(errno.ENOENT, path.parent)
    check_can_write(path.parent)
    if path.is_dir():
        raise _because(errno.EISDIR, path)
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        raise _because(errno.EACCES, path)


def _because(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
