"""Does a plan give each key one last row? Read from the analyzed plan, before anything starts.

    Aggregate, Deduplicate, Distinct by some of the key's columns       one row per key in every epoch
    map_with_state by some of the key's columns                         the rows of a key in one task, in its order
    a source's own number of a record (Kafka's offset) in the key       one row per key at all

Everything else may give an epoch two rows of one key, from two tasks, and nothing says which of them is the last:
neither the place of a task (Spark sorts the files of an epoch by size) nor the epoch (a crash may cut it elsewhere).
Never guesses: a plan that is not understood is one without an order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fencepost.spark.plan import culprit, elements, nodes

KEEPING = (
    "EventTimeWatermark",
    "Filter",
    "GlobalLimit",
    "LocalLimit",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "Sort",
    "SubqueryAlias",
    "View",
)
"""Operators whose rows are some of their input's rows, with the same columns."""

NUMBERS: Mapping[str, tuple[str, ...]] = {
    "kafka": ("topic", "partition", "offset"),
    "rate": ("value",),
    "rate-micro-batch": ("value",),
}
"""By source: the columns that together number its records."""

WHOLE = {"tinyint": 1, "smallint": 2, "int": 3, "bigint": 4}
"""Types by size: a value cast to a larger one, or to text, still tells apart what it told apart."""

WINDOWS = ("spark.timeWindow", "spark.sessionWindow")
"""What Spark notes on a column that it made with window(…): its start or its end says which window it is."""


def has_last_rows(frame: Any, key: Collection[str]) -> bool:
    """Is there, in every epoch, one last row of each key, whatever the order of the tasks?"""
    plan = frame._jdf.queryExecution().analyzed()
    return _is_told_apart(plan, {_id(column) for column in elements(plan.output()) if column.name() in key})


SHUFFLES = ("Repartition", "RepartitionByExpression", "Sort")
"""Of those, the ones that move rows from task to task."""


def _is_told_apart(plan: Any, ids: set[int], *, is_moved: bool = False) -> bool:
    """Do the columns with these ids tell all rows of an epoch apart, or, if nothing above moves rows from task to task,
    at least those of different tasks?
    """
    match str(plan.nodeName()):
        case "Project":
            found = _is_told_apart(plan.child(), _below(plan, ids), is_moved=is_moved)
        case "Aggregate":
            kept = [_source(one) for one in elements(plan.aggregateExpressions()) if _id(one) in ids]
            found = all(any(one.semanticEquals(by) for one in kept) for by in elements(plan.groupingExpressions()))
        case "Distinct":
            found = _ids(plan.output()) <= ids or _is_told_apart(plan.child(), ids, is_moved=True)
        case "Deduplicate" | "DeduplicateWithinWatermark":
            found = _ids(plan.keys()) <= ids or _is_told_apart(plan.child(), ids, is_moved=True)
        case "TransformWithStateInPySpark":
            # The function makes its rows itself: a column that is called like one of `by` is taken for it.
            by = {str(column.name()) for column in elements(plan.leftAttributes())}
            found = not is_moved and by <= _names(plan, ids)
        case name if name in KEEPING:
            found = _is_told_apart(plan.child(), ids, is_moved=is_moved or name in SHUFFLES)
        case _:
            found = bool(plan.children().isEmpty()) and _is_numbered(plan, _names(plan, ids))
    return found


def _below(project: Any, ids: set[int]) -> set[int]:
    """The input's columns that the given columns of a projection stand for."""
    sources = [_source(one) for one in elements(project.projectList()) if _id(one) in ids]
    return {_id(source) for source in sources if _kind(source) == "AttributeReference"}


def _source(expression: Any) -> Any:
    """What an expression is made of, if each value of it comes from one value of that; else the expression itself."""
    kind = _kind(expression)
    if kind == "Alias" or (kind == "Cast" and _keeps_apart(expression)):
        return _source(expression.child())
    if kind == "GetStructField" and _kind(expression.child()) == "AttributeReference":
        window = expression.child()
        if any(window.metadata().contains(note) for note in WINDOWS):
            return window
    return expression


def _keeps_apart(cast: Any) -> bool:
    before, after = (str(one.dataType().simpleString()) for one in (cast.child(), cast))
    return before == after or (before in WHOLE and (after == "string" or WHOLE.get(after, 0) > WHOLE[before]))


def _is_numbered(leaf: Any, names: set[str]) -> bool:
    if leaf.getClass().getSimpleName() != "StreamingRelationV2":
        return False
    wanted = NUMBERS.get(str(leaf.sourceName()).lower())
    return wanted is not None and names.issuperset(wanted)


# --- does a plan that runs again give the same keys?


def varying(frame: Any, key: Collection[str]) -> str:
    """What makes another run of the plan emit rows of other keys (`uuid()`); "" if Spark knows of nothing."""
    plan, draws = frame._jdf.queryExecution().analyzed(), _Draws()
    patterns = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    draws.by = {"the current time": lambda one: bool(one.containsPattern(patterns.CURRENT_LIKE()))}
    drawn = draws.of_plan(plan)
    keys = [drawn.get(_id(column), "") for column in elements(plan.output()) if column.name() in key]
    return next(filter(None, [*keys, *draws.rows]), "")


def moving(frame: Any, *, trusts_udfs: bool) -> str:
    """What makes a task that runs again send a record elsewhere in a shuffle; "" if Spark knows of nothing."""
    draws = _Draws(stable=("spark_partition_id",))  # a task that runs again has the same number
    patterns = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    draws.by = {} if trusts_udfs else {"a Python function": lambda one: has_python(one, patterns)}
    draws.of_plan(frame._jdf.queryExecution().analyzed())
    return next(iter(draws.moves), "")


MOVING = ("Aggregate", "Deduplicate", "Distinct", "FlatMapGroups", "Join", "Repartition", "TransformWithState")
"""Operators that shuffle, by the start of their names."""


@dataclass
class _Draws:
    """Follows what is drawn, or taken from the clock, from where it is computed up to the columns of a plan."""

    by: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    """Expressions that count as drawn, beside those that are not deterministic."""
    stable: tuple[str, ...] = ()
    """Functions that do not."""
    rows: list[str] = field(default_factory=list)
    """What decides by a draw which rows there are."""
    moves: list[str] = field(default_factory=list)
    """What decides by a draw to which task of a shuffle a row goes."""

    def of_plan(self, plan: Any) -> dict[int, str]:
        """By column: what it is drawn by."""
        name = str(plan.nodeName())
        below = [self.of_plan(child) for child in elements(plan.children())]
        known = {column: what for one in below for column, what in one.items()}
        decides = list(filter(None, self._deciding(plan, name, known)))
        self.rows += decides if name not in SHUFFLES else ()
        self.moves += decides if name.startswith(MOVING) else ()
        if name in ("Project", "Aggregate"):
            made = plan.projectList() if name == "Project" else plan.aggregateExpressions()
            return {_id(one): what for one in elements(made) if (what := self._of(one, known))}
        if name == "Union":
            return {
                _id(column): one[_id(its)]
                for child, one in zip(elements(plan.children()), below, strict=True)
                for column, its in zip(elements(plan.output()), elements(child.output()), strict=True)
                if _id(its) in one
            }
        return known | self._made(plan, known)

    def _made(self, plan: Any, known: Mapping[int, str]) -> dict[int, str]:
        """New columns of any other operator: `explode`, a cube, a function of the user's."""
        if not plan.children().size():
            return {}
        new = set(_ids(plan.output())) - {one for child in elements(plan.children()) for one in _ids(child.output())}
        what = next(filter(None, (self._of(one, known) for one in elements(plan.expressions()))), "") if new else ""
        return dict.fromkeys(new, what) if what else {}

    def _deciding(self, plan: Any, name: str, known: Mapping[int, str]) -> Iterable[str]:
        if name == "Project":
            return ()
        if name in ("Distinct", "Repartition"):  # round robin goes by the order of whole rows
            return known.values()
        found = plan.groupingExpressions() if name == "Aggregate" else plan.expressions()
        return (self._of(one, known) for one in elements(found))

    def _of(self, expression: Any, known: Mapping[int, str]) -> str:
        for column in elements(expression.references().toSeq()):
            if _id(column) in known:
                return known[_id(column)]
        for what, is_drawn in self.by.items():
            if is_drawn(expression):
                return what
        if expression.deterministic():
            return ""
        name = str(culprit(expression).prettyName())
        return "" if name in self.stable else f"{name}()"


SUBQUERIES = ("Exists", "LateralSubquery", "ListQuery", "ScalarSubquery")
"""Expressions that have a plan of their own."""


def has_python(expression: Any, patterns: Any) -> bool:
    """Is there a Python function in it? A table function has no pattern of its own."""
    if expression.containsPattern(patterns.PYTHON_UDF()):
        return True
    return bool(expression.containsPattern(patterns.GENERATOR())) and any(map(is_python, _parts(expression)))


def _parts(expression: Any) -> Iterator[Any]:
    """All of an expression, and of the plans in it."""
    for part in nodes(expression):
        yield part
        for node in nodes(part.plan()) if _kind(part) in SUBQUERIES else ():
            for inner in elements(node.expressions()):
                yield from _parts(inner)


def is_python(expression: Any) -> bool:
    """Is it a Python function: of a value, of rows, an aggregate, a table function?"""
    return _kind(expression).startswith("Python")


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _names(plan: Any, ids: set[int]) -> set[str]:
    return {str(column.name()) for column in elements(plan.output()) if _id(column) in ids}


def _ids(columns: Any) -> set[int]:
    return {_id(column) for column in elements(columns)}


def _id(column: Any) -> int:
    return int(column.exprId().id())
