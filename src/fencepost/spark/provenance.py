"""What lies below an operator with state, as a text: the rows that its state was made from.

    stream where level = '5a9d…'                        a filter; of a string only the digest
    stream where … with k = upper(kind)                 a column that the operator uses, and what it is computed from
    explode(split(value, '36a9…', -1)) of stream        operators that make rows of rows
    [clicks] stream with folder = 'c1'                  of a union a line for each of its sides; where sources have
    [views] stream with folder = '9f'                   names, sides may come and go

The same in every session: it has no ids, no seeds and no names that we draw. What does not change a row that the
operator sees is not in it: columns that it does not use, their order and their intermediate names, the sources (which
have notes of their own), watermarks, partitions. Python functions are known by their names only, and static tables not
at all. Another release of Spark may write an expression differently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import product
from typing import Any

from fencepost.protocol.format import digest
from fencepost.spark.plan import KEYED_STATE, elements

MOST = 64
"""Ways through the unions of a plan; of more only the digest is kept."""
LONGEST = 200
"""Characters of an expression; of a longer one only the digest is kept, because one may use another many times."""

SAME_ROWS = (
    "Project",
    "SubqueryAlias",
    "View",
    "EventTimeWatermark",
    "UpdateEventTimeWatermarkColumn",
    "Repartition",
    "RepartitionByExpression",
    "RebalancePartitions",
    "ResolvedHint",
    "CollectMetrics",
    "Sort",
    "LocalLimit",
    "Union",
)
"""Operators with the rows of their input, whatever they do to columns. Of a union one side is looked at."""

MARK = re.compile(r"\bfencepost_([a-z]+)_[0-9a-f]{16}\b")
"""A name that `job.parse`, `job.map` or `job.share` drew."""
OURS = "__fencepost_"
"""How our own columns begin: how we compute them may change, so only what they are computed from counts."""
POSITION = "__fencepost_position"
"""It goes with a record, and changes nothing in it."""
NUMBER = re.compile(r"#\d+L?\b")
"""An id of Spark's, which is in the text of a Python function."""
SEED = re.compile(r"(?<![\w.])-?\d{10,}L?(?![\w.])")
CONSTANT = re.compile(r"(?:CAST\()*(?:(?:\w+ )?'[^']*'|-?[\d.]+\w*|NULL|true|false)(?: AS [\w(), ]+\))*")
"""Beside the records of a function or a join, such as the name of a run; changed, it changes no other column."""
QUOTED = re.compile(r"(\bINTERVAL |\bTIMESTAMP(?:_NTZ|_LTZ)? |\bDATE )?'((?:[^'\\]|\\.)*)'")
WINDOWS = ("spark.timeWindow", "spark.sessionWindow")
"""How Spark marks columns that are windows: the operator's own text has them."""


def of(operator: Any, name_of: Callable[[Any], str | None]) -> str:
    """Of one operator with state, in an analyzed plan; `name_of` knows the names of sources."""
    leaves: list[str] = []
    ways = [_of_way(node) for node in _ways(PlanOperator(operator), name_of, leaves)]
    return "\n".join(ways) if len(ways) <= MOST else f"#{digest(repr(ways).encode())}"


def _of_way(node: Node) -> str:
    rows = " and ".join(child.rows for child in node.children)
    made = {(name, text) for column in node.uses if (text := node.below(column)) != (name := _bare(column))}
    if node.uses_all:
        made = {(name, text) for name, text in made if not CONSTANT.fullmatch(text)}
    columns = ", ".join(f"{name} = {text}" for name, text in sorted(made))
    names = [leaf.called for leaf in node.leaves if leaf.called]
    whose = f"[{', '.join(names)}] " if names else ""
    text = f"{whose}{rows} with {columns}" if columns else f"{whose}{rows}"
    return " ".join(text.split())


class PlanOperator:
    """What Spark says of one operator; a call into the JVM each, so nothing is asked twice."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan
        self.name = str(plan.nodeName())
        self.is_stream = bool(plan.isStreaming())
        self.inner = [PlanOperator(one) for one in elements(plan.children())] if self.is_stream else []


def _ways(facts: PlanOperator, name_of: Callable[[Any], str | None], leaves: list[str]) -> list[Node]:
    """The plan without unions: once for each side of each union."""
    if facts.is_stream and not facts.inner:
        leaves.append(name_of(facts.plan) or "")
        return [Node(facts, (), leaves[-1], len(leaves))]
    inner = [_ways(one, name_of, leaves) for one in facts.inner]
    is_union = facts.is_stream and facts.name == "Union"
    sides = [(way,) for side in inner for way in side] if is_union else product(*inner)
    return [Node(facts, side) for side in sides]


class Node:
    """One operator on one way through a plan."""

    def __init__(self, facts: PlanOperator, children: Sequence[Node], called: str = "", place: int = 0) -> None:
        self.plan, self.name, self.is_stream = facts.plan, facts.name, facts.is_stream
        self.children = children
        self.called = called
        """The name of a source, if it has one."""
        self.is_alone = True
        """Is it the only stream on this way?"""
        self._columns: dict[int, str] = {}
        self._leaf = f"stream {called or place}" if place else ""
        for leaf in self.leaves:
            leaf.is_alone = len(self.leaves) == 1

    @cached_property
    def leaves(self) -> list[Node]:
        """The streams on this way."""
        return [self] if self._leaf else [leaf for child in self.children for leaf in child.leaves]

    # --- rows

    @cached_property
    def rows(self) -> str:
        """Which rows it has."""
        if not self.is_stream:
            return "a table"
        if self._leaf:
            return "stream" if self.is_alone else self._leaf
        conditions, node = [], self
        while node.name == "Filter" or node.keeps_rows:
            if node.name == "Filter":
                conditions += [node.text(one) for one in _conjuncts(node.plan.condition())]
            node = node.children[0]
        rows = node._made_rows
        return f"{rows} where {' and '.join(sorted(set(conditions)))}" if conditions else rows

    @property
    def keeps_rows(self) -> bool:
        """Does it have the rows of its input?"""
        return self.name in SAME_ROWS or self._unpacked is not None

    @cached_property
    def _made_rows(self) -> str:
        if not self.is_stream or self._leaf:
            return self.rows
        inner = [child.rows for child in self.children]
        below = f"({inner[0]})" if " where " in inner[0] and len(inner) == 1 else ", ".join(inner)
        return f"{self._how} of {below}"

    @property
    def _how(self) -> str:
        """What it makes of its rows."""
        plan, name = self.plan, self.name
        if name.startswith("Join"):
            on = plan.condition()
            return f"{plan.joinType().sql()} join on {self.text(on.get()) if on.isDefined() else 'nothing'}"
        if name == "Generate":
            return self._generator
        if name == "Sample":
            return f"sample from {plan.lowerBound()} to {plan.upperBound()}"
        if name == "Expand":
            return name
        uses = [one for one in elements(plan.expressions()) if not _is_column(one) or self._is_input(one)]
        return f"{self._kind} {', '.join(map(self.text, uses))}" if uses else self._kind

    @property
    def _kind(self) -> str:
        """Its name, which is not in full that of every Spark."""
        return KEYED_STATE if self.name.startswith(KEYED_STATE) else self.name

    @cached_property
    def _generator(self) -> str:
        generator = self.plan.generator()
        if any(_is_ours(one) for one in _references(generator)):  # of `job.parse`
            return self._parsed([generator])
        return self.text(generator)

    def _parsed(self, expressions: Iterable[Any]) -> str:
        return f"parsed({', '.join(sorted(self._roots(expressions)))})"

    def _roots(self, expressions: Iterable[Any]) -> set[str]:
        """What something of ours is computed from, past all that is ours."""
        found: set[str] = set()
        for column in (one for each in expressions for one in _references(each)):
            if not _is_ours(column):
                found.add(self.below(column))
            elif _bare(column) != POSITION:
                node = self._maker(column)
                found |= node._roots(made for _, made in node._definitions(int(column.exprId().id())))
        return found

    def _maker(self, column: Any) -> Node:
        """The operator below that makes a column."""
        node = next(child for child in self.children if child.plan.outputSet().contains(column))
        return node._maker(column) if node._is_input(column) else node

    # --- columns

    @property
    def uses_all(self) -> bool:
        """Does it keep whole rows, or give them to a function of the user's?"""
        return not self.name.startswith(("GlobalLimit", "Deduplicate", "Aggregate"))

    @property
    def uses(self) -> list[Any]:
        """The columns of its input that an operator with state uses."""
        if self.uses_all:
            return [column for child in self.children for column in elements(child.plan.output())]
        if self.name == "GlobalLimit":
            return []
        if self.name != "Aggregate":
            return list(elements(self.plan.keys()))
        both = (self.plan.groupingExpressions(), self.plan.aggregateExpressions())
        found = [column for side in both for one in elements(side) for column in _references(one)]
        return [column for column in found if self._is_input(column)]

    def _is_input(self, column: Any) -> bool:
        return any(child.plan.outputSet().contains(column) for child in self.children)

    def below(self, column: Any) -> str:
        """What a column of its input is computed from."""
        for child in self.children:
            if child.plan.outputSet().contains(column):
                return child.column(column)
        return _bare(column)

    def column(self, column: Any) -> str:
        """What one of its own columns is computed from."""
        number = int(column.exprId().id())
        if number not in self._columns:
            self._columns[number] = self._column(column, number)
        return self._columns[number]

    def _column(self, column: Any, number: int) -> str:
        name = _bare(column)
        if not self.is_stream:
            return f"table.{name}"
        if self._leaf:
            return name if self.is_alone else f"{self._leaf.replace(' ', '_')}.{name}"
        if self.name == "Union":
            return self._of_union(number)
        if self._is_input(column):
            return self.below(column)
        return self._computed(column, number)

    def _computed(self, column: Any, number: int) -> str:
        """One that this operator makes."""
        name = _bare(column)
        if name == POSITION:
            return name
        if self.name == "Generate" and self._unpacked is None:
            return self._generated(name, number)
        made_by = list(self._definitions(number))
        if not made_by:
            return f"{self._kind}.{name}"
        if _is_ours(column):
            return self._parsed(made for _, made in made_by)
        if _is_window(column):
            uses = sorted({node.below(one) for node, made in made_by for one in _references(made)})
            return f"window({', '.join(uses)})"
        return _short(" or ".join(dict.fromkeys(node.text(made) for node, made in made_by)))

    def _generated(self, name: str, number: int) -> str:
        """A generator's columns are known by their places, those of `job.parse` by their names."""
        made = self.plan.generatorOutput()
        if self._generator.startswith("parsed("):
            return f"{self._generator}.{name}"
        return f"{self._generator}[{_places(made, number)[0]}]" if made.size() > 1 else self._generator

    def _of_union(self, number: int) -> str:
        """A union has the ids of its first side, whichever we look at."""
        (place,), (side,) = _places(self.plan.output(), number), self.children
        return side.column(side.plan.output().apply(place))

    def _definitions(self, number: int) -> Iterator[tuple[Node, Any]]:
        """The expressions that make a column, each with the operator that has it; none if only the operator knows."""
        if self.name in ("Project", "Aggregate"):
            listed = self.plan.projectList() if self.name == "Project" else self.plan.aggregateExpressions()
            for place in reversed(range(listed.size())):  # new columns are the last
                one = listed.apply(place)
                if one.exprId().id() == number:
                    yield self, one.child() if one.nodeName() == "Alias" else one
                    return
        elif self.name == "Generate" and self._unpacked is not None:
            node, values = self._unpacked
            for place in _places(self.plan.generatorOutput(), number):
                yield node, values.apply(place)
        elif self.name == "Expand":
            for place in _places(self.plan.output(), number):
                for row in elements(self.plan.projections()):
                    yield self, row.apply(place)

    @cached_property
    def _unpacked(self) -> tuple[Node, Any] | None:
        """The values of a row that was packed alone into an array, as `job.share` does: unpacked it is the same row."""
        if self.name != "Generate" or self.plan.generator().nodeName() != "Inline":
            return None
        packed = self.plan.generator().children().apply(0)
        node = self
        while _is_column(packed):
            inner = [one for one in node.children if one.plan.outputSet().contains(packed)]
            if not inner:
                return None
            node = inner[0]
            if not node._is_input(packed):
                found = list(node._definitions(int(packed.exprId().id())))
                if len(found) != 1:
                    return None
                node, packed = found[0]
        if packed.nodeName() != "CreateArray" or packed.children().size() != 1:
            return None
        row = packed.children().apply(0)
        return (node, row.valExprs()) if row.nodeName() == "CreateNamedStruct" else None

    # --- expressions

    def text(self, expression: Any) -> str:
        """An expression as SQL, each column as what it is computed from."""
        if _is_column(expression):
            return self.below(expression)
        columns: dict[str, list[str]] = {}
        for column in _references(expression):
            made_by = self.below(column)
            for name in {str(column.sql()), _bare(column)}:
                columns.setdefault(name, []).append(made_by)
        sql = _without_drawn(str(expression.sql()))
        if not expression.deterministic():
            sql = SEED.sub("…", sql)
        return _short(_replaced(QUOTED.sub(_hidden, sql), columns))


def _replaced(sql: str, columns: dict[str, list[str]]) -> str:
    """Names of columns become what they are computed from, all at once."""
    if not columns:
        return sql
    names = sorted(columns, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w`.'])(?:{'|'.join(map(re.escape, names))})(?![\w`'(])")
    return pattern.sub(lambda found: " / ".join(dict.fromkeys(columns[found[0]])), sql)


def _hidden(found: re.Match[str]) -> str:
    """A string may be a secret, and a time that of the start."""
    kind = found[1] or ""
    if kind == "INTERVAL ":
        return found[0]
    return f"{kind}'…'" if kind else f"'{digest(found[2].encode())[:8]}'"


def _without_drawn(text: str) -> str:
    return NUMBER.sub("", MARK.sub(r"fencepost_\1", text))


def _bare(column: Any) -> str:
    return _without_drawn(str(column.name()))


def _is_ours(column: Any) -> bool:
    return str(column.name()).startswith(OURS)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"#{digest(text.encode())[:16]}"


def _references(expression: Any) -> Sequence[Any]:
    return list(elements(expression.references().toSeq()))


def _is_column(expression: Any) -> bool:
    return str(expression.nodeName()) == "AttributeReference"


def _places(columns: Any, number: int) -> list[int]:
    """Where the column with this id is."""
    return [place for place, one in enumerate(elements(columns)) if one.exprId().id() == number][:1]


def _is_window(column: Any) -> bool:
    metadata = column.metadata()
    return any(metadata.contains(mark) for mark in WINDOWS)


def _conjuncts(condition: Any) -> Iterable[Any]:
    if condition.nodeName() != "And":
        return [condition]
    return [one for side in elements(condition.children()) for one in _conjuncts(side)]
