"""Makes, verifies and deletes savepoints, with the job running or not; the checkpoint is only read.

    read the ledger ─► copy every part of the newest epoch that is done, comparing sums ─► fsync ─► manifest ─► rename
                 ▲                    │ a part is gone: retention took it
                 └────────────────────┘ again, with a newer epoch

Everything happens in a hidden folder that gets its name in one step: there is no half savepoint. On a remote store the
manifest is created exclusively, last: what has none is no savepoint.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import fencepost
from fencepost import faults
from fencepost.checkpoints.claimed import BEGUN, Claim, claimed, clear
from fencepost.checkpoints.copying import copy_part
from fencepost.checkpoints.hidden import hidden, hidden_folder, sweep
from fencepost.checkpoints.manifest import COPY, NAME, Savepoint, encode, home
from fencepost.checkpoints.parts import Part, Problem, examine, parts_of, sizes
from fencepost.checkpoints.reader import read
from fencepost.checkpoints.sums import Measured, NotWritten
from fencepost.errors import BadConfig, CheckpointRefused, Refused, Where
from fencepost.ledger import Place, RemotePath, each, seen, store_at, way
from fencepost.ledger.local import make_folder, sync_folder
from fencepost.protocol.order import State

ATTEMPTS = 5
PAUSE_S = 0.1
UNTOUCHED = "Safe: the checkpoint was only read, and no savepoint was made."


def create(checkpoint: Place, *, name: str | None = None, to: Place | None = None) -> Savepoint:
    """Copy the newest epoch that is done, verified on the way; raise, with nothing listed, if that cannot be."""
    root = checkpoint.absolute()
    for attempt in range(1, ATTEMPTS + 1):
        state = _fit(root)
        place = _place(root, name or _default_name(state), to)
        try:
            with _making(place) as (half, claim):
                faults.reach("savepoint.begun")
                files, found = _copy(root, state, half)
                if not found:
                    return _finish(_describe(state, place, files), state, half, claim)
        except (OSError, NotWritten) as error:
            raise CheckpointRefused(
                "savepoint_not_written",
                f"The copy cannot be made: {getattr(error, 'strerror', None) or error}.",
                where=Where(job=state.lineage.job, path=str(place)),
                safe=UNTOUCHED,
                next="See that the folder is writable and its disk has room, or choose another place (--to).",
            ) from error
        # Retention may have taken a file, or Spark is about to write a sum beside one.
        time.sleep(PAUSE_S * attempt)
    more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
    raise CheckpointRefused(
        "checkpoint_damaged",
        f"Epoch {state.done_through} cannot be copied: {'; '.join(map(str, found[:3]))}{more}.",
        where=Where(job=state.lineage.job, epoch=state.done_through, path=str(root)),
        safe=UNTOUCHED,
        next="See what can be repaired: fencepost doctor CHECKPOINT. Older savepoints are not concerned.",
    )


def verify(savepoint: Savepoint) -> list[Problem]:
    """Every file against the manifest, and the copy as a checkpoint in itself; nothing if all is well."""
    copy, wanted = seen(savepoint.copy), savepoint.files
    parts: dict[str, Part] = {}
    found: dict[str, Problem] = {}
    try:
        parts = {part.name: part for part in parts_of(copy, savepoint.epoch)}
    except CheckpointRefused as error:
        found[COPY] = Problem(COPY, "unreadable", error.what)
    names = list(dict.fromkeys((*parts, *wanted)))
    examined = each(copy, lambda name: examine(copy, parts.get(name) or Part(name, "other")), names)
    for name, (measured, problem) in zip(names, examined, strict=True):
        if problem is not None:
            found[name] = problem
        elif measured is not None and (measured.size, measured.sha256) != wanted.get(name):
            found[name] = Problem(name, "sum", "it is not what the manifest says")
    for path in copy.rglob("*"):
        name = way(path, copy)
        if not path.is_dir() and name not in wanted:
            found.setdefault(name, Problem(name, "extra", "the manifest does not know it"))
    return list(found.values())


def state_sizes(savepoint: Savepoint) -> dict[tuple[str, int], int]:
    """Bytes of state by operator and partition."""
    copy = seen(savepoint.copy)
    return sizes(copy, parts_of(copy, savepoint.epoch))


def delete(savepoint: Savepoint) -> None:
    """Remove it, all or nothing as far as anybody can see."""
    path = savepoint.path.absolute()
    if isinstance(path, RemotePath):
        store_at(path).delete(NAME)
        faults.reach("savepoint.manifest_deleted")
        clear(path)
        return
    gone = hidden(path)
    path.rename(gone)
    sync_folder(gone.parent)
    faults.reach("savepoint.deleted")
    shutil.rmtree(gone, ignore_errors=True)  # nobody sees it any more, and the next sweep takes what is left


def is_half(path: RemotePath) -> bool:
    """Is it one that was begun there and not completed, or not deleted to the end?"""
    names = store_at(path).list("")
    return NAME not in names and (BEGUN in names or COPY in names)


@contextmanager
def _making(place: Place) -> Iterator[tuple[Place, Claim | None]]:
    """Where the files go before it is a savepoint, and, on a remote store, the claim to its name."""
    if isinstance(place, RemotePath):
        with claimed(place) as claim:
            if claim is None:
                raise _taken(place)
            yield place, claim
        return
    make_folder(place.parent)
    sweep(place.parent)
    with hidden_folder(place) as temp:
        yield temp, None


def _fit(root: Place) -> State:
    state = read(root)
    where = Where(job=state.lineage.job, path=str(root))
    if state.lineage.guarantee != "exactly_once":
        raise Refused(
            "savepoint_needs_exactly_once",
            f"The job is {state.lineage.guarantee}: its ledger does not say which epochs are in the sinks.",
            where=where,
            safe=UNTOUCHED,
            next="Stop the job and copy its whole checkpoint folder, or begin a job with guarantee='exactly_once'.",
        )
    if state.done_through < 0:
        raise Refused(
            "nothing_done_yet",
            "No epoch is done yet.",
            where=where,
            safe=UNTOUCHED,
            next="Wait for the first one, or start the job: it finishes what is decided.",
        )
    return state


def _default_name(state: State) -> str:
    job = re.sub(r"[^\w-]+", "-", state.lineage.job).strip("-") or "job"
    return f"{job}-{state.done_through}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def _place(root: Place, name: str, to: Place | None) -> Place:
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise BadConfig(
            "bad_savepoint_name",
            "A savepoint's name is that of a folder: letters, digits, '-', '_' and, not in front, '.'.",
            next="Choose another name (--name).",
        )
    place = (to or home(root)).absolute() / name
    if is_inside(place, root):
        raise BadConfig(
            "savepoint_inside",
            "A savepoint inside the checkpoint would be lost with it.",
            where=Where(path=str(place)),
            next="Choose another folder (--to).",
        )
    if place.exists():
        raise _taken(place)
    return place


def is_inside(path: Place, root: Place) -> bool:
    """Is it below it, or the same?"""
    if isinstance(path, RemotePath) or isinstance(root, RemotePath):
        return isinstance(path, RemotePath) and path.is_relative_to(root)
    return path.resolve().is_relative_to(root.resolve())


def _taken(place: Place) -> BadConfig:
    return BadConfig(
        "savepoint_exists",
        "There is something of this name already.",
        where=Where(path=str(place)),
        safe=UNTOUCHED,
        next="Choose another name (--name), or delete it first: fencepost savepoint delete.",
    )


def _copy(root: Place, state: State, half: Place) -> tuple[dict[str, tuple[int, str]], list[Problem]]:
    """Copy what the newest epoch rests on: every file with its size and sum, and what is wrong with some."""
    files: dict[str, tuple[int, str]] = {}
    found: list[Problem] = []
    root = seen(root)
    parts = parts_of(root, state.done_through, state)

    def copy(part: Part) -> tuple[Measured | None, Problem | None]:
        target = half / COPY / part.name
        if isinstance(target, Path):
            target.parent.mkdir(parents=True, exist_ok=True)
        return copy_part(root, part, target)

    far = half if isinstance(half, RemotePath) else root
    for part, (measured, problem) in zip(parts, each(far, copy, parts), strict=True):
        faults.reach("savepoint.copied_one")
        if measured is not None:
            files[part.name] = measured.size, measured.sha256
        if problem is not None:
            found.append(problem)
    return files, found


def _describe(state: State, place: Place, files: dict[str, tuple[int, str]]) -> Savepoint:
    written_by = dict(state.driver.versions) if state.driver else {}
    return Savepoint(
        path=place,
        name=place.name,
        job=state.lineage.job,
        lineage=state.lineage_id,
        generation=state.lineage.generation,
        epoch=state.done_through,
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        versions={**written_by, "fencepost": fencepost.__version__},
        formats=dict(state.lineage.formats),
        files=files,
    )


def _finish(savepoint: Savepoint, state: State, half: Place, claim: Claim | None) -> Savepoint:
    """Make the copy durable, write the manifest, give it its name."""
    if read(half / COPY).last_sum != state.last_sum:
        raise NotWritten("the ledger reads back changed")
    faults.reach("savepoint.copied")
    if claim is None:
        assert isinstance(half, Path)
        _name(savepoint, half)
    elif not claim.finish(NAME, encode(savepoint)):
        raise _taken(savepoint.path)
    return savepoint


def _name(savepoint: Savepoint, temp: Path) -> None:
    """A local folder becomes visible in one step."""
    assert isinstance(savepoint.path, Path)
    with open(temp / NAME, "xb") as file:
        file.write(encode(savepoint))
        file.flush()
        os.fsync(file.fileno())
    for folder, _, _ in os.walk(temp, topdown=False):
        sync_folder(Path(folder))
    faults.reach("savepoint.manifest_written")
    try:
        temp.rename(savepoint.path)
    except OSError as error:
        if savepoint.path.exists():
            raise _taken(savepoint.path) from error
        raise
    faults.reach("savepoint.named")
    sync_folder(savepoint.path.parent)
