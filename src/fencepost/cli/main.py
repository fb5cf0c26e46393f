"""The command line. A verb is imported when it is called: `fencepost --help` needs none of them."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NamedTuple

import click

from fencepost import __version__
from fencepost.cli import exits


class Verb(NamedTuple):
    """Where a command is, and what it does in one line: the first of its own help."""

    module: str
    help: str


VERBS = {
    "init": Verb("init", "Make a small project that runs: a job, some data, a README."),
    "check": Verb("check", "Say whether the jobs in FILE would start, and which guarantee they have end to end."),
    "run": Verb("run", "Run FILE as python would, with ARGUMENTS, and start it again when it fails, dies or hangs."),
    "status": Verb("status", "Say how a job is: running or not, which epoch, what happened last."),
    "epochs": Verb("epochs", "List a job's epochs, or show all that is known of one."),
    "stop": Verb("stop", "Let a running job finish its epoch, then stop it."),
    "cancel": Verb("stop", "Stop a running job at once."),
    "verify": Verb(
        "verify", "Compare ledger, Spark's log and sinks, epoch by epoch; with the job running, stopped or dead."
    ),
    "doctor": Verb("doctor", "Look a checkpoint over: is it whole, and what is to be done if it is not."),
    "savepoint": Verb("savepoint", "Keep verified copies of a checkpoint, and begin anew from them."),
    "rewind": Verb("anew", "Let a stopped job go on after an earlier epoch."),
    "rescale": Verb("anew", "Spread a stopped job's state over another number of partitions."),
    "state": Verb("state", "Look into a job's state, with the job running or not."),
    "tx": Verb("tx", "Look at open Kafka transactions, and end them by hand."),
    "explain": Verb("explain", "Say what an error code means and what to do."),
    "demo": Verb("demo_command", "Kill a streaming job with SIGKILL, again and again, and count what its sinks hold."),
    "version": Verb("version", "Say which versions are at work."),
}
"""By name, in the order of a job's life."""


class Verbs(click.Group):
    """A group whose commands are looked up by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All of them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one."""
        if cmd_name not in VERBS:
            return None
        command = getattr(import_module(f"fencepost.cli.{VERBS[cmd_name].module}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Their lines, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, VERBS[name].help) for name in self.list_commands(ctx)])


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fencepost")
def cli() -> None:
    """Exactly-once pipelines for PySpark. Off by none.

    A job is named by its FILE, by its NAME, or by its CHECKPOINT folder. Results go to stdout, progress to stderr.

    Exit codes: 0 fine; 1 failed, or something was found; 2 refused: change the command or the job; 3 a person is
    needed, or an outcome is in doubt; 4 the restart budget is spent; 130 interrupted.
    """


def main() -> None:
    """Run; a mistake of the user's gets four lines, not a traceback."""
    sys.exit(exits.run(lambda: cli(standalone_mode=False)))
