"""How a sabotage is described, and hunted down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fencepost.protocol import effects as e
from fencepost_proof.model.explore import Explorer, Found
from fencepost_proof.model.swap import Swap, remembered, swapped
from fencepost_proof.model.targets import Job, SinkSpec
from fencepost_proof.model.world import World

PASS = object()
"""What `tell` says when the world should answer."""


def meddle(step: e.Step[Any], tell: Callable[[e.Effect[Any]], Any], hear: Callable[..., Any]) -> e.Step[Any]:
    """Run `step`; `tell` may answer an effect by itself, `hear` may change an answer."""
    answer: Any = None
    while True:
        try:
            effect = step.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = tell(effect)
        if answer is PASS:
            answer = hear(effect, (yield effect))


def as_is(effect: e.Effect[Any], answer: Any) -> Any:
    """Hear what was said."""
    return answer


class Sabotage(NamedTuple):
    """One way to be wrong."""

    name: str
    what: str
    sinks: tuple[SinkSpec, ...]
    swaps: tuple[Swap, ...] = ()
    world: type[World] = World
    epochs: int = 3
    upkeep: str = ""
    overlap: bool = False


class Caught(NamedTuple):
    """How a sabotage was found out."""

    faults: tuple[str, ...]
    by: str
    ends: int
    """Different ends of histories looked at until then."""


def hunt(sabotage: Sabotage, faults: int = 2) -> Caught | None:
    """Look for a violation with no fault, then one, then two; None if the variant gets away."""
    ends = 0
    for k in range(faults + 1):
        job = Job(sabotage.sinks, sabotage.epochs, sabotage.upkeep, sabotage.overlap)
        explorer = Explorer(job, sabotage.world, stop=True)
        with swapped(*remembered(), *sabotage.swaps):
            try:
                explorer.run(k)
            except Found as found:
                if "TypeError" in str(found.violation):
                    raise RuntimeError(f"{sabotage.name} does not fit the code any more") from found
                return Caught(found.faults, str(found.violation), ends + explorer.ends)
        ends += explorer.ends
    return None
