"""How a job's checkpoint is kept: how often, how long an epoch may take, how much failure is borne, what stays.

    fp.Job("orders", checkpoint=fp.Checkpoint("checkpoints/orders", interval="10 seconds", timeout="10 minutes"))

Never takes a value that it does not understand: all that is wrong is named at once, before anything starts.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import uuid
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Literal, TypedDict, get_args

from fencepost import volatile
from fencepost.errors import BadConfig, Where
from fencepost.ledger.places import RemotePath, is_remote, store_at, whole_url
from fencepost.observe import registry
from fencepost.state import Backend, FileSystem, Memory
from fencepost.times import seconds

Retain = Literal["on_cancellation", "delete_on_cancellation"]

LEAST_RETAINED = 2
"""Recovery looks at the newest two epochs."""

log = logging.getLogger("fencepost")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint and how it is kept; goes wherever `checkpoint=` takes a path.

    Args:
        path: The folder; none where the state's backend names it (fp.Memory, fp.FileSystem(path)).
        interval: The shortest time from one epoch's begin to the next one's ('10 seconds'); by default as data comes.
        timeout: An epoch that is not decided so long after its barrier is dropped and runs again; by default never.
        min_pause: The least time between an epoch's end and the next one's begin.
        tolerable_failures: So many failed epochs in a row are borne: the same query tries again from the staged rows.
        retained: So many epochs are kept, at least 2; by default 100, or more if the session says so.
        retain: 'on_cancellation' keeps the folder for ever; with 'delete_on_cancellation' `job.cancel()` deletes it.

    The mistake people make: a timeout near the time that an epoch takes. A slow hour then drops one epoch after another
    and the job falls ever further behind; take several times the longest epoch.
    """

    path: str | os.PathLike[str] | None = None
    _: KW_ONLY
    interval: str | None = None
    timeout: str | None = None
    min_pause: str | None = None
    tolerable_failures: int = 0
    retained: int | None = None
    retain: Retain = "on_cancellation"

    def __post_init__(self) -> None:
        """Refuse what cannot be, all at once."""
        problems = [
            f"{name}={value!r} is no time (write '500 ms', '10 seconds', '5 minutes')"
            for name in ("interval", "timeout", "min_pause")
            if (value := getattr(self, name)) is not None and seconds(value) is None
        ]
        if self.timeout is not None and seconds(self.timeout) == 0:
            problems.append("timeout='0' would drop every epoch")
        if not _whole(self.tolerable_failures, 0):
            problems.append(f"tolerable_failures={self.tolerable_failures!r} is no number of epochs (0 or more)")
        if self.retained is not None and not _whole(self.retained, LEAST_RETAINED):
            problems.append(f"retained={self.retained!r} is too few (recovery needs {LEAST_RETAINED})")
        if self.retain not in get_args(Retain):
            problems.append(f"retain={self.retain!r} is neither {' nor '.join(map(repr, get_args(Retain)))}")
        if problems:
            raise BadConfig(
                "bad_checkpoint_options",
                f"The checkpoint's options cannot be: {'; '.join(problems)}.",
                where=Where(path=None if self.path is None else os.fspath(self.path)),
                next="Mend them, and start again.",
            )

    @property
    def deletes(self) -> bool:
        """Is it deleted when the job is cancelled?"""
        return self.retain == "delete_on_cancellation"

    @property
    def for_a_run(self) -> RunOptions:
        """What one start of the query needs to know."""
        return {
            "min_pause_s": seconds(self.min_pause or "") or 0.0,
            "timeout_s": seconds(self.timeout or ""),
            "retained": self.retained,
            "deletes": self.deletes,
        }

    def check_for_a_query_alone(self, job: str | None) -> None:
        """Refuse what only a job can do: whoever holds a bare query starts, paces and cancels it himself."""
        named = {"interval": self.interval, "tolerable_failures": self.tolerable_failures, "retain": self.deletes}
        if wrong := [name for name, value in named.items() if value]:
            raise BadConfig(
                "option_needs_a_job",
                f"With fp.start nobody would heed {', '.join(wrong)} of the checkpoint.",
                where=Where(job=job),
                next="Use fp.Job(…).write(…).run(), or take it away (the interval is the writer's trigger).",
            )

    @property
    def place(self) -> str:
        """The folder; known once `settled`."""
        assert self.path is not None, "settle it first"
        return os.fspath(self.path)


class RunOptions(TypedDict):
    """Of one start."""

    min_pause_s: float
    timeout_s: float | None
    retained: int | None
    deletes: bool


def one_interval(given: str | None, checkpoint: Checkpoint, job: str) -> str:
    """The job's own word, or its checkpoint's."""
    named = {interval for interval in (given, checkpoint.interval) if interval is not None}
    if len(named) > 1:
        raise BadConfig(
            "two_intervals",
            f"The job says interval={given!r}, its checkpoint {checkpoint.interval!r}.",
            where=Where(job=job),
            next="Say it once.",
        )
    return named.pop() if named else "0 seconds"


def settled(given: Checkpoint | str | os.PathLike[str] | None, state: Backend | None, job: str | None) -> Checkpoint:
    """The checkpoint with its place, which the job or the state's backend names."""
    found = given if isinstance(given, Checkpoint) else Checkpoint(given)
    where = Where(job=job)
    if isinstance(state, Memory):
        if found.path is not None:
            raise BadConfig(
                "memory_has_no_place",
                "fp.Memory() keeps the checkpoint in memory, and the job names a folder for it.",
                where=where,
                next="Take the path away, or use state=fp.FileSystem() or fp.RocksDB(), which keep it in that folder.",
            )
        return replace(found, path=volatile.folder(job or "query"))
    named = {whole_path(os.fspath(path), job) for path in (found.path, _path_of(state)) if path is not None}
    if len(named) != 1:
        what = "The job and its fp.FileSystem(…) name two folders for it." if named else "The job has no checkpoint."
        raise BadConfig(
            "two_checkpoints" if named else "no_checkpoint",
            what,
            where=where,
            next="Name one folder: checkpoint='checkpoints/<job>'.",
        )
    return replace(found, path=named.pop())


def whole_path(path: str, job: str | None) -> str:
    """The absolute path of a folder on this machine, or the URL of one elsewhere."""
    if is_remote(path):
        return whole_url(path, job)
    return str(Path(re.sub(r"^file:(//)?(?=/)", "", path)).absolute())


def delete(path: str, job: str, why_not: str | None) -> bool:
    """After a clean end: delete the checkpoint, if nothing needs it any more; otherwise keep it and say why."""
    if why_not is not None:
        kept = "job %s: the checkpoint %s is kept: %s. Start the job once more, then cancel it."
        log.warning(kept, job, path, why_not)
        return False
    if is_remote(path):
        store_at(path).delete("")  # it is sealed: what a half one says is that nobody goes on from it
        registry.forget(RemotePath(path))
        log.info("job %s: cancelled, its checkpoint %s is deleted", job, path)
        return True
    doomed = Path(path).with_name(f".{Path(path).name}.{uuid.uuid4().hex}.deleted")
    Path(path).rename(doomed)  # at once: half a checkpoint would look like a damaged one
    shutil.rmtree(doomed, ignore_errors=True)
    log.info("job %s: cancelled, its checkpoint %s is deleted", job, path)
    return True


def _path_of(state: Backend | None) -> str | os.PathLike[str] | None:
    return state.path if isinstance(state, FileSystem) else None


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
