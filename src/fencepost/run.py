"""One running query with its driver and its bridge: recovery before it, a clean end after it."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from fencepost import beginning, state
from fencepost.beginning import Settings
from fencepost.checkpoints import doctor, stale
from fencepost.driver import Driver, Plan
from fencepost.errors import Fenced, FencepostError
from fencepost.failures import at_the_start, from_spark, jvm_lost
from fencepost.guarantee import Guarantee
from fencepost.ledger import Store, place, store_at
from fencepost.ledger.places import is_remote
from fencepost.observe import registry, requests
from fencepost.observe.events import Kind
from fencepost.observe.observer import Observer
from fencepost.observe.pulse import PULSE, Beat, this_driver
from fencepost.sinks.contract import Sink
from fencepost.spark import inspect, keyed, poison, session, tasks, topics
from fencepost.spark.bridge import Bridge
from fencepost.spark.checkpoint import SparkLog
from fencepost.spark.lock import StateLock
from fencepost.unusable import unusable

log = logging.getLogger("fencepost")


ABORT_S = 5.0


class Run:
    """One running query with its driver and bridge."""

    def __init__(
        self, query: Any, driver: Driver, bridge: Bridge, observer: Observer, lock: StateLock | None = None
    ) -> None:
        self.query = query
        self._driver = driver
        self._observer = observer
        self._bridge = bridge
        self._lock = lock
        self._ended = False
        self._one_ends = threading.Lock()
        self._jvm_is_gone = False

    @classmethod
    def start(
        cls, spark: Any, writer: Any, frames: Mapping[str, Any], sinks: Mapping[str, Sink], chosen: Settings
    ) -> Run:
        """Recover, then start the query; after a rewind, once for each epoch that has to keep its old range."""
        observer = chosen.observer
        observer.write_to(chosen.checkpoint)
        if chosen.is_known:
            registry.note(chosen.job, chosen.checkpoint, getattr(sys.modules.get("__main__"), "__file__", None))
        try:
            while True:
                run = cls._launch(spark, writer, frames, sinks, chosen)
                if not run._carry_one_quiet_epoch():
                    PULSE.add(chosen.checkpoint, run.beat)
                    return run
        except FencepostError as error:
            observer.note_failure(error)
            raise

    def _carry_one_quiet_epoch(self) -> bool:
        """Spark takes only the first range from its log; so the query ends after one epoch if more are to follow."""
        left = self._driver.quiet_left
        if left < 2:
            return False
        while self._driver.quiet_left == left and not self.wait(0.05):
            pass
        self.stop()
        return True

    @classmethod
    def _launch(
        cls, spark: Any, writer: Any, frames: Mapping[str, Any], sinks: Mapping[str, Sink], chosen: Settings
    ) -> Run:
        modes = {name: inspect.branch_mode(frame, chosen.mode) for name, frame in frames.items()}
        beginning.check_modes(modes, sinks, chosen.job)
        beginning.check_not_running(spark, chosen.job)
        paces = keyed.paces(frames, writer, chosen.job)
        proof = poison.proof(spark, frames, chosen.job)
        sources = [source for frame in frames.values() for source in inspect.sources_of(frame)]
        jar = chosen.bridge != "foreach_batch" and session.bring_jar(spark)
        bridge = beginning.bridge(spark, chosen, jar=jar)
        store = store_at(chosen.checkpoint)
        try:
            beginning.check_place(spark, store, chosen.job)
            formats = beginning.formats(spark, frames, SparkLog(store), chosen)
            begun = SparkLog(store).identity().ledgers
        except OSError as error:
            raise unusable(error, chosen.job, chosen.checkpoint) from error
        # A job that cannot read begins nothing; one that has begun finishes what is decided, then asks its source.
        found = {} if begun else topics.find(spark, sources, chosen.job)
        beginning.check_fate(chosen, sinks)
        keep = chosen.retained or max(100, session.epochs_retained(spark))
        driver = Driver(
            Plan(
                job=chosen.job,
                store=store,
                sinks=sinks,
                schemas=beginning.schemas(frames, chosen.job),
                modes=modes,
                guarantee=chosen.guarantee,
                formats=formats,
                keep=keep,
                adopt=chosen.adopt,
                sinks_changed=chosen.sinks_changed,
                min_pause_s=chosen.min_pause_s,
                timeout_s=chosen.timeout_s,
                looks_for_leftovers=chosen.deletes,
                observer=chosen.observer,
                tolerance=chosen.tolerance,
                proof=proof,
            )
        )
        lock = _lock(spark, formats, store, chosen)
        try:
            driver.recover()
        except BaseException:
            _let_go(lock)
            raise
        fixed = driver.book.state.lineage.formats
        try:
            stale.sweep(chosen.checkpoint)
            doctor.check_newest(place(chosen.checkpoint), driver.book.state)
            _cut_state(lock, driver, chosen)
            beginning.check_sources(store, driver, sources, found or topics.find(spark, sources, chosen.job))
            keyed.check_beside(fixed, frames, chosen.job)
            session.trust_the_ledger(spark)
            files = session.checkpoint_files(spark, chosen.checkpoint) if jar or is_remote(store.root) else {}
            wanted = {**fixed, **files, **paces, **session.keeping(keep)}
            tasks.name_owner(spark, driver.lineage, driver.book.writer)
            with session.settings(spark, wanted):
                query = bridge.start(writer.option("checkpointLocation", chosen.checkpoint), driver)
        except Exception as error:
            driver.close()
            if not session.says_gone(error):
                bridge.close()
                _let_go(lock)
            if isinstance(error, FencepostError):
                raise
            raise at_the_start(error, chosen.job, chosen.checkpoint) from error
        return cls(query, driver, bridge, chosen.observer, lock)

    @property
    def can_go_on(self) -> bool:
        """Can the query be started again in this process?"""
        return not self._jvm_is_gone

    def seal(self) -> str | None:
        """After a clean end: nobody goes on from this checkpoint. Why not, if that cannot be."""
        return self._driver.seal()

    def wait(self, seconds: float) -> bool:
        """Has the query ended? `end` says how. An epoch that takes too long is ended here."""
        try:
            if self._driver.expire():
                self.query.stop()
            return session.ended(self.query, seconds)
        except session.JvmGone:
            self._jvm_is_gone = True
            return True

    def stop(self) -> None:
        """Let the epoch in flight finish, then end the query."""
        try:
            self._driver.close()
        except FencepostError:
            self.cancel()
            raise
        self.cancel()

    def cancel(self) -> None:
        """End the query now."""
        self._driver.ending.set()
        self.query.stop()
        self.end()

    def abort(self) -> None:
        """End the query now, and wait for no sink: what one still holds ends with this process, or is swept later."""

        def try_to() -> None:
            with suppress(Exception):  # nobody is there any more to be told
                self.cancel()

        ending = threading.Thread(target=try_to, daemon=True)
        ending.start()
        ending.join(ABORT_S)

    def ask(self, wish: requests.Wish) -> None:
        """As somebody from outside would: for a callback, which is called by what it would wait for."""
        requests.leave(self._driver.checkpoint, wish, self._driver.book.writer)

    def wish(self) -> requests.Wish | None:
        """What somebody asks of this driver from outside."""
        return requests.find(self._driver.checkpoint, self._driver.book.writer)

    def beat(self) -> Beat | None:
        """What this driver says of itself; None while an epoch is stuck in a sink."""
        driver = self._driver
        job = driver.book.state.lineage.job
        return None if driver.is_stuck else this_driver(job, driver.book.writer, driver.finished)

    def end_by_itself(self, cancel: Callable[[], None] | None = None) -> None:
        """Let go when the query ends; whoever holds the query is told by it, and the log has our own words."""

        def wait_and_end() -> None:
            try:
                while not self.wait(1):
                    if (wish := self.wish()) is not None:
                        self.stop() if wish == "stop" else (cancel or self.cancel)()
                self.end()
            except FencepostError as error:
                log.error("%s", error)  # noqa: TRY400 - four lines, as everywhere; the query has the trace

        threading.Thread(target=wait_and_end, name="fencepost-end", daemon=True).start()

    def end(self) -> None:
        """The query is over: note what is done, let go of everything, raise what ended it.

        Whoever comes second waits for the first, who is told.
        """
        with self._one_ends:
            if not self._ended:
                self._ended = True
                try:
                    self._end()
                    self._observer.note(Kind.STOPPED)
                    requests.take_back(self._driver.checkpoint, self._driver.book.writer)
                except FencepostError as error:  # a wish stays, for whoever would start it again
                    self._observer.note_failure(error)
                    raise
                finally:
                    PULSE.remove(self._driver.checkpoint, self.beat)

    def _end(self) -> None:
        failed = None if self._jvm_is_gone else self.query.exception()
        try:
            self._driver.close()
        except FencepostError:
            if not self._jvm_is_gone:  # a remote checkpoint is reached through it
                raise
        finally:
            if not self._jvm_is_gone:
                self._bridge.close()
                self._release()
        if self._jvm_is_gone:
            raise jvm_lost(self._driver.book.state.lineage.job)
        if isinstance(self._driver.failure, Fenced):
            raise self._driver.failure from None  # the symptom that led to it would only mislead
        if self._driver.failure is not None:
            raise self._driver.failure
        if failed is not None and not self._driver.turned_away:
            # Spark itself may be the first to stumble over what a newer driver did to its log or its staged files.
            if (fenced := self._driver.fenced()) is not None:
                raise fenced from failed
            doctor.check_newest(place(self._driver.checkpoint), self._driver.book.state, str(failed))
            raise from_spark(failed, self._driver.book.state.lineage.job) from failed

    def _release(self) -> None:
        if self._lock is not None and not self._lock.release(str(self.query.runId)):
            job = self._driver.book.state.lineage.job
            log.warning("job %s: tasks of the query still run; no other may use its state before they end", job)


def _lock(spark: Any, formats: Mapping[str, str], store: Store, chosen: Settings) -> StateLock | None:
    """Before recovery: a driver that may not run must not fence the one that does."""
    if state.on_heap(formats) or (not formats and SparkLog(store).has_state_of_format_1()):
        return StateLock.take(spark, chosen.checkpoint, chosen.job)
    return None


def _cut_state(lock: StateLock | None, driver: Driver, chosen: Settings) -> None:
    if lock is None or chosen.guarantee is not Guarantee.EXACTLY_ONCE:
        return
    try:
        state.cut(chosen.checkpoint, driver.book.state.next_epoch)
    except OSError as error:
        raise unusable(error, chosen.job, chosen.checkpoint) from error


def _let_go(lock: StateLock | None) -> None:
    if lock is not None:
        lock.release()
