"""`fencepost demo`, as typed."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import click


@click.command()
@click.option(
    "--kills", type=click.IntRange(min=1), default=4, show_default=True, help="How often the second job is killed."
)
@click.option("--seed", type=int, help="Repeat a run: the same data, the same chances.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep everything here instead of a temporary folder.")
def demo(kills: int, seed: int | None, folder: Path | None) -> None:
    """Kill a streaming job with SIGKILL, again and again, and count what its sinks hold."""
    from fencepost.cli.demo import run_demo  # noqa: PLC0415 - rich takes a while, and --help needs none

    if folder is not None and folder.exists():
        raise click.BadParameter("it exists already; name a new folder", param_hint="--folder")
    chosen = random.randrange(1_000_000) if seed is None else seed  # noqa: S311 - not a secret
    sys.exit(run_demo(kills=kills, seed=chosen, folder=folder))
