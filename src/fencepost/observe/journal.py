"""The journal: every step of a job, one line of JSON each, beside its ledger.

    fencepost/journal.jsonl       the newest events; at most about a megabyte
    fencepost/journal.1.jsonl     those before

Of a checkpoint on a remote store it is on the driver's machine, in the registry's home: such stores do not append.

For people and programs that ask what happened; the guarantee rests on the ledger alone. Whatever cannot be written is
left out: the journal never fails an epoch, and never waits for the disk.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from fencepost.ledger import RemotePath, place
from fencepost.observe import registry
from fencepost.observe.events import Event, Kind
from fencepost.observe.pulse import beats

FULL: Final = 1_000_000
BEGIN: Final = b'{"kind":'

log = logging.getLogger("fencepost")


class Journal:
    """Appends to the journal of a checkpoint; drivers, standby and supervisor may do so at once."""

    def __init__(self, checkpoint: str | os.PathLike[str] | RemotePath) -> None:
        self._path = path_of(checkpoint)
        self._broken = False

    def note(self, event: Event) -> None:
        """Append one event. The file is opened anew each time: another process may have set it aside."""
        line = (
            json.dumps(event.plain, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace") + b"\n"
        )
        try:
            while not self._append(line):
                pass
        except FileNotFoundError:
            return  # no checkpoint yet: whoever starts it is told himself
        except OSError as error:
            if not self._broken:
                self._broken = True
                log.warning("job %s: the journal cannot be written: %s", event.job, error.strerror or error)

    def _append(self, line: bytes) -> bool:
        """False if others filled two files between our opening one and our writing to it: it is nobody's by then."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, line)  # one call: lines of several processes do not mix
            found = os.fstat(descriptor)
            if found.st_size > FULL:
                self._set_aside(descriptor)
            return found.st_nlink > 0
        finally:
            os.close(descriptor)

    def _set_aside(self, descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # of several that find it full, one does it
        if self._path.stat().st_ino == os.fstat(descriptor).st_ino:
            self._path.replace(older_of(self._path))


def begin(checkpoint: str | os.PathLike[str] | RemotePath) -> None:
    """Make room for the journal of a remote checkpoint; that of a folder is beside its ledger, once that is there."""
    if isinstance(place(checkpoint), RemotePath):
        with suppress(OSError, RuntimeError):  # then there is none
            path_of(checkpoint).parent.mkdir(parents=True, exist_ok=True)


def read(checkpoint: str | os.PathLike[str] | RemotePath) -> Iterator[Event]:
    """The events that are kept, oldest first; a line cut off by a crash, or of a later version, is left out."""
    path = path_of(checkpoint)
    newest, number = _lines(path)  # first: it may be set aside meanwhile, and would be missed the other way round
    older, other = _lines(older_of(path))
    for lines in ([] if other == number else older, newest):
        for line in lines:
            # What a crash or a full disk cut off has no end: the next event is behind it, on the same line.
            begin = line.rfind(BEGIN)
            try:
                if begin >= 0:
                    yield Event.of(json.loads(line[begin:]))
            except (ValueError, TypeError, KeyError):
                continue


def _lines(path: Path) -> tuple[list[bytes], int | None]:
    """Of one file, and which file that was."""
    try:
        with path.open("rb") as file:
            return file.read().splitlines(), os.fstat(file.fileno()).st_ino
    except OSError:
        return [], None


def newest_writer(checkpoint: str | os.PathLike[str] | RemotePath) -> int | None:
    """The number of the last driver here, as far as journal and pulse know. Not the highest: a rewind begins anew."""
    last = None
    for event in read(checkpoint):
        last = event.writer if event.kind is Kind.STARTED else last
    told = max(beats(checkpoint), key=lambda beat: beat.at, default=None) if last is None else None
    return told.writer if told else last


def path_of(checkpoint: str | os.PathLike[str] | RemotePath) -> Path:
    """The newest part of a checkpoint's journal, on this machine."""
    where = place(checkpoint)
    folder = registry.folder_for(where) if isinstance(where, RemotePath) else where / "fencepost"
    return folder / "journal.jsonl"


def older_of(path: Path) -> Path:
    """The part before it."""
    return path.with_name("journal.1.jsonl")
