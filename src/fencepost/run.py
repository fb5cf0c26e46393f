"""One running query with its driver and its bridge: recovery before it, a clean end after it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fencepost import state
from fencepost.checkpoints import doctor, reader, stale
from fencepost.driver import Driver, Plan, unusable
from fencepost.errors import BadConfig, Fenced, FencepostError, Where
from fencepost.failures import at_the_start, from_spark, jvm_lost
from fencepost.guarantee import Guarantee
from fencepost.ledger import LocalStore
from fencepost.sinks.contract import HOW_TO_TAKE, OutputMode, Sink
from fencepost.spark import branches, inspect, keyed, named, session, tasks, topics
from fencepost.spark.bridge import Bridge, ForeachBatchBridge, JvmBridge
from fencepost.spark.checkpoint import SparkLog
from fencepost.spark.lock import StateLock
from fencepost.state import Backend

BridgeName = Literal["jvm", "foreach_batch"]

log = logging.getLogger("fencepost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a start needs to know besides the DataFrame and its sinks."""

    job: str
    checkpoint: str
    guarantee: Guarantee
    mode: str
    bridge: BridgeName | None = None
    adopt: bool = False
    sinks_changed: bool = False
    state: Backend | None = None
    min_pause_s: float = 0.0
    timeout_s: float | None = None
    retained: int | None = None
    deletes: bool = False
    """Will the checkpoint be deleted when the job is cancelled?"""


class Run:
    """One running query with its driver and bridge."""

    def __init__(self, query: Any, driver: Driver, bridge: Bridge, lock: StateLock | None = None) -> None:
        self.query = query
        self._driver = driver
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
        while True:
            run = cls._launch(spark, writer, frames, sinks, chosen)
            if not run._carry_one_quiet_epoch():
                return run

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
        _check_modes(modes, sinks, chosen.job)
        _check_not_running(spark, chosen.job)
        paces = keyed.paces(frames, writer, chosen.job)
        sources = [source for frame in frames.values() for source in inspect.sources_of(frame)]
        jar = chosen.bridge != "foreach_batch" and session.bring_jar(spark)
        bridge = _bridge(spark, chosen, jar=jar)
        store = LocalStore(chosen.checkpoint)
        try:
            formats = _formats(spark, frames, SparkLog(store), chosen)
            begun = SparkLog(store).identity().ledgers
        except OSError as error:
            raise unusable(error, chosen.job, chosen.checkpoint) from error
        # A job that cannot read begins nothing; one that has begun finishes what is decided, then asks its source.
        found = {} if begun else topics.find(spark, sources, chosen.job)
        _check_fate(chosen, sinks)
        keep = chosen.retained or max(100, session.epochs_retained(spark))
        driver = Driver(
            Plan(
                job=chosen.job,
                store=store,
                sinks=sinks,
                schemas=_schemas(frames, chosen.job),
                modes=modes,
                guarantee=chosen.guarantee,
                formats=formats,
                keep=keep,
                adopt=chosen.adopt,
                sinks_changed=chosen.sinks_changed,
                min_pause_s=chosen.min_pause_s,
                timeout_s=chosen.timeout_s,
                looks_for_leftovers=chosen.deletes,
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
            doctor.check_newest(Path(chosen.checkpoint), driver.book.state)
            _cut_state(lock, driver, chosen)
            _check_sources(store, driver, sources, found or topics.find(spark, sources, chosen.job))
            keyed.check_beside(fixed, frames, chosen.job)
            session.trust_the_ledger(spark)
            files = session.use_durable_files(spark) if jar else {}
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
        return cls(query, driver, bridge, lock)

    @property
    def got_on(self) -> bool:
        """Has this start carried an epoch to its end?"""
        return self._driver.finished is not None

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
        finally:
            self.cancel()

    def cancel(self) -> None:
        """End the query now."""
        self._driver.ending.set()
        self.query.stop()
        self.end()

    def end_by_itself(self) -> None:
        """Let go when the query ends; whoever holds the query is told by it, and the log has our own words."""

        def wait_and_end() -> None:
            while not self.wait(1):
                pass
            try:
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
                self._end()

    def _end(self) -> None:
        failed = None if self._jvm_is_gone else self.query.exception()
        try:
            self._driver.close()
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
            doctor.check_newest(Path(self._driver.checkpoint), self._driver.book.state, str(failed))
            raise from_spark(failed, self._driver.book.state.lineage.job) from failed

    def _release(self) -> None:
        if self._lock is not None and not self._lock.release(str(self.query.runId)):
            job = self._driver.book.state.lineage.job
            log.warning("job %s: tasks of the query still run; no other may use its state before they end", job)


def _check_not_running(spark: Any, job: str) -> None:
    if job in session.running(spark):
        # Recovery would take the checkpoint from the living query, and Spark would then refuse the new one.
        raise BadConfig(
            "already_running",
            "A query of this name runs in this session.",
            where=Where(job=job),
            next="Stop it first (job.stop(), or query.stop()).",
        )


def _check_modes(modes: Mapping[str, OutputMode], sinks: Mapping[str, Sink], job: str) -> None:
    for name, sink in sinks.items():
        if modes[name] not in sink.capabilities.modes:
            raise BadConfig(
                "mode_does_not_fit",
                f"This sink, as it is set up, does not take rows of output mode {modes[name]}.",
                where=Where(job=job, sink=name),
                next=(modes[name] == "update" and sink.capabilities.remedy) or HOW_TO_TAKE[modes[name]],
            )


def _check_fate(chosen: Settings, sinks: Mapping[str, Sink]) -> None:
    """Before recovery, which removes what only a rewind to another fate would need."""
    known = state.begun(chosen.checkpoint)
    if known is None or known.fate != "overwrite":
        return
    try:
        newest = reader.read(chosen.checkpoint).newest
    except FencepostError:
        return  # recovery has the words for it
    for name, sink in sinks.items():
        if newest is not None and newest.cause == "restore" and not sink.capabilities.replaces:
            raise BadConfig(
                "overwrite_needs_key",
                "This lineage was begun to write epochs over what its targets hold, and this sink has no key to find "
                "the old rows by.",
                where=Where(job=chosen.job, sink=name),
                next="Give the sink a key=…, or go on from the same epoch with quiet (nothing is written twice) or "
                "again (into an emptied target).",
            )


def _lock(spark: Any, formats: Mapping[str, str], store: LocalStore, chosen: Settings) -> StateLock | None:
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


def _schemas(frames: Mapping[str, Any], job: str) -> dict[str, Any]:
    found = {}
    for name, frame in frames.items():
        try:
            found[name] = branches.arrow_schema(frame)
        except FencepostError as error:
            raise error.at(job=job, sink=name) from None
    return found


def _formats(spark: Any, frames: Mapping[str, Any], log: SparkLog, chosen: Settings) -> Mapping[str, str]:
    """Chosen at the first start; every later one, and that of an adopted checkpoint, keeps its own."""
    found = log.identity()
    known = state.begun(chosen.checkpoint)
    sources = [source for frame in frames.values() for source in inspect.sources_of(frame)]
    if known is not None:
        named.check_begun_alike(known.formats, sources, chosen.job)
        state.check_same(chosen.state, known.formats, job=chosen.job, path=chosen.checkpoint)
        return known.formats
    if not (chosen.adopt and found.epochs and not found.ledgers):
        states = set().union(*map(inspect.states_of, frames.values()))
        picked = state.formats(chosen.state or state.RocksDB())
        keyed_state = session.KEYED_STATE if states == {inspect.KEYED_STATE} else {}
        return {**picked, **keyed_state, **named.formats(sources, chosen.job)}
    state.check_same(chosen.state, {}, job=chosen.job, path=chosen.checkpoint)
    named.check_begun_alike({}, sources, chosen.job)
    if log.has_state_of_format_1() and not spark.sparkContext.master.startswith("local["):
        raise BadConfig(
            "state_format_1",
            "This checkpoint has state of format 1, in which any attempt may overwrite the state of another.",
            where=Where(job=chosen.job, path=chosen.checkpoint),
            next="Adopt it with a local master (one executor), or begin a new checkpoint.",
        )
    return {}


def _check_sources(
    store: LocalStore, driver: Driver, sources: Sequence[inspect.PlanSource], found: Mapping[str, set[str]]
) -> None:
    job = driver.book.state.lineage.job
    try:
        lineages = (driver.lineage, *reversed(driver.book.state.lineage.ancestors))
        topics.check_same(store, lineages, found, job)
        named.check_none_returns(store, sources, job)
    except OSError as error:
        raise unusable(error, job, store.root) from error


def _bridge(spark: Any, chosen: Settings, *, jar: bool) -> Bridge:
    if chosen.bridge not in (None, "jvm", "foreach_batch"):
        raise BadConfig(
            "unknown_bridge",
            f"There is no bridge {chosen.bridge!r}.",
            where=Where(job=chosen.job),
            next="Use 'jvm' or 'foreach_batch'.",
        )
    if chosen.bridge == "jvm" and not jar:
        raise BadConfig(
            "no_jar",
            "This session takes no jar, and bridge='jvm' needs ours.",
            where=Where(job=chosen.job),
            next="Start the session with the jar (fencepost.spark.session.JAR) in spark.driver.extraClassPath and "
            "spark.executor.extraClassPath, or use bridge='foreach_batch'.",
        )
    return JvmBridge(spark) if jar else ForeachBatchBridge(spark)
