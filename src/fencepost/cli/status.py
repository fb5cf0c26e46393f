"""`fencepost status`: is it running, what happened, is the data safe, what to do."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from fencepost.cli.lookup import JOB, told
from fencepost.errors import CheckpointRefused, Exit, FencepostError
from fencepost.observe import registry
from fencepost.observe.health import Condition, Health, instant, look
from fencepost.observe.heartbeat import exists
from fencepost.observe.registry import Noted
from fencepost.observe.wording import WORDS, ago, ago_of, data_of, epoch_of, next_of, plain, since, span
from fencepost.store import Place, place
from fencepost.store.retry import at_most

SHORT_S: Final = 3.0
"""For each of several stores, while somebody waits for all."""


@click.command()
@click.argument("checkpoint", metavar="[JOB]", type=JOB, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--watch", "is_watched", is_flag=True, help="Go on until Ctrl-C; in a pipe a line for every change.")
def status(checkpoint: Place | None, as_json: bool, is_watched: bool) -> None:
    """Show how a job is doing: running or not, which epoch, what happened last.

    JOB is its file, its name or its checkpoint (a folder, or its URL); without it, there is a line for every job that
    was started on this machine. Only files are read: nothing is changed, and no sink is asked (`fencepost verify` does
    that).

    Exit code 0: it is running, will be restarted, or was stopped cleanly; 1: it failed or is dead; 3: a person is
    needed, or an outcome is in doubt.
    """
    if is_watched:
        from fencepost.cli.top import watch  # noqa: PLC0415 - it imports this one

        watch([] if checkpoint is None else [checkpoint], as_json=as_json)
        return
    if checkpoint is None:
        found = [health for noted in registry.everything() if (health := _look(noted)) is not None]
        if as_json:
            click.echo(json.dumps({"jobs": [plain(one) for one in found]}, indent=1, ensure_ascii=False))
        elif found:
            print_all(found)
        else:
            click.echo("No job was started on this machine. You can also name a checkpoint folder.", err=True)
        sys.exit(max((_code(one) for one in found), default=Exit.FINE))
    with told(checkpoint):
        health = look(checkpoint)
    if as_json:
        click.echo(json.dumps(plain(health), indent=1, ensure_ascii=False))
    else:
        print_one(health)
    sys.exit(_code(health))


def _look(noted: Noted) -> Health | None:
    """None for a folder that is no longer a checkpoint: somebody emptied it."""
    where = place(noted.checkpoint)
    try:
        with at_most(SHORT_S), told(where):
            return look(where)
    except FencepostError as error:
        if isinstance(error, CheckpointRefused) and error.code != "store_denied":
            return None
        if isinstance(where, Path):
            raise
        why = f"[{error.code}] {error.what}"
        click.echo(f"{noted.name}: {why}", err=True)
        return Health(job=noted.name, checkpoint=where.url, condition="unknown", notes=(why,))


def _code(health: Health) -> Exit:
    if health.needs_a_person:
        return Exit.OPERATOR
    return Exit.FINE if health.is_well else Exit.FAILED


# --- how it looks on a terminal, in a pipe, and in JSON: the same facts in the same words

COLOURS: dict[Condition, str] = {
    "running": "green",
    "starting": "cyan",
    "waiting": "yellow",
    "silent": "red",
    "stopped": "blue",
    "failed": "red",
    "dead": "red",
    "unknown": "yellow",
}


def print_one(health: Health) -> None:
    """A panel in a terminal, the same lines elsewhere."""
    if not sys.stdout.isatty():
        for line in lines_of(health):
            click.echo(line)
        return
    lines = list(_lines(health))
    head = WORDS.get(health.condition, health.condition)
    # Imported here because it takes longer than everything else together.
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.panel import Panel  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    colour = COLOURS[health.condition] if health.damage is None else "red"
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in lines:
        table.add_row(
            label, Text(text, style={"failure": "yellow" if health.is_over else "red", "next": "bold"}.get(label, ""))
        )
    title = Text.assemble((health.job, "bold"), "  ", ("● " + head, colour), (since(health), "dim"))
    Console(highlight=False).print(Panel(table, title=title, title_align="left", border_style=colour, expand=False))


def lines_of(health: Health) -> Iterator[str]:
    """One job in a pipe, or on a page."""
    yield f"{health.job}: {WORDS.get(health.condition, health.condition)}{since(health)}"
    for label, text in _lines(health):
        yield f"  {label + ':':<12} {text}"


def print_all(found: list[Health]) -> None:
    rows = [_row(health) for health in found]
    heads = ("job", "is", "epoch", "pace", "last failure", "checkpoint")
    if not sys.stdout.isatty():
        widths = [max(len(row[n]) for row in [heads, *rows]) for n in range(len(heads))]
        for row in [heads, *rows]:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    from rich import box  # noqa: PLC0415 - as above
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    table = Table(*heads, box=box.SIMPLE)
    table.columns[-1].overflow = "fold"
    for health, row in zip(found, rows, strict=True):
        table.add_row(*(Text(cell, style=COLOURS[health.condition] if n == 1 else "") for n, cell in enumerate(row)))
    Console(highlight=False).print(table)


def _lines(health: Health) -> Iterator[tuple[str, str]]:
    if health.pid is not None:
        yield ("last driver" if health.condition in ("waiting", "dead") else "driver"), _driver(health)
    if health.standby is not None:
        yield "standby", f"process {health.standby}, {'warm' if health.standby_is_warm else 'not warm yet'}"
    yield "epoch", epoch_of(health)
    if health.median_s is not None:
        pace = "" if health.per_minute is None else f"{health.per_minute:.3g} epochs a minute, "
        rest = "" if health.rest_s is None else f", then a pause of {span(health.rest_s)}"
        yield "pace", f"{pace}median {span(health.median_s)} from its rows to their commit{rest}"
    if health.guarantee:
        again = "" if health.generation == 0 else f", started over {health.generation} ×"
        yield "guarantee", health.guarantee.replace("_", " ") + again
    if health.watermark is not None or health.feeds:
        yield "watermark", instant(health.watermark) or "has not moved yet"
    for feed in health.feeds:
        if feed.is_behind:
            quiet = "no record yet" if feed.at is None else f"no new records for {span(time.time() - feed.at)}"
            yield "waits for", f"{feed.what}: {quiet}"
    yield from _troubles(health)
    yield "checkpoint", health.checkpoint
    for note in health.notes:
        yield "note", note


def _troubles(health: Health) -> Iterator[tuple[str, str]]:
    if health.restarts:
        yield "restarts", f"{health.restarts}, counted from {ago(health.known_since)}"
    if health.failure is not None:
        over = "; epochs were completed since" if health.is_over else ""
        yield "failure", f"[{health.failure.code}] {health.failure.what or ''} ({ago_of(health.failure.at)}{over})"
    if health.damage is not None:
        yield "damage", f"[{health.damage.code}] {health.damage.what}"
    if (data := data_of(health)) is not None:
        yield "data", data
    if (todo := next_of(health)) is not None:
        yield "next", todo


def _driver(health: Health) -> str:
    of = "" if health.writer is None else f", writer {health.writer}"
    by = "" if health.condition != "running" else ", not supervised"
    if health.supervisor is not None:
        gone = health.host == socket.gethostname() and not exists(health.supervisor)
        by = f", {'its supervisor is gone: ' if gone else 'supervised by '}process {health.supervisor}"
    return f"process {health.pid} on {health.host or 'an unknown host'}{of}{by}"


def _row(health: Health) -> tuple[str, ...]:
    word = "damaged" if health.damage is not None else WORDS.get(health.condition, health.condition)
    epoch = "" if health.epoch is None else f"{health.epoch}, {ago(health.epoch_at)}"
    pace = "" if health.per_minute is None else f"{health.per_minute:.3g}/min"
    failed = "" if health.failure is None else f"{health.failure.code}{', over' if health.is_over else ''}"
    return health.job, word + since(health), epoch, pace, failed, health.checkpoint
