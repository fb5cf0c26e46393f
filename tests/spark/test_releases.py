"""What differs between the Sparks that we support: what an older one cannot do exactly is refused, before data flows.

`make matrix` runs this on each of them; a test of what only an older one refuses is left out on a newer one.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kinds import grow
from releases import SPARK
from streams import Place

import fencepost as fp
from fencepost.admin.rescale import rescale
from fencepost.admin.state import look, read_state
from fencepost.errors import FencepostError, Where
from fencepost.guarantee import Guarantee
from fencepost.runtime import checks
from fencepost.spark import backend, plan, spark_session
from fencepost.spark.jvm import release
from fencepost.store.ledger import read
from fencepost.store.parts import check_newest, parts_of
from fencepost.store.spark_log import SparkLog

pytestmark = [pytest.mark.smoke]

RUNNING = ".".join(map(str, SPARK))


def only_on(*releases: tuple[int, int]) -> pytest.MarkDecorator:
    return pytest.mark.skipif(SPARK not in releases, reason=f"Spark {RUNNING} does not refuse it")


def refused(step: Any, code: str = "needs_newer_spark") -> str:
    """Take the step; return the text of its refusal, in four parts."""
    with pytest.raises(FencepostError) as caught:
        step()
    text = str(caught.value)
    assert caught.value.code == code
    assert all(part in text for part in ("\n  data:  ", "\n  next:  "))
    return text


# --- which Spark it is


@pytest.mark.parametrize(
    ("version", "expected"),
    [("4.0.5", (4, 0)), ("4.3.0-vendor-1", (4, 3)), ("4.10.0", (4, 10)), ("5.0.0.dev1", (5, 0)), ("", (0, 0))],
)
def test_a_release_is_its_first_two_numbers(version: str, expected: tuple[int, int]) -> None:
    assert expected == release(version)


@pytest.mark.parametrize("version", ["4.0.5", "4.1.4", "4.2.1", "4.3.0"])
def test_four_releases_are_taken(version: str) -> None:
    conf = SimpleNamespace(get=lambda _, default: default)
    spark_session.check_session(SimpleNamespace(version=version, conf=conf), "job")


def test_the_jar_finds_its_way_on_this_spark(spark: Any) -> None:
    """Its classes link, and those that Spark moved are found under the name they have here."""
    assert SPARK == release(spark.version)
    assert spark_session.bring_jar(spark)


# --- refused, here with the version told, and below on the real one


@pytest.mark.parametrize("version", ["4.0.5", "4.1.4"])
def test_sources_have_names_from_4_2_on(version: str) -> None:
    text = refused(lambda: plan.reader(SimpleNamespace(version=version), "clicks", "job"))
    assert version in text
    assert "Take name=… out" in text


def test_s3a_needs_a_conditional_create(tmp_path: Path) -> None:
    def launch(version: str, place: str) -> Any:
        config = SimpleNamespace(place=place, job="job")
        return SimpleNamespace(config=config, spark=SimpleNamespace(version=version), looks=True)

    assert "hdfs://" in refused(lambda: checks._check_place(launch("4.0.5", "s3a://bucket/checkpoint")))
    checks._check_place(launch("4.1.4", "s3a://bucket/checkpoint"))
    checks._check_place(launch("4.0.5", str(tmp_path)))


@pytest.mark.parametrize(
    ("version", "formats", "expected"),
    [
        ("4.0.5", spark_session.FORMATS, "state in RocksDB on Spark 4.0"),
        ("4.1.4", spark_session.FORMATS, None),
        ("4.0.5", spark_session.HEAP_FORMATS, "state on the heap"),
        ("4.3.0", spark_session.HEAP_FORMATS, "state on the heap"),
    ],
)
def test_state_that_two_attempts_may_write(version: str, formats: dict[str, str], expected: str | None) -> None:
    problem = spark_session.Hazard("spark.speculation is on", "switch it off")
    link = backend._of_two(SimpleNamespace(version=version), formats, problem)
    assert expected == (link and link.part)
    assert link is None or link.best is Guarantee.AT_LEAST_ONCE


def test_what_is_refused_says_which_spark_does_it() -> None:
    text = refused(lambda: spark_session.need("4.1.4", (4, 2), "flying needs", where=Where(job="job")))
    assert "This is Spark 4.1.4, and flying needs Spark 4.2 or newer." in text
    assert "next:  Use Spark 4.2 or newer." in text
    spark_session.need("4.2.0", (4, 2), "flying needs", where=Where(job="job"))


# --- on the real one


@only_on((4, 0), (4, 1))
def test_a_job_with_named_sources_is_refused(spark: Any, place: Place) -> None:
    place.say("a")
    job = place.job(spark)
    refused(lambda: job.read(fp.Files(str(place.input), format="text"), name="lines"))
    assert not place.checkpoint.exists()


@only_on((4, 0))
def test_keyed_state_is_refused(spark: Any) -> None:
    numbers = spark.readStream.format("rate").load()
    text = refused(lambda: fp.map_with_state(numbers, by="value", state="n BIGINT", output="n BIGINT"))
    assert "map_with_state needs Spark 4.1" in text


@only_on((4, 0))
def test_sharing_rows_is_refused(spark: Any, place: Place) -> None:
    numbers = spark.readStream.format("rate").load()
    assert "needs Spark 4.1" in refused(lambda: place.job(spark).share(numbers))


@only_on((4, 0))
@pytest.mark.parametrize("kind", ["aggregate", "limit"])
def test_state_in_one_partition_is_refused_unless_there_is_only_one(spark: Any, place: Place, kind: str) -> None:
    place.say("a b", "c")

    def job(**settings: Any) -> fp.Job:
        made = place.job(spark, **settings)
        lines = place.text(made)
        if kind == "limit":
            return made.write(lines.limit(1), fp.SQLite(place.database, table="lines"))
        whole = lines.groupBy().count()
        return made.write(whole, fp.SQLite(place.database, table="lines", mode="replace"))

    told = {} if kind == "limit" else {"output_mode": "complete"}
    assert "SPARK-53288" in refused(lambda: job(**told).run(until="available"), "state_in_one_partition")
    assert not place.checkpoint.exists()
    with spark_session.settings(spark, {"spark.sql.shuffle.partitions": "1"}):
        job(**told).run(until="available")
    assert place.database.exists()


@only_on((4, 0))
def test_tasks_that_may_run_twice_are_refused_beside_state(
    spark: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        spark_session, "runs_tasks_twice", lambda _: spark_session.Hazard("speculation is on", "switch it off")
    )
    place.say("a")
    with pytest.raises(fp.Refused, match="SPARK-52637"):
        place.counting(spark).run(until="available")
    assert not place.checkpoint.exists()


@only_on((4, 0), (4, 1))
def test_a_state_is_not_repartitioned(spark: Any, place: Place) -> None:
    place.say("a b")
    place.counting(spark).run(until="available")
    assert "repartitioning a state needs Spark 4.2" in refused(lambda: rescale(place.checkpoint, 7, lambda: spark))
    assert not place.checkpoint.with_name("checkpoint.savepoints").exists()


@only_on((4, 0))
def test_state_in_files_with_ids_is_not_read(spark: Any, place: Place) -> None:
    place.say("a b")
    place.counting(spark).run(until="available")
    inside = look(place.checkpoint)
    operator = inside.operators[0]
    refused(lambda: read_state(spark, inside, operator, operator.views[0], epoch=inside.epochs[-1]))


# --- sums of state: Spark writes them from 4.1 on; where it does not, the ledger keeps them


@pytest.fixture(params=["as it is", "without sums"])
def summed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Spark as it is, and told to do without, as 4.0 always does."""
    if request.param == "without sums":
        keeping = spark_session.keeping
        monkeypatch.setattr(spark_session, "keeping", lambda epochs, _: keeping(epochs, {}))
    return request.param == "as it is" and SPARK >= (4, 1)


def newest_state(place: Place) -> list[Path]:
    """The files that hold what the newest epoch changed."""
    state = read(place.checkpoint)
    parts = parts_of(place.checkpoint, state.done_through, state)
    files = [place.checkpoint / part.name for part in parts if part.kind == "state"]
    return [file for file in files if file.name.startswith(f"{state.done_through + 1}_")]


@pytest.mark.parametrize("incremental", [True, False])
def test_a_changed_byte_of_state_is_found_with_and_without_sparks_sums(
    spark: Any, place: Place, summed: bool, incremental: bool
) -> None:
    for line in ("a b", "b c"):
        place.say(line)
        place.counting(spark, state=fp.RocksDBState(incremental=incremental)).run(until="available")
    assert summed == any(place.checkpoint.glob("state/**/[0-9]*.crc"))
    file = newest_state(place)[0]
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(lambda: place.counting(spark).run(until="available"), "snapshot_lost")
    file.write_bytes(whole)
    place.say("c")
    place.counting(spark).run(until="available")
    assert place.expected() == place.counts()


def test_a_start_from_a_snapshot_needs_no_sums_of_sparks(spark: Any, place: Place, summed: bool) -> None:
    """Spark makes it when it has time, and deletes the changes before it: what is left must do."""
    grow(place, "count", spark)
    assert summed == any(place.checkpoint.glob("state/**/[0-9]*.zip.crc"))
    place.say("z")
    place.counting(spark).run(until="available")
    assert place.expected() == place.counts()


def test_without_the_ledgers_sums_it_is_not_whole(spark: Any, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the check above sees a sum that nobody kept."""
    keeping = spark_session.keeping
    monkeypatch.setattr(spark_session, "keeping", lambda epochs, _: keeping(epochs, {}))
    monkeypatch.setattr(SparkLog, "_unsummed_files", lambda *_: iter(()))
    place.say("a b")
    place.counting(spark).run(until="available")
    refused(lambda: check_newest(place.checkpoint, read(place.checkpoint)), "snapshot_lost")


def test_a_checkpoint_goes_from_a_spark_without_sums_to_one_with_them(
    spark: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping = spark_session.keeping
    with monkeypatch.context() as older:
        older.setattr(spark_session, "keeping", lambda epochs, _: keeping(epochs, {}))
        place.say("a b")
        place.counting(spark).run(until="available")
    for line in ("b c", "d"):
        place.say(line)
        place.counting(spark).run(until="available")
    assert place.expected() == place.counts()
    assert SPARK < (4, 1) or any(place.checkpoint.glob("state/**/[0-9]*.changelog.crc"))
