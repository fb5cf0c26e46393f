"""Random jobs over real Spark: each is exact, or refused before data flows. `make fuzz N=300` runs many."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fencepost_proof.fuzz import runs
from fencepost_proof.fuzz.plans import Place, make
from fencepost_proof.fuzz.worker import SETTINGS, Worker
from tests.helpers.sessions import SMALL

from fencepost.connectors.table.session import TableSession
from fencepost.spark import fork

if TYPE_CHECKING:
    from fencepost_proof.rig.kafka import Broker
    from fencepost_proof.rig.postgres import Postgres
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.since(4, 1)]


@pytest.mark.parametrize("seed", [*range(301, 308), 309, *range(311, 315), 323, 325, 326])
def test_a_random_job_is_exact_or_refused(seed: int, tmp_path: Path, spark: SparkSession, broker: Broker) -> None:
    outcome = runs.run(seed, Place(tmp_path, broker.servers), spark, runs.here(spark), starts=2)
    assert [] == outcome.wrong, str(outcome)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(300))
def test_so_are_many(seed: int, tmp_path: Path, spark: SparkSession, broker: Broker, postgres: Postgres) -> None:
    outcome = runs.run(seed, Place(tmp_path, broker.servers, postgres.dsn), spark, runs.here(spark))
    assert [] == outcome.wrong, str(outcome)


@pytest.mark.long
def test_so_is_one_that_is_killed(tmp_path: Path, spark: SparkSession) -> None:
    """The driver is another process, and the fault is SIGKILL."""
    with closing(Worker({**SETTINGS, **SMALL})) as worker:
        outcome = runs.run(702, Place(tmp_path), spark, worker, action="kill")
    assert ([], True) == (outcome.wrong, "(killed)" in str(outcome)), str(outcome)


def test_it_finds_branches_that_disagree(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin that must be caught: without the check each branch draws its own numbers."""

    def accept(*_: Any, **__: Any) -> None:
        pass

    monkeypatch.setattr(fork, "check", accept)
    seed = next(seed for seed in range(1000) if make(seed, Place(tmp_path)).below == "fp.rand")
    outcome = runs.run(seed, Place(tmp_path), spark, runs.here(spark), starts=1)
    assert "wrong" == outcome.verdict
    assert "in no branch" in outcome.wrong[0]


def test_it_finds_a_row_that_replaces_a_greater_one(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin that must be caught: rows of an epoch are in order, and no row is compared with the table."""
    compared = TableSession._compared
    monkeypatch.setattr(TableSession, "_compared", lambda self, schema, _: compared(self, schema, ()))
    outcome = runs.run(159, Place(tmp_path), spark, runs.here(spark), starts=2)
    assert ["newest, ordered"] == [branch.shape for branch in outcome.plan.branches]
    assert "wrong" == outcome.verdict
