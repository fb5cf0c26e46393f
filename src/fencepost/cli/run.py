"""`fencepost run FILE`: run a job, and restart it when it fails, dies or hangs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from fencepost.cli.frame import FileCommand
from fencepost.config import parse
from fencepost.errors import UNCHANGED, BadConfig, require, seconds
from fencepost.observe import journal, registry
from fencepost.observe.terminal import LiveLine
from fencepost.spark import spark_session
from fencepost.store import Place, place
from fencepost.supervise.supervisor import Orders, Supervisor

log = logging.getLogger("fencepost.supervise")


@click.command(cls=FileCommand, context_settings={"ignore_unknown_options": True})
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--restart", help="none, fixed-delay:attempts=60,delay=10s, failure-rate:… or exponential-delay:…; "
              "overrides the job's own. By default exponential-delay, without limit.")  # fmt: skip
@click.option("--standby", is_flag=True, help="Keep a second driver warm, which takes over at once. On a cluster it "
              "only takes executors that are free, and runs nothing until it takes over.")  # fmt: skip
@click.option("--standby-anyway", is_flag=True, help="The same, also on a machine without the memory for two drivers.")
@click.option(
    "--heartbeat", default="30s", show_default=True, help="Kill a driver that sends no heartbeat for this long."
)
@click.option("--log", "style", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="json: stderr is JSON lines, with every event of the journal.")  # fmt: skip
@click.option("--master", help="Where Spark runs, for example spark://host:7077; overrides FILE.")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting; overrides "
              "fp.Job(conf=…) in FILE. NAME=env:VARIABLE keeps a secret off the command line.")  # fmt: skip
@click.option("--metrics", "address", metavar="[HOST:]PORT", help="Answer Prometheus here, also while the driver is "
              "being restarted; without HOST only on this machine. Needs fencepost[metrics].")  # fmt: skip
@click.option("--otel", is_flag=True, help="Send a trace of every epoch and recovery to an OpenTelemetry collector, by "
              "default on this machine; the OTEL_ variables say where else. Needs fencepost[otel].")  # fmt: skip
def run(  # noqa: PLR0917 - click calls it by keyword
    file: Path,
    arguments: tuple[str, ...],
    restart: str | None,
    standby: bool,
    standby_anyway: bool,
    heartbeat: str,
    style: str,
    master: str | None,
    conf: tuple[str, ...],
    address: str | None,
    otel: bool,
) -> None:
    """Run FILE as python would, with ARGUMENTS, and restart it when it fails, dies or hangs.

    The driver runs on this machine, the tasks where --master says. Failed queries are restarted inside the driver, a
    dead driver in a new process, both by the job's restart strategy. Ctrl-C or SIGTERM: the epoch is finished, then
    the job stops with exit code 0; a second Ctrl-C stops it at once.
    Exit code 4: the strategy allows no more restarts; 2: the job is refused; 3: a person is needed; 1: anything else.
    """
    deadline = seconds(heartbeat)
    if deadline is None or deadline < 2:
        raise BadConfig(
            "bad_heartbeat",
            f"Invalid --heartbeat {heartbeat}: it must be a duration of at least 2 seconds.",
            safe=UNCHANGED,
            next="Write it as 30s or '2 minutes'.",
        )
    if restart is not None:
        parse(restart)
    spark_session.tell(spark_session.read(master, conf))
    orders = Orders(
        command=[str(file), *arguments],
        restart=restart,
        standby=standby or standby_anyway,
        anyway=standby_anyway,
        deadline_s=deadline,
    )
    if style == journal.JSON:
        os.environ[journal.STYLE] = style  # for the drivers
        journal.use_json()
    if address is not None:
        _serve_metrics(address, file)
    if otel:
        _trace(file)
    sys.exit(Supervisor(orders, log.info if style == journal.JSON else _say).run())


def _serve_metrics(address: str, file: Path) -> None:
    require("metrics_missing", "prometheus_client", extra="metrics", purpose="for --metrics")
    from fencepost.observe.metrics import Metrics, serve  # noqa: PLC0415 - of an extra

    serve(Metrics(_jobs_of(file)), address)


def _trace(file: Path) -> None:
    require("otel_missing", "opentelemetry.exporter.otlp.proto.http", extra="otel", purpose="for --otel")
    from fencepost.observe.traces import trace  # noqa: PLC0415 - of an extra

    os.environ[journal.TRACED] = "1"  # for the drivers' log lines
    trace(_jobs_of(file))


def _jobs_of(file: Path) -> Callable[[], list[tuple[str, Place]]]:
    """Those that it starts from now on."""
    began = datetime.now(UTC).isoformat(timespec="seconds")
    return lambda: [(one.name, place(one.checkpoint)) for one in registry.by_file(file) if one.at >= began]


def _say(text: str) -> None:
    for line in text.splitlines():
        LiveLine().say(line)
