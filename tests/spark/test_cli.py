"""`fencepost check`, as typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fencepost.cli.main import cli
from fencepost.errors import BadConfig

pytestmark = pytest.mark.spark

JOB = """
import fencepost as fp
job = fp.Job("wc", checkpoint={folder!r} + "/checkpoint")
lines = job.read(fp.Files({folder!r}, format="text"))
job.write(lines, {sink})
"""


def check(folder: Path, sink: str) -> Any:
    """Write a job file and check it."""
    file = folder / "job.py"
    file.write_text(JOB.format(folder=str(folder), sink=sink))
    return CliRunner().invoke(cli, ["check", str(file)])


@pytest.mark.usefixtures("spark")
def test_a_job_that_gets_what_it_asks_for_passes(tmp_path: Path) -> None:
    result = check(tmp_path, f"fp.SQLite({str(tmp_path / 'out.db')!r}, table='lines')")
    assert 0 == result.exit_code
    assert "as asked" in result.output


@pytest.mark.usefixtures("spark")
def test_a_job_that_asks_for_too_much_fails_with_the_link_and_the_cure(tmp_path: Path) -> None:
    result = check(tmp_path, "fp.WriteAheadLog(print, name='api')")
    assert 1 == result.exit_code
    assert "too weak: sink api" in result.output
    assert "idempotent=True" in result.output


def test_a_file_without_a_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nothing.py").write_text("x = 1\n")
    result = CliRunner().invoke(cli, ["check", str(tmp_path / "nothing.py")])
    assert isinstance(result.exception, BadConfig)
    assert "no_job" == result.exception.code
