"""The table of sinks in the documentation is what the sinks declare."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_documented_matrix_is_the_declared_one() -> None:
    matrix = runpy.run_path(str(DOCS / "matrix.py"))
    text = (DOCS / "GUARANTEES.md").read_text()
    assert matrix["BEGIN"] in text
    assert text == matrix["with_table"](text), "run: python docs/matrix.py"


def test_a_line_that_was_edited_by_hand_is_found() -> None:
    matrix = runpy.run_path(str(DOCS / "matrix.py"))
    text = (DOCS / "GUARANTEES.md").read_text().replace("| at least once |", "| exactly once |")
    assert text != matrix["with_table"](text)
