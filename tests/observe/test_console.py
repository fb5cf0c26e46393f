"""What a job says while it runs: lines in a pipe, one line that moves on a terminal, nothing where nobody asked."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.errors import now
from fencepost.observe import console, journal
from fencepost.observe.console import Console
from fencepost.observe.events import Event, Kind


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def event(kind: Kind, **facts: Any) -> Event:
    return Event(kind=kind, job="wc", at=now(), pid=1, **facts)


def told(out: io.StringIO, records: int = 6) -> str:
    """One epoch of six records: four rows, and a dead letter."""
    made = Console("wc", "exactly_once", ["sqlite:counts", "sqlite:dead"], ["sqlite:dead"], out)
    made.start(["FileSource[lines]"])
    made.note(event(Kind.COMMITTED, epoch=0, sink="sqlite:counts", rows=4))
    made.note(event(Kind.COMMITTED, epoch=0, sink="sqlite:dead", rows=1))
    made.note(event(Kind.COMPLETE, epoch=0, rows=5))
    made.note(event(Kind.COMPLETE, epoch=0, rows=5, again=True))  # of a run before: not counted
    made.tick(SimpleNamespace(records=records, lag=7))
    made.end("is done", SimpleNamespace(records=records, lag=7))
    return out.getvalue()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "LIVE_S", 0.0)
    monkeypatch.setattr(console, "LINE_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")


def test_in_a_pipe_there_are_plain_lines() -> None:
    first, progress, summary = told(io.StringIO()).splitlines()
    assert "fencepost: job wc runs: FileSource[lines] → sqlite:counts, sqlite:dead, exactly_once" == first
    assert progress.startswith("fencepost: epoch 0 · 6 records in, ")
    assert progress.endswith(" · 5 rows out · lag 7 · sqlite:counts, sqlite:dead")
    assert summary.startswith(
        "fencepost: job wc is done: 1 epoch, 6 records in, 5 rows out (sqlite:counts 4, sqlite:dead 1), 1 dead letter, "
    )
    assert summary.endswith(" s, exactly_once")


def test_on_a_terminal_one_line_moves_and_the_summary_takes_its_place() -> None:
    text = told(Terminal())
    assert 3 == text.count("\r\x1b[K")
    assert 2 == text.count("\n")


def test_a_terminal_that_is_gone_is_silence() -> None:
    out = io.StringIO()
    made = Console("wc", "exactly_once", ["a"], [], out)
    out.close()
    made.say("nobody reads this")


@pytest.mark.parametrize(
    ("quiet", "ours", "speaks"),
    [(None, True, True), (None, False, False), (True, True, False), (False, False, True)],
)
def test_a_job_speaks_in_its_own_session_or_where_it_is_asked_to(quiet: bool | None, ours: bool, speaks: bool) -> None:
    assert speaks == console.wanted(quiet, ours=ours)


def test_a_driver_that_logs_json_prints_no_text_between(monkeypatch: pytest.MonkeyPatch) -> None:
    assert console.wanted(None, ours=True)
    monkeypatch.setenv(journal.STYLE, journal.JSON)
    assert not console.wanted(None, ours=True)
