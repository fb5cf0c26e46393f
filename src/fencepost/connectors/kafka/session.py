"""The driver's side of a topic: two producers take turns, and recovery ends what a dead driver left open.

    pre_commit  begin ─► send ─► flush ─► DescribeTransactions: open, and with which producer id and epoch?
    commit      by the producer, or by EndTxn with the id from here; in doubt, ask the coordinator, then the topic

Never aborts a transaction that may be decided; never takes a client's error for an outcome.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaException

from fencepost import faults
from fencepost.connectors.kafka import failure, fate, offsets
from fencepost.connectors.kafka.coordinator import Coordinator
from fencepost.connectors.kafka.fate import ONGOING, Denied, Fate, Silent, Transaction, fate_of
from fencepost.connectors.kafka.messages import BadMessage, check_columns
from fencepost.connectors.kafka.producers import Offline, Plain, Slot, Undelivered, in_background
from fencepost.connectors.kafka.sink import LONGEST_MS, SHORT_MS, Kafka
from fencepost.contract import (
    UNIT,
    Asked,
    Examined,
    Instant,
    OutputMode,
    Rehearsal,
    RowsOfUnit,
    Session,
    SortedRows,
    ends_in,
    names_of,
    refused_one_by_one,
)
from fencepost.errors import FencepostError
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle, WriterNumber
from fencepost.store.staging import Rows

SWEEP_S = 10.0
"""How often we look, between epochs, for transactions that older writers left open."""

log = logging.getLogger("fencepost")


class KafkaSession(Session):
    """One start of a driver."""

    def __init__(self, sink: Kafka, job: str) -> None:
        self._sink = sink
        self._topic = sink.own_topic
        self._job = job
        self._coordinator = Coordinator(sink.cluster)
        self._timeout_ms = sink.timeout_ms or LONGEST_MS
        self._settings: dict[str, Any] = {**sink.cluster.for_writing(), **sink.producer}
        self._largest: int | None = None
        """The topic's max.message.bytes."""
        self._partitions = 0
        """Of the topic, when the job started."""
        self._ends: dict[offsets.Partition, int] = {}
        """Where the topic's partitions ended after our last messages; empty before the first epoch."""
        self._slots: list[Slot] = []
        self._made = 0
        self._spare: Future[Slot] | None = None
        self._open: dict[str, Slot] = {}
        """Handles whose transaction one of our own producers holds."""
        self._voted: set[str] = set()
        """Handles of the running epoch that were open when we checked."""
        self._last: list[Mapping[str, Any]] = []
        """The handles committed last, all of one epoch."""
        self._last_epoch: Epoch | None = None
        self._ended_by_id = False
        """Was one of them a task's? No producer of ours would notice that a broker of its went away."""
        self._tasks_left_all = False
        """In this epoch no task wrote, so no attempt that failed is likely to have left a transaction open."""
        self._plain: Plain | None = None
        self._swept = time.monotonic()

    # --- before any data flows

    def preflight(self, schema: pa.Schema, mode: OutputMode) -> str:
        """Check columns, topic, permissions and timeout; the identity is the cluster's id and the topic's."""
        check_columns(self._sink, schema)
        try:
            Plain(self._settings)  # so that a setting the client rejects is reported now, not in the first epoch
        except KafkaException as error:
            raise self._at(failure.bad_setting(self._sink.producer)) from error
        try:
            cluster = self._coordinator.cluster_id()
            self._check_timeout(self._coordinator.largest_timeout_ms())
            self._coordinator.end_version()
            return cluster if self._topic is None else f"{cluster}/{self._topic}/{self._check_topic(self._topic)}"
        except Silent as error:
            raise self._at(failure.no_answer(error, self._sink.cluster)) from error
        except Denied as error:
            raise self._at(failure.not_allowed(str(error))) from error

    def rehearse(self, schema: pa.Schema, mode: OutputMode) -> Rehearsal:
        """The preflight changes nothing, so it serves as its own rehearsal."""
        return Rehearsal(self.preflight(schema, mode))

    def _check_timeout(self, largest: int | None) -> None:
        if self._sink.timeout_ms is None:
            self._timeout_ms = min(LONGEST_MS, largest or LONGEST_MS)
            if self._sink.parallel and self._timeout_ms < LONGEST_MS:
                usual = f"the default in tasks is {LONGEST_MS} ms"
                raise failure.timeout_too_long(f": {usual}, the brokers' limit is {largest} ms")
        elif largest is not None and self._sink.timeout_ms > largest:
            raise failure.timeout_too_long(f": it is {self._sink.timeout_ms} ms, the brokers' limit is {largest} ms")
        if self._timeout_ms < SHORT_MS:
            log.warning(
                "job %s, sink %s: transaction_timeout is %.0f s. An epoch plus a restart must fit into it, or the "
                "brokers abort what is decided%s.",
                self._job,
                self._sink.name,
                self._timeout_ms / 1000,
                " (it is then rewritten from the kept rows)" if self._sink.keep_rows else "",
            )

    def _check_topic(self, name: str) -> str:
        topic = self._coordinator.topic(name)
        if topic is None:
            raise failure.no_topic(name)
        if not topic.writable:
            raise failure.not_allowed(f"no WRITE permission on topic {name!r}")
        self._partitions = topic.partitions
        size = self._coordinator.setting("TOPIC", name, "max.message.bytes")
        self._largest = None if size is None else int(size)
        if size is not None and "message.max.bytes" not in self._sink.producer:
            self._settings["message.max.bytes"] = max(1000, min(int(size), 1_000_000_000))
        return topic.id

    # --- one epoch

    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        """Write the rows into an open transaction, check that each arrived, ask for its producer id and epoch."""
        count = rows.count
        if not count:
            return None
        slot = None
        deliveries = offsets.Deliveries()
        try:
            slot = self._free_slot(epoch)
            slot.begin(epoch)
            faults.reach("kafka.begun")
            slot.send(self._sink, self._sorted(rows).batches(), deliveries)
            faults.reach("kafka.sent")
            first = slot.flush()
            faults.reach("kafka.flushed")
            found = self._coordinator.describe([slot.id])[slot.id]
        except (BadMessage, Undelivered, KafkaException, Silent, Denied) as error:
            self._drop(slot)
            raise self._at(failure.failed(error), epoch) from error
        except BaseException:  # a staged file that cannot be read, a cancelled client
            self._drop(slot)
            raise
        if found is None or found.state != ONGOING or (found.pid, found.epoch) != slot.producer:
            self._drop(slot)
            raise self._at(failure.ended(), epoch)
        kept = rows.kept if self._sink.keep_rows else ()
        handle = self._handle(found, count, kept, first, self._ends_after([found], deliveries))
        self._open[handle.id] = slot
        self._voted.add(handle.id)
        return handle

    def refused(self, epoch: Epoch, batch: pa.RecordBatch) -> dict[int, str]:
        """By the client, and by the topic's limit as it was at the start."""
        compressed = any(name.startswith("compression.") for name in self._sink.producer)
        offline = Offline(self._settings, None if compressed else self._largest)
        found = refused_one_by_one(batch, partial(offline.why_not, self._sink))
        return {place: failure.of_a_row(error) for place, error in found}

    def handles(self, epoch: Epoch, rows: Rows) -> tuple[Handle, ...]:
        """With `parallel`, tasks with many rows have already written: ask for all their transactions at once.

        What the other tasks left to the driver is one more.
        """
        if not self._sink.parallel:
            return super().handles(epoch, rows)
        units = ends_in(rows)
        self._tasks_left_all = not units
        if not rows.kept:
            return ()
        written = sum(facts["rows"] for facts in units.values()) if self._sink.keep_rows else 0
        left = rows.count - len(units) - written  # one row says what a unit is; to look for the others is to read all
        plain = self.pre_commit(epoch, RowsOfUnit(rows, None)) if left else None
        if plain is not None:
            plain = replace(plain, body={**plain.body, "unit": None})
        if not units:
            return () if plain is None else (plain,)
        own_id = () if plain is None else (plain.body["transactional_id"],)
        kept = rows.kept if self._sink.keep_rows else ()
        try:
            found = self._coordinator.describe([*units, *own_id])
        except (Silent, Denied) as error:
            raise self._at(failure.failed(error), epoch) from error
        handles: list[Handle] = []
        ends = self._ends_after([one for one in found.values() if one is not None])
        for name in (*units, *own_id):
            transaction = found[name]
            if transaction is None or transaction.state != ONGOING:
                raise self._at(failure.ended(), epoch)
            # The first one says it of all partitions; the others only of other topics, in case the first is lost: what
            # then replaces it says it of the whole topic.
            others = {place for place in transaction.partitions if place[0] != self._topic}
            mine = {place: end for place, end in ends.items() if place in others or not handles}
            if plain is not None and name in own_id:  # what it said of its end was not the end of the epoch
                handles.append(replace(plain, body={**plain.body, "ends": offsets.noted(offsets.by_topic(mine))}))
                continue
            handles.append(self._handle(transaction, units[name]["rows"], kept, units[name]["first"], mine))
        self._voted.update(handle.id for handle in handles)
        return tuple(handles)

    def again(self, epoch: Epoch, lost: Handle, rows: Rows) -> Handle | None:
        """Write the rows of a lost transaction again, from the driver."""
        what = "sink %s, epoch %d: the broker lost a decided transaction; rewriting its %d rows"
        log.warning(what, self._sink.name, epoch, lost.rows)
        if UNIT not in rows.schema.names:  # by the rows, because `parallel` may have changed since the decision
            return self.pre_commit(epoch, rows)
        # The lost one may itself be a rewrite. None: what the tasks left to the driver.
        unit = lost.body.get("unit", lost.body["transactional_id"])
        fresh = self.pre_commit(epoch, RowsOfUnit(rows, unit))
        assert fresh is not None, "the kept rows are not those of the lost transaction"
        assert fresh.rows == lost.rows, "the kept rows are not those of the lost transaction"
        return replace(fresh, body={**fresh.body, "unit": unit})

    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        """The pre-commit has already asked, for everything that a handle needs; only others are asked for here."""
        asked = [handle for handle in handles if handle.id not in self._voted]
        try:
            self._see_the_last_through()
            found = self._coordinator.describe([handle.body["transactional_id"] for handle in asked])
        except (Silent, Denied) as error:
            raise self._at(failure.failed(error), epoch) from error
        return tuple(h.id for h in asked if fate_of(h.body, found[h.body["transactional_id"]]) is not Fate.OPEN)

    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        """Let our own producers commit; end the others by id."""
        if epoch != self._last_epoch:  # else it is asked again about those that were in doubt
            self._last, self._last_epoch, self._ended_by_id = [], epoch, False
        outcomes = {handle.id: self._commit(epoch, handle) for handle in handles}
        self._last += [handle.body for handle in handles if outcomes[handle.id] is Outcome.DONE]
        self._voted.clear()  # a retry asks the coordinator first
        return outcomes

    def _commit(self, epoch: Epoch, handle: Handle) -> Outcome:
        slot = self._open.pop(handle.id, None)
        if slot is not None:
            self._warn_if_old(handle)
            try:
                slot.commit()
            except KafkaException as error:
                self._drop(slot, abort=False)
                log.info("sink %s: a producer could not commit (%s)", self._sink.name, error.args[0].name())
            else:
                return Outcome.DONE
        try:
            if handle.id in self._voted and slot is None and self._coordinator.end(handle.body, commit=True) is None:
                self._ended_by_id = True
                return Outcome.DONE  # seen open in this epoch's vote: nobody can have opened another under its id
            return self._end(epoch, handle)
        except (Silent, Denied) as error:
            log.warning("sink %s: no answer about the outcome of %s: %s", self._sink.name, handle.id, error)
            return Outcome.IN_DOUBT

    def _end(self, epoch: Epoch, handle: Handle) -> Outcome:
        """Ask, end it if it is open, ask again: the coordinator's state counts, not the answer to EndTxn."""
        body = handle.body
        for _ in range(20):
            known = now = fate.by_coordinator(self._coordinator, body)
            if known is Fate.UNKNOWN:
                now = fate.by_topic(self._coordinator, body)
            if now is Fate.UNKNOWN:
                now = fate.said(self.owner.staging.root.parent, handle.id)
            match now:
                case Fate.COMMITTED:
                    fate.see_through(self._coordinator, body)
                    return Outcome.DONE
                case Fate.ABORTED:
                    return Outcome.GONE
                case Fate.UNKNOWN:
                    raise self._at(failure.unknown(handle), epoch)
            if known is Fate.UNKNOWN:
                # Readers wait there, perhaps for another one; what the coordinator has under our id is not ours.
                return Outcome.IN_DOUBT
            self._warn_if_old(handle)
            faults.reach("kafka.ending")
            if self._coordinator.end(body, commit=True) is not None:
                time.sleep(0.05)  # it is already being ended, and its markers are being written
        return Outcome.IN_DOUBT

    def _see_the_last_through(self) -> None:
        """If a broker went away, check that it has the markers of the last commit, before that counts as done."""
        if self._last and (self._ended_by_id or any(slot.shaken.is_set() for slot in self._slots)):
            for body in self._last:
                fate.see_through(self._coordinator, body)
            self._last = []
            for slot in self._slots:
                slot.shaken.clear()

    def write(self, epoch: Epoch, rows: Rows) -> None:
        """Send without a transaction, and check that each message arrived."""
        try:
            self._plain = self._plain or Plain(self._settings)
            self._plain.send(self._sink, self._sorted(rows).batches())
            self._plain.flush()
        except (BadMessage, Undelivered, KafkaException) as error:
            self._plain = None
            raise self._at(failure.failed(error), epoch) from error

    def rollback(self, *, undecided: bool = True) -> None:
        """Abort what the failed epoch left open, if certainly no decision names it."""
        for slot in self._open.values():
            self._drop(slot, abort=undecided)
        self._open.clear()
        self._voted.clear()
        if self._sink.parallel and undecided and self._owner is not None:
            # What the tasks wrote for this epoch; everything of earlier epochs is committed.
            self._tasks_left_all = False
            for orphan in self.orphans(WriterNumber(self._owner.writer + 1), at_leisure=True):
                self.abort(orphan)

    # --- orphans

    def orphans(self, before: WriterNumber, *, at_leisure: bool = False) -> tuple[Handle, ...]:
        """Open transactions of this job and lineage, by writers older than `before`."""
        # An epoch whose rows tasks wrote may have a failed attempt that left one. So may one that never came to
        # `handles`, because the targets already hold its rows: its tasks have run.
        waits, self._tasks_left_all = self._tasks_left_all or not self._sink.parallel, False
        try:
            self._see_the_last_through()  # also if nothing is swept: the epoch may count as done next
            if at_leisure and waits and time.monotonic() < self._swept + SWEEP_S:
                return ()
            self._swept = time.monotonic()
            return self._orphans(before)
        except (Silent, Denied) as error:
            if at_leisure:
                return ()  # the next sweep finds them
            denied = isinstance(error, Denied)
            raise self._at(failure.failed(error) if denied else failure.no_answer(error, self._sink.cluster)) from error

    def _orphans(self, before: WriterNumber) -> tuple[Handle, ...]:
        held = {slot.id for slot in self._open.values()}
        owned = [fate.owner_of(name) for name in self._coordinator.open_ids()]
        old = [
            one.id
            for one in owned
            if one is not None
            and (one.job, one.sink) == (self._job, self._sink.name)
            and self.owner.is_older(one.lineage, one.writer, before)
            and one.id not in held
        ]
        found = self._coordinator.describe(old)
        return tuple(self._handle(one, 0, (), None) for one in found.values() if one and one.state == ONGOING)

    def abort(self, handle: Handle) -> None:
        """Abort one orphan, and check that it ended; one that stays open blocks readers until the next sweep."""
        why = "it is being ended"
        try:
            if fate.end(self._coordinator, handle.body, commit=False) is not Fate.OPEN:
                return
        except (Silent, Denied) as error:
            why = str(error)
        log.warning(
            "sink %s: orphaned transaction %s is still open: %s",
            self._sink.name,
            handle.body["transactional_id"],
            why,
        )

    def examine(self, asked: Asked) -> Examined:
        """Ask the coordinator, then the topic."""
        return fate.examine(self._coordinator, self._sink, self._job, asked)

    def as_of(self, asked: Asked, epoch: Epoch) -> Instant:
        """By the offsets that the decisions note, if the topics are still there."""
        return offsets.as_of(self._coordinator, self._sink, asked, epoch)

    def close(self) -> None:
        """Drop the producers and close the connection; open transactions stay open."""
        self._slots.clear()
        self._open.clear()
        self._spare = self._plain = None
        self._coordinator.close()

    # --- pieces

    def _sorted(self, rows: Rows) -> Rows:
        return SortedRows.of(rows, names_of(self._sink.order_by))

    def _free_slot(self, epoch: Epoch) -> Slot:
        """A producer whose last epoch is done; in steady state, two take turns."""
        free = next((slot for slot in self._slots if slot.is_free(epoch)), None)
        if free is None and self._spare is not None:
            spare, self._spare = self._spare, None
            if spare.exception() is None:  # otherwise one is created below, and raises the error
                free = spare.result()
                self._slots.append(free)
        if free is None:
            first = not self._made
            free = self._new_slot(self._new_id())
            self._slots.append(free)
            if first:  # the second one is needed in the next epoch, and takes half a second to create
                self._spare = in_background(partial(self._new_slot, self._new_id()))
        if free.producer is None:
            found = self._coordinator.describe([free.id])[free.id]
            assert found is not None, "it was initialized just now"
            free.producer = (found.pid, found.epoch)
        return free

    def _new_slot(self, name: str) -> Slot:
        return Slot(name, self._settings, self._timeout_ms)

    def _new_id(self) -> str:
        owner, number = self.owner, str(self._made)
        self._made += 1
        return fate.transactional_id(
            self._sink.prefix, self._job, owner.lineage, owner.writer, sink=self._sink.name, slot=number
        )

    def _drop(self, slot: Slot | None, *, abort: bool = True) -> None:
        """After any error, neither a producer nor its id is used again."""
        if slot is None:
            return
        self._slots = [other for other in self._slots if other is not slot]
        if abort:
            try:
                slot.abort()
            except KafkaException as error:
                log.info("sink %s: %s stays open: %s", self._sink.name, slot.id, error.args[0].name())

    def _ends_after(
        self, transactions: Iterable[Transaction], deliveries: offsets.Deliveries | None = None
    ) -> dict[offsets.Partition, int]:
        """Where the topic's partitions end now, and those of other topics that were written to; empty if unknown.

        All of the topic's, so that one decision says enough. No epoch fails for it: it only serves those who read.
        """
        written = {place for one in transactions for place in one.partitions}
        known = deliveries.ends(written) if deliveries is not None and self._knows_the_topic else None
        if known is None:
            topic = {(self._topic, number) for number in range(self._partitions) if self._topic is not None}
            try:
                known = self._coordinator.ends(sorted({*written, *topic, *self._ends}))
            except (Silent, Denied) as error:
                log.warning("sink %s: the brokers do not say where the epoch ends: %s", self._sink.name, error)
                self._ends = {}
                return {}
        self._ends |= {place: end for place, end in known.items() if place[0] == self._topic}
        return {**self._ends, **known}

    @property
    def _knows_the_topic(self) -> bool:
        return self._topic is None or bool(self._ends)

    def _handle(
        self,
        found: Transaction,
        rows: int,
        kept: Any,
        first: tuple[str, int, int] | None,
        ends: Mapping[offsets.Partition, int] | None = None,
    ) -> Handle:
        """Its id is built from the coordinator's facts, so that an orphan can be compared with the decided handles."""
        body = {
            "transactional_id": found.id,
            "producer_id": found.pid,
            "producer_epoch": found.epoch,
            "started_ms": found.started_ms,
            "timeout_ms": found.timeout_ms,
            "end_txn_version": self._coordinator.end_version(),
            "partitions": {name: sorted(n for t, n in found.partitions if t == name) for name, _ in found.partitions},
            # Only for the sink's own topic: for others we could not tell later whether they were replaced.
            "first_record": list(first) if first and first[0] == self._topic else None,
            # Not needed to commit; for people and programs that read the topic as of an epoch.
            "ends": offsets.noted(offsets.by_topic(ends or {})),
        }
        name = f"{found.id}:{found.pid}:{found.epoch}:{found.started_ms}"
        return Handle(id=name, sink=self._sink.name, rows=rows, kept=kept, body=body)

    def _at(self, error: FencepostError, epoch: Epoch | None = None) -> FencepostError:
        return error.at(job=self._job, epoch=epoch, sink=self._sink.name)

    def _warn_if_old(self, handle: Handle) -> None:
        age = time.time() * 1000 - handle.body["started_ms"]
        if age > handle.body["timeout_ms"] / 2:
            log.warning(
                "job %s, sink %s: a decided transaction is %.0f s old; the broker aborts it after %.0f s%s",
                self._job,
                self._sink.name,
                age / 1000,
                handle.body["timeout_ms"] / 1000,
                ", and its rows are then rewritten" if handle.kept else "",
            )
