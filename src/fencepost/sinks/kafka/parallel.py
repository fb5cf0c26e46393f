"""Writes from the tasks: a transaction per task attempt, ended by the driver.

    task     begin ─► send ─► flush ─► one row: which id, how many rows, where the first one is
    driver   DescribeTransactions for all of them ─► vote ─► decision ─► EndTxn by name

A Python worker makes the producer of its next task in the background: that costs more than writing with it. Never ends
a transaction here: whether it is decided, only the driver knows. A failed attempt's is aborted by the sweep after the
epoch.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock, Thread

import pyarrow as pa
from confluent_kafka import KafkaException

from fencepost import faults
from fencepost.protocol.records import Epoch, WriterNumber
from fencepost.sinks.contract import Attempt
from fencepost.sinks.kafka import ids
from fencepost.sinks.kafka.producers import Slot
from fencepost.sinks.kafka.sink import LONGEST_MS, KafkaSink
from fencepost.sinks.units import end_of, rows_in


class Pool:
    """The transactional ids of one Python worker, for one sink of one writer, and the producer to be used next.

    A producer whose transaction was ended by another process cannot begin one again; its id can, with a new producer,
    once the epoch is done for good (see `Slot.used_in`).
    """

    def __init__(self, owner: tuple[str, WriterNumber]) -> None:
        self.owner = owner
        self.ready: deque[Slot] = deque()
        self.preparing = False
        self._used: dict[str, Epoch] = {}
        self._lock = Lock()

    def free_id(self, epoch: Epoch) -> str | None:
        """One that may be initialised again while this epoch runs."""
        with self._lock:
            found = next((name for name, used_in in self._used.items() if used_in <= epoch - 2), None)
            if found is not None:
                del self._used[found]
            return found

    def used(self, slot: Slot, epoch: Epoch) -> None:
        """Its transaction is with the driver now."""
        with self._lock:
            self._used[slot.id] = epoch


_pools: dict[tuple[str, str], Pool] = {}
"""By job and sink. Workers outlive a restart of the query: another writer gets another pool, for a new driver's sweep
of older writers would abort what this one still writes."""


@dataclass(frozen=True, slots=True)
class TaskWriter:
    """Pickled with the plan; called in the tasks."""

    job: str
    sink: KafkaSink

    def __call__(self, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of one task attempt."""
        pool = self._pool(attempt)
        rows, slot, schema = 0, None, pa.schema([])
        for batch in batches:
            if not batch.num_rows:
                continue
            if slot is None:
                slot, schema = pool.ready.popleft() if pool.ready else self._make(pool, attempt), batch.schema
                slot.begin(attempt.epoch)
                faults.reach("kafka.task.begun")
            slot.send(self.sink.columns, [batch])
            rows += batch.num_rows
            if self.sink.keep_rows:
                yield rows_in(batch, slot.id)
        if slot is None:
            return
        first = slot.flush()
        faults.reach("kafka.task.flushed")
        pool.used(slot, attempt.epoch)
        yield end_of(schema, slot.id, {"rows": rows, "first": first})
        if not pool.ready and not pool.preparing:  # for the next epoch, and not in its way
            pool.preparing = True
            Thread(target=self._prepare, args=(pool, attempt), daemon=True).start()

    def _make(self, pool: Pool, attempt: Attempt) -> Slot:
        sink = self.sink
        name = pool.free_id(attempt.epoch) or ids.name(
            sink.prefix, self.job, attempt.lineage, attempt.writer, sink=sink.name, slot=uuid.uuid4().hex[:12]
        )
        return Slot(name, {**sink.servers.for_writing(), **sink.producer}, sink.timeout_ms or LONGEST_MS)

    def _prepare(self, pool: Pool, attempt: Attempt) -> None:
        with suppress(KafkaException):  # whoever needs it then makes it himself, and fails for all to see
            pool.ready.append(self._make(pool, attempt))
        pool.preparing = False

    def _pool(self, attempt: Attempt) -> Pool:
        owner, key = (attempt.lineage, attempt.writer), (self.job, self.sink.name)
        pool = _pools.get(key)
        if pool is None or pool.owner != owner:
            pool = _pools[key] = Pool(owner)
        return pool
