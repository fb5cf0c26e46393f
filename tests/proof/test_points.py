"""Which crash points a killed job can pass."""

from __future__ import annotations

import pytest
from fencepost_proof.fuzz.runs import POINTS
from fencepost_proof.kill.points import OVERLAPS, out_of_reach, points_in_code


@pytest.mark.parametrize("side", ["before", "after"])
def test_the_start_of_a_commit_beside_the_next_epoch_is_out_of_reach_only_without_overlap(side: str) -> None:
    point = f"overlap.begin.{side}"
    assert point in points_in_code()
    assert (OVERLAPS, None) == (out_of_reach(point, {}), out_of_reach(point, {}, overlap=True))


def test_what_a_workload_cannot_pass_it_cannot_with_overlap_either() -> None:
    assert "no such sink" == out_of_reach("kafka.begun", {"kafka.*": "no such sink"}, overlap=True)


def test_the_points_of_random_jobs_are_in_the_code() -> None:
    """A fault at a name that nobody passes never comes, and no test fails for it."""
    assert set() == set(POINTS) - points_in_code()
