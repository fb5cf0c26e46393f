"""What a savepoint says of itself: `savepoint.json`, written last. A folder without it is no savepoint.

<place>/<name>/savepoint.json     name, job, lineage, epoch, versions, every file with size and sum
<place>/<name>/checkpoint/…       the files, laid out as in the checkpoint they were copied from
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from fencepost.errors import UNCHANGED, CheckpointRefused, Where
from fencepost.ledger import Place
from fencepost.protocol.records import digest

FORMAT = 1
NAME = "savepoint.json"
COPY = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """A verified copy of one epoch.

    The mistake people make: starting a job on `copy` itself. A savepoint is never written to; restore it.
    """

    path: Place
    name: str
    job: str
    lineage: str
    generation: int
    epoch: int
    created: str
    versions: Mapping[str, str]
    formats: Mapping[str, str]
    files: Mapping[str, tuple[int, str]]
    """By name under `copy`: size and SHA-256."""
    format: int = FORMAT

    @property
    def copy(self) -> Place:
        """The copied checkpoint."""
        return self.path / COPY

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _ in self.files.values())


def encode(savepoint: Savepoint) -> bytes:
    """As text that a person can read, with the sum over everything else; where it lies is no part of it."""
    plain = asdict(replace(savepoint, path=Path()))
    del plain["path"]
    plain["sum"] = digest(_canonical(plain))
    return json.dumps(plain, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def load(path: Place) -> Savepoint:
    """The savepoint in this folder; `CheckpointRefused` if there is none, or its manifest cannot be trusted."""
    try:
        data = (path / NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise _refused("no_savepoint", f"There is no savepoint here: {NAME} is missing.", path) from None
    except OSError as error:
        raise _refused("savepoint_unreadable", f"{NAME} cannot be read: {error.strerror}.", path) from error
    try:
        plain = json.loads(data)
        if plain["format"] != FORMAT:
            what = f"It is of format {plain['format']}, and this version of fencepost knows format {FORMAT}."
            raise _refused("savepoint_format", what, path)
        said = plain.pop("sum")
        values: dict[str, Any] = {field.name: plain[field.name] for field in fields(Savepoint) if field.name != "path"}
        values["files"] = {name: (size, sha) for name, (size, sha) in plain["files"].items()}
        found = Savepoint(path=path, **values)
        if said != digest(_canonical(plain)) or encode(found) != data:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _refused("savepoint_damaged", f"{NAME} was changed or torn.", path) from error
    return found


def find(place: Place) -> tuple[list[Savepoint], list[Place]]:
    """The savepoints in a folder or of a checkpoint, oldest first; and the folders whose manifest is damaged."""
    whole, damaged = [], []
    for path in _folders(home(place) if is_checkpoint(place) else place):
        try:
            whole.append(load(path))
        except CheckpointRefused:
            damaged.append(path)
    return sorted(whole, key=lambda found: (found.created, found.name)), damaged


def home(checkpoint: Place) -> Place:
    """Where a checkpoint's savepoints go if nobody says otherwise: beside it, for they outlive it."""
    whole = checkpoint.absolute()
    return whole.with_name(f"{whole.name}.savepoints")


def is_checkpoint(path: Place) -> bool:
    """Does it look like one?"""
    return (path / "fencepost").is_dir() and (path / "metadata").exists()


def _folders(place: Place) -> list[Place]:
    try:
        found = (path for path in place.iterdir() if path.name[0] != "." and (path / NAME).exists())
        return sorted(found, key=str)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _canonical(plain: Mapping[str, Any]) -> bytes:
    return json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def _refused(code: str, what: str, path: Place) -> CheckpointRefused:
    return CheckpointRefused(
        code,
        what,
        where=Where(path=str(path)),
        safe=UNCHANGED,
        next="See which savepoints there are: fencepost savepoint list FOLDER.",
    )
