"""`fencepost check FILE`: would its jobs start, and which guarantee holds? No job is started, nothing is changed."""

from __future__ import annotations

import ast
import difflib
import json
import runpy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

import fencepost
from fencepost.cli import version
from fencepost.cli.frame import FileCommand, quiet
from fencepost.errors import BadConfig, Exit, FencepostError, Where, code_of, unknown_keyword
from fencepost.spark import gateway, spark_session

if TYPE_CHECKING:
    from fencepost.config import Setting
    from fencepost.guarantee import Report
    from fencepost.job import Job
    from fencepost.runtime.checks import Findings


WIDEST = 40
"""The maximum width of a column: one long path must not push all reasons off the screen."""

AS = "fencepost_check"
"""The name of the module that a file is while it is looked at."""


@click.command(cls=FileCommand, context_settings={"ignore_unknown_options": True})
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--probe", is_flag=True, help="Also read one micro-batch of every source twice, and compare.")
@click.option("--master", help="As for fencepost run: check with a session on this master.")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="As for fencepost run.")
def check(
    file: Path, arguments: tuple[str, ...], *, as_json: bool, probe: bool, master: str | None, conf: tuple[str, ...]
) -> None:
    """Say whether the jobs in FILE would start, and which guarantee they have end to end.

    FILE is run with ARGUMENTS to find its jobs; the calls that start them have to be under
    `if __name__ == "__main__":`.

    Checks the plan, the settings, the checkpoint, the sources and the targets, and lists every problem at once. Says
    which settings come from the environment or from fencepost.toml, and which options Spark's JVM got from us.
    Nothing is started, created or changed.

    --probe tries what replayable=True promises: it reads what a new job would read first, for a minute at most, ends
    before Spark notes that it was read, and reads the same offsets again. No sink and no checkpoint of the job is
    touched, but the records are really read: a source that removes what it hands out has then lost them.

    Exit codes: 0 the jobs would start; 2 one would be refused, and has to be changed; 3 a person has to decide
    something first; 1 a source or target is not answering.
    """
    spark_session.tell(spark_session.read(master, conf))
    click.echo(f"Checking {file} …", err=True)
    if early := first_look(file):
        _tell([], early, as_json=as_json)
        sys.exit(Exit.REFUSED)
    known = version.versions()
    spark = known["pyspark"] or "is missing"
    click.echo(
        f"Java {known['java']}, Spark {spark}; the file is valid Python. Starting Spark for the rest …", err=True
    )
    try:
        with quiet():
            found = _look(file, arguments, probes=probe)
    except FencepostError as error:
        _tell([], [error], as_json=as_json)
        sys.exit(code_of(error))
    if (started := gateway.chosen()) is not None:
        click.echo(started.says, err=True)
    _tell(found, [], as_json=as_json)
    codes = {code_of(error) for one in found for error in one.problems}
    sys.exit(next((code for code in (Exit.REFUSED, Exit.OPERATOR, Exit.FAILED) if code in codes), Exit.FINE))


NEEDS = {
    "Cassandra": ("no_cassandra_client", "cassandra"),
    "DuckDB": ("no_duckdb_client", "duckdb"),
    "MySQL": ("no_mysql_client", "pymysql"),
    "Postgres": ("no_postgres_client", "psycopg"),
    "Redis": ("no_redis_client", "redis"),
}
"""The error code for a missing client, and the client; its extra is named after the sink."""


def first_look(file: Path) -> list[FencepostError]:
    """What is wrong with the file and the machine, as far as we can tell without running the file or a JVM."""
    found: list[FencepostError] = []
    try:
        gateway.check_java()
    except BadConfig as error:
        found.append(error)
    where = Where(path=str(file))
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
        what = f"The file is not valid Python: {type(error).__name__}{line}."
        return [*found, BadConfig("file_fails", what, where=where, next="Fix the line, and check again.")]
    ours = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "fencepost"
    }
    for node in ast.walk(tree):
        call = node.func if isinstance(node, ast.Call) else None
        if isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name) and call.value.id in ours:
            found += _wrong_in(cast("ast.Call", node), call.attr, where)
    return found


def _wrong_in(node: ast.Call, name: str, where: Where) -> Iterator[FencepostError]:
    """What is wrong with one call of a public name."""
    if name not in fencepost.__all__:
        near = difflib.get_close_matches(name, fencepost.__all__, 1)
        what = f"There is no fp.{name} (line {node.lineno})."
        next_ = f"Did you mean fp.{near[0]}?" if near else f"The public names are {', '.join(fencepost.__all__)}."
        yield BadConfig("unknown_name", what, where=where, next=next_)
        return
    code, client = NEEDS.get(name, ("", ""))
    if client and find_spec(client) is None:
        what = f"The Python package {client} is not installed, and fp.{name} needs it (line {node.lineno})."
        yield BadConfig(code, what, where=where, next=f"pip install 'fencepost[{name.lower()}]'")
    keywords = [each.arg for each in node.keywords if each.arg is not None]
    if (wrong := unknown_keyword(f"fp.{name}", getattr(fencepost, name), keywords)) is not None:
        wrong.what = f"{wrong.what} (line {node.lineno})"
        wrong.where = where
        yield wrong


def _look(file: Path, arguments: tuple[str, ...], *, probes: bool) -> list[Findings]:
    from fencepost.runtime import checks  # noqa: PLC0415 - as below

    return [checks.look(job._launch(looks=True), probes=probes) for job in jobs_of(file, arguments)]


def jobs_of(path: Path, arguments: Sequence[str] = ()) -> list[Job]:
    """The jobs that a file creates when it is imported; it must run them only under `if __name__ == "__main__":`."""
    from fencepost.job import Job  # noqa: PLC0415 - same
    from fencepost.runtime.start import only_looking  # noqa: PLC0415 - imports pyarrow, which --help does not need

    gateway.check_java()
    before, sys.argv = (list(sys.path), sys.argv), [str(path), *arguments]
    sys.path.insert(0, str(path.absolute().parent))  # where `python FILE` finds the file's neighbours
    try:
        with only_looking():
            spark_session.send_whole(AS)
            found = runpy.run_path(str(path), run_name=AS)
    except FencepostError:
        raise
    except (Exception, SystemExit) as error:
        raise BadConfig(
            "file_fails",
            f"The file fails: {_place_of(error, path)}.",
            where=Where(path=str(path)),
            next="Run it with python to see the whole error, fix it, and check again.",
        ) from error
    finally:
        sys.path[:], sys.argv = before
    jobs = [value for value in found.values() if isinstance(value, Job)]
    if not jobs:
        raise BadConfig(
            "no_job",
            "The file creates no job at its top level.",
            where=Where(path=str(path)),
            next="Create it there (job = fp.Job(…)), and run it under `if __name__ == '__main__':`.",
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
        started = gateway.chosen()
        jvm = None if started is None else {"options": started.shown, "left_out": list(started.left_out)}
        click.echo(json.dumps({**said, "jvm": jvm, "versions": version.versions()}, indent=1))
        return
    for error in problems:
        click.echo(str(error))
    for number, one in enumerate(found):
        click.echo(f"{'' if number == 0 else chr(10)}job {one.job}")
        for setting in one.settings:
            click.echo(f"  {_origin(setting)}")
        if one.report is not None:
            _print_links(one.report)
        for note in one.notes:
            click.echo(click.wrap_text(f"note: {note}", 100, "  ", "        "))
        for error in one.problems:
            click.echo(str(error))
        many = f"{len(one.problems)} problem{'' if len(one.problems) == 1 else 's'}"
        would = "it would start" if one.starts else "it would not start"
        click.echo(f"{many}: {would}{', but must not' if one.starts else ''}." if one.problems else "It would start.")


def _origin(setting: Setting) -> str:
    """Where a setting comes from, or why it has no effect."""
    if setting.unused:
        return f"setting {setting.name}: {setting.origin} is not used, {setting.unused}"
    return f"setting {setting.name} = {setting.value}, from {setting.origin}"


def _print_links(report: Report) -> None:
    widths = [min(max(len(row[column]) for row in report.rows), WIDEST) for column in (0, 1)]
    for part, level, reason in report.rows:
        click.echo(f"  {part:<{widths[0]}}  {level:<{widths[1]}}  {reason}")


def _plain(one: Findings) -> dict[str, Any]:
    report = one.report
    return {
        "job": one.job,
        "starts": one.starts,
        "asked": report.asked.word if report else None,
        "links": [{"part": part, "best": level, "reason": reason} for part, level, reason in report.rows[:-1]]
        if report
        else [],
        "guarantee": report.rows[-1][1] if report else None,
        "settings": [asdict(setting) for setting in one.settings],
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
