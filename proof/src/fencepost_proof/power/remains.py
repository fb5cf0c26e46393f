"""What a power cut may leave of recorded file operations: worse than any disk, never kinder.

    after each operation: what was synced before is kept; everything else is kept, lost, or half of it, each by itself

A file's bytes survive only by a sync of the file, a name only by a sync of its folder. An unsynced write may be
missing, leave zeros, or be torn. The one thing that is granted is what every journal grants: a rename does not take the
old name away without giving the new one.
"""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import product
from math import prod
from pathlib import Path

from fencepost_proof.power.trace import Name, Operation, Recording, Size, Sync, Write

Tree = Mapping[str, bytes | None]
"""Files by their path; None is a folder."""


class Fate(Enum):
    """What becomes of one operation that was not synced."""

    KEPT = "kept"
    LOST = "lost"
    ZEROS = "zeros"
    TORN = "torn"


def fates_of(operation: Operation) -> tuple[Fate, ...]:
    """All that may become of it."""
    return tuple(Fate) if isinstance(operation, Write) else (Fate.KEPT, Fate.LOST)


def unsynced(recording: Recording, end: int) -> list[int]:
    """Numbers of the first `end` operations that a cut right after them may lose."""
    operations = recording.operations[:end]
    safe = dict[int, int]()
    for operation in operations:
        if isinstance(operation, Sync):
            safe[operation.file] = max(operation.began, safe.get(operation.file, 0))  # two threads sync at once
    return [
        number
        for number, operation in enumerate(operations)
        if not isinstance(operation, Sync) and number >= safe.get(_owner(operation), 0)
    ]


def _owner(operation: Name | Write | Size) -> int:
    return operation.folder if isinstance(operation, Name) else operation.file


def remains(recording: Recording, end: int, fates: Mapping[int, Fate]) -> Tree:
    """The files that are there when power is back; what has no fate is kept."""
    files: dict[int, bytearray] = {}
    folders: dict[int, dict[str, int]] = {number: {} for number in recording.folders}
    lost = set[int]()
    for number, operation in enumerate(recording.operations[:end]):
        fate = fates.get(number, Fate.KEPT)
        match operation:
            case Write(file, offset, data):
                _write(files.setdefault(file, bytearray()), offset, data, fate)
            case Size(file, size) if fate is Fate.KEPT:
                content = files.setdefault(file, bytearray())
                content[size:] = bytes(max(0, size - len(content)))
            case Name(folder, name, file, after):
                if fate is Fate.LOST or after in lost:
                    lost.add(number)
                elif file is None:
                    folders[folder].pop(name, None)
                else:
                    folders[folder][name] = file
    tree: dict[str, bytes | None] = {}
    _flatten(0, "", folders, files, tree)
    return tree


def _write(content: bytearray, offset: int, data: bytes, fate: Fate) -> None:
    if fate is Fate.LOST:
        return
    end = offset + len(data)
    content.extend(bytes(max(0, end - len(content))))
    if fate is not Fate.ZEROS:
        kept = data if fate is Fate.KEPT else data[: len(data) // 2]
        content[offset : offset + len(kept)] = kept


def _flatten(
    folder: int,
    path: str,
    folders: Mapping[int, Mapping[str, int]],
    files: Mapping[int, bytearray],
    tree: dict[str, bytes | None],
) -> None:
    for name, number in folders[folder].items():
        if number in folders:
            tree[path + name] = None
            _flatten(number, f"{path}{name}/", folders, files, tree)
        else:
            tree[path + name] = bytes(files.get(number, b""))


def worlds(recording: Recording, end: int, most: int, chance: random.Random) -> Iterator[Tree]:
    """What a cut after the first `end` operations may leave: every combination, or `most` of them by chance."""
    open_ = unsynced(recording, end)
    choices = [fates_of(recording.operations[number]) for number in open_]
    if prod(map(len, choices)) <= most:
        for fates in product(*choices):
            yield remains(recording, end, dict(zip(open_, fates, strict=True)))
        return
    yield remains(recording, end, {})
    yield remains(recording, end, dict.fromkeys(open_, Fate.LOST))
    for _ in range(most - 2):
        yield remains(recording, end, _by_chance(open_, choices, chance))


def _by_chance(open_: Sequence[int], choices: Sequence[Sequence[Fate]], chance: random.Random) -> dict[int, Fate]:
    """One lost, one kept, all after some moment lost, or each by itself: the ways in which disks really lose."""
    way, chosen = chance.randrange(4), chance.randrange(len(open_))
    fates = {}
    for place, (number, possible) in enumerate(zip(open_, choices, strict=True)):
        any_loss = chance.choice(possible[1:])
        fates[number] = (
            (any_loss if place == chosen else Fate.KEPT),
            (Fate.KEPT if place == chosen else any_loss),
            (Fate.KEPT if place < chosen else any_loss),
            chance.choice(possible),
        )[way]
    return fates


def digest(tree: Tree) -> bytes:
    """The same for equal trees."""
    total = hashlib.sha256()
    for path, content in sorted(tree.items()):
        total.update(f"{path}\0{-1 if content is None else len(content)}\0".encode() + (content or b""))
    return total.digest()


def lay_out(tree: Tree, folder: Path) -> None:
    """Make it real, in a folder that is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path, content in tree.items():
        if content is None:
            (folder / path).mkdir(exist_ok=True)
        else:
            (folder / path).write_bytes(content)
