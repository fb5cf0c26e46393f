"""Pictures of epochs: as plain shapes, which a template draws; as SVG for a notebook; as letters for a terminal.

Numbers only, no text of a job's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.observe.history import Epoch

PHASES: Final = ("tasks", "pre-commit", "vote", "decide", "commit")
HEIGHT: Final = 120.0
STEP: Final = 14.0
WIDTH: Final = 10.0
SHORTEST: Final = 2.0


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a bar."""

    phase: str
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One epoch."""

    epoch: Epoch
    x: float
    boxes: tuple[Box, ...]
    outcome: str
    """complete, again (complete, but tried more than once), decided, claimed, begun or failed."""


@dataclass(frozen=True, slots=True)
class Strip:
    """Bars beside each other, oldest first."""

    bars: tuple[Bar, ...]
    width: float
    top_s: float
    """What the full height stands for, in seconds; longer bars are cut there."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One figure over the same epochs."""

    points: str
    """As SVG wants them."""
    last: float | None
    top: float


def outcome_of(epoch: Epoch) -> str:
    """In one word, for the colour and the mark."""
    if epoch.standing == "complete" and ((epoch.attempts or 1) > 1 or epoch.failure is not None):
        return "again"
    return epoch.standing


def strip_of(epochs: Sequence[Epoch]) -> Strip:
    """Each epoch a bar of its phases, as high as it took."""
    totals = sorted(sum(one.phases.values()) for one in epochs if one.phases)
    # One slow start must not press all others flat: the tenth that took longest may be cut.
    top = totals[min(len(totals) - 1, int(0.9 * len(totals)))] * 1.25 if totals else 1.0
    bars = tuple(_bar(one, index * STEP, top or 1.0) for index, one in enumerate(epochs))
    return Strip(bars, max(1, len(epochs)) * STEP, top)


def _bar(epoch: Epoch, x: float, top_s: float) -> Bar:
    boxes, y = [], HEIGHT
    for phase in PHASES:
        took = epoch.phases.get(phase)
        if took is not None and y > 0:
            height = min(y, max(SHORTEST, HEIGHT * took / top_s))
            y -= height
            boxes.append(Box(phase, round(y, 2), round(height, 2)))
    if not boxes:
        boxes = [Box("unknown", HEIGHT - 12, 12.0)]
    return Bar(epoch, round(x, 1), tuple(boxes), outcome_of(epoch))


LETTERS: Final = "▁▂▃▄▅▆▇█"
MARKS: Final = {"failed": "x", "begun": "·", "decided": "o", "claimed": "o"}
"""Epochs that are not complete."""
INKS: Final = {
    "tasks": "#9aa8a5",
    "pre-commit": "#6fb7ae",
    "vote": "#2b8a80",
    "decide": "#d08a1d",
    "commit": "#4b79c9",
    "unknown": "#c3cbc9",
}
"""That can be seen on a light and on a dark ground."""


def letters_of(epochs: Sequence[Epoch]) -> str:
    """Each epoch a letter: as high as it took, or a mark if it is not complete."""
    known = sorted(one.seconds for one in epochs if one.seconds is not None)
    top = known[min(len(known) - 1, int(0.9 * len(known)))] if known else 0.0
    return "".join(MARKS.get(one.standing) or _letter(one.seconds, top) for one in epochs)


def _letter(seconds: float | None, top: float) -> str:
    if seconds is None or top <= 0:
        return LETTERS[0]
    return LETTERS[min(len(LETTERS) - 1, int(seconds / top * (len(LETTERS) - 1)))]


def svg_of(epochs: Sequence[Epoch]) -> str:
    """The strip by itself, with its colours in it."""
    strip = strip_of(epochs)
    boxes = "".join(
        f'<rect x="{bar.x}" y="{box.y}" width="{WIDTH}" height="{box.height}" fill="{INKS[box.phase]}"/>'
        for bar in strip.bars
        for box in bar.boxes
    )
    return (
        f'<svg viewBox="0 0 {strip.width} {HEIGHT}" width="{strip.width}" height="{HEIGHT / 2}" role="img" '
        f'preserveAspectRatio="none" aria-label="{len(epochs)} epochs">{boxes}</svg>'
    )


def curve_of(values: Sequence[float | None], height: float = 40.0) -> Curve:
    """A line over as many steps as there are values; unknown ones are left out."""
    known = [value for value in values if value is not None]
    top = _round_up(max(known, default=0.0))
    points = [
        f"{index * STEP + WIDTH / 2:.1f},{height - height * value / (top or 1):.1f}"
        for index, value in enumerate(values)
        if value is not None
    ]
    return Curve(" ".join(points), known[-1] if known else None, top)


def _round_up(value: float) -> float:
    """To a number that is easy to read: 1, 2 or 5 and zeros."""
    if value <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(size * step for step in (1, 2, 5, 10) if size * step >= value)
