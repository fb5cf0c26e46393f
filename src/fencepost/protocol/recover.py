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
    """What number 0 is going to say, or has to say already."""
    sinks: tuple[SinkFacts, ...]
    writer: Writer
    new_id: str
    """The lineage's id, if this is the first start."""
    clock: Callable[[], str]
    keep: int = 100
    adopt: bool = False
    """Take over a checkpoint that plain Spark began."""
    sinks_changed: bool = False
    """The user declared that sinks were added, removed or given other targets."""

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
    check_same_job(start, state)
    book = yield from take_over(start.lineage.job, start.writer, state, start.clock, start.keep)
    check_same_job(start, book.state)
    book.sinks = start.lineage.sinks
    return book


def settle(book: Book, start: Start) -> Step[None]:
    """As the only writer: finish what is decided, undo what is not, put Spark's log right."""
    state = book.state
    owner = (state.lineage_id, state.lineage.generation, book.writer)
    held = {name: epoch for name, epoch in state.held.items() if name not in book.fresh}
    ancestors = state.lineage.ancestors
    yield from ask(OpenSinks("recover.open", *owner, held=held, older=book.older, ancestors=ancestors))
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
        living = [] if found.metadata else (yield from _living(found.ledgers, start.lineage.job))
        if len(living) == 1:
            # The lineage is Spark's query id: a lost or empty metadata file is rewritten, not guessed.
            return (yield from ask(NameLineage("recover.metadata", living[0])))
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


def _living(ledgers: tuple[str, ...], job: str) -> Step[list[str]]:
    """Those that are not sealed; after a rewind there is one beside the sealed ones."""
    if len(ledgers) == 1:
        return list(ledgers)
    found = []
    for lineage in ledgers:
        state = yield from read_ledger(lineage, job)
        if state.sealed is None and (state.newest is not None or state.lineage.parent is None):
            found.append(lineage)
    return found


def check_same_job(start: Start, state: State) -> None:
    """Refuse a ledger of another job, level or set of targets."""
    was, now = state.lineage, start.lineage
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
    for name, sink in now.sinks.items():
        if was.parent is not None and sink.target in was.parent.get("targets", ()):
            raise CheckpointRefused(
                "fork_needs_own_targets",
                f"Sink {name!r} writes to a target of the job that this one was forked from.",
                where=Where(job=now.job, sink=name),
                next="Give the second job targets of its own: both would write the same rows.",
            )
    needed = {handle.sink for handle in state.open.handles} if state.open else set()
    for name in sorted({*state.sinks, *now.sinks}) if state.sinks else ():
        if state.sinks.get(name) != now.sinks.get(name) and (name in needed or not start.sinks_changed):
            raise _sink_changed(start, name, state, now.sinks)


def take_over(job: str, writer: Writer, state: State, clock: Callable[[], str], keep: int = 100) -> Step[Book]:
    """Append `writer`. From here the set of decisions is fixed. Losing the race means reading on and trying again."""
    book = Book(state=state, writer=WriterNumber(0), clock=clock, keep=keep)
    while True:
        if book.state.sealed:
            raise is_sealed(job, book.state.sealed)
        book.older = writers_in(book.state)
        if (yield from try_append(book, writer, "recover.takeover")):
            return book
        book.state = yield from read_ledger(state.lineage_id, job)


def is_sealed(job: str, sealed: Sealed) -> CheckpointRefused:
    """Whose turn it is, if not this lineage's."""
    if not sealed.next:
        what, cure = (
            "the job was cancelled and its checkpoint was to be deleted",
            "Delete the folder, or what is left of it.",
        )
    elif sealed.place:
        what, cure = f"it goes on in {sealed.place}, after epoch {sealed.epoch}", "Start the job from there."
    else:
        what = f"it goes on as lineage {sealed.next}, after epoch {sealed.epoch}"
        cure = "A rewind was interrupted. Repeat the command: fencepost rewind CHECKPOINT "
        cure += f"--epoch {sealed.epoch} --sink {sealed.fate}."
    return CheckpointRefused("sealed", f"This lineage was sealed: {what}.", where=Where(job=job), next=cure)


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


def _first_after_adoption(start: Start) -> Step[Epoch]:
    complete = yield from ask(LogNames("recover.adopt.complete", "commits"))
    begun = yield from ask(LogNames("recover.adopt.begun", "offsets"))
    if not begun or begun[-1:] < complete[-1:]:
        raise adopted_log_damaged(start.where, complete[-1])
    if begun[-1:] != complete[-1:]:
        raise CheckpointRefused(
            "adopt_incomplete",
            f"Spark began epoch {begun[-1]} and did not complete it.",
            where=start.where,
            next="Let the old job finish its last epoch (a run with trigger availableNow), then adopt.",
        )
    return Epoch(complete[-1] + 1)


def _sink_changed(start: Start, name: str, state: State, now: Mapping[str, SinkRecord]) -> CheckpointRefused:
    was = state.sinks
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
        next="The newest decided epoch is not known to be in it: bring the old sink or target back, start and stop the "
        "job once, then change it."
        if start.sinks_changed
        else "Bring the old sink or target back. If the change is meant, start once with sinks_changed=True: the new "
        "target gets the rows from the next epoch on.",
    )
