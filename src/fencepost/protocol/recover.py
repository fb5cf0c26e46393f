"""How a new driver finishes what a dead one began. Runs before every start of the query.

    identify ─► read and verify ─► take over ─► finish the open decision ─► abort orphans ─► rebuild Spark's log

Each step may be repeated; a crash anywhere means: start again at the first. Never runs the plan of a decided epoch
again: it is completed by writing `commits/N` from the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fencepost.errors import CheckpointRefused, InDoubt, OperatorNeeded, Where
from fencepost.protocol.append import Book, append, new_ledger, read_ledger, retire, try_append
from fencepost.protocol.effects import (
    Abort,
    Again,
    Commit,
    Discard,
    LogDelete,
    LogNames,
    LogRead,
    LogWrite,
    LostFiles,
    NameLineage,
    OpenSinks,
    Orphans,
    Outcome,
    ReadIdentity,
    Step,
    Strays,
    SweepStaged,
    Vote,
    ask,
)
from fencepost.protocol.epoch import (
    PATIENCE,
    SinkFacts,
    check_not_replaced,
    commit_open,
    handles_of,
    in_commit_order,
    mark_done,
)
from fencepost.protocol.order import State
from fencepost.protocol.records import (
    Decision,
    Epoch,
    Handle,
    Lineage,
    Redo,
    SinkRecord,
    Void,
    Writer,
    WriterNumber,
)


@dataclass(frozen=True, slots=True)
class Start:
    """A driver that wants to run a job."""

    lineage: Lineage
    """What number 0 is going to say, or has to say already."""
    sinks: tuple[SinkFacts, ...]
    writer: Writer
    new_id: str
    """The lineage's id, if this is the first start."""
    clock: Callable[[], str]
    keep: int = 100
    adopt: bool = False
    """Take over a checkpoint that plain Spark began."""

    @property
    def where(self) -> Where:
        """For error messages."""
        return Where(job=self.lineage.job)


def recover(start: Start) -> Step[Book]:
    """Bring ledger, sinks and Spark's log into one state; return the book of the now only writer."""
    book = yield from begin(start)
    yield from settle(book, start)
    return book


def begin(start: Start) -> Step[Book]:
    """Find the ledger, verify it, take over."""
    lineage_id = yield from identify(start)
    state = yield from read_ledger(lineage_id, start.lineage.job)
    check_same_job(start, state.lineage)
    return (yield from take_over(start, state))


def settle(book: Book, start: Start) -> Step[None]:
    """As the only writer: finish what is decided, undo what is not, put Spark's log right."""
    state = book.state
    owner = (state.lineage_id, state.lineage.generation, book.writer)
    yield from ask(OpenSinks("recover.open", *owner, held=state.held, older=book.older))
    if state.lineage.guarantee == "exactly_once":
        yield from finish(book, start)
        yield from abort_orphans(book, start)
        yield from rebuild(book)
    elif state.lineage.guarantee == "at_most_once":
        yield from keep_claimed_range(book)
    yield from ask(SweepStaged("recover.sweep", book.writer, book.state.done_through, recovering=True))
    yield from retire(book)


def keep_claimed_range(book: Book) -> Step[None]:
    """at_most_once: a claimed epoch that is not complete runs again, muted; a wider range would lose more rows."""
    if not book.state.claims:
        return
    _, claim = book.state.claims[-1]
    complete = yield from ask(LogNames("recover.claim.complete", "commits"))
    found = yield from ask(LogRead("recover.claim.read", "offsets", claim.epoch))
    if claim.epoch not in complete and found != claim.offsets:
        yield from ask(LogWrite("recover.claim", "offsets", claim.epoch, claim.offsets))


def identify(start: Start) -> Step[str]:
    """Find the lineage of this directory, or begin one; refuse a directory that is somebody else's."""
    found = yield from ask(ReadIdentity("recover.identify"))
    if found.metadata and found.metadata in found.ledgers:
        return found.metadata
    if found.ledgers:
        if not found.metadata and len(found.ledgers) == 1:
            # The lineage is Spark's query id: a lost or empty metadata file is rewritten, not guessed.
            return (yield from ask(NameLineage("recover.metadata", found.ledgers[0])))
        raise CheckpointRefused(
            "lineage_mismatch",
            f"Spark's metadata names query {found.metadata or 'nothing readable'}, "
            f"but the ledger here is of {', '.join(found.ledgers)}.",
            where=start.where,
            next="Point the job at its own checkpoint; if metadata was edited, write the ledger's id back into it.",
        )
    if found.epochs and not start.adopt:
        raise CheckpointRefused(
            "ledger_missing",
            f"Spark has run {len(found.epochs)} epochs here, but there is no ledger.",
            where=start.where,
            next="If the ledger was deleted, restore it from a copy. If plain Spark wrote this checkpoint, start with "
            "adopt=True: its sinks must hold exactly the epochs that are complete.",
        )
    lineage_id = found.metadata or (yield from ask(NameLineage("recover.metadata.first", start.new_id)))
    body = start.lineage
    if found.epochs:
        body = Lineage(
            job=body.job,
            guarantee=body.guarantee,
            first_epoch=(yield from _first_after_adoption(start)),
            sinks=body.sinks,
            formats=body.formats,
        )
    yield from new_ledger(lineage_id, body, start.clock)
    return lineage_id


def check_same_job(start: Start, was: Lineage) -> None:
    """Refuse a ledger of another job, level or set of targets."""
    now = start.lineage
    if was.job != now.job:
        raise CheckpointRefused(
            "another_job",
            f"This checkpoint belongs to job {was.job!r}.",
            where=start.where,
            next="Give each job a checkpoint of its own, or start this one under its old name.",
        )
    if was.guarantee != now.guarantee:
        raise CheckpointRefused(
            "guarantee_changed",
            f"This checkpoint was begun with guarantee {was.guarantee!r}, the job now asks for {now.guarantee!r}.",
            where=start.where,
            next=f"Start with guarantee={was.guarantee!r}, or begin a new checkpoint.",
        )
    for name in sorted({*was.sinks, *now.sinks}):
        if was.sinks.get(name) != now.sinks.get(name):
            raise _sink_changed(start, name, was.sinks, now.sinks)


def take_over(start: Start, state: State) -> Step[Book]:
    """Append `writer`. From here the set of decisions is fixed. Losing the race means reading on and trying again."""
    book = Book(state=state, writer=WriterNumber(0), clock=start.clock, keep=start.keep)
    if state.sealed:
        raise CheckpointRefused(
            "sealed",
            "This lineage was sealed by a restore.",
            where=start.where,
            next="Start from the checkpoint that the restore made.",
        )
    book.older = writers_in(state)
    while not (yield from try_append(book, start.writer, "recover.takeover")):
        book.state = yield from read_ledger(state.lineage_id, start.lineage.job)
        book.older = writers_in(book.state)
    return book


def writers_in(state: State) -> tuple[WriterNumber, ...]:
    """Those whose records are retained, and the latest, which every record names."""
    return tuple(sorted({*map(WriterNumber, state.writers), state.writer} - {WriterNumber(0)}))


def finish(book: Book, start: Start) -> Step[None]:
    """Commit the open decision, if there is one; lost handles are redone from kept rows, or the decision is voided."""
    opened = book.state.open
    if opened is None:
        return
    order = in_commit_order(start.sinks)
    for _ in range(PATIENCE):
        gone = yield from commit_open(book, order)
        if not gone:
            yield from mark_done(book)
            return
        if not all(handle.kept for handle in gone):
            yield from void(book, opened.epoch, gone, order)
            return
        yield from redo(book, opened.epoch, gone)
    raise InDoubt(
        "lost_again",
        f"The sink lost the same decided epoch {PATIENCE} times in a row, each time after it was written again.",
        where=book.where,
        next="See why the sink's target loses what it has accepted, then start the job again; the rows are kept.",
    ).at(epoch=opened.epoch, sink=gone[0].sink)


def redo(book: Book, epoch: Epoch, gone: tuple[Handle, ...]) -> Step[None]:
    """Pre-commit the kept rows of lost handles again, under new handles, and name those in the ledger."""
    assert book.state.open is not None
    sink = gone[0].sink
    fresh = yield from ask(Again("recover.redo", sink, epoch, gone))
    dead = yield from ask(Vote("recover.redo.vote", sink, epoch, fresh))
    if dead:
        raise InDoubt(
            "redo_failed",
            f"The sink lost {len(gone)} decided units and did not keep them when they were written again.",
            where=book.where,
            next="See that the sink's target works, then start the job again; the rows are kept.",
        ).at(epoch=epoch, sink=sink)
    lost = tuple(handle.id for handle in gone)
    yield from append(book, Redo(epoch, book.state.open.number, lost, fresh), "recover.redo.record")


def void(book: Book, epoch: Epoch, gone: tuple[Handle, ...], order: tuple[SinkFacts, ...]) -> Step[None]:
    """Take a decision back, if nothing of it is visible; otherwise stop and let a person choose."""
    opened = book.state.open
    assert opened is not None
    lost = {handle.id for handle in gone}
    reached = [sink.name for sink in order]
    reached = reached[: reached.index(gone[0].sink) + 1]
    visible = []
    for sink in reached:
        mine = tuple(h for h in handles_of(sink, opened.handles) if h.id not in lost)
        answers: Mapping[str, Outcome] = (yield from ask(Commit("recover.ask", sink, epoch, mine))) if mine else {}
        visible += [name for name, outcome in answers.items() if outcome is Outcome.DONE]
        if Outcome.IN_DOUBT in answers.values():
            raise InDoubt(
                "in_doubt",
                f"{len(lost)} decided units were lost, and the sink does not say whether others of the epoch are "
                "visible.",
                where=book.where,
                next="See that the sink's target answers, then start the job again; recovery asks first.",
            ).at(epoch=epoch, sink=sink)
    if visible:
        raise OperatorNeeded(
            "partly_lost",
            f"{len(visible)} units of a decided epoch are visible ({', '.join(sorted(visible))}), {len(lost)} were "
            f"lost by the sink ({', '.join(sorted(lost))}), and their rows were not kept.",
            where=book.where,
            next="Look into the target and the newest decision in the ledger; write the lost rows by hand, or accept "
            "their loss. With keep_rows=True this cannot happen.",
        ).at(epoch=epoch, sink=gone[0].sink)
    yield from append(book, Void(epoch, opened.number, tuple(sorted(lost))), "recover.void")


def abort_orphans(book: Book, start: Start) -> Step[None]:
    """Undo what older writers pre-committed and nobody decided. Equal and newer writers are never touched."""
    newest = book.state.newest
    decided = {handle.id for handle in newest.handles} if newest else set()
    for sink in start.sinks:
        for orphan in (yield from ask(Orphans("recover.orphans", sink.name, book.writer))):
            if orphan.id not in decided:
                yield from ask(Abort("recover.abort", orphan))


def rebuild(book: Book) -> Step[None]:
    """Make Spark's log exactly the ledger's.

    Decided epochs are written from their records if they are missing, empty or different: writing `commits/L` is how
    a decided epoch is completed. What Spark noted of an undecided epoch is removed, so that no damage in it counts: the
    epoch begins anew where the last decision ended. A driver that slept until here must not do so by its stale view: it
    looks for a newer one right before, and discards only the very files that it saw before that look.
    """
    state = book.state
    newest = state.newest
    last = newest.epoch if newest else Epoch(state.lineage.first_epoch - 1)
    strays = yield from ask(Strays("recover.rebuild.strays", (yield from _decided_offsets(book, last))))
    yield from check_not_replaced(book)
    for epoch in (yield from ask(LogNames("recover.rebuild.complete", "commits"))):
        if epoch > last:
            if epoch != state.voided:
                raise CheckpointRefused(
                    "spark_ahead",
                    f"Spark has completed epoch {epoch}, the newest decision is epoch {last}.",
                    where=book.where,
                    next="The query ran without fencepost, or ledger records were removed: restore them from a copy.",
                )
            yield from ask(LogDelete("recover.rebuild.unvoid", "commits", Epoch(epoch)))
    for epoch in (yield from ask(LogNames("recover.rebuild.begun", "offsets"))):
        if epoch > last:
            yield from ask(LogDelete("recover.rebuild.undecided", "offsets", Epoch(epoch)))
    yield from ask(Discard("recover.rebuild.discard", strays))
    for decision in [decision for _, decision in state.decisions[-2:]]:
        yield from _complete(decision)
    if newest is not None:
        yield from _check_files(book, newest)


def _decided_offsets(book: Book, last: Epoch) -> Step[str | None]:
    """Up to where Spark's log is settled; None if no epoch is."""
    newest = book.state.newest
    if newest is not None or book.state.lineage.first_epoch == 0:
        return newest.offsets if newest else None
    offsets = yield from ask(LogRead("recover.rebuild.adopted", "offsets", last))  # plain Spark's last epoch
    if not offsets:
        raise _adopted_log_damaged(book.where, last)
    return offsets


def _complete(decision: Decision) -> Step[None]:
    for log, text in (("offsets", decision.offsets), ("commits", decision.snapshot)):
        found = yield from ask(LogRead("recover.rebuild.read", log, decision.epoch))
        if found != text:
            yield from ask(LogWrite("recover.rebuild", log, decision.epoch, text))


def _check_files(book: Book, newest: Decision) -> Step[None]:
    sources = {name: total for _, decision in book.state.decisions for name, total in decision.sources.items()}
    lost = yield from ask(LostFiles("recover.files", newest.epoch, newest.snapshot, sources))
    if lost:
        raise CheckpointRefused(
            "snapshot_lost",
            f"{len(lost)} files that epoch {newest.epoch} rests on are missing or changed: {', '.join(lost[:3])}.",
            where=book.where,
            next="Restore them from a copy of the checkpoint.",
        )


def _first_after_adoption(start: Start) -> Step[Epoch]:
    complete = yield from ask(LogNames("recover.adopt.complete", "commits"))
    begun = yield from ask(LogNames("recover.adopt.begun", "offsets"))
    if not begun or begun[-1:] < complete[-1:]:
        raise _adopted_log_damaged(start.where, complete[-1])
    if begun[-1:] != complete[-1:]:
        raise CheckpointRefused(
            "adopt_incomplete",
            f"Spark began epoch {begun[-1]} and did not complete it.",
            where=start.where,
            next="Let the old job finish its last epoch (a run with trigger availableNow), then adopt.",
        )
    return Epoch(complete[-1] + 1)


def _adopted_log_damaged(where: Where, epoch: int) -> CheckpointRefused:
    return CheckpointRefused(
        "adopted_log_damaged",
        f"Spark's offsets/{epoch}, where the adopted checkpoint ends, is missing or empty.",
        where=where,
        safe="Safe: nothing was changed.",
        next="Restore the file from a copy of the checkpoint, then start again.",
    )


def _sink_changed(
    start: Start, name: str, was: Mapping[str, SinkRecord], now: Mapping[str, SinkRecord]
) -> CheckpointRefused:
    if name not in now:
        what, code = "is in the ledger but no longer in the job", "sink_removed"
    elif name not in was:
        what, code = "is new in the job", "sink_added"
    else:
        what, code = "has another target now than the ledger knows", "target_replaced"
    return CheckpointRefused(
        code,
        f"Sink {name!r} {what}.",
        where=Where(job=start.lineage.job, sink=name),
        safe="The ledger is unchanged. What the old target holds, only a look at it can tell.",
        next="Bring the old sink or target back, or begin a new checkpoint for the changed job.",
    )
