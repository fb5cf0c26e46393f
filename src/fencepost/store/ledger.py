"""Reads a checkpoint's ledger, while its job runs or after it died. Never writes, and never takes over."""

from __future__ import annotations

from typing import Any

from fencepost.errors import UNCHANGED, CheckpointRefused, Where
from fencepost.protocol.append import read_ledger
from fencepost.protocol.effects import Names, Read, Step
from fencepost.protocol.order import State
from fencepost.store import Place, Store, place, store_at
from fencepost.store.base import record_name, record_numbers
from fencepost.store.refusal import unreadable
from fencepost.store.spark_log import SparkLog


def read(path: str | Place) -> State:
    """What a checkpoint's ledger says now, verified record by record; `CheckpointRefused` if it is damaged."""
    where = Where(path=str(path))
    store = store_at(path)
    log = SparkLog(store)
    try:
        found = log.identity()
        ledgers = found.ledgers
        if found.metadata:
            ledgers = tuple(name for name in ledgers if name == found.metadata)
        if len(ledgers) != 1:
            what = "has no ledger for the query named in its metadata" if found.ledgers else "contains no ledger"
            raise CheckpointRefused(
                "no_ledger",
                f"The folder {what}." if place(path).is_dir() else "The folder does not exist.",
                where=where,
                safe=UNCHANGED,
                next="Pass the folder that the job uses as checkpoint=…; it contains `metadata` and `fencepost`.",
            )
        return _run(read_ledger(ledgers[0], ""), store)
    except OSError as error:
        raise unreadable(error, str(path)) from error
    except CheckpointRefused as error:
        error.where = where
        raise


def _run(step: Step[State], store: Store) -> State:
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
                answer = record_numbers(store, lineage)
                store.expect(record_name(lineage, number) for number in answer)
            case Read(lineage=lineage, number=number):
                answer = store.read(record_name(lineage, number))
            case _:
                raise AssertionError(f"{type(effect).__name__} does more than read")
