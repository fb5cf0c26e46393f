"""Rows that leave the result leave the table too: `deletes=` in update mode gives what a batch with a filter gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from streams import BRIDGES, Place, decisions, table

import fencepost as fp
from fencepost import faults
from fencepost.admin.restore import rewind
from fencepost.errors import BadConfig
from fencepost.runtime import checks

pytestmark = [pytest.mark.spark]

LINES = ("a b b", "a c", "a b d d", "c e d", "b f")
"""a, b and d leave in the third epoch or later, having been there in an earlier one or never."""
RARE = "count <= 2"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.say(*LINES)
    return made


def counts(lines: Any) -> Any:
    return lines.selectExpr("explode(split(value, ' ')) AS word").groupBy("word").count()


def rare(spark: Any, place: Place, bridge: str | None = None, **settings: Any) -> fp.Job:
    """Words that were said at most twice."""
    job = place.job(spark, bridge, **settings)
    marked = counts(place.text(job)).withColumn("is_deleted", ~F.expr(RARE))
    return job.write(marked, fp.SQLite(place.database, table="rare", key="word", deletes="is_deleted"))


def batch(spark: Any, place: Place) -> list[tuple[str, int]]:
    found = counts(spark.read.text(str(place.input))).where(RARE).collect()
    return sorted((row["word"], row["count"]) for row in found)


@pytest.mark.parametrize("bridge", BRIDGES)
def test_a_driver_that_dies_between_decision_and_commit_leaves_what_a_batch_gives(
    spark: Any, place: Place, bridge: str
) -> None:
    """Twice: in the epoch in which `a` and `b` leave, and in a later one."""
    seen = []
    for point in ("decide.after=fail@3", "decide.after=fail"):
        faults.arm({faults.ARM: point})
        try:
            with pytest.raises(fp.Retryable):
                rare(spark, place, bridge).run(until="available")
        finally:
            faults.arm({})
        seen.append(table(place.database, "rare"))
    assert [[("a", 2), ("b", 2), ("c", 1)], [("c", 1), ("d", 2)]] == seen
    rare(spark, place, bridge).run(until="available")
    assert batch(spark, place) == [("c", 2), ("e", 1), ("f", 1)] == table(place.database, "rare")
    assert len(LINES) == len(decisions(place.checkpoint))


def test_epochs_that_are_written_again_after_a_rewind_give_the_same(spark: Any, place: Place) -> None:
    rare(spark, place).run(until="available")
    rewind(place.checkpoint, 1, "overwrite")
    rare(spark, place).run(until="available")
    assert batch(spark, place) == table(place.database, "rare")


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_filter_in_its_place_leaves_rows_that_a_batch_does_not_have(spark: Any, place: Place, guarantee: str) -> None:
    """What `deletes=` is for; under at_least_once, too."""
    rare(spark, place, guarantee=guarantee).run(until="available")
    assert batch(spark, place) == table(place.database, "rare")
    filtered = Place(place.root / "filtered", place.input)
    filtered.root.mkdir()
    job = filtered.job(spark)
    job.write(counts(filtered.text(job)).where(RARE), fp.SQLite(filtered.database, table="rare", key="word"))
    job.run(until="available")
    assert {"a", "b"} <= {word for word, _ in table(filtered.database, "rare")}


@pytest.mark.parametrize(
    ("column", "why"),
    [("is_gone", "which the DataFrame does not have"), ("count", "which has type int64 and is not a boolean")],
)
def test_a_column_that_cannot_say_what_to_remove_is_refused_before_data_flows(
    spark: Any, place: Place, column: str, why: str
) -> None:
    job = place.job(spark)
    job.write(counts(place.text(job)), fp.SQLite(place.database, table="rare", key="word", deletes=column))
    problems = [error for error in checks.look(job._launch(looks=True)).problems if error.code == "bad_deletes"]
    assert [True] == [why in str(error) for error in problems]
    with pytest.raises(BadConfig) as refused:
        job.run(until="available")
    assert ("bad_deletes", "sqlite:rare") == (refused.value.code, refused.value.where.sink)
    assert not place.checkpoint.exists()
    assert not place.database.exists()


def test_a_marker_that_is_null_fails_the_vote_and_names_the_cure(spark: Any, place: Place) -> None:
    job = place.job(spark)
    marked = counts(place.text(job)).withColumn("is_deleted", F.when(F.col("word") != "c", ~F.expr(RARE)))
    job.write(marked, fp.SQLite(place.database, table="rare", key="word", deletes="is_deleted"))
    with pytest.raises(fp.Retryable, match=r"rows_refused.*'is_deleted', which deletes= names, is NULL.*coalesce"):
        job.run(until="available")
    assert [("a", 1), ("b", 2)] == table(place.database, "rare")
