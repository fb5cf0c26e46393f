"""The reader who looks all the time sees what he must never see."""

from __future__ import annotations

from typing import Any

import pytest
from fencepost_proof.checkers import recount

EPOCH = 3


def looked(monkeypatch: pytest.MonkeyPatch, what: str, kind: str, *looks: list[tuple[Any, ...]]) -> dict[str, int]:
    answers = iter(looks)
    monkeypatch.setitem(recount.READERS, kind, lambda where, columns: next(answers))
    watch = recount.Watch(f"{what}:{kind}:somewhere", EPOCH)
    for _ in looks:
        watch.look()
    return watch.found


def test_whole_epochs_that_only_grow_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(monkeypatch, "totals", "postgres", [("a", 1, 5), ("b", 2, 6)], [("a", 4, 9), ("b", 2, 6)])
    assert {"looks": 2, "torn": 0, "back": 0} == found


def test_half_an_epoch_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 == looked(monkeypatch, "rows", "mariadb", [(1, "a", 1), (2, "b", 1)])["torn"]


def test_a_place_that_shows_epochs_row_by_row_may_do_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 == looked(monkeypatch, "newest", "cassandra", [("a", 1, 1)])["torn"]


@pytest.mark.parametrize("later", [[("a", 1), ("b", 2)], [("a", 3)]], ids=["smaller", "gone"])
def test_a_value_that_goes_back_is_seen(monkeypatch: pytest.MonkeyPatch, later: list[tuple[Any, ...]]) -> None:
    assert 1 == looked(monkeypatch, "counts", "redis", [("a", 3), ("b", 3)], later)["back"]


def test_a_row_that_vanishes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    three = [(i, "a", 1) for i in range(3)]
    assert 1 == looked(monkeypatch, "rows", "postgres", three, [])["back"]


def test_a_server_that_is_away_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recount.READERS, "redis", lambda where, columns: 1 / 0)
    watch = recount.Watch("counts:redis:somewhere", EPOCH)
    watch.look()
    assert {"looks": 0, "torn": 0, "back": 0} == watch.found
