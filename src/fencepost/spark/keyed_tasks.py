"""The tasks' side of keyed state: a key's records of one epoch go through the user's function, its state in hand.

read state ── fn(record, state) for each record ── write state if it changed ── set and cancel timers

Every call of the state costs some 75 µs, so there is one read and one write per key and epoch, and timers are listed
once. Never puts a row's value into an error: these texts are logged.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import Row
from pyspark.sql.types import StructType

from fencepost import faults
from fencepost.errors import EpochFailed
from fencepost.spark.keyed_values import Misfit, maker, packer, receiver, row_kind, sender, unpacker

STATE = "state"
"""The name of the state variable in the checkpoint; another name would be another state."""

ZERO = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Told:
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
        """The state's schema as Spark keeps it: Spark gives a TIMESTAMP back in local time, where some hours mean two;
        without a zone, and in UTC, it comes back as it went.
        """
        text = re.sub(r'"(type|elementType|keyType|valueType)":"timestamp"', r'"\1":"timestamp_ntz"', self.state.json())
        return StructType.fromJson(json.loads(text))


class KeyedState:
    """What Spark calls a stateful processor."""

    def __init__(self, told: Told) -> None:
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
        """Nothing is held."""

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
        """The state, and a copy to compare with that no user's function can change."""
        stored = self._value.get()
        if stored is None:
            return None, None
        state = tuple.__new__(self._stored, self._unpack(stored))
        return state, copy.deepcopy(state) if self._mutable else state

    def _write(self, before: Any, after: Any) -> None:
        if after is None:
            if before is not None:
                self._value.clear()
        elif before is None or before != after or self._told.ttl_ms is not None:  # each write begins the ttl anew
            try:
                packed = self._pack(after)
            except Misfit as error:
                raise self._wrong("bad_state", f"The state returned for a key does not fit: {error}.") from None
            self._value.update(packed)
            faults.reach("state.task.written")

    def _forget_timers(self, had: bool, state: Any, timers: Timers) -> None:
        if state is None and self._told.on_timer is not None and (had or timers.touched):
            timers.cancel()

    def _answer(self, answer: Any, function: str) -> tuple[list[Row], Any]:
        """What the user's function returned, in one form."""
        if not isinstance(answer, tuple) or len(answer) != 2:
            told = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else f"a {type(answer).__name__}"
            raise self._wrong("bad_answer", f"{function} returned {told}; it must return a pair (output, state).")
        output, state = answer
        try:
            if output is None:
                rows = []
            else:
                rows = [self._row(given) for given in (output if isinstance(output, list) else [output])]
        except Misfit as error:
            raise self._wrong("bad_output", f"An output row of {function} does not fit: {error}.") from None
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
            next="Mend the function, then start the job again: the epoch runs again from the same positions.",
        )


class Timers:
    """The timers of one key.

    The mistake people make: setting a timer per record and forgetting the one before. `timers.cancel()` first.
    """

    def __init__(self, handle: Any, values: Any, due_ms: int | None = None) -> None:
        self._handle = handle
        self._values = values
        self._due_ms = due_ms
        self._there: set[int] = set()
        self._wanted: set[int] = set()
        self.touched = False
        """Has anything been asked of them?"""

    @property
    def now(self) -> datetime:
        """The clock on the wall when the epoch began; another one if it has to run again before it was decided."""
        return _time(self._values.getCurrentProcessingTimeInMs())

    @property
    def watermark(self) -> datetime:
        """Where event time stands."""
        return _time(self._values.getCurrentWatermarkInMs())

    def at(self, when: datetime) -> None:
        """Let `on_timer` be called once the clock has reached this time; at once if it is past."""
        at_ms = _rounded_up(when)
        if at_ms == self._due_ms:
            raise EpochFailed(
                "timer_again",
                "on_timer sets a timer for the very time that it is called for.",
                next="Set it for a later time.",
            )
        self._list().add(at_ms)

    def cancel(self, when: datetime | None = None) -> None:
        """Cancel the timer of this time, or all timers of the key."""
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
    """Milliseconds, as Spark counts; up, for a timer must not be early."""
    if not isinstance(when, datetime) or when.tzinfo is None:
        raise EpochFailed(
            "bad_timer",
            "A timer is set for a datetime with a zone, and this is none.",
            next="Use a timestamp of the record, timers.now or timers.watermark, and add a timedelta.",
        )
    return -((ZERO - when) // MILLISECOND)
