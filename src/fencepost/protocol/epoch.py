"""One epoch, from the barrier to the sink.

    barrier ─► pre-commit ─► vote ─► snapshot ─► DECIDE ─► commit ─► complete
               nothing is visible, anything may fail │ will happen, whatever crashes

Never commits a handle that no durable decision names; never aborts one that a decision names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fencepost.errors import EpochFailed, InDoubt, RecoveryNeeded
from fencepost.protocol.append import Book, append, raise_fenced, read_ledger, retire
from fencepost.protocol.effects import (
    Abort,
    Commit,
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
"""How often in a row a silent sink is asked before the query is given up (and recovery asks again)."""


@dataclass(frozen=True, slots=True)
class SinkFacts:
    """All that the protocol knows of a sink."""

    name: str
    perishable: bool


def run_epoch(book: Book, epoch: Epoch, sinks: Iterable[SinkFacts]) -> Step[None]:
    """Carry one epoch from the barrier to the sinks (exactly_once)."""
    order = in_commit_order(sinks)
    offsets = yield from barrier(book, epoch)
    handles: tuple[Handle, ...] = ()
    quiet = book.state.quiet_offsets(epoch) is not None
    if not quiet:
        handles = yield from ask(PreCommit("precommit", epoch))
        yield from vote(book, order, epoch, handles)
    before = book.state.newest.offsets if book.state.newest else None
    snapshot = yield from ask(TakeSnapshot("snapshot", epoch, before, offsets))
    yield from decide(book, epoch, offsets, handles, snapshot, "quiet" if quiet else "data")
    # ----- the point of no return is behind us: from here the epoch is finished, by us or by recovery -----
    gone = yield from commit_open(book, order)
    if gone:
        raise RecoveryNeeded(
            "handle_lost",
            f"{len(gone)} decided units were lost by the sink.",
            where=book.where,
            next="Start the job again: recovery writes the kept rows once more.",
        ).at(epoch=epoch, sink=gone[0].sink)
    yield from tidy(book, order)


def may_try_again(book: Book, epoch: Epoch) -> bool:
    """A failed epoch: may the same query carry the same rows once more? Only while no decision can name them."""
    return book.deciding != epoch


def barrier(book: Book, epoch: Epoch) -> Step[str]:
    """Check the engine's log against the ledger; return the text of `offsets/N`."""
    state = book.state
    if epoch != state.next_epoch:
        raise RecoveryNeeded(
            "recovery_needed",
            f"Spark runs epoch {epoch}, the ledger expects epoch {state.next_epoch}.",
            where=book.where,
            next="Start the job again: recovery puts Spark's log right.",
        ).at(epoch=epoch)
    if state.newest is not None and state.newest.epoch == epoch - 1:
        for log, text in (("offsets", state.newest.offsets), ("commits", state.newest.snapshot)):
            found = yield from ask(LogRead("barrier.previous", log, state.newest.epoch))
            if found != text:
                raise RecoveryNeeded(
                    "spark_log_differs",
                    f"Spark's {log}/{state.newest.epoch} is not what was decided.",
                    where=book.where,
                    next="Start the job again: recovery rewrites Spark's log from the ledger.",
                ).at(epoch=epoch)
    offsets = yield from _range_of(book, epoch)
    quiet = state.quiet_offsets(epoch)
    if quiet is not None and positions(offsets) != positions(quiet):
        raise RecoveryNeeded(
            "not_the_quiet_range",
            "The rows of this epoch are in the targets already, for another range than Spark has begun it with.",
            where=book.where,
            next="Start the job again: recovery gives Spark the range.",
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
                next="Start the job again; the epoch runs from the same positions.",
            ).at(epoch=epoch, sink=sink.name)


def decide(  # noqa: PLR0917 - all that a decision says
    book: Book, epoch: Epoch, offsets: str, handles: tuple[Handle, ...], snapshot: Snapshot, cause: str = "data"
) -> Step[None]:
    """THE POINT OF NO RETURN: one durable, exclusive record.

    It also says that the epoch before is done, so an epoch costs one record, not two.
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

    A sink after one with lost handles is not begun: so long as nothing else is visible, the epoch can still be voided.
    """
    opened = book.state.open
    assert opened is not None
    for sink in order:
        gone = yield from _commit_sink(book, sink, opened)
        if gone:
            return gone
    return ()


def mark_done(book: Book) -> Step[None]:
    """Say that the open decision is done, where no next decision will: at stop, after recovery."""
    if book.state.open is not None:
        yield from append(book, Done(book.state.open.epoch), "done")


def tidy(book: Book, sinks: Iterable[SinkFacts]) -> Step[None]:
    """After an epoch: delete staged rows of epochs that a durable record calls done, orphans, and retired records."""
    yield from ask(SweepStaged("sweep", book.writer, book.state.done_through, recovering=False))
    for sink in sinks:
        if sink.perishable:
            yield from _sweep_orphans(book, sink)
    yield from retire(book)


def _sweep_orphans(book: Book, sink: SinkFacts) -> Step[None]:
    """Undo what a driver left that slept past its successor's recovery, and what failed attempts of our own left.

    An open transaction holds up its target's readers, so this does not wait for the next recovery. All that is decided
    is committed by now, and no task of a next epoch runs yet.
    """
    newest = book.state.newest
    decided = {handle.id for handle in newest.handles} if newest else set()
    mine_too = WriterNumber(book.writer + 1)
    for orphan in (yield from ask(Orphans("sweep.orphans", sink.name, mine_too, at_leisure=True))):
        if orphan.id not in decided:
            yield from ask(Abort("sweep.abort", orphan))


def check_not_replaced(book: Book) -> Step[None]:
    """After a failed epoch: was it a newer driver's doing? Then this one is fenced and must not start again."""
    names = yield from ask(Names("failed.list", book.state.lineage_id))
    if names[-1:] > (book.state.last,):
        state = yield from read_ledger(book.state.lineage_id, book.state.lineage.job)
        # A record of our own may stand there too: linked, but its folder could not be synced.
        if state.writer != book.writer or state.sealed:
            raise_fenced(book, state)


def run_plainly(book: Book, epoch: Epoch) -> Step[None]:
    """at_least_once: send and flush; a replayed epoch sends again."""
    yield from ask(WritePlainly("write", epoch))


def run_claimed(book: Book, epoch: Epoch) -> Step[None]:
    """at_most_once: claim, then send. An epoch that was claimed before may have left, so its rows go nowhere."""
    last = book.state.claims[-1][1] if book.state.claims else None
    if last is not None and epoch <= last.epoch:
        yield from ask(Mute("mute", epoch))
        return
    offsets = yield from _range_of(book, epoch)
    yield from append(book, Claim(epoch, offsets), "claim")
    yield from ask(WritePlainly("claim.write", epoch))
    yield from retire(book)


def in_commit_order(sinks: Iterable[SinkFacts]) -> tuple[SinkFacts, ...]:
    """Perishable sinks first: whoever reaches the others has seen every perishable handle done.

    Then by name: a later driver, to whom the sinks were named in another order, must know which came before a lost one.
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
            next="Start the job again; if it stays, look at the disk that holds the checkpoint.",
        ).at(epoch=epoch)
    return offsets


def _commit_sink(book: Book, sink: SinkFacts, opened: Open) -> Step[tuple[Handle, ...]]:
    """Commit one sink's handles; in doubt is asked again, never guessed."""
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
                    f"The sink did not say whether {len(pending)} decided units are in, {attempt} times in a row.",
                    where=book.where,
                    next="See that the sink's target answers and has room (why is in the log), then start the job "
                    "again; recovery asks first.",
                ).at(epoch=opened.epoch, sink=sink.name)
            yield from ask(Wait("commit.wait", attempt))
    return gone
