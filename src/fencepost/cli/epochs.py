"""`fencepost epochs`: which epochs there were, what they held, and how long each step took."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from fencepost.cli.lookup import JOB, told
from fencepost.observe.history import Epoch, Epochs, read, unknown_epoch
from fencepost.store import Place

_job = click.argument("checkpoint", metavar="JOB", type=JOB)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

HEADS = ("epoch", "is", "decided", "writer", "rows", "sinks", "took", "cause")


@click.group()
def epochs() -> None:
    """List a job's epochs, or show everything known about one.

    JOB is its file, its name or its checkpoint; it may be running. Decisions come from the ledger, times from the
    journal, which keeps fewer epochs. No row's value is shown: none is kept.
    """


@epochs.command("list")
@_job
@click.option(
    "--last", type=click.IntRange(min=1), default=20, show_default=True, help="How many of the newest to list."
)
@_json
def list_command(checkpoint: Place, last: int, as_json: bool) -> None:
    """List the newest epochs of JOB."""
    with told(checkpoint):
        found = read(checkpoint)
    shown = found.epochs[-last:]
    if as_json:
        said = {"job": found.job, "guarantee": found.guarantee, "epochs": [_plain(one) for one in shown]}
        click.echo(json.dumps(said, indent=1, ensure_ascii=False))
        return
    if not shown:
        click.echo(f"Job {found.job} has no epoch yet.", err=True)
        return
    _table([_row(one) for one in shown])
    if len(found.epochs) > last:
        click.echo(f"{len(found.epochs) - last} older epochs are not shown (--last)", err=True)


@epochs.command()
@_job
@click.argument("epoch", type=click.IntRange(min=0))
@_json
def show(checkpoint: Place, epoch: int, as_json: bool) -> None:
    """Show everything known about one EPOCH of JOB."""
    with told(checkpoint):
        found = read(checkpoint)
    one = _the_one(found, epoch, checkpoint)
    if as_json:
        click.echo(json.dumps({"job": found.job, **_plain(one)}, indent=1, ensure_ascii=False))
        return
    click.echo(f"epoch {one.epoch} of job {found.job}: {one.standing}")
    for label, text in _lines(one):
        click.echo(f"  {label + ':':<12} {text}")


def _the_one(found: Epochs, epoch: int, checkpoint: Place) -> Epoch:
    for one in found.epochs:
        if one.epoch == epoch:
            return one
    known = (found.epochs[0].epoch, found.epochs[-1].epoch) if found.epochs else (None, None)
    raise unknown_epoch(epoch, known, found.job, checkpoint)


def _table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[n]) for row in [HEADS, *rows]) for n in range(len(HEADS))]
    if not sys.stdout.isatty():
        for row in [HEADS, *rows]:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    # Imported here because it takes longer than everything else together.
    from rich import box  # noqa: PLC0415 - as above
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    colours = {"complete": "green", "decided": "cyan", "claimed": "cyan", "failed": "red"}
    table = Table(*HEADS, box=box.SIMPLE)
    for row in rows:
        table.add_row(*(Text(cell, style=colours.get(row[1], "") if n == 1 else "") for n, cell in enumerate(row)))
    Console(highlight=False).print(table)


def _row(one: Epoch) -> tuple[str, ...]:
    sinks = ", ".join(f"{name} {share.rows} in {share.units}" for name, share in one.sinks.items())
    at = one.at[:19].replace("T", " ") if one.at else ""
    cells = (one.epoch, one.standing, at, one.writer, one.rows, sinks, _took(one.seconds), one.cause)
    return tuple("" if cell is None else str(cell) for cell in cells)


def _lines(one: Epoch) -> Iterator[tuple[str, str]]:
    if one.record is not None:
        word = "claimed" if one.standing == "claimed" else "decided"
        yield word, f"{one.at} by writer {one.writer}, record {one.record}"
    elif one.writer is not None:
        yield "writer", str(one.writer)
    if one.cause is not None:
        yield "cause", one.cause
    if one.rows is not None:
        yield "rows", str(one.rows)
    for name, share in one.sinks.items():
        yield "sink", f"{name}: {share.rows} rows in {share.units} units"
    for name, (start, end) in one.ranges.items():
        yield "source", f"{name}: {_position(start)} → {_position(end)}"
    yield from _course(one)


def _course(one: Epoch) -> Iterator[tuple[str, str]]:
    if one.phases:
        yield "steps", ", ".join(f"{name} {_took(took)}" for name, took in one.phases.items())
    if one.seconds is not None:
        yield "took", f"{_took(one.seconds)} from its rows to their commit"
    if one.attempts is not None and one.attempts > 1:
        yield "attempts", str(one.attempts)
    if one.failure is not None:
        yield "failure", f"[{one.failure.code}] {one.failure.what} ({one.failure.at})"


def _position(text: str | None) -> str:
    """For a file source just its number; anything else as Spark writes it."""
    if text is None:
        return "no longer known"
    if text == "-":
        return "the beginning"
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    return str(parsed["logOffset"]) if isinstance(parsed, dict) and set(parsed) == {"logOffset"} else text


def _plain(one: Epoch) -> dict[str, Any]:
    said = asdict(one)
    said["ranges"] = {name: {"start": start, "end": end} for name, (start, end) in one.ranges.items()}
    said["phases_s"] = {name: round(took, 6) for name, took in said.pop("phases").items()}
    said["failure"] = one.failure and one.failure.plain
    return said


def _took(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"
