"""Keeps a JVM and a user's own file from talking into a result."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import click


@contextmanager
def quiet() -> Iterator[None]:
    """A JVM that starts in here has a file for its output and errors: stdout is the result's, and nobody else's.

    What was said is shown, on stderr, if it ends with an error.
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
        finally:
            sys.stderr.flush()
            for number, before in kept.items():
                os.dup2(before, number)
                os.close(before)
            if failed:
                noise.seek(0)
                click.echo(noise.read().decode(errors="replace"), err=True)
