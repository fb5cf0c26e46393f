"""The order of a job's branches: the noted one, so that state and positions keep their owners.

    noted     counts   letters                        first start: sorted by the names of the sinks
    now       letters  totals                         `counts` was renamed
    order     totals   letters                        its place goes to the one new branch that matches

Spark finds state, and the positions of sources without names, by number, and numbers them through all branches. So each
number must stay with what it was given to, or the start is refused. A branch matches if its operators, its sources and
what lies between them are the same. Never guesses which of two branches was renamed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from fencepost.errors import CheckpointRefused, Where
from fencepost.store.notes import BranchNote, SourceNote

BEGIN_AGAIN = "start with a new checkpoint"
ACCEPT = "start once with allow_plan_changes=True"
SHOWN = 300
"""Characters of what lies below an operator, in a message."""


def arrange(noted: Sequence[BranchNote], now: Mapping[str, BranchNote], job: str) -> list[str]:
    """The names of the branches in the order they must have; new ones come last."""
    gone = [branch for branch in noted if branch.sink not in now and _has_place(branch)]
    known = {branch.sink for branch in noted}
    fresh = [branch for name, branch in sorted(now.items()) if name not in known]
    heirs: dict[str, str] = {}
    for branch in gone:
        like = [one for one in gone if _same(one, branch)]
        able = [one for one in fresh if _same(branch, one)]
        if able and branch.operators and branch.below is None:
            raise not_noted([one.sink for one in noted], list(now), job)
        if (len(like) > 1 or len(able) > 1) and able and not _alike(like):
            raise _unclear([one.sink for one in like], [one.sink for one in able], job)
        free = [one.sink for one in able if one.sink not in heirs.values()]
        if free:
            heirs[branch.sink] = free[0]
    for branch in gone:  # so that no other branch moves, and `check` says what is different
        near = [one.sink for one in fresh if one.sink not in heirs.values() and _near(branch, one)]
        if branch.sink not in heirs and len(near) == 1:
            heirs[branch.sink] = near[0]
    places = [heirs.get(branch.sink, branch.sink) for branch in noted]
    kept = [name for name in places if name in now]
    return [*kept, *(name for name in sorted(now) if name not in kept)]


def _has_place(branch: BranchNote) -> bool:
    """Does it matter where the branch stands?"""
    return bool(branch.operators) or not all(source.name for source in branch.sources)


def _same(was: BranchNote, now: BranchNote) -> bool:
    pairs = zip_longest(was.sources, now.sources)
    return (
        was.operators == now.operators
        and was.below in (None, now.below)
        and all(one and two and _continues(one, two) and one.how in ("", two.how) for one, two in pairs)
    )


def _near(was: BranchNote, now: BranchNote) -> bool:
    """The same kind of branch over the same sources, which may read and compute differently."""
    pairs = zip_longest(was.sources, now.sources)
    return was.operators == now.operators and all(
        one and two and _continues(one, two, accepts=True) for one, two in pairs
    )


def _alike(branches: Sequence[BranchNote]) -> bool:
    """Without state, and with the very same positions: then it does not matter who takes whose place."""
    return all(not one.operators and one.sources == branches[0].sources for one in branches)


def _continues(was: SourceNote, now: SourceNote, *, accepts: bool = False) -> bool:
    """Do the positions of one belong to the other? A Kafka source may get more to read: Spark begins at its start.

    `accepts`: the user says that other options choose the records of the same folder, topic or table.
    """
    if was.name != now.name or not (accepts or was.chosen in (None, now.chosen)):
        return False
    for word, parts in PARTS.items():
        before, _, less = was.what.partition(f" {word} ")
        kind, _, more = now.what.partition(f" {word} ")
        if less and more and before == kind:
            return less == more or (bool(parts(less)) and parts(less) <= parts(more))
    return was.what == now.what


def _topics(text: str) -> set[Any]:
    return set(text.split(","))


def _alternatives(pattern: str) -> set[Any]:
    """Of a pattern that is a plain list of them; none if it takes more to know what it matches."""
    return set() if set(pattern) & set("()[]{}\\") else set(pattern.split("|"))


def _partitions(text: str) -> set[Any]:
    try:
        return {(topic, number) for topic, numbers in json.loads(text).items() for number in numbers}
    except (ValueError, AttributeError, TypeError):
        return set()  # Spark refuses it


PARTS: Mapping[str, Callable[[str], set[Any]]] = {
    "subscribe": _topics,
    "subscribepattern": _alternatives,
    "assign": _partitions,
}
"""By option: what a Kafka source reads, as a set that may grow."""


def check(noted: Sequence[BranchNote], now: Sequence[BranchNote], job: str, *, accepts: bool = False) -> None:
    """Refuse a plan in which a number of Spark's would belong to something else. Both in order.

    `accepts`: the user says that state and positions go on although what lies below an operator, or the options that
    choose a source's records, changed.
    """
    _check_states(noted, now, job)
    _check_places(noted, now, job, accepts=accepts)
    names = {source.name: source for branch in now for source in branch.sources if source.name}
    for branch in noted:
        for source in branch.sources:
            if source.name in names and not _continues(source, names[source.name], accepts=accepts):
                raise _sources_changed(f"Source {source.name!r} {_difference(source, names[source.name])}", job)
    for number, (was, is_) in enumerate(zip(_states(noted), _states(now), strict=True)):
        if not (_goes_on(was, is_) or (accepts and was.sink == is_.sink)):
            raise _made_otherwise(number, was, is_, job)


def _check_states(noted: Sequence[BranchNote], now: Sequence[BranchNote], job: str) -> None:
    before, after = _states(noted), _states(now)
    for number, (was, is_) in enumerate(zip_longest(before, after)):
        if was is None:
            what = f"{is_.operator} is new: Spark cannot add state to a checkpoint that has run."
            sink = is_.sink
        elif is_ is None:
            what = f"The job no longer has {was.operator}, whose state is in the checkpoint (number {number})."
            sink = was.sink
        elif was.operator != is_.operator:
            what = (
                f"The checkpoint holds state of {was.operator}, but the job now has {is_.operator} in its place "
                f"(state {number})."
            )
            sink = is_.sink
        else:
            continue
        raise CheckpointRefused(
            "operator_changed",
            what,
            where=Where(job=job, sink=sink),
            next=f"Undo the change of keys, windows, functions or joins, or {BEGIN_AGAIN}. (Sinks may be renamed, and "
            "what comes after an operator with state may change.)",
        )


class _State(NamedTuple):
    """One operator with state."""

    operator: str
    below: str | None
    sink: str


def _states(branches: Sequence[BranchNote]) -> list[_State]:
    return [
        _State(operator, below, branch.sink)
        for branch in branches
        for operator, below in zip_longest(branch.operators, branch.below or ())
    ]


def _goes_on(was: _State, now: _State) -> bool:
    """Is it made from the same rows? Sources with names may come and go, each with its side of a union."""
    if was.below in (None, now.below):
        return True
    before, after = _sides(was.below or ""), _sides(now.below or "")
    if was.sink != now.sink or not (before and after):
        return False
    known, here = set().union(*before), set().union(*after)
    return all(
        before[names] == after[names] if names in before and names in after else bool(names - (known & here))
        for names in {*before, *after}
    )


def _sides(below: str) -> dict[frozenset[str], list[str]]:
    """By the names of the sources; nothing if they have none. One source may be on several sides."""
    found: dict[frozenset[str], list[str]] = {}
    for names, text in re.findall(r"^\[(.*?)\] (.*)$", below, re.MULTILINE):
        found.setdefault(frozenset(names.split(", ")), []).append(text)
    return {names: sorted(texts) for names, texts in found.items()}


def accepted(noted: Sequence[BranchNote], now: Sequence[BranchNote]) -> list[str]:
    """What a start with `accepts` keeps the state of: for `fencepost check`."""
    pairs = enumerate(zip(_states(noted), _states(now), strict=False))
    return [
        f"allow_plan_changes=True: state {number} ({was.operator}, sink {is_.sink}) goes on with what it holds, which "
        f"was made from {_cut(was.below or '')}"
        for number, (was, is_) in pairs
        if was.operator == is_.operator and not _goes_on(was, is_)
    ]


def _made_otherwise(number: int, was: _State, now: _State, job: str) -> CheckpointRefused:
    rows = f"{_cut(was.below or '')}; now it would be made from {_cut(now.below or '')}"
    is_other = was.sink != now.sink
    keep = f"keep its old name on the sink, name={was.sink!r}, and {ACCEPT}" if is_other else ACCEPT
    whose = f", of the branch that wrote to {was.sink!r}," if is_other else ""
    return CheckpointRefused(
        "state_made_otherwise",
        f"State {number} ({was.operator}){whose} was made from {rows}. The state would be a mix of both.",
        where=Where(job=job, sink=now.sink),
        next="Bring back what was below the operator (filters, computed columns, joins); or "
        f"{BEGIN_AGAIN}. If it is the same branch, and its state may keep what the old plan made of earlier records: "
        f"{keep}.",
    )


def _cut(text: str) -> str:
    line = " and ".join(text.split("\n"))
    return line if len(line) <= SHOWN else f"{line[:SHOWN]} …"


def _check_places(noted: Sequence[BranchNote], now: Sequence[BranchNote], job: str, *, accepts: bool) -> None:
    before, after = ([one for branch in plan for one in branch.sources if not one.name] for plan in (noted, now))
    if len(before) != len(after):
        counts = f"Spark has the positions of {len(before)} sources, and the job now has {len(after)}"
        raise _sources_changed(f"{counts}; a source counts once for each branch that reads it.", job)
    for number, (was, is_) in enumerate(zip(before, after, strict=True)):
        if not _continues(was, is_, accepts=accepts):
            raise _sources_changed(f"Source {number} {_difference(was, is_)}", job)
        if was.folder != is_.folder:
            shared = "no longer share it" if is_.folder > was.folder else "now share it"
            raise _sources_changed(f"Source {number} is {was.what}: branches that read it {shared}.", job)
    _check_not_swapped(before, after, job)


def _check_not_swapped(before: Sequence[SourceNote], after: Sequence[SourceNote], job: str) -> None:
    """Two sources of one folder or topic are told apart by their options and schemas, which may change otherwise."""
    for number, (was, is_) in enumerate(zip(before, after, strict=True)):
        alike = [other for other, one in enumerate(before) if one.what == was.what and after[other].what == is_.what]
        hows = [[notes[other].how for other in alike] for notes in (before, after)]
        if "" not in hows[0] and was.how != is_.how and sorted(hows[0]) == sorted(hows[1]):
            raise _sources_changed(
                f"Source {number} is {was.what}, and so is another one: their options or schemas changed places.", job
            )


def _difference(was: SourceNote, now: SourceNote) -> str:
    if was.what != now.what:
        return f"was {was.what}, and is now {now.what}."
    old, new = was.chosen or {}, now.chosen or {}
    changed = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    words = ", ".join(
        f"{name} was {old.get(name, 'not set')} and is now {new.get(name, 'not set')}" for name in changed
    )
    return f"is {was.what}, and chooses other records: {words}."


def _sources_changed(what: str, job: str) -> CheckpointRefused:
    return CheckpointRefused(
        "sources_changed",
        what,
        where=Where(job=job),
        next="Restore the old sources in their old order, with as many branches over each as before; or "
        f"{BEGIN_AGAIN} and name every source (job.read(…, name=…)): then sources can be added, removed and moved. If "
        f"only options of a source changed, and what was read so far may stay as it is, {ACCEPT}.",
    )


def _unclear(gone: Sequence[str], fresh: Sequence[str], job: str) -> CheckpointRefused:
    return CheckpointRefused(
        "branch_unclear",
        f"The job no longer has {' and '.join(map(repr, gone))}, and {' and '.join(map(repr, fresh))} could each be "
        "its new name: nothing in their plans tells them apart.",
        where=Where(job=job),
        next=f"Rename one sink per start, or keep the old name on the sink with the new target: name={gone[0]!r}.",
    )


def not_noted(before: Sequence[str], now: Sequence[str], job: str) -> CheckpointRefused:
    """For a checkpoint whose last driver did not note the plan yet."""
    return CheckpointRefused(
        "plan_not_noted",
        f"The sinks were {', '.join(sorted(before))} and are now {', '.join(sorted(now))}, and the checkpoint does not "
        "say yet which state and which positions belong to which of them.",
        where=Where(job=job),
        next="Bring the old sinks back and start the job once, so that the checkpoint notes it; then make the change.",
    )


def changed_meanwhile(job: str) -> CheckpointRefused:
    """Another driver noted another plan between our checks and our recovery."""
    return CheckpointRefused(
        "plan_changed_meanwhile",
        "Another driver started this job with a different plan at the same time.",
        where=Where(job=job),
        safe="Safe: every decided epoch is in the sinks exactly once; nothing was read or written now.",
        next="Make sure that all drivers of the job run the same code, then start it again.",
    )
