"""What a cluster holds of decided epochs, for a look that ends nothing: the coordinator's word, then the topic's.

The coordinator remembers the last transaction of an id; of older ones the first message in the topic tells, until
retention takes it. Never writes a marker that is missing: recovery does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from math import inf

from fencepost.protocol.records import Epoch, Handle
from fencepost.sinks.holding import Asked, Examined, Holding, Stray, together, unheard
from fencepost.sinks.kafka import ids
from fencepost.sinks.kafka.coordinator import COMMITTED, Coordinator, Denied, Silent, Transaction
from fencepost.sinks.kafka.outcome import Fate, fate
from fencepost.sinks.kafka.settled import said
from fencepost.sinks.kafka.sink import KafkaSink
from fencepost.sinks.kafka.witness import first_seen, witness

LONG_S = 30.0
"""After so long no more epochs are looked for in the topic; the newest come first."""

HOLDING = {
    Fate.COMMITTED: Holding.HELD,
    Fate.ABORTED: Holding.MISSING,
    Fate.OPEN: Holding.MISSING,
    Fate.UNKNOWN: Holding.UNKNOWN,
}
WORDS = {
    Fate.ABORTED: "the broker aborted its transaction",
    Fate.OPEN: "its transaction is open, or readers are still held up by it",
    Fate.UNKNOWN: "neither the coordinator nor the topic can tell any more",
}


def examine(coordinator: Coordinator, sink: KafkaSink, job: str, asked: Asked) -> Examined:
    """Ask for every decided transaction what became of it, and for committed ones that nobody decided."""
    handles = [handle for found in asked.epochs.values() for handle in found]
    try:
        identity = identity_of(coordinator, sink.columns.topic)
        found = coordinator.describe({handle.body["id"] for handle in handles})
        fates = {handle.id: fate(handle.body, found[handle.body["id"]]) for handle in handles}
        fates |= dict.fromkeys(_hanging(coordinator, handles, found, fates), Fate.OPEN)
        fates |= _by_topic(coordinator, sink, [one for one in handles if fates[one.id] is Fate.UNKNOWN])
        strays = tuple(_strays(coordinator, job, sink.name, asked))
    except Silent as error:
        return unheard(asked, f"it does not answer ({error})")
    except Denied as error:
        return unheard(asked, f"it does not allow the question ({error})")
    for handle in handles:
        if fates[handle.id] is Fate.UNKNOWN and asked.folder is not None:
            fates[handle.id] = said(asked.folder, handle.id)
    return Examined(
        holdings={epoch: together(HOLDING[fates[one.id]] for one in found) for epoch, found in asked.epochs.items()},
        identity=identity,
        strays=strays,
        reasons=_reasons(asked, fates),
    )


def identity_of(coordinator: Coordinator, topic: str | None) -> str:
    """The cluster's id and the topic's; "" if there is no such topic."""
    cluster = coordinator.cluster_id()
    if topic is None:
        return cluster
    found = coordinator.topic(topic)
    return "" if found is None else f"{cluster}/{topic}/{found.id}"


def _by_topic(coordinator: Coordinator, sink: KafkaSink, handles: Iterable[Handle]) -> dict[str, Fate]:
    """Where the coordinator has gone on."""
    asked = [handle for handle in handles if handle.body["first"] is not None]
    if not asked:
        return {}
    compacted = {topic: coordinator.is_compacted(topic) for topic in {handle.body["first"][0] for handle in asked}}
    until = time.monotonic() + LONG_S
    fates = {}
    with witness(sink.servers) as consumer:
        for handle in reversed(asked):
            topic, partition, offset = handle.body["first"]
            if time.monotonic() < until:
                fates[handle.id] = first_seen(consumer, (topic, partition, offset), compacted=compacted[topic])
    return fates


def _hanging(
    coordinator: Coordinator,
    handles: Iterable[Handle],
    found: Mapping[str, Transaction | None],
    fates: Mapping[str, Fate],
) -> list[str]:
    """Committed for the coordinator, and still open on a partition: see `markers`."""
    ended = [
        one
        for one in handles
        if fates[one.id] is Fate.COMMITTED and (now := found[one.body["id"]]) and now.state == "CompleteCommit"
    ]
    places = {(topic, n) for one in ended for topic, numbers in one.body["partitions"].items() for n in numbers}
    try:
        held = {(one.pid, one.epoch) for one in coordinator.held(sorted(places))} if places else set()
    except Denied:
        return []  # no READ on the topics
    hanging = [one for one in ended if (one.body["pid"], one.body["epoch"]) in held]
    after = coordinator.describe({one.body["id"] for one in hanging})  # else its producer has opened the next one
    return [one.id for one in hanging if after[one.body["id"]] == found[one.body["id"]]]


def _strays(coordinator: Coordinator, job: str, sink: str, asked: Asked) -> Iterable[Stray]:
    """Committed transactions of this lineage after all that the ledger knows, or of a writer that it does not know."""
    began: dict[str, int] = {}
    for handle in (handle for found in asked.epochs.values() for handle in found):
        name = handle.body["id"]
        began[name] = max(began.get(name, 0), handle.body["started_ms"])
    owned = [one for name in coordinator.ids_in(COMMITTED) if (one := ids.read(name)) is not None]
    mine = {one.id: one for one in owned if (one.job, one.sink, one.lineage) == (job, sink, asked.lineage[:8])}
    newest = max(began.values(), default=inf)
    for name, found in coordinator.describe(mine).items():
        if found is None or found.state not in COMMITTED:
            continue
        if mine[name].writer > asked.last or found.started_ms > began.get(name, newest):
            told = {f"{name}:{found.pid}:{found.epoch - bumped}:{found.started_ms}" for bumped in (0, 1)}
            yield Stray(f"a committed transaction of writer {mine[name].writer} ({name})", frozenset(told))


def _reasons(asked: Asked, fates: Mapping[str, Fate]) -> dict[Epoch, str]:
    found = {}
    for epoch, handles in asked.epochs.items():
        words = sorted({WORDS[fates[one.id]] for one in handles if fates[one.id] in WORDS})
        if words:
            found[epoch] = "; ".join(words)
    return found
