"""What each error code means and what to do: the texts in `codes/`, by theme. A test compares them with the source.

    [target_silent]    the code
    means = '…'        one to three sentences: what is the case, and why that is refused or stops the job
    do = '…'           what to do about it

A file's first line names its theme.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass

from fencepost import shipped

FOLDER = shipped.folder("fencepost.cli", "codes")


@dataclass(frozen=True, slots=True)
class Entry:
    """One code."""

    code: str
    means: str
    do: str
    theme: str
    """What the codes of its file have in common."""


def load() -> dict[str, Entry]:
    """Every entry, by its code, theme after theme."""
    found = {}
    for path in sorted(FOLDER.iterdir(), key=lambda path: path.name):
        text = path.read_text(encoding="utf-8")
        theme = text.partition("\n")[0].lstrip("# ").rstrip(".")
        for code, entry in tomllib.loads(text).items():
            assert code not in found, f"{code} stands in two files"
            found[code] = Entry(code, _line(entry["means"]), _line(entry["do"]), theme)
    return found


def near(wanted: str, codes: list[str]) -> list[str]:
    """Codes that may have been meant: by their letters, or by a word of theirs."""
    alike = difflib.get_close_matches(wanted, codes, 5, 0.6)
    return alike or [code for code in codes if set(wanted.split("_")) & set(code.split("_"))][:5]


def _line(text: str) -> str:
    return " ".join(text.split())
