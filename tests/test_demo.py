"""The demo's verdict must be able to say no."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from fencepost.cli import demo

LINES = {0: "vote commit", 1: "vote vote"}


@pytest.mark.parametrize(
    ("sabotage", "right"),
    [
        ("SELECT 1", True),
        ("DELETE FROM lines WHERE id = 1", False),
        ("INSERT INTO lines VALUES (1, 'vote vote')", False),
        ("INSERT INTO lines VALUES (7, 'phantom')", False),
        ("UPDATE counts SET count = 4 WHERE word = 'vote'", False),
        ("UPDATE counts SET count = 2 WHERE word = 'vote'", False),
    ],
)
def test_a_lost_a_doubled_and_a_wrong_figure_are_seen(tmp_path: Path, sabotage: str, right: bool) -> None:
    tables = {
        "lines": "CREATE TABLE lines AS SELECT 0 AS id, 'vote commit' AS line UNION ALL SELECT 1, 'vote vote'",
        "counts": "CREATE TABLE counts AS SELECT 'vote' AS word, 3 AS count UNION ALL SELECT 'commit', 1",
    }
    for name, statement in tables.items():
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as database, database:
            database.execute(statement)
            if name in sabotage:
                database.execute(sabotage)
    assert right == demo._verdict(Console(quiet=True), tmp_path, LINES, 3)


def test_a_demo_that_killed_nothing_proves_nothing(tmp_path: Path) -> None:
    test_a_lost_a_doubled_and_a_wrong_figure_are_seen(tmp_path, "SELECT 1", right=True)
    assert not demo._verdict(Console(quiet=True), tmp_path, LINES, 0)
