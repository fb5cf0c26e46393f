"""`fencepost verify`: do the ledger, Spark's own log and the sinks say the same of every epoch?"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fencepost.checkpoints.verified import Row, Verified, span
from fencepost.checkpoints.verify import verify as compare
from fencepost.cli.exits import Exit
from fencepost.cli.find import find
from fencepost.cli.quiet import quiet
from fencepost.ledger import Place, place
from fencepost.ledger.places import is_remote
from fencepost.observe import registry

if TYPE_CHECKING:
    from fencepost.sinks.contract import Sink

EXITS = {
    "agrees": Exit.FINE,
    "in flight": Exit.FINE,
    "unfinished": Exit.OPERATOR,
    "in doubt": Exit.OPERATOR,
    "differs": Exit.FAILED,
}
"""By verdict, the mildest first."""

FEW = 3
"""Findings of one kind that are printed."""

ENDS = {
    "agrees": "Agrees: the ledger and all that was compared with it say the same.",
    "in flight": "Agrees: the newest epoch is decided, and its driver is at it.",
    "unfinished": "Unfinished: what is decided is safe; the next start of the job completes it.",
    "in doubt": "In doubt: not everybody answered.",
    "differs": "Differs: see what was found.",
}


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("job", metavar="FILE|NAME|CHECKPOINT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--epochs", type=click.IntRange(min=1), help="Only so many of the newest; by default all that are kept.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def verify(job: str, arguments: tuple[str, ...], epochs: int | None, as_json: bool) -> None:
    """Compare ledger, Spark's log and sinks, epoch by epoch; with the job running, stopped or dead.

    With its FILE the sinks of the job are asked too: for that the file is run with ARGUMENTS, and Spark is started.
    Nothing is changed, nothing locked, no driver fenced. Exit code 0: all agree; 1: something differs; 2: it could not
    be done; 3: something is in doubt, or a start of the job has to finish it.
    """
    found = [compare(checkpoint, sinks, epochs) for checkpoint, sinks in _places(job, arguments)]
    worst = max((one.verdict for one in found), key=[*EXITS].index)
    if as_json:
        click.echo(json.dumps({"verdict": worst, "jobs": [_plain(one) for one in found]}, indent=1, ensure_ascii=False))
    else:
        for one in found:
            _print(one)
    sys.exit(EXITS[worst])


def _places(text: str, arguments: tuple[str, ...]) -> list[tuple[Place, Mapping[str, Sink] | None]]:
    """Checkpoints, with the sinks to ask. A file that is only remembered is not run for a name's sake: `_hints`."""
    if not Path(text).is_file():
        return [(find(text), None)]
    from fencepost.cli.check import jobs_of  # noqa: PLC0415 - Spark is wanted by nothing else here

    with quiet():
        return [(place(job.checkpoint), job.sinks) for job in jobs_of(Path(text), arguments)]


def _print(found: Verified) -> None:
    if found.lineage:
        click.echo(f"job {found.job}, lineage {found.lineage}, checkpoint {found.checkpoint}")
    for words, rows in groupby(found.rows, key=lambda row: _words(found, row)):
        click.echo(f"  {'epoch ' + span(row.epoch for row in rows):<18} {words}")
    for code, alike in groupby(found.findings, key=lambda finding: finding.code):
        first, *others = alike
        for finding in (first, *others[: FEW - 1]):
            click.echo(f"[{code}] {finding.what.rstrip('.')}.")
        if len(others) >= FEW:
            click.echo(f"[{code}] … and {len(others) - FEW + 1} more; --json has them all.")
        click.echo(f"  {first.next}")
    for note in found.notes:
        click.echo(f"note: {note}")
    for hint in _hints(found):
        click.echo(hint, err=True)
    click.echo(ENDS[found.verdict])


def _words(found: Verified, row: Row) -> str:
    log = f"offsets {row.offsets}, commits {row.commits}"
    sinks = ", ".join(f"{name} {word}" for name, word in sorted(row.sinks.items())) or "no rows"
    return f"{found.verdict_of(row):<11} {log}; {sinks}"


def _hints(found: Verified) -> Iterator[str]:
    """Where the sinks could be asked, if this machine remembers."""
    checkpoint = found.checkpoint if is_remote(found.checkpoint) else os.path.realpath(found.checkpoint)
    if any("No sink was asked" in note for note in found.notes):
        known = [noted.file for noted in registry.everything() if noted.checkpoint == checkpoint and noted.file]
        yield from (f"To ask the sinks: fencepost verify {file}" for file in known[:1])


def _plain(found: Verified) -> dict[str, Any]:
    return {
        "job": found.job,
        "checkpoint": found.checkpoint,
        "lineage": found.lineage,
        "verdict": found.verdict,
        "epochs": [
            {
                "epoch": row.epoch,
                "verdict": found.verdict_of(row),
                "record": row.record,
                "offsets": row.offsets,
                "commits": row.commits,
                "sinks": dict(row.sinks),
            }
            for row in found.rows
        ],
        "findings": [
            {
                "code": one.code,
                "verdict": one.weight.value,
                "place": one.place,
                "epochs": list(one.epochs),
                "what": one.what,
                "next": one.next,
            }
            for one in found.findings
        ],
        "notes": list(found.notes),
    }
