"""What a comparison of ledger, Spark's log and sinks says: a row per epoch, and what was found. Pure.

    agrees       the record, Spark's log and every sink that can tell say the same
    in flight    a driver lives, and is between the decision and Spark's commits/N
    unfinished   decided, its driver is gone: recovery finishes it at the next start
    in doubt     a sink did not answer
    differs      two of them say different things

Never accuses after one look: what a running job changed meanwhile is no disagreement.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

Verdict = Literal["agrees", "in flight", "unfinished", "in doubt", "differs"]
Text = Literal["same", "differs", "missing", "retired"]
"""An entry of Spark's log, beside the text of the decision; Spark retires old ones."""
Word = Literal["held", "missing", "cannot tell", "no answer", "not asked"]
"""What is known of a sink that had rows in an epoch."""


class Weight(enum.Enum):
    """What a finding makes of the whole."""

    DIFFERS = "differs"
    DOUBT = "in doubt"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be, or cannot be known now."""

    code: str
    what: str
    next: str
    weight: Weight = Weight.DIFFERS
    place: str = ""
    """The file, or the sink."""
    epochs: tuple[int, ...] = ()
    """Those that it is about; none: about all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One decided epoch."""

    epoch: int
    record: int
    """The number of its decision; that it stands whole and in order was seen when the ledger was read."""
    offsets: Text
    commits: Text
    sinks: Mapping[str, Word]
    """Those that had rows in it."""
    in_flight: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """All that was seen. The mistake people make: reading `agrees` as "every sink was asked"; the notes say who was."""

    checkpoint: str
    job: str = ""
    lineage: str = ""
    rows: tuple[Row, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        if self.findings:
            return self._worst(self.findings)
        return "in flight" if any(row.in_flight for row in self.rows) else "agrees"

    def verdict_of(self, row: Row) -> Verdict:
        """Of one epoch."""
        about = [finding for finding in self.findings if row.epoch in finding.epochs]
        if about:
            return self._worst(about)
        if row.in_flight:
            return "in flight"
        return "in doubt" if "no answer" in row.sinks.values() else "agrees"

    def _worst(self, findings: Iterable[Finding]) -> Verdict:
        return next(weight.value for weight in Weight if weight in {finding.weight for finding in findings})

    def said_twice(self, before: Verified) -> Verified:
        """Only what both looks found: a running job may have moved on between two questions of one look."""
        earlier = {(finding.code, finding.place): finding.epochs for finding in before.findings}
        both = []
        for finding in self.findings:
            known = earlier.get((finding.code, finding.place))
            epochs = tuple(epoch for epoch in finding.epochs if known is not None and epoch in known)
            if known is not None and bool(epochs) == bool(finding.epochs):
                both.append(replace(finding, epochs=epochs))
        return replace(self, findings=tuple(both))


def span(epochs: Iterable[int]) -> str:
    """Numbers for people: 3–7, 9."""
    parts: list[list[int]] = []
    for epoch in sorted(epochs):
        if parts and parts[-1][-1] == epoch - 1:
            parts[-1] = [parts[-1][0], epoch]
        else:
            parts.append([epoch])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts)
