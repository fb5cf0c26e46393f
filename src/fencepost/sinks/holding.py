"""What a target holds, asked by somebody who writes nothing: `fencepost verify`.

    held      the target itself shows the epoch
    missing   the target answered, and does not have it
    unknown   it cannot tell, or did not answer

Never guesses: a target that keeps no memory of epochs says unknown, and that is no reproach.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fencepost.ledger import Place
from fencepost.protocol.records import Epoch, Handle


class Holding(enum.Enum):
    """Whether a target holds an epoch."""

    HELD = "held"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the ledger says of one sink, without anybody having taken over."""

    lineage: str
    epochs: Mapping[Epoch, tuple[Handle, ...]]
    """Decided epochs that had rows for this sink, oldest first."""
    generation: int = 0
    ancestors: frozenset[str] = frozenset()
    last: int = 0
    """The ledger's newest record: it knows of no writer with a higher number."""
    folder: Place | None = None
    """The lineage's folder in the checkpoint, for what people said there."""


@dataclass(frozen=True, slots=True)
class Stray:
    """Something of this lineage that the target holds, and that nothing in `Asked` names."""

    text: str
    """For people."""
    names: frozenset[str]
    """A decision that was made meanwhile would name it by one of these: a handle's id, or all ids of an epoch."""
    epoch: Epoch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What a target says. The mistake people make: taking unknown for held."""

    holdings: Mapping[Epoch, Holding]
    identity: str | None = None
    """As `preflight` returns it; "" if the target has none, None if that was not looked at."""
    strays: tuple[Stray, ...] = ()
    stranger: str = ""
    """A lineage that is neither ours nor an ancestor's, and that marked the target as its own."""
    heard: bool = True
    """Did the target answer?"""
    why: str = ""
    """What stands behind an answer that is not held, for people."""
    reasons: Mapping[Epoch, str] = field(default_factory=dict)
    """The same, where an epoch has its own."""


def alike(asked: Asked, holding: Holding) -> dict[Epoch, Holding]:
    """The same answer for every epoch."""
    return dict.fromkeys(asked.epochs, holding)


def unheard(asked: Asked, why: str) -> Examined:
    """The target did not answer."""
    return Examined(holdings=alike(asked, Holding.UNKNOWN), heard=False, why=why)


def together(found: Iterable[Holding]) -> Holding:
    """An epoch of several units is held if each of them is."""
    known = set(found)
    for worst in (Holding.MISSING, Holding.UNKNOWN):
        if worst in known:
            return worst
    return Holding.HELD
