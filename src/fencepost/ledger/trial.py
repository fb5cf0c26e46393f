"""Tries whether a store has what a ledger rests on, before anything is trusted to it.

    exclusive           a name that is taken cannot be created again, and of two that race for one name one wins
    read after write    what was created is read back, whole, at once
    list after write    and it is listed at once

A trial can prove that a property is missing, not that it is there: a store that fails now and then may pass.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from fencepost.errors import BadConfig, Where
from fencepost.ledger.patience import at_most, surely_created
from fencepost.ledger.store import Store, Unanswered

RACES = 3
PATIENCE_S = 20.0

_passed: set[str] = set()
"""Roots, in this process."""


def check_store(store: Store, job: str) -> None:
    """Refuse a store that lacks a property, with its name; once for each checkpoint and process."""
    if store.root in _passed:
        return
    folder = f"fencepost/trial/{uuid.uuid4().hex}"
    try:
        with at_most(PATIENCE_S):
            missing = _missing(store, folder)
    finally:
        with at_most(0), suppress(OSError):  # what stays is small, and the reason matters more
            store.delete(folder)
    if missing is not None:
        raise BadConfig(
            "store_unfit",
            f"This store lacks what a ledger rests on: {missing}.",
            where=Where(job=job, path=store.root),
            next="Use a store that has it: HDFS, Amazon S3, or an S3-compatible one whose PUT honours "
            "`If-None-Match: *`, also when two come at once.",
        )
    _passed.add(store.root)


def _missing(store: Store, folder: str) -> str | None:
    name, data = f"{folder}/one", uuid.uuid4().bytes
    if not surely_created(store, name, data) or store.read(name) != data:
        return "read after write"
    if store.list(folder) != ("one",):
        return "list after write"
    with suppress(Unanswered):  # what is there then says more than any answer
        store.create(name, b"another")
    if store.read(name) != data:
        return "exclusive create (a name that was taken was created again)"
    with ThreadPoolExecutor(2 * RACES) as pool:
        lost = sum(_race(store, f"{folder}/race-{race}", pool) for race in range(RACES))
    return f"exclusive create (of two at once both won, in {lost} of {RACES} races)" if lost else None


def _race(store: Store, name: str, pool: ThreadPoolExecutor) -> bool:
    """Was anybody told that he won, and his bytes are not there?"""
    start = threading.Barrier(2)

    def run(data: bytes) -> bool:
        start.wait(PATIENCE_S)
        with suppress(Unanswered):  # told nothing
            return store.create(name, data)
        return False

    racers = {data: pool.submit(run, data) for data in (b"left", b"right")}
    winners = [data for data, racer in racers.items() if racer.result()]
    found = store.read(name)
    # Nobody may have been told that he won: a client that asked a second time meets its own first try.
    return any(data != found for data in winners)
