"""Counts again, from the input topic, what readers of two tables must see. It imports nothing of fencepost:

    python recount_tables.py HOST:PORT NAME CHECKPOINT/offsets 'host=… schema=…' LOOKS [counts lines]

reads NAME-in to its end and prints, as one line of JSON, what is lost, doubled and wrong in `lines` (every line once)
and in `counts` (how often each word came); of LOOKS, the file of a reader who looked all the time, `torn` are looks
that saw something else than the whole of some epoch's end, and `back` those that saw less than one before. Spark's own
log tells where epochs ended.

    python recount_tables.py --watch 'host=… schema=…' LOOKS        until SIGTERM

is that reader: one look is one REPEATABLE READ transaction over both tables.
"""

from __future__ import annotations

import json
import runpy
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pg8000.native import Connection, DatabaseError, InterfaceError

KAFKA: dict[str, Any] = runpy.run_path(str(Path(__file__).with_name("recount_kafka.py")))
PLACES = ("counts", "lines")
PARTITIONS = 3
"""Line i is message i // 3 of partition i % 3."""
PAUSE_S = 0.05
AWAY_S = 0.5


def connected(where: str) -> tuple[Connection, str]:
    """By another client library than the sink's; with the schema."""
    words = dict(word.split("=") for word in where.split())
    place = {"host": words["host"], "port": int(words["port"]), "database": words["dbname"]}
    return Connection(words["user"], **place), words["schema"]


# --- at the end


def lines_verdict(source: Any, found: list[Any]) -> dict[str, int]:
    """Every line once."""
    wanted = [(row["id"], row["text"]) for row in source.rows()]
    verdict: dict[str, int] = KAFKA["compare"](wanted, found)
    return verdict


def counts_verdict(source: Any, found: list[Any]) -> dict[str, int]:
    """Every word of every line counted once, every word in one row."""
    wanted = Counter(word for row in source.rows() for word in row["text"].split(" "))
    seen = Counter[str]()
    for word, count in found:
        seen[word] += count
    return {
        "lost": sum((wanted - seen).values()),
        "doubled": sum((seen - wanted).values()),
        "wrong": len(found) - len(seen),
    }


# --- in between


def looks_verdict(file: Path, place: str, ends: list[Mapping[str, int]]) -> dict[str, int]:
    """Is what each look saw the whole of what there was at the end of some epoch?"""
    by_partition = [[end.get(str(number), 0) for number in range(PARTITIONS)] for end in ends]
    # A table of counts tells how many words there were; each line has three.
    whole: list[Any] = by_partition if place == "lines" else [[3 * sum(end)] for end in by_partition]
    order = {tuple(figures): number for number, figures in enumerate([[0] * len(whole[0]), *whole])}
    found = {"looks": 0, "torn": 0, "back": 0}
    last = 0
    for line in file.read_text().splitlines():
        seen = json.loads(line)[place]
        found["looks"] += any(seen)
        at = order.get(tuple(seen))
        found["torn"] += at is None
        found["back"] += at is not None and at < last
        last = last if at is None else at
    return found


def look(connection: Connection, schema: str) -> dict[str, list[int]]:
    """Both tables at one moment."""
    connection.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        lines = dict(connection.run(f"SELECT id % {PARTITIONS}, count(*) FROM {schema}.lines GROUP BY 1"))  # noqa: S608
        counts = connection.run(f"SELECT COALESCE(sum(count), 0)::bigint FROM {schema}.counts")  # noqa: S608 - ours
    finally:
        connection.run("ROLLBACK")
    return {"lines": [lines.get(number, 0) for number in range(PARTITIONS)], "counts": [counts[0][0]]}


def watch(where: str, file: Path) -> int:
    """Until SIGTERM. A server that is away, or a table that nobody has made yet, is no finding."""
    going = True

    def stop(*_: object) -> None:
        nonlocal going
        going = False

    signal.signal(signal.SIGTERM, stop)
    with file.open("a") as notes:
        while going:
            try:
                connection, schema = connected(where)
                while going:
                    notes.write(json.dumps(look(connection, schema)) + "\n")
                    notes.flush()
                    time.sleep(PAUSE_S)
            except (DatabaseError, InterfaceError, OSError):
                time.sleep(AWAY_S)
    return 0


def main(arguments: list[str]) -> int:
    """The command line."""
    if arguments[0] == "--watch":
        return watch(arguments[1], Path(arguments[2]))
    servers, name, log, where, looks, *places = arguments
    source = KAFKA["Topic"](servers, f"{name}-in")
    if not source.messages or len({row["id"] for row in source.rows()}) != len(source.messages) or source.held:
        raise SystemExit("the input is empty or held up, or an id is in it twice: nothing could be told")
    ends = KAFKA["epochs"](Path(log), f"{name}-in")
    connection, schema = connected(where)
    verdicts = {}
    for place in places or PLACES:
        columns = "id, text" if place == "lines" else "word, count"
        rows = [tuple(row) for row in connection.run(f"SELECT {columns} FROM {schema}.{place}")]  # noqa: S608 - ours
        verdicts[place] = lines_verdict(source, rows) if place == "lines" else counts_verdict(source, rows)
        verdicts[place] |= looks_verdict(Path(looks), place, ends)
    print(json.dumps({"rows": len(source.messages), "places": verdicts}))
    found = (count for verdict in verdicts.values() for what, count in verdict.items() if what != "looks")
    return 1 if any(found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
