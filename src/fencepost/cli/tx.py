"""`fencepost tx`, as typed. What the commands do is in `tx_commands`, which needs Kafka's clients."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import click

from fencepost.cli.find import JOB
from fencepost.kafka_servers import Servers, clients_needed
from fencepost.ledger import Place

_FOLDER = click.Path(path_type=Path)

servers = click.option("--servers", help="host:port of the brokers, separated by commas.")
config = click.option(
    "--config", type=_FOLDER, help="A client's properties file: how to log in, and bootstrap.servers."
)
checkpoint = click.option(
    "--checkpoint",
    metavar="JOB",
    type=JOB,
    help="The job's file, name or checkpoint: its ledger tells what is decided, and is only read.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="For programs.")
yes = click.option("--yes", is_flag=True, help="Do it. Without it the plan is printed and nothing is done.")


@click.group()
def tx() -> None:
    """Look at open Kafka transactions, and end them by hand.

    Ids are seen as far as the user may see them: DESCRIBE on transactional ids. Exit codes: 2 refused, 3 a
    person has to find something out, 1 the brokers do not answer, or something was found.
    """


@tx.command("list")
@servers
@config
@click.option(
    "--checkpoint", "checkpoints", metavar="JOB", type=JOB, multiple=True, help="As elsewhere; may be repeated."
)
@click.option("--all", "every", is_flag=True, help="Also transactions that are not fencepost's.")
@as_json
def list_command(
    servers: str | None, config: Path | None, checkpoints: tuple[Place, ...], every: bool, as_json: bool
) -> None:
    """List open transactions: whose they are, whether they are decided, what is safe to do."""
    sys.exit(_commands().list_transactions(_cluster(servers, config), checkpoints, every=every, as_json=as_json))


@tx.command()
@click.argument("id")
@servers
@config
@checkpoint
@as_json
def show(
    id: str,  # noqa: A002 - ID
    servers: str | None,
    config: Path | None,
    checkpoint: Place | None,
    as_json: bool,
) -> None:
    """Say all that is known of ID, and what recovery will do with it."""
    sys.exit(_commands().show(_cluster(servers, config), id, checkpoint, as_json=as_json))


@tx.command()
@click.argument("id")
@servers
@config
@checkpoint
@yes
def commit(
    id: str,  # noqa: A002
    servers: str | None,
    config: Path | None,
    checkpoint: Place | None,
    yes: bool,
) -> None:
    """Commit ID, if the checkpoint's open decision names it; otherwise refuse.

    Recovery would do the same: whoever comes second finds it done. The ledger is only read; a job that is started later
    takes over as ever.
    """
    sys.exit(_commands().commit(_cluster(servers, config), id, checkpoint, yes=yes))


@tx.command()
@click.argument("id")
@servers
@config
@checkpoint
@yes
@click.option("--accept-loss", is_flag=True, help="Also abort what is decided, or may be.")
def abort(  # noqa: PLR0917 - click calls it by keyword
    id: str,  # noqa: A002
    servers: str | None,
    config: Path | None,
    checkpoint: Place | None,
    yes: bool,
    accept_loss: bool,
) -> None:
    """Abort ID, if no decision names it; otherwise refuse."""
    sys.exit(_commands().abort(_cluster(servers, config), id, checkpoint, yes=yes, accept_loss=accept_loss))


@tx.command()
@click.argument("id")
@servers
@config
@checkpoint
@click.option("--as", "word", type=click.Choice(["committed", "lost"]), required=True, help="What you found out.")
@yes
def settle(  # noqa: PLR0917 - click calls it by keyword
    id: str,  # noqa: A002
    servers: str | None,
    config: Path | None,
    checkpoint: Place | None,
    word: str,
    yes: bool,
) -> None:
    """Say what became of ID, where neither the coordinator nor the topic can tell any more (outcome_unknown).

    Look into the topic first: are the rows of the epoch there? The next start of the job believes you.
    """
    sys.exit(_commands().settle(_cluster(servers, config), id, checkpoint, word=word, yes=yes))


@tx.command("find-hanging")
@servers
@config
@as_json
def find_hanging(servers: str | None, config: Path | None, as_json: bool) -> None:
    """Find transactions, of any program, that the brokers should have ended; exit code 1 if there are some."""
    sys.exit(_commands().find_hanging(_cluster(servers, config), as_json=as_json))


def _commands() -> ModuleType:
    with clients_needed():
        from fencepost.cli import tx_commands  # noqa: PLC0415 - its clients are an extra
    return tx_commands


def _cluster(servers: str | None, config: Path | None) -> Servers | None:
    from fencepost.cli.properties import servers_of  # noqa: PLC0415 - not needed to print help

    return servers_of(servers, config)
