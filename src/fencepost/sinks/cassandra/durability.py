"""Does a table keep what it acknowledged, when one node is killed? Never touches a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CONSISTENCIES = {
    "LOCAL_QUORUM": "LOCAL_SERIAL",
    "QUORUM": "SERIAL",
    "ALL": "SERIAL",
}
"""Levels that a quorum reader is sure to see, each with the one of the mark's conditional writes."""

SHORTEST_MEMORY_S = 3600
"""Of gc_grace_seconds: how long an older driver may sleep and still do no harm when it wakes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a cluster says about a table's durability."""

    replication: Mapping[str, str]
    """As in system_schema.keyspaces."""
    durable_writes: bool
    commitlog_sync: str | None
    """Of the node that was asked; None if it may not be read."""
    gc_grace_s: int


def weakness(facts: Facts, consistency: str) -> str | None:
    """How the table could forget, in words; None if it takes more than one node's end.

    The mistake people make: trusting an acknowledgement. By default a node acknowledges first and writes its log to
    disk up to ten seconds later, so one replica's word is worth nothing.
    """
    if not facts.durable_writes:
        return "its keyspace has durable_writes = false, so a node that restarts has lost what was in its memory"
    if facts.gc_grace_s < SHORTEST_MEMORY_S:
        return (
            f"it has gc_grace_seconds = {facts.gc_grace_s}: after that it forgets that a value was set to NULL, and an "
            "older driver that wakes later could bring the value back"
        )
    if acknowledged_by(facts.replication, consistency) > 1 or facts.commitlog_sync in {"batch", "group"}:
        return None
    if facts.commitlog_sync is None:
        return (
            "a write is acknowledged by one replica, and whether that one writes it to disk first cannot be read "
            "(SELECT on system_views.settings is not granted)"
        )
    return (
        f"a write is acknowledged by one replica, which has commitlog_sync: {facts.commitlog_sync} and writes its log "
        "to disk later; if it is killed before, rows of a finished epoch are lost"
    )


def acknowledged_by(replication: Mapping[str, str], consistency: str) -> int:
    """How many replicas have a row when it counts as written; for a level of one datacenter, in the smallest."""
    factors = [full_replicas(value) for key, value in replication.items() if key != "class"]
    if not factors:
        return 1
    return {
        "LOCAL_QUORUM": min(factors) // 2 + 1,
        "QUORUM": sum(factors) // 2 + 1,
        "ALL": sum(factors),
    }[consistency]


def full_replicas(factor: str) -> int:
    """`3`, or `3/1`: three, one of them transient."""
    total, _, transient = factor.partition("/")
    if not total.isdigit():
        return 1
    return int(total) - (int(transient) if transient.isdigit() else 0)
