"""`fencepost top`, and `fencepost status --watch`: jobs as they go, in a terminal of any width; lines in a pipe."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from fencepost.cli.lookup import JOB
from fencepost.cli.status import COLOURS
from fencepost.errors import FencepostError
from fencepost.observe import registry
from fencepost.observe.archive import JobArchive, Summary
from fencepost.observe.health import Health
from fencepost.observe.picture import letters_of
from fencepost.observe.wording import WORDS, line_of, plain, since, span
from fencepost.store import Place, place
from fencepost.store.refusal import unreadable
from fencepost.store.retry import at_most

if TYPE_CHECKING:
    from rich.console import RenderableType

EVERY_S: Final = 1.0
PATIENCE_S: Final = 3.0
MOST: Final = 200
"""Epochs of a strip, in a very wide terminal."""


@click.command()
@click.argument("checkpoints", metavar="[JOB]...", type=JOB, nargs=-1)
def top(checkpoints: Sequence[Place]) -> None:
    """Show jobs as they go: epochs, rows a second, what is open. Ctrl-C ends it.

    Without JOB, all that were started on this machine. In a pipe there is a line whenever something changes.
    """
    watch(checkpoints)


def watch(checkpoints: Sequence[Place], *, as_json: bool = False) -> None:
    """Show these jobs, or all of this machine, until Ctrl-C."""
    archives: dict[str, JobArchive] = {}

    def looks() -> list[Summary]:
        wanted = list(checkpoints) or [place(noted.checkpoint) for noted in registry.everything()]
        return [_look(archives.setdefault(str(where), JobArchive(where)), where) for where in wanted]

    with suppress(KeyboardInterrupt):  # how it is meant to end
        if as_json or not sys.stdout.isatty():
            _in_a_pipe(looks, (lambda one: json.dumps(plain(one.health), ensure_ascii=False)) if as_json else _line)
        else:
            _at_a_terminal(looks)


def _look(archive: JobArchive, where: Place) -> Summary:
    try:
        with at_most(PATIENCE_S):
            return archive.summary(recent=MOST)
    except (FencepostError, OSError) as error:
        told = error if isinstance(error, FencepostError) else unreadable(error, str(where))
        unknown = Health(job=where.name, checkpoint=str(where), condition="unknown")
        return Summary(health=replace(unknown, notes=(f"[{told.code}] {told.what}",)), rows_per_s=None, spread=None)


def _in_a_pipe(looks: Callable[[], list[Summary]], text: Callable[[Summary], str]) -> None:
    said: dict[str, str] = {}
    while True:
        for one in looks():
            line = text(one)
            if said.get(one.health.checkpoint) != line:
                said[one.health.checkpoint] = line
                stamp = "" if line.startswith("{") else f"{datetime.now(UTC):%H:%M:%S} {one.health.job}: "
                click.echo(f"{stamp}{line}")
                sys.stdout.flush()
        time.sleep(EVERY_S)


def _line(one: Summary) -> str:
    return " · ".join([line_of(one), *one.health.notes])


def _at_a_terminal(looks: Callable[[], list[Summary]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - takes longer than everything else together
    from rich.live import Live  # noqa: PLC0415 - as above

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(drawn(looks(), shutil.get_terminal_size().columns), refresh=True)
            time.sleep(EVERY_S)


def drawn(found: Sequence[Summary], width: int) -> RenderableType:
    """All jobs, each with its strip below it, as wide as the terminal."""
    from rich.console import Group  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    parts: list[Any] = []
    for one in found:
        health = one.health
        word = "damaged" if health.damage else WORDS.get(health.condition, health.condition)
        colour = "red" if health.damage else COLOURS[health.condition]
        parts.append(Text.assemble((health.job, "bold"), "  ", (f"● {word}", colour), (since(health), "dim")))
        parts.append(Text(line_of(one).partition(" · ")[2] or "nothing is known yet", overflow="fold"))
        if one.recent:
            strip = letters_of(one.recent[-max(10, width - 1) :])
            parts.append(Text(strip, style="cyan", overflow="crop", no_wrap=True))
        for sink in one.sinks:
            state = ("✓", "green") if sink.meets else ("open", "yellow")
            held = "nothing yet" if sink.confirmed is None else f"epoch {sink.confirmed}"
            left = "" if sink.deadline_s is None else f", times out in {span(max(0.0, sink.deadline_s))}"
            parts.append(Text.assemble("  ", sink.name, " ", state, f" {held}{left}"))
        trouble = health.failure if health.failure is not None and not health.is_over else None
        if trouble is not None:
            parts.append(Text(f"  [{trouble.code}] {trouble.what or ''}", style="red"))
        parts.extend(Text(f"  {note}", style="yellow") for note in health.notes)
        parts.append(Text(""))
    if not found:
        parts.append(Text("No job was started on this machine. You can also name a checkpoint folder."))
    parts.append(Text("Ctrl-C ends it.", style="dim"))
    return Group(*parts)
