"""Counts again, from the input files, what state and sinks of a stateful job must hold. Imports nothing of fencepost:

    python recount_state.py IN-FOLDER STATES.json counts:sqlite:counts.db windows:files:windows-folder …

prints lost, doubled and wrong per place, and for its state (`state-counts` …), as one line of JSON; exits 1 if there is
one. `workloads/state_reader.py` made STATES.json. Every input row is a second later than the one before it, the
watermark is 5 s behind the last even one, and a place says what it holds:

    counts    per key how many rows there were, and the sum of their values; the state is the same
    drawn     the same of random numbers: the sum is whatever the state says it is
    sums      every row once, with a random number, the how-manieth of its key it was, and the sum so far, which must go
              on from row to row; the state has the last ones
    windows   per 10 s and key how many rows, and the sum of their values: those that ended, the state has the others
    joined    every even row with what the odd row 13 after it found (a value that 3 does not divide), and those that
              nothing was found for in 20 s; the state has the even rows of the last 25 s, the odd ones of the last 5 s
"""

from __future__ import annotations

import json
import runpy
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]
Verdict = dict[str, int]

_plain = runpy.run_path(str(Path(__file__).with_name("recount.py")))
rows_verdict, keys_verdict, in_sqlite = _plain["rows_verdict"], _plain["keys_verdict"], _plain["in_sqlite"]

COLUMNS = {
    "counts": "key, count, total",
    "drawn": "key, count, total",
    "sums": "id, key, drawn, count, total",
    "windows": "start, key, count, total",
    "joined": "id, key, found",
}
DELAY, WINDOW, BEFORE, WITHIN = 5, 10, 13, 20


def lines_in(folder: Path) -> list[dict[str, Any]]:
    """Every row of every JSON file that a reader of the folder sees."""
    files = sorted(file for file in folder.glob("*.json") if not file.name.startswith((".", "_")))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def seen(place: str) -> list[Row]:
    """What a reader of a place sees."""
    what, kind, where = place.split(":", 2)
    if kind == "sqlite":
        return list(in_sqlite(where, COLUMNS[what], what))
    return [tuple(line.get(name) for name in COLUMNS[what].split(", ")) for line in lines_in(Path(where))]


class Input:
    """Everything that arrived."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self.lines = lines
        self.by_key: dict[str, list[int]] = defaultdict(list)
        for line in lines:
            self.by_key[line["key"]].append(line["value"])
        self.even = [line for line in lines if line["id"] % 2 == 0]
        self.odd = [line for line in lines if line["id"] % 2 and line["value"] % 3]
        # Three branches of the plan have one, and Spark goes by the slowest.
        self.watermark = min(max(line["at"] for line in each) for each in (lines, self.even, self.odd)) - DELAY

    def totals(self) -> dict[str, Row]:
        """Per key."""
        return {key: (len(values), sum(values)) for key, values in self.by_key.items()}

    def windows(self) -> tuple[list[Row], list[Row]]:
        """Per time and key: those that ended, and the others."""
        found: dict[tuple[int, str], list[int]] = defaultdict(list)
        for line in self.lines:
            found[line["at"] // WINDOW * WINDOW, line["key"]].append(line["value"])
        rows = [(start, key, len(values), sum(values)) for (start, key), values in found.items()]
        ended = [row for row in rows if row[0] + WINDOW <= self.watermark]
        return ended, [row for row in rows if row not in ended]

    def joined(self) -> tuple[list[Row], list[Row]]:
        """What the join has said, and what it remembers."""
        found = {line["id"] - BEFORE: line["value"] for line in self.odd}
        forgotten = {line["id"] for line in self.even if line["at"] + WITHIN < self.watermark}
        said = [
            (line["id"], line["key"], found.get(line["id"]))
            for line in self.even
            if line["id"] in found or line["id"] in forgotten
        ]
        left = [("left", line["id"], line["key"]) for line in self.even if line["id"] not in forgotten]
        right = [("right", line["id"] - BEFORE, line["value"]) for line in self.odd if line["at"] >= self.watermark]
        return said, left + right


def chain_breaks(found: list[Row]) -> int:
    """Rows whose count or sum does not go on from the row of their key before."""
    wrong = 0
    last: dict[str, Row] = {}
    for _, key, drawn, count, total in sorted(found, key=lambda row: (row[1], row[3])):
        before = last.get(key, (0, 0))
        wrong += (count, total) != (before[0] + 1, before[1] + drawn)
        last[key] = (count, total)
    return wrong


def verdicts(given: Input, place: str, states: dict[str, list[Row]]) -> tuple[Verdict, Verdict]:
    """What is lost, doubled or wrong in one place, and in its state."""
    what = place.partition(":")[0]
    found, state = seen(place), [tuple(row) for row in states[what]]
    if what == "counts":
        return keys_verdict(given.totals(), found), keys_verdict(given.totals(), state)
    counts = {key: (count,) for key, (count, _) in given.totals().items()}
    if what == "drawn":
        known = {key: total for key, _, total in state}
        wanted = {key: (count, known.get(key)) for key, (count,) in counts.items()}
        return keys_verdict(wanted, found), keys_verdict(counts, [row[:2] for row in state])
    if what == "sums":
        sink: Verdict = rows_verdict([(line["id"], line["key"]) for line in given.lines], [row[:2] for row in found])
        sink["wrong"] += chain_breaks(found)
        sums: dict[str, int] = defaultdict(int)
        for _, key, drawn, _, _ in found:
            sums[key] += drawn
        return sink, keys_verdict({key: (count, sums[key]) for key, (count,) in counts.items()}, state)
    said, kept = given.windows() if what == "windows" else given.joined()
    return rows_verdict(said, found), rows_verdict(kept, state)


def main(arguments: list[str]) -> int:
    """The command line."""
    lines = lines_in(Path(arguments[0]))
    if not lines or len({line["id"] for line in lines}) != len(lines):
        raise SystemExit("the input is empty, or an id is in it twice: nothing could be told from the output")
    given, states = Input(lines), json.loads(Path(arguments[1]).read_text())
    found: dict[str, Verdict] = {}
    for place in arguments[2:]:
        found[place], found[f"state-{place}"] = verdicts(given, place, states)
    print(json.dumps({"rows": len(lines), "places": found}))
    return 1 if any(sum(each.values()) for each in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
