"""The steps of a start: checks, the lock for state on the heap, recovery, the query.

    refuse BEFORE ─► lock ─► recover ─► refuse AFTER ─► note the plan ─► cut state ─► bridge ─► query

Never runs a query without recovering first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from fencepost import connectors
from fencepost.errors import BadConfig, FencepostError, Where
from fencepost.guarantee import Guarantee
from fencepost.observe import registry
from fencepost.observe.heartbeat import PULSE
from fencepost.runtime.checks import Launch, When, refuse
from fencepost.runtime.driver import Driver
from fencepost.runtime.query import Run
from fencepost.spark import backend, branches, fork, plan, scan, spark_session
from fencepost.spark.diagnosis import at_the_start
from fencepost.spark.heap_lock import StateLock
from fencepost.store import parts
from fencepost.store.path import is_remote


def start(launch: Launch) -> Run:
    """Start the query; after a rewind, once for each epoch that must keep its old range."""
    config, attempt = launch.config, replace(launch)
    attempt.check_readable()
    launch.observer.write_to(config.place)
    if config.is_known:
        registry.note(config.job, config.place, getattr(sys.modules.get("__main__"), "__file__", None))
    try:
        while (run := _start_query(attempt)).carries_one_quiet_epoch():
            attempt = replace(launch)
    except FencepostError as error:
        launch.observer.note_failure(error)
        raise
    PULSE.add(config.place, run.beat)
    return run


def _start_query(launch: Launch) -> Run:
    config, spark = launch.config, launch.spark
    refuse(launch, When.BEFORE)
    driver, bridge = Driver(launch.plan), launch.bridge
    lock = _lock(launch)
    with _undone_if_it_fails(launch, driver, lock):
        driver.recover()
        launch.recovered = driver.book.state
        parts.sweep(config.place)
        refuse(launch, When.AFTER)
        launch.note_plan(driver.writer)
        launch.log.forget(plan.forgetful(launch.whole))
        if lock is not None and config.guarantee is Guarantee.EXACTLY_ONCE:
            backend.cut(config.place, driver.book.state.next_epoch)
        spark_session.leave(spark, launch.lasting)
        files = spark_session.STATE_FILES if launch.jar and not is_remote(config.place) else {}
        formats = driver.book.state.lineage.settings
        more = {**(fork.settings(spark) if launch.proof is not None else {}), **scan.settings(launch.scans)}
        owner = f"{driver.book.state.lineage.generation}-{driver.writer}"
        files = {**files, **backend.owning(formats, owner, _decided_version(launch, driver))}
        wanted = {**formats, **files, **launch.paces, **more, **spark_session.keeping(launch.keep, formats)}
        with branches.owned_by(spark, driver.lineage, driver.writer), spark_session.settings(spark, wanted):
            query = bridge.start(launch.writer.option("checkpointLocation", config.place), driver)
    return Run(query, driver, bridge, launch.observer, lock, awaited=launch.awaited, reads_once=launch.reads_once)


def _decided_version(launch: Launch, driver: Driver) -> int:
    """The newest version of the state that counts; 0 if none does. Without decisions, Spark's own log says it."""
    if launch.config.guarantee is Guarantee.EXACTLY_ONCE:
        return driver.book.state.next_epoch
    return max(launch.log.names("commits"), default=-1) + 1


def _lock(launch: Launch) -> StateLock | None:
    """Taken before recovery: a driver that may not run must not fence the one that does."""
    if (backend.on_heap(launch.formats) and not backend.is_owned(launch.formats)) or launch.has_state_of_format_1:
        return StateLock.take(launch.spark, launch.config.place, launch.config.job)
    return None


@contextmanager
def _undone_if_it_fails(launch: Launch, driver: Driver, lock: StateLock | None) -> Iterator[None]:
    """Release the sinks, the bridge and the lock; turn an error of Spark or the store into one of ours."""
    try:
        yield
    except BaseException as error:
        try:
            driver.close()
        finally:
            if not spark_session.says_gone(error):
                launch.bridge.close()
                # After Ctrl-C during the start the query may be running: then the JVM keeps the lock.
                if lock is not None and (isinstance(error, Exception) or launch.recovered is None):
                    lock.release()
        # Anything else that recovery raises comes from a sink, not from Spark.
        if isinstance(error, FencepostError) or not isinstance(error, Exception) or launch.recovered is None:
            raise
        config = launch.config
        lost = connectors.explain(str(error), config.job)
        raise lost or at_the_start(error, config.job, config.place) from error


_looking = False


@contextmanager
def only_looking() -> Iterator[None]:
    """While a file is run only to find its jobs, none of them may start."""
    global _looking  # noqa: PLW0603 - of the process, like the file that it runs
    _looking = True
    try:
        yield
    finally:
        _looking = False


def is_only_looked_at() -> bool:
    """Is a file being run only to find its jobs?"""
    return _looking


def check_may_start(job: str) -> None:
    """Refuse a start while a file is only being inspected."""
    if _looking:
        raise BadConfig(
            "starts_when_imported",
            "The file starts the job when it is imported.",
            where=Where(job=job),
            next="Move the call that starts it under `if __name__ == '__main__':`.",
        )
