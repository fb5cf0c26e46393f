"""What has to be true before a query starts. Never changes anything: it looks, chooses and refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from fencepost import state
from fencepost.checkpoints import reader
from fencepost.driver import Driver
from fencepost.errors import BadConfig, FencepostError, Where
from fencepost.guarantee import Guarantee
from fencepost.ledger import Store
from fencepost.ledger.places import is_remote
from fencepost.ledger.trial import check_store
from fencepost.observe.observer import Observer
from fencepost.sinks.contract import HOW_TO_TAKE, OutputMode, Sink
from fencepost.spark import branches, inspect, named, session, shared, topics
from fencepost.spark.bridge import Bridge, ForeachBatchBridge, JvmBridge
from fencepost.spark.checkpoint import SparkLog
from fencepost.state import Backend
from fencepost.supervise.reasons import Tolerance
from fencepost.unusable import unusable

BridgeName = Literal["jvm", "foreach_batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a start needs to know besides the DataFrame and its sinks."""

    job: str
    checkpoint: str
    guarantee: Guarantee
    mode: str
    observer: Observer
    bridge: BridgeName | None = None
    adopt: bool = False
    sinks_changed: bool = False
    state: Backend | None = None
    min_pause_s: float = 0.0
    timeout_s: float | None = None
    retained: int | None = None
    deletes: bool = False
    """Will the checkpoint be deleted when the job is cancelled?"""
    tolerance: Tolerance = field(default_factory=Tolerance)
    is_known: bool = True
    """Is it found by its name? A throw-away job is not."""


_looking = False


@contextmanager
def only_looking() -> Iterator[None]:
    """While a job's file is run to find its jobs, none of them starts."""
    global _looking  # noqa: PLW0603 - of the process, like the file that it runs
    _looking = True
    try:
        yield
    finally:
        _looking = False


def check_may_start(job: str) -> None:
    """Refuse a start in the midst of a look."""
    if _looking:
        raise BadConfig(
            "starts_when_imported",
            "The file starts the job while it is only looked at.",
            where=Where(job=job),
            next="Put what starts it under `if __name__ == '__main__':`.",
        )


def check_not_running(spark: Any, job: str) -> None:
    """One query of a name in a session."""
    if job in session.running(spark):
        # Recovery would take the checkpoint from the living query, and Spark would then refuse the new one.
        raise BadConfig(
            "already_running",
            "A query of this name runs in this session.",
            where=Where(job=job),
            next="Stop it first (job.stop(), or query.stop()).",
        )


def check_modes(modes: Mapping[str, OutputMode], sinks: Mapping[str, Sink], job: str) -> None:
    """Does every sink take the rows that its branch gives?"""
    for name, sink in sinks.items():
        if modes[name] not in sink.capabilities.modes:
            raise BadConfig(
                "mode_does_not_fit",
                f"This sink, as it is set up, does not take rows of output mode {modes[name]}.",
                where=Where(job=job, sink=name),
                next=(modes[name] == "update" and sink.capabilities.remedy) or HOW_TO_TAKE[modes[name]],
            )


def check_fate(chosen: Settings, sinks: Mapping[str, Sink]) -> None:
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


def schemas(frames: Mapping[str, Any], job: str) -> dict[str, Any]:
    """The columns of every branch, as its sink will be given them."""
    found = {}
    for name, frame in frames.items():
        try:
            found[name] = branches.arrow_schema(frame)
        except FencepostError as error:
            raise error.at(job=job, sink=name) from None
    return found


def check_place(spark: Any, store: Store, job: str) -> None:
    """Can the checkpoint be there? Tried, not guessed: by the store itself, or by every executor."""
    if is_remote(store.root):
        check_store(store, job)
    else:
        shared.check(spark, store.root, job)


def formats(spark: Any, frames: Mapping[str, Any], log: SparkLog, chosen: Settings) -> Mapping[str, str]:
    """Chosen at the first start; every later one, and that of an adopted checkpoint, keeps its own."""
    picked = _formats(spark, frames, log, chosen)
    if state.on_heap(picked) and is_remote(chosen.checkpoint):
        raise BadConfig(
            "heap_needs_local",
            "State on the heap needs a lock that dies with its process, and only a local disk has one.",
            where=Where(job=chosen.job, path=chosen.checkpoint),
            next="Use state=fp.RocksDB(), or a checkpoint in a local folder.",
        )
    return picked


def _formats(spark: Any, frames: Mapping[str, Any], log: SparkLog, chosen: Settings) -> Mapping[str, str]:
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
    alone = spark.sparkContext.master.startswith("local[") and not is_remote(chosen.checkpoint)
    if log.has_state_of_format_1() and not alone:
        raise BadConfig(
            "state_format_1",
            "This checkpoint has state of format 1, in which any attempt may overwrite the state of another.",
            where=Where(job=chosen.job, path=chosen.checkpoint),
            next="Adopt it with a local master (one executor) and in a local folder, or begin a new checkpoint.",
        )
    return {}


def check_sources(
    store: Store, driver: Driver, sources: Sequence[inspect.PlanSource], found: Mapping[str, set[str]]
) -> None:
    """Are the sources still those that the ledger's positions are about?"""
    job = driver.book.state.lineage.job
    try:
        lineages = (driver.lineage, *reversed(driver.book.state.lineage.ancestors))
        topics.check_same(store, lineages, found, job)
        named.check_none_returns(store, sources, job)
    except OSError as error:
        raise unusable(error, job, store.root) from error


def bridge(spark: Any, chosen: Settings, *, jar: bool) -> Bridge:
    """The way across that was asked for, or the better one that this session allows."""
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
            next="Start the session with the jar (fencepost.spark.session.JAR) in spark.jars, or use "
            "bridge='foreach_batch'.",
        )
    return JvmBridge(spark) if jar else ForeachBatchBridge(spark)
