"""How a new driver finishes what a dead one began. Runs before every start of the query.

    identify ─► read and verify ─► take over ─► finish the open decision ─► abort orphans ─► rebuild Spark's log

Each step may be repeated: after a crash, recovery starts over. Never reruns the plan of a decided epoch: that is
completed by writing `commits/N` from the record.
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
    LogNames,
    LogRead,
    LogWrite,
    NameLineage,
    OpenSinks,
    Orphans,
    Outcome,
    ReadIdentity,
    Step,
    SweepStaged,
    Vote,
    ask,
)
from fencepost.protocol.epoch import (
    PATIENCE,
    SinkFacts,
    commit_open,
    handles_of,
    in_commit_order,
    mark_done,
)
from fencepost.protocol.order import State
from fencepost.protocol.rebuild import adopted_log_damaged, rebuild
from fencepost.protocol.records import (
    Epoch,
    Handle,
    Lineage,
    Redo,
    Sealed,
    SinkRecord,
    Void,
    Writer,
    WriterNumber,
)


@dataclass(frozen=True, slots=True)
class Start:
    """A driver that wants to run a job."""

    lineage: Lineage
    """What record 0 will say, or must already say."""
    sinks: tuple[SinkFacts, ...]
    writer: Writer
    new_id: str
    """The lineage's id if this is the first start."""
    clock: Callable[[], str]
    keep: int = 100
    adopt: bool = False
    """Take over a checkpoint that plain Spark began."""
    allow_sink_changes: bool = False
    """The user declared that sinks were added or removed, or have other targets."""
    took_over: Callable[[Book], None] = lambda book: None
    """Called with the book once this driver is the only writer. It may read the book, and must not raise."""

    @property
    def where(self) -> Where:
        """For error messages."""
        return Where(job=self.lineage.job)


def recover(start: Start) -> Step[Book]:
    """Bring ledger, sinks and Spark's log into agreement; return the book of what is now the only writer.

    The model checks this very function, and a driver runs it.
    """
    lineage_id = yield from identify(start)
    state = yield from read_ledger(lineage_id, start.lineage.job)
    check_same_job(start, state)
    book = yield from take_over(start.lineage.job, start.writer, state, start.clock, start.keep)
    check_same_job(start, book.state)
    book.sinks = start.lineage.sinks
    # ----- from here on this driver is the only writer: what is decided is finished, the rest is undone -----
    start.took_over(book)
    yield from open_sinks(book)
    if book.state.lineage.guarantee == "exactly_once":
        yield from finish(book, start)
        yield from abort_orphans(book, start)
        yield from rebuild(book)
    elif book.state.lineage.guarantee == "at_most_once":
        yield from keep_claimed_range(book)
    yield from ask(SweepStaged("recover.sweep", book.writer, book.state.done_through, recovering=True))
    yield from retire(book)
    return book


def open_sinks(book: Book) -> Step[None]:
    """Tell every sink for which writer it works from now on, and what its target must hold."""
    state = book.state
    held = {name: epoch for name, epoch in state.held.items() if name not in book.fresh}
    owner = (state.lineage_id, state.lineage.generation, book.writer)
    ancestors = state.lineage.ancestors
    yield from ask(OpenSinks("recover.open", *owner, held=held, older=book.older, ancestors=ancestors))


def keep_claimed_range(book: Book) -> Step[None]:
    """at_most_once: a claimed epoch that is not complete reruns, and drops its rows; a wider range would lose more."""
    if not book.state.claims:
        return
    _, claim = book.state.claims[-1]
    complete = yield from ask(LogNames("recover.claim.complete", "commits"))
    found = yield from ask(LogRead("recover.claim.read", "offsets", claim.epoch))
    if claim.epoch not in complete and found != claim.offsets:
        yield from ask(LogWrite("recover.claim", "offsets", claim.epoch, claim.offsets))


def identify(start: Start) -> Step[str]:
    """Find the lineage of this directory, or start one; refuse a directory that belongs to another query."""
    found = yield from ask(ReadIdentity("recover.identify"))
    if found.metadata and found.metadata in found.ledgers:
        return found.metadata
    if found.ledgers:
        living = [] if found.metadata else (yield from _living(found.ledgers, start.lineage.job))
        if len(living) == 1:
            # The lineage is Spark's query id, so a lost or empty metadata file can be rewritten without guessing.
            return (yield from ask(NameLineage("recover.metadata", living[0])))
        raise CheckpointRefused(
            "lineage_mismatch",
            f"Spark's metadata names query {found.metadata or 'nothing readable'}, "
            f"but the ledger here belongs to {', '.join(found.ledgers)}.",
            where=start.where,
            next="Point the job to its own checkpoint. If the `metadata` file was edited, put the ledger's id back "
            "into it.",
        )
    if found.epochs and not start.adopt:
        raise CheckpointRefused(
            "ledger_missing",
            f"Spark has run {len(found.epochs)} epochs here, but there is no ledger.",
            where=start.where,
            next="If the ledger was deleted, restore it from a backup, or continue from a savepoint: fencepost doctor "
            "CHECKPOINT names them. If plain Spark wrote this checkpoint, start "
            "with adopt=True; the sinks must then hold exactly the completed epochs.",
        )
    lineage_id = found.metadata or (yield from ask(NameLineage("recover.metadata.first", start.new_id)))
    body = start.lineage
    if found.epochs:
        body = Lineage(
            job=body.job,
            guarantee=body.guarantee,
            first_epoch=(yield from _first_after_adoption(start)),
            sinks=body.sinks,
            settings=body.settings,
        )
    yield from new_ledger(lineage_id, body, start.clock)
    return lineage_id


def _living(ledgers: tuple[str, ...], job: str) -> Step[list[str]]:
    """Lineages that are not sealed; after a rewind there is one, beside the sealed ones."""
    if len(ledgers) == 1:
        return list(ledgers)
    found = []
    for lineage in ledgers:
        state = yield from read_ledger(lineage, job)
        if state.sealed is None and (state.newest is not None or state.lineage.parent is None):
            found.append(lineage)
    return found


def check_same_job(start: Start, state: State) -> None:
    """Refuse a ledger with another job, guarantee or set of targets."""
    was, now = state.lineage, start.lineage
    if was.job != now.job:
        raise CheckpointRefused(
            "another_job",
            f"This checkpoint belongs to job {was.job!r}.",
            where=start.where,
            next="Give each job its own checkpoint, or start this job under its old name.",
        )
    if was.guarantee != now.guarantee:
        raise CheckpointRefused(
            "guarantee_changed",
            f"This checkpoint was created with guarantee {was.guarantee!r}, but the job now asks for "
            f"{now.guarantee!r}.",
            where=start.where,
            next=f"Start the job with guarantee={was.guarantee!r}, or use a new checkpoint.",
        )
    for name, sink in now.sinks.items():
        if was.parent is not None and sink.target in was.parent.get("targets", ()):
            raise CheckpointRefused(
                "fork_needs_own_targets",
                f"Sink {name!r} writes to a target of the job that this one was forked from.",
                where=Where(job=now.job, sink=name),
                next="Give the forked job its own targets; otherwise both jobs would write the same rows.",
            )
    needed = {handle.sink for handle in state.open.handles} if state.open else set()
    for name in sorted({*state.sinks, *now.sinks}) if state.sinks else ():
        if state.sinks.get(name) != now.sinks.get(name) and (name in needed or not start.allow_sink_changes):
            raise _sink_changed(start, name, state, now.sinks)


def take_over(job: str, writer: Writer, state: State, clock: Callable[[], str], keep: int = 100) -> Step[Book]:
    """Append `writer`. From then on no older driver can decide. If another driver was faster, read again and retry."""
    book = Book(state=state, writer=WriterNumber(0), clock=clock, keep=keep)
    while True:
        if book.state.sealed:
            raise is_sealed(job, book.state.sealed)
        book.older = writers_in(book.state)
        if (yield from try_append(book, writer, "recover.takeover")):
            return book
        book.state = yield from read_ledger(state.lineage_id, job)


def is_sealed(job: str, sealed: Sealed) -> CheckpointRefused:
    """The error for a sealed lineage: says where the job continues."""
    if not sealed.next:
        what, cure = (
            "the job was cancelled and its checkpoint was to be deleted",
            "Delete the folder, or what is left of it.",
        )
    elif sealed.place:
        what, cure = f"it continues in {sealed.place}, after epoch {sealed.epoch}", "Start the job from there."
    else:
        what = f"it continues as lineage {sealed.next}, after epoch {sealed.epoch}"
        cure = "A rewind was interrupted. Run it again: fencepost rewind CHECKPOINT "
        cure += f"--epoch {sealed.epoch} --sink {sealed.fate}."
    return CheckpointRefused("sealed", f"This lineage is sealed: {what}.", where=Where(job=job), next=cure)


def writers_in(state: State) -> tuple[WriterNumber, ...]:
    """Writers whose records are retained, and the latest one, which every record names."""
    return tuple(sorted({*map(WriterNumber, state.writers), state.writer} - {WriterNumber(0)}))


def finish(book: Book, start: Start) -> Step[None]:
    """Commit the open decision, if any; lost handles are redone from kept rows, or the decision is voided."""
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
        f"The sink lost the same decided epoch {PATIENCE} times in a row, although it was rewritten each time.",
        where=book.where,
        next="Find out why the sink's target loses what it has accepted, then start the job again; the rows are kept.",
    ).at(epoch=opened.epoch, sink=gone[0].sink)


def redo(book: Book, epoch: Epoch, gone: tuple[Handle, ...]) -> Step[None]:
    """Pre-commit the kept rows of lost handles again, under new handles, and record those in the ledger."""
    assert book.state.open is not None
    sink = gone[0].sink
    fresh = yield from ask(Again("recover.redo", sink, epoch, gone))
    dead = yield from ask(Vote("recover.redo.vote", sink, epoch, fresh))
    if dead:
        raise InDoubt(
            "redo_failed",
            f"The sink lost {len(gone)} decided units, and lost them again when they were rewritten.",
            where=book.where,
            next="Check that the sink's target works, then start the job again; the rows are kept.",
        ).at(epoch=epoch, sink=sink)
    lost = tuple(handle.id for handle in gone)
    yield from append(book, Redo(epoch, book.state.open.number, lost, fresh), "recover.redo.record")


def void(book: Book, epoch: Epoch, gone: tuple[Handle, ...], order: tuple[SinkFacts, ...]) -> Step[None]:
    """Void a decision if none of it is visible; otherwise stop and let an operator choose."""
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
                f"{len(lost)} decided units were lost, and the sink does not say whether other units of the epoch are "
                "visible.",
                where=book.where,
                next="Check that the sink's target answers, then start the job again; recovery asks the sink first.",
            ).at(epoch=epoch, sink=sink)
    if visible:
        raise OperatorNeeded(
            "partly_lost",
            f"{len(visible)} units of a decided epoch are visible ({', '.join(sorted(visible))}), but the sink lost "
            f"{len(lost)} ({', '.join(sorted(lost))}), and their rows were not kept.",
            where=book.where,
            next="Compare the target with the newest decision in the ledger; write the lost rows by hand, or accept "
            "their loss. With keep_rows=True this cannot happen.",
        ).at(epoch=epoch, sink=gone[0].sink)
    yield from append(book, Void(epoch, opened.number, tuple(sorted(lost))), "recover.void")


def abort_orphans(book: Book, start: Start) -> Step[None]:
    """Abort what older writers pre-committed and nobody decided. Never touches this writer's units or newer ones."""
    newest = book.state.newest
    decided = {handle.id for handle in newest.handles} if newest else set()
    for sink in start.sinks:
        for orphan in (yield from ask(Orphans("recover.orphans", sink.name, book.writer))):
            if orphan.id not in decided:
                yield from ask(Abort("recover.abort", orphan))


def _first_after_adoption(start: Start) -> Step[Epoch]:
    complete = yield from ask(LogNames("recover.adopt.complete", "commits"))
    begun = yield from ask(LogNames("recover.adopt.begun", "offsets"))
    if not begun or begun[-1:] < complete[-1:]:
        raise adopted_log_damaged(start.where, complete[-1])
    if begun[-1:] != complete[-1:]:
        raise CheckpointRefused(
            "adopt_incomplete",
            f"Spark started epoch {begun[-1]} but did not complete it.",
            where=start.where,
            next="Let the old job finish its last epoch (run it with trigger availableNow), then adopt the checkpoint.",
        )
    return Epoch(complete[-1] + 1)


def _sink_changed(start: Start, name: str, state: State, now: Mapping[str, SinkRecord]) -> CheckpointRefused:
    was = state.sinks
    if name not in now:
        what, code = "is in the ledger but no longer in the job", "sink_removed"
    elif name not in was:
        what, code = "is new in the job", "sink_added"
    else:
        what, code = "now has a different target than the ledger knows", "target_replaced"
    return CheckpointRefused(
        code,
        f"Sink {name!r} {what}.",
        where=Where(job=start.lineage.job, sink=name),
        safe="The ledger is unchanged. Check the old target yourself to see what it holds.",
        next="The newest decided epoch may not be in it yet: bring the old sink or target back, start and stop the job "
        "once, then make the change."
        if start.allow_sink_changes
        else "Bring the old sink or target back. If the change is intended, start once with allow_sink_changes=True: "
        "the new target gets the rows from the next epoch on.",
    )
