"""`fencepost savepoint restore`, `fencepost rewind`, `fencepost rescale`: a stopped job goes on from elsewhere."""

from __future__ import annotations

from typing import Any, cast

import click

from fencepost.checkpoints import manifest
from fencepost.checkpoints import restore as restores
from fencepost.checkpoints.restore import Begun
from fencepost.cli.find import FOLDER, JOB
from fencepost.ledger import Place
from fencepost.protocol.lineages import Fate

_FATES = click.Choice(["quiet", "overwrite", "again"])
_SINK = (
    "What becomes of rows that the targets hold of later epochs. quiet: those epochs run again for their state and "
    "write nothing (any sink; for a plan that gives the same again). overwrite: they are written again, over the old "
    "rows (sinks with a key). again: they are written again, into an emptied or another target."
)


@click.command()
@click.argument("checkpoint", metavar="JOB", type=JOB)
@click.option("--epoch", type=click.IntRange(min=0), required=True, help="The last epoch that stays as it is.")
@click.option("--sink", "fate", type=_FATES, required=True, help=_SINK)
def rewind(checkpoint: Place, epoch: int, fate: str) -> None:
    """Let a stopped job go on after an earlier epoch.

    JOB is its file, its name or its checkpoint folder. It goes on there, as a new lineage; the old one is sealed. What
    was interrupted is repeated with the same command.
    """
    _say(restores.rewind(checkpoint, epoch, cast("Fate", fate)))


@click.command()
@click.argument("path", metavar="SAVEPOINT", type=FOLDER)
@click.option("--to", type=FOLDER, required=True, help="The new checkpoint's folder; it must not exist.")
@click.option("--sink", "fate", type=_FATES, help=_SINK)
@click.option("--parent", metavar="JOB", type=JOB, help="The job that SAVEPOINT was made of. It is sealed.")
@click.option(
    "--parent-lost", is_flag=True, help="There is no such checkpoint any more, and no driver that runs on it."
)
@click.option(
    "--fork", metavar="NAME", help="Run a second job beside the first, under this name, with its own targets."
)
def restore(
    *, path: Place, to: Place, fate: str | None, parent: Place | None, parent_lost: bool, fork: str | None
) -> None:
    """Make a new checkpoint of SAVEPOINT, for its job or for a second one.

    Name the parent, say that it is lost, or fork: two checkpoints of one job must not both go on. Then let the job
    have the new folder as its checkpoint.
    """
    if (parent is not None) + parent_lost + (fork is not None) != 1:
        raise click.UsageError("name one of --parent JOB, --parent-lost, --fork NAME")
    if (fate is None) == (fork is None):
        raise click.UsageError("name --sink quiet, overwrite or again; not for a fork, which has its own targets")
    found = manifest.load(path)
    _say(restores.restore(found, to, fate=cast("Fate", fate), parent=parent, fork=fork))


@click.command()
@click.argument("checkpoint", metavar="JOB", type=JOB)
@click.option("--partitions", type=click.IntRange(min=1), required=True, help="Of every stateful operator.")
def rescale(checkpoint: Place, partitions: int) -> None:
    """Spread a stopped job's state over another number of partitions.

    JOB is its file, its name or its checkpoint folder. A savepoint of before is kept. Needs Spark, and as much room
    again as the state takes.
    """
    from fencepost.checkpoints.rescale import rescale as run  # noqa: PLC0415 - pyspark is wanted by nothing else here

    epoch, kept = run(checkpoint, partitions, _session)
    click.echo(f"Epoch {epoch} spreads the state over {partitions} partitions; the next start goes on from it.")
    click.echo(f"Before: {kept.path}", err=True)


def _session() -> Any:
    from fencepost.spark import session  # noqa: PLC0415 - as above

    made = session.make_session("fencepost rescale", {"spark.master": "local[*]", "spark.ui.enabled": "false"})
    made.sparkContext.setLogLevel("ERROR")  # Spark misses a running query, which there must not be
    return made


def _say(begun: Begun) -> None:
    click.echo(f"{begun.path}: job {begun.job} goes on after epoch {begun.epoch}, as lineage {begun.lineage}.")
    if begun.quiet:
        one = "One epoch runs" if begun.quiet == 1 else f"{begun.quiet} epochs run"
        click.echo(f"{one} for the state only first: their rows are in the targets.", err=True)
