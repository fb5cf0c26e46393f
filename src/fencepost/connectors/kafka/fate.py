"""What became of a transaction: who opened it, what the cluster remembers of it, and how it is ended by id.

    the coordinator   remembers the last transaction of an id, for about a week
    the topic         shows a read_committed consumer whether the first message of a transaction was committed
    an operator       may say so (`fencepost tx settle`), where neither can tell any more

Used by recovery, `fencepost verify` and `fencepost tx`. An error from EndTxn never says whether the transaction was
committed or lost, so the cluster is asked. Never guesses: what nobody knows is `Fate.UNKNOWN`.
"""

from __future__ import annotations

import enum
import hashlib
import logging
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from fencepost.connectors.kafka.sink import Kafka
from fencepost.contract import Asked, Examined, Holding, Stray, together, unheard
from fencepost.errors import OperatorNeeded
from fencepost.protocol.records import Epoch, Handle
from fencepost.store import Place, store_at
from fencepost.store.notes import SettledHandle, encode_note, read_note

if TYPE_CHECKING:
    from fencepost.connectors.kafka.coordinator import Coordinator

log = logging.getLogger("fencepost")

ONGOING = "Ongoing"
COMMITTED = ("PrepareCommit", "CompleteCommit")
ABORTED = ("PrepareAbort", "CompleteAbort")
UNFINISHED = (ONGOING, "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""Open, or its end is still being written to the partitions."""

LONG_S = 30.0
"""How long epochs are looked for in the topic, newest first."""


# --- who opened it: fencepost.<job>.<lineage>.<writer>.<sink>-<slot>
#
# An id belongs to one slot of one sink of one writer: no other driver or job ever opens a transaction under it.


@dataclass(frozen=True, slots=True)
class Owned:
    """What a transactional id says about its owner."""

    id: str
    prefix: str
    job: str
    lineage: str
    """The first eight characters."""
    writer: int
    sink: str
    slot: str


def transactional_id(prefix: str, job: str, lineage: str, writer: int, *, sink: str, slot: str) -> str:
    """The transactional id of one slot."""
    return f"{prefix}.{_quoted(job)}.{lineage[:8]}.{writer}.{_quoted(sink)}-{slot}"


def owner_of(transactional_id: str) -> Owned | None:
    """The owner of an id; None if it is not one of fencepost's."""
    parts = transactional_id.rsplit(".", 4)
    if len(parts) != 5 or not parts[3].isdigit() or not re.fullmatch(r"[0-9a-f]{8}", parts[2]):
        return None
    sink, dash, slot = parts[4].rpartition("-")
    if not dash:
        return None
    return Owned(transactional_id, parts[0], unquote(parts[1]), parts[2], int(parts[3]), unquote(sink), slot)


def _quoted(text: str) -> str:
    """Without dots, which separate the parts."""
    return quote(text, safe=":").replace(".", "%2E")


# --- what the cluster says of it


@dataclass(frozen=True, slots=True)
class Transaction:
    """What the coordinator says about one id."""

    id: str
    state: str
    pid: int
    epoch: int
    started_ms: int
    timeout_ms: int
    partitions: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Held:
    """A transaction as a partition sees it: read_committed consumers wait at its first message."""

    topic: str
    partition: int
    pid: int
    epoch: int
    first: int
    """The offset of its first message here."""
    last_ms: int
    """When its producer last wrote here, by the producer's clock."""


class Silent(Exception):
    """No answer in time: what happened is not known."""


class Denied(Exception):
    """The cluster refused. The message is the error's name."""


class Fate(enum.Enum):
    """What became of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """The coordinator has moved on to another transaction, or the id has expired: only the topic itself can tell."""


def fate_of(body: Mapping[str, Any], found: Transaction | None) -> Fate:
    """Judge by producer id, epoch and start time.

    The broker raises the epoch by one when it ends a transaction (EndTxn 5, or a timeout). A producer that was
    initialized again has an even higher epoch, and says nothing about the transaction before.
    """
    if found is None or found.pid != body["producer_id"] or found.epoch - body["producer_epoch"] not in (0, 1):
        return Fate.UNKNOWN
    if found.started_ms != body["started_ms"]:
        # A producer that slept through the end of its transaction may open another in the same epoch (EndTxn ≤ 4).
        return Fate.UNKNOWN
    if found.state == ONGOING:
        return Fate.OPEN if found.epoch == body["producer_epoch"] else Fate.UNKNOWN
    if found.state in COMMITTED:
        return Fate.COMMITTED
    return Fate.ABORTED if found.state in ABORTED else Fate.UNKNOWN


HOLDING = {
    Fate.COMMITTED: Holding.HELD,
    Fate.ABORTED: Holding.MISSING,
    Fate.OPEN: Holding.MISSING,
    Fate.UNKNOWN: Holding.UNKNOWN,
}
SEEN_AS = {
    Fate.ABORTED: "the broker aborted its transaction",
    Fate.OPEN: "its transaction is open, or consumers are still blocked by it",
    Fate.UNKNOWN: "neither the coordinator nor the topic can tell any more",
}
WORDS = {"committed": Fate.COMMITTED, "lost": Fate.ABORTED}
"""What an operator may say."""


def by_coordinator(coordinator: Coordinator, body: Mapping[str, Any]) -> Fate:
    """What the coordinator remembers."""
    return fate_of(body, coordinator.describe([body["transactional_id"]])[body["transactional_id"]])


def by_topic(coordinator: Coordinator, body: Mapping[str, Any]) -> Fate:
    """What the topic itself shows, once the coordinator has forgotten."""
    if body["first_record"] is None:
        return Fate.UNKNOWN
    with coordinator.witness() as look_for:
        return look_for(*body["first_record"])


def end(coordinator: Coordinator, body: Mapping[str, Any], *, commit: bool) -> Fate:
    """End it if it is open, then check: the coordinator's state counts, not the answer to the request."""
    for _ in range(20):
        now = by_coordinator(coordinator, body)
        if now is not Fate.OPEN:
            return now
        if coordinator.end(body, commit=commit) is not None:
            time.sleep(0.05)  # it is already being ended, and its markers are being written
    return Fate.OPEN


# --- what an operator said: one file per handle in the checkpoint. Handle ids are never reused, so it applies to one.


def settle(lineage: Place, handle: str, word: str) -> bool:
    """Record it, once; False if something was recorded before."""
    return store_at(lineage).create(_name(handle), encode_note(SettledHandle(handle, word)))


def said(lineage: Place, handle: str) -> Fate:
    """What was recorded; UNKNOWN if nothing was."""
    note = read_note(store_at(lineage), _name(handle), SettledHandle)
    return WORDS.get(note.outcome if note else "", Fate.UNKNOWN)


def _name(handle: str) -> str:
    return f"settled/{hashlib.sha256(handle.encode()).hexdigest()[:32]}"


# --- committed according to its coordinator, but still open on a partition: its rows would never become visible
#
# A broker (Kafka 4.3, KRaft) that was killed between the two came back in this state, and stayed in it: the coordinator
# had recorded the commit, had not yet written the marker to the partition, and after the restart believed that it had.
# The outcome of the same producer's next transaction would then decide about these rows too, even if it is an abort.


def see_through(coordinator: Coordinator, body: Mapping[str, Any]) -> None:
    """Check that a committed transaction has ended on every partition; write the markers that are missing.

    Only while the coordinator remembers this very transaction, both before and after the partitions are asked: then
    what they hold open is this one, and nobody has opened another under its id.
    """
    places = [(topic, number) for topic, numbers in body.get("partitions", {}).items() for number in numbers]
    for _ in range(40):
        found = coordinator.describe([body["transactional_id"]])[body["transactional_id"]]
        if found is None or fate_of(body, found) is not Fate.COMMITTED:
            return
        if found.state == "PrepareCommit":
            time.sleep(0.05)
            continue
        try:
            held = [
                one
                for one in coordinator.held(places)
                if (one.pid, one.epoch) == (body["producer_id"], body["producer_epoch"])
            ]
        except Denied:
            log.debug(
                "no READ on the topics of %s: cannot check whether it has ended on its partitions",
                body["transactional_id"],
            )
            return
        if not held or coordinator.describe([body["transactional_id"]])[body["transactional_id"]] != found:
            return
        where = ", ".join(f"{one.topic} {one.partition} at offset {one.first}" for one in held)
        log.warning(
            "transaction %s is committed but still open on %s: writing its commit markers",
            body["transactional_id"],
            where,
        )
        try:
            coordinator.mark_committed(held, found.epoch)
        except Denied as error:
            raise OperatorNeeded(
                "hanging_transaction",
                f"Consumers are blocked at {where}: the broker committed transaction {body['transactional_id']} but "
                f"lost its commit markers there, and we lack permission to write them ({error}).",
                safe="Safe: the rows are in the topic, decided and committed; they only have to be made visible. Do "
                "not abort them (kafka-transactions.sh would).",
                next="Grant ALTER on the cluster, which writing markers requires, then start the job again.",
            ) from error


# --- what the cluster holds of decided epochs, for checks that end nothing and write no marker


def examine(coordinator: Coordinator, sink: Kafka, job: str, asked: Asked) -> Examined:
    """What became of every decided transaction, and which committed ones nobody decided."""
    handles = [handle for found in asked.epochs.values() for handle in found]
    try:
        identity = identity_of(coordinator, sink.own_topic)
        found = coordinator.describe({handle.body["transactional_id"] for handle in handles})
        fates = {handle.id: fate_of(handle.body, found[handle.body["transactional_id"]]) for handle in handles}
        fates |= dict.fromkeys(_hanging(coordinator, handles, found, fates), Fate.OPEN)
        fates |= _by_topic(coordinator, [one for one in handles if fates[one.id] is Fate.UNKNOWN])
        strays = tuple(_strays(coordinator, job, sink.name, asked))
    except Silent as error:
        return unheard(asked, f"it does not answer ({error})")
    except Denied as error:
        return unheard(asked, f"it denies the request ({error})")
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


def _by_topic(coordinator: Coordinator, handles: Iterable[Handle]) -> dict[str, Fate]:
    """For transactions that the coordinator no longer remembers."""
    asked = [handle for handle in handles if handle.body["first_record"] is not None]
    if not asked:
        return {}
    until = time.monotonic() + LONG_S
    fates = {}
    with coordinator.witness() as look_for:
        for handle in reversed(asked):
            if time.monotonic() < until:
                fates[handle.id] = look_for(*handle.body["first_record"])
    return fates


def _hanging(
    coordinator: Coordinator,
    handles: Iterable[Handle],
    found: Mapping[str, Transaction | None],
    fates: Mapping[str, Fate],
) -> list[str]:
    """Committed according to the coordinator, but still open on a partition: see `see_through`."""
    ended = [
        one
        for one in handles
        if fates[one.id] is Fate.COMMITTED
        and (now := found[one.body["transactional_id"]])
        and now.state == "CompleteCommit"
    ]
    places = {(topic, n) for one in ended for topic, numbers in one.body["partitions"].items() for n in numbers}
    try:
        held = {(one.pid, one.epoch) for one in coordinator.held(sorted(places))} if places else set()
    except Denied:
        return []  # no READ on the topics
    hanging = [one for one in ended if (one.body["producer_id"], one.body["producer_epoch"]) in held]
    after = coordinator.describe(
        {one.body["transactional_id"] for one in hanging}
    )  # if it changed, the next one was opened meanwhile
    return [one.id for one in hanging if after[one.body["transactional_id"]] == found[one.body["transactional_id"]]]


def _strays(coordinator: Coordinator, job: str, sink: str, asked: Asked) -> Iterable[Stray]:
    """Committed transactions of this lineage that are newer than all the ledger knows, or of a writer it never saw."""
    began: dict[str, int] = {}
    for handle in (handle for found in asked.epochs.values() for handle in found):
        name = handle.body["transactional_id"]
        began[name] = max(began.get(name, 0), handle.body["started_ms"])
    owned = [one for name in coordinator.ids_in(COMMITTED) if (one := owner_of(name)) is not None]
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
        words = sorted({SEEN_AS[fates[one.id]] for one in handles if fates[one.id] in SEEN_AS})
        if words:
            found[epoch] = "; ".join(words)
    return found
