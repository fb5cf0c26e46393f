"""`fencepost as-of`: how every target of a job can be read as it was right after one epoch."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from fencepost.admin.instant import JobInstant, SinkInstant, instant_of_job
from fencepost.cli.frame import FileCommand, progress
from fencepost.cli.lookup import JOB, script_of, told, with_sinks
from fencepost.errors import Exit

LONGEST = 2_000
"""Characters of a text that are printed for people."""


@click.command("as-of", cls=FileCommand, context_settings={"ignore_unknown_options": True})
@click.argument("job", metavar="FILE|NAME|CHECKPOINT", shell_complete=JOB.shell_complete)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--epoch", type=click.IntRange(min=0), help="The epoch; by default the newest that is done.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def as_of(job: str, arguments: tuple[str, ...], epoch: int | None, as_json: bool) -> None:
    """Say how each target of a job is read as it was right after one epoch, so that all show the same moment.

    A Delta or Iceberg table by its version, a Kafka topic by the offsets at which a reader stops, a folder by its
    files, ready to paste. A database has no older state: it is said whether it still is as it was.

    With FILE the job's targets are asked: the file is run with ARGUMENTS to find them, and Spark is started. Nothing is
    changed, nothing locked; the job may be running, stopped or dead. Exit code 0: each can be read as it was; 1: not
    all of them; 2: the epoch is not done, or not known any more; 3: a target did not answer.
    """
    places = with_sinks(job, arguments)
    found = []
    with progress(as_json=as_json) as tell:
        for checkpoint, sinks in places:
            with told(checkpoint):
                found.append(instant_of_job(checkpoint, sinks, epoch, tell))
    if as_json:
        said = {"exact": all(one.is_exact for one in found), "jobs": [_plain(one) for one in found]}
        click.echo(json.dumps(said, indent=1, ensure_ascii=False))
    else:
        for one in found:
            _print(one)
    heard, exact = all(one.is_heard for one in found), all(one.is_exact for one in found)
    sys.exit(Exit.OPERATOR if not heard else Exit.FINE if exact else Exit.FAILED)


def _print(found: JobInstant) -> None:
    at = f", decided {found.at[:19].replace('T', ' ')}" if found.at else ""
    newest = "the newest that is done" if found.epoch == found.newest else f"the newest that is done is {found.newest}"
    click.echo(f"job {found.job}, epoch {found.epoch}{at} ({newest})")
    click.echo(f"lineage {found.lineage}, checkpoint {found.checkpoint}")
    width = max((len(one.sink) for one in found.sinks), default=0)
    for one in found.sinks:
        lines = _lines(one)
        click.echo(f"  {one.sink:<{width}}  {lines[0]}")
        for line in lines[1:]:
            click.echo(f"  {'':<{width}}  {line}")
    for note in found.notes:
        click.echo(f"note: {note}")
    if any("No target was asked" in note for note in found.notes) and (file := script_of(found.checkpoint)):
        click.echo(f"To ask the targets: fencepost as-of {file} --epoch {found.epoch}", err=True)
    click.echo(_end(found))


def _lines(one: SinkInstant) -> list[str]:
    instant = one.instant
    text = instant.text
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]} … (--json has all of it)"
    if instant.exact:
        return [text, f"({instant.why})"] if text else [f"nothing: {instant.why}"]
    if text:
        return [text, f"{'not exact' if instant.heard else 'not checked'}: {instant.why}"]
    return [f"- {'' if instant.heard else 'did not answer: '}{instant.why}"]


def _end(found: JobInstant) -> str:
    if found.is_exact:
        return f"Every target can be read as it was right after epoch {found.epoch}."
    short = ", ".join(one.sink for one in found.sinks if not one.instant.exact)
    return f"Not every target can be read as it was right after epoch {found.epoch}: {short}."


def _plain(found: JobInstant) -> dict[str, Any]:
    return {
        "job": found.job,
        "checkpoint": found.checkpoint,
        "lineage": found.lineage,
        "generation": found.generation,
        "epoch": found.epoch,
        "decided_at": found.at,
        "newest": found.newest,
        "exact": found.is_exact,
        "sinks": {
            one.sink: {
                "text": one.instant.text,
                "exact": one.instant.exact,
                "heard": one.instant.heard,
                "why": one.instant.why,
                "wrote": one.wrote,
                "facts": dict(one.instant.facts),
            }
            for one in found.sinks
        },
        "notes": list(found.notes),
    }
