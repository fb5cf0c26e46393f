"""One random job through several starts, with faults and with other code; then every sink is compared."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import fencepost as fp
from fencepost import faults
from fencepost.admin import savepoint as savepoints
from fencepost.admin.restore import restore
from fencepost.spark import scan
from fencepost_proof.fuzz import contents
from fencepost_proof.fuzz.feed import END, ROWS, Feed, create_topic
from fencepost_proof.fuzz.plans import BEGIN, PACE_S, SHAPES, Branch, Place, Plan, changed, cut_otherwise, make

POINTS = (
    "precommit.after",
    "vote.after",
    "decide.before",
    "decide.after",
    "commit.before",
    "commit.after",
    "complete.before",
)
"""Where a start fails or is killed. The next one recovers."""
CAME = ("injected", "killed")
"""How a start ends whose fault came."""
FILTERS = "filtered counts"
"""Rows leave this result and stay in the table: `check` must say so."""
SAYS = "stays in the target"
ORDERED = "newest, ordered"
"""The greatest row of a key stays, in a table; not among those of an earlier name of the table."""
MARKS = "marked counts"
"""Rows are removed from the table of this name, and stay in that of an earlier one."""

Starter = Callable[[Plan, Place, str], str]
"""Runs a job to the end of its input. Returns the code of a refusal, one of CAME, or nothing; a failure that nobody
asked for is `failed: …`."""


@dataclass
class Outcome:
    """What became of one job."""

    plan: Plan
    refused: str = ""
    """The code of its refusal, if it never ran."""
    story: list[str] = field(default_factory=list)
    """Its starts."""
    wrong: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """In one word."""
        return "wrong" if self.wrong else "refused" if self.refused else "exact"

    def __str__(self) -> str:
        plan = self.plan
        sources = ", ".join(f"{name} {kind}" for name, kind in plan.sources)
        branches = [f"{branch.over}: {branch.shape} → {branch.sink}" for branch in plan.branches]
        head = f"seed {plan.seed}: {self.verdict} {self.refused}".rstrip()
        lines = [" · ".join([head, plan.below, f"{sources} ({' + '.join(plan.union)})", *branches, plan.bridge])]
        return "\n  ".join([*lines, *([" → ".join(self.story)] if self.story else []), *self.wrong])


def run(seed: int, place: Place, spark: Any, starter: Starter, *, starts: int = 3, action: str = "fail") -> Outcome:
    """Make a job, start it several times with more input each time, and compare.

    Args:
        seed: The same seed makes the same job and the same story.
        place: Its folder, which is empty, and the servers.
        spark: A session in which Spark computes what the sinks should hold.
        starter: Runs a job.
        starts: How often it is started before the last time.
        action: What a fault does: `fail`, or `kill`.
    """
    story = Story(seed, place, spark, starter)
    if not story.begins():
        return story.outcome
    for _ in range(starts - 1):
        if not story.goes_on(action):
            return story.outcome
    story.ends()
    return story.outcome


class Story:
    """One job: the plan that its checkpoint has, and what it was fed."""

    def __init__(self, seed: int, place: Place, spark: Any, starter: Starter) -> None:
        self._rng = random.Random(f"run {seed}")
        self._luck = random.Random(f"apart {seed}")
        self._edits = random.Random(f"edits {seed}")
        self._place, self._spark, self._starter = place, spark, starter
        self._plan = make(seed, place)
        ordered = any(branch.shape == ORDERED for branch in self._plan.branches)
        late = random.Random(f"late {seed}") if ordered else None
        self._feed = Feed(place, self._plan.sources, self._rng, timed=self._plan.timed, late=late)
        self._names = {branch.name: [branch.name] for branch in self._plan.branches}
        """Each branch, and all names that it had."""
        self._open = False
        """Did the last start leave an epoch that is not ended?"""
        self.outcome = Outcome(self._plan)

    def begins(self) -> bool:
        """The first start: does it run?"""
        self._feed.more()
        refused = self.outcome.refused = self._start(self._plan, "")
        if refused.startswith("failed"):
            self.outcome.wrong.append(refused)
        elif refused and self._checkpoint(self._plan).exists():
            self.outcome.wrong.append("it was refused, and there is a checkpoint")
        elif not refused and self._leaves_rows() and SAYS not in str(self._plan.job(self._place, self._spark).check()):
            self.outcome.wrong.append("rows that leave the result stay, and check has no note")
        return not refused

    def goes_on(self, action: str) -> bool:
        """More input, perhaps other code, perhaps a fault."""
        self._feed.more()
        edit = changed(self._plan, self._rng)
        what, other = cut_otherwise(self._plan, self._edits) or edit
        fault = self._rng.choice(["", f"{self._rng.choice(POINTS)}={action}@{self._rng.randint(1, 3)}"])
        if what == "forked":
            if self._open:
                return True  # an epoch that is not ended has no savepoint
            made = savepoints.create(self._checkpoint(self._plan))
            restore(made, self._checkpoint(other), fork=f"{self._place.root.name}-{other.name}")
        came = self._start(other, fault)
        self.outcome.story.append(f"{what}{f' ({came})' if came else ''}{f' {fault}' if fault else ''}")
        if came.startswith("failed"):
            self.outcome.wrong.append(came)
        elif not came or came in CAME:
            self._names = _renamed(self._names, self._plan, other)
            self._plan, self._open = other, bool(came)
        return not self.outcome.wrong

    def ends(self) -> None:
        """The last start; where branches wait for the watermark, two more when the time is over. Then compare."""
        for again in [False, *([True, True] if self._plan.timed else [])]:
            if again:
                self._feed.end()
            refused = self._start(self._plan, "")
            if refused:
                self.outcome.wrong.append(f"the last start was refused: {refused}")
                return
        self.outcome.wrong += _compare(self._plan, self._names, self._place, self._feed.rows, self._spark)

    def _leaves_rows(self) -> bool:
        return any(branch.shape == FILTERS for branch in self._plan.branches)

    def _start(self, plan: Plan, fault: str) -> str:
        plan = replace(plan, apart=self._luck.random() < 0.3)
        for branch in plan.branches:
            if branch.sink == "kafka":
                create_topic(self._place.kafka, self._place.topic(branch.name))
        return self._starter(plan, self._place, fault)

    def _checkpoint(self, plan: Plan) -> Path:
        return self._place.root / f"checkpoint-{plan.name}"


def _renamed(names: dict[str, list[str]], before: Plan, now: Plan) -> dict[str, list[str]]:
    """A branch that took the place of another also has its rows."""
    found = {}
    for at, branch in enumerate(now.branches):
        old = before.branches[at].name if len(now.branches) == len(before.branches) else branch.name
        found[branch.name] = [*names.get(old, []), *([] if old == branch.name else [branch.name])] or [branch.name]
    return found


def here(spark: Any) -> Starter:
    """In this process: a fault is an exception."""

    def start(plan: Plan, place: Place, fault: str) -> str:
        with _armed(fault), _split(spark, plan), reading_apart() if plan.apart else nullcontext():
            try:
                plan.job(place, spark).run(until="available")
            except fp.Refused as error:
                return error.code
            except fp.FencepostError as error:
                return "injected" if fault else f"failed: {error}"
        return ""

    return start


@contextmanager
def _armed(fault: str) -> Iterator[None]:
    faults.arm({faults.ARM: fault})
    try:
        yield
    finally:
        faults.arm({})


@contextmanager
def _split(spark: Any, plan: Plan) -> Iterator[None]:
    """Files of some 2 KB are read by several tasks, as those of some GB are."""
    setting = "spark.sql.files.maxPartitionBytes"
    before = spark.conf.get(setting)
    if plan.tiny:
        spark.conf.set(setting, "700")
        spark.conf.set("spark.sql.files.openCostInBytes", "1")
    try:
        yield
    finally:
        spark.conf.set(setting, before)
        spark.conf.unset("spark.sql.files.openCostInBytes")


@contextmanager
def reading_apart() -> Iterator[None]:
    """As an older release did it: every branch reads for itself, also those that could be one scan."""
    together, scan.scans = scan.scans, lambda frames: []
    try:
        yield
    finally:
        scan.scans = together


def _compare(
    plan: Plan, names: dict[str, list[str]], place: Place, fed: dict[str, list[dict[str, Any]]], spark: Any
) -> list[str]:
    """What is wrong in the sinks."""
    found = {branch.name: contents.rows(branch, names[branch.name], place) for branch in plan.branches}
    if not plan.is_deterministic:
        seen = Counter(row["id"] for rows in found.values() for row in rows)
        wanted = Counter(row["id"] for name in plan.union for row in fed[name])
        lost, extra = (wanted - seen).total(), (seen - wanted).total()
        return [f"{lost} records are in no branch, {extra} in two"] if lost or extra else []
    wrong = []
    for branch, frame in zip(plan.branches, plan.batch(fed, spark).values(), strict=True):
        if branch.name.startswith("aaa_added") or "_of_aaa_added" in branch.name:
            continue  # it has the rows since it was added, which depends on the epochs
        wanted = _counted([row.asDict() for row in frame.orderBy(*frame.columns).collect()], branch)
        has = _counted(found[branch.name], branch)
        gone, more = wanted - has, has - wanted
        stay = branch.shape == FILTERS or (branch.shape == MARKS and len(names[branch.name]) > 1)
        if gone or (more and not stay):
            wrong.append(f"{branch.name}: {gone.total()} lost, {more.total()} extra, such as {[*gone, *more][:3]}")
    return wrong


def _counted(rows: list[dict[str, Any]], branch: Branch) -> Counter[tuple[Any, ...]]:
    """With a key the last one wins. What belongs to the end of time is left out: a window of it never closes."""
    rows = [{name: _plain(cell) for name, cell in row.items()} for row in rows]
    if branch.shape == ORDERED:
        rows.sort(key=itemgetter(SHAPES[ORDERED].told["order_by"]))
    if branch.key:
        rows = list({tuple(row[name] for name in branch.key): row for row in rows}.values())
    rows = [row for row in rows if all(not isinstance(cell, int) or cell < END - ROWS for cell in row.values())]
    return Counter(tuple(sorted(row.items())) for row in rows)


def _plain(cell: Any) -> Any:
    """A time as the number of the record that has it, whatever way a client returns it."""
    if isinstance(cell, str) and cell.startswith("20"):
        cell = datetime.fromisoformat(cell)
        cell = cell.replace(tzinfo=cell.tzinfo or UTC)
    return int((cell.timestamp() - BEGIN) / PACE_S) if isinstance(cell, datetime) else cell
