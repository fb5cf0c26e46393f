"""The watermarks of a job: Spark has one for all branches of a query, and takes the slowest of what they say.

    branch a   withWatermark ─► 12:40 ─┐
                                       ├─ min ─► 11:05 for all: no window of a after that ends
    branch b   withWatermark ─► 11:05 ─┘

Only the smallest is in Spark's log. After a start every source has to bring a record again before it moves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fencepost.guarantee import Guarantee, Link
from fencepost.spark.plan import children_of
from fencepost.store.notes import BranchNote

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"

KEEPING = ("EventTimeWatermark", "Project", "Repartition", "RepartitionByExpression", "SubqueryAlias", "View")
"""Operators with a row for each row of their input."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """One `withWatermark`."""

    branch: str
    column: str
    sources: range
    """Those below it, by their places in the branch."""
    node: Any

    @property
    def feed(self) -> Any:
        """The operator that decides which rows reach it."""
        node = self.node
        while str(node.nodeName()) in KEEPING:
            node = node.children().apply(0)
        return node


def of(frames: Mapping[str, Any]) -> list[Watermark]:
    """All watermarks of these branches."""
    found: list[Watermark] = []
    for branch, frame in frames.items():
        _walk(frame._jdf.queryExecution().analyzed(), branch, 0, found)
    return found


def _walk(node: Any, branch: str, first: int, found: list[Watermark]) -> int:
    """Add the watermarks of a plan whose sources are numbered from `first` on; returns the next number."""
    inner = list(children_of(node))
    end = first + 1 if not inner and node.isStreaming() else first
    for child in inner:
        end = _walk(child, branch, end, found)
    if node.nodeName() == "EventTimeWatermark":
        found.append(Watermark(branch, str(node.eventTime().name()), range(first, end), node))
    return end


def _apart(watermarks: Sequence[Watermark], what: Callable[[Watermark], Any]) -> list[Watermark]:
    """The first of each that differ in this."""
    found: list[tuple[Watermark, Any]] = []
    for one in watermarks:
        mine = what(one)
        if not any(mine.sameResult(other) for _, other in found):
            found.append((one, mine))
    return [one for one, _ in found]


def notes(watermarks: Sequence[Watermark], branches: Mapping[str, BranchNote]) -> Iterator[str]:
    """For `fencepost check`: which sources wait for each other."""
    apart = _apart(watermarks, lambda one: one.feed)
    if len(apart) < 2:
        return
    names = "; ".join(
        f"{one.column} of sink {one.branch} ({', '.join(branches[one.branch].sources[n].what for n in one.sources)})"
        for one in apart
    )
    yield (
        f"Spark has one watermark for the whole job, the earliest of {len(apart)}: {names}. While one of them gets no "
        "records, no window of the others ends and no state of theirs is removed; nothing is lost, it is only late. If "
        "a source may be quiet for long, split the job in two; or, for a join, let it send a record now and then"
    )


def links(watermarks: Sequence[Watermark], spark: Any, offsets: Callable[[], str | None]) -> list[Link]:
    """A link for a policy that drops records; `offsets` reads the newest text of Spark's log, which counts."""
    if len(_apart(watermarks, lambda one: one.node)) < 2:
        return []
    noted = offsets()
    policy = str(spark.conf.get(POLICY)) if noted is None else _noted(noted)
    if policy.lower() != "max":
        return []
    split = "If one source must not wait for another, split the job in two."
    return [
        Link(
            "watermark",
            Guarantee.AT_MOST_ONCE,
            f"with {POLICY}=max the fastest source moves it for all, and records of the others are dropped that are "
            "not late by their own withWatermark",
            f"the checkpoint was begun with it and keeps it: set {POLICY}=min and start with a new checkpoint. {split}"
            if noted is not None
            else f"set {POLICY}=min. {split}",
        )
    ]


def _noted(offsets: str) -> str:
    """The policy in a text of Spark's log; an old one has none, and Spark takes the default."""
    try:
        settings = json.loads(offsets.split("\n")[1]).get("conf", {})
        return str(settings.get(POLICY, "min"))
    except (ValueError, IndexError, AttributeError):  # recovery says what is wrong with it
        return "min"
