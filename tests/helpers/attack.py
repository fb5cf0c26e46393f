"""Damages every file of a folder, one at a time, and puts it right again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

Attack = Callable[[Path, Path, Path], bytes | None]
"""From the file, its neighbour, and the other job's folder: the new content; None deletes it."""


def emptied(file: Path, neighbour: Path, other: Path) -> bytes:
    return b""


def truncated(file: Path, neighbour: Path, other: Path) -> bytes:
    return file.read_bytes()[:-1]


def flipped(file: Path, neighbour: Path, other: Path) -> bytes:
    """One bit, somewhere; but not in the time and the maker at the end of Spark's sums, which nobody reads."""
    data = bytearray(file.read_bytes())
    if not data:
        return b""
    spark_sum = file.suffix == ".crc" and data[:1] == b"{"
    matters = data.index(b'"timestampMs"') if spark_sum else len(data)  # how long the sum is differs by its digits
    place = random.Random(file.name).randrange(matters)
    data[place] ^= 1 << (place % 7)
    return bytes(data)


def swapped(file: Path, neighbour: Path, other: Path) -> bytes:
    """With its neighbour; that one is attacked in its own turn."""
    return neighbour.read_bytes()


def foreign(file: Path, neighbour: Path, other: Path) -> bytes:
    """The most similar file of another job: the same kind of name, in the same kind of folder."""
    return other.read_bytes()


def deleted(file: Path, neighbour: Path, other: Path) -> None:
    return None


ATTACKS: tuple[Attack, ...] = (emptied, truncated, flipped, swapped, foreign, deleted)


def walk(
    root: Path,
    other: Path,
    look: Callable[[], bool],
    attacks: tuple[Attack, ...] = ATTACKS,
    only: set[str] | None = None,
) -> Iterator[tuple[str, str]]:
    """Every file and attack that `look` does not see; a file that stays as it was under an attack is passed over."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    others = sorted(path for path in other.rglob("*") if path.is_file())
    for file in files:
        if only is not None and file.relative_to(root).as_posix() not in only:
            continue
        before = file.read_bytes()
        neighbours = [path for path in files if path != file and _alike(path) == _alike(file)]
        theirs = [path for path in others if _alike(path) == _alike(file)]
        for attack in attacks:
            after = attack(file, min(neighbours or [file], key=_far(file)), min(theirs or [file], key=_far(file)))
            if after == before:
                continue
            file.unlink()
            if after is not None:
                file.write_bytes(after)
            if not look():
                yield file.relative_to(root).as_posix(), attack.__name__
            file.write_bytes(before)


def _alike(path: Path) -> tuple[str, str, bool]:
    """Of the same kind: the same ending, in a folder of the same name (or number)."""
    folder = "n" if path.parent.name.isdigit() else path.parent.name
    return path.suffix, folder, path.name.startswith(".")


def _far(file: Path) -> Callable[[Path], tuple[bool, str]]:
    """The nearest in the same folder comes first."""
    return lambda path: (path.parent.name != file.parent.name, path.name)
