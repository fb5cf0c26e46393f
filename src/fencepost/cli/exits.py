"""The exit codes, and how every verb ends.

    0    fine
    1    failed: it did not work now, or a check of the data found something; or nobody read the result to its end
    2    refused: the command line, the job or its settings have to be changed first
    3    a person is needed, or an outcome is in doubt
    4    the restart strategy's budget is spent
    130  interrupted

Never a traceback for what we have words for, and never one for a reader who has seen enough (`… | head -1`).
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from fencepost.errors import FencepostError, GaveUp, InDoubt, OperatorNeeded, Refused


class Exit(enum.IntEnum):
    """What a program that called us may rely on."""

    FINE = 0
    FAILED = 1
    REFUSED = 2
    OPERATOR = 3
    EXHAUSTED = 4
    INTERRUPTED = 130


def code_of(error: FencepostError) -> Exit:
    """By what has to happen next: change something, ask a person, or (all the rest) look and try again."""
    if isinstance(error, Refused):
        return Exit.REFUSED
    if isinstance(error, GaveUp):
        return Exit.EXHAUSTED
    return Exit.OPERATOR if isinstance(error, OperatorNeeded | InDoubt) else Exit.FAILED


def run(command: Callable[[], Any]) -> int:
    """Run a verb to its end; its exit code. Whatever is left of stdout goes out here, while it can still be caught."""
    _open_closed_streams()
    code = _run(command)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()  # the verb itself came to its end: its code stands
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
    except SystemExit as end:  # how a verb says its code
        return end.code if isinstance(end.code, int) else Exit.FINE if end.code is None else _said(end.code)
    except BrokenPipeError:
        _forget_stdout()
        return Exit.FAILED  # nobody can tell what it would have found
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
