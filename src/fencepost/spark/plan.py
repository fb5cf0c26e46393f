"""What a streaming plan and its writer ask for, read before anything starts, and which of it we refuse."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fencepost.contract import OutputMode
from fencepost.errors import BadConfig, CheckpointRefused, OperatorNeeded, Where
from fencepost.guarantee import Guarantee, Link
from fencepost.protocol.records import Epoch
from fencepost.spark import spark_session
from fencepost.spark.jvm import release
from fencepost.store import Store
from fencepost.store.notes import DepartedSource, encode_note, read_note
from fencepost.store.spark_log import DEPARTED, SparkLog, source_lines
from fencepost.store.staging import TAG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES = "FileSource["
"""How Spark's name of a folder of files begins; the folder follows."""
KAFKA = "kafka"
TABLES = ("fencepost_delta", "fencepost_iceberg")
"""Our own sources, which are written in Python."""
REPLAYABLE = (KAFKA, "rate", "rate-micro-batch", *TABLES)
"""The other sources that we know, and killed jobs with: a range can be read again."""
NOT_REPLAYABLE = ("socket", "memory")
"""Sources that cannot replay a range in a new process, whatever anybody says."""
PROVIDERS = {
    "KafkaSourceProvider": KAFKA,
    "RateStreamProvider": "rate",
    "RatePerMicroBatchProvider": "rate-micro-batch",
    "TextSocketSourceProvider": "socket",
    "MemoryStreamTableProvider$": "memory",
}
"""By Spark's class: what `format(…)` was given may be the class itself, or the name of another source."""

REFUSED_TRIGGERS = {"RealTimeTrigger": "real-time mode", "ContinuousTrigger": "continuous processing"}


@dataclass(frozen=True, slots=True)
class PlanSource:
    """One source of a plan, as Spark knows it."""

    kind: str
    options: dict[str, str]
    name: str | None = None
    """Its name in the checkpoint; None if the checkpoint knows it by its place in the plan."""

    @property
    def is_of_files(self) -> bool:
        """Is it a folder of files?"""
        return self.kind.startswith(FILES)

    def replayable(self, vouched: Collection[PlanSource]) -> bool | None:
        """Can a range of offsets be read again? None if only the source knows; `vouched`: the user's own word."""
        if self.kind.lower() in NOT_REPLAYABLE:
            return False
        return True if self.is_of_files or self.kind in REPLAYABLE or self in vouched else None


def sources_of(frame: Any) -> list[PlanSource]:
    """The streaming sources at the leaves of a DataFrame's plan."""
    return [source_of(frame, leaf) for leaf in leaves(frame)]


def leaves(frame: Any) -> list[Any]:
    """Spark's relations for them, from left to right: in this order it writes their positions."""
    found = frame._jdf.queryExecution().analyzed().collectLeaves()
    return [leaf for index in range(found.size()) if (leaf := found.apply(index)).isStreaming()]


def frame_of(frame: Any, leaf: Any) -> Any:
    """One of them, or another plan, as a DataFrame."""
    from pyspark.sql import DataFrame  # noqa: PLC0415 - pyspark is the user's

    spark = frame.sparkSession
    return DataFrame(spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, leaf), spark)


def source_of(frame: Any, leaf: Any) -> PlanSource:
    """One of them, in our words."""
    kind = leaf.getClass().getSimpleName()
    if kind not in ("StreamingRelation", "StreamingRelationV2"):
        return PlanSource(kind, {})
    name = name_of(frame, leaf)
    if kind == "StreamingRelationV2":
        entries = leaf.extraOptions().asCaseSensitiveMap()
        provider = leaf.source()  # none for a table of a catalog
        made_by = str(provider.get().getClass().getSimpleName()) if provider.isDefined() else ""
        options = {str(key).lower(): str(entries[key]) for key in entries}
        return PlanSource(_kind(str(leaf.sourceName()), made_by), options, name)
    options = {}
    pairs = leaf.dataSource().options().iterator()
    while pairs.hasNext():
        pair = pairs.next()
        options[str(pair._1()).lower()] = str(pair._2())
    called = str(leaf.sourceName())
    made_by = FILES if called.startswith(FILES) else str(leaf.dataSource().providingClass().getSimpleName())
    return PlanSource(_kind(called, made_by), options, name)


def _kind(called: str, made_by: str) -> str:
    """The source's name; that of another one only with its class, because anybody may call a source `kafka`."""
    if called in TABLES and made_by == "PythonDataSourceV2":
        return called
    is_taken = called.lower() in (*PROVIDERS.values(), *TABLES) or (called.startswith(FILES) and made_by != FILES)
    return PROVIDERS.get(made_by) or (f"{made_by or 'table'} {called}" if is_taken else called)


def forgetful(frame: Any) -> list[str]:
    """Names, or else places, of the sources whose offsets count from each start of the query: Spark's socket."""
    return [
        source_of(frame, leaf).name or str(place)
        for place, leaf in enumerate(leaves(frame))
        if leaf.getClass().getSimpleName() == "StreamingRelationV2"
        and leaf.table().getClass().getSimpleName() == "TextSocketTable"
    ]


def format_of(leaf: Any) -> str:
    """What `format(…)` was given: Spark's own name for a folder of files contains the folder."""
    kind = leaf.getClass().getSimpleName()
    if kind == "StreamingRelation":
        return str(leaf.dataSource().className()).lower()
    return str(leaf.sourceName() if kind == "StreamingRelationV2" else kind).lower()


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
        raise BadConfig("reserved_column", f"Column name {TAG!r} is reserved.", where=where, next="Rename the column.")
    found = sources_of(frame)
    for source in found:
        if source.options.get("failondataloss", "true").lower() == "false":
            raise BadConfig(
                "fail_on_data_loss",
                f"Source {source.kind} has failOnDataLoss=false: it would silently skip lost records.",
                where=where,
                next="Remove the option failOnDataLoss: if records are lost, the job has to stop and say so.",
            )
    return found


def inlined(frame: DataFrame) -> DataFrame:
    """The same rows without WITH: each use of such a query becomes the query itself, where all checks see it.

    Spark's optimizer does that too, unless a query that is not deterministic is used twice; that is refused anyway.
    """
    logical = _with_queries(frame)
    if logical is None:
        return frame
    spark: Any = frame.sparkSession
    more = (False,) if release(spark.version) >= (4, 3) else ()
    rule = spark._jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False, *more)
    found: DataFrame = frame_of(frame, rule.apply(logical))
    return found


def check_inlined(frame: Any, job: str) -> None:
    """Refuse a plan with WITH that cannot be changed any more."""
    if _with_queries(frame) is not None:
        raise BadConfig(
            "with_in_writer",
            "The writer's query has a WITH clause, which fencepost cannot look into.",
            where=Where(job=job),
            next="Use fp.Job(…).write(frame, sink), which resolves it; or make the query of WITH a temporary view.",
        )


def _with_queries(frame: Any) -> Any:
    """The analyzed plan, if it has a WITH clause; else None."""
    logical = frame._jdf.queryExecution().analyzed()
    pattern = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CTE()
    return logical if logical.containsPattern(pattern) else None


CHECKED = "spark.sql.streaming.unsupportedOperationCheck"
RIGHT = "spark.sql.streaming.statefulOperator.checkCorrectness.enabled"
UNCHECKED: Mapping[str, str] = {
    CHECKED: "Spark runs plans that it does not support",
    RIGHT: "Spark runs plans with several stateful operators of which it knows that they drop records in time",
}
"""Settings that are on by default, and what happens if one is off."""


def links(spark: Any) -> list[Link]:
    """A link for each of them that is off."""
    return [
        Link(
            "plan",
            Guarantee.AT_MOST_ONCE,
            f"with {setting}=false {what}",
            f"remove {setting} from the session's settings",
        )
        for setting, what in UNCHECKED.items()
        if is_off(spark, setting)
    ]


def is_off(spark: Any, setting: str) -> bool:
    """Was this setting, which is on by default, switched off?"""
    return str(spark.conf.get(setting, "true")).lower() == "false"


def check_writer(writer: Any, job: str) -> str:
    """Refuse a writer that does not run one epoch at a time; return the output mode."""
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
            "The writer has its own foreachBatch or foreach, which would never be called.",
            where=where,
            next="Remove it: rows go to the sink in `to` (fp.WriteAheadLog can call any function).",
        )
    trigger = _field(writer, "trigger").getClass().getSimpleName().rstrip("$")
    if trigger in REFUSED_TRIGGERS:
        raise BadConfig(
            "refused_trigger",
            f"{REFUSED_TRIGGERS[trigger].capitalize()} records offsets only after the rows have been written.",
            where=where,
            next="Use trigger(processingTime=…) or trigger(availableNow=True).",
        )
    return check_mode(str(_field(writer, "outputMode").toString()).lower(), job)


def check_mode(mode: str, job: str) -> str:
    """Refuse anything but Spark's three output modes."""
    if mode not in ("append", "update", "complete"):
        raise BadConfig(
            "output_mode",
            f"Output mode {mode!r} is not supported.",
            where=Where(job=job),
            next="Use 'append', 'update' (with a keyed sink) or 'complete' (with a table and mode='replace').",
        )
    return mode


def check_plan(frame: Any, mode: str, job: str, sink: str | None = None) -> None:
    """Ask Spark now what it would say when the query starts: does it accept this plan in this mode?"""
    _check_excepts(frame, mode, job, sink)
    if is_off(frame.sparkSession, CHECKED):
        return  # Spark would not check either; only at_most_once gets this far
    jvm = frame.sparkSession._jvm
    checker = getattr(jvm.org.apache.spark.sql.catalyst.analysis, "UnsupportedOperationChecker$")
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    wanted = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]()
    try:
        getattr(checker, "MODULE$").checkForStreaming(frame._jdf.queryExecution().analyzed(), wanted)
    except Exception as error:
        if spark_session.says_gone(error):
            raise
        names = re.findall(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]", str(error)) or [type(error).__name__]
        raise BadConfig(
            "plan_refused",
            f"Spark does not support this plan in output mode {mode}: {names[0]}.",
            where=Where(job=job, sink=sink),
            next="Change the plan or output_mode=…: in append mode an aggregate needs a watermark, and complete mode "
            "needs an aggregate. Spark's Structured Streaming guide lists the supported combinations.",
        ) from error


def _check_excepts(frame: Any, mode: str, job: str, sink: str | None) -> None:
    """EXCEPT becomes an aggregate only in Spark's optimizer, after Spark has checked the plan."""
    for node in stateful(frame):
        if not str(node.nodeName()).startswith(EXCEPT):
            continue
        # For EXCEPT ALL Spark subtracts the rows of the table again in every epoch.
        if node.isAll() or (mode == "append" and not _is_ended(node)):
            raise BadConfig(
                "plan_refused",
                f"Spark gives a wrong result, or none, for EXCEPT on a stream in output mode {mode}.",
                where=Where(job=job, sink=sink),
                next="Use a left anti join, and dropDuplicates() if each row should be written once.",
            )


# What an operator does to rows that it emitted before, in update mode:
#
#     again, or changed   Aggregate, and Distinct and Except, which the optimizer turns into one
#     as it declares      the two operators with a function of the user's (outputMode="append" or "update")
#     nothing             every other: each row is emitted once, whatever the query's mode
#
# Spark itself refuses limits, outer joins of two streams, session windows and INTERSECT in update mode.

EXCEPT = "Except"
"""Also the beginning of `ExceptAll`."""
AGGREGATES = ("Aggregate", "Distinct", EXCEPT)
DECLARE = ("FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState")


def needs_update(frame: Any) -> bool:
    """Is there an operator whose rows are never final? An aggregate is one, unless a watermark ends it."""
    return any(_declares_update(node) or not _is_ended(node) for node in _revising(frame))


def branch_mode(frame: Any, mode: str) -> OutputMode:
    """The output mode of one branch: that of the query only if an operator emits rows again, or changed."""
    if mode == "complete" and frame.isStreaming:
        return "complete"
    revising = list(_revising(frame))
    return "update" if any(map(_declares_update, revising)) or (revising and mode == "update") else "append"


def _revising(frame: Any) -> Iterator[Any]:
    """Operators that emit a row again in update mode, as it was or changed."""
    for node in stateful(frame):
        if str(node.nodeName()).startswith(AGGREGATES) or _declares_update(node):
            yield node


def _declares_update(node: Any) -> bool:
    name = str(node.nodeName())
    return (name in DECLARE or name.startswith(KEYED_STATE)) and str(node.outputMode()) == "Update"


def _is_ended(node: Any) -> bool:
    """Does a watermark end its groups? Only if one of the columns that it groups by is the time, or a window of it."""
    groups = node.groupingExpressions() if str(node.nodeName()) == "Aggregate" else node.output()
    return any(_is_column(one) and one.metadata().contains(DELAY) for one in elements(groups))


DELAY = "spark.watermarkDelayMs"
"""In the metadata of a column that has a watermark."""


def rows_may_leave(frame: Any) -> bool:
    """Can a row that was emitted in update mode fail a filter later? Nothing is emitted then: a table keeps the row."""
    leaving: list[Any] = []
    _Values(_patterns(frame)).changing(optimized(frame), leaving)
    return bool(leaving)


def rows_expire(frame: Any) -> bool:
    """The same by the current time alone, without any new record."""
    clock = _Clock(_patterns(frame).CURRENT_LIKE())
    clock.look(frame._jdf.queryExecution().analyzed())  # the optimizer writes a constant for the current time
    return clock.filters


def changing_columns(frame: Any, columns: Collection[str]) -> list[str]:
    """Which of these columns may an aggregate still change, in a row that was emitted in update mode?"""
    logical = optimized(frame)
    changing = _Values(_patterns(frame)).changing(logical, [])
    output = [column for column in _output(logical) if _number(column) in changing]
    return [str(column.name()) for column in output if column.name() in columns]


def optimized(frame: Any) -> Any:
    """The plan where a filter on grouping columns has moved below its aggregate."""
    optimizer = frame.sparkSession._jsparkSession.sessionState().optimizer()
    return optimizer.execute(frame._jdf.queryExecution().analyzed())


def _patterns(frame: Any) -> Any:
    return frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern


@dataclass
class _Clock:
    """Looks for filters behind an aggregate that go by the current time: what passes them now may fail them later."""

    now: Any
    """The pattern of the current time."""
    filters: bool = False

    def look(self, node: Any) -> tuple[bool, dict[int, str]]:
        """Is there an aggregate in it? And the columns that are made from the current time."""
        below = [self.look(child) for child in children_of(node) if child.isStreaming()]
        is_behind = any(one for one, _ in below)
        timed = {column: "" for _, columns in below for column in columns}
        name = str(node.nodeName())
        if name in ("Project", "Aggregate"):
            made = elements(node.projectList() if name == "Project" else node.aggregateExpressions())
            timed |= {_number(one): "" for one in made if self._is_timed(one, timed) and not _has_aggregate(one)}
        elif is_behind and any(self._is_timed(condition, timed) for condition in _conditions(node)):
            self.filters = True
        return is_behind or name.startswith(AGGREGATES), timed

    def _is_timed(self, expression: Any, timed: Mapping[int, str]) -> bool:
        return bool(expression.containsPattern(self.now)) or _reads(expression, timed)


GROWS, SHRINKS = ("Count", "Max"), ("Min",)
ABOVE, BELOW = ("GreaterThan", "GreaterThanOrEqual"), ("LessThan", "LessThanOrEqual")


@dataclass
class _Values:
    """Follows what an aggregate may still change, up to the columns of a plan."""

    patterns: Any
    static: dict[int, str] = field(default_factory=dict)
    """Columns of static tables, which may be others when they are read again."""

    def changing(self, node: Any, leaving: list[Any]) -> dict[int, str]:
        """Columns that an aggregate below may still change, and the function that does; adds filters on them."""
        changing: dict[int, str] = {}
        for child in children_of(node):
            if child.isStreaming():
                changing |= self.changing(child, leaving)
        match str(node.nodeName()):
            case "Aggregate":
                changing |= _aggregated(node)
            case "Project":
                made = [one for one in elements(node.projectList()) if _reads(one, changing) and _made(one)]
                changing |= {_number(one): "" for one in made}
            case "Union":
                changing |= _united(node, changing)
            case "Filter":
                leaving += [part for part in _conjuncts(node.condition()) if not self._stays_true(part, changing)]
            case _:
                leaving += [part for one in _conditions(node) for part in _conjuncts(one) if _reads(part, changing)]
                changing |= self._beside(node, changing)
        return changing

    def _beside(self, node: Any, changing: Mapping[int, str]) -> dict[int, str]:
        """Columns that a join adds, or a function of the user's, if they depend on one that changes."""
        children = list(children_of(node))
        self.static |= {_number(one): "" for child in children if not child.isStreaming() for one in _output(child)}
        if not any(_reads(one, changing) for one in elements(node.expressions())):
            return {}
        known = {_number(one) for child in children if child.isStreaming() for one in _output(child)}
        return {_number(one): "" for one in _output(node) if _number(one) not in known}

    def _stays_true(self, condition: Any, changing: Mapping[int, str]) -> bool:
        """A count that has passed a bound, a largest or a smallest value stays beyond it."""
        if not _reads(condition, changing) or condition.nodeName() == "IsNotNull":
            return True
        sides = list(children_of(condition))
        name = str(condition.nodeName())
        if len(sides) != 2 or name not in ABOVE + BELOW:
            return False
        value, bound = sides if _is_column(sides[0]) else reversed(sides)
        upwards = (name in ABOVE) == (value is sides[0])
        return (
            _is_column(value)
            and self._stands(bound, changing)
            and changing.get(_number(value)) in (GROWS if upwards else SHRINKS)
        )

    def _stands(self, bound: Any, changing: Mapping[int, str]) -> bool:
        """Is it the same whenever it is computed? A constant, or made from the columns by which rows are grouped."""
        if bound.foldable():
            return True
        is_subquery = bound.containsPattern(self.patterns.PLAN_EXPRESSION())
        return bool(bound.deterministic()) and not is_subquery and not _reads(bound, {**changing, **self.static})


def _conditions(node: Any) -> Iterator[Any]:
    """By which an operator drops rows."""
    name = str(node.nodeName())
    if name == "Filter":
        yield node.condition()
    elif name == "Join" and "Outer" not in str(node.joinType()) and node.condition().isDefined():
        yield node.condition().get()


def _has_aggregate(expression: Any) -> bool:
    return any(part.nodeName() == "AggregateExpression" for part in nodes(expression))


def _aggregated(node: Any) -> dict[int, str]:
    found = {}
    for one in elements(node.aggregateExpressions()):
        if functions := [part for part in nodes(one) if part.nodeName() == "AggregateExpression"]:
            whole = one.children().apply(0) if one.children().size() else one
            is_plain = whole.nodeName() == "AggregateExpression"
            found[_number(one)] = str(functions[0].aggregateFunction().nodeName()) if is_plain else ""
    return found


def _united(node: Any, changing: Mapping[int, str]) -> dict[int, str]:
    columns = zip(*(_output(child) for child in children_of(node)), strict=True)
    pairs = zip(_output(node), columns, strict=True)
    return {_number(column): "" for column, theirs in pairs if any(_reads(one, changing) for one in theirs)}


def _output(node: Any) -> Iterator[Any]:
    return elements(node.output())


def _number(column: Any) -> int:
    return int(column.exprId().id())


def _conjuncts(condition: Any) -> Iterator[Any]:
    if condition.nodeName() == "And":
        for side in children_of(condition):
            yield from _conjuncts(side)
    else:
        yield condition


def _reads(expression: Any, changing: Mapping[int, str]) -> bool:
    return any(_is_column(part) and part.exprId().id() in changing for part in nodes(expression))


def _is_column(expression: Any) -> bool:
    return str(expression.nodeName()) == "AttributeReference"


def _made(expression: Any) -> bool:
    return not _is_column(expression)


def has_watermark(frame: Any) -> bool:
    """Does the plan have a watermark?"""
    return "EventTimeWatermark" in _plan(frame)


KEYED_STATE = "TransformWithState"
KEYED_SINCE = (4, 1)
"""Spark 4.0 has it for pandas only, and nobody attacked that."""
WITH_STATE = (KEYED_STATE, *AGGREGATES, "Deduplicate", "FlatMapGroups", "GlobalLimit", "Join")
"""Name prefixes of Spark's operators that keep state when they read a stream."""


def states_of(frame: Any) -> set[str]:
    """The kinds of state that a plan keeps."""
    return {kind for node in stateful(frame) for kind in WITH_STATE if str(node.nodeName()).startswith(kind)}


def has_state_in_one_partition(frame: Any) -> bool:
    """Is there an aggregate over all rows, or a limit? Its state is in the first of all partitions."""
    return any(map(_in_one_partition, stateful(frame)))


def stateful(frame: Any) -> list[Any]:
    """The operators that keep state, from the top down and from left to right: in this order Spark numbers them."""
    return list(stateful_below(frame._jdf.queryExecution().analyzed()))


def _in_one_partition(node: Any) -> bool:
    name = str(node.nodeName())
    return name == "GlobalLimit" or (name == "Aggregate" and bool(node.groupingExpressions().isEmpty()))


def never_pauses(frame: Any) -> bool:
    """Does Spark run epochs all the time, with or without records? It does for keyed state on processing time."""
    return re.search(rf"^\W*{KEYED_STATE}.*, ProcessingTime, ", _plan(frame), re.MULTILINE) is not None


def pause_ms(writer: Any) -> int | None:
    """The shortest time between two epochs; None for a query that ends when everything is processed."""
    trigger = _field(writer, "trigger")
    return int(trigger.intervalMs()) if trigger.getClass().getSimpleName() == "ProcessingTimeTrigger" else None


def stateful_below(plan: Any) -> Iterator[Any]:
    """The operators of a plan that keep state."""
    inner = list(children_of(plan))
    name = str(plan.nodeName())
    # A join has state if both of its sides are streams, every other operator if it reads one.
    reads = (all if name.startswith("Join") else any)(child.isStreaming() for child in inner)
    if name.startswith(WITH_STATE) and reads:
        yield plan
    for child in inner:
        yield from stateful_below(child)


def nodes(tree: Any) -> Iterator[Any]:
    """A plan or an expression, and everything below it."""
    yield tree
    for child in children_of(tree):
        yield from nodes(child)


def children_of(tree: Any) -> Iterator[Any]:
    """The children of a plan or an expression."""
    return elements(tree.children())


def elements(found: Any) -> Iterator[Any]:
    """The elements of one of Scala's sequences."""
    return (found.apply(index) for index in range(found.size()))


def culprit(expression: Any) -> Any:
    """The innermost expression that is not deterministic."""
    for child in children_of(expression):
        if not child.deterministic():
            return culprit(child)
    return expression


def _plan(frame: Any) -> str:
    return str(frame._jdf.queryExecution().analyzed().toString())


def name_of(frame: Any, leaf: Any) -> str | None:
    """The name that its source was given; None if it was not, or if this Spark has no names."""
    if release(frame.sparkSession.version) < NAMED_SINCE:
        return None
    name = leaf.sourceIdentifyingName()
    return str(name.name()) if name.getClass().getSimpleName() == "UserProvided" else None


def _field(writer: Any, name: str) -> Any:
    """A private field of Spark's DataStreamWriter; it has no getters."""
    field = writer._jwrite.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(writer._jwrite)


# Named sources: if all sources have names, sources can be added, removed or moved between two starts.
#
#     offsets/N            clicks:{"logOffset":7}      one line per source, by name
#     sources/clicks/      what the source itself remembers
#     fencepost/departed/  the last offset of a source that the job no longer reads
#
# Spark looks for a source's offset in the last two epochs only: a source that comes back later would be read from its
# beginning again. So a name that was removed may not return.

NAMED_SINCE = (4, 2)
"""The first Spark whose sources can have names."""

EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"

FORMATS: Mapping[str, str] = {
    EVOLUTION: "true",
    # Only version 2 contains names. Spark 4.3 chooses it by itself, 4.2 has to be told.
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}
"""Fixed at the first start of a job whose sources all have names."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Not a number: in Spark's log a number stands for a source without a name."""


def reader(spark: Any, name: str | None, job: str) -> Any:
    """Spark's reader for one source, with its name."""
    if name is None:
        return spark.readStream
    if not NAME.fullmatch(name):
        raise BadConfig(
            "bad_source_name",
            f"Invalid source name {name!r}.",
            where=Where(job=job),
            next="Use letters, digits and underscores, not starting with a digit: job.read(…, name='clicks').",
        )
    instead = "Take name=… out (then the sources and their order must stay as they are), or use"
    spark_session.need(spark.version, NAMED_SINCE, "names of sources need", where=Where(job=job), instead=instead)
    return spark.readStream.name(name)


def allowed(spark: Any, name: str | None) -> AbstractContextManager[None]:
    """Spark accepts a name only while this is switched on, and then accepts no source without one."""
    return nullcontext() if name is None else spark_session.settings(spark, {EVOLUTION: "true"})


def formats(sources: Sequence[PlanSource], job: str) -> Mapping[str, str]:
    """Formats for a new checkpoint; none for sources without names."""
    names = [source.name for source in sources if source.name is not None]
    if not names:
        return {}
    if len(names) < len(sources):
        raise BadConfig(
            "not_all_named",
            f"Some sources have names ({', '.join(sorted(set(names)))}), but {len(sources) - len(names)} have none.",
            where=Where(job=job),
            next="Name all sources (job.read(…, name=…)), or none.",
        )
    twice = sorted(name for name, uses in Counter(names).items() if uses > 1)
    if twice:
        raise BadConfig(
            "source_used_twice",
            f"Source {twice[0]!r} is used {names.count(twice[0])} times, but Spark allows each name once per query.",
            where=Where(job=job),
            next="Read it once for each use, under different names (each then has its own offsets, and may see a "
            "record in a different epoch), or give no source a name.",
        )
    return FORMATS


def check_begun_alike(begun: Mapping[str, str], sources: Sequence[PlanSource], job: str) -> None:
    """Refuse names that were added or removed later: a checkpoint knows its sources either by name or by order."""
    wanted = formats(sources, job)
    if wanted and EVOLUTION not in begun:
        raise BadConfig(
            "names_too_late",
            "The checkpoint was created with sources that had no names, and identifies them by their order.",
            where=Where(job=job),
            next="Remove the names (same sources, same order), or start with a new checkpoint with names.",
        )
    if EVOLUTION in begun and not wanted:
        raise BadConfig(
            "names_missing",
            "The checkpoint identifies its sources by name, but the job's sources have no names.",
            where=Where(job=job),
            next="Add the names again: job.read(…, name='…'). They are in the last lines of the newest file in the "
            "checkpoint's offsets folder.",
        )


def check_none_returns(store: Store, sources: Iterable[PlanSource], job: str) -> None:
    """Record the last offsets of removed sources, and refuse one that was removed earlier. Runs after recovery."""
    now = {source.name for source in sources if source.name is not None}
    if not now:
        return
    log = SparkLog(store)
    newest = log.names("offsets")[-1:]
    last = source_lines(log.read("offsets", Epoch(newest[0])) or "") if newest else {}
    for name in sorted(now - set(last)):
        departed = read_note(store, f"{DEPARTED}/{name}", DepartedSource)
        if departed is not None:
            raise OperatorNeeded(
                "source_returns",
                f"Source {name!r} was removed from the job earlier and is back. It was read up to "
                f"{departed.position}; Spark would read it from the beginning again.",
                where=Where(job=job, path=f"{store.root}/{DEPARTED}/{name}"),
                safe="Safe: every decided epoch is in the sinks exactly once; nothing was read or written now.",
                next="Give the source a new name, and make it start where it stopped: start=… for Kafka; for Files, "
                "move the files that were already read out of the folder.",
            )
    for name in sorted(set(last) - now):
        store.replace(f"{DEPARTED}/{name}", encode_note(DepartedSource(name, last[name])))


def changed(text: str, job: str) -> CheckpointRefused | None:
    """Our error for Spark's complaint about a changed number of unnamed sources."""
    found = re.search(r"There are \[(\d+)\] sources in the checkpoint offsets and now there are \[(\d+)\]", text)
    return found and CheckpointRefused(
        "sources_changed",
        f"The checkpoint was created with {found[1]} sources, but the job now has {found[2]}.",
        where=Where(job=job),
        next="Restore the old sources in their old order; or start with a new checkpoint and name every source "
        "(job.read(…, name=…)): then sources can be added and removed.",
    )
