"""From what a person types to a job's checkpoint: its FILE, its NAME, or the CHECKPOINT folder itself."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from fencepost.cli.frame import quiet
from fencepost.errors import UNCHANGED, BadConfig, Where
from fencepost.observe import registry
from fencepost.observe.registry import Noted
from fencepost.store import Place, RemotePath, place
from fencepost.store.path import check_scheme, is_remote, whole_url
from fencepost.store.refusal import unreadable
from fencepost.store.retry import at_most

if TYPE_CHECKING:
    from fencepost.contract import Sink

PATIENCE_S: Final = 15.0
"""How long a person at a terminal waits for a remote store."""


def find(text: str) -> Place:
    """The checkpoint. A checkpoint's folder is taken as it is; files and names are looked up among started jobs.

    If a folder is not a checkpoint (the job's input, perhaps), a job of that name wins; `./name` is the folder.
    """
    if is_remote(text):
        return _of_url(text)
    path = Path(text)
    if path.is_file():
        return _of_file(path)
    if not (path / "fencepost").is_dir() and (found := registry.by_name(text)):
        return _the_one(text, found)
    if path.is_dir() or os.sep in text:
        return path  # if there is no such folder, the command says so
    known = sorted({noted.name for noted in registry.everything()})
    near = ", ".join(difflib.get_close_matches(text, known, 3) or known[:5])
    raise BadConfig(
        "unknown_job",
        f"There is no folder {text!r} here, and no job with this name was started on this machine.",
        safe=UNCHANGED,
        next=f"Give the job's checkpoint folder{f', or one of these names: {near}' if near else ''}.",
    )


def with_sinks(text: str, arguments: tuple[str, ...]) -> list[tuple[Place, Mapping[str, Sink] | None]]:
    """Checkpoints, with the sinks to ask, for which a FILE is run; a name or a checkpoint comes without (`script_of`).

    Note: a file that is only remembered is not run for a name's sake; it may have changed since.
    """
    if not Path(text).is_file():
        return [(find(text), None)]
    from fencepost.cli.check import jobs_of  # noqa: PLC0415 - Spark is wanted by nothing else here

    with quiet():
        return [(place(job.checkpoint), job._sinks) for job in jobs_of(Path(text), arguments)]


def script_of(checkpoint: str) -> str | None:
    """The file that last started a job on this checkpoint, if this machine remembers."""
    whole = checkpoint if is_remote(checkpoint) else os.path.realpath(checkpoint)
    return next((one.script for one in registry.everything() if one.checkpoint == whole and one.script), None)


def _of_url(text: str) -> Place:
    """Does the store answer? Asked once up front: a command asks many questions, and each would wait for the store."""
    where = place(whole_url(text, None))
    with told(where):
        (where / "metadata").exists()
    return where


@contextmanager
def told(where: Place) -> Iterator[None]:
    """Turn a remote store's errors and timeouts into four lines; a person waits seconds for it, not minutes."""
    if isinstance(where, Path):
        yield
        return
    try:
        with at_most(PATIENCE_S):
            yield
    except OSError as error:
        raise unreadable(error, str(where)) from error


def _of_file(path: Path) -> Place:
    """What was recorded at the last start; otherwise the file has to be run to find out, and Spark with it."""
    if found := registry.by_file(path):
        return _the_one(str(path), found)
    from fencepost.cli.check import jobs_of  # noqa: PLC0415 - imports Spark, which is hardly ever needed here

    with quiet():
        jobs = jobs_of(path)
    return _the_one(str(path), [Noted(job.name, job.checkpoint, str(path), "", "") for job in jobs])


def _the_one(text: str, found: list[Noted]) -> Place:
    places = {noted.checkpoint: noted for noted in found}
    if len(places) == 1:
        return place(found[0].checkpoint)
    listed = "; ".join(
        f"{where} (job {noted.name}{f', last started {noted.at}' if noted.at else ''})"
        for where, noted in places.items()
    )
    raise BadConfig(
        "several_checkpoints",
        f"{text!r} has {len(places)} checkpoints.",
        where=Where(job=found[0].name if len({noted.name for noted in found}) == 1 else None),
        safe=UNCHANGED,
        next=f"Name the folder you mean: {listed}.",
    )


class JobType(click.ParamType):  # type: ignore[type-arg]  # not generic in older versions of click
    """A command's argument that names a job."""

    name = "job"

    def convert(self, value: str | Place, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        return find(value) if isinstance(value, str) else value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names of jobs started on this machine, and files. Files first: in bash they clear what stands before."""
        known = sorted({noted.name for noted in registry.everything()})
        names = (CompletionItem(name, help="job") for name in known if name.startswith(incomplete))
        return [CompletionItem(incomplete, type="file"), *names]


class PlaceType(click.ParamType):  # type: ignore[type-arg]  # as above
    """A folder, here or on another machine."""

    name = "path"

    def convert(self, value: str | Place, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        found = place(value)
        if isinstance(found, RemotePath):
            check_scheme(found.url, None)
        return found


JOB = JobType()
"""FILE, NAME or CHECKPOINT."""

FOLDER = PlaceType()
"""A local folder, or `hdfs://…`, `s3a://…`."""
