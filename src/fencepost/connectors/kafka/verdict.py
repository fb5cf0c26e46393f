"""Who owns an open transaction, may it be ended by hand, and what will recovery do with it?

    decided    the open decision of its ledger names it        commit it, never abort it
    orphan     an older writer's, and no decision names it     abort it, never commit it
    running?   the latest writer's, not decided                may be decided at any moment: leave it
    unknown    no ledger of its lineage was given              may be decided: leave it

The ledger counts only if it was read after the coordinator was asked, because a decision may be made in between. Never
writes to a ledger: a running driver is not fenced, and recovery finds everything as it was.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from fencepost.connectors.kafka import failure, fate
from fencepost.connectors.kafka.coordinator import Coordinator
from fencepost.connectors.kafka.fate import (
    ONGOING,
    UNFINISHED,
    Denied,
    Fate,
    Held,
    Owned,
    Silent,
    Transaction,
    fate_of,
    owner_of,
)
from fencepost.connectors.kafka.servers import Servers
from fencepost.connectors.kafka.sink import LONGEST_MS
from fencepost.errors import UNCHANGED, BadConfig, FencepostError, Refused, Retryable, TargetRefused, Where
from fencepost.protocol.order import State
from fencepost.protocol.records import Epoch, Handle

KAFKA_BODY = {
    "transactional_id",
    "producer_id",
    "producer_epoch",
    "started_ms",
    "timeout_ms",
    "end_txn_version",
    "first_record",
}
"""What a handle of this sink has in it, whatever the job called the sink."""
PATIENCE_S = 6.0
SLACK_MS = 60_000
"""Brokers check for overdue transactions every ten seconds, and their clocks differ from ours."""


class Verdict(enum.Enum):
    """What the ledger says about a transaction."""

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
class Case:
    """One transaction with everything known about it."""

    id: str
    owned: Owned | None
    verdict: Verdict
    found: Transaction | None = None
    """None: the coordinator does not know the id, or did not answer."""
    ledger: Ledger | None = None
    """Its lineage's, if given."""
    handle: Handle | None = None
    """The one by which a decision names it."""
    epoch: Epoch | None = None
    done: bool = False
    """That decision is no longer open: everything in it is committed."""
    heard: bool = True
    """The coordinator was asked, and answered."""

    @property
    def is_open(self) -> bool:
        """May consumers be waiting for its end?"""
        return self.found is not None and self.found.state == ONGOING

    @property
    def fate(self) -> Fate | None:
        """What the coordinator says about a decided transaction; None if it is not decided or there was no answer."""
        return fate_of(self.handle.body, self.found) if self.handle is not None and self.heard else None

    def left_ms(self, now_ms: float) -> float | None:
        """How long until the broker aborts it; None if it is not open."""
        return self.found.started_ms + self.found.timeout_ms - now_ms if self.found and self.is_open else None

    @property
    def earlier(self) -> Handle | None:
        """The open decision's handle with this id, if it names a different transaction than the cluster has."""
        if self.ledger is None or self.handle is not None:
            return None
        return next((one for one in decided(self.ledger.state) if one.body["transactional_id"] == self.id), None)

    def safe_to_do(self) -> str:
        """What an operator may do, in one sentence."""
        if self.verdict is Verdict.DECIDED:
            return self._safe_if_decided()
        if self.verdict is Verdict.UNKNOWN and self.ledger is not None:
            return "Leave it: this checkpoint has never seen its writer; give the checkpoint that the job runs on."
        return {
            Verdict.ORPHAN: "Abort it (tx abort), or start the job, which aborts it. Never commit it.",
            Verdict.RUNNING: "Leave it: a running driver may be about to decide it. If the driver is dead, the next "
            "start of the job aborts it.",
            Verdict.UNKNOWN: "Leave it; pass its job's --checkpoint to see whether it is decided.",
            Verdict.ENDED: "Nothing to do.",
            Verdict.FOREIGN: "Not one of fencepost's: ask its owner.",
        }[self.verdict]

    def _safe_if_decided(self) -> str:
        if self.done:
            return "Check again: the ledger says that its epoch is done."
        assert self.handle is not None
        kept = self.handle.kept
        again = "its kept rows are rewritten" if kept else "its epoch reruns if none of it is visible"
        return {
            None: "Start the job, or commit it (tx commit) once the broker answers. Never abort it.",
            Fate.OPEN: "Commit it (tx commit), or start the job, which commits it. Never abort it.",
            Fate.COMMITTED: "Nothing to do: it is committed, and the next start records that.",
            Fate.ABORTED: f"Start the job: the broker aborted it, and {again}.",
            Fate.UNKNOWN: "The coordinator has forgotten it: tx show asks the topic.",
        }[self.fate]

    def at_next_start(self, now: Fate | None) -> str:
        """What recovery will do with it; `now` is what became of a decided one, by coordinator or topic."""
        if self.handle is None:
            return {
                Verdict.ORPHAN: "Abort it. Its epoch was never decided and reruns.",
                Verdict.RUNNING: "Abort it, unless the running driver decides it first; then commit it.",
                Verdict.UNKNOWN: "Not known without its checkpoint.",
                Verdict.ENDED: "Nothing.",
                Verdict.FOREIGN: "Nothing: it is not one of fencepost's.",
            }[self.verdict]
        if self.done:
            return "Nothing: its epoch is done."
        return {
            None: "Ask the coordinator what became of it, and commit it if it is open.",
            Fate.OPEN: f"Commit it, then record in the ledger that epoch {self.epoch} is done.",
            Fate.COMMITTED: f"Nothing in Kafka: it is committed. The ledger records that epoch {self.epoch} is done.",
            Fate.ABORTED: self.if_lost(),
            Fate.UNKNOWN: "Stop with outcome_unknown: neither the coordinator nor the topic can tell any more.",
        }[now]

    def if_lost(self) -> str:
        """What recovery does about a decided transaction that was aborted."""
        assert self.handle is not None
        if self.handle.kept:
            return f"Rewrite its {self.handle.rows} rows from the kept files, in a new transaction, and commit that."
        return (
            f"Its rows were not kept (keep_rows=False): void the decision and rerun epoch {self.epoch}, if none of it "
            "is visible in any sink; otherwise stop with partly_lost."
        )

    def may_commit(self) -> Handle:
        """The handle, if the open decision names it: anything else is rewritten, and would then be duplicated."""
        if self.handle is not None and not self.done:
            return self.handle
        ended = self.found.state if self.found else "forgotten"
        reasons = {
            Verdict.DECIDED: f"The ledger says that its epoch {self.epoch} is done: there is nothing to commit.",
            Verdict.ORPHAN: "No decision names it: its epoch reruns, so committing it would duplicate the rows.",
            Verdict.RUNNING: "No decision names it yet: only its driver may decide.",
            Verdict.ENDED: f"No decision names it, and it has ended: {ended}.",
            Verdict.FOREIGN: "It is not one of fencepost's.",
            Verdict.UNKNOWN: "This checkpoint has never seen its writer: it is a copy, or older than the transaction.",
        }
        raise Refused("not_decided", reasons[self.verdict], safe=UNCHANGED, next=self.safe_to_do())

    def may_abort(self, *, accept_loss: bool) -> Transaction:
        """Never one that is or may be decided, unless the operator accepts the loss."""
        if self.verdict is Verdict.FOREIGN:
            raise Refused(
                "foreign",
                "It is not one of fencepost's.",
                safe=UNCHANGED,
                next="Ask its owner; Kafka's own tool is kafka-transactions.sh.",
            )
        if self.verdict is Verdict.DECIDED and not accept_loss:
            raise Refused(
                "decided",
                f"It is decided: epoch {self.epoch} of the ledger names it.",
                safe=UNCHANGED,
                next=f"{self.safe_to_do()} To abort it anyway and lose its rows: --accept-loss --yes.",
            )
        if self.verdict is Verdict.RUNNING and not accept_loss:
            raise Refused(
                "may_be_decided",
                "It belongs to the latest writer: if that driver is running, it may decide this epoch while we abort "
                "it.",
                safe=UNCHANGED,
                next="Leave it; if the driver is dead, the next start of the job aborts it. To abort it now, even at "
                "the risk of losing rows: --accept-loss --yes.",
            )
        if self.verdict is Verdict.UNKNOWN and not accept_loss:
            raise Refused(
                "may_be_decided",
                "It may be decided: no checkpoint of its job was given, or the one given has never seen its writer.",
                safe=UNCHANGED,
                next="Pass --checkpoint DIR of the job that opened it. If that folder is lost: --accept-loss --yes.",
            )
        if self.found is None or not self.is_open:
            state = self.found.state if self.found else "forgotten by the coordinator"
            raise Refused(
                "not_open", f"It is not open: {state}.", safe=UNCHANGED, next="Nothing: there is nothing to abort."
            )
        return self.found


def check_distinct(ledgers: Iterable[Ledger]) -> None:
    """Refuse two checkpoints of one lineage: one of them is a copy, and cannot be trusted."""
    seen: dict[str, Ledger] = {}
    for one in ledgers:
        other = seen.setdefault(one.state.lineage_id, one)
        if other is not one and other.path != one.path:
            raise BadConfig(
                "two_copies",
                f"Two of the checkpoints are copies of one lineage; the other one is {other.path!r}.",
                where=Where(job=one.state.lineage.job, path=one.path),
                next="Pass only the one that the job runs on.",
            )


def judge(name: str, found: Transaction | None, ledgers: Iterable[Ledger], *, heard: bool = True) -> Case:
    """Compare the coordinator's answer with the ledger."""
    owned = owner_of(name)
    if owned is None:
        return Case(name, None, Verdict.FOREIGN, found, heard=heard)
    ledger = next((one for one in ledgers if _is_of(one.state, owned)), None)
    if ledger is None:
        return Case(name, owned, Verdict.UNKNOWN, found, heard=heard)
    state = ledger.state
    if named := _named(state, name, found):
        handle, epoch = named
        done = state.open is None or handle not in state.open.handles
        return Case(name, owned, Verdict.DECIDED, found, ledger, handle, epoch, done, heard)
    verdict = Verdict.UNKNOWN  # a writer that this ledger has not seen: the ledger is a copy, or went back in time
    if found is None or found.state != ONGOING:
        verdict = Verdict.ENDED
    elif owned.writer < state.writer or (state.sealed and owned.writer == state.writer):
        verdict = Verdict.ORPHAN  # only the latest writer can still decide, and nobody in a sealed ledger
    elif owned.writer == state.writer:
        verdict = Verdict.RUNNING
    return Case(name, owned, verdict, found, ledger, heard=heard)


def _is_of(state: State, owned: Owned) -> bool:
    return (owned.job, owned.lineage) == (state.lineage.job, state.lineage_id[:8])


def _is_kafka(handle: Handle) -> bool:
    return handle.body.keys() >= KAFKA_BODY


def _named(state: State, name: str, found: Transaction | None) -> tuple[Handle, Epoch] | None:
    """The handle that names this very transaction: from the open decision, else from the newest retained one."""
    for handle in decided(state):
        forgotten = found is None or found.state != ONGOING
        if handle.body["transactional_id"] == name and (forgotten or fate_of(handle.body, found) is Fate.OPEN):
            assert state.open is not None
            return handle, state.open.epoch
    opened = state.open.number if state.open else None
    for number, decision in reversed(state.decisions):
        for handle in decision.handles:
            same = (
                _is_kafka(handle)
                and handle.body["transactional_id"] == name
                and fate_of(handle.body, found) is not Fate.UNKNOWN
            )
            if same and number != opened:
                return handle, decision.epoch
    return None


def due(ledgers: Iterable[Ledger]) -> list[str]:
    """Ids that open decisions name: they matter even if no transaction is open under them."""
    return [handle.body["transactional_id"] for one in ledgers for handle in decided(one.state)]


def decided(state: State) -> tuple[Handle, ...]:
    """Kafka's handles in the open decision."""
    return tuple(handle for handle in state.open.handles if _is_kafka(handle)) if state.open else ()


def _not_open(case: Case, handle: Handle, now: Fate) -> FencepostError:
    """Decided, but there is nothing left to commit."""
    if now is Fate.ABORTED:
        return Refused(
            "aborted",
            f"It is decided, but the broker aborted it: it was open longer than {handle.body['timeout_ms']} ms.",
            safe=UNCHANGED if handle.kept else "The ledger is unchanged; the rows of this epoch are not kept.",
            next=f"Start the job. Recovery will do this: {case.if_lost()}",
        )
    return failure.unknown(handle)


def in_the_way(case: Case, others: Mapping[str, Transaction | None]) -> list[Handle]:
    """Handles that must be committed before this one may be committed by hand.

    Recovery voids a decision if a sink lost rows that were not kept, and looks for visible rows only in the sinks that
    it commits earlier. So whatever is committed out of order would be duplicated.
    """
    assert case.ledger is not None
    assert case.handle is not None
    state = case.ledger.state
    assert state.open is not None
    return [
        other
        for other in state.open.handles
        if other.sink != case.handle.sink
        and state.lineage.sinks[other.sink].shape == "transaction"
        and not other.kept
        and not (_is_kafka(other) and fate_of(other.body, others.get(other.body["transactional_id"])) is Fate.COMMITTED)
    ]


# --- hanging transactions, of any program


@dataclass(frozen=True, slots=True, kw_only=True)
class Hanging:
    """What was found, and how much could not be checked."""

    late: list[Transaction]
    """Past their timeout, and not ended by their coordinator."""
    lost: list[Held]
    """Open on a partition, and unknown to every coordinator."""
    unfinished: int
    topics: int
    unread: int
    """How many topics we are not allowed to read."""


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
    """Open on a partition, but unknown to every coordinator: nobody will ever end it (KIP-664).

    Seen both before and after the coordinators were asked, so it was open while they did not know it. The minimum age
    is for ids that we are not allowed to see: their transactions have ended by then.
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


# --- a cluster, on behalf of an operator


class Cluster:
    """Asks the coordinator, and the topics for what it has forgotten."""

    def __init__(self, servers: Servers) -> None:
        self.coordinator = Coordinator(servers, patience=PATIENCE_S)

    def cases(self, read: Callable[[], list[Ledger]]) -> list[Case]:
        """Open transactions, and decided ones that should be open but are not."""
        found = self.coordinator.describe(self.coordinator.open_ids())
        found = {name: one for name, one in found.items() if one is not None and one.state == ONGOING}
        ledgers = read()
        found |= self.coordinator.describe(name for name in due(ledgers) if name not in found)
        cases = [judge(name, one, ledgers) for name, one in found.items()]
        return [case for case in cases if case.fate is not Fate.COMMITTED]  # committed is normal between decisions

    def look(self, name: str, read: Callable[[], list[Ledger]]) -> Case:
        """One transaction: asks the coordinator first, then reads the ledger."""
        given = bool(read())
        found = self.coordinator.describe([name])[name]
        case = judge(name, found, read())
        if found is None and case.handle is None:
            raise BadConfig(
                "unknown_transaction",
                f"Neither the coordinator nor a ledger knows transaction {name!r}.",
                safe=UNCHANGED,
                next="List the open ones: `fencepost tx list --all`. Kafka forgets an id a week after its last use.",
            )
        if given and case.owned and case.ledger is None:
            raise BadConfig(
                "another_lineage",
                f"This is not the checkpoint of job {case.owned.job}, lineage {case.owned.lineage}.",
                safe=UNCHANGED,
                next="Pass the checkpoint of the job that opened the transaction; the id in its `metadata` file begins "
                "with the lineage.",
            )
        return case

    def fate_of(self, handle: Handle, found: Transaction | None = None) -> Fate:
        """What became of a decided transaction: from the coordinator, else from the topic."""
        now = fate_of(handle.body, found)
        return fate.by_topic(self.coordinator, handle.body) if now is Fate.UNKNOWN else now

    def to_commit(self, case: Case) -> Handle | None:
        """The handle that may be committed now; None if it is already committed."""
        handle = case.may_commit()
        now = self.fate_of(handle, case.found)
        if now is Fate.COMMITTED:
            return None
        if now is not Fate.OPEN or case.fate is not Fate.OPEN:  # only what the coordinator itself has under this id
            raise _not_open(case, handle, now)
        assert case.ledger is not None
        others = self.coordinator.describe(one.body["transactional_id"] for one in decided(case.ledger.state))
        for ahead in in_the_way(case, others):
            raise Refused(
                "out_of_turn",
                f"The decision also names {ahead.id!r} of sink {ahead.sink!r}, whose rows are not kept. If that is "
                f"lost, the epoch reruns, and the rows of {case.id} would be duplicated.",
                safe=UNCHANGED,
                next="Start the job: recovery commits both in the right order.",
            )
        return handle

    def to_settle(self, case: Case) -> Handle:
        """The handle whose outcome an operator may state: only where the cluster itself cannot tell."""
        handle = case.may_commit()
        now = self.fate_of(handle, case.found)
        if now is not Fate.UNKNOWN:
            raise Refused(
                "not_unknown",
                f"There is nothing to settle: the cluster itself says that it is {now.value}.",
                safe=UNCHANGED,
                next="Start the job: recovery asks the cluster too, and acts on the answer.",
            )
        return handle

    def commit(self, handle: Handle) -> Fate:
        """Commit it as recovery would: whoever comes second finds it done."""
        return fate.end(self.coordinator, handle.body, commit=True)

    def abort(self, case: Case, found: Transaction) -> Fate:
        """Abort it, whether a decision names it or not: see `Case.may_abort`."""
        version = case.handle.body["end_txn_version"] if case.handle else self.coordinator.end_version()
        names = {
            "transactional_id": found.id,
            "producer_id": found.pid,
            "producer_epoch": found.epoch,
            "started_ms": found.started_ms,
            "end_txn_version": version,
        }
        return fate.end(self.coordinator, names, commit=False)

    def readers_wait_at(self, found: Transaction) -> list[Held] | Denied:
        """Its first message on each partition; the refusal, if we are not allowed to know."""
        try:
            return [one for one in self.coordinator.held(found.partitions) if one.pid == found.pid]
        except Denied as error:
            return error

    def hanging(self, now_ms: float) -> Hanging:
        """Transactions open beyond their timeout, or on a partition without any coordinator knowing."""
        before: list[Held] = []
        unread = 0
        topics = self.coordinator.partitions()
        for partitions in topics.values():
            try:
                before += self.coordinator.held(partitions)
            except Denied:
                unread += 1
        unfinished = self.coordinator.unfinished()
        after = self.coordinator.held({(one.topic, one.partition) for one in before}) if before else []
        too_old = now_ms - (self.coordinator.largest_timeout_ms() or LONGEST_MS) - SLACK_MS
        return Hanging(
            late=overdue(unfinished, now_ms),
            lost=abandoned(before, unfinished, after, too_old),
            unfinished=len(unfinished),
            topics=len(topics),
            unread=unread,
        )


@contextmanager
def ask(servers: Servers | None) -> Iterator[Cluster]:
    """A cluster; no answer and a refusal become four-part errors."""
    if servers is None:
        raise BadConfig(
            "no_servers",
            "No Kafka server is given.",
            safe=UNCHANGED,
            next="Pass --servers host:9092, or --config FILE with bootstrap.servers in it.",
        )
    cluster = Cluster(servers)
    try:
        yield cluster
    except Silent as error:
        raise Retryable(
            "target_silent",
            f"The Kafka cluster does not answer: {error}.",
            safe="Safe: a decided transaction stays decided. If you asked to end one, check again whether it ended.",
            next="Check that the brokers are up and that --servers and --config are correct, then try again.",
        ) from error
    except Denied as error:
        raise TargetRefused(
            "not_allowed",
            f"The Kafka cluster denies access: {error}.",
            safe=UNCHANGED,
            next="Grant DESCRIBE on the transactional id (to look) and WRITE (to end it), or correct --config.",
        ) from error
    finally:
        cluster.coordinator.close()
