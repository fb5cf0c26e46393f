"""What runs in tasks, in Spark's Python workers: the user's functions, keyed state, and sinks that write there.

    KeyedState   read state ── fn(record, state) for each record ── write state if it changed ── set and cancel timers
    Each         the user's function, record by record; a bad record fails the task, and so the epoch
    Once         the same; a bad record becomes a dead letter beside the rows
    InTask       the sink's own function, which is told which attempt it writes for

Executors get this module and what it imports, and little else of the package (`package.py`). Never puts a row's value
into an error, because errors are logged. A dead letter may contain one: its sink is the user's.
"""

from __future__ import annotations

import base64
import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql.types import StructType, _make_type_verifier

from fencepost import faults
from fencepost.contract import LONGEST_ERROR, Attempt, WriteInTask
from fencepost.errors import EpochFailed
from fencepost.protocol.records import Epoch, WriterNumber

STATE = "state"
"""The name of the state variable in the checkpoint; a different name would be a different state."""

ZERO = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

OWNER = "fencepost.owner"
"""A local property of the query's thread, which its tasks inherit: lineage and writer, known only after recovery."""
EPOCH = "streaming.sql.batchId"
AGAIN = "then start the job again: the epoch reruns from the same offsets."
FIX = (
    "Fix the record at its source, or send bad records to a dead-letter sink (on_bad_record='dead_letter', "
    "dead_letters=…); then start the job again."
)
NOT_TEXT = "base64:"
"""Prefix of a record that is not text: not UTF-8, or with a zero byte, which some databases cannot store."""

Convert = Callable[[Any], Any]
Leaf = Callable[[Any], Convert | None]
"""How to convert values of a type without parts; None if there is nothing to do."""


@dataclass(frozen=True)
class KeyedSettings:
    """What the user said, checked."""

    keys: tuple[str, ...]
    record: StructType
    state: StructType
    output: StructType
    order: tuple[str, ...]
    ttl_ms: int | None
    fn: Callable[..., Any]
    fn_takes_timers: bool
    on_timer: Callable[..., Any] | None
    on_timer_takes_timers: bool

    @property
    def stored(self) -> StructType:
        """The state's schema as Spark stores it: Spark returns a TIMESTAMP in local time, where some hours are
        ambiguous; without a zone, and in UTC, it comes back unchanged.
        """
        text = re.sub(r'"(type|elementType|keyType|valueType)":"timestamp"', r'"\1":"timestamp_ntz"', self.state.json())
        return StructType.fromJson(json.loads(text))


class KeyedState:
    """Spark's stateful processor.

    Every access to the state costs about 75 µs, so there is one read and one write per key and epoch, and timers are
    listed once.
    """

    def __init__(self, told: KeyedSettings) -> None:
        self._told = told

    def init(self, handle: Any) -> None:
        """Spark's first call, with the state of this partition."""
        told = self._told
        self._handle = handle
        self._value = handle.getValueState(STATE, told.stored, told.ttl_ms)
        self._record, self._receive = row_kind(told.record.names), receiver(told.record)
        self._stored, self._unpack, self._pack = row_kind(told.state.names), unpacker(told.state), packer(told.state)
        self._sent, self._send = row_kind(told.output.names), sender(told.output)
        self._key = row_kind(told.keys)
        self._state, self._output = maker(self._stored), maker(self._sent)
        self._mutable = any(field.dataType.typeName() in ("array", "map", "struct") for field in told.state)
        self._order = [told.record.names.index(name) for name in told.order]
        self._dropped: set[tuple[str, int]] = set()
        """Timers of this epoch that were cancelled after Spark had listed them as due."""

    def close(self) -> None:
        """Nothing to clean up."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """All records of one key in this epoch."""
        records: Iterable[Any] = (tuple.__new__(self._record, self._receive(row)) for row in rows)
        if self._order:
            records = sorted(records, key=lambda record: [(record[at] is not None, record[at]) for at in self._order])
        timers = Timers(self._handle, timerValues)
        more = (timers,) if self._told.fn_takes_timers else ()
        state, before = self._read()
        found: list[Row] = []
        for record in records:
            had = state is not None
            made, state = self._answer(self._told.fn(record, state, *more), "fn")
            found += made
            self._forget_timers(had, state, timers)
        self._write(before, state)
        timers.apply()
        return iter(found)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        """A timer is due; Spark removes it afterwards."""
        due_ms = expiredTimerInfo.getExpiryTimeInMs()
        if self._told.on_timer is None or (repr(key), due_ms) in self._dropped:
            return iter(())
        timers = Timers(self._handle, timerValues, due_ms)
        more = (timers,) if self._told.on_timer_takes_timers else ()
        state, before = self._read()
        had = state is not None
        answer = self._told.on_timer(tuple.__new__(self._key, key), state, _time(due_ms), *more)
        made, state = self._answer(answer, "on_timer")
        self._forget_timers(had, state, timers)
        self._write(before, state)
        self._dropped |= {(repr(key), cancelled) for cancelled in timers.apply()}
        return iter(made)

    def _read(self) -> tuple[Any, Any]:
        """The state, and a copy for comparison that the user's function cannot change."""
        stored = self._value.get()
        if stored is None:
            return None, None
        state = tuple.__new__(self._stored, self._unpack(stored))
        return state, copy.deepcopy(state) if self._mutable else state

    def _write(self, before: Any, after: Any) -> None:
        if after is None:
            if before is not None:
                self._value.clear()
        elif before is None or before != after or self._told.ttl_ms is not None:  # each write restarts the ttl
            try:
                packed = self._pack(after)
            except Misfit as error:
                raise self._wrong("bad_state", f"The new state of a key does not fit its schema: {error}.") from None
            self._value.update(packed)
            faults.reach("state.task.written")

    def _forget_timers(self, had: bool, state: Any, timers: Timers) -> None:
        if state is None and self._told.on_timer is not None and (had or timers.touched):
            timers.cancel()

    def _answer(self, answer: Any, function: str) -> tuple[list[Row], Any]:
        """What the user's function returned, as rows and a state."""
        if not isinstance(answer, tuple) or len(answer) != 2:
            told = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else f"a {type(answer).__name__}"
            raise self._wrong("bad_answer", f"{function} returned {told}; it must return (output, state).")
        output, state = answer
        try:
            if output is None:
                rows = []
            else:
                rows = [self._row(given) for given in (output if isinstance(output, list) else [output])]
        except Misfit as error:
            raise self._wrong("bad_output", f"An output row of {function} does not fit its schema: {error}.") from None
        try:
            return rows, None if state is None else self._state(state)
        except Misfit as error:
            raise self._wrong("bad_state", f"The state that {function} returned does not fit: {error}.") from None

    def _row(self, given: Any) -> Row:
        row: Row = self._output(given)
        sent = self._send(row)
        return row if sent is row else tuple.__new__(self._sent, sent)

    def _wrong(self, code: str, what: str) -> EpochFailed:
        return EpochFailed(
            code,
            f"{what} (Keyed state by {', '.join(self._told.keys)}.)",
            next=f"Fix the function, {AGAIN}",
        )


class Timers:
    """The timers of one key.

    Note: a timer does not replace an earlier one; to keep only one per key, call `timers.cancel()` first.
    """

    def __init__(self, handle: Any, values: Any, due_ms: int | None = None) -> None:
        self._handle = handle
        self._values = values
        self._due_ms = due_ms
        self._there: set[int] = set()
        self._wanted: set[int] = set()
        self.touched = False
        """Has the user's function used them?"""

    @property
    def now(self) -> datetime:
        """The wall clock when the epoch began; it differs if the epoch has to rerun."""
        return _time(self._values.getCurrentProcessingTimeInMs())

    @property
    def watermark(self) -> datetime:
        """The current watermark."""
        return _time(self._values.getCurrentWatermarkInMs())

    def at(self, when: datetime) -> None:
        """Call `on_timer` once the clock has reached this time; at once if it is in the past."""
        at_ms = _rounded_up(when)
        if at_ms == self._due_ms:
            raise EpochFailed(
                "timer_again",
                "on_timer set a timer for the same time that it was called for.",
                next=f"Set the timer for a later time, {AGAIN}",
            )
        self._list().add(at_ms)

    def cancel(self, when: datetime | None = None) -> None:
        """Cancel the timer for this time, or all timers of the key."""
        wanted = self._list()
        if when is None:
            wanted.clear()
        else:
            wanted.discard(_rounded_up(when))

    def apply(self) -> set[int]:
        """Tell Spark what changed; return what was cancelled."""
        cancelled = self._there - self._wanted
        for at_ms in cancelled:
            self._handle.deleteTimer(at_ms)
        for at_ms in self._wanted - self._there:
            self._handle.registerTimer(at_ms)
        return cancelled

    def _list(self) -> set[int]:
        if not self.touched:
            self.touched = True
            self._there = set(self._handle.listTimers()) - {self._due_ms}
            self._wanted = set(self._there)
        return self._wanted


def _time(milliseconds: int) -> datetime:
    return ZERO + milliseconds * MILLISECOND


def _rounded_up(when: Any) -> int:
    """Milliseconds, as Spark counts; rounded up, because a timer must not be early."""
    if not isinstance(when, datetime) or when.tzinfo is None:
        raise EpochFailed(
            "bad_timer",
            "A timer needs a datetime with a time zone.",
            next="Use a timestamp from the record, timers.now or timers.watermark, and add a timedelta.",
        )
    return -((ZERO - when) // MILLISECOND)


@dataclass(frozen=True)
class MapSettings:
    """What the user said, checked."""

    fn: Callable[[Any], Any]
    record: StructType
    output: StructType
    required: frozenset[str]
    """Columns that are NOT NULL."""
    arrow: pa.Schema
    """The schema of the rows, with the position of their record as the last column."""
    source: str

    @property
    def name(self) -> str:
        """The function's name."""
        return str(getattr(self.fn, "__name__", type(self.fn).__name__))


class Bad(Exception):
    """A bad record: what may be logged about it, and what the dead letter says."""

    def __init__(self, what: str, error: str) -> None:
        self.what = what
        self.error = error.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()[:LONGEST_ERROR]
        super().__init__(what)


class Caller:
    """Calls the user's function, record by record."""

    def __init__(self, told: MapSettings) -> None:
        self.told = told
        self._record, self._receive = row_kind(told.record.names), receiver(told.record)
        self._row, self._send = maker(row_kind(told.output.names)), sender(told.output)
        self._types = {field.name: field.type for field in told.arrow}
        self._position = told.arrow.names[-1]

    def answers(self, batch: pa.RecordBatch) -> Iterator[tuple[Row, str | None, list[dict[str, Any]] | Bad]]:
        """For each record: the record, its position, and its rows or why there are none."""
        for values, position, unread in _values(batch):
            record = tuple.__new__(self._record, values if unread else self._receive(values))
            try:
                if unread:
                    raise Bad(unread, unread)
                yield record, position, [{**row, self._position: position} for row in self._rows(record)]
            except Bad as bad:
                yield record, position, bad

    def _rows(self, record: Row) -> list[dict[str, Any]]:
        told = self.told
        try:
            answer = told.fn(record)
        except MemoryError:
            raise  # not the record's fault
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises
            raise self._raised(error) from None
        if answer is None:
            return []
        try:
            rows = [self._row(given) for given in (answer if isinstance(answer, list) else [answer])]
        except Misfit as error:
            raise EpochFailed(
                "bad_output",
                f"{told.name} did not return a row: {error}.",
                next=f"Fix the function, {AGAIN}",
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
        except Exception:  # noqa: BLE001 - an error whose text cannot be had still makes the record bad
            said = type(error).__name__
        return Bad(f"{type(error).__name__} in {at}", f"{said} ({at})")

    def _check_required(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            for name in self.told.required:
                if row[name] is None:
                    what = f"{self.told.name} returned null for {name}, which is NOT NULL"
                    raise Bad(what, what)

    def _check_arrow(self, rows: list[dict[str, Any]]) -> None:
        """Check each value against its column: Arrow would refuse it later, and quote the value."""
        for row in rows:
            for name, value in row.items():
                try:
                    pa.scalar(value, self._types[name])
                except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                    what = f"{self.told.name} returned a {type(value).__name__} for {name}, which cannot hold it"
                    raise Bad(what, f"{what}: {error}") from None


def _values(batch: pa.RecordBatch) -> Iterator[tuple[tuple[Any, ...], str | None, str]]:
    """For each record: its values, its position, and why it cannot be read, if so."""
    names = batch.schema.names
    try:
        columns = [column.to_pylist() for column in batch.columns]
    except UnicodeDecodeError:  # Spark does not check that a string is valid UTF-8
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

    def __init__(self, told: MapSettings) -> None:
        self._told = told

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What Spark calls in a task."""
        caller = Caller(self._told)
        for batch in batches:
            rows = []
            for _, position, answer in caller.answers(batch):
                if isinstance(answer, Bad):
                    place = f"{self._told.source}, {position or 'position unknown'}"
                    raise EpochFailed("bad_record", f"{answer.what}. The record is at {place}.", next=FIX)
                rows += answer
            yield pa.RecordBatch.from_pylist(rows, schema=self._told.arrow)


class Once:
    """For on_bad_record='dead_letter': one row per record, with its partition, its rows and its dead letter."""

    def __init__(self, told: MapSettings, made: pa.Schema) -> None:
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


@dataclass(frozen=True)
class InTask:
    """Calls the function of a sink that writes in tasks, with what Spark knows about the attempt."""

    write: WriteInTask

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What Spark calls in a task."""
        context: Any = TaskContext.get()
        lineage, _, writer = context.getLocalProperty(OWNER).partition("/")
        epoch = Epoch(int(context.getLocalProperty(EPOCH)))
        return self.write(Attempt(lineage, WriterNumber(int(writer)), epoch), batches)


# Rows and values between the user's function and Spark: named, complete, of the declared types. Spark itself would
# silently store null for a value of another type.


class Misfit(Exception):
    """A row or a value that does not fit its schema; names the field, never the value."""


def row_kind(names: Sequence[str]) -> type[Row]:
    """A Row class where `row.count` and `row.index` are the columns of that name, not a tuple's methods."""
    fields: dict[str, Any] = {name: property(itemgetter(at)) for at, name in enumerate(names)}
    return type("Record", (Row,), {"__fields__": list(names), "_replace": _replaced, **fields})


def maker(kind: Any) -> Convert:
    """Make rows of one kind from tuples (by place), dicts, Rows and named tuples (by name)."""
    wanted, same = kind.__fields__, set(kind.__fields__)

    def make(given: Any) -> Any:
        if type(given) is kind:
            return given
        if isinstance(given, dict):
            own: Any = given
            given_names = list(given)
        elif isinstance(given, tuple):
            given_names = list(getattr(given, "__fields__", getattr(given, "_fields", ())))
            if not given_names or given_names == wanted:
                if len(given) != len(wanted):
                    raise Misfit(f"it has {len(given)} values instead of {len(wanted)} ({', '.join(wanted)})")
                return tuple.__new__(kind, given)
            own = dict(zip(given_names, given, strict=True))
        else:
            raise Misfit(f"a {type(given).__name__} is not a row; a row is a tuple, a dict or a Row")
        if set(given_names) != same:
            missing = [name for name in wanted if name not in own]
            extra = len(set(given_names) - same)
            raise Misfit(f"it lacks {missing}" if missing else f"{extra} unknown names besides ({', '.join(wanted)})")
        return tuple.__new__(kind, [own[name] for name in wanted])

    return make


def _replaced(self: Any, **changes: Any) -> Any:
    """The same row with some fields changed, like a named tuple's `_replace`."""
    values = dict(zip(self.__fields__, self, strict=True))
    if unknown := changes.keys() - values.keys():
        raise ValueError(f"{len(unknown)} unknown names besides ({', '.join(values)})")
    return tuple.__new__(type(self), list((values | changes).values()))


def receiver(schema: StructType) -> Convert:
    """From Arrow's values of a record to the user's. Times are in UTC, because Python's arithmetic in any other zone
    ignores changes to and from summer time, and is an hour off twice a year.
    """
    return _by_field(schema, lambda kind: (lambda value: value.astimezone(UTC)) if _is_time(kind) else None)


def sender(schema: StructType) -> Convert:
    """From the user's output row to Arrow's values."""
    return _by_field(schema, _to_send, arrow=True)


def _to_send(kind: Any) -> Convert | None:
    if kind.typeName() in ("byte", "short", "integer", "long"):
        return _whole  # Arrow would silently cut off a fraction
    return _with_zone if _is_time(kind) else None


def unpacker(schema: StructType) -> Convert:
    """From what Spark stored to the values of the user's state."""
    return _by_field(schema, lambda kind: (lambda value: value.replace(tzinfo=UTC)) if _is_time(kind) else None)


def packer(schema: StructType) -> Convert:
    """From the user's state to what Spark stores, each value checked."""
    convert = _by_field(schema, _pack)
    verifiers = [(field, _make_type_verifier(field.dataType)) for field in schema]

    def pack(row: Sequence[Any]) -> tuple[Any, ...]:
        found = tuple(convert(row))
        for value, (field, verify) in zip(found, verifiers, strict=True):
            try:
                verify(value)
            except (PySparkException, TypeError, ValueError):
                raise _misfit(field, value) from None
        return found

    return pack


def _by_field(schema: StructType, leaf: Leaf, *, arrow: bool = False) -> Convert:
    """Convert the fields that need it; a null stays null."""
    found = [(at, field, _convert(field.dataType, leaf, arrow)) for at, field in enumerate(schema)]
    steps = [(at, field, convert) for at, field, convert in found if convert is not None]
    if not steps:
        return lambda row: row

    def converted(row: Sequence[Any]) -> Sequence[Any]:
        values = list(row)
        for at, field, convert in steps:
            try:
                values[at] = None if values[at] is None else convert(values[at])
            except (TypeError, ValueError, AttributeError, Misfit) as error:
                raise _misfit(field, values[at], error) from None
        return values

    return converted


def _convert(kind: Any, leaf: Leaf, arrow: bool) -> Convert | None:
    """For one type and all its parts; None if there is nothing to do. For Arrow, structs are dicts, maps are pairs."""
    name = kind.typeName()
    if name == "array":
        element = _convert(kind.elementType, leaf, arrow)
        return element and (lambda value: [None if each is None else element(each) for each in value])
    if name == "map":
        key = _convert(kind.keyType, leaf, arrow) or _same
        val = _convert(kind.valueType, leaf, arrow) or _same

        def mapped(value: Any) -> Any:
            pairs = [(key(k), None if v is None else val(v)) for k, v in dict(value).items()]
            return pairs if arrow else dict(pairs)

        return mapped
    if name == "struct":
        make, inner = maker(row_kind(kind.names)), _by_field(kind, leaf, arrow=arrow)
        if arrow:
            return lambda value: dict(zip(kind.names, inner(make(value)), strict=True))
        return lambda value: make(tuple(inner(make(value))))
    return leaf(kind)


def _pack(kind: Any) -> Convert | None:
    if _is_time(kind):
        return lambda value: _with_zone(value).astimezone(UTC).replace(tzinfo=None)
    if kind.typeName() in ("float", "double"):
        return lambda value: float(value) if type(value) is int else value
    if kind.typeName() == "decimal":
        return lambda value: _fitting(value, kind.precision, kind.scale)
    return None


def _is_time(kind: Any) -> bool:
    return bool(kind.typeName() == "timestamp")


def _same(value: Any) -> Any:
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, float | Decimal):
        raise Misfit(f"a {type(value).__name__} is not a whole number")
    return value


def _with_zone(value: Any) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise Misfit("a time without a time zone")
    return value


def _fitting(value: Any, precision: int, scale: int) -> Any:
    """Spark would round it, or store null."""
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        if not isinstance(exponent, int) or -exponent > scale or (value and value.adjusted() >= precision - scale):
            raise Misfit("it has too many digits")
    return value


def _misfit(field: Any, value: Any, error: Exception | None = None) -> Misfit:
    why = f" ({error})" if isinstance(error, Misfit) else ""
    return Misfit(f"field {field.name} is {field.dataType.simpleString()}, but got a {type(value).__name__}{why}")
