"""The mark of an Iceberg table: a table property, written in the same commit as the rows.

    fencepost.<job>.<sink> = {"lineage":…,"generation":…,"epoch":…,"handle":…,…,"snapshot":…,"sequence":…}

A property, because snapshots expire and take their summaries along. A rollback moves the table to an older snapshot and
leaves its properties as they are: so the mark also says which snapshot holds its rows, and that one has to be part of
what the table's main branch shows. Never takes an expired snapshot for a lost one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any
from urllib.parse import quote

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from fencepost.connectors.table.mark import MARK, Mark, damaged
from fencepost.errors import TargetRefused
from fencepost.protocol.format import Damaged, read

ACCEPT = "fencepost.accept_rollback"
"""A person accepts that rows were lost: the id of a snapshot on the main branch. Used up by the next commit."""


def name_of(job: str, sink: str) -> str:
    """The property of a job and sink; no two of them share one."""
    return ".".join(["fencepost", *(quote(name, safe="").replace(".", "%2E") for name in (job, sink))])


@dataclass(frozen=True, slots=True)
class StoredMark:
    """What the property holds: the fields of a `Mark`, and where its rows are."""

    lineage: str
    generation: int
    epoch: int
    handle: str
    writer: int
    format: int
    fencepost: str
    snapshot: int | None
    """That the commit made; None for a mark that a person wrote."""
    sequence: int | None
    """Its sequence number, which stays comparable when the snapshot has expired."""

    @property
    def mark(self) -> Mark:
        """The mark itself."""
        return Mark(**{one.name: getattr(self, one.name) for one in fields(Mark)})

    def text(self) -> str:
        """For the property."""
        return json.dumps(asdict(self), separators=(",", ":"))


def stored(mark: Mark, snapshot: Snapshot | None) -> StoredMark:
    """A mark with the snapshot that the same commit makes."""
    if snapshot is None:
        return StoredMark(**asdict(mark), snapshot=None, sequence=None)
    return StoredMark(**asdict(mark), snapshot=snapshot.snapshot_id, sequence=snapshot.sequence_number)


def mark_in(metadata: TableMetadata, job: str, sink: str) -> StoredMark | None:
    """The mark of a job and sink; refuse one that is damaged, or that only a newer fencepost understands."""
    text = metadata.properties.get(name_of(job, sink))
    try:
        return None if text is None else _read(text)
    except Damaged as error:
        raise damaged(error).at(job=job, sink=sink) from None


def _read(text: str) -> StoredMark:
    try:
        plain: Any = json.loads(text)
    except ValueError:
        raise Damaged("it is not JSON") from None
    if not isinstance(plain, dict):
        raise Damaged("it is not an object of JSON")
    found: StoredMark = read(StoredMark, plain, MARK.check_stamp(plain, error=TargetRefused))
    texts = (found.lineage, found.handle, found.fencepost)
    numbers = (found.generation, found.epoch, found.writer)
    places = (found.snapshot, found.sequence)
    is_right = all(type(one) is str for one in texts) and all(type(one) is int for one in numbers)
    if not is_right or not (all(type(one) is int for one in places) or places == (None, None)):
        raise Damaged("a field is not what it should be")
    return found


def setback(metadata: TableMetadata, found: StoredMark) -> str | None:
    """Is the mark's snapshot missing from what the main branch shows? How, in words. Says nothing if it is accepted."""
    main = metadata.refs.get(MAIN_BRANCH)
    if not is_set_back(metadata, found) or _is_accepted(metadata):
        return None
    if main is None:
        return f"its main branch has no snapshot any more, and the epoch is in snapshot {found.snapshot}"
    return (
        f"its main branch is at snapshot {main.snapshot_id}, which does not contain snapshot {found.snapshot}, where "
        "the epoch is: it was rolled back, or another branch took its place. To accept that rows are lost, set the "
        f"table property {ACCEPT} to {main.snapshot_id}"
    )


def is_set_back(metadata: TableMetadata, found: StoredMark) -> bool:
    """From the newest snapshot back: the mark's own has to come before any that is older.

    Where the way ends earlier, because snapshots have expired, nothing older is left to be rolled back to.
    """
    if found.snapshot is None or found.sequence is None:
        return False
    if MAIN_BRANCH not in metadata.refs:
        return True
    for snapshot in _history(metadata):
        if snapshot.snapshot_id == found.snapshot:
            return False
        if (snapshot.sequence_number or 0) <= found.sequence:
            return True
    return False


def _is_accepted(metadata: TableMetadata) -> bool:
    accepted = metadata.properties.get(ACCEPT)
    return accepted is not None and any(str(one.snapshot_id) == accepted.strip() for one in _history(metadata))


def _history(metadata: TableMetadata) -> list[Snapshot]:
    """The main branch, newest first, as far as it has not expired."""
    by_id = {one.snapshot_id: one for one in metadata.snapshots}
    main = metadata.refs.get(MAIN_BRANCH)
    found = []
    snapshot = by_id.get(main.snapshot_id) if main is not None else None
    while snapshot is not None:
        found.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = by_id.pop(parent, None) if parent is not None else None
    return found
