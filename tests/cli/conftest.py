"""What tests of the command line may rely on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from sessions import spark

import fencepost as fp
from fencepost.config import RunConfig
from fencepost.runtime.driver import Driver, Plan
from fencepost.store import LocalStore

__all__ = ["spark"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with some lines, a database of the user's own, and a checkpoint of another job."""
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "1.txt").write_text("one two\n")
    with closing(sqlite3.connect(tmp_path / "there.db")) as database, database:
        database.execute("CREATE TABLE wide (value TEXT, price INTEGER NOT NULL)")
        database.execute("CREATE TABLE words (value TEXT, count INTEGER)")
    plan = Plan(
        config=RunConfig(job="first", checkpoint=fp.Checkpoint(tmp_path / "other")),
        store=LocalStore(tmp_path / "other"),
        sinks={"sqlite:lines": fp.SQLite(tmp_path / "words.db", table="lines")},
        schemas={"sqlite:lines": pa.schema([("value", pa.string())])},
        modes={"sqlite:lines": "append"},
    )
    driver = Driver(plan)
    driver.recover()
    driver.close()
    return tmp_path
