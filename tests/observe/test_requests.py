"""A wish to stop reaches the driver that it names, or whoever would start another, and nobody else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fencepost.observe import commands
from fencepost.observe.events import Event, Kind
from fencepost.observe.journal import Journal


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "fencepost").mkdir()
    return tmp_path


def took_over(root: Path, writer: int) -> None:
    Journal(root).note(Event(kind=Kind.STARTED, job="orders", at="2030-01-01T00:00:00+00:00", pid=1, writer=writer))


def test_a_wish_is_for_the_writer_that_it_names_and_for_no_later_one(root: Path) -> None:
    commands.leave(root, "stop", 4)
    assert ("stop", None, None) == (commands.find(root, 4), commands.find(root, 5), commands.find(root, 3))
    commands.take_back(root, 5)
    assert "stop" == commands.find(root, 4)
    commands.take_back(root, 4)
    assert None is commands.find(root, 4)


def test_between_two_drivers_the_wish_for_the_last_one_counts(root: Path) -> None:
    took_over(root, 4)
    assert None is commands.find_between(root)
    commands.leave(root, "cancel", 4)
    assert "cancel" == commands.find_between(root)
    took_over(root, 9)
    assert None is commands.find_between(root)
    took_over(root, 2)  # after a rewind
    commands.leave(root, "stop", 2)
    assert "stop" == commands.find_between(root)


def test_a_start_sweeps_away_what_was_asked_of_those_before(root: Path) -> None:
    took_over(root, 4)
    commands.leave(root, "stop", 4)
    commands.clear(root)
    commands.clear(root)
    assert None is commands.find_between(root)


@pytest.mark.parametrize("text", ["", "[]", '{"wish": "dance", "writer": 4}', '{"writer": 4}', "\0"])
def test_what_is_no_wish_is_none(text: str, root: Path) -> None:
    (root / "fencepost" / "request.json").write_text(text)
    assert None is commands.find(root, 4)


def test_a_checkpoint_that_is_gone_asks_nothing(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    commands.clear(gone)
    commands.take_back(gone, 1)
    assert (None, None) == (commands.find(gone, 1), commands.find_between(gone))
    assert not os.path.lexists(gone)
