"""Tests whether a store has the properties that a ledger depends on, before anything is entrusted to it.

    exclusive           a name that is taken cannot be created again, and if two race for a name, one wins
    read after write    a created file can be read back immediately, complete
    list after write    and it is listed immediately

The test can prove that a property is missing, not that it is present: a store that fails only sometimes may pass.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from fencepost.errors import BadConfig, Where
from fencepost.store.base import Store, Unanswered
from fencepost.store.retry import at_most, surely_created

RACES = 3
PATIENCE_S = 20.0

_passed: set[str] = set()
"""Roots that passed in this process."""


def check_store(store: Store, job: str) -> None:
    """Refuse a store that lacks a property, naming the property; tested once per checkpoint and process."""
    if store.root in _passed:
        return
    folder = f"fencepost/trial/{uuid.uuid4().hex}"
    try:
        with at_most(PATIENCE_S):
            missing = _missing(store, folder)
    finally:
        with at_most(0), suppress(OSError):  # leftovers are small, and the result matters more
            store.delete(folder)
    if missing is not None:
        raise BadConfig(
            "store_unfit",
            f"This store lacks a property that a ledger depends on: {missing}.",
            where=Where(job=job, path=store.root),
            next="Use a store that has it: HDFS, Amazon S3, or an S3-compatible one whose PUT honours "
            "`If-None-Match: *`, even for two concurrent requests.",
        )
    _passed.add(store.root)


def _missing(store: Store, folder: str) -> str | None:
    name, data = f"{folder}/one", uuid.uuid4().bytes
    if not surely_created(store, name, data) or store.read(name) != data:
        return "read after write"
    if store.list(folder) != ("one",):
        return "list after write"
    with suppress(Unanswered):  # what the file contains says more than any answer
        store.create(name, b"another")
    if store.read(name) != data:
        return "exclusive create (an existing file was created again)"
    with ThreadPoolExecutor(2 * RACES) as pool:
        lost = sum(_race(store, f"{folder}/race-{race}", pool) for race in range(RACES))
    return f"exclusive create (two concurrent creates both succeeded, in {lost} of {RACES} races)" if lost else None


def _race(store: Store, name: str, pool: ThreadPoolExecutor) -> bool:
    """Was a racer told that it won, although the file does not have its bytes?"""
    start = threading.Barrier(2)

    def run(data: bytes) -> bool:
        start.wait(PATIENCE_S)
        with suppress(Unanswered):  # no answer is not a win
            return store.create(name, data)
        return False

    racers = {data: pool.submit(run, data) for data in (b"left", b"right")}
    winners = [data for data, racer in racers.items() if racer.result()]
    found = store.read(name)
    # Perhaps neither was told that it won: a client that retries finds its own first attempt in the way.
    return any(data != found for data in winners)
