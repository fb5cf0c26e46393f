"""Reports what happens to a job: to its journal, the log, and the user's callbacks.

    fencepost/journal.jsonl       the newest events, one line of JSON each; at most about a megabyte
    fencepost/journal.1.jsonl     the events before those

Both are next to the ledger. For a checkpoint on a remote store they are on the driver's machine, in the registry's
folder, because such stores cannot append.

For people and programs that ask what happened; the guarantee depends on the ledger alone. Never fails an epoch and
never waits for the disk: what cannot be written is left out.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

from fencepost.errors import Fenced, FencepostError, Reason, now
from fencepost.observe import registry
from fencepost.observe.events import Event, Kind, TraceIds
from fencepost.observe.heartbeat import beats
from fencepost.protocol.format import StoredFormat
from fencepost.store import RemotePath, place

FULL: Final = 1_000_000
JOURNAL: Final = StoredFormat("The journal", 1)
"""A line of a newer fencepost is read as far as its keys are known; of a kind that we do not know, left out."""
BEGIN: Final = b'{"kind":'
TRACED: Final = "FENCEPOST_TRACED"
"""The environment variable by which log lines of events carry the id of their trace."""
FOLLOWED: Final = 30_000
"""Events that a follower keeps: more than two full files have."""

log = logging.getLogger("fencepost")
Callback = Callable[[Event], object]

events_log = logging.getLogger("fencepost.events")
LOUD = {Kind.TRIED_AGAIN, Kind.RESTARTED, Kind.CALLBACK_FAILED}
"""Events that nothing else reports: failures are raised, and printed by whoever catches them."""


class Observer:
    """Reports the events of one job. A callback that raises is recorded, and the job goes on."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._journal: Journal | None = None
        self._callbacks: list[tuple[frozenset[Kind], Callback]] = []
        self._writer: int | None = None
        self._failed: FencepostError | None = None
        self._here = threading.local()
        self.dead: frozenset[str] = frozenset()
        """The sinks that take dead letters."""
        self._traces: TraceIds | None = None

    def call(self, callback: Callback, *kinds: Kind) -> None:
        """Call a user's function for events of these kinds."""
        self._callbacks.append((frozenset(kinds), callback))

    def call_no_more(self, callback: Callback) -> None:
        """Leave it alone from now on."""
        self._callbacks = [each for each in self._callbacks if each[1] != callback]

    def write_to(self, checkpoint: str, writer: int | None = None) -> None:
        """Set the journal's checkpoint and, once it is known, the driver's writer number."""
        begin(checkpoint)
        self._journal = Journal(checkpoint)
        self._writer = writer
        if self._traces is None and os.environ.get(TRACED):
            self._traces = TraceIds(registry.key_of(checkpoint))

    def note(self, kind: Kind, error: FencepostError | None = None, **facts: Any) -> None:
        """Report an event."""
        if error is not None:
            told = {"code": error.code, "what": error.what, "safe": error.safe, "next": error.next}
            told["reason"] = Reason.of(error).word
            facts = {**told, "epoch": error.where.epoch, "sink": error.where.sink, **facts}
        if kind is Kind.COMMITTED and facts.get("sink") in self.dead:
            facts["dead"] = True
        if (took := facts.get("seconds")) is not None:
            facts["seconds"] = round(took, 6)
        event = Event(kind=kind, job=self._job, at=now(), pid=os.getpid(), **{"writer": self._writer, **facts})
        if self._journal is not None:
            self._journal.note(event)
        level = logging.WARNING if kind in LOUD else logging.DEBUG
        trace = None if self._traces is None else self._traces.of(event)
        if events_log.isEnabledFor(level):
            said = event.plain if trace is None else {**event.plain, "trace_id": trace}
            events_log.log(level, "%s", event.line, extra={"fencepost": said})
        for kinds, callback in self._callbacks:
            if kind in kinds:
                self._tell(callback, event)

    def note_failure(self, error: FencepostError) -> None:
        """Report that a query or its start failed; once per error, however many layers it passes."""
        if error is not self._failed:
            self._failed = error
            self.note(Kind.FENCED if isinstance(error, Fenced) else Kind.FAILED, error)

    def _tell(self, callback: Callback, event: Event) -> None:
        self._here.telling = True
        try:
            callback(event)
        except Exception as error:  # noqa: BLE001 - the user's own error must not affect the job
            name = getattr(callback, "__qualname__", type(callback).__name__)
            # Only the type: the message may quote a row.
            self.note(Kind.CALLBACK_FAILED, epoch=event.epoch, what=f"{name} raised {type(error).__name__}")
        finally:
            self._here.telling = False

    @property
    def is_telling(self) -> bool:
        """Is this thread in a callback? Then ending the job from here would wait for itself."""
        return getattr(self._here, "telling", False)


class Journal:
    """Appends to a checkpoint's journal; drivers, standby and supervisor may all do so at the same time."""

    def __init__(self, checkpoint: str | os.PathLike[str] | RemotePath) -> None:
        self._path = path_of(checkpoint)
        self._broken = False

    def note(self, event: Event) -> bool:
        """Append one event; False if it cannot be written. Opened each time: another process may have rotated it."""
        said = {**event.plain, "format": JOURNAL.number}
        line = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace") + b"\n"
        try:
            while not self._append(line):
                pass
        except FileNotFoundError:
            return True  # without a checkpoint, the start or the request itself fails and says so
        except OSError as error:
            if not self._broken:
                self._broken = True
                log.warning("job %s: cannot write the journal: %s", event.job, error.strerror or error)
            return False
        return True

    def _append(self, line: bytes) -> bool:
        """False if the file was rotated away twice between our open and our write, so that nobody will read it."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, line)  # one call, so that lines from several processes do not mix
            found = os.fstat(descriptor)
            if found.st_size > FULL:
                self._set_aside(descriptor)
            return found.st_nlink > 0
        finally:
            os.close(descriptor)

    def _set_aside(self, descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # if several find it full, only one rotates it
        if self._path.stat().st_ino == os.fstat(descriptor).st_ino:
            self._path.replace(older_of(self._path))


def begin(checkpoint: str | os.PathLike[str] | RemotePath) -> None:
    """Create the folder for a remote checkpoint's journal; a local one is next to its ledger."""
    if isinstance(place(checkpoint), RemotePath):
        with suppress(OSError, RuntimeError):  # then there is no journal
            path_of(checkpoint).parent.mkdir(parents=True, exist_ok=True)


def read(checkpoint: str | os.PathLike[str] | RemotePath) -> Iterator[Event]:
    """The events, oldest first; a line that a crash cut off, or that is from a later version, is left out."""
    path = path_of(checkpoint)
    newest, number = _lines(path)  # first: if it is rotated meanwhile, the other order would miss it
    older, other = _lines(older_of(path))
    for lines in ([] if other == number else older, newest):
        yield from _events(lines)


def _events(lines: Iterable[bytes]) -> Iterator[Event]:
    for line in lines:
        # A line that a crash or a full disk cut off has no newline: the next event follows on the same line.
        begin = line.rfind(BEGIN)
        try:
            if begin >= 0:
                yield Event.of(json.loads(line[begin:]))
        except (ValueError, TypeError, KeyError):
            continue


class Follower:
    """The events of a checkpoint for somebody who asks again and again: only what is new is read."""

    def __init__(self, checkpoint: str | os.PathLike[str] | RemotePath) -> None:
        self._path = path_of(checkpoint)
        self._events: deque[Event] = deque(maxlen=FOLLOWED)
        self._file: int | None = None
        """The inode of the newest file; another one: it was rotated, or it is another journal."""
        self._read = 0
        """Bytes of it, all whole lines."""

    def events(self) -> list[Event]:
        """All that are kept, oldest first. Use either this or `new`."""
        self._events.extend(self.new())
        return list(self._events)

    def new(self) -> list[Event]:
        """What was noted since the last call; the first one gets all that is kept."""
        found: list[Event] = []
        try:
            with self._path.open("rb") as file:
                now = os.fstat(file.fileno())
                if now.st_ino != self._file or now.st_size < self._read:
                    found = self._older()
                    self._file, self._read = now.st_ino, 0
                found += self._taken(file)
        except FileNotFoundError:  # rotated a moment ago: the next event makes the new one
            found = self._older()
        except OSError:
            pass  # what cannot be read now is read next time
        return found

    def _older(self) -> list[Event]:
        """What the older file has that was not read: if it is the one that we were reading, its end."""
        try:
            with older_of(self._path).open("rb") as file:
                if (number := os.fstat(file.fileno()).st_ino) != self._file:
                    self._events.clear()
                    self._file, self._read = number, 0
                return self._taken(file)
        except OSError:
            self._events.clear()
            self._file, self._read = None, 0
            return []

    def _taken(self, file: BinaryIO) -> list[Event]:
        """The next whole lines."""
        file.seek(self._read)
        data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return list(_events(whole.splitlines()))

    @property
    def problem(self) -> str | None:
        """Why there is none to read, if there is one."""
        try:
            self._path.open("rb").close()
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"The journal cannot be read: {error.strerror or type(error).__name__}."
        return None


def _lines(path: Path) -> tuple[list[bytes], int | None]:
    """The lines of one file, and its inode."""
    try:
        with path.open("rb") as file:
            return file.read().splitlines(), os.fstat(file.fileno()).st_ino
    except OSError:
        return [], None


def is_committed(events: Iterable[Event], epoch: int) -> bool:
    """Is an epoch that is in Spark's log also in every sink? One that the journal does not know is taken to be.

    With overlap an epoch is decided, then complete for Spark, and only then committed.
    """
    told = [event.kind for event in events if event.epoch == epoch and event.kind in {Kind.DECIDED, Kind.COMPLETE}]
    return told[-1:] != [Kind.DECIDED]


def newest_writer(checkpoint: str | os.PathLike[str] | RemotePath) -> int | None:
    """The last driver's writer number, by journal and heartbeat. Not the highest: after a rewind it starts over."""
    last = None
    for event in read(checkpoint):
        last = event.writer if event.kind is Kind.STARTED else last
    told = max(beats(checkpoint), key=lambda beat: beat.at_s, default=None) if last is None else None
    return told.writer if told else last


def path_of(checkpoint: str | os.PathLike[str] | RemotePath) -> Path:
    """The newest file of a checkpoint's journal on this machine."""
    where = place(checkpoint)
    folder = registry.folder_for(where) if isinstance(where, RemotePath) else where / "fencepost"
    return folder / "journal.jsonl"


def older_of(path: Path) -> Path:
    """The file before it."""
    return path.with_name("journal.1.jsonl")


# --- the log
#
# As lines of JSON, for log collectors: events have the same keys as in the journal.
#
#     {"at": …, "level": "INFO", "logger": "fencepost", "message": …, "thread": …}
#     {"at": …, "level": "DEBUG", "logger": "fencepost.events", "message": …, "kind": "decided", "job": …, …}
#
# Takes only a record's text, its names and our own event: anything else that a library attaches is left out.

STYLE: Final = "FENCEPOST_LOG"
"""The environment variable that a supervisor sets for its drivers."""
JSON: Final = "json"


class JsonFormatter(logging.Formatter):
    """One line of JSON per record. Note: set the level of `fencepost.events` too, because most events are at DEBUG."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without a newline."""
        said: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName,
        }
        event = getattr(record, "fencepost", None)
        if isinstance(event, dict):
            said.update(event)
        if record.exc_info and record.exc_info[0] is not None:
            said["trace"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False, default=str)


def follow_environment() -> None:
    """Log in the style that this process's supervisor was given."""
    if os.environ.get(STYLE) == JSON:
        use_json()


def use_json() -> None:
    """Send everything that Python logs to stderr as JSON, with all of our events."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("fencepost").setLevel(logging.DEBUG)
    # Py4J logs every call, even at INFO.
    logging.getLogger("py4j").setLevel(logging.WARNING)
