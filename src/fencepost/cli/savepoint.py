"""`fencepost savepoint`: make, list, look at, verify and delete verified copies of a checkpoint."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import click

from fencepost.checkpoints import manifest
from fencepost.checkpoints import savepoint as savepoints
from fencepost.checkpoints.claimed import clear
from fencepost.checkpoints.manifest import Savepoint
from fencepost.cli.anew import restore
from fencepost.cli.find import FOLDER, JOB
from fencepost.ledger import Place, RemotePath

HALF = "{}: half made; its maker died, or is still at it. Nothing was done; add --yes to delete what is there."
_json = click.option("--json", "as_json", is_flag=True, help="For programs.")


@click.group()
def savepoint() -> None:
    """Keep verified copies of a checkpoint, and begin anew from them.

    A savepoint is a folder of its own: it may be moved, and outlives the checkpoint. Exit code 1: verification found
    something; 2: it could not be done.
    """


savepoint.add_command(restore)


@savepoint.command()
@click.argument("checkpoint", metavar="JOB", type=JOB)
@click.option("--name", help="By default the job's name, the epoch and the time.")
@click.option("--to", type=FOLDER, help="The folder that gets it; by default <checkpoint>.savepoints, beside it.")
def create(checkpoint: Place, name: str | None, to: Place | None) -> None:
    """Copy the newest complete epoch of JOB, running or not. Prints the savepoint's folder."""
    made = savepoints.create(checkpoint, name=name, to=to)
    click.echo(f"epoch {made.epoch} of job {made.job}: {len(made.files)} files, {_size(made.size)}", err=True)
    click.echo(made.path)


@savepoint.command("list")
@click.argument("place", metavar="DIR|JOB", type=JOB)
@_json
def list_command(place: Place, as_json: bool) -> None:
    """List the savepoints in a folder, or those beside a job's checkpoint, oldest first. Their files are not read."""
    found, damaged = manifest.find(place)
    if as_json:
        rows = [{**_head(one), "path": str(one.path)} for one in found]
        click.echo(json.dumps({"savepoints": rows, "damaged": [str(path) for path in damaged]}, indent=1))
        return
    for one in found:
        click.echo(f"{one.path}  job {one.job}, epoch {one.epoch}, {one.created}, {_size(one.size)}")
    for path in damaged:
        click.echo(f"{path}  damaged: its manifest cannot be trusted")
    if not found and not damaged:
        click.echo("No savepoint here.", err=True)


@savepoint.command()
@click.argument("path", metavar="SAVEPOINT", type=FOLDER)
@_json
def show(path: Place, as_json: bool) -> None:
    """Say what SAVEPOINT holds: its job, its epoch, and how much state each partition has."""
    found = manifest.load(path)
    state = savepoints.state_sizes(found)
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
    """Read every file of SAVEPOINT and compare all sums; exit code 1 if something is missing or changed."""
    found = manifest.load(path)
    wrong = savepoints.verify(found)
    if as_json:
        click.echo(
            json.dumps({"name": found.name, "whole": not wrong, "problems": [asdict(p) for p in wrong]}, indent=1)
        )
    else:
        for problem in wrong:
            click.echo(str(problem))
        click.echo(
            f"{len(wrong)} of {len(found.files)} files are not whole: do not restore it."
            if wrong
            else f"Whole: {len(found.files)} files, {_size(found.size)}, epoch {found.epoch}."
        )
    sys.exit(1 if wrong else 0)


@savepoint.command()
@click.argument("path", metavar="SAVEPOINT", type=FOLDER)
@click.option("--yes", is_flag=True, help="Do it. Without it nothing is done.")
def delete(path: Place, yes: bool) -> None:
    """Delete SAVEPOINT for good, or what is left of one on a remote store that was never completed."""
    if isinstance(path, RemotePath) and savepoints.is_half(path):
        if yes:
            clear(path)
        click.echo(f"Deleted {path}: it was half made." if yes else HALF.format(path))
        return
    found = manifest.load(path)
    what = f"{found.path}: epoch {found.epoch} of job {found.job}, {found.created}, {_size(found.size)}"
    if not yes:
        click.echo(f"This would delete {what}. Nothing was done; add --yes.")
        return
    savepoints.delete(found)
    click.echo(f"Deleted {what}.")


def _head(found: Savepoint) -> dict[str, Any]:
    return {
        "name": found.name,
        "job": found.job,
        "epoch": found.epoch,
        "created": found.created,
        "lineage": found.lineage,
        "generation": found.generation,
        "versions": dict(found.versions),
        "formats": dict(found.formats),
        "files": len(found.files),
        "bytes": found.size,
    }


def _size(count: int) -> str:
    size, unit = float(count), 0
    while size >= 1000 and unit < 4:
        size, unit = size / 1000, unit + 1
    return f"{size:.1f} {'kMGT'[unit - 1]}B" if unit else f"{count} B"
