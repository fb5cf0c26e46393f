"""What Spark says of a running query's input: how many records it has read, and how far behind its sources it is."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

BEHIND = "maxOffsetsBehindLatest"
"""By which Spark's Kafka source says its lag, in records of its slowest partition."""


class Intake:
    """Counts over all queries of one run."""

    def __init__(self) -> None:
        self.records = 0
        self.lag: int | None = None
        self._newest = ""

    def look(self, query: Any) -> None:
        """Read what is new. Spark keeps the last hundred reports: look more often than that many epochs pass."""
        reports = query._jsq.recentProgress()
        newest = self._newest
        for index in reversed(range(len(reports))):
            report = reports[index]
            at = str(report.timestamp())
            if at <= self._newest:
                break
            newest = max(newest, at)
            self.records += int(report.numInputRows())
            if index == len(reports) - 1:
                self.lag = _lag(report)
        self._newest = newest


def _lag(report: Any) -> int | None:
    found = [source.metrics().get(BEHIND) for source in report.sources()]
    return max((int(behind) for behind in found if behind is not None), default=None)


def lag_by_topic(query: Any) -> dict[str, int]:
    """How many records each topic has beyond the newest epoch, over all partitions; nothing before the first report.

    From Spark's newest report, which was made anyway: the broker is not asked again.
    """
    report = query._jsq.lastProgress()
    if report is None:
        return {}
    found: dict[str, int] = {}
    for source in json.loads(report.json())["sources"]:
        for topic, behind in _behind(source.get("latestOffset"), source.get("endOffset")).items():
            found[topic] = max(behind, found.get(topic, 0))  # two scans of one topic are not two backlogs
    return found


def _behind(latest: Any, end: Any) -> dict[str, int]:
    """By topic; nothing for sources that do not count by topic and partition."""
    found: Counter[str] = Counter()
    try:
        for topic, partitions in latest.items():
            for partition, newest in partitions.items():
                found[topic] += max(0, newest - end[topic][partition])
    except (AttributeError, KeyError, TypeError):
        return {}
    return dict(found)
