"""`fencepost doctor`: what is wrong with a checkpoint, whether the data is safe, and what to do."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import click

from fencepost.admin.doctor import Diagnosis, diagnose, repair
from fencepost.cli.frame import progress
from fencepost.cli.lookup import FOLDER, JOB
from fencepost.store import Place

_FIXES = {
    "start": "repaired by the next start",
    "copy": "can be put back",
    "restore": "needs a savepoint",
    "person": "needs you",
}


@click.command()
@click.argument("checkpoint", metavar="JOB", type=JOB)
@click.option("--savepoints", "folders", type=FOLDER, multiple=True, help="More folders with savepoints to search.")
@click.option(
    "--repair", "is_repair", is_flag=True, help="Put back files whose right bytes a savepoint has. Stop the job first."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(checkpoint: Place, folders: tuple[Place, ...], is_repair: bool, as_json: bool) -> None:
    """Check a checkpoint for damage, and say what to do about it.

    JOB is its file, its name or its checkpoint folder. Exit code 1: something was found.

    Nothing is changed without --repair; with it, files are put back from savepoints where a checksum in the checkpoint
    proves that they are the right ones. The damaged files are kept beside them.
    """
    with progress(as_json=as_json) as tell:
        found = diagnose(checkpoint, folders, tell)
    if is_repair:
        for finding in repair(checkpoint, found):
            click.echo(f"put back: {finding.name}", err=True)
        with progress(as_json=as_json) as tell:
            found = diagnose(checkpoint, folders, tell)
    if as_json:
        click.echo(json.dumps(_plain(found), indent=1))
    else:
        for line in lines_of(found):
            click.echo(line)
    sys.exit(0 if found.is_whole else 1)


def lines_of(found: Diagnosis) -> Iterator[str]:
    """What a person reads, in a terminal or on a page."""
    if found.is_whole:
        yield f"Whole: job {found.job}, epoch {found.epoch} is complete and everything it needs is there."
        return
    for finding in found.findings:
        yield f"[{finding.code}] {finding.name}: {finding.what}"
        yield f"  {_FIXES[finding.fix]}. {finding.next}"


def _plain(found: Diagnosis) -> dict[str, object]:
    findings = [
        {"code": one.code, "name": one.name, "what": one.what, "fix": one.fix, "next": one.next}
        for one in found.findings
    ]
    return {"job": found.job, "epoch": found.epoch, "whole": found.is_whole, "findings": findings}
