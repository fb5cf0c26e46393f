"""The ways to start a job on a real cluster: a standalone master and two workers, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
import venv
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fencepost_proof.rig.jars import pyspark_home
from fencepost_proof.rig.standalone import Standalone

from fencepost import faults
from fencepost.observe.heartbeat import beats

pytestmark = pytest.mark.spark

JOB = Path(__file__).with_name("cluster_job.py")
TREE = Path(__file__).parents[2]
PATIENCE_S = 400
QUICK = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "600m",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that the workers share with the driver, as if by NFS; those of pytest's own they do not see."""
    with tempfile.TemporaryDirectory(prefix="fencepost-shared-") as folder:
        yield Path(folder)


def bare_python(folder: Path) -> Path:
    """A Python that has all that fencepost needs, and no fencepost."""
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "theirs.pth").write_text(str(pyspark_home().parent))  # so the .pth files in there are not read
    python = folder / "bin" / "python"
    assert subprocess.run([python, "-c", "import fencepost"], capture_output=True, check=False).returncode
    return python


class Place:
    """A job on the cluster, its input and what its databases hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        (folder / "in").mkdir()

    def say(self, line: str) -> None:
        temp = self.folder / "in" / f".{len(self.lines)}"
        temp.write_text(line + "\n")
        temp.rename(self.folder / "in" / f"{len(self.lines)}.txt")
        self.lines.append(line)

    def query(self, database: str, sql: str) -> list[tuple[Any, ...]]:
        with suppress(sqlite3.Error):
            connection = sqlite3.connect(self.folder / database)
            try:
                return connection.execute(sql).fetchall()
            finally:
                connection.close()
        return []

    def is_counted(self) -> bool:
        words = Counter(word for line in self.lines for word in line.split())
        return dict(words) == dict(self.query("out.db", "SELECT word, count FROM counts"))

    def check(self) -> None:
        assert self.is_counted(), self.log[-5000:]
        shouted = Counter(line.upper() for line in self.lines)
        assert shouted == Counter(row[0] for row in self.query("lines.db", "SELECT value FROM lines"))

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def until(self, true: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline, self.log[-5000:]
            time.sleep(0.05)

    def run(self, *command: object, **environment: str) -> int:
        with (self.folder / "log").open("ab") as log:
            done = subprocess.run(
                [str(part) for part in command],
                env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment},
                cwd="/",  # no test finds the package because it runs beside it
                stdout=log,
                stderr=log,
                timeout=PATIENCE_S,
                check=False,
            )
        return done.returncode


@pytest.fixture
def place(shared: Path) -> Place:
    return Place(shared)


def told(settings: dict[str, str]) -> list[str]:
    """As options of a command line."""
    return [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]


def test_spark_submit_with_the_wheel_runs_a_job_where_no_fencepost_is_installed(
    standalone: Standalone, place: Place, tmp_path: Path
) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, TREE]
    assert 0 == place.run(*build), place.log[-3000:]
    (wheel,) = tmp_path.glob("*.whl")
    place.say("a b")
    place.say("b c")
    submit = [pyspark_home() / "bin" / "spark-submit", *told({**standalone.settings, **QUICK}), "--py-files", wheel]
    home = {"SPARK_HOME": str(pyspark_home()), "PYSPARK_PYTHON": str(bare_python(place.folder / "bare"))}
    assert 0 == place.run(*submit, JOB, place.folder, "available", **home), place.log[-5000:]
    place.check()
    assert f"{wheel}/fencepost/__init__.py\n{standalone.url}" == (place.folder / "from").read_text()


@pytest.mark.long  # tests/proof/test_kill_cluster.py kills drivers on a cluster, too
def test_a_driver_that_is_killed_is_started_again_on_the_cluster_that_the_command_line_names(
    standalone: Standalone, place: Place
) -> None:
    place.say("a b")
    options = ["--master", standalone.url, *told({**standalone.settings, **QUICK, "spark.master": "local[1]"})]
    command = [sys.executable, "-m", "fencepost", "run", *options, str(JOB), str(place.folder)]
    with (place.folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as supervisor:
        try:
            place.until(place.is_counted)
            os.kill(next(beat.pid for beat in beats(str(place.folder / "ck")) if beat.lives), signal.SIGKILL)
            place.say("b c")
            place.until(lambda: place.is_counted() or supervisor.poll() is not None)
            supervisor.terminate()
            assert 0 == supervisor.wait(PATIENCE_S), place.log[-5000:]
        finally:
            supervisor.kill()
    place.check()
    assert 2 == place.log.count("fencepost: driver ")
    assert standalone.url in (place.folder / "from").read_text()


OWN_SESSION = """
import os, signal, sys
from contextlib import suppress
from pathlib import Path
from pyspark.sql import SparkSession

folder, settings = Path(sys.argv[1]), eval(sys.argv[2])
builder = SparkSession.builder
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
assert "fencepost" not in str(spark.sparkContext._jsc.sc().listJars())
spark.range(2).count()  # its executors run, and have never heard of us

import fencepost as fp

job = fp.Job("theirs", checkpoint=folder / "ck", spark=spark)
lines = job.read(fp.Files(str(folder / "in"), format="text", max_files_per_epoch=1))
words = lines.selectExpr("explode(split(value, ' ')) AS word")
job.write(words.groupBy("word").count(), fp.SQLite(folder / "out.db", table="counts", key="word"))
shouted = fp.map_with_state(lines, by="value", state="n BIGINT", output="value STRING")(
    lambda line, had: ([(line.value.upper(),)], (1,))
)
job.write(shouted, fp.SQLite(folder / "lines.db", table="lines"))
job.run(until="available")
for stat in Path("/proc").glob("[0-9]*/cmdline"):  # executors that start now have to be given the same
    with suppress(OSError):
        if b"--app-id\\0" + spark.sparkContext.applicationId.encode() in stat.read_bytes():
            os.kill(int(stat.parent.name), signal.SIGKILL)
            print("killed", stat.parent.name)
(folder / "in" / "late.txt").write_text("late")
job.run(until="available")
"""


@pytest.mark.long
def test_a_session_that_runs_on_a_cluster_gets_what_its_tasks_need(standalone: Standalone, place: Place) -> None:
    place.say("a b")
    place.say("b c")
    settings = repr({**standalone.settings, **QUICK})
    assert 0 == place.run(sys.executable, "-c", OWN_SESSION, place.folder, settings), place.log[-5000:]
    assert 2 == place.log.count("killed ")
    place.lines.append("late")
    place.check()


def test_a_checkpoint_that_executors_do_not_share_is_refused(standalone: Standalone, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.say("a b")
    options = ["--master", standalone.url, *told({**standalone.settings, **QUICK})]
    assert 2 == place.run(sys.executable, "-m", "fencepost", "run", *options, JOB, place.folder), place.log[-5000:]
    assert "[checkpoint_not_shared] The executor on worker-" in place.log
    assert not (place.folder / "ck").exists()


@pytest.mark.long
@pytest.mark.parametrize("store", ["hdfs", "s3"])
def test_the_job_of_the_demo_runs_with_another_master_and_another_path_and_nothing_else_changed(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = request.getfixturevalue(store)
    url = f"{place.url}/demo" if store == "hdfs" else f"{place.make_bucket('demo-' + uuid.uuid4().hex[:8])}/words"
    (tmp_path / "lines").mkdir()
    for number in range(4):
        lines = [json.dumps({"id": 5 * number + line, "line": "one two"}) for line in range(5)]
        (tmp_path / "lines" / f"{number}.json").write_text("\n".join(lines))
    jars = {"spark.jars": ",".join(map(str, place.jars))} if store == "s3" else {}
    with Standalone(tmp_path / "cluster") as cluster:  # on one machine: the demo's input is a folder
        told = {"spark.master": cluster.url, **cluster.settings, **place.settings, **jars}
        command = [sys.executable, "-m", "fencepost.cli.demo_job", "words", str(tmp_path), url]
        environment = {**os.environ, "FENCEPOST_SPARK": json.dumps(told)}
        killed = {**environment, faults.ARM: "decide.after=kill@2"}
        assert subprocess.run(command, check=False, env=killed, timeout=PATIENCE_S).returncode == -signal.SIGKILL
        subprocess.run(command, check=True, env=environment, timeout=PATIENCE_S)
    with sqlite3.connect(tmp_path / "lines.db") as db:
        assert db.execute("SELECT count(*), count(DISTINCT id) FROM lines").fetchone() == (20, 20)
    with sqlite3.connect(tmp_path / "counts.db") as db:
        assert db.execute("SELECT word, count FROM counts ORDER BY 1").fetchall() == [("one", 20), ("two", 20)]
