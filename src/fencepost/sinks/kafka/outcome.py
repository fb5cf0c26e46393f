"""What became of a decided transaction, read off the coordinator's answer. Pure.

An error of EndTxn never tells committed from lost; the coordinator's memory does, as long as nobody used the id again.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from fencepost.sinks.kafka.coordinator import ABORTED, COMMITTED, ONGOING, Transaction


class Fate(enum.Enum):
    """What the coordinator knows of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """Its memory has gone on to another transaction, or the id has expired: only the topic itself can tell."""


def fate(body: Mapping[str, Any], found: Transaction | None) -> Fate:
    """Judge by producer id, epoch and start time.

    The broker raises the epoch by one when it ends a transaction (EndTxn 5, a timeout); a producer that was
    initialised anew has a higher one still, and says nothing about the transaction before.
    """
    if found is None or found.pid != body["pid"] or found.epoch - body["epoch"] not in (0, 1):
        return Fate.UNKNOWN
    if found.started_ms != body["started_ms"]:
        # A writer that slept through the end of its transaction may open another one in the same epoch (EndTxn ≤ 4).
        return Fate.UNKNOWN
    if found.state == ONGOING:
        return Fate.OPEN if found.epoch == body["epoch"] else Fate.UNKNOWN
    if found.state in COMMITTED:
        return Fate.COMMITTED
    return Fate.ABORTED if found.state in ABORTED else Fate.UNKNOWN
