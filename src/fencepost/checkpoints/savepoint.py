"""Makes, verifies and deletes savepoints, with the job running or not; the checkpoint is only read.

    read the ledger ─► copy every part of the newest epoch that is done, comparing sums ─► fsync ─► manifest ─► rename
                 ▲                    │ a part is gone: retention took it
                 └────────────────────┘ again, with a newer epoch

Everything happens in a hidden folder that gets its name in one step: there is no half savepoint.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

import fencepost
from fencepost import faults
from fencepost.checkpoints.hidden import hidden, hidden_folder, sweep
from fencepost.checkpoints.manifest import COPY, NAME, Savepoint, encode, home
from fencepost.checkpoints.parts import Part, Problem, examine, parts_of, sizes
from fencepost.checkpoints.reader import read
from fencepost.checkpoints.sums import NotWritten
from fencepost.errors import BadConfig, CheckpointRefused, Refused, Where
from fencepost.ledger.local import make_folder, sync_folder
from fencepost.protocol.order import State

ATTEMPTS = 5
PAUSE_S = 0.1
UNTOUCHED = "Safe: the checkpoint was only read, and no savepoint was made."


def create(checkpoint: Path, *, name: str | None = None, to: Path | None = None) -> Savepoint:
    """Copy the newest epoch that is done, verified on the way; raise, with nothing listed, if that cannot be."""
    root = checkpoint.absolute()
    for attempt in range(1, ATTEMPTS + 1):
        state = _fit(root)
        place = _place(root, name or _default_name(state), to)
        try:
            make_folder(place.parent)
            sweep(place.parent)
            with hidden_folder(place) as temp:
                faults.reach("savepoint.begun")
                files, found = _copy(root, state, temp)
                if not found:
                    return _finish(_describe(state, place, files), state, temp)
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
    copy, wanted = savepoint.copy, savepoint.files
    parts: dict[str, Part] = {}
    found: dict[str, Problem] = {}
    try:
        parts = {part.name: part for part in parts_of(copy, savepoint.epoch)}
    except CheckpointRefused as error:
        found[COPY] = Problem(COPY, "unreadable", error.what)
    for name in dict.fromkeys((*parts, *wanted)):
        measured, problem = examine(copy, parts.get(name) or Part(name, "other"))
        if problem is None and measured is not None and (measured.size, measured.sha256) != wanted.get(name):
            problem = Problem(name, "sum", "it is not what the manifest says")
        if problem is not None:
            found[name] = problem
    for path in copy.rglob("*"):
        name = path.relative_to(copy).as_posix()
        if not path.is_dir() and name not in wanted:
            found.setdefault(name, Problem(name, "extra", "the manifest does not know it"))
    return list(found.values())


def state_sizes(savepoint: Savepoint) -> dict[tuple[str, int], int]:
    """Bytes of state by operator and partition."""
    return sizes(savepoint.copy, parts_of(savepoint.copy, savepoint.epoch))


def delete(savepoint: Savepoint) -> None:
    """Remove it, all or nothing as far as anybody can see."""
    path = savepoint.path.absolute()
    gone = hidden(path)
    path.rename(gone)
    sync_folder(gone.parent)
    faults.reach("savepoint.deleted")
    shutil.rmtree(gone, ignore_errors=True)  # nobody sees it any more, and the next sweep takes what is left


def _fit(root: Path) -> State:
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


def _place(root: Path, name: str, to: Path | None) -> Path:
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise BadConfig(
            "bad_savepoint_name",
            "A savepoint's name is that of a folder: letters, digits, '-', '_' and, not in front, '.'.",
            next="Choose another name (--name).",
        )
    place = (to or home(root)).absolute() / name
    if place.resolve().is_relative_to(root.resolve()):
        raise BadConfig(
            "savepoint_inside",
            "A savepoint inside the checkpoint would be lost with it.",
            where=Where(path=str(place)),
            next="Choose another folder (--to).",
        )
    if place.exists():
        raise _taken(place)
    return place


def _taken(place: Path) -> BadConfig:
    return BadConfig(
        "savepoint_exists",
        "There is something of this name already.",
        where=Where(path=str(place)),
        safe=UNTOUCHED,
        next="Choose another name (--name), or delete it first: fencepost savepoint delete.",
    )


def _copy(root: Path, state: State, temp: Path) -> tuple[dict[str, tuple[int, str]], list[Problem]]:
    """Copy what the newest epoch rests on: every file with its size and sum, and what is wrong with some."""
    files: dict[str, tuple[int, str]] = {}
    found: list[Problem] = []
    for part in parts_of(root, state.done_through, state):
        target = temp / COPY / part.name
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "xb") as out:
            measured, problem = examine(root, part, out)
            out.flush()
            os.fsync(out.fileno())
        faults.reach("savepoint.copied_one")
        if measured is not None:
            files[part.name] = measured.size, measured.sha256
        if problem is not None:
            found.append(problem)
    return files, found


def _describe(state: State, place: Path, files: dict[str, tuple[int, str]]) -> Savepoint:
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


def _finish(savepoint: Savepoint, state: State, temp: Path) -> Savepoint:
    """Make the copy durable, write the manifest, give it its name."""
    if read(temp / COPY).last_sum != state.last_sum:
        raise NotWritten("the ledger reads back changed")
    faults.reach("savepoint.copied")
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
    return savepoint
