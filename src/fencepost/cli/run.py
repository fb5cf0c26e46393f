"""`fencepost run FILE`: run a job, and start it again when it fails, dies or hangs."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import click

from fencepost.errors import UNCHANGED, BadConfig
from fencepost.observe import logs
from fencepost.spark import commanded
from fencepost.supervise.strategies import parse
from fencepost.supervise.supervisor import Orders, Supervisor
from fencepost.times import seconds

log = logging.getLogger("fencepost.supervise")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--restart", help="none, fixed-delay:attempts=60,delay=10s, failure-rate:…, exponential-delay:…; goes "
              "before the job's own. By default exponential-delay, for ever.")  # fmt: skip
@click.option("--standby", is_flag=True, help="Keep a second driver warm, which takes over at once. On a cluster it "
              "takes executors only where some are free, and runs nothing before it is called.")  # fmt: skip
@click.option("--heartbeat", default="30s", show_default=True, help="A driver without a pulse for so long is killed.")
@click.option("--log", "style", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="json: stderr is lines of JSON, with every event of the journal.")  # fmt: skip
@click.option("--master", help="Where Spark runs, spark://host:7077 for one; goes before what FILE says.")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting; goes before what FILE says in "
              "fp.Job(conf=…).")  # fmt: skip
def run(  # noqa: PLR0917 - click calls it by keyword
    file: Path,
    arguments: tuple[str, ...],
    restart: str | None,
    standby: bool,
    heartbeat: str,
    style: str,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Run FILE as python would, with ARGUMENTS, and start it again when it fails, dies or hangs.

    The driver runs on this machine, the tasks where --master says. Failed queries are started again inside the
    driver, a dead driver in a new process, both by the job's restart strategy. Ctrl-C or SIGTERM: the epoch is
    finished, then it stops, exit code 0; a second Ctrl-C stops at once.
    Exit code 4: the strategy allows no more restarts; 2: the job is refused; 3: a person is needed; 1: all the rest.
    """
    deadline = seconds(heartbeat)
    if deadline is None or deadline < 2:
        raise BadConfig(
            "bad_heartbeat",
            f"--heartbeat {heartbeat} is no time, or less than two beats.",
            safe=UNCHANGED,
            next="Write it as 30s or '2 minutes'.",
        )
    if restart is not None:
        parse(restart)
    commanded.tell(commanded.read(master, conf))
    orders = Orders(command=[str(file), *arguments], restart=restart, standby=standby, deadline_s=deadline)
    if style == logs.JSON:
        os.environ[logs.STYLE] = style  # for the drivers
        logs.use_json()
    sys.exit(Supervisor(orders, log.info if style == logs.JSON else _say).run())


def _say(text: str) -> None:
    click.echo("\n".join(f"fencepost: {line}" for line in text.splitlines()), err=True)
