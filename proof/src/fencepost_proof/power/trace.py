"""What a program did to the files under one folder, as strace saw it: writes, sizes, names, and what was synced.

    strace ─► lines ─► Operation …      a file is known by a number, so that it keeps its bytes under whatever name

Never leaves out a way to write that it does not understand: it refuses the recording.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

WRITES = ("write", "pwrite64")
NAMES = ("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "rmdir", "mkdir", "mkdirat")
SYNCS = ("fsync", "fdatasync")
SIZES = ("ftruncate", "truncate")
STRANGE = ("writev", "pwritev", "pwritev2", "fallocate", "copy_file_range", "sendfile", "symlink", "symlinkat", "mmap")
"""Ways to write that no recorded program uses; seen under the folder, they end the reading."""
CALLS = ("openat", "open", "creat", "lseek", *WRITES, *NAMES, *SYNCS, *SIZES, *STRANGE)
WHOLE = 1 << 22
"""Bytes of a call that strace prints."""
SHARED_MEMORY = "-shm"
"""SQLite's index of its log is mapped, not written; after a crash it is made anew from the log."""

_LINE = re.compile(r"(\d+) +(.*)")
_RESULT = re.compile(r"\) += (-?\d+)(?:<((?:\\x[0-9a-f]{2})*)>)?")
_PLACE = re.compile(r'(?:(?:AT_FDCWD|(\d+))<((?:\\x[0-9a-f]{2})*)(?:\(deleted\))?>|"((?:\\x[0-9a-f]{2})*)")')


class NotRecorded(Exception):
    """strace is missing, or the program did something that this reader does not know."""


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes into a file."""

    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Size:
    """A file was cut, or made longer by zeros."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Name:
    """A name in a folder now means this file or folder; None: it is gone. `after`: the half of a rename before it."""

    folder: int
    name: str
    file: int | None
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Sync:
    """Of a file its bytes, of a folder its names: those that were there when the call began."""

    file: int
    began: int


Operation = Write | Size | Name | Sync


@dataclass
class Recording:
    """All operations, in the order in which they returned. Number 0 is the folder itself, empty at the beginning."""

    root: str
    operations: list[Operation] = field(default_factory=list)
    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})
    """Names at the end."""
    sizes: dict[int, int] = field(default_factory=dict)
    first: int = 0
    """So many operations are older than the program."""
    positions: dict[tuple[str, str], int | None] = field(default_factory=dict)
    """Where the next write of a descriptor goes; None: always to the end."""

    def find(self, path: str) -> int | None:
        """The file or folder of this name now."""
        found: int | None = 0
        for part in self._parts(path):
            found = self.folders.get(found, {}).get(part) if found is not None else None
        return found

    def inside(self, path: str) -> bool:
        """Is it under our folder?"""
        return path == self.root or path.startswith(self.root + "/")

    def _parts(self, path: str) -> list[str]:
        return [part for part in path.removeprefix(self.root).split("/") if part]

    def name(self, path: str, file: int | None, after: int | None = None) -> int:
        """Give or take a name; return the operation's number."""
        *above, last = self._parts(path)
        folder = self.find("/".join([self.root, *above]))
        if folder is None:
            raise NotRecorded(f"{path} lies in a folder that nobody made")
        if file is None:
            self.folders[folder].pop(last, None)
        else:
            self.folders[folder][last] = file
        self.operations.append(Name(folder, last, file, after))
        return len(self.operations) - 1

    def new(self, path: str, *, folder: bool) -> int:
        """A new file or folder under a name."""
        number = len(self.folders) + len(self.sizes)
        if folder:
            self.folders[number] = {}
        else:
            self.sizes[number] = 0
        self.name(path, number)
        return number

    def resize(self, file: int, size: int) -> None:
        """Cut a file, or make it longer."""
        if self.sizes[file] != size:
            self.sizes[file] = size
            self.operations.append(Size(file, size))

    def write(self, file: int, offset: int, data: bytes) -> None:
        """Bytes into a file."""
        self.sizes[file] = max(self.sizes[file], offset + len(data))
        self.operations.append(Write(file, offset, data))


def record(
    command: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str], there: Sequence[str] = ()
) -> Recording:
    """Run a program under strace; of `folder` nothing is there but `there`, folders. Its exit code must be 0."""
    strace = ["strace", "-f", "--seccomp-bpf", "-y", "-qq", "-xx", "-s", str(WHOLE), "-e", "signal=none"]
    traced = [*strace, "-e", f"trace={','.join(CALLS)}", "-o", str(log), *command]
    try:
        done = subprocess.run(traced, check=False, env=environment, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NotRecorded("there is no strace on the PATH") from error
    if done.returncode != 0:
        raise NotRecorded(f"the recorded program ended with {done.returncode}:\n{done.stderr[-2000:]}")
    with log.open() as lines:
        return read(lines, folder, there)


def read(lines: Iterable[str], folder: Path, there: Sequence[str] = ()) -> Recording:
    """Read strace's lines; a call that another thread interrupted comes in two."""
    recording = Recording(os.path.realpath(folder))
    for name in there:
        recording.new(f"{recording.root}/{name}", folder=True)
    recording.operations.append(Sync(0, len(recording.operations)))
    recording.first = len(recording.operations)
    begun: dict[str, tuple[str, int]] = {}
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        thread, text = match.groups()
        now = len(recording.operations)
        if text.endswith("<unfinished ...>"):
            begun[thread] = text.removesuffix("<unfinished ...>"), now
            continue
        if text.startswith("<... "):
            if thread not in begun:
                continue
            first, now = begun.pop(thread)
            text = first + text.partition("resumed>")[2]
        result = _RESULT.search(text, text.rfind(") "))
        if result is not None and not result[1].startswith("-"):
            _take(recording, text, result, now)
    return recording


@dataclass(frozen=True, slots=True)
class _Call:
    """One line of strace."""

    name: str
    text: str
    result: int
    places: tuple[re.Match[str], ...]
    began: int

    @property
    def paths(self) -> list[str]:
        """Of descriptors and strings; a relative string belongs to the folder before it."""
        found, base = [], ""
        for place in self.places:
            number, folder, text = place.groups()
            if text is None:
                base = _text(folder)
                found += [base] if number is not None else []
            else:
                path = _text(text)
                found.append(path if path.startswith("/") else f"{base}/{path}")
        return found

    @property
    def numbers(self) -> list[int]:
        """Behind the last place."""
        return [int(n) for n in re.findall(r"-?\d+", self.text[self.places[-1].end() : self.text.rfind(") ")])]


def _take(recording: Recording, text: str, result: re.Match[str], began: int) -> None:
    places = tuple(_PLACE.finditer(text, 0, result.start()))
    call = _Call(text.partition("(")[0], text, int(result[1]), places, began)
    paths = call.paths
    if not any(recording.inside(path) for path in paths):
        return
    file = recording.find(paths[0])
    if call.name in ("openat", "open", "creat"):
        _open(recording, call, paths[-1])
    elif call.name in (*WRITES, *SIZES, "lseek"):
        if file is not None and file in recording.sizes:  # not of a file that has no name any more
            _data(recording, call, (places[0][1], paths[0]), file)
    elif call.name in SYNCS:
        if file is not None:
            recording.operations.append(Sync(file, began))
    elif call.name in NAMES:
        _names(recording, call.name, paths)
    elif call.name != "mmap" or _shares_memory(text, paths[0]):
        raise NotRecorded(f"{call.name} of {paths[0]}: this way to write is not understood")


def _shares_memory(text: str, path: str) -> bool:
    return "PROT_WRITE" in text and "MAP_SHARED" in text and not path.endswith(SHARED_MEMORY)


def _open(recording: Recording, call: _Call, path: str) -> None:
    file = recording.find(path)
    if file is None and ("O_CREAT" in call.text or call.name == "creat"):
        file = recording.new(path, folder=False)
    if file is None or file in recording.folders:
        return
    if "O_TRUNC" in call.text or call.name == "creat":
        recording.resize(file, 0)
    opened = str(call.result), path
    recording.positions[opened] = None if "O_APPEND" in call.text else 0


def _data(recording: Recording, call: _Call, opened: tuple[str, str], file: int) -> None:
    at = recording.positions.get(opened, 0)
    if call.name == "lseek":
        recording.positions[opened] = None if at is None else call.result
    elif call.name in SIZES:
        recording.resize(file, call.numbers[0])
    else:
        data = _bytes(call.places[1][3])[: call.result]
        if len(data) != call.result:
            raise NotRecorded(f"strace did not print all of a call of {opened[1]}")
        if call.name == "pwrite64":
            recording.write(file, call.numbers[1], data)
            return
        recording.write(file, recording.sizes[file] if at is None else at, data)
        recording.positions[opened] = None if at is None else at + call.result


def _names(recording: Recording, call: str, paths: Sequence[str]) -> None:
    if call.startswith("mkdir"):
        recording.new(paths[-1], folder=True)
    elif call.startswith(("unlink", "rmdir")):
        recording.name(paths[-1], None)
    else:
        old, new = [path for path in paths if recording.inside(path)][-2:]
        file = recording.find(old)
        if file is None:
            raise NotRecorded(f"{call} of {old}, which nobody made")
        given = recording.name(new, file)
        if call.startswith("rename"):
            recording.name(old, None, after=given)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _text(text: str) -> str:
    return os.fsdecode(_bytes(text))
