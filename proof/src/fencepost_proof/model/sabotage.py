"""Known-bad variants of the protocol and of the world. The explorer has to catch every one; else it sees nothing.

Each swaps one piece of the real code, or one rule of the world. Never imported by the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from fencepost.errors import EpochFailed, FencepostError
from fencepost.protocol import append, epoch, lineages, order, rebuild, recovery
from fencepost.protocol import effects as e
from fencepost.protocol.append import Book
from fencepost.protocol.epoch import SinkFacts
from fencepost.protocol.records import Body, Done, Epoch, Handle, Sealed, WriterNumber
from fencepost_proof.model import check
from fencepost_proof.model.bad_worlds import (
    AppliesInTheVote,
    BareEpoch,
    NamedByEpoch,
    NamedTwice,
    NoEpochRow,
    Promising,
    Renaming,
    SleepingSession,
    SweepsNewer,
    TwoInOneSession,
    Unsynced,
)
from fencepost_proof.model.hunt import PASS, Sabotage, as_is, meddle
from fencepost_proof.model.targets import APPLY, BARE, KEPT, PUBLISH, TASKS


def _outcome_for(outcome: e.Outcome) -> Callable[..., Any]:
    """A `_commit_sink` that takes `outcome` for done."""
    real = epoch._commit_sink

    def hear(effect: e.Effect[Any], answer: Any) -> Any:
        if isinstance(effect, e.Commit):
            return {name: e.Outcome.DONE if said is outcome else said for name, said in answer.items()}
        return answer

    return lambda *args: meddle(real(*args), lambda effect: PASS, hear)


# --- variants of one epoch


def _promise_then_precommit(book: Book, n: Epoch, sinks: Iterable[SinkFacts], *, overlap: bool) -> e.Step[None]:
    offsets = yield from epoch.barrier(book, n)
    handles = yield from e.ask(e.PreCommit("promise", n))
    snapshot = yield from e.ask(e.TakeSnapshot("snapshot", n, None, offsets))
    yield from epoch.decide(book, n, offsets, handles, snapshot)
    yield from e.ask(e.PreCommit("precommit", n))
    yield from epoch.commit_open(book, epoch.in_commit_order(sinks))


def _commit_then_decide(  # noqa: PLR0917 - as the real one
    book: Book, n: Epoch, offsets: str, handles: tuple[Handle, ...], snapshot: e.Snapshot, cause: str
) -> e.Step[None]:
    for handle in handles:
        yield from e.ask(e.Commit("commit", handle.sink, n, (handle,)))
    yield from _REAL_DECIDE(book, n, offsets, handles, snapshot, cause)


_REAL_DECIDE = epoch.decide


def _sweep_after_decide(  # noqa: PLR0917 - as the real one
    book: Book, n: Epoch, offsets: str, handles: tuple[Handle, ...], snapshot: e.Snapshot, cause: str
) -> e.Step[None]:
    yield from _REAL_DECIDE(book, n, offsets, handles, snapshot, cause)
    yield from e.ask(e.SweepStaged("sweep", book.writer, n, recovering=False))


def _unknown_is_no(  # noqa: PLR0917 - as the real one
    book: Book, n: Epoch, offsets: str, handles: tuple[Handle, ...], snapshot: e.Snapshot, cause: str
) -> e.Step[None]:
    step = _REAL_DECIDE(book, n, offsets, handles, snapshot, cause)
    answer: Any = None
    while True:
        try:
            effect = step.send(answer)
        except StopIteration:
            return
        answer = yield effect
        if answer is e.Created.UNKNOWN:
            for handle in handles:
                yield from e.ask(e.Abort("abort", handle))
            raise EpochFailed("unknown", "no answer", next="")


def _one_too_many(book: Book, n: Epoch) -> e.Step[str]:
    offsets = yield from _REAL_BARRIER(book, n)
    return check.offsets_text(check.end_of(offsets) + 1)


_REAL_BARRIER = epoch.barrier


def _believe_the_engine(book: Book, n: Epoch) -> e.Step[str]:
    offsets = yield from e.ask(e.LogRead("barrier", "offsets", n))
    if not offsets:
        raise EpochFailed("no_barrier", "missing", next="")
    return offsets


# --- variants of the ledger


def _without_hole_check(book: Book, body: Body, point: str) -> e.Step[bool]:
    number = book.state.last + 1

    def hear(effect: e.Effect[Any], answer: Any) -> Any:
        # Deaf for what stands above, and for what is missing below.
        return (*(n for n in answer if n < number - 1), number - 1, number) if isinstance(effect, e.Names) else answer

    return meddle(_REAL_TRY(book, body, point), lambda effect: PASS, hear)


_REAL_TRY = append.try_append


def _unknown_not_read_back(book: Book, body: Body, point: str) -> e.Step[bool]:
    def hear(effect: e.Effect[Any], answer: Any) -> Any:
        return e.Created.CREATED if answer is e.Created.UNKNOWN else answer

    return meddle(_REAL_TRY(book, body, point), lambda effect: PASS, hear)


# --- variants of recovery


def _rerun_the_decided(book: Book) -> e.Step[None]:
    newest = book.state.newest
    tell = lambda x: None if isinstance(x, e.LogWrite) and x.log == "commits" else PASS  # noqa: E731
    yield from meddle(_REAL_REBUILD(book), tell, as_is)
    if newest is not None and book.state.voided is None:
        yield from e.ask(e.LogDelete("recover.rebuild.again", "commits", newest.epoch))


_REAL_REBUILD = rebuild.rebuild


def _rebuild_nothing(book: Book) -> e.Step[None]:
    yield from ()


def _abort_everybodys(book: Book, start: recovery.Start) -> e.Step[None]:
    for sink in start.sinks:
        for orphan in (yield from e.ask(e.Orphans("recover.orphans", sink.name, WriterNumber(10**9)))):
            yield from e.ask(e.Abort("recover.abort", orphan))
    yield from e.ask(e.SweepStaged("recover.sweep", book.writer, book.state.done_through, recovering=True))


def _sweep_everybodys(book: Book, sink: SinkFacts) -> e.Step[None]:
    for orphan in (yield from e.ask(e.Orphans("sweep.orphans", sink.name, WriterNumber(10**9), at_leisure=True))):
        yield from e.ask(e.Abort("sweep.abort", orphan))


def _redo_unrecorded(book: Book, n: Epoch, gone: tuple[Handle, ...]) -> e.Step[None]:
    fresh = yield from e.ask(e.Again("recover.redo", gone[0].sink, n, gone))
    yield from e.ask(e.Commit("commit", gone[0].sink, n, fresh))


def _done_then_commit(book: Book, start: recovery.Start) -> e.Step[None]:
    opened = book.state.open
    if opened is not None:
        yield from append.append(book, Done(opened.epoch), "done")
        for handle in opened.handles:
            yield from e.ask(e.Commit("commit", handle.sink, opened.epoch, (handle,)))


def _done_without_asking(book: Book, start: recovery.Start) -> e.Step[None]:
    yield from epoch.mark_done(book)


def _perishable_last(sinks: Iterable[SinkFacts]) -> tuple[SinkFacts, ...]:
    return tuple(sorted(sinks, key=lambda sink: sink.perishable))


def _retire_the_voidable(state: order.State, keep: int) -> int:
    numbers = [number for number, _ in state.decisions]
    return max(state.oldest, numbers[-keep]) if len(numbers) > keep else state.oldest


# --- variants of beginning anew


def _seal_nothing(plan: lineages.Continuation, state: order.State) -> e.Step[order.State]:
    yield from ()
    return replace(state, sealed=state.sealed or Sealed(plan.new_id, plan.epoch, plan.fate))


def _found_again(plan: lineages.Continuation, origin: order.State, parent: order.State | None) -> e.Step[str]:
    child = yield from _REAL_FOUND(plan, origin, parent)
    state = yield from append.read_ledger(child, plan.job)
    book = yield from recovery.take_over(plan.job, plan.writer, state, plan.clock)
    yield from epoch.mark_done(book)
    return child


_REAL_FOUND = lineages.found


def _range_of_the_day_before(
    plan: lineages.Continuation, origin: order.State, parent: order.State | None
) -> e.Step[str]:
    assert parent is not None
    return (yield from _REAL_FOUND(plan, origin, replace(parent, decisions=parent.decisions[:-1])))


# --- variants of a commit beside the next epoch


def _not_joined(real: Callable[..., e.Step[None]]) -> Callable[..., e.Step[None]]:
    """Nothing is waited for."""
    tell = lambda x: None if isinstance(x, e.Join) else PASS  # noqa: E731
    return lambda *args, **named: meddle(real(*args, **named), tell, as_is)


def _deaf_for_failure(*args: Any, **named: Any) -> e.Step[None]:
    step = _REAL_RUN(*args, **named)
    answer: Any = None
    while True:
        try:
            effect = step.send(answer)
        except StopIteration:
            return
        try:
            answer = yield effect
        except FencepostError:
            answer = None


_REAL_RUN = epoch.run_epoch


def _sweep_beside(book: Book, order: tuple[SinkFacts, ...]) -> e.Step[None]:
    yield from _REAL_BESIDE(book, order)
    yield from epoch.sweep_orphans(book, order)


_REAL_BESIDE = epoch.commit_beside


def _sweep_then_commit(book: Book, order: tuple[SinkFacts, ...]) -> e.Step[None]:
    yield from e.ask(e.SweepStaged("sweep", book.writer, Epoch(book.state.next_epoch - 1), recovering=False))
    yield from _REAL_BESIDE(book, order)


def _redo_beside(book: Book, order: tuple[SinkFacts, ...]) -> e.Step[None]:
    gone = yield from epoch.commit_open(book, order)
    if gone:
        yield from _redo_unrecorded(book, Epoch(book.state.next_epoch - 1), gone)
        yield from _redo_beside(book, tuple(sink for sink in order if sink.name != gone[0].sink))


def _sweep_the_decided(book: Book, sink: SinkFacts) -> e.Step[None]:
    mine_too = WriterNumber(book.writer + 1)
    for orphan in (yield from e.ask(e.Orphans("sweep.orphans", sink.name, mine_too, at_leisure=True))):
        yield from e.ask(e.Abort("sweep.abort", orphan))


def _believe_commits(book: Book, start: recovery.Start) -> e.Step[None]:
    opened = book.state.open
    if opened is not None and opened.epoch in (yield from e.ask(e.LogNames("recover.complete", "commits"))):
        yield from epoch.mark_done(book)
    yield from _REAL_FINISH(book, start)


_REAL_FINISH = recovery.finish


# --- variants of sinks and staging


SABOTAGES = (
    Sabotage(
        "decide_before_precommit",
        "The decision names handles that are pre-committed only after it.",
        (APPLY, PUBLISH),
        ((epoch, "run_epoch", _promise_then_precommit),),
        Promising,
    ),
    Sabotage(
        "commit_before_decide",
        "Sinks are committed, then the decision is written.",
        (KEPT, APPLY),
        ((epoch, "decide", _commit_then_decide),),
    ),
    Sabotage("ledger_not_synced", "The newest record may vanish with the power.", (APPLY, PUBLISH), (), Unsynced),
    Sabotage("rename_not_link", "Creating a record replaces one that is there.", (KEPT, APPLY), (), Renaming),
    Sabotage(
        "no_hole_check",
        "A driver acts on a record in a number that retention freed.",
        (BARE, PUBLISH),
        ((append, "try_append", _without_hole_check),),
        epochs=4,
    ),
    Sabotage(
        "rerun_decided_epoch",
        "Recovery lets Spark run a decided epoch again instead of writing its commits entry.",
        (KEPT, APPLY),
        ((recovery, "rebuild", _rerun_the_decided),),
    ),
    Sabotage(
        "no_rebuild", "Recovery leaves Spark's log as it is.", (KEPT, APPLY), ((recovery, "rebuild", _rebuild_nothing),)
    ),
    Sabotage(
        "abort_newer_orphans",
        "Recovery aborts pre-committed units of equal and newer writers too.",
        (BARE, PUBLISH),
        ((recovery, "abort_orphans", _abort_everybodys),),
    ),
    Sabotage(
        "sweep_newer_orphans",
        "After an epoch, units of newer writers are aborted too.",
        (KEPT, APPLY),
        ((epoch, "_sweep_orphans", _sweep_everybodys),),
    ),
    Sabotage("handle_named_by_epoch", "Two attempts of an epoch use one handle id.", (KEPT, APPLY), (), NamedByEpoch),
    Sabotage(
        "unknown_is_no",
        "A decision without an answer is taken for not written, and its handles are aborted.",
        (KEPT, APPLY),
        ((epoch, "decide", _unknown_is_no),),
    ),
    Sabotage(
        "unknown_not_read_back",
        "A record without an answer is taken for written.",
        (KEPT, APPLY),
        ((append, "try_append", _unknown_not_read_back),),
    ),
    Sabotage(
        "gone_is_done",
        "A lost handle is taken for committed.",
        (KEPT, APPLY),
        ((epoch, "_commit_sink", _outcome_for(e.Outcome.GONE)),),
    ),
    Sabotage(
        "in_doubt_is_done",
        "A commit without an answer is taken for done.",
        (APPLY, PUBLISH),
        ((epoch, "_commit_sink", _outcome_for(e.Outcome.IN_DOUBT)),),
    ),
    Sabotage(
        "redo_not_recorded",
        "Lost rows are written again under handles that no record names.",
        (KEPT, APPLY),
        ((recovery, "redo", _redo_unrecorded),),
    ),
    Sabotage(
        "done_before_commit",
        "Recovery writes done, then commits.",
        (APPLY, PUBLISH),
        ((recovery, "finish", _done_then_commit),),
    ),
    Sabotage(
        "done_without_asking",
        "Recovery takes an open decision for committed.",
        (APPLY, PUBLISH),
        ((recovery, "finish", _done_without_asking),),
    ),
    Sabotage(
        "perishable_last",
        "Sinks that may lose a handle are committed after those that cannot.",
        (BARE, PUBLISH),
        ((epoch, "in_commit_order", _perishable_last), (recovery, "in_commit_order", _perishable_last)),
    ),
    Sabotage(
        "staged_swept_at_decision",
        "Staged rows are deleted right after the decision.",
        (APPLY, PUBLISH),
        ((epoch, "decide", _sweep_after_decide),),
    ),
    Sabotage("staged_of_newer_swept", "A sweep takes the rows of newer writers.", (APPLY, PUBLISH), (), SweepsNewer),
    Sabotage(
        "end_off_by_one",
        "The decision says one record more than was read.",
        (KEPT, APPLY),
        ((epoch, "barrier", _one_too_many),),
    ),
    Sabotage(
        "barrier_not_checked",
        "An epoch runs without comparing Spark's log with the ledger (the order table still refuses the record).",
        (KEPT, APPLY),
        ((epoch, "barrier", _believe_the_engine),),
    ),
    Sabotage(
        "voidable_retired",
        "Retention counts a decision that may still be voided (found by this model in the real code).",
        (BARE, PUBLISH),
        ((append, "oldest_needed", _retire_the_voidable),),
    ),
    Sabotage(
        "held_before_commit",
        "The ledger says that targets hold an epoch whose commit is still open.",
        (KEPT, APPLY),
        ((order.State, "held", property(lambda state: state.newest.held_after if state.newest else {})),),
    ),
    Sabotage(
        "parent_not_sealed",
        "A rewind begins a new lineage beside one that may still decide.",
        (KEPT, APPLY),
        ((lineages, "seal", _seal_nothing),),
        upkeep="quiet",
    ),
    Sabotage(
        "late_command",
        "A command that was repeated too late calls the new lineage's open decision done (found by this model).",
        (APPLY, PUBLISH),
        ((lineages, "found", _found_again),),
        upkeep="quiet",
    ),
    Sabotage(
        "quiet_too_short",
        "The range that is run in silence ends before the last epoch that the targets hold.",
        (KEPT, APPLY),
        ((lineages, "found", _range_of_the_day_before),),
        upkeep="quiet",
    ),
    Sabotage(
        "quiet_is_loud",
        "Epochs whose rows are in the targets are written again.",
        (KEPT, PUBLISH),
        ((order.State, "quiet_offsets", lambda state, n: None),),
        upkeep="quiet",
    ),
    Sabotage(
        "bare_epoch",
        "A target compares epochs without their generation.",
        (APPLY, PUBLISH),
        (),
        BareEpoch,
        upkeep="overwrite",
    ),
    Sabotage("no_epoch_row", "An apply sink does not look whether it has the epoch.", (KEPT, APPLY), (), NoEpochRow),
    Sabotage("vote_commits", "An apply sink commits in the vote.", (KEPT, APPLY), (), AppliesInTheVote),
    Sabotage(
        "lineage_named_twice",
        "Of two first starts each writes its own lineage into metadata.",
        (KEPT, APPLY),
        (),
        NamedTwice,
    ),
    Sabotage(
        "sleeping_session_kept",
        "A new driver does not end the sessions of older writers.",
        (KEPT, APPLY),
        (),
        SleepingSession,
    ),
    Sabotage(
        "overlap_not_joined",
        "An epoch reaches the sinks while the last one's commit still uses them.",
        (KEPT, APPLY),
        ((epoch, "run_epoch", _not_joined(_REAL_RUN)),),
        overlap=True,
    ),
    Sabotage(
        "overlap_two_behind",
        "An epoch is decided while the commit of the last one is still running, in sinks that could bear it.",
        (BARE, PUBLISH),
        ((epoch, "run_epoch", _not_joined(_REAL_RUN)),),
        TwoInOneSession,
        overlap=True,
    ),
    Sabotage(
        "overlap_stop_not_joined",
        "A stop writes done while the last commit is still running.",
        (APPLY, PUBLISH),
        ((epoch, "stop", _not_joined(epoch.stop)),),
        overlap=True,
    ),
    Sabotage(
        "overlap_failure_forgotten",
        "The next epoch goes on after a commit beside it that failed.",
        (KEPT, APPLY),
        ((epoch, "run_epoch", _deaf_for_failure),),
        overlap=True,
    ),
    Sabotage(
        "overlap_sweeps_the_next",
        "Orphans are swept beside the next epoch, whose tasks are writing theirs.",
        (TASKS, APPLY),
        ((epoch, "commit_beside", _sweep_beside),),
        overlap=True,
    ),
    Sabotage(
        "overlap_sweeps_the_decided",
        "Orphans are swept before the commit, and what was just decided is taken for one.",
        (TASKS, APPLY),
        ((epoch, "_sweep_orphans", _sweep_the_decided),),
        overlap=True,
    ),
    Sabotage(
        "overlap_staged_swept",
        "Staged rows are deleted when the epoch is complete for the engine, before its commit.",
        (APPLY, PUBLISH),
        ((epoch, "commit_beside", _sweep_then_commit),),
        overlap=True,
    ),
    Sabotage(
        "overlap_redo_beside",
        "A commit beside the next epoch writes lost rows again by itself, which a replaced driver must not.",
        (KEPT, APPLY),
        ((epoch, "commit_beside", _redo_beside),),
        overlap=True,
    ),
    Sabotage(
        "overlap_commits_believed",
        "Recovery takes an epoch for committed because it is complete in Spark's log.",
        (APPLY, PUBLISH),
        ((recovery, "finish", _believe_commits),),
        overlap=True,
    ),
)
