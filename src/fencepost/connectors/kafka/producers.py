"""Writes messages into an open transaction, in the driver or in the tasks, with confluent-kafka's producer.

    driver   begin ─► send … ─► flush (every delivery checked) ─► [the decision] ─► commit
    task     few rows? leave them to the driver : begin ─► send … ─► flush ─► one row: which id, how many rows, …
             driver: DescribeTransactions for all of them ─► vote ─► [the decision] ─► EndTxn by id

Never calls `close()` on a producer: it would abort a transaction that may be decided. Dropping the object leaves the
transaction as it is, for another process to end. Never ends a transaction in a task: only the driver knows whether it
is decided. What a failed attempt left open is aborted by the sweep after the epoch.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, groupby
from threading import Event, Lock, Thread
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fencepost import faults
from fencepost.connectors.kafka.fate import transactional_id
from fencepost.connectors.kafka.messages import BadMessage, messages
from fencepost.connectors.kafka.offsets import Deliveries, Report
from fencepost.connectors.kafka.sink import LONGEST_MS, Kafka
from fencepost.contract import Attempt, end_of, place_of, rows_in
from fencepost.protocol.records import Epoch, WriterNumber
from fencepost.store.staging import slices

log = logging.getLogger("fencepost.librdkafka")
log.addHandler(logging.NullHandler())

INIT_S = 30.0
DELIVERY_S = 60
"""How long the client itself waits for brokers that are down; a shorter outage goes unnoticed."""
COMMIT_S = 15.0
ABORT_S = 5.0
"""How long an abort waits for messages that are on their way."""
WAITING = 50_000
"""How many messages may be in the client's queue before we wait for it; its limit is 100,000."""
WAITING_BYTES = 64 << 20
"""Bytes of rows after which we wait until the queue is empty."""
FEW_BYTES = 64 << 10
"""A task leaves up to this many bytes of rows to the driver, whose producer is there already and writes them in some
milliseconds. A transaction of the task's own costs it a new producer, and the driver a question and an end. Not more,
because all tasks of an epoch may have few rows, and the driver gets those of all; so few come with a task's answer."""


class Undelivered(Exception):
    """Messages did not arrive, so the transaction is lost. Has the first error, and where the message was going."""

    def __init__(self, error: KafkaError, where: str = "") -> None:
        super().__init__(error.name())
        self.error = error
        self.where = where


class Plain:
    """A producer without transactions, for the weaker guarantees; `Slot` adds transactions."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        # Not a bound method: the client would then refer back to us, and only the garbage collector could free it, at
        # any time and in any thread.
        self.shaken = shaken = Event()
        """A broker went away since we last checked."""
        self._producer = Producer(
            {
                "enable.idempotence": True,
                "partitioner": "murmur2_random",  # as Kafka's Java client: a key has one partition, whoever writes
                "allow.auto.create.topics": False,  # a deleted topic would come back with the brokers' defaults
                "message.timeout.ms": DELIVERY_S * 1000,
                "queue.buffering.max.kbytes": 2_097_151,
                # Errors that matter arrive with the delivery reports; the rest is brokers coming and going.
                "error_cb": lambda _: shaken.set(),
                "logger": log,
                "log_level": 3,  # a coordinator that is being elected is not news
                **settings,
            }
        )
        self._reports: dict[KafkaError | None, Message] = {}
        self._handed = 0
        """Bytes of rows sent since the queue was last empty."""
        self._topic_column: str | None = None
        """The column that says each row's topic, if one does."""

    def send(self, sink: Kafka, batches: Iterable[pa.RecordBatch], deliveries: Deliveries | None = None) -> None:
        """Hand rows to the client; stops early if an earlier one failed. `deliveries` learns where they went."""
        # `dict.setdefault` keeps the first message of each outcome without a Python frame per message: the first
        # failure, and under None the first one delivered.
        report: Report = self._reports.setdefault
        for batch in batches:
            for rows in slices(batch):
                if deliveries is not None:
                    report = deliveries.reporter(rows.num_rows, self._reports)
                self._hand_over(sink, rows, report)
                self._handed += rows.nbytes
                while (waiting := len(self._producer)) > (WAITING if self._handed < WAITING_BYTES else 0):
                    with _fatal_errors():
                        self._producer.poll(0.05)
                if not waiting:
                    self._handed = 0
            if any(self._reports):
                break

    def _hand_over(self, sink: Kafka, rows: pa.RecordBatch, report: Any) -> None:
        """Turn a few rows into messages and queue them."""
        self._topic_column = sink.topic_column
        try:
            made = messages(sink, rows)
            if sink.headers is None and sink.partition is None:
                self._send_together(made, report)
                return
            # `produce_batch` takes no headers, and ignores a message's partition, contrary to its documentation.
            for one in made:
                self._one(one, report)
        except (BadMessage, Undelivered, KafkaException, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - a serializer is the user's code; its error may quote a row
            bad = BadMessage(place_of(error))
            bad.by_row = isinstance(error, (TypeError, ValueError))
            raise bad from None

    def _send_together(self, messages: Iterable[Any], report: Any) -> None:
        for topic, group in groupby(messages, key=lambda message: message.topic):
            together = [{"key": m.key, "value": m.value} for m in group]
            if self._producer.produce_batch(topic, together, on_delivery=report) != len(together):
                failed = next(message for message in together if "_error" in message)
                raise Undelivered(failed["_error"], self._place(topic, None, failed["key"], failed["value"]))

    def _one(self, message: Any, report: Any) -> None:
        while True:
            try:
                self._producer.produce(
                    message.topic,
                    value=message.value,
                    key=message.key,
                    partition=message.partition,
                    headers=message.headers,
                    on_delivery=report,
                )
            except BufferError:
                with _fatal_errors():
                    self._producer.poll(0.05)
            except KafkaException as error:
                where = self._place(message.topic, message.partition, message.key, message.value)
                raise Undelivered(error.args[0], where) from error
            else:
                return

    def flush(self) -> tuple[str, int, int] | None:
        """Wait until every message is delivered; return the topic, partition and offset of the first one."""
        with _fatal_errors():
            left = self._producer.flush(DELIVERY_S + 5)
        reports, self._reports = self._reports, {}
        first = reports.pop(None, None)
        for error, message in reports.items():
            assert error is not None
            where = self._place(message.topic(), message.partition(), message.key(), message.value())
            raise Undelivered(error, where)
        if left:
            raise Undelivered(KafkaError(KafkaError._MSG_TIMED_OUT))
        if first is None or first.offset() is None:  # the client may not know the offset of a message it sent twice
            return None
        return str(first.topic()), int(first.partition() or 0), int(first.offset() or 0)

    def _place(self, topic: str | None, partition: int | None, key: Any, value: Any) -> str:
        """Where a message was going and how large it is, never its content: a column's topic is a value of the row."""
        named = f"topic {topic!r}" if self._topic_column is None else f"a topic of column {self._topic_column!r}"
        size = sum(len(part.encode() if isinstance(part, str) else part) for part in (key, value) if part is not None)
        known = partition is not None and partition != -1
        return f"{named}, " + (f"partition {partition}, " if known else "") + f"{size:,} bytes"


class Offline(Plain):
    """A producer that knows no broker: it sends nothing, and tells which messages the client itself refuses."""

    def __init__(self, settings: Mapping[str, Any], largest: int | None) -> None:
        super().__init__({name: value for name, value in settings.items() if name == "message.max.bytes"})
        self._largest = math.inf if largest is None else largest
        """The topic's limit, by which it refuses a message a few bytes before the client does."""

    def why_not(self, sink: Kafka, rows: pa.RecordBatch) -> Exception | None:
        """Why these rows cannot be sent; None if the client takes them."""
        try:
            self._hand_over(sink, rows, self._reports.setdefault)
            for one in messages(sink, rows):
                if one.size > self._largest:
                    where = self._place(one.topic, one.partition, one.key, one.value)
                    return Undelivered(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), where)
        except Undelivered as error:
            return error
        except BadMessage as error:
            return error if error.by_row else None
        except Exception:  # noqa: BLE001 - a serializer that fails only now and then says nothing about a row
            return None
        finally:
            self._producer.purge()
            self._producer.poll(0)
            self._reports.clear()
        return None


class Slot(Plain):
    """One transactional id and its producer; the driver keeps them from epoch to epoch."""

    def __init__(self, name: str, settings: Mapping[str, Any], timeout_ms: int) -> None:
        super().__init__(
            {
                **settings,
                "transactional.id": name,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": min(DELIVERY_S * 1000, timeout_ms),
            }
        )
        self.id = name
        self.used_in: Epoch | None = None
        """The epoch of its last transaction. The next one may begin only once a durable record says that this epoch is
        done: until then recovery may need what the coordinator remembers of it."""
        self.producer: tuple[int, int] | None = None
        """Producer id and epoch, looked up right after the start. Whoever takes our transactional id gets a higher
        epoch, and if that happened before the lookup, our messages are refused: so what is open under these is ours."""
        self._producer.init_transactions(INIT_S)

    def is_free(self, epoch: Epoch) -> bool:
        """While epoch N runs, decision N-1 is durable, and says that N-2 is done."""
        return self.used_in is None or self.used_in <= epoch - 2

    def begin(self, epoch: Epoch) -> None:
        """Open a transaction; the broker learns of it with the first message."""
        assert self.is_free(epoch), "the coordinator must still remember the last transaction"
        self.used_in = epoch
        self._producer.begin_transaction()

    def commit(self) -> None:
        """Commit the transaction; if anything is raised, it may or may not be committed."""
        deadline = time.monotonic() + COMMIT_S
        while True:
            try:
                with _fatal_errors():
                    self._producer.commit_transaction(max(0.1, deadline - time.monotonic()))
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return

    def abort(self) -> None:
        """Abort the transaction; only for one that is certainly not decided.

        If the client is told so while its first message is on the way, it ends nothing, and the transaction that the
        broker opens for that message blocks readers. So what is on the way arrives first.
        """
        with _fatal_errors():
            self._producer.flush(ABORT_S)
            self._producer.abort_transaction(COMMIT_S)


def in_background(make: Callable[[], Slot]) -> Future[Slot]:
    """In a daemon thread, because the process would wait for an executor's threads at its exit."""
    made: Future[Slot] = Future()

    def run() -> None:
        try:
            made.set_result(make())
        except BaseException as error:  # noqa: BLE001 - raised where the result is wanted
            made.set_exception(error)

    Thread(target=run, name="fencepost-producer", daemon=True).start()
    return made


@contextmanager
def _fatal_errors() -> Iterator[None]:
    """Unwrap a fatal error that arrives with a delivery report: the client raises it as the cause of a SystemError."""
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise


class Pool:
    """The transactional ids of one Python worker, for one sink of one writer, and the producer to use next.

    A producer whose transaction was ended by another process cannot begin a new one. Its id can be used again, with a
    new producer, once the epoch is done (see `Slot.used_in`).
    """

    def __init__(self, owner: tuple[str, WriterNumber]) -> None:
        self.owner = owner
        self.ready: deque[Slot] = deque()
        self.preparing = False
        self._used: dict[str, Epoch] = {}
        self._lock = Lock()

    def free_id(self, epoch: Epoch) -> str | None:
        """An id that may be initialized again while this epoch runs."""
        with self._lock:
            found = next((name for name, used_in in self._used.items() if used_in <= epoch - 2), None)
            if found is not None:
                del self._used[found]
            return found

    def used(self, slot: Slot, epoch: Epoch) -> None:
        """Its transaction is the driver's now."""
        with self._lock:
            self._used[slot.id] = epoch


_pools: dict[tuple[str, str], Pool] = {}
"""By job and sink. Workers outlive a restart of the query, so each writer gets its own pool: a new driver's sweep
aborts what is open under the ids of older writers."""


@dataclass(frozen=True, slots=True)
class TaskWriter:
    """Pickled with the plan, called in the tasks.

    A Python worker creates the producer for its next task in the background, because that takes longer than writing.
    """

    job: str
    sink: Kafka
    few: int
    """Bytes of rows that a task leaves to the driver; one with more writes all of its rows itself."""

    def __call__(self, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of one task attempt, or leave them to the driver: all or none, so no row is in two places."""
        first: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            if batch.num_rows:
                first.append(batch)
                size += batch.nbytes
            if size > self.few:
                yield from self._write(attempt, chain(first, batches))
                return
        yield from (rows_in(batch, None) for batch in first)

    def _write(self, attempt: Attempt, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Into a transaction of the task's own; the driver ends it."""
        pool = self._pool(attempt)
        rows, slot, schema = 0, None, pa.schema([])
        for batch in batches:
            if not batch.num_rows:
                continue
            if slot is None:
                slot, schema = pool.ready.popleft() if pool.ready else self._make(pool, attempt), batch.schema
                slot.begin(attempt.epoch)
                faults.reach("kafka.task.begun")
            slot.send(self.sink, [batch])
            rows += batch.num_rows
            if self.sink.keep_rows:
                yield rows_in(batch, slot.id)
        if slot is None:
            return
        first = slot.flush()
        faults.reach("kafka.task.flushed")
        pool.used(slot, attempt.epoch)
        yield end_of(schema, slot.id, {"rows": rows, "first": first})
        if not pool.ready and not pool.preparing:  # prepare the next epoch's now, so that it need not wait
            pool.preparing = True
            Thread(target=self._prepare, args=(pool, attempt), daemon=True).start()

    def _make(self, pool: Pool, attempt: Attempt) -> Slot:
        sink = self.sink
        name = pool.free_id(attempt.epoch) or transactional_id(
            sink.prefix, self.job, attempt.lineage, attempt.writer, sink=sink.name, slot=uuid.uuid4().hex[:12]
        )
        return Slot(name, {**sink.cluster.for_writing(), **sink.producer}, sink.timeout_ms or LONGEST_MS)

    def _prepare(self, pool: Pool, attempt: Attempt) -> None:
        with suppress(KafkaException):  # the task that needs it then creates it, and raises the error
            pool.ready.append(self._make(pool, attempt))
        pool.preparing = False

    def _pool(self, attempt: Attempt) -> Pool:
        owner, key = (attempt.lineage, attempt.writer), (self.job, self.sink.name)
        pool = _pools.get(key)
        if pool is None or pool.owner != owner:
            pool = _pools[key] = Pool(owner)
        return pool
