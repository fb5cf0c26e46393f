"""What a job says to the person who started it: one line that moves on a terminal, plain lines elsewhere, a summary.

    fencepost: job wordcount runs: FileSource[lines] → sqlite:counts, exactly_once
    fencepost: epoch 41 · 12,400 records in, 1,020/s · 310 rows out · lag 0
    fencepost: job wordcount is done: 42 epochs, 12,480 records in, 312 rows out (sqlite:counts 312), 0 dead letters, …

On stderr: stdout is the user's. Never holds up an epoch, and never raises: a closed terminal is silence.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from typing import Final, Protocol, TextIO

from fencepost.observe.events import Event, Kind
from fencepost.observe.journal import JSON, STYLE
from fencepost.observe.terminal import LiveLine

KINDS: Final = (Kind.COMMITTED, Kind.COMPLETE)
LIVE_S: Final = 0.5
"""Between two looks on a terminal."""
LINE_S: Final = 10.0
"""Between two lines elsewhere."""
LOOK_S: Final = 1.0
"""Between two looks there."""


class ReadSoFar(Protocol):
    """What is known of the input."""

    records: int
    lag: int | None


def wanted(quiet: bool | None, *, ours: bool) -> bool:
    """Does a job speak? By default where the session is ours too."""
    if quiet is not None:
        return not quiet
    # A supervisor that was told so has lines of JSON on stderr, and nothing else.
    return ours and os.environ.get(STYLE) != JSON


class Console:
    """Speaks for one run of a job."""

    def __init__(
        self, job: str, guarantee: str, sinks: Iterable[str], dead: Iterable[str], out: TextIO | None = None
    ) -> None:
        self._job = job
        self._guarantee = guarantee
        self._sinks = list(sinks)
        self._dead = frozenset(dead)
        self._line = LiveLine(out)
        self._began = self._told = self._looked = time.monotonic()
        self._before = 0
        self._rate = 0.0
        self._epochs = 0
        self._epoch: int | None = None
        self._rows: Counter[str] = Counter()
        self._all_rows = 0

    def note(self, event: Event) -> None:
        """Something happened to the job."""
        if event.kind is Kind.COMMITTED and event.sink is not None:
            self._rows[event.sink] += event.rows or 0
        elif event.kind is Kind.COMPLETE and not event.again:  # a start tells of the newest epoch before it once more
            self._epochs += 1
            self._epoch = event.epoch
            self._all_rows += event.rows or 0

    @property
    def _rows_out(self) -> int:
        """By the sinks' commits, with what recovery finished; without decisions there are none, and rows are sent."""
        return sum(self._rows.values()) or self._all_rows

    def start(self, sources: Iterable[str]) -> None:
        """The first line, once the query runs: a job that is refused has an error to show, and nothing else."""
        self._began = self._told = time.monotonic()
        self.say(f"job {self._job} runs: {', '.join(sources)} → {', '.join(self._sinks)}, {self._guarantee}")

    @property
    def is_due(self) -> bool:
        """Is it time to look at the input again?"""
        return time.monotonic() - self._looked >= (LIVE_S if self._line.is_live else LOOK_S)

    def tick(self, intake: ReadSoFar | None) -> None:
        """Show how far it is."""
        now = time.monotonic()
        self._looked, passed = now, now - self._told
        if passed < (LIVE_S if self._line.is_live else LINE_S):
            return
        if intake is not None:
            self._rate, self._before = (intake.records - self._before) / passed, intake.records
        self._told = now
        text = " · ".join(self._parts(intake))
        if self._line.is_live:
            self._line.show(text)
        elif self._epoch is not None:
            self.say(text)

    def _parts(self, intake: ReadSoFar | None) -> Iterable[str]:
        yield "no epoch yet" if self._epoch is None else f"epoch {self._epoch}"
        if intake is not None:
            yield f"{intake.records:,} records in, {self._rate:,.0f}/s"
        yield f"{self._rows_out:,} rows out"
        if intake is not None and intake.lag is not None:
            yield f"lag {intake.lag:,}"
        yield ", ".join(self._sinks)

    def end(self, how: str, intake: ReadSoFar | None) -> None:
        """The summary."""
        by_sink = ", ".join(f"{name} {self._rows[name]:,}" for name in self._sinks) if self._rows else ""
        letters = sum(self._rows[name] for name in self._dead)
        facts = [
            f"{self._epochs:,} epoch{'' if self._epochs == 1 else 's'}",
            *([f"{intake.records:,} record{'' if intake.records == 1 else 's'} in"] if intake is not None else []),
            f"{self._rows_out:,} rows out" + (f" ({by_sink})" if by_sink else ""),
            *([f"{letters:,} dead letter{'' if letters == 1 else 's'}"] if self._dead else []),
            f"{time.monotonic() - self._began:.1f} s",
            self._guarantee,
        ]
        self.say(f"job {self._job} {how}: {', '.join(facts)}")

    def say(self, text: str) -> None:
        """One line that stays."""
        self._line.say(text)
