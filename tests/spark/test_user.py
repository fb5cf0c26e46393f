"""What users do to a job between and during runs."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from flaky import Flaky
from streams import Place, table

import fencepost as fp
from fencepost.errors import BadConfig, CheckpointRefused, EpochFailed, FencepostError, TargetRefused

pytestmark = pytest.mark.spark


def test_two_write_lines_that_change_places_do_not_exchange_their_state(spark: Any, place: Place) -> None:
    def run(order: list[str]) -> None:
        job = place.job(spark)
        lines = place.text(job)
        frames = {
            "words": lines.selectExpr("explode(split(value, ' ')) AS k").groupBy("k").count(),
            "letters": lines.selectExpr("explode(split(replace(value, ' ', ''), '')) AS k").groupBy("k").count(),
        }
        for name in order:
            job.write(frames[name], fp.SQLite(place.root / f"{name}.db", table=name, key="k"))
        job.run(until="available")

    place.say("aa b")
    run(["words", "letters"])
    place.say("aa aa b")
    run(["letters", "words"])
    assert {"aa": 3, "b": 2} == dict(table(place.root / "words.db", "words"))
    assert {"a": 6, "b": 2} == dict(table(place.root / "letters.db", "letters"))


def test_a_dropped_table_is_not_made_anew_and_empty(spark: Any, place: Place) -> None:
    place.say("a")
    place.counting(spark).run(until="available")
    with closing(sqlite3.connect(place.database)) as database:
        database.execute("DROP TABLE counts")
    place.say("b")
    with pytest.raises(TargetRefused) as refused:
        place.counting(spark).run(until="available")
    assert "table_lost" == refused.value.code


def test_another_table_under_the_same_name_is_another_target(spark: Any, place: Place) -> None:
    place.say("a")
    for number, name in enumerate(("one", "two")):
        job = place.job(spark)
        job.write(place.text(job), fp.SQLite(place.database, table=name, name="sink"))
        if number == 0:
            job.run(until="available")
            continue
        with closing(sqlite3.connect(place.database)) as database:
            database.execute("CREATE TABLE two (value TEXT)")
        with pytest.raises(CheckpointRefused) as refused:
            job.run(until="available")
        assert "target_replaced" == refused.value.code


def test_a_second_start_of_a_running_job_is_refused_and_the_first_goes_on(spark: Any, place: Place) -> None:
    place.say("a")
    with place.counting(spark) as job:
        query = job.start()
        for second in (job, place.counting(spark)):
            with pytest.raises(BadConfig) as refused:
                second.start()
            assert "already_running" == refused.value.code
        place.say("a b")
        query.processAllAvailable()
    assert place.expected() == place.counts()


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"name": 5}, "bad_job_name"),
        ({"checkpoint": __file__}, "checkpoint_unusable"),
        ({"checkpoint": __file__ + "/below"}, "checkpoint_unusable"),
    ],
)
def test_a_bad_argument_gets_four_lines(spark: Any, place: Place, settings: dict[str, Any], code: str) -> None:
    place.say("a")
    with pytest.raises(FencepostError) as refused:
        place.counting(spark, **settings).run()
    assert code == refused.value.code


@pytest.mark.parametrize(
    "source", [fp.Files("/nowhere", format="text"), fp.Files(".", format="json", schema="id WHAT")]
)
def test_a_source_that_spark_cannot_read_gets_four_lines(spark: Any, place: Place, source: fp.Files) -> None:
    with pytest.raises(BadConfig) as refused:
        place.job(spark).read(source)
    assert "source_refused" == refused.value.code


@pytest.mark.parametrize("bridge", ["jvm", "foreach_batch"])
def test_a_very_first_epoch_that_fails_after_its_state_was_written_does_not_block_the_job(
    spark: Any, place: Place, bridge: str
) -> None:
    """Nothing is decided, but state lies there: Spark alone would refuse the folder for ever."""
    place.say("a b")
    sink = Flaky(place.counts_sink(), "verify")

    def run() -> None:
        job = place.job(spark, bridge)
        words = place.text(job).selectExpr("explode(split(value, ' ')) AS word")
        job.write(words.groupBy("word").count(), sink).run(until="available")

    with pytest.raises(EpochFailed):
        run()
    assert list((place.checkpoint / "state").rglob("*.changelog"))
    run()
    assert place.expected() == place.counts()


JOB = """
import fencepost as fp, sys
job = fp.Job("job", checkpoint=sys.argv[1] + "/ck", conf={"spark.ui.enabled": "false"})
job.write(job.read(fp.Files(sys.argv[1] + "/in", format="text")), fp.SQLite(sys.argv[1] + "/out.db", table="lines"))
try:
    job.run()
except fp.FencepostError as error:
    print(error.code)
"""


@pytest.mark.long
def test_a_jvm_that_is_killed_alone_is_named(tmp_path: Path) -> None:
    """What the out-of-memory killer does: Python lives on, and must say what happened."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("a\n")
    (tmp_path / "job.py").write_text(JOB)
    child = subprocess.Popen(
        [sys.executable, str(tmp_path / "job.py"), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list((tmp_path / "ck" / "commits").glob("0")) and time.monotonic() < deadline:
        time.sleep(0.05)
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    for pid in children:
        os.kill(int(pid), signal.SIGKILL)
    out, _ = child.communicate(timeout=180)
    assert b"jvm_lost" == out.strip()
