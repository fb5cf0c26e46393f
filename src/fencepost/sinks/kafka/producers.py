"""Writes messages into an open transaction: the one module that knows confluent-kafka's producer.

    begin ─► send … ─► flush (every delivery checked) ─► [the decision] ─► commit

Never calls `close()` on a producer: it would abort a transaction that may be decided. Letting go of the object leaves
the transaction as it is, for another process to end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import groupby
from threading import Event, Thread
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fencepost.protocol.records import Epoch
from fencepost.sinks.contract import place_of
from fencepost.sinks.kafka.messages import BadMessage, Columns, slices

log = logging.getLogger("fencepost.librdkafka")
log.addHandler(logging.NullHandler())

INIT_S = 30.0
DELIVERY_S = 60
"""How long the client itself waits for brokers that are away; a shorter absence is not even noticed."""
COMMIT_S = 15.0
WAITING = 50_000
"""Messages that may wait in the client's queue before we wait for it; it takes 100,000."""
WAITING_BYTES = 256 << 20
"""Bytes of rows after which it has to be empty once."""


class Undelivered(Exception):
    """Messages did not arrive; the transaction is lost. Carries the first error, and where it was meant to go."""

    def __init__(self, error: KafkaError, where: str = "") -> None:
        super().__init__(error.name())
        self.error = error
        self.where = where


class Plain:
    """A producer without transactions, for the weaker levels; also what `Slot` is made of."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        # Not a method of ours: the client would hold us, and be let go of only by the garbage collector, anywhere.
        self.shaken = shaken = Event()
        """A broker went away since we last looked."""
        self._producer = Producer(
            {
                "enable.idempotence": True,
                "partitioner": "murmur2_random",  # as Kafka's own client: equal keys, equal partitions, whoever writes
                "allow.auto.create.topics": False,  # a deleted one would come back with the brokers' defaults
                "message.timeout.ms": DELIVERY_S * 1000,
                "queue.buffering.max.kbytes": 2_097_151,
                "error_cb": lambda _: (
                    shaken.set()
                ),  # what counts comes with the messages; the rest is brokers coming and going
                "logger": log,
                "log_level": 3,  # a coordinator that is being elected is no news
                **settings,
            }
        )
        self._reports: dict[KafkaError | None, Message] = {}
        self._handed = 0
        """Bytes of rows since the queue was last empty."""

    def send(self, columns: Columns, batches: Iterable[pa.RecordBatch]) -> None:
        """Hand rows to the client; an error of an earlier one ends it."""
        # `dict.setdefault` keeps the first message of each outcome without a Python frame per message: the first
        # failure, and under None the first that arrived.
        report = self._reports.setdefault
        for batch in batches:
            for rows in slices(batch):
                self._hand_over(columns, rows, report)
                self._handed += rows.nbytes
                while (waiting := len(self._producer)) > (WAITING if self._handed < WAITING_BYTES else 0):
                    with _fatal_errors():
                        self._producer.poll(0.05)
                if not waiting:
                    self._handed = 0
            if any(self._reports):
                break

    def _hand_over(self, columns: Columns, rows: pa.RecordBatch, report: Any) -> None:
        """Make the messages of a few rows and queue them."""
        try:
            messages = columns.messages(rows)
            if columns.headers is None and columns.partition is None:
                self._send_together(messages, report)
                return
            # `produce_batch` takes no headers, and does not look at a message's partition, although it says so.
            for one in messages:
                self._one(one, report)
        except (BadMessage, Undelivered, KafkaException):
            raise
        except Exception as error:  # noqa: BLE001 - a serializer is the user's; its words may quote a row
            raise BadMessage(place_of(error)) from None

    def _send_together(self, messages: Iterable[Any], report: Any) -> None:
        for topic, group in groupby(messages, key=lambda message: message.topic):
            together = [{"key": m.key, "value": m.value} for m in group]
            if self._producer.produce_batch(topic, together, on_delivery=report) != len(together):
                failed = next(message for message in together if "_error" in message)
                raise Undelivered(failed["_error"], _place(topic, None, failed["key"], failed["value"]))

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
                where = _place(message.topic, message.partition, message.key, message.value)
                raise Undelivered(error.args[0], where) from error
            else:
                return

    def flush(self) -> tuple[str, int, int] | None:
        """Wait until every message is delivered; return where the first one is (topic, partition, offset)."""
        with _fatal_errors():
            left = self._producer.flush(DELIVERY_S + 5)
        reports, self._reports = self._reports, {}
        first = reports.pop(None, None)
        for error, message in reports.items():
            assert error is not None
            where = _place(message.topic(), message.partition(), message.key(), message.value())
            raise Undelivered(error, where)
        if left:
            raise Undelivered(KafkaError(KafkaError._MSG_TIMED_OUT))
        if first is None or first.offset() is None:  # of a message that was sent twice, the client may not know it
            return None
        return str(first.topic()), int(first.partition() or 0), int(first.offset() or 0)


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
        """The epoch of its last transaction. A new one may begin only when a durable record says that this one is done:
        until then the coordinator's memory of it is what recovery would ask for."""
        self.producer: tuple[int, int] | None = None
        """Producer id and epoch, asked for right after the start. Whoever takes our id has another epoch, and if he was
        quicker than the question, our messages are refused: so what is open under these is our own."""
        self._producer.init_transactions(INIT_S)

    def is_free(self, epoch: Epoch) -> bool:
        """While epoch N runs, decision N-1 is durable, and says that N-2 is done."""
        return self.used_in is None or self.used_in <= epoch - 2

    def begin(self, epoch: Epoch) -> None:
        """Open a transaction; the broker hears of it with the first message."""
        assert self.is_free(epoch), "the coordinator must still remember the last transaction"
        self.used_in = epoch
        self._producer.begin_transaction()

    def commit(self) -> None:
        """End the transaction; whatever is raised leaves open what happened."""
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
        """Undo the transaction; only for one that is surely not decided."""
        with _fatal_errors():
            self._producer.abort_transaction(COMMIT_S)


def in_background(make: Callable[[], Slot]) -> Future[Slot]:
    """In a thread that does not keep the process: an executor's would be waited for at its end."""
    made: Future[Slot] = Future()

    def run() -> None:
        try:
            made.set_result(make())
        except BaseException as error:  # noqa: BLE001 - raised where the result is wanted
            made.set_exception(error)

    Thread(target=run, name="fencepost-producer", daemon=True).start()
    return made


def _place(topic: str | None, partition: int | None, key: Any, value: Any) -> str:
    """Where a message was meant to go and how large it is, not what it says."""
    size = sum(len(part.encode() if isinstance(part, str) else part) for part in (key, value) if part is not None)
    known = partition is not None and partition != -1
    return f"topic {topic!r}, " + (f"partition {partition}, " if known else "") + f"{size:,} bytes"


@contextmanager
def _fatal_errors() -> Iterator[None]:
    """A fatal error that comes together with a delivery report is raised as the cause of a SystemError."""
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise
