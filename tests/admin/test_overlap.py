"""A job that died with an epoch that is complete for Spark and in no sink yet: what everybody says of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from small import Small

from fencepost.admin import doctor, restore, savepoint
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.errors import CheckpointRefused
from fencepost.observe import health, history
from fencepost.observe.journal import Observer

NEXT_RUNS = "overlap.join.before=kill@4"
"""Epoch 2 has begun and has yet to find out whether epoch 1 is committed."""


@pytest.fixture
def ahead(tmp_path: Path) -> Small:
    sink = SQLite(tmp_path / "out.db", table="rows", name="db")
    job = Small(tmp_path, {"db": sink}, overlap=True, observer=Observer("small"))
    job.killed(f"commit.before=hang@2,{NEXT_RUNS}", epochs=3)
    assert ["0", "1"] == sorted(path.name for path in (job.checkpoint / "commits").iterdir())
    return job


def verified(job: Small) -> tuple[str, list[str], list[str]]:
    found = job.verify()
    return found.verdict, [finding.code for finding in found.findings], [row.sinks["db"] for row in found.rows]


def test_nobody_takes_it_for_committed_and_the_next_start_finishes_it(ahead: Small) -> None:
    place = ahead.checkpoint
    assert ("unfinished", ["open_decision"], ["held", "missing"]) == verified(ahead)
    assert 0 == health.look(place).epoch
    assert ["complete", "decided", "begun"] == [epoch.standing for epoch in history.read(place).epochs]
    assert ["open_decision"] == [symptom.code for symptom in doctor.diagnose(place).findings]
    with pytest.raises(CheckpointRefused) as refused:
        restore.rewind(place, 0, "again")
    assert "open_decision" == refused.value.code
    assert 0 == savepoint.create(place, name="before").epoch
    ahead.run(0)
    assert ("agrees", [], ["held", "held"]) == verified(ahead)
    assert 1 == health.look(place).epoch
    assert ["complete", "complete"] == [epoch.standing for epoch in history.read(place).epochs]
