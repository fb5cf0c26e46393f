"""`fencepost verify`, as typed: on a live job, a dead one and a damaged checkpoint."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sessions import spark
from small import Small
from streams import Place, table

from fencepost.cli.check import jobs_of
from fencepost.cli.main import cli
from fencepost.cli.verify import verify
from fencepost.connectors.sqlite.sink import SQLite

__all__ = ["spark"]

JOB = """
import fencepost as fp
job = fp.Job("small", checkpoint={folder!r} + "/checkpoint")
lines = job.read(fp.Files({folder!r} + "/in", format="text", max_files_per_epoch=1))
job.write(lines, fp.SQLite({folder!r} + "/out.db", table="lines", name="db"))
"""


def typed(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fencepost", "verify", *words], check=False, capture_output=True, text=True, timeout=180
    )


@pytest.fixture
def job(tmp_path: Path) -> Small:
    made = Small(tmp_path, {"db": SQLite(tmp_path / "out.db", table="rows", name="db")})
    made.run(3)
    return made


def test_a_checkpoint_is_compared_with_sparks_log_and_the_rest_is_said_to_be_open(job: Small) -> None:
    result = typed(str(job.checkpoint), "--epochs", "2")
    assert (0, "") == (result.returncode, result.stderr)
    assert "epoch 1–2          agrees      offsets same, commits same; db not asked\n" in result.stdout
    assert "No sink was asked: name the job's FILE" in result.stdout


def test_a_dead_job_says_that_a_start_will_finish_it(job: Small) -> None:
    job.killed("decide.after=kill")
    result = typed(str(job.checkpoint), "--json")
    assert 3 == result.returncode
    said = json.loads(result.stdout)
    (one,) = said["jobs"]
    assert ("unfinished", "unfinished") == (said["verdict"], one["verdict"])
    assert ["agrees", "agrees", "agrees", "unfinished"] == [row["verdict"] for row in one["epochs"]]
    assert ["open_decision"] == [finding["code"] for finding in one["findings"]]


def test_a_damaged_checkpoint_is_a_finding_and_no_traceback(job: Small) -> None:
    (job.checkpoint / "commits" / "1").write_text("v1\n")
    record = sorted(job.checkpoint.glob("fencepost/*/ledger/*.json"))[2]
    result = typed(str(job.checkpoint))
    assert (1, "") == (result.returncode, result.stderr)
    assert "[spark_log_differs] Spark's commits/1 is not what was decided." in result.stdout
    record.write_bytes(record.read_bytes()[:-9])
    result = typed(str(job.checkpoint), "--json")
    assert (1, "") == (result.returncode, result.stderr)
    assert {"ledger_damaged"} == {one["code"] for one in json.loads(result.stdout)["jobs"][0]["findings"]}


def test_what_is_no_job_cannot_be_verified(tmp_path: Path) -> None:
    result = typed(str(tmp_path))
    assert 2 == result.returncode
    assert "no_ledger" in result.stderr
    assert "Traceback" not in result.stderr


def test_findings_of_one_kind_are_not_all_printed(job: Small) -> None:
    job.run(3)
    for number in range(1, 6):
        (job.checkpoint / "offsets" / str(number)).write_text("v1\n")
    result = CliRunner().invoke(verify, [str(job.checkpoint)])
    assert 1 == result.exit_code
    assert 3 == result.output.count("is not what was decided")
    assert "[spark_log_differs] … and 2 more; --json has them all." in result.output


@pytest.mark.spark
def test_the_sinks_of_a_running_a_stopped_and_a_restored_job_are_asked(spark: Any, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.say("one", "two")
    file = tmp_path / "job.py"
    file.write_text(JOB.format(folder=str(tmp_path)))

    def asked() -> tuple[int, dict[str, Any]]:
        result = CliRunner().invoke(cli, ["verify", str(file), "--json"])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, json.loads(result.stdout)["jobs"][0]

    (running,) = jobs_of(file)
    query = running.start()
    try:
        query.processAllAvailable()
        code, said = asked()
        assert (0, {"held"}) == (code, {row["sinks"]["db"] for row in said["epochs"]}), said
    finally:
        running.stop()
    shutil.copytree(place.checkpoint, tmp_path / "copy")
    place.say("three")
    running.run(until="available")
    code, said = asked()
    assert (0, "agrees", 3) == (code, said["verdict"], len(said["epochs"])), said
    shutil.rmtree(place.checkpoint)
    (tmp_path / "copy").rename(place.checkpoint)
    code, said = asked()
    assert (1, ["target_ahead"]) == (code, [finding["code"] for finding in said["findings"]]), said
    assert [("one",), ("three",), ("two",)] == table(tmp_path / "out.db", "lines")
