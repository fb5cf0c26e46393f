"""Counts again, from the input topic, what a reader of the output topics must see. It imports nothing of fencepost:

    python recount_kafka.py HOST:PORT NAME CHECKPOINT/offsets counts lines

reads NAME-in, NAME-counts and NAME-lines to their ends with `read_committed`, prints lost, doubled and wrong messages
per topic as one line of JSON, and exits 1 if there is one. Every line must be there once. Of counts, every update must
be there once and in order: Spark's own log tells where each epoch ended, and the input up to there is counted again.
A transaction that was left open is wrong, too: it holds every later reader up.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

Verdict = dict[str, int]
PATIENCE_S = 30


class Topic:
    """All that a reader of one topic sees, and where it had to stop."""

    def __init__(self, servers: str, name: str) -> None:
        self.name = name
        self.messages, self.ends = read(servers, name, "read_committed")
        _, written = read(servers, name, "read_uncommitted")
        self.held = sum(written[number] != end for number, end in self.ends.items())
        """Partitions in which readers wait for the end of a transaction."""

    def rows(self) -> list[Any]:
        """The values; one that is no JSON stays what it is."""
        return [row_of(message) for message in self.messages]


def row_of(message: Message) -> Any:
    """One value."""
    try:
        return json.loads(message.value() or "")
    except ValueError:
        return message.value()


def read(servers: str, name: str, isolation: str) -> tuple[list[Message], dict[int, int]]:
    """Every message up to where a reader of this isolation gets, and that place in each partition."""
    settings = {"isolation.level": isolation, "enable.partition.eof": True, "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "recount", "fetch.wait.max.ms": 10, **settings})
    try:
        partitions = consumer.list_topics(name, timeout=PATIENCE_S).topics[name].partitions
        consumer.assign([TopicPartition(name, number, 0) for number in partitions])
        found: list[Message] = []
        ends: dict[int, int] = {}
        while len(ends) < len(partitions):
            message = consumer.poll(PATIENCE_S)
            if message is None:
                raise SystemExit(f"{name} could not be read to its end")
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[message.partition() or 0] = message.offset() or 0
            else:
                raise SystemExit(f"{name}: {error.name()}")
        return found, ends
    finally:
        consumer.close()


def epochs(log: Path, topic: str) -> list[Mapping[str, int]]:
    """Where each epoch ended, by Spark's own log: partition to the position behind its last message."""
    names = sorted(int(path.name) for path in log.iterdir() if path.name.isdigit())
    if names != list(range(len(names))):
        raise SystemExit("Spark's log has a hole: nothing could be told of single epochs")
    return [json.loads((log / str(name)).read_text().splitlines()[-1])[topic] for name in names]


def updates(source: Topic, ends: Iterable[Mapping[str, int]]) -> list[tuple[str, int]]:
    """What an exact count says after each epoch about the words in it; input that no epoch read comes in a last one."""
    counts: Counter[str] = Counter()
    waiting = {number: deque[Message]() for number in source.ends}
    for message in source.messages:
        waiting[message.partition() or 0].append(message)
    found: list[tuple[str, int]] = []
    for end in [*ends, None]:
        words: list[str] = []
        for number, messages in waiting.items():
            while messages and (end is None or (messages[0].offset() or 0) < end.get(str(number), 0)):
                words += row_of(messages.popleft())["text"].split(" ")
        counts.update(words)
        found += [(word, counts[word]) for word in dict.fromkeys(words)]
    return found


def compare(wanted: list[Any], found: list[Any]) -> Verdict:
    """Each once."""
    right, counts = set(wanted), Counter(found)
    return {
        "lost": len(right - set(counts)),
        "doubled": sum(count - 1 for one, count in counts.items() if one in right),
        "wrong": sum(count for one, count in counts.items() if one not in right),
    }


def counts_verdict(source: Topic, target: Topic, log: Path) -> Verdict:
    """Every update once; and the counts of a word only ever grow."""
    found: list[Any] = []
    by_word: dict[str, list[int]] = defaultdict(list)
    for message, row in zip(target.messages, target.rows(), strict=True):
        key = (message.key() or b"").decode(errors="replace")
        fits = isinstance(row, dict) and row.keys() == {"word", "count"} and row["word"] == key
        found.append((row["word"], row["count"]) if fits else repr(row))
        if fits:
            by_word[key].append(row["count"])
    verdict = compare(updates(source, epochs(log, source.name)), found)
    # The same count again is doubled, and counted above; a smaller one came late.
    verdict["wrong"] += sum(b < a for seen in by_word.values() for a, b in pairwise(seen))
    if not any(verdict.values()):
        total = Counter(word for row in source.rows() for word in row["text"].split(" "))
        verdict["wrong"] += {word: seen[-1] for word, seen in by_word.items()} != dict(total)
    return verdict


def lines_verdict(source: Topic, target: Topic) -> Verdict:
    """Every line once."""
    lines = [(row["id"], row["text"]) for row in source.rows()]
    found: list[Any] = []
    for row in target.rows():
        fits = isinstance(row, dict) and row.keys() == {"id", "text"}
        found.append((row["id"], row["text"]) if fits else repr(row))
    return compare(lines, found)


def main(arguments: list[str]) -> int:
    """The command line."""
    servers, name, log, *places = arguments
    source = Topic(servers, f"{name}-in")
    if not source.messages or len({row["id"] for row in source.rows()}) != len(source.messages) or source.held:
        raise SystemExit(
            "the input is empty or held up, or an id is in it twice: nothing could be told from the output"
        )
    verdicts = {}
    for place in places:
        target = Topic(servers, f"{name}-{place}")
        counted = place == "counts"
        found = counts_verdict(source, target, Path(log)) if counted else lines_verdict(source, target)
        found["wrong"] += target.held
        verdicts[place] = found
    print(json.dumps({"rows": len(source.messages), "places": verdicts}))
    return 1 if any(sum(found.values()) for found in verdicts.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
