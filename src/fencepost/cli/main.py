"""The command line: `fencepost demo`, `fencepost check`, `fencepost tx`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import click

import fencepost
from fencepost.cli.anew import rescale, restore, rewind
from fencepost.cli.doctor import doctor
from fencepost.cli.savepoint import savepoint
from fencepost.cli.state import state
from fencepost.cli.tx import tx
from fencepost.errors import FencepostError


@click.group()
@click.version_option(fencepost.__version__, prog_name="fencepost")
def cli() -> None:
    """Exactly-once pipelines for PySpark. Off by none."""


@cli.command()
@click.option(
    "--kills", type=click.IntRange(min=1), default=4, show_default=True, help="How often the second job is killed."
)
@click.option("--seed", type=int, help="Repeat a run: the same data, the same chances.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep everything here instead of a temporary folder.")
def demo(kills: int, seed: int | None, folder: Path | None) -> None:
    """Kill a streaming job with SIGKILL, again and again, and count what its sinks hold."""
    from fencepost.cli.demo import run_demo  # noqa: PLC0415 - rich is wanted by nothing else

    if folder is not None and folder.exists():
        raise click.BadParameter("it exists already; name a new folder", param_hint="--folder")
    chosen = random.randrange(1_000_000) if seed is None else seed  # noqa: S311 - not a secret
    sys.exit(run_demo(kills=kills, seed=chosen, folder=folder))


@cli.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def check(file: Path) -> None:
    """Say which guarantee the jobs in FILE have end to end, and which link is the weakest."""
    from fencepost.cli.check import run_check  # noqa: PLC0415 - as above

    sys.exit(run_check(file))


savepoint.add_command(restore)
cli.add_command(savepoint)
cli.add_command(rewind)
cli.add_command(rescale)
cli.add_command(doctor)
cli.add_command(state)
cli.add_command(tx)


def main() -> None:
    """Run; a mistake of the user's gets four lines, not a traceback."""
    try:
        cli()
    except FencepostError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
