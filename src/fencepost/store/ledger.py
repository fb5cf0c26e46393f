"""Reads a checkpoint's ledger, while its job runs or after it died. Never writes, and never takes over."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from fencepost.errors import UNCHANGED, CheckpointRefused, Where
from fencepost.protocol.append import read_ledger
from fencepost.protocol.effects import Names, Read, Step
from fencepost.protocol.order import State
from fencepost.store import Place, Store, place, store_at
from fencepost.store.base import record_name, record_numbers
from fencepost.store.refusal import unreadable
from fencepost.store.spark_log import SparkLog

REMEMBERED: Final = 2000
"""Records that somebody who looks again and again keeps in memory."""


def read(path: str | Place) -> State:
    """What a checkpoint's ledger says now, verified record by record; `CheckpointRefused` if it is damaged."""
    store = store_at(path)

    def names(lineage: str) -> tuple[int, ...]:
        numbers = record_numbers(store, lineage)
        store.expect(record_name(lineage, number) for number in numbers)
        return numbers

    with _told(path):
        return _run(read_ledger(_lineage(path, store), ""), names, store.read)


class LedgerReader:
    """For somebody who looks again and again: a record never changes, and only the next number can be new. So a record
    is read once, and a long ledger is listed once.
    """

    def __init__(self, path: str | Place) -> None:
        self.store = store_at(path)
        self._path = path
        self._metadata: bytes | None = None
        self._lineage = ""
        self._numbers: list[int] = []
        self._records: OrderedDict[str, bytes] = OrderedDict()

    def state(self, most: int) -> State:
        """As `read`, but only about `most` of the newest records are read, and the state has only their decisions."""

        def names(lineage: str) -> tuple[int, ...]:
            numbers = self.numbers()
            soon = [record_name(lineage, number) for number in numbers[-most - 1 :]]
            self.store.expect(name for name in soon if name not in self._records)
            return numbers

        with _told(self._path):
            metadata = self.store.read("metadata")
            if metadata is None or metadata != self._metadata:  # the first look, or a restore since the last one
                self._lineage, self._numbers = _lineage(self._path, self.store), []
                self._metadata = metadata
            return _run(read_ledger(self._lineage, "", most), names, self._read)

    def record(self, number: int) -> bytes:
        """The bytes of a record; none if retention took it."""
        return self._read(record_name(self._lineage, number)) or b""

    def numbers(self) -> tuple[int, ...]:
        """Of the records that there are, ascending, and of those that retention took meanwhile."""
        if not self._numbers:
            self._numbers = list(record_numbers(self.store, self._lineage))
        while self._numbers and self.record(self._numbers[-1] + 1):
            self._numbers.append(self._numbers[-1] + 1)
        return tuple(self._numbers)

    def _read(self, name: str) -> bytes | None:
        data = self._records.get(name)
        if data is None and (data := self.store.read(name)) is not None:
            self._records[name] = data
            if len(self._records) > REMEMBERED:
                self._records.popitem(last=False)
        return data


@contextmanager
def _told(path: str | Place) -> Iterator[None]:
    """Say where, in the words of our own errors."""
    try:
        yield
    except OSError as error:
        raise unreadable(error, str(path)) from error
    except CheckpointRefused as error:
        error.where = Where(path=str(path))
        raise


def _lineage(path: str | Place, store: Store) -> str:
    """The one whose ledger counts."""
    found = SparkLog(store).identity()
    ledgers = found.ledgers
    if found.metadata:
        ledgers = tuple(name for name in ledgers if name == found.metadata)
    if len(ledgers) != 1:
        what = "has no ledger for the query named in its metadata" if found.ledgers else "contains no ledger"
        raise CheckpointRefused(
            "no_ledger",
            f"The folder {what}." if place(path).is_dir() else "The folder does not exist.",
            safe=UNCHANGED,
            next="Pass the folder that the job uses as checkpoint=…; it contains `metadata` and `fencepost`.",
        )
    return ledgers[0]


def _run(
    step: Step[State], names: Callable[[str], tuple[int, ...]], read_record: Callable[[str], bytes | None]
) -> State:
    """Reading needs only two effects, so nothing that writes rows has to be imported."""
    answer: Any = None
    while True:
        try:
            effect = step.send(answer)
        except StopIteration as stop:
            state: State = stop.value
            return state
        match effect:
            case Names(lineage=lineage):
                answer = names(lineage)
            case Read(lineage=lineage, number=number):
                answer = read_record(record_name(lineage, number))
            case _:
                raise AssertionError(f"{type(effect).__name__} does more than read")
