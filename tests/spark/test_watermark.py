"""All branches of a job wait for one watermark: who says so, who is waited for, and what Spark does meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from streams import Place, drop_json, table

import fencepost as fp
from fencepost.cli.main import cli
from fencepost.errors import GuaranteeTooHigh
from fencepost.observe.health import look as health
from fencepost.runtime.checks import look
from fencepost.spark.watermark import POLICY

pytestmark = [pytest.mark.spark]


def at(second: int) -> dict[str, str]:
    return {"at": f"2026-01-01T00:00:{second:02d}Z"}


def reading(job: fp.Job, folder: Path, name: str | None = None) -> Any:
    folder.mkdir(exist_ok=True)
    return job.read(fp.Files(str(folder), format="json", schema="at TIMESTAMP", max_files_per_epoch=1), name=name)


def windows(frame: Any) -> Any:
    counts = frame.selectExpr("window(at, '10 seconds') AS w").groupBy("w").count()
    return counts.selectExpr("date_format(w.start, 'ss') AS start", "count")


def sink(place: Place, name: str) -> fp.SQLite:
    return fp.SQLite(place.database, table=name)


def two_branches(spark: Any, place: Place, *, named: bool = False, **settings: Any) -> fp.Job:
    """Windows over two folders, which have nothing to do with each other."""
    job = place.job(spark, **settings)
    for name in ("busy", "quiet"):
        timed = reading(job, place.root / name, name if named else None).withWatermark("at", "0 seconds")
        job.write(windows(timed), sink(place, name))
    return job


def notes(job: fp.Job) -> list[str]:
    return [note for note in look(job._launch(looks=True)).notes if "watermark" in note]


def shown(place: Place) -> str:
    return CliRunner().invoke(cli, ["status", str(place.checkpoint)]).stdout


@pytest.mark.parametrize("named", [False, pytest.param(True, marks=[pytest.mark.since(4, 2), pytest.mark.long])])
def test_a_quiet_branch_holds_up_the_other_and_check_and_status_say_so(spark: Any, place: Place, named: bool) -> None:
    busy, quiet = place.root / "busy", place.root / "quiet"
    job = two_branches(spark, place, named=named)
    drop_json(busy, at(1), at(25))
    (note,) = notes(job)
    assert all(word in note for word in ("sqlite:busy", "sqlite:quiet", str(busy), str(quiet), "split the job in two"))
    with job:
        query = job.start()
        query.processAllAvailable()
        assert [] == table(place.database, "busy")  # its own watermark is past two windows
        (waits,) = [one for one in health(place.checkpoint).feeds if one.is_behind]
        assert (f"json path file:{quiet}", None) == (waits.what, waits.at)
        said = shown(place)
        assert "watermark:   has not moved yet" in said
        assert f"waits for:   json path file:{quiet}: no record yet" in said
        drop_json(quiet, at(15))
        query.processAllAvailable()
        assert [("00", 1)] == table(place.database, "busy")
        drop_json(busy, at(30))
        query.processAllAvailable()
        found = health(place.checkpoint)
        (waits,) = [one for one in found.feeds if one.is_behind]
        assert f"json path file:{quiet}" == waits.what
        assert waits.at is not None
        assert "2026-01-01T00:00:15" in shown(place)
        assert [("00", 1)] == table(place.database, "busy")


def test_after_a_stop_the_log_says_where_the_watermark_is(spark: Any, place: Place) -> None:
    for name, second in (("busy", 12), ("quiet", 50)):
        drop_json(place.root / name, at(second))
    two_branches(spark, place).run(until="available")
    assert "2026-01-01T00:00:12" in shown(place)
    # A start forgets how far each of them was: the quiet one was at 50, and has to bring a record again.
    drop_json(place.root / "busy", at(40))
    two_branches(spark, place).run(until="available")
    assert "2026-01-01T00:00:12" in shown(place)
    drop_json(place.root / "quiet", at(51))
    drop_json(place.root / "busy", at(41))
    two_branches(spark, place).run(until="available")
    assert "2026-01-01T00:00:41" in shown(place)


def test_two_sides_of_a_join_wait_for_each_other_too(spark: Any, place: Place) -> None:
    job = place.job(spark)
    left = reading(job, place.root / "l").withWatermark("at", "1 hour")
    right = reading(job, place.root / "r").selectExpr("at AS on").withWatermark("on", "1 hour")
    job.write(left.join(right, left["at"] == right["on"]), sink(place, "pairs"))
    (note,) = notes(job)
    assert all(word in note for word in ("sqlite:pairs", str(place.root / "l"), str(place.root / "r")))


def filtered(events: Any) -> list[Any]:
    return [events.where(f"at {by} now()").withWatermark("at", "1 hour") for by in "<>"]


def joined(events: Any) -> list[Any]:
    timed = events.withWatermark("at", "1 hour")
    return [timed.join(timed, "at")]


def told_twice(events: Any) -> list[Any]:
    return [events.withWatermark("at", "1 hour"), events.selectExpr("at", "1 AS one").withWatermark("at", "2 hours")]


@pytest.mark.parametrize(("branches", "count"), [(filtered, 1), (told_twice, 0), (joined, 0)])
def test_branches_of_one_source_wait_only_for_what_each_of_them_filters(
    spark: Any, place: Place, branches: Any, count: int
) -> None:
    job = place.job(spark)
    for number, frame in enumerate(branches(reading(job, place.input))):
        job.write(windows(frame), sink(place, f"t{number}"))
    assert count == len(notes(job))


def test_a_policy_by_which_a_fast_source_drops_the_records_of_a_slow_one_is_refused(spark: Any, place: Place) -> None:
    spark.conf.set(POLICY, "max")
    try:
        job = two_branches(spark, place)
        with pytest.raises(GuaranteeTooHigh) as refused:
            job.run(until="available")
        assert POLICY in refused.value.what
        assert "min" in refused.value.next
        assert "at_most_once" == look(job._launch(looks=True)).report.rows[-1][1]
        # It is true: the slow source's record is not late by its own watermark.
        for name, second in (("busy", 59), ("quiet", 1)):
            drop_json(place.root / name, at(second))
        weak = two_branches(spark, place, guarantee="at_most_once", name="weak")
        weak.run(until="available")
        drop_json(place.root / "quiet", at(2), at(50))
        weak.run(until="available")
        assert [("00", 1)] == [row for row in table(place.database, "quiet") if row[0] == "00"]
    finally:
        spark.conf.unset(POLICY)
    with pytest.raises(GuaranteeTooHigh, match="new checkpoint"):  # the first start fixed it
        two_branches(spark, place).run(until="available")


def test_a_checkpoint_keeps_the_policy_that_it_was_begun_with(spark: Any, place: Place) -> None:
    for name in ("busy", "quiet"):
        (place.root / name).mkdir()
        drop_json(place.root / name, at(12))
    two_branches(spark, place).run(until="available")
    spark.conf.set(POLICY, "max")
    try:
        drop_json(place.root / "busy", at(59))
        two_branches(spark, place).run(until="available")
    finally:
        spark.conf.unset(POLICY)
    assert "2026-01-01T00:00:12" in shown(place)
