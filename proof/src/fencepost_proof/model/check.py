"""What must hold: after each effect where it can be seen at once, and at the end of each history.

    became_visible   E1 nothing visible before its decision, E6 no orphan committed, each record once and in order
    appended         E2, E3, E4, E5 at the moment of a decision; E7 no record of an old writer in the live ledger
    aborted          E6 no decided handle aborted
    at_the_end       every record once in every sink, one attempt per epoch everywhere, nothing left over

Never looks into a driver: only at the world.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from fencepost.protocol.format import Damaged
from fencepost.protocol.order import State, fold
from fencepost.protocol.records import Decision, Handle, Lineage, decode

if TYPE_CHECKING:
    from fencepost_proof.model.world import World

Segment = tuple[int, int, str]
"""First record, end, and the attempt that made the rows."""


class Violation(Exception):
    """A promise is broken. `kind` is the column of the report: lost, duplicated, torn, early or stuck."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind
        self.what = what


def offsets_text(end: int) -> str:
    """`offsets/N`, as far as the protocol reads it."""
    return f'v1\n{{"batchWatermarkMs":0}}\n{end}'


def end_of(offsets: str | None) -> int:
    """Where an epoch ends."""
    return int((offsets or "\n\n0").split("\n")[2])


def snapshot_text(attempt: str) -> str:
    """`commits/N`: it names the state by the attempt that wrote it."""
    return f"v2\n{attempt}"


def attempt_of(snapshot: str | None) -> str:
    """Whose state a `commits/N` names."""
    return (snapshot or "\n").split("\n")[1]


def ledger(world: World, lineage: str | None = None) -> State:
    """A ledger as an independent reader folds it; by default the one that counts."""
    facts = world.facts
    lineage = lineage or facts[("metadata",)]
    numbers = world.records(lineage)
    newest = decoded(facts[("ledger", numbers[-1], lineage)]).oldest
    wanted = [0, *range(max(1, newest), numbers[-1] + 1)] if numbers[-1] else [0]
    try:
        return folded(tuple(facts[("ledger", number, lineage)] for number in wanted))
    except KeyError as error:
        raise Violation("stuck", f"ledger record {error.args[0][1]} is missing") from error
    except Damaged as error:
        raise Violation("stuck", f"the ledger is damaged: {error}") from error


decoded = lru_cache(maxsize=100_000)(decode)


@lru_cache(maxsize=100_000)
def folded(chain: tuple[bytes, ...]) -> State:
    """The state that a chain of records says."""
    return fold((decoded(data), data) for data in chain)


def generation_of(world: World, lineage: str) -> int:
    """How many times the job was begun anew before this lineage."""
    body = decoded(world.facts[("ledger", 0, lineage)]).body
    assert isinstance(body, Lineage)
    return body.generation


def overwrites(world: World) -> bool:
    """Was this lineage begun to write once more what the targets hold already?"""
    return ledger(world).lineage.fate == "overwrite"


def became_visible(world: World, handle: Handle, seen: tuple[Segment, ...], segment: Segment) -> None:
    """Rows of a sink became visible, after `seen`."""
    state = ledger(world)
    if state.open is None or handle.id not in [h.id for h in state.open.handles]:
        raise Violation("early", f"rows of {handle.id} became visible and no open decision names them")
    end = seen[-1][1] if seen else 0
    if segment[0] != end:
        kind = "lost" if segment[0] > end else "duplicated"
        raise Violation(kind, f"{handle.sink} has records up to {end}, then came {segment[0]} to {segment[1]}")


def aborted(world: World, handle: Handle) -> None:
    """A handle is about to be aborted."""
    opened = ledger(world).open
    if opened is not None and handle.id in [h.id for h in opened.handles]:
        raise Violation("lost", f"{handle.id} is decided and was aborted")


def appended(world: World, lineage: str, number: int, data: bytes) -> None:
    """A record was created. One in a hole below the live ledger counts for nothing, unless its driver acts on it."""
    if world.records(lineage)[-1] != number:
        return
    state = ledger(world, lineage)  # the fold itself checks E2, E5 and E7
    body = decoded(data).body
    if isinstance(body, Decision) and body.cause != "restore":
        if lineage != world.facts[("metadata",)]:
            raise Violation("duplicated", "two lineages decide: their drivers never meet in one ledger")
        _decided(world, state, body)


def _decided(world: World, state: State, decision: Decision) -> None:
    before = state.decisions[-2][1] if len(state.decisions) > 1 else None
    rows = {sink.name: world.facts[("rows", sink.name)] for sink in world.sinks}
    end = end_of(before.offsets) if before else 0
    for name, seen in rows.items():
        # Where rows of later epochs are there from before, they are overwritten, or nothing is written until they end.
        more = (seen[-1][1] if seen else 0) - end
        if more < 0 or (more > 0 and decision.cause != "quiet" and not overwrites(world)):
            raise Violation("torn", f"epoch {decision.epoch} was decided before {name} had all of the last one (E3)")
    attempt = attempt_of(decision.snapshot)
    if decision.cause == "rescale":
        _same_state(world, attempt, attempt_of(before.snapshot if before else None))
        return
    wanted = (end, end_of(decision.offsets), attempt)
    chain = world.facts.get(("state", attempt))
    loaded = world.facts.get(("state", attempt_of(before.snapshot))) if before else ()
    if chain is None or loaded is None or chain != (*loaded, wanted):
        raise Violation("torn", f"the state of epoch {decision.epoch} is not the last one and its rows (E4)")
    _check_handles(world, state, decision, wanted)


def _same_state(world: World, attempt: str, before: str) -> None:
    if world.facts.get(("state", attempt)) != world.facts.get(("state", before)):
        raise Violation("torn", "a rescale changed the state (E4)")


def _check_handles(world: World, state: State, decision: Decision, wanted: Segment) -> None:
    for handle in decision.handles:
        sink = world.sink(handle.sink)
        if sink.shape == "apply":
            segment = world.staged(handle, state.writer)
        else:
            fact = world.facts.get(("tx" if sink.shape == "transaction" else "file", sink.name, handle.id))
            if fact is None:
                if sink.shape == "transaction":
                    continue  # lost by the sink since the vote: that is its right
                raise Violation("early", f"{handle.id} was decided and is not pre-committed")
            segment = fact[-1]
        if segment != wanted:
            raise Violation("torn", f"{handle.id} holds {segment}, epoch {decision.epoch} is {wanted} (E4, E5)")


def at_the_end(world: World, epochs: int) -> None:
    """Faults are over, the workload is done, and one more recovery ran."""
    state = ledger(world)
    newest = state.newest
    # A person who woke late rescales once more: that is an epoch, too.
    last = newest.epoch - (newest.cause == "rescale" and newest.epoch >= epochs) if newest else None
    if newest is None or state.open is not None or state.done_through != newest.epoch or last != epochs - 1:
        raise Violation("stuck", f"epochs up to {epochs - 1} should be decided and done")
    for log, text in (("offsets", newest.offsets), ("commits", newest.snapshot)):
        if world.text(log, newest.epoch) != text:
            raise Violation("torn", f"Spark's {log}/{newest.epoch} is not the ledger's")
    folded_once = world.facts.get(("state", attempt_of(newest.snapshot)))
    for sink in world.sinks:
        rows = world.facts[("rows", sink.name)]
        end = rows[-1][1] if rows else 0
        if end != end_of(newest.offsets) or [r[0] for r in rows] != [0, *(r[1] for r in rows[:-1])]:
            raise Violation("lost", f"{sink.name} has {rows}, decided is up to {end_of(newest.offsets)}")
        # After a quiet rewind the rows are the parent's, and the state was made again: of the same records.
        as_seen = _parts if state.lineage.fate == "quiet" else tuple
        if as_seen(rows) != as_seen(folded_once or ()):
            raise Violation("torn", f"{sink.name} and the state come from different attempts (E4)")
        if world.orphans(sink.name):
            raise Violation("stuck", f"{sink.name} still holds orphans")
    for kind in ("staged", "open"):
        if world.below(kind):
            raise Violation("stuck", f"left over: {world.below(kind)}")


def _parts(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Everything from the first record to the last, whoever made it and in whichever steps."""
    ends = [segment[1] for segment in segments]
    whole = [segment[0] for segment in segments] == [0, *ends[:-1]]
    return ((0, ends[-1], ""),) if whole else segments
