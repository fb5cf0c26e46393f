"""`fencepost doctor`: what is wrong with a checkpoint, is the data safe, and what to do."""

from __future__ import annotations

import json
import sys

import click

from fencepost.checkpoints.doctor import Diagnosis, diagnose
from fencepost.checkpoints.doctor import repair as put_back
from fencepost.cli.find import FOLDER, JOB
from fencepost.ledger import Place

_CURES = {
    "start": "mended by the next start",
    "copy": "can be put back",
    "restore": "needs a savepoint",
    "person": "needs you",
}


@click.command()
@click.argument("checkpoint", metavar="JOB", type=JOB)
@click.option("--savepoints", "folders", type=FOLDER, multiple=True, help="Folders of savepoints to look into, too.")
@click.option("--repair", is_flag=True, help="Put back files whose right bytes a savepoint has. Stop the job first.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor(checkpoint: Place, folders: tuple[Place, ...], repair: bool, as_json: bool) -> None:
    """Look a checkpoint over: is it whole, and what is to be done if it is not.

    JOB is its file, its name or its checkpoint folder. Exit code 1: something was found.

    Nothing is changed without --repair; with it, files are put back from savepoints where a sum in the checkpoint
    proves that they are the right ones. The damaged ones are kept beside them.
    """
    found = diagnose(checkpoint, folders)
    if repair:
        for finding in put_back(checkpoint, found):
            click.echo(f"put back: {finding.name}", err=True)
        found = diagnose(checkpoint, folders)
    if as_json:
        click.echo(json.dumps(_plain(found), indent=1))
    else:
        _print(found)
    sys.exit(0 if found.is_whole else 1)


def _print(found: Diagnosis) -> None:
    if found.is_whole:
        click.echo(f"Whole: job {found.job}, epoch {found.epoch} is done and everything that it rests on is there.")
        return
    for finding in found.findings:
        click.echo(f"[{finding.code}] {finding.name}: {finding.what}")
        click.echo(f"  {_CURES[finding.cure]}. {finding.next}")


def _plain(found: Diagnosis) -> dict[str, object]:
    findings = [
        {"code": one.code, "name": one.name, "what": one.what, "cure": one.cure, "next": one.next}
        for one in found.findings
    ]
    return {"job": found.job, "epoch": found.epoch, "whole": found.is_whole, "findings": findings}
