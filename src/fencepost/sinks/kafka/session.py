"""The driver's side of a topic: two producers take turns, and recovery ends what a dead driver left.

    pre_commit  begin ─► send ─► flush ─► DescribeTransactions: open, and with which producer id and epoch?
    commit      the producer's own, or EndTxn by name from here; any doubt is put to the coordinator, then to the topic

Never aborts a transaction that may be decided; never takes an error of a client for an outcome.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaException

from fencepost import faults
from fencepost.errors import FencepostError
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle, WriterNumber
from fencepost.rows import Rows
from fencepost.sinks.contract import OutputMode, Session
from fencepost.sinks.holding import Asked, Examined
from fencepost.sinks.kafka import ending, ids, looking, trouble
from fencepost.sinks.kafka.coordinator import ONGOING, Coordinator, Denied, Silent, Transaction
from fencepost.sinks.kafka.markers import see_through
from fencepost.sinks.kafka.messages import BadMessage
from fencepost.sinks.kafka.outcome import Fate, fate
from fencepost.sinks.kafka.producers import Plain, Slot, Undelivered, in_background
from fencepost.sinks.kafka.settled import said
from fencepost.sinks.kafka.sink import LONGEST_MS, KafkaSink
from fencepost.sinks.rehearsal import Rehearsal
from fencepost.sinks.units import RowsOfUnit, ends_in

SHORT_MS = 60_000
SWEEP_S = 10.0
"""How often, between epochs, the cluster is asked for transactions that older writers left open."""

log = logging.getLogger("fencepost")


class KafkaSession(Session):
    """One start of a driver."""

    def __init__(self, sink: KafkaSink, job: str) -> None:
        self._sink = sink
        self._job = job
        self._coordinator = Coordinator(sink.servers)
        self._timeout_ms = sink.timeout_ms or LONGEST_MS
        self._settings: dict[str, Any] = {**sink.servers.for_writing(), **sink.producer}
        self._slots: list[Slot] = []
        self._made = 0
        self._spare: Future[Slot] | None = None
        self._open: dict[str, Slot] = {}
        """Handles whose transaction one of our own producers holds."""
        self._voted: set[str] = set()
        """Handles of the running epoch that were open when we asked."""
        self._last: list[Mapping[str, Any]] = []
        """What was committed last."""
        self._plain: Plain | None = None
        self._swept = time.monotonic()

    # --- before any data flows

    def preflight(self, schema: pa.Schema, mode: OutputMode) -> str:
        """Check columns, topic, rights and timeout; the identity is the cluster's id and the topic's."""
        self._sink.columns.check(schema)
        try:
            Plain(self._settings)  # settings that the client does not take are said now, not in the first epoch
        except KafkaException as error:
            raise self._at(trouble.bad_setting(self._sink.producer)) from error
        try:
            cluster = self._coordinator.cluster_id()
            self._check_timeout(self._coordinator.largest_timeout_ms())
            self._coordinator.end_version()
            topic = self._sink.columns.topic
            return cluster if topic is None else f"{cluster}/{topic}/{self._check_topic(topic)}"
        except Silent as error:
            raise self._at(trouble.no_answer(error, self._sink.servers)) from error
        except Denied as error:
            raise self._at(trouble.not_allowed(str(error))) from error

    def rehearse(self, schema: pa.Schema, mode: OutputMode) -> Rehearsal:
        """It only asks."""
        return Rehearsal(self.preflight(schema, mode))

    def _check_timeout(self, largest: int | None) -> None:
        if self._sink.timeout_ms is None:
            self._timeout_ms = min(LONGEST_MS, largest or LONGEST_MS)
            if self._sink.parallel and self._timeout_ms < LONGEST_MS:
                usual = f"by default {LONGEST_MS} ms in tasks"
                raise trouble.timeout_too_long(f": {usual}, and they allow {largest} ms")
        elif largest is not None and self._sink.timeout_ms > largest:
            raise trouble.timeout_too_long(f": {self._sink.timeout_ms} ms, and they allow {largest} ms")
        if self._timeout_ms < SHORT_MS:
            log.warning(
                "job %s, sink %s: transaction_timeout is %.0f s. An epoch and a restart have to fit into it, or the "
                "brokers abort what is decided%s.",
                self._job,
                self._sink.name,
                self._timeout_ms / 1000,
                " (it is then written again from the kept rows)" if self._sink.keep_rows else "",
            )

    def _check_topic(self, name: str) -> str:
        topic = self._coordinator.topic(name)
        if topic is None:
            raise trouble.no_topic(name)
        if not topic.writable:
            raise trouble.not_allowed(f"no WRITE on topic {name!r}")
        size = self._coordinator.setting("TOPIC", name, "max.message.bytes")
        if size is not None and "message.max.bytes" not in self._sink.producer:
            self._settings["message.max.bytes"] = max(1000, min(int(size), 1_000_000_000))
        return topic.id

    # --- one epoch

    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        """Write the rows into an open transaction, see that each arrived, ask under which producer epoch."""
        count = rows.count
        if not count:
            return None
        slot = None
        try:
            slot = self._free_slot(epoch)
            slot.begin(epoch)
            faults.reach("kafka.begun")
            slot.send(self._sink.columns, rows.batches())
            faults.reach("kafka.sent")
            first = slot.flush()
            faults.reach("kafka.flushed")
            found = self._coordinator.describe([slot.id])[slot.id]
        except (BadMessage, Undelivered, KafkaException, Silent, Denied) as error:
            self._drop(slot)
            raise self._at(trouble.failed(error), epoch) from error
        except BaseException:  # a staged file that cannot be read, a cancelled client
            self._drop(slot)
            raise
        if found is None or found.state != ONGOING or (found.pid, found.epoch) != slot.producer:
            self._drop(slot)
            raise self._at(trouble.ended(), epoch)
        handle = self._handle(found, count, rows.kept if self._sink.keep_rows else (), first)
        self._open[handle.id] = slot
        self._voted.add(handle.id)
        return handle

    def handles(self, epoch: Epoch, rows: Rows) -> tuple[Handle, ...]:
        """With `parallel` the tasks have written: ask for all their transactions at once."""
        if not self._sink.parallel:
            return super().handles(epoch, rows)
        units = ends_in(rows)
        kept = rows.kept if self._sink.keep_rows else ()
        try:
            found = self._coordinator.describe(units)
        except (Silent, Denied) as error:
            raise self._at(trouble.failed(error), epoch) from error
        handles = []
        for unit, facts in units.items():
            transaction = found[unit]
            if transaction is None or transaction.state != ONGOING:
                raise self._at(trouble.ended(), epoch)
            handles.append(self._handle(transaction, facts["rows"], kept, facts["first"]))
        self._voted.update(handle.id for handle in handles)
        return tuple(handles)

    def again(self, epoch: Epoch, lost: Handle, rows: Rows) -> Handle | None:
        """Once more, from the driver; of rows that tasks kept, those of the lost transaction."""
        what = "sink %s, epoch %d: the broker lost a decided transaction; its %d rows are written again"
        log.warning(what, self._sink.name, epoch, lost.rows)
        if not self._sink.parallel:
            return self.pre_commit(epoch, rows)
        unit = lost.body.get("unit", lost.body["id"])  # what is lost may itself have been written again
        fresh = self.pre_commit(epoch, RowsOfUnit(rows, unit))
        assert fresh is not None, "the kept rows are not those of the lost transaction"
        assert fresh.rows == lost.rows, "the kept rows are not those of the lost transaction"
        return replace(fresh, body={**fresh.body, "unit": unit})

    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        """The question was asked at the end of the pre-commit, once for everything that a handle needs."""
        asked = [handle for handle in handles if handle.id not in self._voted]
        try:
            self._see_the_last_through()
            found = self._coordinator.describe([handle.body["id"] for handle in asked])
        except (Silent, Denied) as error:
            raise self._at(trouble.failed(error), epoch) from error
        return tuple(h.id for h in asked if fate(h.body, found[h.body["id"]]) is not Fate.OPEN)

    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        """Let our own producers commit; end the others by name."""
        outcomes = {handle.id: self._commit(epoch, handle) for handle in handles}
        self._last = [handle.body for handle in handles if outcomes[handle.id] is Outcome.DONE]
        self._voted.clear()  # whoever asks again asks the coordinator first
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
                return Outcome.DONE  # seen open in this epoch's vote: nobody can have opened another under its name
            return self._end(epoch, handle)
        except (Silent, Denied) as error:
            log.warning("sink %s: the coordinator did not say what became of %s: %s", self._sink.name, handle.id, error)
            return Outcome.IN_DOUBT

    def _end(self, epoch: Epoch, handle: Handle) -> Outcome:
        """Ask first, end it if it is open, ask again: the coordinator's word counts, not the answer to EndTxn."""
        body = handle.body
        for _ in range(20):
            known = now = ending.by_coordinator(self._coordinator, body)
            if known is Fate.UNKNOWN:
                now = ending.by_topic(self._coordinator, self._sink.servers, body)
            if now is Fate.UNKNOWN:
                now = said(self.owner.staging.root.parent, handle.id)
            match now:
                case Fate.COMMITTED:
                    see_through(self._coordinator, body)
                    return Outcome.DONE
                case Fate.ABORTED:
                    return Outcome.GONE
                case Fate.UNKNOWN:
                    raise self._at(trouble.unknown(handle), epoch)
            if known is Fate.UNKNOWN:
                # Readers wait there, perhaps for another; the coordinator holds under our name what is not ours.
                return Outcome.IN_DOUBT
            self._warn_if_old(handle)
            faults.reach("kafka.ending")
            if self._coordinator.end(body, commit=True) is not None:
                time.sleep(0.05)  # markers of an end that is under way are being written
        return Outcome.IN_DOUBT

    def _see_the_last_through(self) -> None:
        """A broker went away: did it forget the markers of the last commit? Asked before that counts as done."""
        if self._last and (self._sink.parallel or any(slot.shaken.is_set() for slot in self._slots)):
            for body in self._last:
                see_through(self._coordinator, body)
            self._last = []
            for slot in self._slots:
                slot.shaken.clear()

    def write(self, epoch: Epoch, rows: Rows) -> None:
        """Send plainly, see that each message arrived."""
        try:
            self._plain = self._plain or Plain(self._settings)
            self._plain.send(self._sink.columns, rows.batches())
            self._plain.flush()
        except (BadMessage, Undelivered, KafkaException) as error:
            self._plain = None
            raise self._at(trouble.failed(error), epoch) from error

    def rollback(self, *, undecided: bool = True) -> None:
        """Abort what the failed epoch left open, if surely no decision names it."""
        for slot in self._open.values():
            self._drop(slot, abort=undecided)
        self._open.clear()
        self._voted.clear()
        if self._sink.parallel and undecided and self._owner is not None:
            # What the tasks wrote for this epoch; of the epochs before, all is committed.
            for orphan in self.orphans(WriterNumber(self._owner.writer + 1), at_leisure=True):
                self.abort(orphan)

    # --- orphans

    def orphans(self, before: WriterNumber, *, at_leisure: bool = False) -> tuple[Handle, ...]:
        """Open transactions of this job and lineage, by writers older than `before`."""
        if at_leisure and time.monotonic() < self._swept + SWEEP_S and not self._sink.parallel:
            return ()  # with `parallel`, an attempt that failed may have left one in any epoch
        self._swept = time.monotonic()
        try:
            self._see_the_last_through()
            return self._orphans(before)
        except (Silent, Denied) as error:
            if at_leisure:
                return ()  # the next sweep finds them
            denied = isinstance(error, Denied)
            raise self._at(trouble.failed(error) if denied else trouble.no_answer(error, self._sink.servers)) from error

    def _orphans(self, before: WriterNumber) -> tuple[Handle, ...]:
        held = {slot.id for slot in self._open.values()}
        owned = [ids.read(name) for name in self._coordinator.open_ids()]
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
        """Undo one orphan, and see that it is undone; one that stays holds up readers until the next sweep."""
        why = "it is being ended"
        try:
            if ending.end(self._coordinator, handle.body, commit=False) is not Fate.OPEN:
                return
        except (Silent, Denied) as error:
            why = str(error)
        log.warning("sink %s: the orphan %s is still open: %s", self._sink.name, handle.body["id"], why)

    def examine(self, asked: Asked) -> Examined:
        """Ask the coordinator, then the topic."""
        return looking.examine(self._coordinator, self._sink, self._job, asked)

    def close(self) -> None:
        """Let go of producers and connection; what is open stays open."""
        self._slots.clear()
        self._open.clear()
        self._spare = self._plain = None
        self._coordinator.close()

    # --- pieces

    def _free_slot(self, epoch: Epoch) -> Slot:
        """A producer whose last epoch is done for good: in steady state, two take turns."""
        free = next((slot for slot in self._slots if slot.is_free(epoch)), None)
        if free is None and self._spare is not None:
            spare, self._spare = self._spare, None
            if spare.exception() is None:  # otherwise another one is made here, and fails for all to see
                free = spare.result()
                self._slots.append(free)
        if free is None:
            first = not self._made
            free = self._new_slot(self._new_id())
            self._slots.append(free)
            if first:  # the second one is needed in the next epoch, and takes half a second to make
                self._spare = in_background(partial(self._new_slot, self._new_id()))
        if free.producer is None:
            found = self._coordinator.describe([free.id])[free.id]
            assert found is not None, "it was initialised just now"
            free.producer = (found.pid, found.epoch)
        return free

    def _new_slot(self, name: str) -> Slot:
        return Slot(name, self._settings, self._timeout_ms)

    def _new_id(self) -> str:
        owner, number = self.owner, str(self._made)
        self._made += 1
        return ids.name(self._sink.prefix, self._job, owner.lineage, owner.writer, sink=self._sink.name, slot=number)

    def _drop(self, slot: Slot | None, *, abort: bool = True) -> None:
        """After any error a producer is not used again, nor its id."""
        if slot is None:
            return
        self._slots = [other for other in self._slots if other is not slot]
        if abort:
            try:
                slot.abort()
            except KafkaException as error:
                log.info("sink %s: %s stays open: %s", self._sink.name, slot.id, error.args[0].name())

    def _handle(self, found: Transaction, rows: int, kept: Any, first: tuple[str, int, int] | None) -> Handle:
        """Its id is made of what the coordinator says, so that an orphan is known to be a decided one, or not."""
        body = {
            "id": found.id,
            "pid": found.pid,
            "epoch": found.epoch,
            "started_ms": found.started_ms,
            "timeout_ms": found.timeout_ms,
            "end_version": self._coordinator.end_version(),
            "partitions": {name: sorted(n for t, n in found.partitions if t == name) for name, _ in found.partitions},
            # Of topics that rows name we would not know later whether they are still the same.
            "first": list(first) if first and first[0] == self._sink.columns.topic else None,
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
                ", and its rows are then written again" if handle.kept else "",
            )
