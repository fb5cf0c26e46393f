"""What a branch of a job is known by: its operators with state and its sources, in the order of Spark's numbers.

    Aggregate by word: count(1)       Spark finds its state under a number: 0, 1, 2 …
      stream where level = '5a9d…'    what it was made from, see provenance.py
    text path file:/data/in           and so the positions of a source, unless it has a name
      pathglobfilter *.csv            the options that choose its records

Spark numbers both from the first branch to the last; in a branch, operators from the top down and sources from left to
right. The texts have no ids, so they are the same in every session; another release of Spark may write an expression
differently. A string that the plan contains may be a secret, so only its digest is in them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fencepost.protocol.format import digest
from fencepost.spark import plan, provenance
from fencepost.spark.plan import PlanSource, elements
from fencepost.spark.provenance import QUOTED
from fencepost.store.notes import BranchNote, SourceNote

THINGS = ("path", "subscribe", "subscribepattern", "assign", "table", "dbtable", "stream", "streamname", "queue")
"""Options that say what a source reads."""
CHOOSE = ("pathglobfilter", "recursivefilelookup", "modifiedafter", "modifiedbefore")
"""Options that say which files of a folder. The others say how a file is parsed, and a mistake in them may be fixed."""
SECRET = re.compile(
    r"pass|pwd|secret|token|credential|private|api.?key|access.?key|account.?key|jaas|sasl|ssl|auth|cert"
)
"""In names of options whose values are not noted, not even as a digest."""
LOGIN = re.compile(r"//[^/@\s]*@")
"""In a URL."""
PACE = "pertrigger"
"""How the names of options end that say how much is read at a time."""


def of(frames: Mapping[str, Any]) -> dict[str, BranchNote]:
    """The fingerprint of each branch; which folders its sources have depends on the order of the branches."""
    return {
        name: BranchNote(
            sink=name,
            operators=[_operator(node) for node in operators],
            sources=[_source(frame, leaf) for leaf in plan.leaves(frame)],
            below=[provenance.of(node, partial(plan.name_of, frame)) for node in operators],
        )
        for name, frame in frames.items()
        for operators in [plan.stateful(frame)]
    }


def numbered(branches: Sequence[BranchNote], whole: Any) -> list[BranchNote]:
    """The same, in the order of the branches in this plan, with the folders that Spark gives their sources."""
    relations: list[Any] = []
    folders: list[int] = []
    for leaf in plan.leaves(whole):
        if leaf not in relations:  # Spark's own equality: it reads equal relations once
            relations.append(leaf)
        folders.append(relations.index(leaf))
    rest = iter(folders)
    return [replace(branch, sources=[replace(one, folder=next(rest)) for one in branch.sources]) for branch in branches]


# --- sources


def _source(frame: Any, leaf: Any) -> SourceNote:
    source = plan.source_of(frame, leaf)
    things = [f"{name} {_thing(frame, name, source.options[name])}" for name in THINGS if name in source.options]
    told = {name: LOGIN.sub("//", value) for name, value in source.options.items() if not SECRET.search(name)}
    return SourceNote(
        what=" ".join([plan.format_of(leaf), *things]),
        name=source.name or "",
        folder=0,
        chosen=_chosen(source, told),
        how=digest(json.dumps([str(leaf.schema().json()), sorted(told.items())]).encode())[:16],
    )


def _chosen(source: PlanSource, told: Mapping[str, str]) -> dict[str, str]:
    """The options that choose its records; of a source that we do not know, all of them, because any may."""
    if source.is_of_files:
        return {name: told[name] for name in CHOOSE if name in told}
    if source.kind in (plan.KAFKA, *plan.TABLES):
        return {}  # what it reads is in its text, and which cluster it is in the notes of topics
    return {
        name: digest(value.encode())[:8]
        for name, value in told.items()
        if name not in THINGS and not name.endswith(PACE)
    }


def _thing(frame: Any, option: str, value: str) -> str:
    if option == "subscribe":
        return ",".join(sorted(topic.strip() for topic in value.split(",")))
    if option != "path":
        return value
    # The same folder, whatever the working directory is and however it is written.
    spark = frame.sparkSession
    path = spark._jvm.org.apache.hadoop.fs.Path(value)
    return str(path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).makeQualified(path))


# --- operators with state


def _operator(node: Any) -> str:
    """Its kind and what its state is made of; what an operator only does with its state may change."""
    name = str(node.nodeName())
    if name.startswith("Join"):
        on = node.condition()
        return f"{name} {node.joinType().sql()} on {_text(on.get()) if on.isDefined() else 'nothing'}"
    if name == "GlobalLimit":
        return name
    kind = plan.KEYED_STATE if name.startswith(plan.KEYED_STATE) else name  # its full name is not that of every Spark
    functions = f": {_list(_functions(node))}" if name == "Aggregate" else ""
    return f"{kind} by {_list(_keys(node, name))}{functions}"


def _keys(node: Any, name: str) -> list[str]:
    if name == "Aggregate":
        has_windows = "precisetimestampconversion" in str(
            node.toString()
        )  # what Spark makes of them, and of nothing else
        return [_key(node, key, has_windows=has_windows) for key in elements(node.groupingExpressions())]
    if name.startswith("Deduplicate"):
        keys = _names(node.keys())
        # Spark up to 4.2 orders more than four of them by their hashes; later ones keep that order by themselves.
        return keys if len(keys) <= 4 else sorted(keys)
    if name == "Distinct":
        return _names(node.output())
    if name.startswith("TransformWithStateIn"):  # of Python: the keys are its first columns
        return _names(node.children().apply(0).output())[: node.groupingAttributesLen()]
    return _names(node.groupingAttributes())


def _functions(node: Any) -> list[str]:
    """The functions of an aggregate, each once: Spark keeps their values in this order."""
    found = [
        function
        for column in elements(node.aggregateExpressions())
        for function in _inside(column)
        if function.getClass().getSimpleName() == "AggregateExpression"
    ]
    return list(dict.fromkeys(map(_text, found)))


def _inside(expression: Any) -> Iterator[Any]:
    yield expression
    for child in elements(expression.children()):
        yield from _inside(child)


def _key(node: Any, key: Any, *, has_windows: bool) -> str:
    """A key's name or expression, and the windows it is made of; to look for those takes many calls to the JVM."""
    windows = list(dict.fromkeys(_windows(node, key))) if has_windows else []
    return " ".join([_text(key), *windows])


MARKS = {"spark.timeWindow": "of", "spark.sessionWindow": "of gap"}
"""How Spark marks the columns that are windows."""


def _windows(node: Any, expression: Any) -> Iterator[str]:
    for column in elements(expression.references().toSeq()):
        made_by = _definition(node, column)
        if made_by is None:
            continue
        mark = next((mark for mark in MARKS if column.metadata().contains(mark)), None)
        if mark is None or made_by.getClass().getSimpleName() == "AttributeReference":
            yield from _windows(node, made_by)
        else:
            sql = str(made_by.sql())
            micros = list(dict.fromkeys(re.findall(r"\b(\d+)L\b", sql)))
            gaps = [text for text in re.findall(r"'([^']*)'", sql) if text not in ("start", "end")]
            measures = gaps if mark == "spark.sessionWindow" else [f"{int(each) / 1_000_000:g} s" for each in micros]
            times = _names(made_by.references().toSeq())
            yield f"({MARKS[mark]} {_list([*measures, *times])})"


def _definition(node: Any, column: Any) -> Any:
    """The expression below this operator that makes a column; None if it comes from a source."""
    wanted = column.exprId()
    for child in elements(node.children()):
        name = str(child.nodeName())
        columns = elements(child.projectList()) if name == "Project" else ()
        for one in columns:
            if one.getClass().getSimpleName() == "Alias" and one.exprId().equals(wanted):
                return one.child()
        if name == "Expand":
            for index, one in enumerate(elements(child.output())):
                made_by = child.projections().apply(0).apply(index)
                if one.exprId().equals(wanted) and not made_by.semanticEquals(one):
                    return made_by
        found = _definition(child, column)
        if found is not None:
            return found
    return None


def _text(expression: Any) -> str:
    """An expression as SQL, with the bare names of columns. A time may be that of the start, so it is left out."""
    sql = str(expression.sql())
    for column in elements(expression.references().toSeq()):
        if not column.qualifier().isEmpty():
            bare = str(column.name()).replace("\\", "\\\\")
            sql = re.sub(rf"(?<![\w`.]){re.escape(str(column.sql()))}(?![\w`])", bare, sql)

    def kept(found: re.Match[str]) -> str:
        kind = found[1] or ""
        if kind == "INTERVAL ":
            return found[0]
        return f"{kind}'…'" if kind else f"'{digest(found[2].encode())[:8]}'"

    return QUOTED.sub(kept, sql)


def _names(columns: Any) -> list[str]:
    return [str(one.name()) for one in elements(columns)]


def _list(texts: list[str]) -> str:
    return ", ".join(texts) or "nothing"
