"""Where an epoch ends in its topics: noted in its handle, and read by `fencepost as-of`.

    a small epoch   the delivery reports say where the last message of each partition is
    a large one     the brokers are asked once, after the flush: where do the partitions end now?

Nothing of the next epoch is in a topic by then. So a read_committed reader who stops before these offsets sees the rows
of all epochs up to this one, and none of a later one: transaction markers have offsets too, and what aborted attempts
left has some, but such a reader sees neither.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fencepost.connectors.kafka.fate import Denied, Silent, identity_of
from fencepost.connectors.kafka.sink import Kafka
from fencepost.contract import Asked, Instant
from fencepost.protocol.records import Epoch, Handle

if TYPE_CHECKING:
    from fencepost.connectors.kafka.coordinator import Coordinator

Partition = tuple[str, int]
"""Topic and number."""
Ends = Mapping[str, Mapping[int, int]]
"""By topic and partition, the offset after the last message."""
Report = Callable[[Any, Any], object]
"""What the client calls with an error, or None, and the message."""

MOST = 2_000
"""How many messages of an epoch are looked at one by one: about half a millisecond, less than asking the brokers."""
HOW_TO_READ = "Spark's endingOffsets; any other reader, with isolation.level=read_committed, stops before them"


class Deliveries:
    """Collects from delivery reports where each partition ends; gives up if there are too many."""

    def __init__(self) -> None:
        self._left = MOST
        self._is_whole = True
        self._found: dict[tuple[Any, Any], int | None] = {}

    def reporter(self, messages: int, reports: dict[Any, Any]) -> Report:
        """What to call for each of the next messages; it also fills `reports`, the first message of each outcome."""
        self._left -= messages
        if self._left < 0:
            self._is_whole = False
            return reports.setdefault
        found = self._found

        def report(error: Any, message: Any) -> None:
            reports.setdefault(error, message)
            found[message.topic(), message.partition()] = message.offset()  # in order within a partition

        return report

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int] | None:
        """Where these partitions end; None if that is not known of all. The client may not know the offset of a message
        that it had to send twice.
        """
        offsets = {one: self._found.get(one) for one in partitions}
        known = {one: offset + 1 for one, offset in offsets.items() if offset is not None}
        return known if self._is_whole and len(known) == len(offsets) else None


def by_topic(ends: Mapping[Partition, int]) -> dict[str, dict[int, int]]:
    """Sorted, as people read them."""
    found: dict[str, dict[int, int]] = {}
    for (topic, number), end in sorted(ends.items()):
        found.setdefault(topic, {})[number] = end
    return found


def noted(ends: Ends) -> dict[str, dict[str, int]]:
    """As a handle's body has them: JSON has only texts as keys."""
    return {topic: {str(number): end for number, end in found.items()} for topic, found in ends.items()}


def instant(asked: Asked, epoch: Epoch) -> Instant:
    """What the decisions alone say; the cluster was not asked, so it is never exact."""
    if epoch not in asked.epochs:
        oldest = min(asked.epochs, default=None)
        below = "" if oldest is None else f"; it is unknown below epoch {oldest}"
        return Instant(why=f"epoch {epoch}, the last that wrote to it, is no longer retained in the ledger{below}")
    if not any(_ends_in(handle) for handle in asked.epochs[epoch]):
        return Instant(why=f"where epoch {epoch} ends was not noted: by an older fencepost, or the brokers did not say")
    return told(Instant(why="the cluster was not asked whether it still has these topics"), _ends_at(asked, epoch))


def as_of(coordinator: Coordinator, sink: Kafka, asked: Asked, epoch: Epoch) -> Instant:
    """The same, if the cluster still has what lies before these offsets."""
    found = instant(asked, epoch)
    if not found.text:
        return found
    ends = _ends_at(asked, epoch)
    try:
        identity = identity_of(coordinator, sink.own_topic)
        for topic in [name for name in ends if name == sink.own_topic or asked.whole]:
            there = coordinator.topic(topic)
            # Of a topic of which everything is noted, the other partitions were not there yet, or empty.
            ends[topic] = {number: ends[topic].get(number, 0) for number in range(there.partitions if there else 0)}
        starts = by_topic(coordinator.starts([(topic, number) for topic, known in ends.items() for number in known]))
        kept = {topic: coordinator.setting("TOPIC", topic, "cleanup.policy") for topic in ends}
    except Silent as error:
        return replace(found, heard=False, why=f"it does not answer ({error}), so these offsets were not checked")
    except Denied as error:
        return replace(found, heard=False, why=f"it denies the request ({error}), so these offsets were not checked")
    why = next(_complaints(sink, asked, ends, starts, kept), "")
    found = told(replace(found, identity=identity), ends)
    facts = {**found.facts, "starts": noted(starts)}
    return replace(found, exact=not why, why=why or HOW_TO_READ, facts=facts)


def _complaints(sink: Kafka, asked: Asked, ends: Ends, starts: Ends, kept: Mapping[str, str | None]) -> Iterator[str]:
    """Why a reader up to these offsets would not see what was there."""
    if sink.topic_column is not None and not asked.whole:
        oldest = min(asked.epochs)
        yield f"rows go to topics that a column names: partitions that no epoch since {oldest} wrote to are unknown"
    for topic, known in ends.items():
        if not known:
            yield f"topic {topic!r} does not exist"
        elif kept[topic] is None:
            yield f"it does not say whether it compacts topic {topic!r}, which removes rows that were there"
        elif "compact" in str(kept[topic]):
            yield f"topic {topic!r} is compacted: a row that was there is removed once a later one has its key"
        for number, end in known.items():
            if starts[topic][number] > end:
                yield f"retention has removed all that was in partition {number} of topic {topic!r}"


def told(found: Instant, ends: Ends) -> Instant:
    """With these offsets, as a text and as facts."""
    text = json.dumps(noted(ends), separators=(",", ":"))
    return replace(found, text=text, facts={**found.facts, "ends": noted(ends), "isolation": "read_committed"})


def _ends_at(asked: Asked, epoch: Epoch) -> dict[str, dict[int, int]]:
    """The newest of each partition, up to this epoch."""
    ends: dict[Partition, int] = {}
    for number, handles in asked.epochs.items():
        for handle in handles if number <= epoch else ():
            for partition, end in _ends_in(handle).items():
                ends[partition] = max(end, ends.get(partition, 0))
    return by_topic(ends)


def _ends_in(handle: Handle) -> dict[Partition, int]:
    ends: Mapping[str, Mapping[str, int]] = handle.body.get("ends") or {}
    return {(topic, int(number)): end for topic, found in ends.items() for number, end in found.items()}
