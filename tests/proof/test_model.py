"""The protocol, run through every history with at most two faults, in a world that is worse than a real one.

`python -m fencepost_proof.model --faults 2` explores more: three epochs with pauses beside other faults.
"""

from __future__ import annotations

from typing import Any

import pytest
from fencepost_proof.model import report
from fencepost_proof.model.explore import Explorer
from fencepost_proof.model.hunt import Sabotage, hunt
from fencepost_proof.model.sabotage import SABOTAGES
from fencepost_proof.model.swap import remembered, swapped
from fencepost_proof.model.targets import APPLY, PUBLISH, Job


@pytest.fixture(scope="module")
def verdicts() -> list[report.Verdict]:
    return list(report.explore(report.quick(), processes=2))


@pytest.mark.heavy
def test_no_history_loses_doubles_or_tears_a_record_or_gets_stuck(verdicts: list[report.Verdict]) -> None:
    violated = {verdict.name: (verdict.kinds, verdict.examples) for verdict in verdicts if verdict.kinds}
    assert {} == violated


@pytest.mark.heavy
def test_more_than_a_million_histories_are_explored(verdicts: list[report.Verdict]) -> None:
    assert sum(verdict.histories for verdict in verdicts) > 1_000_000


def catching() -> list[Any]:
    """Every sabotage; one needs so many histories that it is not for `make unit`."""
    marks = {"parent_not_sealed": pytest.mark.heavy}
    return [pytest.param(each, id=each.name, marks=marks.get(each.name, ())) for each in SABOTAGES]


@pytest.mark.parametrize("sabotage", catching())
def test_the_explorer_catches(sabotage: Sabotage) -> None:
    assert hunt(sabotage) is not None, sabotage.what


def test_the_same_job_is_explored_the_same_way_twice() -> None:
    assert _explored() == _explored()


def test_splitting_the_work_by_the_first_fault_loses_no_history() -> None:
    whole = _explored()[0]
    assert whole == sum(_explored((n, 3))[0] for n in range(3))


def _explored(share: tuple[int, int] = (0, 1)) -> tuple[int, int]:
    explorer = Explorer(Job((APPLY, PUBLISH), 1), share=share)
    with swapped(*remembered()):
        return explorer.run(1), explorer.visited
