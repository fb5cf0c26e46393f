"""One running query with its driver and its bridge: recovery before it, a clean end after it."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fencepost.driver import Driver, Plan, unusable
from fencepost.errors import BadConfig, EpochFailed, Fenced, FencepostError, Where
from fencepost.guarantee import Guarantee
from fencepost.ledger import LocalStore
from fencepost.sinks.contract import HOW_TO_TAKE, Sink
from fencepost.spark import branches, inspect, session, tasks, topics
from fencepost.spark.bridge import Bridge, ForeachBatchBridge, JvmBridge
from fencepost.spark.checkpoint import SparkLog

BridgeName = Literal["jvm", "foreach_batch"]

WHATEVER_IS_DECIDED = (
    "Safe: what is decided is finished at the next start; what is not decided is not visible, and runs again."
)

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


class Run:
    """One running query with its driver and bridge."""

    def __init__(self, query: Any, driver: Driver, bridge: Bridge) -> None:
        self.query = query
        self._driver = driver
        self._bridge = bridge
        self._ended = False
        self._jvm_is_gone = False

    @classmethod
    def start(
        cls, spark: Any, writer: Any, frames: Mapping[str, Any], sinks: Mapping[str, Sink], chosen: Settings
    ) -> Run:
        """Recover, then start the query."""
        modes = {name: inspect.branch_mode(frame, chosen.mode) for name, frame in frames.items()}
        for name, sink in sinks.items():
            if modes[name] not in sink.capabilities.modes:
                raise BadConfig(
                    "mode_does_not_fit",
                    f"This sink, as it is set up, does not take rows of output mode {modes[name]}.",
                    where=Where(job=chosen.job, sink=name),
                    next=(modes[name] == "update" and sink.capabilities.remedy) or HOW_TO_TAKE[modes[name]],
                )
        if chosen.job in session.running(spark):
            # Recovery would take the checkpoint from the living query, and Spark would then refuse the new one.
            raise BadConfig(
                "already_running",
                "A query of this name runs in this session.",
                where=Where(job=chosen.job),
                next="Stop it first (job.stop(), or query.stop()).",
            )
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
        driver = Driver(
            Plan(
                job=chosen.job,
                store=store,
                sinks=sinks,
                schemas=_schemas(frames, chosen.job),
                modes=modes,
                guarantee=chosen.guarantee,
                formats=formats,
                keep=max(100, session.epochs_retained(spark)),
                adopt=chosen.adopt,
            )
        )
        driver.recover()
        fixed = driver.book.state.lineage.formats
        try:
            _check_topics(store, driver, found or topics.find(spark, sources, chosen.job))
            session.trust_the_ledger(spark)
            wanted = {**fixed, **(session.use_durable_files(spark) if jar else {})}
            tasks.name_owner(spark, driver.lineage, driver.book.writer)
            with session.settings(spark, wanted):
                query = bridge.start(writer.option("checkpointLocation", chosen.checkpoint), driver)
        except Exception as error:
            driver.close()
            bridge.close()
            if isinstance(error, FencepostError):
                raise
            raise _from_spark(error, chosen.job) from error
        return cls(query, driver, bridge)

    def wait(self, seconds: float) -> bool:
        """Has the query ended? `end` says how."""
        try:
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
        """The query is over: note what is done, let go of everything, raise what ended it."""
        if self._ended:
            return
        self._ended = True
        failed = None if self._jvm_is_gone else self.query.exception()
        try:
            self._driver.close()
        finally:
            if not self._jvm_is_gone:
                self._bridge.close()
        if self._jvm_is_gone:
            raise EpochFailed(
                "jvm_lost",
                "Spark's JVM died (killed, out of memory, or crashed).",
                where=Where(job=self._driver.book.state.lineage.job),
                safe=WHATEVER_IS_DECIDED,
                next="Look for the reason (dmesg, hs_err files, memory limits), then start the job in a new process.",
            )
        if isinstance(self._driver.failure, Fenced):
            raise self._driver.failure from None  # the symptom that led to it would only mislead
        if self._driver.failure is not None:
            raise self._driver.failure
        if failed is not None and not self._driver.turned_away:
            # Spark itself may be the first to stumble over what a newer driver did to its log or its staged files.
            if (fenced := self._driver.fenced()) is not None:
                raise fenced from failed
            raise _from_spark(failed, self._driver.book.state.lineage.job) from failed


def _schemas(frames: Mapping[str, Any], job: str) -> dict[str, Any]:
    found = {}
    for name, frame in frames.items():
        try:
            found[name] = branches.arrow_schema(frame)
        except FencepostError as error:
            raise error.at(job=job, sink=name) from None
    return found


def _formats(spark: Any, frames: Mapping[str, Any], log: SparkLog, chosen: Settings) -> Mapping[str, str]:
    """Chosen at the first start; an adopted checkpoint keeps its own."""
    found = log.identity()
    if not (chosen.adopt and found.epochs and not found.ledgers):
        keyed = all(map(inspect.keyed_state_only, frames.values()))
        return {**session.FORMATS, **(session.KEYED_STATE if keyed else {})}
    if log.has_state_of_format_1() and not spark.sparkContext.master.startswith("local["):
        raise BadConfig(
            "state_format_1",
            "This checkpoint has state of format 1, in which any attempt may overwrite the state of another.",
            where=Where(job=chosen.job, path=chosen.checkpoint),
            next="Adopt it with a local master (one executor), or begin a new checkpoint.",
        )
    return {}


def _check_topics(store: LocalStore, driver: Driver, found: Mapping[str, set[str]]) -> None:
    job = driver.book.state.lineage.job
    try:
        topics.check_same(store, driver.lineage, found, job)
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


def names_of(error: Any) -> str:
    """The names of errors in one of Spark's texts; the text itself may quote a row (a cast that failed)."""
    found = re.findall(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]|\b([A-Z]\w*(?:Error|Exception))\b", str(error))
    return ", ".join(list(dict.fromkeys(code or name for code, name in found))[:4]) or type(error).__name__


def _from_spark(error: Any, job: str) -> FencepostError:
    """Spark's own failure (the user's plan, a lost file, memory) in our words; the cause is chained."""
    if topics.says_lost(str(error)):
        return topics.range_lost(job)
    first = names_of(error)
    return EpochFailed(
        "spark_failed",
        f"Spark ended the query: {first}.",
        where=Where(job=job),
        safe=WHATEVER_IS_DECIDED,
        next="Mend the cause (Spark's own error is above), then start the job again.",
    )
