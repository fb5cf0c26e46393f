"""One scan for branches that differ only in stateless steps: each record is read once and fans out at the end.

    records ─ parse ─ where a ─ select ──→ A               records ─ parse ─ columns of A and B ─┬─→ A
    records ─ parse ─ where b ─ select ──→ B    becomes                                          └─→ B
                                                           records ─ none of them

The new plan names the source as often as the old one, and in the same places: Spark writes the same lines to `offsets`,
so a checkpoint can be continued with either plan. What a branch computes behind a filter is computed only for rows that
pass it, and the rows of each branch keep their order.

Never takes a branch with state along, which Spark numbers, nor one with a step that may give two results. Nor one in
which Spark would move a filter below what is computed before it: the scan would compute that for other rows, too, and
might fail there. Nor one whose filter itself may fail: alone, Spark drops rows with a NULL first, and those that the
source can skip. Nor a source or a from_json whose rows depend on the columns that are asked for.

What stands twice in a step Spark computes once, before the step and for every row, even if it stands there behind an
AND, an OR or a NULL. Several branches in one step may have in common what none of them has twice; so a query whose scan
computes something that may fail runs without that (`settings`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from fencepost.spark import plan
from fencepost.spark.spark_session import as_seq

OURS = "__fencepost_"
"""How columns of ours begin, those of `job.parse` among them: they never fail."""
KEPT = f"{OURS}kept"
"""Is a row of the fan-out one of its branch's?"""

AS_WRITTEN: Mapping[str, str] = {"spark.sql.subexpressionElimination.enabled": "false"}
"""What stands behind an AND is computed only for rows that pass what stands before it."""


@dataclass(frozen=True)
class Scan:
    """Branches that are read at once."""

    names: tuple[str, ...]
    """In the order of the branches."""
    rows: Any
    """A DataFrame with each branch's columns in a struct; then, for each branch, whether it keeps the row."""
    may_fail: bool = False
    """Is a column computed for which some value is an error?"""

    @property
    def columns(self) -> dict[str, str]:
        """By branch: the column with its struct. Not its own name, for Spark does not tell A from a."""
        return {name: f"branch_{place}" for place, name in enumerate(self.names)}

    def fan_out(self, tag: str, tags: Mapping[str, int]) -> Any:
        """A row for each branch that keeps the record: its number, and its columns in the struct of the branch."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name; pyspark is the user's

        head = self.rows.select(F.lit(0).alias(tag), F.lit(False).alias(KEPT), "*")
        jvm = head.sparkSession._jvm
        catalyst = jvm.org.apache.spark.sql.catalyst
        literal = catalyst.expressions.Literal
        below = head._jdf.queryExecution().analyzed()
        number, is_kept, *both = plan.elements(below.output())
        structs, kept = both[: len(self.names)], both[len(self.names) :]
        nulls = [literal.create(None, one.dataType()) for one in structs]
        lines = [
            [literal.create(tags[name], number.dataType()), kept[at], *nulls[:at], structs[at], *nulls[at + 1 :]]
            for at, name in enumerate(self.names)
        ]
        made = [number, is_kept, *(one.withNullability(True) for one in structs)]
        expand = catalyst.plans.logical.Expand(
            as_seq(jvm, [as_seq(jvm, line) for line in lines]),
            as_seq(jvm, [one.newInstance() for one in made]),
            below,
        )
        return plan.frame_of(head, expand).where(KEPT).drop(KEPT)


def settings(scans: Sequence[Scan]) -> Mapping[str, str]:
    """What a query with these scans needs, to compute nothing for a row that a separate read would not."""
    return AS_WRITTEN if any(one.may_fail for one in scans) else {}


def none_of(frame: Any) -> Any:
    """The sources of a DataFrame without their records: Spark notes their positions, and reads nothing.

    They are in a WITH clause that nothing refers to, which the optimizer leaves out. It would keep what is below a
    filter that is always false, if that is a stream; and a limit is not allowed in output mode update.
    """
    spark = frame.sparkSession
    logical = spark._jvm.org.apache.spark.sql.catalyst.plans.logical
    nothing = spark.sql("SELECT 1 AS nothing WHERE false")._jdf.queryExecution().analyzed()
    clause = getattr(getattr(logical, "CTERelationDef$"), "MODULE$")
    (constructor,) = nothing.getClass().forName(clause.getClass().getName().rstrip("$")).getConstructors()
    places = range(2, constructor.getParameterCount() + 1)  # not the same in every release
    unused = [
        clause.apply(leaf, *(getattr(clause, f"apply$default${place}")() for place in places))
        for leaf in plan.leaves(frame)
    ]
    return plan.frame_of(frame, logical.WithCTE(nothing, as_seq(spark._jvm, unused)))


def scans(frames: Mapping[str, Any]) -> list[Scan]:
    """The branches that are read at once; every other one reads for itself."""
    streams = {name: frame for name, frame in frames.items() if frame.isStreaming}
    if len(streams) < 2:
        return []
    has_state = any(map(plan.stateful, streams.values()))
    cuts = [(name, *_cut(frame)) for name, frame in streams.items()]
    found: list[tuple[Any, dict[str, list[Any]]]] = []
    for name, rows, steps in cuts:
        if not _can_be_common(frames[name], rows, steps, has_state=has_state):
            continue
        like = next((group for common, group in found if common == rows), None)
        if like is None:
            found.append((rows, {name: steps}))
        else:
            like[name] = steps
    made = (_scan(frames, rows, group) for rows, group in found if len(group) > 1)
    return [scan for scan in made if scan is not None]


def _cut(frame: Any) -> tuple[Any, list[Any]]:
    """A plan without its uppermost simple steps, and those steps from the bottom up."""
    patterns = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    node, steps = frame._jdf.queryExecution().analyzed(), []
    alien = [one for one in (patterns.PYTHON_UDF(), patterns.PLAN_EXPRESSION()) if node.containsPattern(one)]
    while _is_simple(node, alien):
        steps.append(node)
        node = node.children().apply(0)
    return node, steps[::-1]


def _is_simple(node: Any, alien: Sequence[Any]) -> bool:
    """Does it make of each row one row or none, and always the same?"""
    name = str(node.nodeName())
    if name == "SubqueryAlias":
        return True
    if name not in ("Project", "Filter") and not (name == "Generate" and _struct(node) is not None):
        return False
    return bool(node.deterministic()) and not any(
        expression.containsPattern(one) for one in alien for expression in plan.elements(node.expressions())
    )


def _struct(generate: Any) -> Any:
    """Of `inline(array(struct))`, which makes one row: the struct; None for every other generator."""
    generator = generate.generator()
    if generate.outer() or str(generator.nodeName()) != "Inline":
        return None
    (array,) = plan.children_of(generator)
    rows = list(plan.children_of(array)) if str(array.nodeName()) == "CreateArray" else []
    return rows[0] if len(rows) == 1 else None


def _can_be_common(frame: Any, rows: Any, steps: Sequence[Any], *, has_state: bool) -> bool:
    """Not if it has state; nor a watermark that state waits for, which a filter of one branch may hold back.

    Nor if the same record may be another row, or none, where other columns of it are read.
    """
    if not rows.isStreaming() or any(True for _ in plan.stateful_below(rows)):
        return False
    if has_state and any(str(node.nodeName()) == "EventTimeWatermark" for node in plan.nodes(rows)):
        return False
    corrupt = str(frame.sparkSession.conf.get("spark.sql.columnNameOfCorruptRecord"))
    sources = zip(plan.sources_of(frame), plan.leaves(frame), strict=True)
    if any(_varies(frame, source.options, leaf, corrupt) for source, leaf in sources):
        return False
    return not _computes_early(rows, steps) and not any(_prunes(node, corrupt) for node in steps)


def _varies(frame: Any, options: Mapping[str, str], leaf: Any, corrupt: str) -> bool:
    """Text that Spark parses: what it drops, or calls corrupt, depends on the columns that it is asked for."""
    kind = plan.format_of(leaf)
    if kind not in {"json", "csv", "xml"}:
        return False
    marked = options.get("columnnameofcorruptrecord", corrupt)
    partial = frame.sparkSession.conf.get("spark.sql.json.enablePartialResults", "true")
    return (
        kind == "xml"
        or options.get("mode", "PERMISSIVE").upper() != "PERMISSIVE"
        or marked in [str(one.name()) for one in plan.elements(leaf.output())]
        or str(partial).lower() != "true"
    )


def _prunes(step: Any, corrupt: str) -> bool:
    """Has it a from_json or from_csv without options, of which Spark parses only what is used, and a corrupt field?"""
    parsers = [
        one
        for expression in plan.elements(step.expressions())
        for one in plan.nodes(expression)
        if str(one.nodeName()) in {"JsonToStructs", "CsvToStructs"}
    ]
    return any(one.options().isEmpty() and f'"{corrupt}"' in str(one.schema().json()) for one in parsers)


def _computes_early(rows: Any, steps: Sequence[Any]) -> bool:
    """Is something computed that Spark, for this branch alone, would compute only for rows that pass a later filter?

    It moves the filter below the computation, which comes first only if each part of the filter reads its result. Then
    it still drops first what is NULL and makes a part so: of a computation from one column the result is NULL as well,
    but one from several might fail.
    """
    reads: dict[int, set[int]] = {}
    """By column: the computations without which there is no value of it, each known by one of its columns."""
    made: set[int] = set()
    common = list(_from_below(rows))
    for number, step in enumerate([*common, *steps]):
        if number >= len(common) and str(step.nodeName()) == "Filter":
            parts = list(_parts_of(step.condition()))
            if not all(_cannot_fail(part) and made <= _surely_read_by(part, reads) for part in parts):
                return True
            continue
        for columns, value in _values(step):
            depends = set() if value is None else _surely_read_by(value, reads)
            if value is None or not _cannot_fail(value):
                made.add(columns[0])
                depends = {*depends, columns[0]} if value is None or len(_columns_in(value)) < 2 else set()
            reads |= dict.fromkeys(columns, depends)
    return False


def _from_below(node: Any) -> Iterator[Any]:
    """The steps of a plan from the bottom up: not those below one through which no filter that reads it is moved."""
    if str(node.nodeName()) not in ("Generate", *FUNCTIONS):
        for child in plan.children_of(node):
            yield from _from_below(child)
    yield node


def _values(step: Any) -> Iterator[tuple[list[int], Any]]:
    """What a step computes, each with its columns; None: more than one expression."""
    name = str(step.nodeName())
    if name == "Project":
        for column in plan.elements(step.projectList()):
            if str(column.nodeName()) == "Alias" and not str(column.name()).startswith(OURS):
                (value,) = plan.children_of(column)
                yield [int(column.exprId().id())], value
    elif name == "Generate":
        yield [int(column.exprId().id()) for column in plan.elements(step.generatorOutput())], _struct(step)
    elif name not in FUNCTIONS:
        for value in plan.elements(step.expressions()):
            yield [NO_COLUMN], value


def _parts_of(condition: Any) -> Iterator[Any]:
    if str(condition.nodeName()) == "And":
        for part in plan.children_of(condition):
            yield from _parts_of(part)
    else:
        yield condition


def _surely_read_by(expression: Any, reads: Mapping[int, set[int]]) -> set[int]:
    """What all of its columns depend on: whichever is read first, the others may not be read at all."""
    found = [reads.get(column, set()) for column in _columns_in(expression)]
    return set.intersection(*found) if found else set()


def _columns_in(expression: Any) -> list[int]:
    """As often as they stand there."""
    return [int(one.exprId().id()) for one in plan.nodes(expression) if str(one.nodeName()) == "AttributeReference"]


FUNCTIONS = ("MapInArrow", "MapInPandas")
"""Steps below which Spark moves no filter, by its names."""
NO_COLUMN = -1
"""Of what a step computes for itself, such as the condition of a join: no later filter can read it."""
CANNOT_FAIL = (
    "AttributeReference Literal GetStructField IsNull IsNotNull Not And Or EqualTo EqualNullSafe GreaterThan LessThan "
    "GreaterThanOrEqual LessThanOrEqual In Coalesce If CaseWhen Upper Lower Concat StringTrim StartsWith EndsWith "
    "Contains Length CreateNamedStruct"
)
"""Spark's names of expressions that give a value, or NULL, whatever they are given, at next to no cost."""


def _cannot_fail(value: Any) -> bool:
    return all(str(one.nodeName()) in CANNOT_FAIL.split() or _is_harmless(one) for one in plan.nodes(value))


def _is_harmless(value: Any) -> bool:
    """Does it fail for some values, but not for the type or the constant that it has here?"""
    from pyspark import SparkContext  # noqa: PLC0415 - pyspark is the user's

    name = str(value.nodeName())
    if value.foldable():
        return _constant(value) is not None
    if name == "Cast":
        (inner,) = plan.children_of(value)
        can_up_cast = SparkContext._jvm.org.apache.spark.sql.catalyst.expressions.Cast.canUpCast  # type: ignore[union-attr]
        return str(value.dataType().typeName()) == "string" or bool(can_up_cast(inner.dataType(), value.dataType()))
    if name in ("Remainder", "Like"):
        *_, last = plan.children_of(value)
        constant = _constant(last) if last.foldable() else None
        return isinstance(constant, int) and constant != 0 if name == "Remainder" else "\\" not in str(constant or "\\")
    return False


def _constant(value: Any) -> Any:
    """None if it is NULL, or an error."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - it comes with pyspark

    try:
        return value.eval(None)
    except Py4JJavaError:
        return None


def _may_fail(step: Any) -> bool:
    """Does it compute a column for which some value is an error?"""
    return not all(value is not None and _cannot_fail(value) for _, value in _values(step))


def _scan(frames: Mapping[str, Any], rows: Any, steps: dict[str, list[Any]]) -> Scan | None:
    """One plan of all these steps over the rows; None if a column means two things."""
    names = tuple(steps)
    first = steps[names[0]]
    shared = 0
    while all(len(mine) > shared and mine[shared] == first[shared] for mine in steps.values()):
        shared += 1
    wide = _Wide(frames[names[0]], first[shared - 1] if shared else rows)
    wide.skip([mine[shared] if len(mine) > shared else None for mine in steps.values()])
    for level in range(shared, max(map(len, steps.values()))):
        if not wide.add({name: mine[level] for name, mine in steps.items() if len(mine) > level}):
            return None
    common = [node for node in plan.nodes(rows) if str(node.nodeName()) == "Project"]
    fails = any(map(_may_fail, [*common, *(step for mine in steps.values() for step in mine)]))
    return wide.scan({name: frames[name] for name in names}, may_fail=fails)


class _Wide:
    """A plan that grows by what several branches make of the same rows."""

    def __init__(self, frame: Any, rows: Any) -> None:
        self._frame, self._rows = frame, rows
        self._columns = list(plan.elements(rows.output()))
        self._jvm = frame.sparkSession._jvm
        catalyst = self._jvm.org.apache.spark.sql.catalyst
        self._expressions, self._logical = catalyst.expressions, catalyst.plans.logical
        self._ids = getattr(getattr(catalyst.expressions, "NamedExpression$"), "MODULE$")
        self._none, self._nothing = self._jvm.scala.Option.empty(), as_seq(self._jvm, [])
        self._kept: dict[str, Any] = {}
        """By branch: the column that says which rows it keeps."""
        self._made: dict[int, tuple[Any, Any]] = {int(one.exprId().id()): (one, None) for one in self._columns}
        """By id: a column, and which rows it is for."""

    def skip(self, steps: Sequence[Any]) -> None:
        """Where files have statistics: rows that no branch keeps, if all begin with a filter."""
        all_filter = all(node is not None and str(node.nodeName()) == "Filter" for node in steps)
        if all_filter and {plan.format_of(leaf) for leaf in plan.leaves(self._frame)} <= {"parquet", "orc"}:
            any_keeps = reduce(self._expressions.Or, [node.condition() for node in steps])
            self._rows = self._logical.Filter(any_keeps, self._rows)

    def add(self, steps: Mapping[str, Any]) -> bool:
        """The next step of these branches; False if a column of theirs means two things."""
        new: list[Any] = []
        filters: list[tuple[Any, Any]] = []
        for name, node in steps.items():
            before = self._kept.get(name)
            if str(node.nodeName()) == "Filter":
                after = next((kept for one, kept in filters if one == node), None)
                if after is None:
                    passes = self._alias(self._where(before, node.condition()), KEPT)
                    new.append(passes)
                    after = passes.toAttribute()
                    filters.append((node, after))
                self._kept[name] = after
                continue
            for column in self._computed(node):
                number = int(column.exprId().id())
                if number not in self._made:
                    self._made[number] = column, before
                    (value,) = plan.children_of(column)
                    new.append(column.withNewChildren(as_seq(self._jvm, [self._where(before, value)])))
                elif self._made[number] != (column, before):
                    return False
        if new:
            self._rows = self._project([*self._columns, *new])
            self._columns += [one.toAttribute() for one in new]
        return True

    def scan(self, frames: Mapping[str, Any], *, may_fail: bool) -> Scan | None:
        """What the branches end with; None if a column of theirs is not there."""
        literals = getattr(getattr(self._expressions, "Literal$"), "MODULE$")
        yes, no = literals.apply(True), literals.apply(False)
        struct = getattr(getattr(self._expressions, "CreateStruct$"), "MODULE$")
        structs, flags = [], []
        for place, (name, frame) in enumerate(frames.items()):
            kept = self._kept.get(name)
            mine = struct.apply(frame._jdf.queryExecution().analyzed().output())
            structs.append(self._alias(self._where(kept, mine), f"branch_{place}"))
            flags.append(self._alias(yes if kept is None else self._expressions.If(kept, yes, no), f"{KEPT}_{place}"))
        rows = self._project([*structs, *flags])
        if not rows.missingInput().isEmpty():
            return None
        return Scan(tuple(frames), plan.frame_of(self._frame, rows), may_fail)

    def _computed(self, node: Any) -> Iterator[Any]:
        """The columns that a step computes."""
        name = str(node.nodeName())
        if name == "Project":
            for column in plan.elements(node.projectList()):
                if str(column.nodeName()) == "Alias":
                    yield column
        elif name == "Generate":
            struct = _struct(node)
            for at, column in enumerate(plan.elements(node.generatorOutput())):
                field = self._expressions.GetStructField(struct, at, self._none)
                yield self._alias(field, column.name(), column.exprId())

    def _where(self, kept: Any, value: Any) -> Any:
        """The value for rows that are kept, and null for the others: for those it is not even computed."""
        if kept is None:
            return value
        none = self._expressions.Literal.create(None, value.dataType())
        return self._expressions.If(kept, value, none)

    def _alias(self, value: Any, name: str, number: Any = None) -> Any:
        number = self._ids.newExprId() if number is None else number
        return self._expressions.Alias(value, name, number, self._nothing, self._none, self._nothing)

    def _project(self, columns: list[Any]) -> Any:
        return self._logical.Project(as_seq(self._jvm, columns), self._rows)
