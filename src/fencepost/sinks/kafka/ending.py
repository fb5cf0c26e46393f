"""Ends a transaction by name, and asks what became of one; for the driver's recovery and for `fencepost tx` alike."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from fencepost.kafka_servers import Servers
from fencepost.sinks.kafka.coordinator import Coordinator
from fencepost.sinks.kafka.outcome import Fate, fate
from fencepost.sinks.kafka.witness import testify


def by_coordinator(coordinator: Coordinator, body: Mapping[str, Any]) -> Fate:
    """What the coordinator remembers."""
    return fate(body, coordinator.describe([body["id"]])[body["id"]])


def by_topic(coordinator: Coordinator, servers: Servers, body: Mapping[str, Any]) -> Fate:
    """What the topic itself shows, where the coordinator has forgotten."""
    if body["first"] is None:
        return Fate.UNKNOWN
    topic, partition, offset = body["first"]
    return testify(servers, (topic, partition, offset), compacted=coordinator.is_compacted(topic))


def end(coordinator: Coordinator, body: Mapping[str, Any], *, commit: bool) -> Fate:
    """End it if it is open, and look again: the coordinator's word counts, not the answer to the request."""
    for _ in range(20):
        now = by_coordinator(coordinator, body)
        if now is not Fate.OPEN:
            return now
        if coordinator.end(body, commit=commit) is not None:
            time.sleep(0.05)  # the markers of an end that is under way are being written
    return Fate.OPEN
