"""The command line. A verb is imported when it is called: `fencepost --help` needs none of them."""

from __future__ import annotations

import difflib
import sys
from importlib import import_module
from typing import NamedTuple

import click

from fencepost import __version__
from fencepost.cli import frame


class Verb(NamedTuple):
    """Where a command is, and what it does in one line: the first of its own help."""

    module: str
    help: str


GROUPS: dict[str, dict[str, Verb]] = {
    "Begin": {
        "init": Verb("init", "Create a small project that runs: a job, some data, a test, a README."),
        "check": Verb("check", "Say whether the jobs in FILE would start, and which guarantee they have end to end."),
        "demo": Verb("demo", "Kill a streaming job with SIGKILL, again and again, and count what its sinks hold."),
    },
    "Run": {
        "run": Verb("run", "Run FILE as python would, with ARGUMENTS, and restart it when it fails, dies or hangs."),
        "status": Verb("status", "Show how a job is doing: running or not, which epoch, what happened last."),
        "ui": Verb("ui", "Show jobs in a browser: epochs, sinks, starts, failures, state; running, stopped or dead."),
        "epochs": Verb("epochs", "List a job's epochs, or show everything known about one."),
        "top": Verb("top", "Show jobs as they go: epochs, rows a second, what is open. Ctrl-C ends it."),
        "metrics": Verb("metrics", "Get alert rules for Prometheus and a dashboard for Grafana."),
        "stop": Verb("stop", "Let a running job finish its epoch, then stop it."),
        "cancel": Verb("stop", "Stop a running job at once."),
    },
    "Look closer": {
        "verify": Verb(
            "verify", "Compare ledger, Spark's log and sinks, epoch by epoch; the job may be running, stopped or dead."
        ),
        "as-of": Verb(
            "as_of",
            "Say how each target of a job is read as it was right after one epoch, so that all show the same moment.",
        ),
        "doctor": Verb("doctor", "Check a checkpoint for damage, and say what to do about it."),
        "state": Verb("state", "Look into a job's state; the job may be running."),
        "tx": Verb("tx", "Look at open Kafka transactions, and end them by hand."),
        "explain": Verb("explain", "Say what an error code means and what to do."),
        "version": Verb("version", "Show the installed versions."),
    },
    "Go back, or change": {
        "savepoint": Verb("savepoint", "Keep verified copies of a checkpoint, and start over from them."),
        "rewind": Verb("rewind", "Let a stopped job continue after an earlier epoch."),
        "rescale": Verb("rewind", "Change the number of partitions of a stopped job's state."),
    },
    "Your shell": {
        "completion": Verb("completion", "Print the shell completion script for commands, options and jobs."),
    },
}
"""Grouped by what a person wants to do."""

VERBS = {name: verb for group in GROUPS.values() for name, verb in group.items()}
"""By name."""


class Verbs(click.Group):
    """A group whose commands are looked up by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = getattr(import_module(f"fencepost.cli.{VERBS[cmd_name].module}"), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in VERBS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], VERBS, 1, 0.5)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Their lines, without importing them."""
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, verb.help) for name, verb in verbs.items()])


@click.group(cls=Verbs, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fencepost")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Exactly-once pipelines for PySpark. Off by none.

    A job is named by its FILE, by its NAME, or by its CHECKPOINT folder. Results go to stdout, progress to stderr.

    Exit codes: 0 fine; 1 failed, or something was found; 2 refused: change the command or the job; 3 a person is
    needed, or an outcome is in doubt; 4 the restart budget is spent; 130 interrupted.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    """Run; a user's mistake gets four lines, not a traceback."""
    sys.exit(frame.run(lambda: cli(standalone_mode=False)))
