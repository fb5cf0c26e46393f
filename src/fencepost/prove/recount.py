"""Counts again, from the input files, what the sinks must hold. It imports nothing of fencepost on purpose:

    python recount.py IN-FOLDER totals:totals.db rows:rows-folder table:rows.db

prints lost, doubled and wrong per place as one line of JSON each, and exits 1 if there is one. In totals, lost and
doubled count rows that are missing from a key's count, or that it has too many; wrong are keys whose count is right
and whose sum is not, or that the input does not have.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

Verdict = dict[str, int]


def rows_in(folder: Path) -> list[tuple[Any, ...]]:
    """Every row of every JSON file that a reader of the folder sees."""
    files = sorted(file for file in folder.glob("*.json") if not file.name.startswith((".", "_")))
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [(row["id"], row["key"], row["value"]) for row in found]


def rows_verdict(wanted: list[tuple[Any, ...]], found: list[tuple[Any, ...]]) -> Verdict:
    """Each row once."""
    right, counts = set(wanted), Counter(found)
    return {
        "lost": len(right - set(counts)),
        "doubled": sum(count - 1 for row, count in counts.items() if row in right),
        "wrong": sum(count for row, count in counts.items() if row not in right),
    }


def totals_verdict(wanted: list[tuple[Any, ...]], found: list[tuple[Any, ...]]) -> Verdict:
    """Each row counted once in its key's total, each key there once."""
    counts: Counter[str] = Counter()
    sums: dict[str, int] = defaultdict(int)
    for _, key, value in wanted:
        counts[key] += 1
        sums[key] += value
    lost = doubled = wrong = 0
    for key, count, total in found:
        lost += max(0, counts[key] - count)
        doubled += max(0, count - counts[key])
        wrong += count == counts[key] and total != sums[key]
    seen = Counter(key for key, _, _ in found)
    lost += sum(count for key, count in counts.items() if key not in seen)
    wrong += sum(count - 1 for count in seen.values()) + sum(key not in sums for key in seen)
    return {"lost": lost, "doubled": doubled, "wrong": wrong}


def query(database: str, sql: str) -> list[tuple[Any, ...]]:
    """Read-only: a checker must not make the file that it looks for."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def verdict(wanted: list[tuple[Any, ...]], place: str) -> Verdict:
    """What is lost, doubled or wrong in one place."""
    kind, _, where = place.partition(":")
    if kind == "totals":
        return totals_verdict(wanted, query(where, "SELECT key, count, total FROM totals"))
    if kind == "table":
        return rows_verdict(wanted, query(where, "SELECT id, key, value FROM rows"))
    return rows_verdict(wanted, rows_in(Path(where)))


def main(arguments: list[str]) -> int:
    """The command line."""
    wanted = rows_in(Path(arguments[0]))
    if not wanted or len({row[0] for row in wanted}) != len(wanted):
        raise SystemExit("the input is empty, or an id is in it twice: nothing could be told from the output")
    verdicts = {place: verdict(wanted, place) for place in arguments[1:]}
    print(json.dumps({"rows": len(wanted), "places": verdicts}))
    return 1 if any(sum(found.values()) for found in verdicts.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
