"""The part of the suite that asks a sink what its target holds, as `fencepost verify` does: from another session, with
nobody's leave.
"""

# ruff: noqa: D102, SIM300 - a test's name is its sentence; expected == actual

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from fencepost.protocol.effects import Outcome
from fencepost.sinks.holding import Holding
from fencepost.testing.driver import Driver, rows_of


class LookContract(ABC):
    """What `examine` promises."""

    tells = False
    """`examine` knows what the target holds; without it, unknown is an honest answer."""
    finds_strays = False
    """`examine` finds epochs that it was not asked for."""

    @abstractmethod
    def table(self, epoch: int, rows: int = 3) -> pa.Table: ...

    @abstractmethod
    def _driver(self, tmp_path: Path, **owner: Any) -> Driver: ...

    @abstractmethod
    def _seen(self, tmp_path: Path) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def _skip(self, why: str) -> NoReturn: ...

    def forget(self, tmp_path: Path) -> bool:
        """Make the target forget every epoch (delete its mark, its manifests); False if that cannot be arranged."""
        return False

    def test_a_look_finds_what_is_committed_and_no_more_and_changes_nothing(self, tmp_path: Path) -> None:
        driver = self._driver(tmp_path)
        first = driver.run(0, self.table(0))
        second = driver.pre_commit(1, self.table(1))
        assert () == driver.vote(1, second)
        handles = {0: first, 1: second}
        found = driver.look(handles)
        assert found.heard, found.why
        assert self._fits({0: Holding.HELD, 1: Holding.MISSING}, found.holdings), found
        assert not found.strays, found
        assert Outcome.DONE == driver.commit(1, second), "the look ended what the vote held"
        found = driver.look(handles)
        assert self._fits({0: Holding.HELD, 1: Holding.HELD}, found.holdings), found
        assert not found.strays, found
        assert sorted(rows_of(self.table(0)) + rows_of(self.table(1))) == self._seen(tmp_path)

    def test_a_look_misses_what_the_target_forgot(self, tmp_path: Path) -> None:
        driver = self._driver(tmp_path)
        handle = driver.run(0, self.table(0))
        driver.session.close()
        if not self.forget(tmp_path):
            self._skip("the target cannot be made to forget")
        found = driver.look({0: handle})
        assert self._fits({0: Holding.MISSING}, found.holdings), found

    def test_a_look_names_an_epoch_that_the_ledger_does_not_know(self, tmp_path: Path) -> None:
        if not self.finds_strays:
            self._skip("the sink knows only what it is asked for")
        driver = self._driver(tmp_path)
        first, second = driver.run(0, self.table(0)), driver.run(1, self.table(1))
        (stray,) = driver.look({0: first}).strays
        assert second.id in stray.names
        assert stray.epoch in (None, 1)

    def test_a_look_takes_no_other_identity_for_the_targets_own(self, tmp_path: Path) -> None:
        driver = self._driver(tmp_path)
        identity = driver.session.preflight(self.table(0).schema, "append")
        assert driver.look({}).identity in (None, identity)

    def _fits(self, expected: dict[int, Holding], actual: Any) -> bool:
        honest = () if self.tells else (Holding.UNKNOWN,)
        return all(actual[epoch] in (holding, *honest) for epoch, holding in expected.items())
