"""The last step of recovery: makes Spark's own log match the ledger exactly.

Never trusts Spark's log where a decision says otherwise, and never removes what a decision names.
"""

from __future__ import annotations

from fencepost.errors import UNCHANGED, CheckpointRefused, Where
from fencepost.protocol.append import Book
from fencepost.protocol.effects import (
    Discard,
    LogDelete,
    LogNames,
    LogRead,
    LogWrite,
    LostFiles,
    Step,
    Strays,
    ask,
)
from fencepost.protocol.epoch import check_not_replaced
from fencepost.protocol.records import Decision, Epoch


def rebuild(book: Book) -> Step[None]:
    """Make Spark's log match the ledger exactly.

    Entries of decided epochs that are missing, empty or different are written from the ledger: writing `commits/L` is
    how a decided epoch is completed. What Spark logged about an undecided epoch is removed, so that damage in it does
    not matter: the epoch starts over where the last decision ended. A driver that slept until here must not act on its
    stale view: it checks for a newer driver right before, and discards only files that it saw before that check.
    """
    state = book.state
    newest = state.newest
    last = newest.epoch if newest else Epoch(state.lineage.first_epoch - 1)
    if newest is not None:
        yield from _check_files(book, newest)  # before deleting anything that could replace a lost file
    strays = yield from ask(Strays("recover.rebuild.strays", last, (yield from _decided_offsets(book, last))))
    yield from check_not_replaced(book)
    for epoch in (yield from ask(LogNames("recover.rebuild.complete", "commits"))):
        if epoch > last:
            parents = newest is not None and newest.cause == "restore"  # this lineage has just begun
            if epoch != state.voided and not parents:
                raise CheckpointRefused(
                    "spark_ahead",
                    f"Spark has completed epoch {epoch}, but the newest decision is epoch {last}: the query ran "
                    "without fencepost, or ledger records were deleted.",
                    where=book.where,
                    next="Restore the ledger records from a backup of the checkpoint.",
                )
            yield from ask(LogDelete("recover.rebuild.unvoid", "commits", Epoch(epoch)))
    for epoch in (yield from ask(LogNames("recover.rebuild.begun", "offsets"))):
        if epoch > last:
            yield from ask(LogDelete("recover.rebuild.undecided", "offsets", Epoch(epoch)))
    yield from ask(Discard("recover.rebuild.discard", strays))
    for decision in [decision for _, decision in state.decisions[-2:]]:
        yield from _complete(decision)
    quiet = state.quiet_offsets(state.next_epoch)
    if quiet is not None:
        yield from ask(LogWrite("recover.rebuild.quiet", "offsets", state.next_epoch, quiet))


def _decided_offsets(book: Book, last: Epoch) -> Step[str | None]:
    """The offsets up to which Spark's log is decided; None if no epoch is."""
    newest = book.state.newest
    if book.state.quiet_offsets(book.state.next_epoch) is not None:
        return book.state.lineage.quiet[-1]
    if newest is not None or book.state.lineage.first_epoch == 0:
        return newest.offsets if newest else None
    offsets = yield from ask(LogRead("recover.rebuild.adopted", "offsets", last))  # plain Spark's last epoch
    if not offsets:
        raise adopted_log_damaged(book.where, last)
    return offsets


def _complete(decision: Decision) -> Step[None]:
    for log, text in (("offsets", decision.offsets), ("commits", decision.snapshot)):
        found = yield from ask(LogRead("recover.rebuild.read", log, decision.epoch))
        if found != text:
            yield from ask(LogWrite("recover.rebuild", log, decision.epoch, text))


def _check_files(book: Book, newest: Decision) -> Step[None]:
    lost = yield from ask(LostFiles("recover.files", newest.epoch, newest.snapshot, book.state.files))
    if lost:
        raise CheckpointRefused(
            "snapshot_lost",
            f"{len(lost)} files that epoch {newest.epoch} depends on are missing or changed: {', '.join(lost[:3])}.",
            where=book.where,
            next="Restore them from a backup of the checkpoint.",
        )


def adopted_log_damaged(where: Where, epoch: int) -> CheckpointRefused:
    """The error for a damaged log that plain Spark wrote."""
    return CheckpointRefused(
        "adopted_log_damaged",
        f"Spark's offsets/{epoch}, where the adopted checkpoint ends, is missing or empty.",
        where=where,
        safe=UNCHANGED,
        next="Restore the file from a backup of the checkpoint, then start the job again.",
    )
