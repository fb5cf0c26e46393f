"""From what a person types to a job's checkpoint: its FILE, its NAME, or the CHECKPOINT folder itself."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import click

from fencepost.cli.quiet import quiet
from fencepost.errors import UNCHANGED, BadConfig, Where
from fencepost.observe import registry
from fencepost.observe.registry import Noted


def find(text: str) -> Path:
    """The checkpoint. A checkpoint's folder is taken as it is; files and names are looked up among what was started.

    A folder that is no checkpoint (the job's input, perhaps) gives way to a job of its name; `./name` is the folder.
    """
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


def _of_file(path: Path) -> Path:
    """What was noted at the last start; else what the file says, for which it has to be run, and Spark with it."""
    if found := registry.by_file(path):
        return _the_one(str(path), found)
    from fencepost.cli.check import jobs_of  # noqa: PLC0415 - imports Spark, which is hardly ever needed here

    with quiet():
        jobs = jobs_of(path)
    return _the_one(str(path), [Noted(job.name, job._checkpoint.place, str(path), "", "") for job in jobs])


def _the_one(text: str, found: list[Noted]) -> Path:
    places = {noted.checkpoint: noted for noted in found}
    if len(places) == 1:
        return Path(found[0].checkpoint)
    listed = "; ".join(
        f"{place} (job {noted.name}{f', last started {noted.time}' if noted.time else ''})"
        for place, noted in places.items()
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

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Its checkpoint."""
        return value if isinstance(value, Path) else find(value)


JOB = JobType()
"""FILE, NAME or CHECKPOINT."""
