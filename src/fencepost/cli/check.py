"""`fencepost check FILE`: which guarantee holds, before any data flows."""

from __future__ import annotations

import runpy
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fencepost.errors import BadConfig, FencepostError, Where
from fencepost.job import Job
from fencepost.sinks.contract import place_of


def run_check(path: Path) -> int:
    """Print every job's links; 0 if each gives what its job asks for, 1 if not."""
    console = Console()
    reports = [job.check() for job in jobs_of(path)]
    for report in reports:
        table = Table("part", "at best", "because", title=f"job {escape(report.job)}", title_justify="left")
        for row in report.rows:
            table.add_row(*map(escape, row))  # a path in brackets is no markup
        console.print(table)
        for note in report.notes:
            console.print(f"note: {note}")
        for link in report.links:
            if link.best < report.asked:
                console.print(f"[red]too weak:[/red] {escape(link.part)}. {escape(link.cure)}.")
    return 0 if all(report.holds for report in reports) else 1


def jobs_of(path: Path) -> list[Job]:
    """The jobs that a file makes when it is imported; it must run them only under `if __name__ == "__main__":`."""
    try:
        found = runpy.run_path(str(path), run_name="fencepost_check")
    except FencepostError:
        raise
    except Exception as error:
        raise BadConfig(
            "file_fails",
            f"The file cannot be run: {place_of(error)}.",
            where=Where(path=str(path)),
            next="Run it with python to see the whole error, mend it, and check again.",
        ) from error
    jobs = [value for value in found.values() if isinstance(value, Job)]
    if not jobs:
        raise BadConfig(
            "no_job",
            "The file makes no job at its top level.",
            where=Where(path=str(path)),
            next="Make it there (job = fp.Job(…)), and run it under `if __name__ == '__main__':`.",
        )
    return jobs
