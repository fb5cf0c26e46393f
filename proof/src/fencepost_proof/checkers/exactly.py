"""Compares what a sink's readers see with the source. Run by path, it imports nothing of fencepost on purpose:

    python exactly.py numbers.txt sqlite:out.db files:out-folder

prints lost, doubled and wrong rows per place, and exits 1 if there is one.
"""

from __future__ import annotations

import json
import runpy
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

Row = tuple[int, ...]
Reader = Callable[[str, str], list[Any]]
MARKERS_S = 10.0
"""A broker answers a commit before its markers are in the partitions: on a busy machine the rows come seconds later."""
_OF_TABLES = runpy.run_path(str(Path(__file__).with_name("readers.py")))
READERS: dict[str, Reader] = _OF_TABLES["READERS"]
VERSIONS: dict[str, Callable[[str, str], Iterator[list[Row]]]] = _OF_TABLES["VERSIONS"]


def expected(numbers: list[int]) -> list[Row]:
    """Every record once, with its running sum."""
    return [(i, n, s) for i, (n, s) in enumerate(zip(numbers, accumulate(numbers), strict=True))]


def seen(place: str) -> list[Row]:
    """What an ordinary reader of this place sees."""
    kind, _, where = place.partition(":")
    if kind == "sqlite":
        if not Path(where).exists():
            return []
        with sqlite3.connect(where) as database:
            found = database.execute("SELECT id, value, sum FROM sums").fetchall()
        database.close()
        return [tuple(row) for row in found]
    if kind == "kafka":
        return [(row["id"], row["value"], row["sum"]) for row in _in_topic(*where.rsplit("/", 1))]
    if kind in READERS:
        return _in_server(kind, where)
    if kind == "lines":
        files = [file for file in sorted(Path(where).glob("*")) if file.suffix != ".tmp"]
        return [tuple(json.loads(line)) for file in files for line in file.read_text().splitlines()]
    files = sorted(Path(where).glob("*.json")) if kind == "files" else _in_manifests(Path(where))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [(row["id"], row["value"], row["sum"]) for row in rows]


def versions(place: str) -> list[list[Row]] | None:
    """What the place held after each commit that changed it, sorted; None if nobody can go back there."""
    kind, _, where = place.partition(":")
    if kind not in VERSIONS:
        return None
    found = [sorted(rows) for rows in VERSIONS[kind](where, "id, value, sum")]
    return found[1:] if found and not found[0] else found  # Delta's first version only makes the table


def _in_server(kind: str, where: str) -> list[Row]:
    if kind == "redis":  # the key is "id:value", the counter what was added to it
        return [(*map(int, key.split(":")), count) for key, count in READERS[kind](where, "")]
    found: list[Row] = READERS[kind](where, "id, value, sum")
    return found


def compare(wanted: list[Row], found: list[Row]) -> dict[str, int]:
    """Count what is missing, what is there more than once, and what should not be there at all."""
    counts, right = Counter(found), set(wanted)
    return {
        "lost": sum(1 for row in wanted if row not in counts),
        "doubled": sum(count - 1 for row, count in counts.items() if row in right),
        "wrong": sum(count for row, count in counts.items() if row not in right),
    }


def _in_manifests(folder: Path) -> list[Path]:
    names = []
    for manifest in sorted((folder / "_fencepost" / "manifests").glob("*.json")):
        names += [file["name"] for file in json.loads(manifest.read_text())["files"]]
    return [folder / name for name in names]


def _in_topic(servers: str, topic: str) -> list[dict[str, int]]:
    """Every committed message. A transaction that was left open holds a reader up; then rows are missing here."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition  # noqa: PLC0415 - only where there is a topic

    wanted = {"isolation.level": "read_committed", "enable.partition.eof": True, "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "exactly", "fetch.wait.max.ms": 10, **wanted})
    try:
        waiting = set(consumer.list_topics(topic, timeout=20).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in waiting])
        found = []
        while waiting:
            message = consumer.poll(20)
            if message is None:
                raise TimeoutError(f"{topic} could not be read to its end")
            error = message.error()
            if error is None:
                found.append(json.loads(message.value() or ""))
            elif error.code() == KafkaError._PARTITION_EOF:
                waiting.discard(message.partition())
            else:
                raise ConnectionError(error.name())
        return found
    finally:
        consumer.close()


def main(arguments: list[str]) -> int:
    """The command line."""
    numbers = [int(line) for line in Path(arguments[0]).read_text().split()]
    wrong = 0
    for place in arguments[1:]:
        verdict = compare(expected(numbers), seen(place))
        until = time.monotonic() + MARKERS_S
        while verdict["lost"] and place.startswith("kafka:") and time.monotonic() < until:
            time.sleep(0.5)
            verdict = compare(expected(numbers), seen(place))
        print(place, json.dumps(verdict))
        wrong += sum(verdict.values())
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
