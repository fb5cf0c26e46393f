"""`fencepost init`: what it makes runs, and what is there stays."""

from __future__ import annotations

import os
import runpy
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from fencepost.cli.init import files
from fencepost.cli.main import cli
from fencepost.errors import BadConfig

FENCEPOST = [sys.executable, "-m", "fencepost"]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_new_project_is_checked_and_runs(tmp_path: Path) -> None:
    def run(*words: str, here: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=here, capture_output=True, text=True, timeout=120, check=True, env=environment)

    # Short runs never reach the JVM's second compiler.
    environment = {**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

    made = run(*FENCEPOST, "init", "x", here=tmp_path)
    assert {f"x/{name}" for name in files()} == set(made.stdout.split())
    checked = run(*FENCEPOST, "check", "job.py", here=tmp_path / "x")
    assert "It would start." in checked.stdout
    assert "Looking at job.py …\n" == checked.stderr
    runpy.run_path(str(tmp_path / "x" / "job.py"), run_name="__main__")  # as python does, without another JVM
    with closing(sqlite3.connect(tmp_path / "x" / "spent.db")) as database:
        found = database.execute("SELECT customer, cents, orders FROM spent ORDER BY customer").fetchall()
    assert [("anna", 3250, 2), ("boris", 500, 2), ("chen", 8900, 1)] == found


@pytest.mark.parametrize("name", sorted(files()))
def test_nothing_is_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    done = CliRunner().invoke(cli, ["init", str(tmp_path)])
    assert isinstance(done.exception, BadConfig)
    assert "files_exist" == done.exception.code
    assert ["mine"] == [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = CliRunner().invoke(cli, ["init", str(tmp_path / "file" / "x")])
    assert isinstance(done.exception, BadConfig)
    assert "folder_not_writable" == done.exception.code


def test_the_requirements_name_packages_and_nothing_else() -> None:
    assert ["fencepost", "pyspark>=4.2,<4.4"] == files()["requirements.txt"].splitlines()
