"""One epoch of rows into a sink without Spark: the server's own bulk path, the ways by hand, and ours.

raw       bytes built before, sent in one transaction: nothing is faster with this server
by hand   what stands in a foreachBatch once the rows are collected: Arrow → tuples → the client library
ours      stage (fsync) · pre-commit · vote · commit, as the engine calls them; the ledger's two fsyncs are not in it

Connections are open before, and have written the first row. All ways write the same rows into the same new table.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
from bench.sinks_tables import Target, Work, tuples

from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch
from fencepost.testing import SinkDriver

OURS = "fencepost"

Prepare = Callable[[ExitStack, Work, pa.Table], Callable[[], None]]
"""Do what is not measured; what is returned is."""


def ways(target: Target, folder: Path, rows: int) -> dict[str, Prepare]:
    """The server's own way first, ours last."""

    def raw(stack: ExitStack, work: Work, table: pa.Table) -> Callable[[], None]:
        first, send = (target.raw(work, part) for part in parts_of(table))
        connection = stack.enter_context(type(target).connect(target.address))
        first(connection)
        return lambda: send(connection)

    def by_hand(write: Any) -> Prepare:
        def prepare(stack: ExitStack, work: Work, table: pa.Table) -> Callable[[], None]:
            first, rest = parts_of(table)
            connection = stack.enter_context(type(target).connect(target.address))
            write(connection, work, tuples(first))
            return lambda: write(connection, work, tuples(rest))

        return prepare

    def ours(stack: ExitStack, work: Work, table: pa.Table) -> Callable[[], None]:
        driver = SinkDriver(target.sink(work), folder / work.table)
        stack.callback(driver.session.close)
        driver.start(table.schema)
        first, rest = parts_of(table)
        epoch(driver, 0, first)
        return lambda: epoch(driver, 1, rest)

    chosen = {name: by_hand(write) for name, write in target.by_hand.items() if rows <= target.slow.get(name, rows)}
    return {target.raw_title: raw, **chosen, OURS: ours}


def parts_of(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The first row warms caches and prepares statements."""
    return table.slice(0, 1), table.slice(1)


def epoch(driver: SinkDriver, number: int, table: pa.Table) -> None:
    """A whole one, without a failure."""
    session = driver.session
    handles = session.handles(Epoch(number), driver.rows(number, table))
    assert session.verify(Epoch(number), handles) == (), "the vote failed"
    outcomes = session.commit(Epoch(number), handles)
    assert set(outcomes.values()) == {Outcome.DONE}, outcomes


def seconds(target: Target, prepare: Prepare, work: Work, table: pa.Table, before: pa.Table) -> float:
    """Time one way once; `before` is what an upsert finds."""
    target.make(work)
    if work.upsert:
        target.fill(work, before)
    with ExitStack() as stack:
        run = prepare(stack, work, table)
        target.settle()
        gc.collect()
        began = time.perf_counter()
        run()
        taken = time.perf_counter() - began
    assert target.count(work) == table.num_rows, "rows are missing, or there twice"
    target.drop(work)
    return taken
