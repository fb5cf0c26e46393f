"""How every target of a job can be read as it was right after one epoch.

    the ledger    which epochs are done; for each sink, the newest one up to the epoch that had rows for it
    the sink      how a reader sees its target right after that one: a version, offsets, files, or not at all

Nothing is written for it, epoch by epoch: what a reader needs is in the decision, or in the target's own log. Only
reads, whether the job is running, stopped or dead: it takes no lock, fences nobody, and needs no Spark. Never guesses:
a sink that cannot tell says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from fencepost.admin.verify import decided, targets_of
from fencepost.contract import Asked, Instant, Sink, place_of
from fencepost.errors import UNCHANGED, BadConfig, CheckpointRefused, FencepostError, Where
from fencepost.observe import journal
from fencepost.observe.terminal import Tell, nobody
from fencepost.protocol.format import Damaged
from fencepost.protocol.order import State
from fencepost.protocol.records import Decision, Epoch, Handle, decode
from fencepost.store import Place, store_at
from fencepost.store.base import record_name
from fencepost.store.ledger import read
from fencepost.store.spark_log import SparkLog

NOT_ASKED = "its target was not asked"
KAFKA = "ends"
"""What tells a handle of Kafka: its offsets are in the decision itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkInstant:
    """One target."""

    sink: str
    wrote: int | None
    """The newest epoch up to the one that was asked for which had rows for it; None if there is none."""
    instant: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInstant:
    """All targets of a job, right after one epoch."""

    checkpoint: str
    job: str
    lineage: str
    generation: int
    epoch: int
    at: str
    """When it was decided; "" if its record was retired a moment ago."""
    newest: int
    """The newest epoch that is done."""
    sinks: tuple[SinkInstant, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Can every target be read as it was?"""
        return all(one.instant.exact for one in self.sinks)

    @property
    def is_heard(self) -> bool:
        """Did every target answer?"""
        return all(one.instant.heard for one in self.sinks)


def instant_of_job(
    checkpoint: Place, sinks: Mapping[str, Sink] | None = None, epoch: int | None = None, tell: Tell = nobody
) -> JobInstant:
    """Every target right after `epoch` (None: the newest that is done); without `sinks` none is asked.

    Raises `Refused` if the ledger cannot say it: for an epoch that is not done, or no longer retained.
    """
    root = checkpoint.absolute()
    complete = SparkLog(store_at(root)).names("commits")  # before the ledger, which then has what is complete
    state = read(root)
    newest = _newest_done(root, state, complete)
    wanted = _checked(root, state, newest, epoch)
    decisions = decided(root, state)
    number, decision = next((number, one) for number, one, _ in decisions if one.epoch == wanted)
    handles = {one.epoch: found for _, one, found in decisions}
    found = []
    for name in sorted({*state.sinks, *targets_of(state, decision), *(sinks or ())}):
        tell(f"Asking {name}", 0, 0)
        wrote = decision.held_after.get(name)
        one = _known(state, decision, name, wrote)
        if one is None:
            assert wrote is not None, "otherwise it is known"
            one = _answer(root, state, handles, (sinks or {}).get(name), name, wrote)
        found.append(SinkInstant(sink=name, wrote=wrote, instant=one))
    return JobInstant(
        checkpoint=str(root),
        job=state.lineage.job,
        lineage=state.lineage_id,
        generation=state.lineage.generation,
        epoch=wanted,
        at=_time_of(root, state, number),
        newest=newest,
        sinks=tuple(found),
        notes=tuple(_notes(state, sinks)),
    )


def _newest_done(root: Place, state: State, complete: tuple[int, ...]) -> Epoch:
    """By the ledger; of the newest one by Spark's log and the journal, because its record does not say it yet."""
    if state.lineage.guarantee != "exactly_once" or state.newest is None:
        what = "has no decided epoch" if state.newest is None else f"is {state.lineage.guarantee}"
        raise CheckpointRefused(
            "nothing_decided",
            f"The job {what}, so its ledger does not say what belongs to an epoch.",
            where=Where(job=state.lineage.job, path=str(root)),
            safe=UNCHANGED,
            next="This command needs a job with guarantee='exactly_once' that has completed at least one epoch.",
        )
    opened = state.open
    if opened is None or opened.epoch not in complete:
        return state.done_through
    return opened.epoch if journal.is_committed(journal.read(root), opened.epoch) else state.done_through


def _checked(root: Place, state: State, newest: Epoch, epoch: int | None) -> Epoch:
    """The epoch that is meant, if it is done and retained."""
    retained = [decision.epoch for _, decision in state.decisions]
    wanted = newest if epoch is None else Epoch(epoch)
    known = [one for one in retained if one <= newest]
    if wanted in known:
        return wanted
    where = Where(job=state.lineage.job, path=str(root))
    span = f"Epochs that can be named: {known[0]} to {known[-1]}." if known else "No epoch is done yet."
    if wanted in retained:
        raise CheckpointRefused(
            "open_decision",
            f"Epoch {wanted} is decided but not known to be in every sink: it is being committed, or its driver died.",
            where=where,
            safe=UNCHANGED,
            next=f"Wait for it, or start the job so that recovery finishes it. {span}",
        )
    if wanted >= state.next_epoch or not known:
        raise BadConfig("unknown_epoch", f"Epoch {wanted} is not decided yet.", where=where, safe=UNCHANGED, next=span)
    began = ""
    if state.lineage.parent is not None:
        began = f" This lineage continues after epoch {state.lineage.first_epoch} of {state.lineage.parent['lineage']}."
    raise BadConfig(
        "epoch_not_retained",
        f"Epoch {wanted} is not retained in the ledger.{began}",
        where=where,
        safe=UNCHANGED,
        next=f"{span} fp.Checkpoint(keep_epochs=…) sets how many are kept.",
    )


def _known(state: State, decision: Decision, name: str, wrote: Epoch | None) -> Instant | None:
    """What the ledger itself says; None if the target has to be asked."""
    lineage, then = state.lineage, targets_of(state, decision)
    if name not in then:
        return Instant(exact=True, why="the job did not write to it yet")
    if then[name] != state.sinks.get(name):
        return Instant(why="the sink has another target now than it had in that epoch")
    if wrote is not None:
        return None
    if lineage.parent is not None:
        began = f"it continues after epoch {lineage.first_epoch} of lineage {lineage.parent['lineage']}"
        return Instant(why=f"this lineage had no rows for it yet: {began}, whose rows it held")
    if lineage.first_epoch:
        return Instant(why=f"what it held was written before fencepost took over in epoch {lineage.first_epoch}")
    return Instant(exact=True, why="the job had no rows for it yet")


def _answer(  # noqa: PLR0917 - all that a question needs
    root: Place,
    state: State,
    handles: Mapping[Epoch, tuple[Handle, ...]],
    sink: Sink | None,
    name: str,
    epoch: Epoch,
) -> Instant:
    mine = {number: tuple(one for one in found if one.sink == name) for number, found in handles.items()}
    asked = Asked(
        lineage=state.lineage_id,
        generation=state.lineage.generation,
        ancestors=frozenset(state.lineage.ancestors),
        epochs={number: found for number, found in mine.items() if found},
        last=state.last,
        folder=root / "fencepost" / state.lineage_id,
        whole=state.lineage.first_epoch == 0 and min(handles) == 0,
    )
    if sink is None:
        return _by_the_ledger(asked, epoch)
    found = _asked(sink, state.lineage.job, asked, epoch)
    if found.identity is not None and found.identity != state.sinks[name].target:
        there = "it was replaced by another" if found.identity else "it has no identity, so it is gone or was emptied"
        return replace(found, text="", exact=False, why=f"its target is not the one in the ledger; {there}")
    return found


def _by_the_ledger(asked: Asked, epoch: Epoch) -> Instant:
    if not any(KAFKA in handle.body for found in asked.epochs.values() for handle in found):
        return Instant(why=NOT_ASKED)
    from fencepost.connectors.kafka.offsets import instant  # noqa: PLC0415 - wanted only where there is Kafka

    return instant(asked, epoch)


def _asked(sink: Sink, job: str, asked: Asked, epoch: Epoch) -> Instant:
    session = None
    try:
        session = sink.session(job)
        return session.as_of(asked, epoch)
    except FencepostError as error:
        return Instant.unheard(error.what.rstrip("."))
    except Exception as error:  # noqa: BLE001 - a user's own sink may raise anything, which is not an answer
        return Instant.unheard(f"asking it failed: {place_of(error)}")
    finally:
        if session is not None:
            session.close()


def _time_of(root: Place, state: State, number: int) -> str:
    try:
        return decode(store_at(root).read(record_name(state.lineage_id, number)) or b"").at
    except (Damaged, CheckpointRefused, OSError):
        return ""


def _notes(state: State, sinks: Mapping[str, Sink] | None) -> Iterator[str]:
    lineage = state.lineage
    if lineage.parent is not None:
        yield (
            f"Epochs are those of this lineage, which continues after epoch {lineage.first_epoch} of lineage "
            f"{lineage.parent['lineage']}: later epochs of that one had the same numbers."
        )
    if state.sealed is not None:
        where = f" in {state.sealed.place}" if state.sealed.place else ""
        yield f"This lineage is sealed after epoch {state.sealed.epoch}: it continues{where} as {state.sealed.next}."
    if sinks is None:
        yield "No target was asked: name the job's FILE to include them."
        return
    for name in sorted({*state.sinks} - {*sinks}):
        yield f"Sink {name} is in the ledger but not in the job: its target was not asked."
