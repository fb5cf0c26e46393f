"""Small files in a checkpoint that a start relies on: its plan, where a source ended, topics, files, a person's word.

Written whole, with format and sum. Never guesses from one that is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fencepost.errors import UNCHANGED, CheckpointRefused, OperatorNeeded, Where
from fencepost.protocol.format import Damaged, StoredFormat, read, since, unseal
from fencepost.store.base import Store

NOTE = StoredFormat("A note in the checkpoint", 2)
"""Format 1 did not say what a state was made from, which records a source chooses, and whose a topic's id is."""

Note = TypeVar("Note")


@dataclass(frozen=True, slots=True)
class DepartedSource:
    """`fencepost/departed/<name>`: a named source that the job does without by now."""

    source: str
    position: str
    """Where it ended, as Spark's log says it."""


@dataclass(frozen=True, slots=True)
class TopicIds:
    """`fencepost/<lineage>/topics/<topic>`: a topic that the job reads; made again, it would have another id."""

    topic: str
    ids: list[str]
    """Several, if clusters have a topic of this name."""
    by_source: dict[str, str] = since(2, default_factory=dict)
    """The id that each source reads: by its name, or by its place in the plan."""


@dataclass(frozen=True, slots=True)
class ReportedFiles:
    """`fencepost/<lineage>/changed`: source files that changed after they were read, of which a person was told."""

    changes: list[str]
    """By the sum of a file's path and its new time."""


@dataclass(frozen=True, slots=True)
class SettledHandle:
    """`fencepost/<lineage>/settled/<sum of the handle>`: what a person said became of a transaction."""

    handle: str
    outcome: str
    """`committed` or `lost`."""


@dataclass(frozen=True, slots=True)
class SourceNote:
    """One source of a branch."""

    what: str
    """Its kind, and the folder, topic or table."""
    name: str
    """Its name in Spark's log; "": it is known by its place."""
    folder: int
    """Its number under `sources`, if it has no name; several branches may share one."""
    chosen: dict[str, str] | None = since(2, default=None)
    """Options that choose its records; None: nobody noted them."""
    how: str = since(2, default="")
    """A sum of its schema and of all options that are not secret, by which two sources of one folder are told apart."""


@dataclass(frozen=True, slots=True)
class BranchNote:
    """One branch of a job."""

    sink: str
    operators: list[str]
    """Those with state, in the order of their numbers under `state`: what their state was made by."""
    sources: list[SourceNote]
    """In the order of their positions in `offsets`."""
    below: list[str] | None = since(2, default=None)
    """For each of the operators, what lies below it: the rows that its state was made from. None: nobody noted it."""


@dataclass(frozen=True, slots=True)
class PlanNote:
    """`fencepost/<lineage>/plan/<writer>`: whose state and whose positions are under which number."""

    lineage: str
    writer: int
    branches: list[Any]
    """As JSON has them; `read_plan` returns each as a `BranchNote`."""


def read_note(store: Store, name: str, kind: type[Note]) -> Note | None:
    """The note of this name; None if there is none."""
    data = store.read(name)
    return None if data is None else _decoded(store, name, lambda: NOTE.decode(kind, data))


def _decoded(store: Store, name: str, decode: Callable[[], Any]) -> Any:
    where = Where(path=f"{store.root}/{name}")
    try:
        return decode()
    except Damaged as error:
        raise _damaged(where, str(error)) from error
    except CheckpointRefused as error:
        error.where = where
        raise


def _damaged(where: Where, why: str) -> OperatorNeeded:
    return OperatorNeeded(
        "note_damaged",
        f"A note in the checkpoint cannot be trusted: {why}.",
        where=where,
        safe=UNCHANGED,
        next="Restore the file from a copy of the checkpoint, or from a savepoint.",
    )


def encode_note(note: Any) -> bytes:
    """The bytes of one."""
    return NOTE.encode(note)


# --- the plan: each writer has a note of its own, and the newest writer's counts. One that slept until it was replaced
# may still write its note; nobody reads it.


def plan_folder(lineage: str) -> str:
    """Where the notes of a lineage's writers are."""
    return f"fencepost/{lineage}/plan"


def plan_name(lineage: str, writer: int) -> str:
    """The file of one writer's note; names sort like numbers."""
    return f"{plan_folder(lineage)}/{writer:020}"


def newest_plan(store: Store, lineages: Sequence[str]) -> str | None:
    """The file of the note that counts; None if there is none. `lineages` is this one, then those before it."""
    for one in lineages:
        # A local store also lists what a killed writer left half.
        names = [name for name in store.list(plan_folder(one)) if not name.startswith(".")]
        if names:
            return f"{plan_folder(one)}/{names[-1]}"
    return None


def read_plan(store: Store, lineages: Sequence[str]) -> list[BranchNote] | None:
    """The branches in their noted order; None if there is no note."""
    name = newest_plan(store, lineages)
    data = None if name is None else store.read(name)
    if name is None or data is None:
        return None
    found: list[BranchNote] = _decoded(store, name, lambda: _branches(name, data))
    return found


def _branches(name: str, data: bytes) -> list[BranchNote]:
    note = NOTE.decode(PlanNote, data)
    if name != plan_name(note.lineage, note.writer):
        raise Damaged("it is that of another writer or lineage")
    number = unseal(data)["format"]
    return [
        read(BranchNote, {**one, "sources": [read(SourceNote, source, number) for source in one["sources"]]}, number)
        for one in note.branches
    ]


def write_plan(store: Store, lineage: str, writer: int, branches: Sequence[BranchNote]) -> None:
    """Note it for this writer, then remove the notes of those before it."""
    mine = plan_name(lineage, writer)
    store.replace(mine, encode_note(PlanNote(lineage, writer, list(branches))))
    for name in store.list(plan_folder(lineage)):
        if (older := f"{plan_folder(lineage)}/{name}") < mine:
            store.unlink(older)
