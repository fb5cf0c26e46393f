"""Every check has a job that trips it: its start is refused, and `fencepost check` lists it, by one code."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kinds import keyed
from streams import Place

import fencepost as fp
from fencepost.admin.restore import rewind
from fencepost.config import RunConfig
from fencepost.connectors.kafka import source
from fencepost.errors import FencepostError
from fencepost.observe.journal import Observer
from fencepost.runtime.checks import CHECKS, Check, Launch, When, look
from fencepost.runtime.start import start
from fencepost.spark.plan import DEPARTED
from fencepost.store import LocalStore
from fencepost.store.notes import DepartedSource, encode_note

pytestmark = [pytest.mark.spark]

Launcher = Callable[..., Launch]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.say("a b")
    return made


def lines(place: Place, **settings: Any) -> fp.SQLite:
    return fp.SQLite(place.database, table="lines", **settings)


def copying(spark: Any, place: Place, sink: fp.Sink | None = None, **settings: Any) -> fp.Job:
    """A job without state."""
    job = place.job(spark, **settings)
    return job.write(place.text(job), sink or lines(place))


def writes_nothing(spark: Any, place: Place) -> Launcher:
    return place.job(spark)._launch


def fires_and_forgets(spark: Any, place: Place) -> Launcher:
    return copying(spark, place, fp.WriteAheadLog(lambda context, batches: None, name="api"))._launch


def replaces_by_chance(spark: Any, place: Place) -> Launcher:
    return copying(spark, place, lines(place, key="value"))._launch


def changes_rows_without_a_key(spark: Any, place: Place) -> Launcher:
    job = place.job(spark)
    return job.write(place.text(job).groupBy("value").count(), lines(place))._launch


def appends_what_is_never_final(spark: Any, place: Place) -> Launcher:
    return place.counting(spark, output_mode="append")._launch


def runs_already(spark: Any, place: Place) -> Launcher:
    copying(spark, place).start()
    return copying(spark, place, lines(place, name="more"), checkpoint=place.root / "more")._launch


def forks_by_chance(spark: Any, place: Place) -> Launcher:
    job = place.job(spark)
    base = place.text(job).selectExpr("value", "rand() AS r")
    job.write(base.where("r < 0.5"), fp.SQLite(place.database, table="low"))
    return job.write(base.where("r >= 0.5"), fp.SQLite(place.database, table="high"))._launch


def loses_dead_letters(spark: Any, place: Place) -> Launcher:
    told: dict[str, Any] = {"on_bad_record": "dead_letter", "dead_letters": fp.SQLite(place.database, table="dead")}
    other = place.job(spark, name="other")
    job = place.job(spark)
    return job.write(other.parse(place.text(other), schema="a INT", **told), lines(place))._launch


def cannot_name_refused_rows(spark: Any, place: Place) -> Launcher:
    job = place.job(spark)
    dead = fp.SQLite(place.database, table="dead")
    folder = fp.Files(place.root / "out", format="parquet")
    return job.write(place.text(job), folder, on_bad_record="dead_letter", dead_letters=dead)._launch


def never_pauses(spark: Any, place: Place) -> Launcher:
    def seen(record: Any, state: Any) -> Any:
        return (record.value,), (1,)

    once = fp.map_with_state(
        place.text(place.job(spark)), by="value", state="n BIGINT", output="value STRING", ttl="1 second"
    )(seen)
    branches = {"sqlite:lines": (once, lines(place))}
    config = RunConfig(job="job", checkpoint=fp.Checkpoint(place.checkpoint), output_mode="append")
    return lambda **more: Launch(config, spark, branches, Observer("job"), given=once.writeStream, **more)


def goes_another_way(spark: Any, place: Place) -> Launcher:
    return copying(spark, place, bridge="ferry")._launch


def has_an_odd_column(spark: Any, place: Place) -> Launcher:
    job = place.job(spark)
    return job.write(place.text(job).selectExpr("parse_json('1') AS odd"), lines(place))._launch


def has_too_few_columns(spark: Any, place: Place) -> Launcher:
    with closing(sqlite3.connect(place.database)) as database, database:
        database.execute("CREATE TABLE lines (value TEXT, price INTEGER NOT NULL)")
    return copying(spark, place)._launch


def lives_below_a_file(spark: Any, place: Place) -> Launcher:
    return copying(spark, place, checkpoint=place.input / "0000.txt" / "checkpoint")._launch


def keeps_its_state_elsewhere(spark: Any, place: Place) -> Launcher:
    place.counting(spark).run(until="available")
    return place.counting(spark, state=fp.FileSystemState())._launch


def overwrites_without_a_key(spark: Any, place: Place) -> Launcher:
    place.say("c")
    copying(spark, place).run(until="available")
    rewind(place.checkpoint, 0, "overwrite")
    return copying(spark, place)._launch


def reads_from_nobody(spark: Any, place: Place) -> Launcher:
    job = place.job(spark)
    return job.write(job.read(fp.Kafka("in", servers="127.0.0.1:9")).select("value"), lines(place))._launch


def takes_anothers_checkpoint(spark: Any, place: Place) -> Launcher:
    copying(spark, place, name="first").run(until="available")
    return copying(spark, place)._launch


def lost_its_state(spark: Any, place: Place) -> Launcher:
    place.counting(spark).run(until="available")
    for file in place.checkpoint.glob("state/0/*/*.changelog"):
        file.unlink()
    return place.counting(spark)._launch


def reads_again_what_departed(spark: Any, place: Place) -> Launcher:
    def job(name: str) -> fp.Job:
        made = place.job(spark)
        return made.write(made.read(fp.Files(place.input, format="text"), name=name), lines(place))

    job("here").run(until="available")
    LocalStore(place.checkpoint).create(f"{DEPARTED}/there", encode_note(DepartedSource("there", "7")))
    return job("there")._launch


def reads_a_file_that_was_changed(spark: Any, place: Place) -> Launcher:
    copying(spark, place).run(until="available")
    (place.input / "0000.txt").write_text("changed\n")
    return copying(spark, place)._launch


def counts_by_another_key(spark: Any, place: Place) -> Launcher:
    place.counting(spark).run(until="available")
    job = place.job(spark)
    return job.write(place.text(job).groupBy("value").count().toDF("word", "count"), place.counts_sink())._launch


def counts_beside_keyed_state(spark: Any, place: Place) -> Launcher:
    keyed(place, spark).run(until="available")
    shutil.rmtree(next(place.checkpoint.glob("fencepost/*/plan")))  # of a time before there were notes of the plan
    job = place.job(spark)
    counts = place.text(job).withColumn("t", _now()).withWatermark("t", "1 minute").groupBy("value", "t").count()
    return job.write(counts.selectExpr("value AS word", "count AS n"), fp.SQLite(place.database, table="seen"))._launch


def _now() -> Any:
    from pyspark.sql.functions import current_timestamp  # noqa: PLC0415 - only for tests with a session

    return current_timestamp()


TRIPS: dict[str, tuple[Callable[[Any, Place], Launcher], str]] = {
    "branches": (writes_nothing, "nothing_to_write"),
    "guarantee": (fires_and_forgets, "guarantee_too_high"),
    "modes": (changes_rows_without_a_key, "mode_does_not_fit"),
    "order": (replaces_by_chance, "last_row_undefined"),
    "plan": (appends_what_is_never_final, "plan_refused"),
    "running": (runs_already, "already_running"),
    "forks": (forks_by_chance, "computed_twice"),
    "dead letters": (loses_dead_letters, "dead_letters_elsewhere"),
    "refused rows": (cannot_name_refused_rows, "rows_not_named"),
    "pauses": (never_pauses, "no_pause"),
    "bridge": (goes_another_way, "unknown_bridge"),
    "columns": (has_an_odd_column, "unsupported_type"),
    "targets": (has_too_few_columns, "schema_does_not_fit"),
    "place": (lives_below_a_file, "checkpoint_unusable"),
    "formats": (keeps_its_state_elsewhere, "state_changed"),
    "state": (counts_by_another_key, "operator_changed"),
    "fate": (overwrites_without_a_key, "overwrite_needs_key"),
    "sources": (reads_from_nobody, "no_broker"),
    "ledger": (takes_anothers_checkpoint, "another_job"),
    "snapshot": (lost_its_state, "snapshot_lost"),
    "positions": (reads_again_what_departed, "source_returns"),
    "files": (reads_a_file_that_was_changed, "source_file_changed_late"),
    "keyed state": (counts_beside_keyed_state, "state_beside_keyed"),
}


def test_every_check_has_a_job_that_trips_it() -> None:
    assert set(TRIPS) == {check.name for check in CHECKS}
    assert len(CHECKS) == len({check.name for check in CHECKS})
    assert all(check.says.endswith(".") for check in CHECKS)


@pytest.mark.parametrize("name", TRIPS)
def test_a_start_refuses_and_a_look_lists_what_the_check_finds(
    spark: Any, place: Place, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "PATIENCE_MS", 1000)
    prepare, code = TRIPS[name]
    launch = prepare(spark, place)
    check = next(check for check in CHECKS if check.name == name)
    try:
        by_itself = [one.code for one in check.findings(launch(looks=True)) if isinstance(one, FencepostError)]
        listed = [problem.code for problem in look(launch(looks=True)).problems]
        with pytest.raises(FencepostError) as refused:
            start(launch())
    finally:
        for query in spark.streams.active:
            query.stop()
    assert ([code], [code], code) == (by_itself[:1], listed[:1], refused.value.code)


def test_a_list_without_a_check_lets_its_job_pass(spark: Any, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotaged twin: the refusals above come from the list, and from nowhere else."""
    job = copying(spark, place, bridge="ferry")._launch
    kept = tuple(check for check in CHECKS if check.name in ("branches", "guarantee", "modes"))
    monkeypatch.setattr("fencepost.runtime.checks.CHECKS", kept)
    assert [] == look(job(looks=True)).problems


def test_a_new_check_is_one_entry(spark: Any, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(launch: Launch) -> Iterator[FencepostError | str]:
        yield "worth knowing"
        yield fp.Refused("full_moon", "The moon is full.", next="Wait.")

    more = (*CHECKS, Check("moon", "It is not full.", find, When.BEFORE))
    monkeypatch.setattr("fencepost.runtime.checks.CHECKS", more)
    job = copying(spark, place)
    found = look(job._launch(looks=True))
    assert (["full_moon"], True) == ([one.code for one in found.problems], "worth knowing" in found.notes)
    with pytest.raises(fp.Refused, match="full_moon"):
        job.start()


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each file of a checkpoint is read through its store."""
    read, asked = LocalStore.read, Counter[str]()

    def counting(self: LocalStore, name: str) -> bytes | None:
        asked[name] += 1
        return read(self, name)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "read", counting)
        yield asked


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("bridge", ["jvm", "foreach_batch"])
def test_sparks_identity_and_record_0_are_read_once_in_a_start(
    spark: Any, place: Place, bridge: str, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if begun:
        place.counting(spark, bridge).run(until="available")
    with counted(monkeypatch) as asked, place.counting(spark, bridge) as job:
        job.start()
    first = [name for name in asked if name.endswith(f"{0:020d}.json")]
    assert (1, [1]) == (asked["metadata"], [asked[name] for name in first])
