"""The tasks' side of bad records: the user's function over Arrow batches, each record in turn.

    Each   a bad record ends the task, and so the epoch
    Once   a bad record becomes a dead letter beside the rows

Never puts a row's value into an error: these texts are logged. In a dead letter it may stand: its sink is the user's.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.types import StructType

from fencepost.errors import EpochFailed
from fencepost.spark.keyed_values import Misfit, maker, receiver, row_kind, sender

MEND = (
    "Mend the record at its source, or send such records to the dead letters: on_bad_record='dead_letter', "
    "dead_letters=…; then start the job again."
)
NOT_TEXT = "base64:"
"""How a record begins that is no text: not UTF-8, or with a zero byte, which some databases cannot hold."""
LONGEST = 4000
"""Characters of an error."""


@dataclass(frozen=True)
class Told:
    """What the user said, checked."""

    fn: Callable[[Any], Any]
    record: StructType
    output: StructType
    required: frozenset[str]
    """Columns that are NOT NULL."""
    arrow: pa.Schema
    """Of the rows."""
    source: str

    @property
    def name(self) -> str:
        """Of the function."""
        return str(getattr(self.fn, "__name__", type(self.fn).__name__))


class Bad(Exception):
    """A record that cannot be used: what may be logged, and what the dead letter says."""

    def __init__(self, what: str, error: str) -> None:
        self.what = what
        self.error = error.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()[:LONGEST]
        super().__init__(what)


class Caller:
    """Calls the user's function, record by record."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self._record, self._receive = row_kind(told.record.names), receiver(told.record)
        self._row, self._send = maker(row_kind(told.output.names)), sender(told.output)

    def answers(self, batch: pa.RecordBatch) -> Iterator[tuple[Row, str | None, list[dict[str, Any]] | Bad]]:
        """Of each record: itself, its position, and its rows or why there are none."""
        for values, position, unread in _values(batch):
            record = tuple.__new__(self._record, values if unread else self._receive(values))
            try:
                if unread:
                    raise Bad(unread, unread)
                yield record, position, self._rows(record)
            except Bad as bad:
                yield record, position, bad

    def _rows(self, record: Row) -> list[dict[str, Any]]:
        told = self.told
        try:
            answer = told.fn(record)
        except MemoryError:
            raise  # no fault of the record
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises
            raise self._raised(error) from None
        if answer is None:
            return []
        try:
            rows = [self._row(given) for given in (answer if isinstance(answer, list) else [answer])]
        except Misfit as error:
            raise EpochFailed(
                "bad_output",
                f"What {told.name} returned is no row: {error}.",
                next="Mend the function, then start the job again: the epoch runs again from the same positions.",
            ) from None
        found = []
        for row in rows:
            try:
                found.append(dict(zip(told.output.names, self._send(row), strict=True)))
            except Misfit as error:
                raise Bad(f"{told.name} returned a value that does not fit: {error}", str(error)) from None
        self._check_required(found)
        self._check_arrow(found)
        return found

    def _raised(self, error: Exception) -> Bad:
        told = self.told
        below = error.__traceback__ and error.__traceback__.tb_next
        at = f"{told.name}, line {below.tb_lineno}" if below else told.name
        try:
            said = f"{type(error).__name__}: {error}"
        except Exception:  # noqa: BLE001 - an error that cannot be told is the record's, too
            said = type(error).__name__
        return Bad(f"{type(error).__name__} in {at}", f"{said} ({at})")

    def _check_required(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            for name in self.told.required:
                if row[name] is None:
                    what = f"{self.told.name} returned no {name}, which is NOT NULL"
                    raise Bad(what, what)

    def _check_arrow(self, rows: list[dict[str, Any]]) -> None:
        """Each value in its column: Arrow itself refuses what does not fit, and names the value."""
        for row in rows:
            for field in self.told.arrow:
                try:
                    pa.scalar(row[field.name], field.type)
                except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                    given = type(row[field.name]).__name__
                    what = f"{self.told.name} returned a {given} for {field.name}, which cannot hold it"
                    raise Bad(what, f"{what}: {error}") from None


def _values(batch: pa.RecordBatch) -> Iterator[tuple[tuple[Any, ...], str | None, str]]:
    """Of each record: its values, its position, and why it cannot be read, if so."""
    names = batch.schema.names
    try:
        columns = [column.to_pylist() for column in batch.columns]
    except UnicodeDecodeError:  # Spark hands on whatever bytes a text is made of
        for at in range(batch.num_rows):
            found = [_value(column, at) for column in batch.columns]
            unread = [name for name, (_, fine) in zip(names, found, strict=True) if not fine]
            *values, position = [value for value, _ in found]
            yield tuple(values), position, f"column {unread[0]} is not UTF-8" if unread else ""
    else:
        for *values, position in zip(*columns, strict=True):
            yield tuple(values), position, ""


def _value(column: pa.Array, at: int) -> tuple[Any, bool]:
    try:
        return column[at].as_py(), True
    except UnicodeDecodeError:
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        return column[at].cast(pa.binary()).as_py() if is_text else None, False


class Each:
    """For on_bad_record='fail'."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What Spark calls in a task."""
        caller = Caller(self._told)
        for batch in batches:
            rows = []
            for _, position, answer in caller.answers(batch):
                if isinstance(answer, Bad):
                    place = f"{self._told.source}, {position or 'position unknown'}"
                    raise EpochFailed("bad_record", f"{answer.what}. The record is at {place}.", next=MEND)
                rows += answer
            yield pa.RecordBatch.from_pylist(rows, schema=self._told.arrow)


class Once:
    """For on_bad_record='dead_letter': one row per record, with its partition, its rows and its dead letter."""

    def __init__(self, told: Told, made: pa.Schema) -> None:
        self._told = told
        self._made = made

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What Spark calls in a task."""
        caller, context = Caller(self._told), TaskContext.get()
        assert context is not None, "this runs in a task"
        for batch in batches:
            rows = [
                {"partition": context.partitionId(), "made": self._entries(record, position, answer)}
                for record, position, answer in caller.answers(batch)
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=self._made)

    def _entries(self, record: Row, position: str | None, answer: list[dict[str, Any]] | Bad) -> list[dict[str, Any]]:
        if not isinstance(answer, Bad):
            return [{"row": row, "letter": None} for row in answer]
        letter = {
            "source": self._told.source,
            "position": position,
            "record": text_of(record),
            "error": answer.error,
        }
        return [{"row": None, "letter": letter}]


def text_of(record: Row) -> str | None:
    """A record for a person to read: a single column as it is, several as JSON."""
    named = dict(zip(record.__fields__, record, strict=True))
    if len(named) == 1:
        (value,) = named.values()
        if value is None:
            return None
        if isinstance(value, str | bytes):
            return _safe(value)
    return json.dumps(named, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    return _safe(bytes(value)) if isinstance(value, bytes | bytearray | memoryview) else str(value)


def _safe(value: str | bytes) -> str:
    raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = "\0"
    return NOT_TEXT + base64.b64encode(raw).decode() if "\0" in text else text
