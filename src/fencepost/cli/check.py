"""`fencepost check FILE`: would its jobs start, and which guarantee holds? Nothing is started, made or changed."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fencepost.cli import version
from fencepost.cli.exits import Exit, code_of
from fencepost.cli.quiet import quiet
from fencepost.errors import BadConfig, FencepostError, Where
from fencepost.spark import commanded

if TYPE_CHECKING:
    from fencepost.guarantee import Report
    from fencepost.job import Job
    from fencepost.preflight import Findings


WIDEST = 40
"""Of a column: one long path must not push all reasons off the screen."""


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--master", help="As for fencepost run: the look is taken from a session of this master.")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="As for fencepost run.")
def check(file: Path, arguments: tuple[str, ...], as_json: bool, master: str | None, conf: tuple[str, ...]) -> None:
    """Say whether the jobs in FILE would start, and which guarantee they have end to end.

    FILE is run to find its jobs, with ARGUMENTS as its own; what starts them has to stand under
    `if __name__ == "__main__":`.

    Looks at the plan, the settings, the checkpoint, the sources and the targets, and lists every problem at once.
    Nothing is started, made or changed.

    Exit codes: 0 the jobs would start; 2 one would be refused, and has to be changed; 3 a person has to decide
    something first; 1 a source or target does not answer now.
    """
    commanded.tell(commanded.read(master, conf))
    click.echo(f"Looking at {file} …", err=True)
    try:
        with quiet():
            found = _look(file, arguments)
    except FencepostError as error:
        _tell([], [error], as_json=as_json)
        sys.exit(code_of(error))
    _tell(found, [], as_json=as_json)
    codes = {code_of(error) for one in found for error in one.problems}
    sys.exit(next((code for code in (Exit.REFUSED, Exit.OPERATOR, Exit.FAILED) if code in codes), Exit.FINE))


def _look(file: Path, arguments: tuple[str, ...]) -> list[Findings]:
    from fencepost import preflight  # noqa: PLC0415 - as below

    return [preflight.look(job) for job in jobs_of(file, arguments)]


def jobs_of(path: Path, arguments: Sequence[str] = ()) -> list[Job]:
    """The jobs that a file makes when it is imported; it must run them only under `if __name__ == "__main__":`."""
    from fencepost.beginning import only_looking  # noqa: PLC0415 - imports pyarrow, which --help does not need
    from fencepost.job import Job  # noqa: PLC0415 - same

    if version.java() is None:
        raise BadConfig(
            "no_java",
            "Spark needs Java, and neither JAVA_HOME nor the PATH leads to one.",
            next="Install a Java runtime, version 17 or newer, or let JAVA_HOME name the folder of one.",
        )
    before, sys.argv = (list(sys.path), sys.argv), [str(path), *arguments]
    sys.path.insert(0, str(path.absolute().parent))  # where `python FILE` finds the file's neighbours
    try:
        with only_looking():
            found = runpy.run_path(str(path), run_name="fencepost_check")
    except FencepostError:
        raise
    except (Exception, SystemExit) as error:
        raise BadConfig(
            "file_fails",
            f"The file cannot be run: {_place_of(error, path)}.",
            where=Where(path=str(path)),
            next="Run it with python to see the whole error, mend it, and check again.",
        ) from error
    finally:
        sys.path[:], sys.argv = before
    jobs = [value for value in found.values() if isinstance(value, Job)]
    if not jobs:
        raise BadConfig(
            "no_job",
            "The file makes no job at its top level.",
            where=Where(path=str(path)),
            next="Make it there (job = fp.Job(…)), and run it under `if __name__ == '__main__':`.",
        )
    return list(dict.fromkeys(jobs))


def _place_of(error: BaseException, path: Path) -> str:
    """What was raised, and the line of the user's own file. Not its message: it may quote a row or a password."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    if line is None and isinstance(error, SyntaxError):
        line = error.lineno
    return type(error).__name__ + (f" in line {line}" if line else "")


def _tell(found: list[Findings], problems: list[FencepostError], *, as_json: bool) -> None:
    if as_json:
        said = {"jobs": [_plain(one) for one in found], "problems": [_plain_problem(error) for error in problems]}
        click.echo(json.dumps({**said, "versions": version.versions()}, indent=1))
        return
    for error in problems:
        click.echo(str(error))
    for number, one in enumerate(found):
        click.echo(f"{'' if number == 0 else chr(10)}job {one.job}")
        if one.report is not None:
            _print_links(one.report)
        for note in one.notes:
            click.echo(click.wrap_text(f"note: {note}", 100, "  ", "        "))
        for error in one.problems:
            click.echo(str(error))
        many = f"{len(one.problems)} problem{'' if len(one.problems) == 1 else 's'}"
        click.echo(f"{many}: it would not start." if one.problems else "It would start.")


def _print_links(report: Report) -> None:
    widths = [min(max(len(row[column]) for row in report.rows), WIDEST) for column in (0, 1)]
    for part, level, reason in report.rows:
        click.echo(f"  {part:<{widths[0]}}  {level:<{widths[1]}}  {reason}")


def _plain(one: Findings) -> dict[str, Any]:
    report = one.report
    return {
        "job": one.job,
        "starts": not one.problems,
        "asked": report.asked.word if report else None,
        "links": [{"part": part, "best": level, "reason": reason} for part, level, reason in report.rows[:-1]]
        if report
        else [],
        "guarantee": report.rows[-1][1] if report else None,
        "notes": one.notes,
        "problems": [_plain_problem(error) for error in one.problems],
    }


def _plain_problem(error: FencepostError) -> dict[str, Any]:
    where = {name: getattr(error.where, name) for name in ("job", "epoch", "sink", "path")}
    return {
        "code": error.code,
        "what": error.what,
        "where": {name: value for name, value in where.items() if value is not None},
        "safe": error.safe,
        "next": error.next,
        "exit": int(code_of(error)),
    }
