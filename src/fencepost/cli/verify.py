"""`fencepost verify`: do the ledger, Spark's own log and the sinks agree on every epoch?"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import click

from fencepost.admin.verify import Row, Verified, compare, span
from fencepost.cli.frame import FileCommand, progress
from fencepost.cli.lookup import JOB, script_of, with_sinks
from fencepost.errors import Exit

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
    "agrees": "Agrees: the ledger and everything compared with it say the same. Rows were not compared.",
    "in flight": "Agrees: the newest epoch is decided, and its driver is committing it.",
    "unfinished": "Unfinished: what is decided is safe; the next start of the job completes it.",
    "in doubt": "In doubt: not every target answered.",
    "differs": "Differs: see the findings above.",
}


@click.command(cls=FileCommand, context_settings={"ignore_unknown_options": True})
@click.argument("job", metavar="FILE|NAME|CHECKPOINT", shell_complete=JOB.shell_complete)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--epochs", type=click.IntRange(min=1), help="How many of the newest to compare; by default all that are kept."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(job: str, arguments: tuple[str, ...], epochs: int | None, as_json: bool) -> None:
    """Compare ledger, Spark's log and sinks, epoch by epoch; the job may be running, stopped or dead.

    A sink is asked which epochs it holds, not for its rows: rows that somebody changed by hand are not noticed.

    With FILE the job's sinks are asked too: the file is run with ARGUMENTS to find them, and Spark is started. Nothing
    is changed, nothing locked, no driver fenced. Exit code 0: all agree; 1: something differs; 2: the check could not
    be done; 3: something is in doubt, or has to be finished by a start of the job.
    """
    places = with_sinks(job, arguments)
    with progress(as_json=as_json) as tell:
        found = [compare(checkpoint, sinks, epochs, tell) for checkpoint, sinks in places]
    worst = max((one.verdict for one in found), key=[*EXITS].index)
    if as_json:
        click.echo(json.dumps({"verdict": worst, "jobs": [_plain(one) for one in found]}, indent=1, ensure_ascii=False))
    else:
        for one in found:
            for line in lines_of(one):
                click.echo(line)
            for hint in hints_of(one):
                click.echo(hint, err=True)
    sys.exit(EXITS[worst])


def lines_of(found: Verified) -> Iterator[str]:
    """What a person reads, in a terminal or on a page."""
    if found.lineage:
        yield f"job {found.job}, lineage {found.lineage}, checkpoint {found.checkpoint}"
    for words, rows in groupby(found.rows, key=lambda row: _words(found, row)):
        yield f"  {'epoch ' + span(row.epoch for row in rows):<18} {words}"
    for code, alike in groupby(found.findings, key=lambda finding: finding.code):
        first, *others = alike
        for finding in (first, *others[: FEW - 1]):
            yield f"[{code}] {finding.what.rstrip('.')}."
        if len(others) >= FEW:
            yield f"[{code}] … and {len(others) - FEW + 1} more; --json has them all."
        yield f"  {first.next}"
    for note in found.notes:
        yield f"note: {note}"
    yield ENDS[found.verdict]


def _words(found: Verified, row: Row) -> str:
    log = f"offsets {row.offsets}, commits {row.commits}"
    sinks = ", ".join(f"{name} {word}" for name, word in sorted(row.sinks.items())) or "no rows"
    return f"{found.verdict_of(row):<11} {log}; {sinks}"


def hints_of(found: Verified) -> Iterator[str]:
    """Where the sinks could be asked, if this machine remembers."""
    if any("No sink was asked" in note for note in found.notes) and (file := script_of(found.checkpoint)):
        yield f"To ask the sinks: fencepost verify {file}"


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
