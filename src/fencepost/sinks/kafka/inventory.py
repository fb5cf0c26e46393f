"""Whose is an open transaction, may it be ended by hand, and what will recovery do with it? Pure.

    decided    the open decision of its ledger names it        commit it, never abort it
    orphan     an older writer's, and no decision names it     abort it, never commit it
    running?   the latest writer's, not decided                may be decided at any moment: leave it
    unknown    no ledger of its lineage was given              may be decided: leave it

The word of the ledger counts only if it was read after the coordinator was asked: a decision may fall in between.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fencepost.errors import BadConfig, Where
from fencepost.protocol.order import State
from fencepost.protocol.records import Epoch, Handle
from fencepost.sinks.kafka import ids
from fencepost.sinks.kafka.coordinator import ONGOING, UNFINISHED, Held, Transaction
from fencepost.sinks.kafka.outcome import Fate, fate

SLACK_MS = 60_000
"""Brokers look for overdue transactions every ten seconds, and their clock is not ours."""


class Verdict(enum.Enum):
    """What the ledger says of a transaction."""

    DECIDED = "decided"
    ORPHAN = "orphan"
    RUNNING = "running?"
    UNKNOWN = "unknown"
    ENDED = "ended"
    """Neither open nor named by a decision."""
    FOREIGN = "foreign"
    """Not one of fencepost's ids."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the ledger of a checkpoint said when it was read."""

    path: str
    state: State


@dataclass(frozen=True, slots=True)
class Row:
    """One transaction with all that is known of it."""

    id: str
    owned: ids.Owned | None
    verdict: Verdict
    found: Transaction | None = None
    """None: the coordinator does not know the id, or was not heard."""
    ledger: Ledger | None = None
    """Of its lineage, if it was given."""
    handle: Handle | None = None
    """By which a decision names it."""
    epoch: Epoch | None = None
    done: bool = False
    """That decision is no longer the open one: everything of it is committed."""
    heard: bool = True
    """The coordinator was asked, and answered."""

    @property
    def is_open(self) -> bool:
        """May readers be waiting for its end?"""
        return self.found is not None and self.found.state == ONGOING

    @property
    def fate(self) -> Fate | None:
        """What the coordinator says of a decided transaction; None if it is not decided, or nobody was asked."""
        return fate(self.handle.body, self.found) if self.handle is not None and self.heard else None

    def left_ms(self, now_ms: float) -> float | None:
        """Until the broker aborts it by itself; None if it is not open."""
        return self.found.started_ms + self.found.timeout_ms - now_ms if self.found and self.is_open else None


def check_distinct(ledgers: Iterable[Ledger]) -> None:
    """Two checkpoints of one lineage: one of them is a copy, and its word is worth nothing."""
    seen: dict[str, Ledger] = {}
    for one in ledgers:
        other = seen.setdefault(one.state.lineage_id, one)
        if other is not one and other.path != one.path:
            raise BadConfig(
                "two_copies",
                f"Two of the checkpoints are copies of one lineage; the other one is {other.path!r}.",
                where=Where(job=one.state.lineage.job, path=one.path),
                next="Give only the one that the job runs on.",
            )


def judge(name: str, found: Transaction | None, ledgers: Iterable[Ledger], *, heard: bool = True) -> Row:
    """Put the coordinator's answer and the ledger side by side."""
    owned = ids.read(name)
    if owned is None:
        return Row(name, None, Verdict.FOREIGN, found, heard=heard)
    ledger = next((one for one in ledgers if _is_of(one.state, owned)), None)
    if ledger is None:
        return Row(name, owned, Verdict.UNKNOWN, found, heard=heard)
    state = ledger.state
    if named := _named(state, name, found):
        handle, epoch = named
        done = state.open is None or handle not in state.open.handles
        return Row(name, owned, Verdict.DECIDED, found, ledger, handle, epoch, done, heard)
    verdict = Verdict.UNKNOWN  # of a writer that this ledger has not seen: it is a copy, or went back in time
    if found is None or found.state != ONGOING:
        verdict = Verdict.ENDED
    elif owned.writer < state.writer or (state.sealed and owned.writer == state.writer):
        verdict = Verdict.ORPHAN  # only the latest writer can still decide, and nobody in a sealed ledger
    elif owned.writer == state.writer:
        verdict = Verdict.RUNNING
    return Row(name, owned, verdict, found, ledger, heard=heard)


def due(ledgers: Iterable[Ledger]) -> list[str]:
    """Ids that open decisions name: they are of interest even if no transaction is open under them."""
    return [handle.body["id"] for one in ledgers for handle in decided(one.state)]


def decided(state: State) -> tuple[Handle, ...]:
    """Kafka's handles in the open decision."""
    return tuple(handle for handle in state.open.handles if _is_kafka(handle)) if state.open else ()


def earlier(row: Row) -> Handle | None:
    """The open decision's handle under this id, where it names another transaction than the one that is there now."""
    if row.ledger is None or row.handle is not None:
        return None
    return next((one for one in decided(row.ledger.state) if one.body["id"] == row.id), None)


def in_the_way(row: Row, others: Mapping[str, Transaction | None]) -> list[Handle]:
    """Handles that must be committed before this one may be, if it is to be committed by hand.

    Recovery takes a decision back if a sink lost rows that were not kept, and looks for visible ones only in the sinks
    that it commits earlier. So whatever is committed out of turn would be written a second time.
    """
    assert row.ledger is not None
    assert row.handle is not None
    state = row.ledger.state
    assert state.open is not None
    return [
        other
        for other in state.open.handles
        if other.sink != row.handle.sink
        and state.lineage.sinks[other.sink].shape == "transaction"
        and not other.kept
        and not (_is_kafka(other) and fate(other.body, others.get(other.body["id"])) is Fate.COMMITTED)
    ]


def overdue(found: Iterable[Transaction], now_ms: float, slack_ms: float = SLACK_MS) -> list[Transaction]:
    """Transactions that their coordinator should have ended long ago."""
    return [
        one
        for one in found
        if one.state in UNFINISHED and one.started_ms > 0 and now_ms > one.started_ms + one.timeout_ms + slack_ms
    ]


def abandoned(
    before: Iterable[Held], unfinished: Iterable[Transaction], after: Iterable[Held], older_than_ms: float
) -> list[Held]:
    """Open on a partition, and no coordinator knows of it: nobody will ever end it (KIP-664).

    Seen before and after the coordinators were asked, so it was there while they did not know it. The age is for ids
    that we may not see: theirs have ended by then.
    """
    known = {(one.pid, *place) for one in unfinished for place in one.partitions}
    still = {(one.topic, one.partition, one.pid, one.first) for one in after}
    return [
        one
        for one in before
        if (one.topic, one.partition, one.pid, one.first) in still
        and (one.pid, one.topic, one.partition) not in known
        and one.last_ms < older_than_ms
    ]


def _is_of(state: State, owned: ids.Owned) -> bool:
    return (owned.job, owned.lineage) == (state.lineage.job, state.lineage_id[:8])


def _is_kafka(handle: Handle) -> bool:
    return {"id", "pid", "epoch", "started_ms", "timeout_ms", "end_version", "first"} <= handle.body.keys()


def _named(state: State, name: str, found: Transaction | None) -> tuple[Handle, Epoch] | None:
    """The handle that names this very transaction: the open decision's, else the newest that is retained."""
    for handle in decided(state):
        forgotten = found is None or found.state != ONGOING
        if handle.body["id"] == name and (forgotten or fate(handle.body, found) is Fate.OPEN):
            assert state.open is not None
            return handle, state.open.epoch
    opened = state.open.number if state.open else None
    for number, decision in reversed(state.decisions):
        for handle in decision.handles:
            same = _is_kafka(handle) and handle.body["id"] == name and fate(handle.body, found) is not Fate.UNKNOWN
            if same and number != opened:
                return handle, decision.epoch
    return None
