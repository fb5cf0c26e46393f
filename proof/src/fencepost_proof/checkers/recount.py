"""Counts again, from the input files, what the sinks must hold. It imports nothing of fencepost on purpose:

    python recount.py IN-FOLDER totals:sqlite:totals.db rows:files:rows-folder rows:postgres:'host=… table=…' …

prints lost, doubled and wrong per place as one line of JSON, and exits 1 if there is one. A place says what it holds:

    rows     every row once
    evens    every row with an even value once
    totals   per key how many rows there were, and the sum of their values
    newest   per key how many rows there were, and the highest id
    counts   per key how many rows there were

Of keys, lost and doubled count rows that are missing from a key's count, or that it has too many; wrong are keys whose
count is right and whose other figure is not, or that the input does not have.

    python recount.py --watch ROWS-PER-EPOCH PLACE …        until SIGTERM

looks again and again, as a reader who does not wait for the end: `torn` counts looks at a place that shows an epoch
whole or not at all (all but Cassandra, files and the even rows) which saw half of one, `back` those in which something
had gone back.
"""

from __future__ import annotations

import json
import runpy
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]
Verdict = dict[str, int]

COLUMNS = {
    "rows": "id, key, value",
    "evens": "id, key, value",
    "totals": "key, count, total",
    "newest": "key, count, newest",
    "counts": "key, count",
}


ATOMIC = frozenset({"postgres", "mariadb", "redis", "delta", "iceberg", "duckdb"})
"""Where a reader sees an epoch whole or not at all."""


# --- what a reader sees


def rows_in(folder: Path) -> list[Row]:
    """Every row of every JSON file that a reader of the folder sees."""
    files = sorted(file for file in folder.glob("*.json") if not file.name.startswith((".", "_")))
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [(row["id"], row["key"], row["value"]) for row in found]


def in_sqlite(database: str, columns: str, table: str) -> list[Row]:
    """Read-only: a checker must not make the file that it looks for."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        return connection.execute(f"SELECT {columns} FROM {table}").fetchall()  # noqa: S608 - ours
    finally:
        connection.close()


Reader = Callable[[str, str], list[Row]]
READERS: dict[str, Reader] = runpy.run_path(str(Path(__file__).with_name("readers.py")))["READERS"]


def seen(place: str) -> list[Row]:
    """What a reader of a place sees."""
    what, kind, where = place.split(":", 2)
    if kind == "files":
        return rows_in(Path(where))
    if kind == "sqlite":
        return in_sqlite(where, COLUMNS[what], what)
    return READERS[kind](where, COLUMNS[what])


# --- what it should see


def rows_verdict(wanted: list[Row], found: list[Row]) -> Verdict:
    """Each row once."""
    right, counts = set(wanted), Counter(found)
    return {
        "lost": len(right - set(counts)),
        "doubled": sum(count - 1 for row, count in counts.items() if row in right),
        "wrong": sum(count for row, count in counts.items() if row not in right),
    }


def keys_verdict(wanted: dict[str, Row], found: list[Row]) -> Verdict:
    """Each row counted once in its key's row, each key there once."""
    lost = doubled = wrong = 0
    for key, *figures in found:
        count, *rest = wanted.get(key, (0,))
        lost += max(0, count - figures[0])
        doubled += max(0, figures[0] - count)
        wrong += count == figures[0] and rest != figures[1:]
    keys = Counter(row[0] for row in found)
    lost += sum(figures[0] for key, figures in wanted.items() if key not in keys)
    wrong += sum(count - 1 for count in keys.values()) + sum(key not in wanted for key in keys)
    return {"lost": lost, "doubled": doubled, "wrong": wrong}


def verdict(rows: list[Row], place: str) -> Verdict:
    """What is lost, doubled or wrong in one place."""
    what = place.partition(":")[0]
    if what in ("rows", "evens"):
        return rows_verdict([row for row in rows if what == "rows" or row[2] % 2 == 0], seen(place))
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        by_key.setdefault(row[1], []).append(row)
    figure: Callable[[list[Row]], Row] = {
        "totals": lambda mine: (sum(row[2] for row in mine),),
        "newest": lambda mine: (max(row[0] for row in mine),),
        "counts": lambda mine: (),
    }[what]
    return keys_verdict({key: (len(mine), *figure(mine)) for key, mine in by_key.items()}, seen(place))


# --- what it must never see


class Watch:
    """One place, looked at again and again."""

    def __init__(self, place: str, per_epoch: int) -> None:
        self.place = place
        self.what, self.kind, _ = place.split(":", 2)
        self.per_epoch = per_epoch
        self.last: dict[Any, int] = {}
        self.found = {"looks": 0, "torn": 0, "back": 0}

    def look(self) -> None:
        """Once; a server that is away is no finding."""
        try:
            rows = seen(self.place)
        except Exception:  # noqa: BLE001 - the server was killed, or nobody has made the table yet
            return
        now = {row[0]: 1 if self.what in ("rows", "evens") else row[1] for row in rows}
        self.found["looks"] += bool(rows)
        if self.kind in ATOMIC and self.what != "evens" and sum(now.values()) % self.per_epoch:
            self.found["torn"] += 1
        if any(now.get(key, 0) < before for key, before in self.last.items()):
            self.found["back"] += 1
        self.last = now


def watch(per_epoch: int, places: list[str]) -> int:
    """Until SIGTERM; then say what was seen."""
    going = True

    def stop(*_: object) -> None:
        nonlocal going
        going = False

    signal.signal(signal.SIGTERM, stop)
    watches = [Watch(place, per_epoch) for place in places]
    while going:
        for each in watches:
            each.look()
        time.sleep(0.02)
    print(json.dumps({f"{each.what} in {each.kind}": each.found for each in watches}))
    return 0


def main(arguments: list[str]) -> int:
    """The command line."""
    if arguments[0] == "--watch":
        return watch(int(arguments[1]), arguments[2:])
    wanted = rows_in(Path(arguments[0]))
    if not wanted or len({row[0] for row in wanted}) != len(wanted):
        raise SystemExit("the input is empty, or an id is in it twice: nothing could be told from the output")
    verdicts = {place: verdict(wanted, place) for place in arguments[1:]}
    print(json.dumps({"rows": len(wanted), "places": verdicts}))
    return 1 if any(sum(found.values()) for found in verdicts.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
