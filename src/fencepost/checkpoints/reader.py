"""Reads a checkpoint's ledger, while a job runs on it or after it died. Never writes, and never takes over."""

from __future__ import annotations

from typing import Any

from fencepost.errors import UNCHANGED, CheckpointRefused, Where
from fencepost.ledger import Place, Store, place, store_at
from fencepost.ledger.names import ledger_folder, record_name
from fencepost.protocol.append import read_ledger
from fencepost.protocol.effects import Names, Read, Step
from fencepost.protocol.order import State
from fencepost.spark.checkpoint import SparkLog


def read(path: str | Place) -> State:
    """What a checkpoint's ledger says now, verified record by record; `CheckpointRefused` if it cannot be trusted."""
    where = Where(path=str(path))
    store = store_at(path)
    log = SparkLog(store)
    try:
        found = log.identity()
        ledgers = found.ledgers
        if found.metadata:
            ledgers = tuple(name for name in ledgers if name == found.metadata)
        if len(ledgers) != 1:
            what = "has no ledger of the query that its metadata names" if found.ledgers else "holds no ledger"
            raise CheckpointRefused(
                "no_ledger",
                f"The folder {what}." if place(path).is_dir() else "There is no such folder.",
                where=where,
                safe=UNCHANGED,
                next="Give the folder that the job has as checkpoint=…; it holds `metadata` and `fencepost`.",
            )
        return _run(read_ledger(ledgers[0], ""), store)
    except OSError as error:
        raise CheckpointRefused(
            "checkpoint_unreadable",
            f"The checkpoint cannot be read: {error.strerror}.",
            where=where,
            safe=UNCHANGED,
            next="Give a folder that you may read.",
        ) from error
    except CheckpointRefused as error:
        error.where = where
        raise


def _run(step: Step[State], store: Store) -> State:
    """The protocol asks for two things only; whoever just looks needs nothing of what writes rows."""
    answer: Any = None
    while True:
        try:
            effect = step.send(answer)
        except StopIteration as stop:
            state: State = stop.value
            return state
        match effect:
            case Names(lineage=lineage):
                names = store.list(ledger_folder(lineage))
                answer = tuple(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit())
                store.expect(record_name(lineage, number) for number in answer)
            case Read(lineage=lineage, number=number):
                answer = store.read(record_name(lineage, number))
            case _:
                raise AssertionError(f"{type(effect).__name__} is no look")
