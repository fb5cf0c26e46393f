"""A savepoint's manifest: `savepoint.json`, written last. A folder without it is not a savepoint.

<place>/<name>/savepoint.json     name, job, lineage, epoch, versions, every file with size and checksum
<place>/<name>/checkpoint/…       the files, laid out as in the checkpoint they were copied from
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fencepost.errors import UNCHANGED, CheckpointRefused, Where
from fencepost.protocol.format import StoredFormat, plain_of, read, seal, unseal
from fencepost.protocol.order import State
from fencepost.store.path import Place

SAVEPOINT = StoredFormat("The savepoint", 1)
NAME = "savepoint.json"
COPY = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """A verified copy of one epoch. Note: restore it, but never write to it or start a job on `copy` itself."""

    path: Place
    name: str
    job: str
    lineage: str
    generation: int
    epoch: int
    created: str
    versions: Mapping[str, str]
    settings: Mapping[str, str]
    """Of Spark, as the ledger's first record has them."""
    files: Mapping[str, tuple[int, str]]
    """By name under `copy`: size and SHA-256."""

    @property
    def copy(self) -> Place:
        """The copied checkpoint."""
        return self.path / COPY

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _ in self.files.values())


def encode(savepoint: Savepoint) -> bytes:
    """As readable text, with a checksum over everything else; the savepoint's own path is not part of it."""
    plain = {name: value for name, value in plain_of(savepoint).items() if name != "path"}
    return seal({**plain, **SAVEPOINT.stamp}, indented=True)


def load(path: Place) -> Savepoint:
    """The savepoint in this folder; `CheckpointRefused` if there is none, or its manifest is damaged."""
    try:
        data = (path / NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise _refused("no_savepoint", f"This is not a savepoint: {NAME} is missing.", path) from None
    except OSError as error:
        raise _refused("savepoint_unreadable", f"Cannot read {NAME}: {error.strerror}.", path) from error
    try:
        plain = unseal(data, indented=True)
        number = SAVEPOINT.check_stamp(plain)
        values: dict[str, Any] = {name: value for name, value in plain.items() if name not in SAVEPOINT.stamp}
        values["files"] = {name: (size, sha) for name, (size, sha) in plain["files"].items()}
        found: Savepoint = read(Savepoint, {**values, "path": path}, number)
    except CheckpointRefused as error:
        error.where = Where(path=str(path))
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _refused("savepoint_damaged", f"{NAME} is incomplete, or was changed.", path) from error
    return found


def find(place: Place) -> tuple[list[Savepoint], list[CheckpointRefused]]:
    """The savepoints in a folder or of a checkpoint, oldest first; and why others cannot be read: damaged, or newer.

    Also of a checkpoint that is gone.
    """
    whole, refused = [], []
    for path in (() if is_checkpoint(place) else _folders(place)) or _folders(home(place)):
        try:
            whole.append(load(path))
        except CheckpointRefused as error:
            refused.append(error)
    return sorted(whole, key=lambda found: (found.created, found.name)), refused


def of_family(savepoints: list[Savepoint], state: State) -> list[Savepoint]:
    """Those of this lineage or its ancestors."""
    family = {state.lineage_id, *state.lineage.ancestors}
    return [one for one in savepoints if one.lineage in family]


def home(checkpoint: Place) -> Place:
    """Where a checkpoint's savepoints go by default: beside it, because they outlive it."""
    whole = checkpoint.absolute()
    return whole.with_name(f"{whole.name}.savepoints")


def is_checkpoint(path: Place) -> bool:
    """Does it look like a checkpoint?"""
    return (path / "fencepost").is_dir() and (path / "metadata").exists()


def _folders(place: Place) -> list[Place]:
    try:
        found = (path for path in place.iterdir() if path.name[0] != "." and (path / NAME).exists())
        return sorted(found, key=str)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _refused(code: str, what: str, path: Place) -> CheckpointRefused:
    return CheckpointRefused(
        code,
        what,
        where=Where(path=str(path)),
        safe=UNCHANGED,
        next="List the savepoints there are: fencepost savepoint list FOLDER.",
    )
