"""What Spark says of a running query's input: how many records it has read, and how far behind its sources it is."""

from __future__ import annotations

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
