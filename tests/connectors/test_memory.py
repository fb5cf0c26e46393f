"""One large epoch and little memory: what passes the vote can be committed, and recovered, with the same means.

`bench/memory.py` does it in a process whose address space is limited: it cannot hurt the machine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fencepost_proof.rig.postgres import Postgres

ROOT = Path(__file__).parents[2]
MB, LIMIT = 120, 100
"""Neither the staged file nor what becomes of it fits."""


def attempt(folder: Path, sink: str, *more: str, limit: int = LIMIT) -> str:
    command = [sys.executable, "-m", "bench.memory", "--sinks", sink, "--folder", str(folder), *more]
    command += ["--mb", str(MB), "--limit", str(limit)]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("sink", ["function", "parquet", "sqlite"])
def test_vote_and_recovery_need_less_memory_than_the_epoch_is_large(tmp_path: Path, sink: str) -> None:
    assert "recovery_s" in attempt(tmp_path, sink)


def test_a_server_that_is_slower_than_the_driver_does_not_fill_the_drivers_memory(
    tmp_path: Path, postgres: Postgres
) -> None:
    assert "recovery_s" in attempt(tmp_path, "postgres", "--at", postgres.dsn)


def test_rows_of_many_megabytes_come_one_by_one(tmp_path: Path) -> None:
    assert "recovery_s" in attempt(tmp_path, "json", "--row-bytes", str(4 << 20))


def test_the_limit_is_one(tmp_path: Path) -> None:
    """Otherwise all of the above would pass whatever happens."""
    with pytest.raises(subprocess.CalledProcessError):
        attempt(tmp_path, "parquet", limit=10)
