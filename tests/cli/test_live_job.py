"""The verbs on a job that lives: `fencepost run` in a process of its own, killed once, and stopped while it waits.

The tests of this file are one story, in the order in which they stand: a start of Spark is dear.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ended import wait_until
from streams import drop

from fencepost.observe.heartbeat import beats

pytestmark = pytest.mark.spark

FILE = """
import fencepost as fp
conf = {{
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}}
job = fp.Job("live", checkpoint={folder!r} + "/checkpoint", conf=conf)
lines = job.read(fp.Files({folder!r} + "/in", format="text", max_files_per_epoch=1))
job.write(lines, fp.SQLite({folder!r} + "/out.db", table="lines", name="db"))
if __name__ == "__main__":
    job.run()
"""


@dataclass
class Live:
    folder: Path
    supervisor: subprocess.Popen[bytes]

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def typed(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fencepost", *words], check=False, capture_output=True, text=True, timeout=180
        )

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.typed("status", str(self.checkpoint), "--json").stdout)
        return found

    def log(self) -> list[dict[str, Any]]:
        """What the supervisor and its driver logged; Spark writes its own lines in between."""
        lines = (self.folder / "log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    (folder / "job.py").write_text(FILE.format(folder=str(folder)))
    for number in range(3):
        drop(folder / "in", f"line {number}\n")
    command = ["run", "--log", "json", "--restart", "fixed-delay:attempts=3,delay=120s", str(folder / "job.py")]
    with (folder / "log").open("wb") as log:
        supervisor = subprocess.Popen([sys.executable, "-m", "fencepost", *command], stdout=log, stderr=log)
    made = Live(folder, supervisor)
    try:
        wait_until(lambda: supervisor.poll() is not None or (folder / "checkpoint" / "commits" / "2").exists())
        yield made
    finally:
        for beat in beats(made.checkpoint):
            if beat.is_here:
                os.killpg(beat.pid, signal.SIGKILL)
        supervisor.kill()
        supervisor.wait()


def test_a_living_job_is_running_whatever_it_is_called_by(live: Live) -> None:
    wait_until(lambda: "running" == live.status()["condition"])
    for name in ("live", str(live.folder / "job.py"), str(live.checkpoint)):
        result = live.typed("status", name)
        assert 0 == result.returncode, result.stderr
        assert result.stdout.startswith("live: running for ")
        assert f"supervised by process {live.supervisor.pid}" in result.stdout
    said = live.status()
    assert (2, "exactly_once", live.supervisor.pid) == (said["epoch"], said["guarantee"], said["supervisor"])
    assert said["median_epoch_s"] > 0


def test_its_epochs_have_steps_positions_and_rows(live: Live) -> None:
    said = json.loads(live.typed("epochs", "show", "live", "1", "--json").stdout)
    assert {"0": {"start": '{"logOffset":0}', "end": '{"logOffset":1}'}} == said["ranges"]
    assert ({"db": {"rows": 1, "units": 1}}, "complete") == (said["sinks"], said["standing"])
    assert {"tasks", "pre-commit", "vote", "decide", "commit"} == set(said["phases_s"])


def test_the_log_is_json_with_the_words_of_the_journal(live: Live) -> None:
    kinds = [line["kind"] for line in live.log() if line.get("epoch") == 1]
    assert ["opened", "pre_committed", "voted", "decided", "committed", "complete"] == kinds
    assert any(line["logger"] == "fencepost.supervise" for line in live.log())


def test_between_two_drivers_it_waits_and_a_stop_ends_the_supervisor(live: Live) -> None:
    os.kill(live.status()["pid"], signal.SIGKILL)
    wait_until(lambda: "waiting" == live.status()["condition"])
    said = live.status()
    assert ("driver_died", "died", 1) == (
        said["last_failure"]["code"],
        said["last_failure"]["reason"],
        said["restarts"],
    )
    assert "SIGKILL" in said["last_failure"]["what"]
    result = live.typed("stop", "live", "--timeout", "20s")
    assert 0 == result.returncode, result.stderr
    assert "Job live is stopped: epoch 2 is complete" in result.stdout
    assert 0 == live.supervisor.wait(10)
    assert "stopped" == live.status()["condition"]
    again = live.typed("stop", "live")
    assert 1 == again.returncode
    assert "There is nothing to stop" in again.stderr
