"""Which transactions hang, by what coordinators and partitions say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fencepost.connectors.kafka.fate import Held, Transaction
from fencepost.connectors.kafka.verdict import SLACK_MS, abandoned, overdue

ONE = Transaction("x", "Ongoing", pid=7, epoch=1, started_ms=1000, timeout_ms=60_000, partitions=(("t", 0),))
HELD = Held("t", 0, pid=7, epoch=1, first=5, last_ms=1000)
LATE = 1000 + 60_000 + SLACK_MS


@pytest.mark.parametrize(
    ("found", "now_ms", "hangs"),
    [
        (ONE, LATE, False),
        (ONE, LATE + 1, True),
        (replace(ONE, state="PrepareCommit"), LATE + 1, True),
        (replace(ONE, state="CompleteAbort"), LATE + 1, False),
        (replace(ONE, started_ms=-1), LATE + 1, False),
    ],
)
def test_overdue_is_what_its_coordinator_should_have_ended(found: Transaction, now_ms: int, hangs: bool) -> None:
    assert hangs == bool(overdue([found], now_ms))


@pytest.mark.parametrize(
    ("known", "after", "older_than_ms", "hangs"),
    [
        ([], [HELD], 2000, True),
        ([replace(ONE, partitions=(("t", 1),))], [HELD], 2000, True),
        ([ONE], [HELD], 2000, False),
        ([], [], 2000, False),
        ([], [replace(HELD, first=9)], 2000, False),
        ([], [HELD], 1000, False),
    ],
    ids=["lost", "other partition", "known", "ended meanwhile", "another one meanwhile", "young"],
)
def test_abandoned_is_what_stays_open_and_no_coordinator_knows(
    known: list[Transaction], after: list[Held], older_than_ms: int, hangs: bool
) -> None:
    assert hangs == bool(abandoned([HELD], known, after, older_than_ms))
