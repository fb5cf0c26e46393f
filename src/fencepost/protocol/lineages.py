"""How a lineage ends and another continues from one of its epochs: rewind, restore, fork; and rescale, within one.

    seal     the parent's last record: the next lineage, the epoch it continues from, and the fate of what came after
    found    the new ledger: record 0, and the parent's decision of that epoch as its first
    switch   Spark's metadata names the new lineage

Each step may be repeated: after a crash, run the same command again. Never starts a lineage while its parent can still
decide (except a fork, which has its own targets), and always says what becomes of rows already in the targets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from fencepost.errors import UNCHANGED, CheckpointRefused, Where
from fencepost.protocol.append import append, new_ledger, read_ledger
from fencepost.protocol.effects import Repartition, Step, SwitchLineage, ask
from fencepost.protocol.epoch import mark_done
from fencepost.protocol.order import State
from fencepost.protocol.records import (
    NOTHING_BEFORE,
    Decision,
    Epoch,
    Lineage,
    Sealed,
    Writer,
    positions,
)
from fencepost.protocol.recovery import take_over

Fate = Literal["quiet", "overwrite", "again"]

UNKNOWN_GENERATIONS = 1 << 20
"""More than there can be between a savepoint and its parent."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """A request to continue from an earlier epoch."""

    job: str
    """The parent's name, except for a fork."""
    epoch: Epoch
    """The last epoch that is kept."""
    fate: Fate
    """What becomes of the rows of later epochs that the targets hold."""
    writer: Writer
    new_id: str
    clock: Callable[[], str]
    place: str = ""
    """The new checkpoint; "" if it is the same one."""

    @property
    def wish(self) -> tuple[Epoch, Fate, str]:
        """What identifies a repeated command as the same."""
        return self.epoch, self.fate, self.place


def rewind(plan: Continuation, lineage: str) -> Step[str]:
    """In place: the same checkpoint continues after an earlier epoch; return the new lineage."""
    state = yield from read_ledger(lineage, plan.job)
    if was_begun_by(plan, state):
        return lineage  # the command was repeated after its last step
    parent = yield from seal(plan, state)
    child = yield from found(plan, parent, parent)
    yield from ask(SwitchLineage("restore.switch", lineage, child))
    return child


def seal(plan: Continuation, state: State) -> Step[State]:
    """End a lineage permanently; if it is already sealed for the same request, leave it as it is."""
    sealed = state.sealed
    if sealed is not None:
        if (sealed.epoch, sealed.fate, sealed.place) != plan.wish:
            there = f"in {sealed.place}" if sealed.place else "in the same checkpoint"
            raise CheckpointRefused(
                "sealed",
                f"This lineage is sealed: it was rewound or restored to epoch {sealed.epoch} with {sealed.fate!r}, "
                f"{there}.",
                where=Where(job=plan.job),
                safe=UNCHANGED,
                next="If that command did not finish, run it again; otherwise continue from its result.",
            )
        return state
    check_closed(plan.job, state)
    check_quiet(plan, state)
    book = yield from take_over(plan.job, plan.writer, state, plan.clock)
    check_closed(plan.job, book.state)  # nobody else decides any more
    check_quiet(plan, book.state)
    yield from append(book, Sealed(plan.new_id, *plan.wish), "restore.seal")
    return book.state


def found(
    plan: Continuation,
    origin: State,
    parent: State | None,
    *,
    fork: bool = False,
    moved: Mapping[str, str] | None = None,
) -> Step[str]:
    """Write the new lineage's ledger; its record 0 and first decision say everything that recovery needs.

    `origin` is the ledger that has the epoch (a savepoint has a copy). `parent` is the sealed one, with everything
    decided after that epoch; None for a fork, or if the parent is lost. `moved` has new checksums of the files that
    contain their own path.
    """
    before = parent or origin
    child = parent.sealed.next if parent is not None and parent.sealed is not None else plan.new_id
    base = decision_of(plan, origin)
    later = [d for _, d in parent.decisions if d.epoch > plan.epoch and d.cause != "rescale"] if parent else []
    ranges = quiet_epochs(base.offsets, [d.offsets for d in later])
    if parent is not None and parent.newest is not None and parent.newest.cause == "restore":
        # The parent wrote nothing: the targets are as its own parent left them.
        ranges = parent.lineage.quiet or parent.lineage.later
    lineage = Lineage(
        job=plan.job,
        guarantee=origin.lineage.guarantee,
        first_epoch=plan.epoch,
        # "again" writes to an emptied or different target, and a fork to its own: the first driver records which.
        sinks={} if plan.fate == "again" else origin.sinks,
        settings=origin.lineage.settings,
        # If the parent is lost, nobody knows how often it was rewound or restored.
        generation=before.lineage.generation + (1 if parent is not None else UNKNOWN_GENERATIONS),
        parent={
            "lineage": origin.lineage_id,
            "epoch": plan.epoch,
            "targets": sorted(sink.target for sink in origin.sinks.values()) if fork else [],
        },
        # A fork has its own targets; what its living parent has open belongs to the parent.
        ancestors=() if fork else (*before.lineage.ancestors, before.lineage_id),
        fate=plan.fate,
        quiet=ranges if plan.fate == "quiet" else (),
        later=() if plan.fate == "quiet" else ranges,
    )
    yield from new_ledger(child, lineage, plan.clock)
    state = yield from read_ledger(child, plan.job)
    if not _unfinished(state):
        return child  # somebody finished this before us, and its driver may be running by now
    book = yield from take_over(plan.job, plan.writer, state, plan.clock)
    if book.state.newest is None:
        files = {name: total for _, d in origin.decisions if d.epoch <= plan.epoch for name, total in d.files.items()}
        if lineage.quiet:  # of later epochs only what they read: their state is recomputed
            read = (item for d in later for item in d.files.items() if item[0].startswith("sources/"))
            files.update(read)
        first = replace(
            base,
            start=NOTHING_BEFORE,
            done_through=Epoch(plan.epoch - 1),
            handles=(),
            files={**files, **(moved or {})},
            cause="restore",
            held={},
            sinks=None,
        )
        yield from append(book, first, "restore.first")
    if _unfinished(book.state):
        yield from mark_done(book)
    return child


def _unfinished(state: State) -> bool:
    """Is the first decision of a new lineage, which has no handles, still missing or open?"""
    return state.newest is None or (state.open is not None and state.newest.cause == "restore")


def rescale(job: str, lineage: str, partitions: int, writer: Writer, clock: Callable[[], str]) -> Step[Epoch]:
    """Redistribute the newest state over another number of partitions; return the epoch that does so.

    It is an epoch without input. It counts only once it is decided, and recovery completes it like any other.
    """
    state = yield from read_ledger(lineage, job)
    check_closed(job, state)
    book = yield from take_over(job, writer, state, clock)
    check_closed(job, book.state)
    newest = book.state.newest
    assert newest is not None
    made = yield from ask(Repartition("rescale.repartition", newest.epoch, partitions))
    decision = replace(
        newest,
        epoch=book.state.next_epoch,
        offsets=made.offsets,
        start=newest.end,
        end=positions(made.offsets),
        done_through=newest.epoch,
        handles=(),
        snapshot=made.snapshot,
        files=made.files,
        cause="rescale",
        held=newest.held_after,
    )
    assert decision.end == newest.end, "a repartition reads nothing"
    yield from append(book, decision, "rescale.decide")
    yield from mark_done(book)
    return decision.epoch


def check_closed(job: str, state: State) -> None:
    """Only an exactly_once ledger says where an epoch ends, and only one without an open decision what targets hold."""
    if state.lineage.guarantee != "exactly_once" or state.newest is None:
        what = "has no decided epoch" if state.newest is None else f"is {state.lineage.guarantee}"
        raise CheckpointRefused(
            "nothing_decided",
            f"The job {what}, so its ledger does not say where an epoch ends.",
            where=Where(job=job),
            safe=UNCHANGED,
            next="This command needs a job with guarantee='exactly_once' that has completed at least one epoch.",
        )
    if state.open is not None:
        raise CheckpointRefused(
            "open_decision",
            f"Epoch {state.open.epoch} is decided but not known to be in every sink: the job is running, or it died.",
            where=Where(job=job),
            safe=UNCHANGED,
            next="Stop the job (SIGTERM, Ctrl-C, job.stop()). If it died, start it once so that recovery finishes the "
            "epoch, then stop it. Then run this command again.",
        )
    if state.quiet_offsets(state.next_epoch) is not None:
        raise CheckpointRefused(
            "still_quiet",
            "This checkpoint was rewound and has not caught up with its targets.",
            where=Where(job=job),
            safe=UNCHANGED,
            next="Start the job, let it complete an epoch with new input, and stop it. Then run this command again.",
        )


def check_quiet(plan: Continuation, state: State) -> None:
    """Refuse a quiet range in which sources were added or removed: Spark reads only those present at its end."""
    names = {_sources(d.offsets) for _, d in state.decisions if d.epoch >= plan.epoch}
    if plan.fate == "quiet" and len(names) > 1:
        raise CheckpointRefused(
            "sources_changed",
            f"The job's sources changed after epoch {plan.epoch}, so the epochs since then cannot be rerun as they "
            "were.",
            where=Where(job=plan.job),
            safe=UNCHANGED,
            next="Choose an epoch after the change, or use --sink overwrite or --sink again.",
        )


def _sources(offsets: str) -> tuple[str, ...]:
    version, _, *lines = offsets.rstrip("\n").split("\n")
    return tuple(sorted(line.split(":", 1)[0] if version != "v1" else str(n) for n, line in enumerate(lines)))


def decision_of(plan: Continuation, state: State) -> Decision:
    """The decision of the epoch to continue from."""
    found = {decision.epoch: decision for _, decision in state.decisions}
    if plan.epoch not in found:
        kept = f"{min(found)} to {max(found)}" if found else "none"
        raise CheckpointRefused(
            "epoch_not_retained",
            f"Epoch {plan.epoch} is not retained; the retained epochs are: {kept}.",
            where=Where(job=plan.job),
            safe=UNCHANGED,
            next="Choose one of these, or restore a savepoint.",
        )
    return found[plan.epoch]


def quiet_epochs(base: str, later: list[str]) -> tuple[str, ...]:
    """The ranges to rerun without writing, as texts of `offsets`, with the settings of the epoch they follow.

    Each epoch exactly as it was: what it emits, and when a timer fires, depends on where the earlier ones ended.
    """
    conf = json.loads(base.split("\n")[1]).get("conf")
    texts = []
    for text in later:
        version, settings, *lines = text.rstrip("\n").split("\n")
        told = {**json.loads(settings), **({} if conf is None else {"conf": conf})}
        texts.append("\n".join([version, json.dumps(told, separators=(",", ":")), *lines]))
    return tuple(texts)


def was_begun_by(plan: Continuation, state: State) -> bool:
    """Was this lineage created by the same request, and has it not run since?"""
    lineage, newest = state.lineage, state.newest
    fresh = newest is None or newest.cause == "restore"
    same = lineage.parent is not None and (lineage.first_epoch, lineage.fate) == plan.wish[:2]
    return fresh and same and state.open is None
