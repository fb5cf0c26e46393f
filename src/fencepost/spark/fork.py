"""What lies below a fork of branches is computed once per epoch, or gives the same result each time.

Spark computes every branch of a query from its sources on its own. Whatever may give two results for one record then
gives each branch its own:

    records ── rand(), a look-up ──┬── r < 0.5  ──→ sink A      a record may be in both sinks, or in neither
                                   └── r >= 0.5 ──→ sink B

    records ── rand(), a look-up ── shuffle ──┬── r < 0.5  ──→ sink A      both read the same rows
                                              └── r >= 0.5 ──→ sink B

Why a shared record has one result: the executed plan contains the part below the shuffle once (checked before each
decision), so all branches read one shuffle. And when a shuffle file is lost, Spark compares the rerun task's output
with the first one; if they differ, everything that was read from it is recomputed, or the epoch fails.

Never decides anything: it refuses a plan, or raises, and the driver drops the epoch.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from fencepost.errors import BadConfig, EpochFailed, Where
from fencepost.spark import keys, plan, positions, spark_session
from fencepost.spark.branches import quoted
from fencepost.spark.jvm import release

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ONCE_SINCE = (4, 1)
"""The first Spark that can shuffle by partition, and that compares the output of a rerun task."""
SHARED = re.compile(r"fencepost_share_[0-9a-f]{16}")
ENOUGH = 1 << 20
"""Characters of a plan's text."""
COMPARES = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
"""Makes Spark compare the output of a rerun task with that of the first run."""
MERGES = "spark.shuffle.push.enabled"
"""Makes Spark compare nothing (since 4.2), because executors merge the outputs of several tasks."""
PLAN_TEXT = "spark.sql.maxPlanStringLength"

Proof = Callable[[str], None]
"""Given the lineage, raises if a record of the epoch in progress may have had two results."""


def new_mark(kind: str) -> str:
    """A name by which a step is recognised in a plan; no other step uses it, and no record contains it."""
    return f"fencepost_{kind}_{secrets.token_hex(8)}"


# --- computed once


def share(frame: DataFrame, job: str) -> DataFrame:
    """The same rows, computed once for all branches that use them."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name; pyspark is the user's

    _check_can_be_shared(frame, job)
    mark = new_mark("share")
    _, position = positions.origin(frame)
    row = F.struct(*map(quoted, frame.columns), position.alias(positions.POSITION))
    rows = once(frame.select(F.spark_partition_id().alias("partition"), F.array(row).alias(mark)), mark, job)
    return positions.hidden(rows)


def once(frame: Any, rows: str, job: str) -> DataFrame:
    """The rows in the array column `rows`, behind a shuffle by the column `partition` that all branches read."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as above

    spark: Any = frame.sparkSession
    spark_session.need(
        spark.version, ONCE_SINCE, "computing a record once for all branches needs", where=Where(job=job)
    )
    # By partition, not by record: this keeps the order within a partition.
    parts = max(1, spark.sparkContext.defaultParallelism)
    shuffled = frame.repartitionById(parts, F.col("partition") % parts)
    # Spark pushes neither filters nor column pruning below a generator, and it reuses a shuffle only if everything
    # below it is identical.
    return shuffled.select(F.inline(quoted(rows)))  # type: ignore[no-any-return]


def rand() -> Column:
    """A random number in [0, 1): Spark's `rand()`, for a DataFrame that is given to `job.share`.

    Spark draws a new seed for every place where its own `rand()` stands in a plan, so branches could not share it.
    """
    return _of_java("java.lang.Math", "random").cast("double")


def uuid() -> Column:
    """A random UUID as a string: Spark's `uuid()`, for a DataFrame that is given to `job.share`. See `rand`."""
    return _of_java("java.util.UUID", "randomUUID")


def _of_java(name: str, method: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as above

    return F.call_function("reflect", F.lit(name), F.lit(method))


def _check_can_be_shared(frame: Any, job: str) -> None:
    where = Where(job=job)
    if plan.states_of(frame):
        raise BadConfig(
            "shared_state",
            "The DataFrame has state (an aggregate, a join, duplicates, keyed state), which Spark keeps for each "
            "branch: it cannot be shared.",
            where=where,
            next="Share what lies below the state: base = job.share(…), then aggregate base.",
        )
    logical = frame._jdf.queryExecution().analyzed()
    if logical.containsPattern(_patterns(frame).EXPRESSION_WITH_RANDOM_SEED()):
        raise BadConfig(
            "shared_seed",
            "The DataFrame uses rand(), uuid() or another function with a random seed. Spark chooses a seed for each "
            "branch, so the branches would not see the same values.",
            where=where,
            next="Use fp.rand() or fp.uuid() instead, or make the values in a Python function.",
        )


def proof(spark: Any, texts: Iterable[str], calls: Iterable[str], job: str) -> Proof | None:
    """The check to run before each decision; None if no branch needs it.

    Args:
        spark: The session.
        texts: The analyzed plans of all branches.
        calls: The names of functions that may be called once per record only.
        job: The job's name.
    """
    shared = {mark for text in texts for mark in SHARED.findall(text)}
    needles = [f"{name}(" for name in calls] + [f"AS {mark}#" for mark in sorted(shared)]
    if not needles:
        return None
    _check_settings(spark, job)

    def check(lineage: str) -> None:
        from fencepost.spark.snapshot import executed_plan  # noqa: PLC0415 - py4j comes with pyspark, the user's

        check_once(needles, executed_plan(spark, lineage))

    return check


EXCLUDED = "spark.sql.adaptive.optimizer.excludedRules"
EMPTIES = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"


def settings(spark: Any) -> dict[str, str]:
    """Settings that a query with a proof needs: the executed plan must say what was computed.

    Where a step makes no rows, Spark would put an empty table in its place, which quotes the plan of the step: this
    text looks the same whether the step ran once or twice.
    """
    rules = [rule for rule in str(spark.conf.get(EXCLUDED, "")).split(",") if rule]
    return {EXCLUDED: ",".join(dict.fromkeys([*rules, EMPTIES]))}


def _check_settings(spark: Any, job: str) -> None:
    wrong = _without_sums(spark)
    if spark._jsparkSession.sessionState().conf().maxPlanStringLength() < ENOUGH:
        wrong[PLAN_TEXT] = "remove {}"
    if wrong:
        raise BadConfig(
            "once_needs_settings",
            f"With these values of {', '.join(wrong)}, one record could have two results without being noticed.",
            where=Where(job=job),
            next=f"When the session is created, {_advice(wrong)}.",
        )


def _without_sums(spark: Any) -> dict[str, str]:
    """What to change so that Spark compares the output of a rerun task. Spark 4.1 does not do it by default."""
    compares = str(spark.conf.get(COMPARES)).lower() == "true"
    merges = str(spark.sparkContext.getConf().get(MERGES, "false")).lower() == "true"
    return ({} if compares else {COMPARES: "set {} to true"}) | ({MERGES: "remove {}"} if merges else {})


def _advice(wrong: Mapping[str, str]) -> str:
    return " and ".join(what.format(name) for name, what in wrong.items())


def check_moves(frames: Mapping[str, Any], job: str, *, trusts_udfs: bool) -> None:
    """Refuse a shuffle by what is drawn, where Spark would not notice that a rerun task draws something else."""
    for name, frame in frames.items():
        spark = frame.sparkSession
        settings = spark.sparkContext.getConf()
        if settings.get(spark_session.STAGE_ATTEMPTS, "4") == "1":
            return  # a lost shuffle file fails the epoch
        can_compare = release(spark.version) >= ONCE_SINCE
        wrong = _without_sums(spark) if can_compare else {spark_session.STAGE_ATTEMPTS: "set {} to 1"}
        if wrong and (drawn := keys.moving(frame, trusts_udfs=trusts_udfs)):
            advice = " If it is deterministic, say so: fp.Job(…, deterministic_udfs=True)." if "Python" in drawn else ""
            raise BadConfig(
                "moved_by_chance",
                f"A shuffle sends each record to the task that {drawn} says. If an executor is lost in the middle of "
                "an epoch, it is computed again, perhaps for another task: it could be lost, or counted twice.",
                where=Where(job=job, sink=name),
                next=f"When the session is created, {_advice(wrong)}; or make the key from the record.{advice}",
            )


def check_once(needles: Iterable[str], text: str) -> None:
    """Refuse an executed plan that contains one of these texts more than once."""
    ran, _, _ = text.partition("== Initial Plan ==")  # behind it: the plan before adaptive execution changed it
    if any(ran.count(needle) > 1 for needle in needles):
        raise BadConfig(
            "called_twice",
            "Spark's plan computes what branches share (job.share, or the function in map) more than once: they may "
            "disagree about a record.",
            safe=EpochFailed.safe,
            next="Check that spark.sql.exchange.reuse is true, and that no custom optimizer rule moves shuffles.",
        )


def is_called_twice(frame: Any) -> bool:
    """Would Spark call a Python function twice for a record?

    It takes every function for a deterministic one. So it moves a filter on its result below the column, calls it
    there, and calls it again for the column: `withColumn("r", f("id")).where("r < 1")` may then give an r of 2.
    """
    logical = frame._jdf.queryExecution().analyzed()
    if not logical.containsPattern(_patterns(frame).PYTHON_UDF()):
        return False
    written = _calls(logical)
    return any(count > max(1, written[call]) for call, count in _calls(plan.optimized(frame)).items())


def called_once(frame: Any, job: str) -> Any:
    """The same rows, each Python function called once for a record; refuse what that cannot be done for."""
    if not is_called_twice(frame):
        return frame
    varying = _Varying(frame, _patterns(frame).PYTHON_UDF())
    changed = plan.frame_of(frame, varying.plan(frame._jdf.queryExecution().analyzed()))
    if is_called_twice(changed):
        raise BadConfig(
            "function_called_twice",
            "Spark would call a Python function twice for a record, once for a filter and once for a grouping, and the "
            "two results may differ.",
            where=Where(job=job),
            next='Compute it in a column first, .withColumn("k", f(…)), then group and filter by that column. Or set '
            "fp.Job(…, deterministic_udfs=True) if it returns the same result for the same record.",
        )
    return changed


def check_called_once(frame: Any, job: str) -> None:
    """Refuse a plan that cannot be changed any more, in which a function is called twice."""
    if is_called_twice(frame):
        raise BadConfig(
            "function_in_writer",
            "Spark would call a Python function twice for a record, once for a filter and once for the column that is "
            "written, and the two results may differ.",
            where=Where(job=job),
            next="Declare the function with asNondeterministic(), whether it is or not: Spark then calls it once. Or "
            "use fp.Job(…).write(frame, sink), which takes care of it.",
        )


def _calls(node: Any) -> Counter[str]:
    """For each call that is written, how many steps on a record's way from a source make it.

    Of a union or a join a record goes through one side. A step that names a call twice makes it once: an aggregate
    names its grouping columns again in its result.
    """
    parts = (part for one in plan.elements(node.expressions()) for part in plan.nodes(one))
    mine = Counter({str(part.resultId().id()) for part in parts if _is_function(part)})
    below: Counter[str] = Counter()
    for side in map(_calls, plan.children_of(node)):
        below |= side  # the greater of the two counts
    return mine + below


def _is_function(expression: Any) -> bool:
    return str(expression.getClass().getSimpleName()) == "PythonUDF"


class _Varying:
    """Makes the Python functions in a plan's columns nondeterministic: Spark then computes such a column once."""

    def __init__(self, frame: Any, pattern: Any) -> None:
        self._jvm = frame.sparkSession._jvm
        self._catalyst = self._jvm.org.apache.spark.sql.catalyst
        self._pattern = pattern

    def plan(self, node: Any) -> Any:
        """A plan, from the bottom up."""
        if not node.containsPattern(self._pattern):
            return node
        node = node.withNewChildren(self._seq(map(self.plan, plan.children_of(node))))
        if str(node.nodeName()) != "Project":
            return node
        columns = self._seq(map(self._expression, plan.elements(node.projectList())))
        return self._catalyst.plans.logical.Project(columns, node.child())

    def _expression(self, one: Any) -> Any:
        if not one.containsPattern(self._pattern):
            return one
        one = one.withNewChildren(self._seq(map(self._expression, plan.children_of(one))))
        if not _is_function(one):
            return one
        told = [one.productElement(place) for place in range(one.productArity())]
        told[5] = False
        return self._catalyst.expressions.PythonUDF(*told)

    def _seq(self, found: Iterable[Any]) -> Any:
        return spark_session.as_seq(self._jvm, list(found))


# --- or the same each time


STABLE = ("LocalRelation", "OneRowRelation", "Range")
"""Static tables that are in the plan, and so cannot change between two reads."""
GIVEN = {"MapPartitionsRDD", "ParallelCollectionRDD", "PythonRDD"}
"""What `spark.createDataFrame(rows)` is made of. One that reads something has others, and is read again each time."""
DEDUPLICATION = "dropDuplicates"
PICKS = {"GlobalLimit": "a limit", "Deduplicate": DEDUPLICATION}
"""Operators that choose among rows by their order, which differs between two runs; by the start of their names."""
GROUPED = ("FlatMapGroupsInPandas", "FlatMapGroupsInArrow", "FlatMapCoGroupsInPandas", "FlatMapCoGroupsInArrow")
"""Operators that give a Python function the rows of a group in one epoch."""
PLACING = (*keys.MOVING, "GlobalLimit", "RebalancePartitions", "Sort", "Union")
"""Operators that decide in which task a row is; by the start of their names."""

WITHOUT_ORDER = (
    "any approx_count_distinct avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and"
    " bool_or corr count count_if count_min_sketch covar_pop covar_samp every grouping grouping_id kurtosis max mean"
    " median min percentile percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2"
    " regr_slope regr_sxx regr_sxy regr_syy skewness some std stddev stddev_pop stddev_samp sum try_avg try_sum"
    " var_pop var_samp variance"
)
"""Aggregates whose results do not depend on the order of rows, but for the last digits of floating-point numbers.

Spark calls the others deterministic too: `first`, `collect_list`, `max_by` among equal rows, sketches that compact or
draw as rows come (KLL, Theta, HLL, top-k).
"""


_ANY = (
    "takes the value of any row: which one is chance. Use max_by(<value>, <time>) with a time that is unique in its "
    "group, or max(struct(<time>, <value>))"
)
_EQUAL = (
    "takes any of the rows that are equal in its order: which one is chance. Make that order unique in its group, or "
    "use max(struct(<order>, <value>))"
)
OTHER_CHOICE = (
    "depends on the order of the rows, which is chance. Sort what it returns (array_sort), or use an aggregate that "
    "does not depend on it"
)
CHOICES = {
    **dict.fromkeys(("any_value", "first", "first_value", "last", "last_value"), _ANY),
    **dict.fromkeys(("max_by", "min_by"), _EQUAL),
    DEDUPLICATION: "keeps any of the rows that are equal in the columns it names: if they differ in others, which one "
    "stays is chance. Call it without columns, or aggregate: max(struct(<time>, <value>))",
    "a limit": "keeps any of the rows: which ones is chance",
    "applyInPandas": "gets the rows of a group that are in one epoch, so that its result depends on where epochs are "
    "cut, which a crash may change. For a group over all epochs, aggregate or use fp.map_with_state",
}
"""What depends on the order of rows or on the cut of epochs, and what to do, for `fencepost check`."""


class ForkSite(NamedTuple):
    """A place in a plan that may give two results for one record of a source."""

    key: Any
    """Equal where the same thing is computed for records of the same source."""
    what: str
    has_state: bool = False


def check(frames: Mapping[str, Any], job: str, *, trusts_udfs: bool) -> None:
    """Refuse branches that would each compute for themselves what may differ from one computation to the next.

    The same in one branch, if a record takes two ways through it: a union, or a join of a stream with itself.
    """
    found: dict[Any, str] = {}
    for name, frame in frames.items():
        look = _Look(_patterns(frame), trusts_udfs=trusts_udfs)
        sites = look.sites(frame._jdf.queryExecution().analyzed())
        clashes = [(site, {name}) for site in look.twice]
        clashes += [(site, {name, found[site.key]}) for site in sites if found.setdefault(site.key, name) != name]
        if clashes:
            site, names = clashes[0]
            can_share = release(frame.sparkSession.version) >= ONCE_SINCE
            raise _computed_twice(site, sorted(names), job, can_share=can_share)


def by_chance(frame: Any) -> dict[str, str]:
    """What in a plan depends on the order of rows, or on where epochs are cut, and what to do about it."""
    look = _Look(_patterns(frame), trusts_udfs=True)
    found: dict[str, str] = {}
    for node in plan.nodes(frame._jdf.queryExecution().analyzed()):
        if node.isStreaming():
            found |= dict(look.chosen(node))
    return found


def _computed_twice(site: ForkSite, sinks: list[str], job: str, *, can_share: bool) -> BadConfig:
    one = f"Branch {sinks[0]} computes {site.what} twice"
    several = f"Branches {' and '.join(sinks)} each compute {site.what} for themselves"
    where = "be in the result twice, or not at all" if len(sinks) == 1 else "be in both sinks, or in neither"
    share = "Compute it once: base = job.share(frame), and build the branches from base."
    split = (
        "Write the result to one sink and let a second job read it from there; or make it deterministic, for example "
        "max(struct(time, …)) in place of last(…), or dropDuplicates() by all columns."
    )
    advice = [share if can_share and not site.has_state else split]
    if site.what == PYTHON:
        advice.append("If your Python functions are deterministic, say so: fp.Job(…, deterministic_udfs=True).")
    if site.what == STATIC:
        advice.append(
            "A table that fits into the plan cannot change: spark.createDataFrame(table.collect(), table.schema)."
        )
    return BadConfig(
        "computed_twice",
        f"{one if len(sinks) == 1 else several}, and the results may differ: a record could {where}.",
        where=Where(job=job),
        next=" ".join(advice),
    )


PYTHON = "a Python function"
DECLARED = "a Python function that is declared nondeterministic"
STATIC = "a look into a static table, which may change between two reads,"


@dataclass
class _Look:
    """Looks for what varies in a plan."""

    patterns: Any
    trusts_udfs: bool
    """Python functions that Spark calls deterministic are."""
    twice: list[ForkSite] = field(default_factory=list)
    """What is computed twice for a record in this plan alone."""

    def sites(self, node: Any) -> list[ForkSite]:
        """From the top; nothing below a step that is computed once."""
        if not node.isStreaming() or _is_once(node):
            return []
        children = list(plan.children_of(node))
        ways = [self.sites(child) for child in children]
        for number, way in enumerate(ways):
            before = {site.key for other in ways[:number] for site in other}
            self.twice += [site for site in way if site.key in before]
        below = [site for way in ways for site in way]
        varying = [*self._of_expressions(node, children), *self._of_operator(node, children)]
        if not varying:
            return below
        has_state = any(True for _ in plan.stateful_below(node))
        # A key for each source: two branches that have one of their sources in common have its records in common.
        sources = {int(leaf.semanticHash()) for leaf in _streams(node)}
        return [*(ForkSite((*one, source), one[0], has_state) for one in varying for source in sources), *below]

    def _of_expressions(self, node: Any, children: list[Any]) -> Iterator[tuple[str, str]]:
        """What varies in the expressions of an operator, and what it has in common with other places of it."""
        for expression in plan.elements(node.expressions()):
            yield from self._of_python(expression, children)
            for culprit in () if expression.deterministic() else _culprits(expression):
                if not keys.is_python(culprit):
                    yield f"{culprit.prettyName()}()", self._drawn(culprit) or _placed(node)
            for name in self._by_order(expression):
                yield f"{name}()", f"by {_origins(children, *_groups(node))}"
            if expression.containsPattern(self.patterns.PLAN_EXPRESSION()):
                for part in _inside(expression):
                    if part.getClass().getSimpleName() in keys.SUBQUERIES:
                        yield from self._unstable(part.plan())

    def _of_python(self, expression: Any, children: list[Any]) -> Iterator[tuple[str, str]]:
        """Its Python functions; if they are trusted, those of which the user said in Spark's own way that they vary."""
        if self.trusts_udfs and expression.deterministic():
            return
        if keys.has_python(expression, self.patterns):
            for part in filter(keys.is_python, _inside(expression)):
                if not (self.trusts_udfs and part.deterministic()):
                    yield (DECLARED if self.trusts_udfs else PYTHON), f"{part.name()} of {_origins(children, part)}"

    def _by_order(self, expression: Any) -> Iterator[str]:
        """The aggregates in it that depend on the order of rows."""
        if not expression.containsPattern(self.patterns.AGGREGATE_EXPRESSION()):
            return
        for part in _inside(expression):
            if part.getClass().getSimpleName() == "AggregateExpression":
                function = part.aggregateFunction()
                name = str(function.prettyName())
                if not keys.is_python(function) and name not in WITHOUT_ORDER.split():
                    yield name

    def _drawn(self, culprit: Any) -> str:
        """What two uses of a random value have in common; nothing for what depends on the place of a row."""
        if culprit.containsPattern(self.patterns.EXPRESSION_WITH_RANDOM_SEED()):
            return "drawn"  # every use has a seed of its own
        return _bare(culprit) if "reflect" in str(culprit.prettyName()) else ""

    def _of_operator(self, node: Any, children: list[Any]) -> Iterator[tuple[str, str]]:
        what = self._picks(node, children)
        if what:
            by = node.keys() if what == DEDUPLICATION else None
            yield what, "" if by is None else f"by {_origins(children, *plan.elements(by))}"
        for child in children:
            if not child.isStreaming():
                yield from self._unstable(child)

    def _picks(self, node: Any, children: list[Any]) -> str:
        """Does it choose among rows by their order?"""
        name = str(node.nodeName())
        return next(
            (what for start, what in PICKS.items() if name.startswith(start) and not _is_by_all(node, children)), ""
        )

    def _unstable(self, node: Any) -> Iterator[tuple[str, str]]:
        """What in a static table may be different when it is read again, whatever is selected from it."""
        children = list(plan.children_of(node))
        if not children and node.getClass().getSimpleName() not in STABLE and not _is_given(node):
            yield STATIC, _table(node)
        yield from self._of_expressions(node, children)
        yield from self._of_operator(node, [])
        for child in children:
            yield from self._unstable(child)

    def chosen(self, node: Any) -> Iterator[tuple[str, str]]:
        """What an operator chooses by the order of rows, or by where epochs are cut, and what to do about it."""
        for expression in plan.elements(node.expressions()):
            for name in self._by_order(expression):
                yield f"{name}()", CHOICES.get(name, OTHER_CHOICE)
        if what := self._picks(node, list(plan.children_of(node))):
            yield what, CHOICES[what]
        if str(node.nodeName()) in GROUPED:
            yield "applyInPandas", CHOICES["applyInPandas"]


def _table(leaf: Any) -> str:
    """What a static table is read from: reading it twice gives two plans."""
    kind = leaf.getClass().getSimpleName()
    if kind == "LogicalRelation":
        relation = leaf.relation()
        if relation.getClass().getSimpleName() == "HadoopFsRelation":
            return " ".join(sorted(str(path) for path in plan.elements(relation.location().rootPaths())))
        return re.sub(r" \[numPartitions=\d+\]$", "", str(relation))
    if kind == "DataSourceV2Relation":
        return f"{leaf.table().name()} {sorted(dict(leaf.options().asCaseSensitiveMap()).items())}"
    if kind == "HiveTableRelation":
        return str(leaf.tableMeta().identifier())
    return str(leaf.semanticHash())


def _placed(node: Any) -> str:
    """What two uses of the place of a row have in common: rows that are moved below go elsewhere with other columns."""
    return "placed" if _moves(node) else str(node.semanticHash())


def _moves(node: Any) -> bool:
    """Does something below it move rows, or number their partitions in another way?"""
    return any(
        str(child.nodeName()).startswith(PLACING) or _moves(child)
        for child in plan.children_of(node)
        if not _is_once(child)
    )


def _is_given(leaf: Any) -> bool:
    """Are its rows in the plan, or kept since they were computed? (What Python does to given rows nobody can see.)"""
    if leaf.getClass().getSimpleName() != "LogicalRDD":
        return False
    rdd = leaf.rdd()
    return bool(rdd.isCheckpointed()) or set(re.findall(r"(\w+)\[\d+\]", str(rdd.toDebugString()))) <= GIVEN


def _is_by_all(node: Any, children: list[Any]) -> bool:
    """Does it look for duplicates by all columns? Then it does not matter which of them stays."""
    is_search = str(node.nodeName()).startswith("Deduplicate") and bool(children)
    return is_search and node.keys().size() >= children[0].output().size()


def _streams(node: Any) -> Iterator[Any]:
    return (leaf for leaf in plan.elements(node.collectLeaves()) if leaf.isStreaming())


def _inside(expression: Any) -> Iterator[Any]:
    yield expression
    for child in plan.children_of(expression):
        yield from _inside(child)


def _culprits(expression: Any) -> Iterator[Any]:
    """The innermost expressions that are not deterministic."""
    inner = [child for child in plan.children_of(expression) if not child.deterministic()]
    for child in inner:
        yield from _culprits(child)
    if not inner:
        yield expression


def _groups(node: Any) -> Iterator[Any]:
    return plan.elements(node.groupingExpressions()) if str(node.nodeName()) == "Aggregate" else iter(())


def _origins(nodes: Iterable[Any], *expressions: Any) -> str:
    """The columns of the sources that expressions above these nodes are computed from, whatever they are called now."""
    columns = [column for one in expressions for column in plan.elements(one.references().toSeq())]
    found: set[str] = set().union(*(_origin(list(nodes), column) for column in columns))
    return ", ".join(sorted(found))


def _origin(nodes: list[Any], column: Any) -> set[str]:
    for node in nodes:
        if node.outputSet().contains(column):
            break
    else:
        return {str(column.name())}
    name, number, children = str(node.nodeName()), column.exprId().id(), list(plan.children_of(node))
    if not children:
        return {str(column.name())}
    if name == "Union":
        place = next(at for at, one in enumerate(plan.elements(node.output())) if one.exprId().id() == number)
        return set().union(*(_origin([child], child.output().apply(place)) for child in children))
    if any(child.outputSet().contains(column) for child in children):
        return _origin(children, column)
    made = {"Project": "projectList", "Aggregate": "aggregateExpressions"}.get(name, "expressions")
    makers = list(plan.elements(getattr(node, made)()))
    mine = [one for one in makers if made != "expressions" and one.exprId().id() == number]
    below = [column for one in mine or makers for column in plan.elements(one.references().toSeq())]
    return set().union(*(_origin(children, one) for one in below))


def _bare(expression: Any) -> str:
    """The text of an expression, with the bare names of columns."""
    return re.sub(r"(?:\w+\.)+(?=\w)", "", str(expression.sql()).replace("`", ""))


def _is_once(node: Any) -> bool:
    """Does it belong to a step that is computed once?"""
    name, mark = str(node.nodeName()), {"Generate": "fencepost_share_", "MapInArrow": "fencepost_map_"}
    return name in mark and mark[name] in str(node.simpleString(1000))


def _patterns(frame: Any) -> Any:
    return frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
