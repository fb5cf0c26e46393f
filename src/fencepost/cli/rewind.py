"""`fencepost savepoint restore`, `fencepost rewind`, `fencepost rescale`: a stopped job continues from elsewhere."""

from __future__ import annotations

from typing import Any, cast

import click

from fencepost.admin import restore as restores
from fencepost.admin.restore import Begun
from fencepost.cli.frame import progress
from fencepost.cli.lookup import FOLDER, JOB
from fencepost.protocol.lineages import Fate
from fencepost.store import Place
from fencepost.store.savepoints import load

_FATES = click.Choice(["quiet", "overwrite", "again"])
_SINK = (
    "What to do about rows of later epochs that the targets already hold. quiet: those epochs rerun for their state "
    "and write nothing (any sink; the plan must be deterministic). overwrite: they are written again, over the old "
    "rows (sinks with a key). again: they are written again, into an emptied or another target."
)


@click.command()
@click.argument("checkpoint", metavar="JOB", type=JOB)
@click.option("--epoch", type=click.IntRange(min=0), required=True, help="The last epoch that stays as it is.")
@click.option("--sink", "fate", type=_FATES, required=True, help=_SINK)
def rewind(checkpoint: Place, epoch: int, fate: str) -> None:
    """Let a stopped job continue after an earlier epoch.

    JOB is its file, its name or its checkpoint folder. It continues in the same folder, as a new lineage; the old one
    is sealed. If the command is interrupted, run it again.
    """
    with progress() as tell:
        begun = restores.rewind(checkpoint, epoch, cast("Fate", fate), tell)
    _say(begun)


@click.command()
@click.argument("path", metavar="SAVEPOINT", type=FOLDER)
@click.option("--to", type=FOLDER, required=True, help="The new checkpoint's folder; it must not exist.")
@click.option("--sink", "fate", type=_FATES, help=_SINK)
@click.option("--parent", metavar="JOB", type=JOB, help="The job that SAVEPOINT was made from. It is sealed.")
@click.option("--parent-lost", is_flag=True, help="That checkpoint no longer exists, and no driver is running on it.")
@click.option(
    "--fork", metavar="NAME", help="Run a second job beside the first, under this name, with its own targets."
)
def restore(
    *, path: Place, to: Place, fate: str | None, parent: Place | None, parent_lost: bool, fork: str | None
) -> None:
    """Make a new checkpoint from SAVEPOINT, for its job or for a second one.

    Name the parent, say that it is lost, or fork: two checkpoints of one job must not both continue. Then give the job
    the new folder as its checkpoint.
    """
    if (parent is not None) + parent_lost + (fork is not None) != 1:
        raise click.UsageError("give exactly one of --parent JOB, --parent-lost, --fork NAME")
    if (fate is None) == (fork is None):
        raise click.UsageError("give --sink quiet, overwrite or again; but not with --fork, which has its own targets")
    found = load(path)
    with progress() as tell:
        begun = restores.restore(found, to, fate=cast("Fate", fate), parent=parent, fork=fork, tell=tell)
    _say(begun)


@click.command()
@click.argument("checkpoint", metavar="JOB", type=JOB)
@click.option("--partitions", type=click.IntRange(min=1), required=True, help="Of every stateful operator.")
def rescale(checkpoint: Place, partitions: int) -> None:
    """Change the number of partitions of a stopped job's state.

    JOB is its file, its name or its checkpoint folder. A savepoint is made first. Needs Spark, and as much free space
    as the state takes.
    """
    from fencepost.admin.rescale import rescale as run  # noqa: PLC0415 - pyspark is wanted by nothing else here

    with progress() as tell:
        epoch, kept = run(checkpoint, partitions, _session, tell)
    click.echo(f"Epoch {epoch} spreads the state over {partitions} partitions; the next start continues from it.")
    click.echo(f"Savepoint from before: {kept.path}", err=True)


def _session() -> Any:
    from fencepost.spark import spark_session  # noqa: PLC0415 - as above

    made = spark_session.make_session("fencepost rescale", {"spark.master": "local[*]", "spark.ui.enabled": "false"})
    made.sparkContext.setLogLevel("ERROR")  # Spark misses a running query, which there must not be
    return made


def _say(begun: Begun) -> None:
    click.echo(f"{begun.path}: job {begun.job} continues after epoch {begun.epoch}, as lineage {begun.lineage}.")
    if begun.quiet:
        one = "One epoch reruns" if begun.quiet == 1 else f"{begun.quiet} epochs rerun"
        click.echo(f"{one} for the state only: the targets already hold the rows.", err=True)
