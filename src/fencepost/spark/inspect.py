"""What a streaming plan and its writer ask for, read before anything starts, and what of it is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fencepost.errors import BadConfig, Where
from fencepost.rows import TAG
from fencepost.sinks.contract import OutputMode

NOT_REPLAYABLE = ("socket", "textsocket", "memorystream")
"""Sources that cannot give a range again in a new process."""

REFUSED_TRIGGERS = {"RealTimeTrigger": "real-time mode", "ContinuousTrigger": "continuous processing"}


@dataclass(frozen=True, slots=True)
class PlanSource:
    """One source of a plan, as Spark knows it."""

    kind: str
    options: dict[str, str]
    name: str | None = None
    """What the checkpoint knows it by; None for its place in the plan."""

    @property
    def replayable(self) -> bool:
        """Can a range of positions be read again?"""
        return not any(word in self.kind.lower() for word in NOT_REPLAYABLE)

    @property
    def reads_uncommitted(self) -> bool:
        """Are rows of other writers' open and aborted transactions read? Spark's connector does, if not told."""
        told = self.options.get("kafka.isolation.level", "read_uncommitted")
        return self.kind == "kafka" and told.lower() != "read_committed"


def sources_of(frame: Any) -> list[PlanSource]:
    """The streaming sources at the leaves of a DataFrame's plan."""
    return list(_leaves(frame._jdf.queryExecution().analyzed()))


def check_frame(frame: Any, job: str | None) -> list[PlanSource]:
    """Refuse a DataFrame that is not a stream, or whose sources may skip records."""
    where = Where(job=job)
    if not getattr(frame, "isStreaming", False):
        raise BadConfig(
            "not_a_stream",
            "The DataFrame is not a stream.",
            where=where,
            next="Read it with job.read(…) or spark.readStream; a batch DataFrame needs no fencepost.",
        )
    if len({name.lower() for name in frame.columns}) != len(frame.columns):
        raise BadConfig(
            "duplicate_columns", "Two columns have the same name.", where=where, next="Rename one of them (alias)."
        )
    if TAG in frame.columns:
        raise BadConfig("reserved_column", f"The column name {TAG!r} is ours.", where=where, next="Rename the column.")
    found = sources_of(frame)
    for source in found:
        if source.options.get("failondataloss", "true").lower() == "false":
            raise BadConfig(
                "fail_on_data_loss",
                f"Source {source.kind} has failOnDataLoss=false: it would skip lost records without a word.",
                where=where,
                next="Remove the option; if records were lost, the job must stop and say so.",
            )
    return found


def check_writer(writer: Any, job: str) -> str:
    """Refuse what breaks one epoch at a time; return the output mode."""
    where = Where(job=job)
    options = _field(writer, "extraOptions")
    tracking = options.get("asyncProgressTrackingEnabled")
    if tracking.isDefined() and tracking.get().lower() == "true":
        raise BadConfig(
            "async_progress",
            "Async progress tracking lets several epochs be open at once.",
            where=where,
            next="Remove the option asyncProgressTrackingEnabled.",
        )
    if _field(writer, "foreachBatchWriter") is not None or _field(writer, "foreachWriter") is not None:
        raise BadConfig(
            "two_sinks_of_one_writer",
            "The writer has a foreachBatch or foreach of its own; it would never be called.",
            where=where,
            next="Remove it: rows go to the sink that `to` names (any function fits into fp.WriteAheadLog).",
        )
    trigger = _field(writer, "trigger").getClass().getSimpleName().rstrip("$")
    if trigger in REFUSED_TRIGGERS:
        raise BadConfig(
            "refused_trigger",
            f"{REFUSED_TRIGGERS[trigger].capitalize()} fixes positions only after the rows have left.",
            where=where,
            next="Use trigger(processingTime=…) or trigger(availableNow=True).",
        )
    return check_mode(str(_field(writer, "outputMode").toString()).lower(), job)


def check_mode(mode: str, job: str) -> str:
    """Spark's three."""
    if mode not in ("append", "update", "complete"):
        raise BadConfig(
            "output_mode",
            f"Output mode {mode!r} is not supported.",
            where=Where(job=job),
            next="Use 'append', 'update' (with a keyed sink) or 'complete' (with a table and mode='replace').",
        )
    return mode


def check_plan(frame: Any, mode: str, job: str) -> None:
    """Let Spark itself say now what it would say when the query starts: does it take this plan in this mode?"""
    jvm = frame.sparkSession._jvm
    checker = getattr(jvm.org.apache.spark.sql.catalyst.analysis, "UnsupportedOperationChecker$")
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    wanted = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]()
    try:
        getattr(checker, "MODULE$").checkForStreaming(frame._jdf.queryExecution().analyzed(), wanted)
    except Exception as error:
        names = re.findall(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]", str(error)) or [type(error).__name__]
        raise BadConfig(
            "plan_refused",
            f"Spark does not take this plan in output mode {mode}: {names[0]}.",
            where=Where(job=job),
            next="Change the plan or output_mode=…: an aggregate in append mode needs a watermark, complete mode an "
            "aggregate. Spark's guide to structured streaming lists what goes together.",
        ) from error


def needs_update(frame: Any) -> bool:
    """An aggregate without a watermark never gets final, so Spark takes it in update mode only."""
    return _aggregates(frame) and "EventTimeWatermark" not in _plan(frame)


def branch_mode(frame: Any, mode: str) -> OutputMode:
    """What this branch's rows are: only an aggregate changes what it wrote before, whatever the query's mode."""
    if mode == "complete":
        return "complete"
    return "update" if mode == "update" and _aggregates(frame) else "append"


def has_watermark(frame: Any) -> bool:
    """Does event time move?"""
    return "EventTimeWatermark" in _plan(frame)


KEYED_STATE = "TransformWithState"
WITH_STATE = (KEYED_STATE, "Aggregate", "Deduplicate", "Distinct", "FlatMapGroups", "GlobalLimit", "Join")
"""How the names of Spark's operators begin that have state when they read a stream."""


def states_of(frame: Any) -> set[str]:
    """The kinds of state that a plan keeps."""
    return set(_states(frame._jdf.queryExecution().analyzed()))


def never_pauses(frame: Any) -> bool:
    """Does Spark run epochs on and on, with or without records? It does for keyed state by the clock on the wall."""
    return re.search(rf"^\W*{KEYED_STATE}.*, ProcessingTime, ", _plan(frame), re.MULTILINE) is not None


def pause_ms(writer: Any) -> int | None:
    """The shortest time between two epochs; None for a query that ends when all is processed."""
    trigger = _field(writer, "trigger")
    return int(trigger.intervalMs()) if trigger.getClass().getSimpleName() == "ProcessingTimeTrigger" else None


def _states(plan: Any) -> Iterator[str]:
    children = plan.children()
    inner = [children.apply(index) for index in range(children.size())]
    name = str(plan.nodeName())
    for kind in WITH_STATE:
        # A join has state if both of its sides are streams, every other operator if it reads one.
        if name.startswith(kind) and (all if kind == "Join" else any)(child.isStreaming() for child in inner):
            yield kind
    for child in inner:
        yield from _states(child)


def _aggregates(frame: Any) -> bool:
    return re.search(r"^\W*Aggregate ", _plan(frame), re.MULTILINE) is not None


def _plan(frame: Any) -> str:
    return str(frame._jdf.queryExecution().analyzed().toString())


def _leaves(plan: Any) -> Iterator[PlanSource]:
    leaves = plan.collectLeaves()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if not leaf.isStreaming():
            continue
        name = leaf.getClass().getSimpleName()
        if name == "StreamingRelationV2":
            entries = leaf.extraOptions().asCaseSensitiveMap()
            options = {str(key).lower(): str(entries[key]) for key in entries}
            yield PlanSource(leaf.sourceName(), options, _given_name(leaf))
        elif name == "StreamingRelation":
            found = {}
            pairs = leaf.dataSource().options().iterator()
            while pairs.hasNext():
                pair = pairs.next()
                found[str(pair._1()).lower()] = str(pair._2())
            yield PlanSource(leaf.sourceName(), found, _given_name(leaf))
        else:
            yield PlanSource(name, {})


def _given_name(leaf: Any) -> str | None:
    name = leaf.sourceIdentifyingName()
    return str(name.name()) if name.getClass().getSimpleName() == "UserProvided" else None


def _field(writer: Any, name: str) -> Any:
    """A private field of Spark's DataStreamWriter; it has no getters."""
    field = writer._jwrite.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(writer._jwrite)
