"""One epoch, from the barrier to the sink.

    barrier ─► pre-commit ─► vote ─► snapshot ─► DECIDE ─► commit ─► complete
               nothing is visible, anything may fail │ it will be committed, whatever crashes

With `overlap` the epoch is complete for the engine once it is decided, and its commit runs beside the next one's tasks:

    N      … ─► DECIDE ─► complete
                     └──► commit ───────────┐
    N+1             plan, tasks of the engine ┴─► barrier ─► pre-commit ─► …

Nothing of N+1 reaches a sink before the commit of N is over, so at most one decision is open, as without it.

Never commits a handle that no durable decision names; never aborts one that a decision names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fencepost.errors import EpochFailed, InDoubt, RecoveryNeeded
from fencepost.protocol.append import Book, append, raise_fenced, read_newest, retire
from fencepost.protocol.effects import (
    Abort,
    Beside,
    Commit,
    Join,
    LogRead,
    Mute,
    Names,
    Orphans,
    Outcome,
    PreCommit,
    Snapshot,
    Step,
    SweepStaged,
    TakeSnapshot,
    Vote,
    Wait,
    WritePlainly,
    ask,
)
from fencepost.protocol.order import Open
from fencepost.protocol.records import Claim, Decision, Done, Epoch, Handle, WriterNumber, positions

PATIENCE = 8
"""How many times in a row a sink in doubt is asked before the query fails (and recovery asks again)."""


@dataclass(frozen=True, slots=True)
class SinkFacts:
    """Everything the protocol knows about a sink."""

    name: str
    perishable: bool


def run_epoch(book: Book, epoch: Epoch, sinks: Iterable[SinkFacts], *, overlap: bool = False) -> Step[None]:
    """Carry one epoch from the barrier to the sinks (exactly_once); with `overlap` return while it is committed."""
    order = in_commit_order(sinks)
    if overlap:
        yield from join()
    offsets = yield from barrier(book, epoch)
    handles: tuple[Handle, ...] = ()
    quiet = book.state.quiet_offsets(epoch) is not None
    if not quiet:
        handles = yield from ask(PreCommit("precommit", epoch))
        yield from vote(book, order, epoch, handles)
    before = book.state.newest.offsets if book.state.newest else None
    snapshot = yield from ask(TakeSnapshot("snapshot", epoch, before, offsets))
    yield from decide(book, epoch, offsets, handles, snapshot, "quiet" if quiet else "data")
    # ----- past the point of no return: from here on the epoch will be finished, by us or by recovery -----
    if overlap and handles:
        yield from sweep_orphans(book, order)  # now: no task is running. Later the next epoch's are, and write units
        yield from ask(Beside("overlap.begin", commit_beside(book, order)))
        return
    yield from commit_decided(book, order)
    yield from tidy(book, order)


def commit_beside(book: Book, order: tuple[SinkFacts, ...]) -> Step[None]:
    """What runs beside the next epoch's tasks: it reaches for nothing of theirs."""
    yield from commit_decided(book, order)
    yield from sweep_staged(book)
    yield from retire(book)


def join() -> Step[None]:
    """Wait until what runs beside us is over."""
    yield from ask(Join("overlap.join"))


def commit_decided(book: Book, order: tuple[SinkFacts, ...]) -> Step[None]:
    """Commit the open decision; only recovery may continue where a sink lost a part of it."""
    opened = book.state.open
    assert opened is not None
    gone = yield from commit_open(book, order)
    if gone:
        raise RecoveryNeeded(
            "handle_lost",
            f"The sink lost {len(gone)} decided units.",
            where=book.where,
            next="Start the job again: recovery rewrites the kept rows.",
        ).at(epoch=opened.epoch, sink=gone[0].sink)


def stop(book: Book, sinks: Iterable[SinkFacts]) -> Step[None]:
    """The clean end of a driver: every commit is over, and the ledger says so."""
    yield from join()
    yield from mark_done(book)
    yield from tidy(book, sinks)


def may_try_again(book: Book, epoch: Epoch) -> bool:
    """May the same query retry a failed epoch with the same rows? Only while no decision can name them."""
    return book.deciding != epoch


def barrier(book: Book, epoch: Epoch) -> Step[str]:
    """Check the engine's log against the ledger; return the text of `offsets/N`."""
    state = book.state
    if epoch != state.next_epoch:
        raise RecoveryNeeded(
            "recovery_needed",
            f"Spark is running epoch {epoch}, but the ledger expects epoch {state.next_epoch}.",
            where=book.where,
            next="Start the job again: recovery repairs Spark's log.",
        ).at(epoch=epoch)
    if state.newest is not None and state.newest.epoch == epoch - 1:
        for log, text in (("offsets", state.newest.offsets), ("commits", state.newest.snapshot)):
            found = yield from ask(LogRead("barrier.previous", log, state.newest.epoch))
            if found != text:
                raise RecoveryNeeded(
                    "spark_log_differs",
                    f"Spark's {log}/{state.newest.epoch} differs from what was decided.",
                    where=book.where,
                    next="Start the job again: recovery rewrites Spark's log from the ledger.",
                ).at(epoch=epoch)
    offsets = yield from _range_of(book, epoch)
    quiet = state.quiet_offsets(epoch)
    if quiet is not None and positions(offsets) != positions(quiet):
        raise RecoveryNeeded(
            "not_the_quiet_range",
            "The targets already hold the rows of this epoch, but Spark started it with a different range.",
            where=book.where,
            next="Start the job again: recovery gives Spark the right range.",
        ).at(epoch=epoch)
    return offsets


def vote(book: Book, order: tuple[SinkFacts, ...], epoch: Epoch, handles: tuple[Handle, ...]) -> Step[None]:
    """Every sink confirms that its handles can be committed; a database does the work in an open transaction."""
    for sink in order:
        mine = handles_of(sink.name, handles)
        dead = (yield from ask(Vote("vote", sink.name, epoch, mine))) if mine else ()
        if dead:
            raise EpochFailed(
                "vote_failed",
                f"{len(dead)} of {len(mine)} pre-committed units can no longer be committed.",
                where=book.where,
                next="Start the job again; the epoch reruns from the same offsets.",
            ).at(epoch=epoch, sink=sink.name)


def decide(  # noqa: PLR0917 - all that a decision says
    book: Book, epoch: Epoch, offsets: str, handles: tuple[Handle, ...], snapshot: Snapshot, cause: str = "data"
) -> Step[None]:
    """THE POINT OF NO RETURN: one durable, exclusive record.

    It also says that the previous epoch is done, so an epoch costs one record, not two.
    """
    held = book.state.newest.held_after if book.state.newest else {}
    body = Decision(
        epoch=epoch,
        offsets=offsets,
        start=book.state.end,
        end=positions(offsets),
        done_through=Epoch(epoch - 1),
        handles=handles,
        snapshot=snapshot.text,
        files=snapshot.files,
        cause=cause,
        held={name: newest for name, newest in held.items() if name not in book.fresh},
        sinks=None if book.sinks == book.state.lineage.sinks else book.sinks,
    )
    book.deciding = epoch
    yield from append(book, body, "decide")


def commit_open(book: Book, order: tuple[SinkFacts, ...]) -> Step[tuple[Handle, ...]]:
    """Commit every handle of the open decision, perishable sinks first; return those that are gone.

    Sinks after one with lost handles are not started: as long as nothing else is visible, the epoch can be voided.
    """
    opened = book.state.open
    assert opened is not None
    for sink in order:
        gone = yield from _commit_sink(book, sink, opened)
        if gone:
            return gone
    return ()


def mark_done(book: Book) -> Step[None]:
    """Record that the open decision is done where no next decision will say so: at a stop, and after recovery."""
    if book.state.open is not None:
        yield from append(book, Done(book.state.open.epoch), "done")


def tidy(book: Book, sinks: Iterable[SinkFacts]) -> Step[None]:
    """After an epoch: delete orphans, retired records, and staged rows of epochs that are durably done."""
    yield from sweep_staged(book)
    yield from sweep_orphans(book, sinks)
    yield from retire(book)


def sweep_staged(book: Book) -> Step[None]:
    """Delete staged rows of epochs that are durably done."""
    yield from ask(SweepStaged("sweep", book.writer, book.state.done_through, recovering=False))


def sweep_orphans(book: Book, sinks: Iterable[SinkFacts]) -> Step[None]:
    """Abort orphans in the sinks whose readers they block. While it runs, no task may write a unit."""
    for sink in sinks:
        if sink.perishable:
            yield from _sweep_orphans(book, sink)


def _sweep_orphans(book: Book, sink: SinkFacts) -> Step[None]:
    """Abort what was left by a driver that slept through its successor's recovery, and by our own failed attempts.

    An open transaction blocks its target's readers, so this does not wait for the next recovery. The newest decision
    names what is not an orphan, and no task of the next epoch is running yet.
    """
    newest = book.state.newest
    decided = {handle.id for handle in newest.handles} if newest else set()
    mine_too = WriterNumber(book.writer + 1)
    for orphan in (yield from ask(Orphans("sweep.orphans", sink.name, mine_too, at_leisure=True))):
        if orphan.id not in decided:
            yield from ask(Abort("sweep.abort", orphan))


def check_not_replaced(book: Book) -> Step[None]:
    """Is there a newer driver? Then this one is fenced and must not start again."""
    names = yield from ask(Names("failed.list", book.state.lineage_id))
    if names[-1:] > (book.state.last,):
        state = yield from read_newest(book)
        # It may also be a record of our own: linked, but its folder could not be synced.
        if state.writer != book.writer or state.sealed:
            raise_fenced(book, state)


def run_plainly(book: Book, epoch: Epoch) -> Step[None]:
    """at_least_once: send and flush; a replayed epoch sends again.

    It appends nothing that could find its number taken, so it looks for a newer driver: otherwise the older of two
    would carry on, and the newer one would find a target that is ahead of it.
    """
    yield from check_not_replaced(book)
    yield from ask(WritePlainly("write", epoch))


def run_claimed(book: Book, epoch: Epoch) -> Step[None]:
    """at_most_once: claim, then send. The rows of an epoch claimed earlier may have been sent, so they are dropped."""
    last = book.state.claims[-1][1] if book.state.claims else None
    if last is not None and epoch <= last.epoch:
        yield from ask(Mute("mute", epoch))
        return
    offsets = yield from _range_of(book, epoch)
    yield from append(book, Claim(epoch, offsets), "claim")
    yield from ask(WritePlainly("claim.write", epoch))
    yield from retire(book)


def in_commit_order(sinks: Iterable[SinkFacts]) -> tuple[SinkFacts, ...]:
    """Perishable sinks first: by the time the others are reached, every perishable handle is done.

    Then by name: a later driver may list the sinks in another order, but must know which came before a lost one.
    """
    return tuple(sorted(sinks, key=lambda sink: (not sink.perishable, sink.name)))


def handles_of(sink: str, handles: tuple[Handle, ...]) -> tuple[Handle, ...]:
    """The handles of one sink."""
    return tuple(h for h in handles if h.sink == sink)


def _range_of(book: Book, epoch: Epoch) -> Step[str]:
    offsets = yield from ask(LogRead("barrier", "offsets", epoch))
    if not offsets:
        raise EpochFailed(
            "no_barrier",
            f"Spark's offsets/{epoch} is missing or empty.",
            where=book.where,
            next="Start the job again; if it keeps happening, check the disk that holds the checkpoint.",
        ).at(epoch=epoch)
    return offsets


def _commit_sink(book: Book, sink: SinkFacts, opened: Open) -> Step[tuple[Handle, ...]]:
    """Commit one sink's handles; ask again about those in doubt, never guess."""
    pending = handles_of(sink.name, opened.handles)
    gone: tuple[Handle, ...] = ()
    attempt = 0
    while pending:
        answers = yield from ask(Commit("commit", sink.name, opened.epoch, pending))
        gone += tuple(h for h in pending if answers[h.id] is Outcome.GONE)
        pending = tuple(h for h in pending if answers[h.id] is Outcome.IN_DOUBT)
        if pending:
            attempt += 1
            if attempt >= PATIENCE:
                raise InDoubt(
                    "in_doubt",
                    f"Asked {attempt} times in a row, the sink did not say whether {len(pending)} decided units are "
                    "committed.",
                    where=book.where,
                    next="Check that the sink's target answers and has free space (the log says why it failed), then "
                    "start the job again; recovery asks the sink first.",
                ).at(epoch=opened.epoch, sink=sink.name)
            yield from ask(Wait("commit.wait", attempt))
    return gone
