"""How far a long command is: one line that moves on a terminal, nothing in a pipe, and never an error of its own."""

from __future__ import annotations

import io
import os
import pty
import termios
import threading
from pathlib import Path
from typing import Any

import pytest
from screens import OVER, screen

from fencepost.observe import terminal
from fencepost.observe.terminal import LiveLine, ProgressLine
from fencepost.store import each


@pytest.fixture(autouse=True)
def _a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "EVERY_S", 0.001)
    monkeypatch.setenv("TERM", "xterm")


def test_on_a_terminal_one_line_moves_and_nothing_of_it_is_left() -> None:
    with screen() as seen:
        with ProgressLine(seen.out) as tell:
            tell("Copying", 1, 4)
            seen.until("Copying: 1 of 4 files, 25%, ")
            tell("Copying", 1_200, 4_000)
            seen.until("Copying: 1,200 of 4,000 files, 30%, ")
            tell("Starting Spark", 0, 0)
            seen.until("Starting Spark: 0 s")
        seen.out.write("the result\n")
        seen.out.flush()
        text = seen.until("the result")
    assert f"{OVER}the result" in text
    assert "\n" not in text.partition("the result")[0]


def test_a_line_is_as_long_as_the_terminal_is_wide() -> None:
    with screen(columns=21) as seen:
        LiveLine(seen.out).show("0123456789" * 5)
        seen.out.write("|")
        seen.out.flush()
        assert f"{OVER}{'0123456789' * 2}|" == seen.until("|")


def test_a_line_that_stays_is_not_glued_to_the_moving_line_of_another_process() -> None:
    with screen() as seen:
        LiveLine(seen.out).show("epoch 6")
        LiveLine(seen.out).say("standby is warm")
        assert f"{OVER}epoch 6{OVER}fencepost: standby is warm\r\n" == seen.until("\n")


def told(out: Any, **settings: Any) -> None:
    before = set(threading.enumerate())  # another test may have left one that its terminal holds up
    with ProgressLine(out, **settings) as tell:
        tell("Copying", 1, 4)
        new = {one.name for one in set(threading.enumerate()) - before}
        assert "fencepost progress" not in new, "something would be shown"


def test_in_a_pipe_nothing_is_written() -> None:
    out = io.StringIO()
    told(out)
    assert "" == out.getvalue()


@pytest.mark.parametrize(("settings", "term"), [({"is_silent": True}, "xterm"), ({}, "dumb")])
def test_nor_on_a_terminal_where_nobody_asked_or_that_has_no_such_lines(
    settings: dict[str, bool], term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    with screen() as seen:
        told(seen.out, **settings)
        monkeypatch.setenv("TERM", "xterm")
        with pytest.raises(AssertionError, match="would be shown"):
            told(seen.out)


def test_a_terminal_that_goes_away_fails_nothing() -> None:
    reader, writer = pty.openpty()
    with ProgressLine(open(writer, "w", encoding="utf-8", closefd=False)) as tell:
        tell("Copying", 1, 4)
        os.close(reader)
        [shown] = [one for one in threading.enumerate() if one.name == "fencepost progress"]
        tell("Copying", 2, 4)
        assert shown.is_alive()
    assert not shown.is_alive()
    os.close(writer)


def test_a_terminal_that_takes_no_more_text_does_not_hold_the_command_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "PATIENCE_S", 0.01)
    with screen() as seen:
        termios.tcflow(seen.out.fileno(), termios.TCOOFF)  # Ctrl-S
        with ProgressLine(seen.out) as tell:
            tell("Copying", 1, 4)
        termios.tcflow(seen.out.fileno(), termios.TCOON)


@pytest.mark.parametrize("out", [None, io.StringIO()])
def test_nor_does_one_that_was_never_there(out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if out is None:
        monkeypatch.setattr("sys.stderr", None)
    else:
        out.close()
    told(out)
    LiveLine(out).say("nobody reads this")


def test_what_goes_through_each_is_counted_once_it_is_done(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    seen = [(item, list(calls)) for item in each(tmp_path, str, iter((1, 2)), lambda *call: calls.append(call))]
    assert [("1", [(0, 2), (1, 2)]), ("2", [(0, 2), (1, 2), (2, 2)])] == seen
