"""A setting that is a secret reaches Spark, and no process has it among its arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fencepost as fp
from fencepost.errors import BadConfig
from fencepost.spark import spark_session

pytestmark = pytest.mark.spark

CANARY = r"hidden\canary =#:!"
SECRET = "spark.hadoop.fs.s3a.secret.key"  # noqa: S105 - a name
PLAIN = "spark.canary.plain"

SEEN = """
import json, pathlib

def arguments():
    for place in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield place.read_bytes().decode(errors="replace")
        except OSError:
            continue

def look(spark):
    said = list(arguments())
    found = {
        "hidden": [text for text in said if "hidden" in text and "canary =#" in text],
        "plain": sum("plain-to-see" in text for text in said),
        "value": spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key"),
    }
    pathlib.Path("seen.json").write_text(json.dumps(found))
"""
JOB = """
import fencepost as fp
from seen import look

job = fp.Job("secretive", checkpoint="ck", conf=CONF)
if __name__ == "__main__":
    look(job.spark)
"""
OWN = """
from pyspark.sql import SparkSession
from seen import look

if __name__ == "__main__":
    spark = SparkSession.builder.master("local[1]").getOrCreate()
    look(spark)
    spark.stop()
"""


def run(folder: Path, text: str, *arguments: str) -> dict[str, Any]:
    (folder / "seen.py").write_text(SEEN)
    (folder / "job.py").write_text(text)
    command = [sys.executable, "-m", "fencepost", "run", "job.py", "--restart", "none", *arguments]
    environment = {**os.environ, "CANARY": CANARY, "PYTHONPATH": str(Path(fp.__file__).parents[1])}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=180
    )
    assert (folder / "seen.json").exists(), done.stderr[-3000:]
    found: dict[str, Any] = json.loads((folder / "seen.json").read_text())
    return found


@pytest.mark.parametrize("text", [JOB.replace("CONF", "{}"), OWN], ids=["our session", "a session of the file's own"])
def test_no_process_shows_a_secret_setting(tmp_path: Path, text: str) -> None:
    found = run(tmp_path, text, "--conf", f"{SECRET}=env:CANARY", "--conf", f"{PLAIN}=plain-to-see")
    assert found["plain"] >= 2, "the look sees no arguments of the JVM, and would see no secret either"
    assert (CANARY, []) == (found["value"], found["hidden"])


@pytest.mark.long
def test_nor_does_one_that_the_job_names(tmp_path: Path) -> None:
    found = run(tmp_path, JOB.replace("CONF", repr({SECRET: "env:CANARY"})))
    assert (CANARY, []) == (found["value"], found["hidden"])


def test_a_variable_that_is_not_set_is_refused() -> None:
    with pytest.raises(BadConfig) as refused:
        spark_session.read(None, [f"{SECRET}=env:NOBODY_SET_THIS"])
    assert "secret_missing" == refused.value.code
    assert {"spark.eventLog.dir": "file:/tmp/log"} == spark_session.read(None, ["spark.eventLog.dir=file:/tmp/log"])
