"""The journal: every step of a job, one line of JSON each, beside its ledger.

    fencepost/journal.jsonl       the newest events; at most about a megabyte
    fencepost/journal.1.jsonl     those before

For people and programs that ask what happened; the guarantee rests on the ledger alone. Whatever cannot be written is
left out: the journal never fails an epoch, and never waits for the disk.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fencepost.observe.events import Event
from fencepost.observe.pulse import beats

FULL: Final = 1_000_000

log = logging.getLogger("fencepost")


class Journal:
    """Appends to the journal of a checkpoint; drivers, standby and supervisor may do so at once."""

    def __init__(self, checkpoint: str | os.PathLike[str]) -> None:
        self._path = path_of(checkpoint)
        self._broken = False

    def note(self, event: Event) -> None:
        """Append one event. The file is opened anew each time: another process may have set it aside."""
        line = json.dumps(event.plain, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(descriptor, line)  # one call: lines of several processes do not mix
                if os.fstat(descriptor).st_size > FULL:
                    self._set_aside(descriptor)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return  # no checkpoint yet: whoever starts it is told himself
        except OSError as error:
            if not self._broken:
                self._broken = True
                log.warning("job %s: the journal cannot be written: %s", event.job, error.strerror or error)

    def _set_aside(self, descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # of several that find it full, one does it
        if self._path.stat().st_ino == os.fstat(descriptor).st_ino:
            self._path.replace(older_of(self._path))


def read(checkpoint: str | os.PathLike[str]) -> Iterator[Event]:
    """The events that are kept, oldest first; a line cut off by a crash, or of a later version, is left out."""
    path = path_of(checkpoint)
    for file in (older_of(path), path):
        try:
            lines = file.read_bytes().splitlines()
        except OSError:
            continue
        for line in lines:
            try:
                yield Event.of(json.loads(line))
            except (ValueError, TypeError, KeyError):
                continue


def newest_writer(checkpoint: str | os.PathLike[str]) -> int | None:
    """The highest number that a driver has or had here, as far as journal and pulse know."""
    told = [event.writer for event in read(checkpoint)] + [beat.writer for beat in beats(checkpoint)]
    return max((writer for writer in told if writer is not None), default=None)


def path_of(checkpoint: str | os.PathLike[str]) -> Path:
    """The newest part of a checkpoint's journal."""
    return Path(checkpoint) / "fencepost" / "journal.jsonl"


def older_of(path: Path) -> Path:
    """The part before it."""
    return path.with_name("journal.1.jsonl")
