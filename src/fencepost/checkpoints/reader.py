"""Reads a checkpoint's ledger, while a job runs on it or after it died. Never writes, and never takes over."""

from __future__ import annotations

from pathlib import Path

from fencepost.errors import UNCHANGED, CheckpointRefused, Where
from fencepost.ledger import LocalStore
from fencepost.perform import Performer
from fencepost.protocol.append import read_ledger
from fencepost.protocol.order import State
from fencepost.spark.checkpoint import SparkLog


def read(path: str | Path) -> State:
    """What a checkpoint's ledger says now, verified record by record; `CheckpointRefused` if it cannot be trusted."""
    where = Where(path=str(path))
    store = LocalStore(path)
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
                f"The folder {what}." if Path(path).is_dir() else "There is no such folder.",
                where=where,
                safe=UNCHANGED,
                next="Give the folder that the job has as checkpoint=…; it holds `metadata` and `fencepost`.",
            )
        return Performer("", store, log, {}).run(read_ledger(ledgers[0], ""))
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
