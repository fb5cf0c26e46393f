"""`fencepost status`: is it running, what happened, is the data safe, what to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import click

from fencepost.cli import status_view as view
from fencepost.cli.exits import Exit
from fencepost.cli.find import JOB, told
from fencepost.errors import CheckpointRefused, FencepostError
from fencepost.ledger import Place, place
from fencepost.ledger.patience import at_most
from fencepost.observe import registry
from fencepost.observe.health import Health, look
from fencepost.observe.registry import Noted

SHORT_S: Final = 3.0
"""For each of several stores, while somebody waits for all."""


@click.command()
@click.argument("checkpoint", metavar="[JOB]", type=JOB, required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(checkpoint: Place | None, as_json: bool) -> None:
    """Say how a job is: running or not, which epoch, what happened last.

    JOB is its file, its name or its checkpoint (a folder, or its URL); without it, there is a line for every job that
    was started on this machine. Only files are read: nothing is changed, and no sink is asked (that is `fencepost
    verify`).

    Exit code 0: it runs, will be started again, or was stopped in order; 1: it failed or is dead; 3: a person is
    needed, or an outcome is in doubt.
    """
    if checkpoint is None:
        found = [health for noted in registry.everything() if (health := _look(noted)) is not None]
        if as_json:
            click.echo(json.dumps({"jobs": [view.plain(one) for one in found]}, indent=1, ensure_ascii=False))
        elif found:
            view.print_all(found)
        else:
            click.echo("No job was started on this machine. A checkpoint's folder is taken, too.", err=True)
        sys.exit(max((_code(one) for one in found), default=Exit.FINE))
    with told(checkpoint):
        health = look(checkpoint)
    if as_json:
        click.echo(json.dumps(view.plain(health), indent=1, ensure_ascii=False))
    else:
        view.print_one(health)
    sys.exit(_code(health))


def _look(noted: Noted) -> Health | None:
    """None for a folder that is no checkpoint any more: it was emptied by somebody."""
    where = place(noted.checkpoint)
    try:
        with at_most(SHORT_S), told(where):
            return look(where)
    except FencepostError as error:
        if isinstance(error, CheckpointRefused) and error.code != "store_denied":
            return None
        if isinstance(where, Path):
            raise
        why = f"[{error.code}] {error.what}"
        click.echo(f"{noted.name}: {why}", err=True)
        return Health(job=noted.name, checkpoint=where.url, condition="unknown", notes=(why,))


def _code(health: Health) -> Exit:
    if health.needs_a_person:
        return Exit.OPERATOR
    return Exit.FINE if health.is_well else Exit.FAILED
