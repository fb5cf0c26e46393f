"""From what a person types to a job's checkpoint: its FILE, its NAME, or the CHECKPOINT folder itself."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from fencepost.cli.quiet import quiet
from fencepost.errors import UNCHANGED, BadConfig, CheckpointRefused, FencepostError, Retryable, Where
from fencepost.ledger import Place, RemotePath, Unanswered, place
from fencepost.ledger.patience import at_most
from fencepost.ledger.places import check_scheme, is_remote, whole_url
from fencepost.observe import registry
from fencepost.observe.registry import Noted

PATIENCE_S: Final = 15.0
"""So long a person at a terminal waits for a remote store."""


def find(text: str) -> Place:
    """The checkpoint. A checkpoint's folder is taken as it is; files and names are looked up among what was started.

    A folder that is no checkpoint (the job's input, perhaps) gives way to a job of its name; `./name` is the folder.
    """
    if is_remote(text):
        return _of_url(text)
    path = Path(text)
    if path.is_file():
        return _of_file(path)
    if not (path / "fencepost").is_dir() and (found := registry.by_name(text)):
        return _the_one(text, found)
    if path.is_dir() or os.sep in text:
        return path  # if there is no such folder, the verb has the words for it
    known = sorted({noted.name for noted in registry.everything()})
    near = ", ".join(difflib.get_close_matches(text, known, 3) or known[:5])
    raise BadConfig(
        "unknown_job",
        f"There is no folder {text!r} here, and no job of this name was started on this machine.",
        safe=UNCHANGED,
        next=f"Give the job's checkpoint folder{f', or one of these names: {near}' if near else ''}.",
    )


def _of_url(text: str) -> Place:
    """Is there anybody? Asked at once, for a verb asks many questions, and a silent store is waited for at each."""
    where = place(whole_url(text, None))
    with told(where):
        (where / "metadata").exists()
    return where


@contextmanager
def told(where: Place) -> Iterator[None]:
    """What a remote store says or does not say becomes four lines; a person waits some seconds for it, not minutes."""
    if isinstance(where, Path):
        yield
        return
    try:
        with at_most(PATIENCE_S):
            yield
    except OSError as error:
        raise _four_lines(error, where) from error
    except CheckpointRefused as error:
        if isinstance(error.__cause__, OSError):
            raise _four_lines(error.__cause__, where) from error.__cause__
        raise


def _four_lines(error: OSError, where: Place) -> FencepostError:
    at = Where(path=str(where))
    if isinstance(error, PermissionError):
        return CheckpointRefused(
            "store_denied",
            f"The store refuses us: {error.strerror}.",
            where=at,
            safe=UNCHANGED,
            next="Renew your credentials, or use some that may read, list and (to stop, settle or repair) write there.",
        )
    if isinstance(error, Unanswered):
        return Retryable(
            "store_silent",
            f"The store does not answer: {error.strerror}.",
            where=at,
            safe=UNCHANGED,
            next="See that it is up and reached from here (AWS_ENDPOINT_URL, FENCEPOST_WEBHDFS), then try again.",
        )
    return CheckpointRefused(
        "checkpoint_unreadable",
        f"The checkpoint cannot be read: {error.strerror}.",
        where=at,
        safe=UNCHANGED,
        next="Give a folder that you may read.",
    )


def _of_file(path: Path) -> Place:
    """What was noted at the last start; else what the file says, for which it has to be run, and Spark with it."""
    if found := registry.by_file(path):
        return _the_one(str(path), found)
    from fencepost.cli.check import jobs_of  # noqa: PLC0415 - imports Spark, which is hardly ever needed here

    with quiet():
        jobs = jobs_of(path)
    return _the_one(str(path), [Noted(job.name, job._checkpoint.place, str(path), "", "") for job in jobs])


def _the_one(text: str, found: list[Noted]) -> Place:
    places = {noted.checkpoint: noted for noted in found}
    if len(places) == 1:
        return place(found[0].checkpoint)
    listed = "; ".join(
        f"{where} (job {noted.name}{f', last started {noted.time}' if noted.time else ''})"
        for where, noted in places.items()
    )
    raise BadConfig(
        "several_checkpoints",
        f"{text!r} has {len(places)} checkpoints.",
        where=Where(job=found[0].name if len({noted.name for noted in found}) == 1 else None),
        safe=UNCHANGED,
        next=f"Name the folder that is meant: {listed}.",
    )


class JobType(click.ParamType):  # type: ignore[type-arg]  # not generic in older versions of click
    """A command's argument that names a job."""

    name = "job"

    def convert(self, value: str | Place, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        """Its checkpoint."""
        return find(value) if isinstance(value, str) else value


class PlaceType(click.ParamType):  # type: ignore[type-arg]  # as above
    """A folder, here or on another machine."""

    name = "path"

    def convert(self, value: str | Place, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        """Where it is."""
        found = place(value)
        if isinstance(found, RemotePath):
            check_scheme(found.url, None)
        return found


JOB = JobType()
"""FILE, NAME or CHECKPOINT."""

FOLDER = PlaceType()
"""A local folder, or `hdfs://…`, `s3a://…`."""
