"""`fencepost savepoint`: make, list, look at, verify and delete verified copies of a checkpoint."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import click

from fencepost.admin import savepoint as copies
from fencepost.admin.folder import clear
from fencepost.cli.frame import progress
from fencepost.cli.lookup import FOLDER, JOB
from fencepost.cli.rewind import restore
from fencepost.store import Place, RemotePath
from fencepost.store.savepoints import Savepoint, find, load

HALF = "{}: incomplete; its command died, or is still running. Nothing was done; add --yes to delete what is there."
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def savepoint() -> None:
    """Keep verified copies of a checkpoint, and start over from them.

    A savepoint is a separate folder: it may be moved, and outlives the checkpoint. Exit code 1: verification found
    something; 2: the command could not be done.
    """


savepoint.add_command(restore)


@savepoint.command()
@click.argument("checkpoint", metavar="JOB", type=JOB)
@click.option("--name", help="Its name; by default the job's name, the epoch and the time.")
@click.option("--to", type=FOLDER, help="The folder to put it in; by default <checkpoint>.savepoints.")
def create(checkpoint: Place, name: str | None, to: Place | None) -> None:
    """Copy the newest complete epoch of JOB, running or not. Prints the savepoint's folder."""
    with progress() as tell:
        made = copies.create(checkpoint, name=name, to=to, tell=tell)
    click.echo(line_of(made), err=True)
    click.echo(made.path)


@savepoint.command("list")
@click.argument("place", metavar="DIR|JOB", type=JOB)
@_json
def list_command(place: Place, as_json: bool) -> None:
    """List the savepoints in a folder, or those beside a job's checkpoint, oldest first. Their files are not read."""
    found, refused = find(place)
    if as_json:
        rows = [{**_head(one), "path": str(one.path)} for one in found]
        newer = [error.where.path for error in refused if error.code == "newer_format"]
        damaged = [error.where.path for error in refused if error.code != "newer_format"]
        click.echo(json.dumps({"savepoints": rows, "damaged": damaged, "newer": newer}, indent=1))
        return
    for one in found:
        click.echo(f"{one.path}  job {one.job}, epoch {one.epoch}, {one.created}, {_size(one.size)}")
    for error in refused:
        click.echo(f"{error.where.path}  [{error.code}] {error.what}")
    if not found and not refused:
        click.echo("There is no savepoint here.", err=True)


@savepoint.command()
@click.argument("path", metavar="SAVEPOINT", type=FOLDER)
@_json
def show(path: Place, as_json: bool) -> None:
    """Show what SAVEPOINT holds: its job, its epoch, and how much state each partition has."""
    found = load(path)
    state = copies.state_sizes(found)
    if as_json:
        rows = [{"operator": operator, "partition": part, "bytes": size} for (operator, part), size in state.items()]
        click.echo(json.dumps({**_head(found), "path": str(found.path), "state": rows}, indent=1))
        return
    for key, value in _head(found).items():
        said = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        click.echo(f"{key:<11}{said}")
    for (operator, partition), size in state.items():
        click.echo(f"state      operator {operator}, partition {partition}: {_size(size)}")


@savepoint.command()
@click.argument("path", metavar="SAVEPOINT", type=FOLDER)
@_json
def verify(path: Place, as_json: bool) -> None:
    """Read every file of SAVEPOINT and compare the checksums; exit code 1 if something is missing or changed."""
    found = load(path)
    with progress(as_json=as_json) as tell:
        wrong = copies.verify(found, tell)
    if as_json:
        click.echo(
            json.dumps({"name": found.name, "whole": not wrong, "problems": [asdict(p) for p in wrong]}, indent=1)
        )
    else:
        for problem in wrong:
            click.echo(str(problem))
        click.echo(
            f"{len(wrong)} of {len(found.files)} files are damaged or missing: do not restore it."
            if wrong
            else f"Whole: {len(found.files)} files, {_size(found.size)}, epoch {found.epoch}."
        )
    sys.exit(1 if wrong else 0)


@savepoint.command()
@click.argument("path", metavar="SAVEPOINT", type=FOLDER)
@click.option("--yes", is_flag=True, help="Do it. Without it nothing is done.")
def delete(path: Place, yes: bool) -> None:
    """Delete SAVEPOINT permanently, or what is left of an incomplete one on a remote store."""
    if isinstance(path, RemotePath) and copies.is_half(path):
        if yes:
            clear(path)
        click.echo(f"Deleted {path}: it was incomplete." if yes else HALF.format(path))
        return
    found = load(path)
    what = f"{found.path}: epoch {found.epoch} of job {found.job}, {found.created}, {_size(found.size)}"
    if not yes:
        click.echo(f"This would delete {what}. Nothing was done; add --yes.")
        return
    copies.delete(found)
    click.echo(f"Deleted {what}.")


def line_of(made: Savepoint) -> str:
    """What was copied, in a terminal or on a page."""
    return f"epoch {made.epoch} of job {made.job}: {len(made.files)} files, {_size(made.size)}"


def _head(found: Savepoint) -> dict[str, Any]:
    return {
        "name": found.name,
        "job": found.job,
        "epoch": found.epoch,
        "created": found.created,
        "lineage": found.lineage,
        "generation": found.generation,
        "versions": dict(found.versions),
        "settings": dict(found.settings),
        "files": len(found.files),
        "bytes": found.size,
    }


def _size(count: int) -> str:
    size, unit = float(count), 0
    while size >= 1000 and unit < 4:
        size, unit = size / 1000, unit + 1
    return f"{size:.1f} {'kMGT'[unit - 1]}B" if unit else f"{count} B"
