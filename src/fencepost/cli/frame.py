"""What every command needs: its exit code (`fencepost.errors.Exit`), its error message, and a clean stdout.

Never a traceback for an error of ours, and never one when the reader closes the pipe (`… | head -1`).
"""

from __future__ import annotations

import difflib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

import click

from fencepost.errors import Exit, FencepostError, code_of
from fencepost.observe import console
from fencepost.observe.terminal import ProgressLine


def run(command: Callable[[], Any]) -> int:
    """Run a command and return its exit code. Flushes stdout here, while an error can still be caught."""
    _open_closed_streams()
    code = _run(command)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()  # the command itself finished: its code stands
    return code


def _run(command: Callable[[], Any]) -> int:
    try:
        answer = command()
    except FencepostError as error:
        click.echo(str(error), err=True)
        return code_of(error)
    except (KeyboardInterrupt, click.Abort):
        click.echo("Interrupted.", err=True)
        return Exit.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return Exit.REFUSED
    except SystemExit as end:  # how a command returns its code
        return end.code if isinstance(end.code, int) else Exit.FINE if end.code is None else _said(end.code)
    except BrokenPipeError:
        _forget_stdout()
        return Exit.FAILED  # we do not know what it would have found
    return answer if isinstance(answer, int) else Exit.FINE  # click hands on the code of --help


def _said(text: str) -> int:
    click.echo(text, err=True)
    return Exit.FAILED


def _open_closed_streams() -> None:
    """A stream that was closed before we began would be the next file that we open, or a JVM's socket."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            got = os.open(os.devnull, os.O_RDWR)
            if got != number:
                os.dup2(got, number)
                os.close(got)
            how = "r" if number == 0 else "w"
            stream = open(number, how, encoding="utf-8", closefd=False)  # noqa: SIM115 - for good
            setattr(sys, name, stream)


def _forget_stdout() -> None:
    """Python flushes it once more at its own end, and would complain."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class FileCommand(click.Command):
    """A command that hands ARGUMENTS on to FILE, but not what looks like a misspelt option of its own."""

    LIKE = 0.88
    """How much alike: --stanby and --standby are, a job's own --config and our --conf are not."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:  # not while a shell completes the line
            self._refuse_misspelt(ctx, args)
        return super().parse_args(ctx, args)

    def _refuse_misspelt(self, ctx: click.Context, args: list[str]) -> None:
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        own = {name: option.is_flag for option in options for name in option.opts}
        words, is_after_file = iter(args), False
        for word in words:
            name, equals, _ = word.partition("=")
            if word == "--":
                return
            if not word.startswith("-"):
                is_after_file = True
            elif name in own:
                if not own[name] and not equals:
                    next(words, None)  # its value
            elif near := difflib.get_close_matches(name, own, 1, self.LIKE if is_after_file else 0.5):
                ctx.fail(f"No such option {name!r}. Did you mean {near[0]!r}? (Put options of FILE itself after --.)")
            elif not is_after_file:
                ctx.fail(f"No such option {name!r}. (Options of FILE itself come after FILE.)")


def progress(*, as_json: bool = False) -> ProgressLine:
    """The line that a long command has on a terminal: not beside JSON, nor where FENCEPOST_QUIET is set."""
    from fencepost import settings  # noqa: PLC0415 - it imports pyarrow, which `--help` does not need

    return ProgressLine(is_silent=as_json or settings.is_quiet() or not console.wanted(None, ours=True))


@contextmanager
def quiet() -> Iterator[None]:
    """Send the output of a JVM that starts in here to a file: stdout is for the result alone.

    If the block ends with an error, that output is shown on stderr.
    """
    sys.stdout.flush()
    with tempfile.TemporaryFile() as noise:
        kept = {number: os.dup(number) for number in (1, 2)}
        for number in kept:
            os.dup2(noise.fileno(), number)
        failed = True
        try:
            with redirect_stdout(sys.stderr):  # of a user's file that prints
                yield
            failed = False
        except KeyboardInterrupt:
            failed = False
            raise
        finally:
            sys.stderr.flush()
            for number, before in kept.items():
                os.dup2(before, number)
                os.close(before)
            if failed:
                noise.seek(0)
                if said := noise.read().decode(errors="replace"):
                    click.echo(said, err=True)
