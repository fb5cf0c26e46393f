"""How long a job rests between epochs, where its user has not said so.

An epoch costs nearly the same CPU time for one record as for hundreds, so a job with little to do saves much by waiting
a moment for more of them. Records per epoch are the rate times the time an epoch takes: the rest follows both. Never
longer than `MOST_S`, and an `interval`, a `min_pause` or a trigger of the user's own switches it off.

    records in the epoch, or rows out     up to 10    50    100    1,000 and more
    rest, ms                                    50    10      5    less than 1

How many records an epoch has read, Kafka's offsets say, and those of other sources do not. So an epoch that took longer
than `LONG_S` has a shorter rest, too, whatever it wrote: a tenth of that time at most.

An idle job looks for new records every `LOOK_MS` instead of Spark's 10 ms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from fencepost.store.spark_log import source_lines

MOST_S: Final = 0.05
LONG_S: Final = 0.5
LOOK: Final = "spark.sql.streaming.pollingDelay"
LOOK_MS: Final = 50
SETTINGS: Final[Mapping[str, str]] = {LOOK: f"{LOOK_MS}ms"}
"""Of a query that rests; a value of the user's own wins."""

WORDS: Final = f"a pause of up to {MOST_S * 1000:.0f} ms after a small epoch, new records checked every {LOOK_MS} ms"


def rest_s(records: int, seconds: float = 0.0) -> float:
    """How long to wait after an epoch that read, or wrote, so many and took so long."""
    return MOST_S * min(1.0, 10 / max(1, records), LONG_S / max(LONG_S, seconds))


def records(before: str, after: str) -> int:
    """How many records are between two texts of `offsets`, in the source that has most; 0 if none says so.

    Not the sum of all: each branch that reads a topic for itself has a line there.
    """
    old = source_lines(before) if before else {}
    return max((_between(old.get(name, ""), text) for name, text in source_lines(after).items()), default=0)


def _between(before: str, after: str) -> int:
    """By partition of a topic: `{"orders": {"0": 12, "1": 9}}`."""
    old, new = _partitions(before), _partitions(after)
    return sum(max(0, end - old.get(partition, end)) for partition, end in new.items())


def _partitions(text: str) -> dict[tuple[str, str], int]:
    try:
        topics: Any = json.loads(text or "{}")
        return {(topic, number): int(end) for topic, ends in topics.items() for number, end in ends.items()}
    except (AttributeError, TypeError, ValueError):  # the offsets of another source
        return {}
