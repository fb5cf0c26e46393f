"""Creates, verifies and deletes savepoints, whether the job runs or not; the checkpoint is only read.

    read the ledger ─► copy every part of the newest done epoch, verifying checksums ─► fsync ─► manifest ─► rename
                 ▲                    │ a part is gone: retention removed it
                 └────────────────────┘ retry with a newer epoch

Everything happens in a hidden folder that gets its name in one step: there is no half savepoint. On a remote store the
manifest is created exclusively, last: a folder without one is not a savepoint.
"""

from __future__ import annotations

import re
import shutil
import time
from datetime import UTC, datetime
from functools import partial

import fencepost
from fencepost import faults
from fencepost.admin.folder import BEGUN, Half, clear, copy_part, hidden, making
from fencepost.errors import BadConfig, CheckpointRefused, Refused, Where
from fencepost.observe.terminal import Tell, nobody
from fencepost.protocol.order import State
from fencepost.store import Place, RemotePath, each, seen, store_at, way
from fencepost.store.ledger import read
from fencepost.store.local import sync_folder
from fencepost.store.parts import Measured, NotWritten, Part, Problem, examine, parts_of, sizes
from fencepost.store.savepoints import COPY, NAME, Savepoint, encode, home

ATTEMPTS = 5
PAUSE_S = 0.1
UNTOUCHED = "Safe: the checkpoint was only read, and no savepoint was created."


def create(checkpoint: Place, *, name: str | None = None, to: Place | None = None, tell: Tell = nobody) -> Savepoint:
    """Copy the newest done epoch, verifying it on the way; if that fails, raise and leave no savepoint."""
    root = checkpoint.absolute()
    for attempt in range(1, ATTEMPTS + 1):
        state = _fit(root)
        place = _place(root, name or _default_name(state), to)
        try:
            with making(place) as half:
                if half is None:
                    raise _taken(place)
                faults.reach("savepoint.begun")
                files, found = _copy(root, state, half.folder, tell)
                if not found:
                    return _finish(_describe(state, place, files), state, half)
        except (OSError, NotWritten) as error:
            raise CheckpointRefused(
                "savepoint_not_written",
                f"The savepoint could not be written: {getattr(error, 'strerror', None) or error}.",
                where=Where(job=state.lineage.job, path=str(place)),
                safe=UNTOUCHED,
                next="Check that the folder is writable and the disk is not full, or choose another folder (--to).",
            ) from error
        # Retention may have removed a file, or Spark is about to write a checksum beside one.
        time.sleep(PAUSE_S * attempt)
    more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
    raise CheckpointRefused(
        "checkpoint_damaged",
        f"Epoch {state.done_through} cannot be copied: {'; '.join(map(str, found[:3]))}{more}.",
        where=Where(job=state.lineage.job, epoch=state.done_through, path=str(root)),
        safe=UNTOUCHED,
        next="Find out what can be repaired: fencepost doctor CHECKPOINT. Older savepoints are not affected.",
    )


def verify(savepoint: Savepoint, tell: Tell = nobody) -> list[Problem]:
    """Check every file against the manifest, and the copy as a checkpoint of its own; empty if all is well."""
    copy, wanted = seen(savepoint.copy), savepoint.files
    parts: dict[str, Part] = {}
    found: dict[str, Problem] = {}
    try:
        parts = {part.name: part for part in parts_of(copy, savepoint.epoch)}
    except CheckpointRefused as error:
        found[COPY] = Problem(COPY, "unreadable", error.what)
    names = list(dict.fromkeys((*parts, *wanted)))
    watch = partial(tell, f"Verifying savepoint {savepoint.name}")
    examined = each(copy, lambda name: examine(copy, parts.get(name) or Part(name, "other")), names, watch)
    for name, (measured, problem) in zip(names, examined, strict=True):
        if problem is not None:
            found[name] = problem
        elif measured is not None and (measured.size, measured.sha256) != wanted.get(name):
            found[name] = Problem(name, "sum", "it does not match the manifest")
    for path in copy.rglob("*"):
        name = way(path, copy)
        if not path.is_dir() and name not in wanted:
            found.setdefault(name, Problem(name, "extra", "it is not in the manifest"))
    return list(found.values())


def state_sizes(savepoint: Savepoint) -> dict[tuple[str, int], int]:
    """Bytes of state by operator and partition."""
    copy = seen(savepoint.copy)
    return sizes(copy, parts_of(copy, savepoint.epoch))


def delete(savepoint: Savepoint) -> None:
    """Remove it; to readers it disappears in one step."""
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
    shutil.rmtree(gone, ignore_errors=True)  # nobody sees it any more, and the next sweep removes what is left


def is_half(path: RemotePath) -> bool:
    """Is it a savepoint that was begun and not completed, or not completely deleted?"""
    names = store_at(path).list("")
    return NAME not in names and (BEGUN in names or COPY in names)


def _fit(root: Place) -> State:
    state = read(root)
    where = Where(job=state.lineage.job, path=str(root))
    if state.lineage.guarantee != "exactly_once":
        raise Refused(
            "savepoint_needs_exactly_once",
            f"The job runs with guarantee={state.lineage.guarantee!r}, where the ledger does not say which epochs are "
            "in the sinks.",
            where=where,
            safe=UNTOUCHED,
            next="Stop the job and copy its whole checkpoint folder, or create a job with guarantee='exactly_once'.",
        )
    if state.done_through < 0:
        raise Refused(
            "nothing_done_yet",
            "No epoch is done yet.",
            where=where,
            safe=UNTOUCHED,
            next="Start the job if it is not running, and wait until its first epoch is done.",
        )
    return state


def _default_name(state: State) -> str:
    job = re.sub(r"[^\w-]+", "-", state.lineage.job).strip("-") or "job"
    return f"{job}-{state.done_through}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def _place(root: Place, name: str, to: Place | None) -> Place:
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise BadConfig(
            "bad_savepoint_name",
            "Invalid savepoint name: use letters, digits, '-', '_' and '.', and do not start with '.'.",
            next="Choose another name (--name).",
        )
    place = (to or home(root)).absolute() / name
    if is_inside(place, root):
        raise BadConfig(
            "savepoint_inside",
            "The savepoint would be inside the checkpoint, and lost with it.",
            where=Where(path=str(place)),
            next="Choose another folder (--to).",
        )
    if place.exists():
        raise _taken(place)
    return place


def is_inside(path: Place, root: Place) -> bool:
    """Is the path below the root, or the root itself?"""
    if isinstance(path, RemotePath) or isinstance(root, RemotePath):
        return isinstance(path, RemotePath) and path.is_relative_to(root)
    return path.resolve().is_relative_to(root.resolve())


def _taken(place: Place) -> BadConfig:
    return BadConfig(
        "savepoint_exists",
        "A savepoint or folder with this name already exists.",
        where=Where(path=str(place)),
        safe=UNTOUCHED,
        next="Choose another name (--name), or delete it first: fencepost savepoint delete.",
    )


def _copy(root: Place, state: State, half: Place, tell: Tell) -> tuple[dict[str, tuple[int, str]], list[Problem]]:
    """Copy what the newest epoch needs; return every file with its size and checksum, and the problems found."""
    files: dict[str, tuple[int, str]] = {}
    found: list[Problem] = []
    root = seen(root)
    parts = parts_of(root, state.done_through, state)

    def copy(part: Part) -> tuple[Measured | None, Problem | None]:
        return copy_part(root, part, half / COPY / part.name)

    far = half if isinstance(half, RemotePath) else root
    copied = each(far, copy, parts, partial(tell, f"Copying epoch {state.done_through}"))
    for part, (measured, problem) in zip(parts, copied, strict=True):
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
        settings=dict(state.lineage.settings),
        files=files,
    )


def _finish(savepoint: Savepoint, state: State, half: Half) -> Savepoint:
    """Make the copy durable, write the manifest, give it its name."""
    if read(half.folder / COPY).last_sum != state.last_sum:
        raise NotWritten("the copied ledger differs from the original")
    faults.reach("savepoint.copied")
    if not half.finish(NAME, encode(savepoint)):
        raise _taken(savepoint.path)
    faults.reach("savepoint.manifest_written")
    if not half.appear():
        raise _taken(savepoint.path)
    faults.reach("savepoint.named")
    return savepoint
