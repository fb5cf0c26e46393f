"""Names of tables and columns in MySQL. Never lets a name become a statement: all of them are quoted."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 64
"""Characters."""


def quoted(name: str) -> str:
    """An identifier, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def listed(names: Iterable[str], of: str = "") -> str:
    """Columns in a statement; those of one table, if it is named."""
    return ", ".join(f"{of}.{quoted(name)}" if of else quoted(name) for name in names)


def problem_of_name(name: str) -> str | None:
    """Why MySQL would not take it, or would take it for another."""
    if not 0 < len(name) <= LONGEST:
        return f"MySQL's names have 1 to {LONGEST} characters"
    if name.endswith(" ") or any(character == "\0" or character > "\uffff" for character in name):
        return "MySQL's names do not end with a blank, and have no NUL or emoji"
    return None
