"""Twelve mistakes of a first day, run as a user runs them: what the terminal shows, to the letter.

The transcripts beside the jobs in `mistakes/` are what a user sees. After a change that is meant:
FENCEPOST_GOLDEN=write.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fencepost_proof.rig.mariadb import MariaDB

pytestmark = pytest.mark.spark

MISTAKES = Path(__file__).parent / "mistakes"
CHECKED = {"raises"}
"""Seen by `fencepost check`: python itself shows its own traceback, as it should."""
SERVERS = {"wrong_broker", "wrong_password"}
NAMES = sorted({path.stem for path in MISTAKES.glob("*.py") if "." not in path.stem})
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Short runs never reach the JVM's second compiler."""

Told = dict[str, str]


def transcript(place: Path, name: str, **more: str) -> str:
    """What the terminal shows, without what differs from machine to machine."""
    environment = {**os.environ, "JDK_JAVA_OPTIONS": SMALL, "FENCEPOST_HOME": str(place / "home"), **more}
    for before in (MISTAKES / f"{name}.first.py",):
        if before.exists():
            (place / f"{name}.py").write_text(before.read_text())
            subprocess.run([sys.executable, f"{name}.py"], cwd=place, env=environment, check=True, timeout=240)
            (place / "lines" / "2.txt").write_text("three\n")
    shutil.copy(MISTAKES / f"{name}.py", place)
    how = ["-m", "fencepost", "check"] if name in CHECKED else []
    done = subprocess.run(
        [sys.executable, *how, f"{name}.py"],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=240,
    )
    typed = " ".join(["fencepost check" if how else "python", f"{name}.py"])
    said = done.stdout.replace(str(place), "HERE")
    said = re.sub(r"logs/\S+\.log", "logs/LOG", said)
    said = re.sub(r"\b\d+\.\d s\b", "SECONDS", said)
    said = re.sub(r"Java \S+, Spark [\d.]+;", "Java JAVA, Spark SPARK;", said)
    said = re.sub(r"\bport=?\s?\d+", "port PORT", said)
    return f"$ {typed}\n{said}exit code {done.returncode}\n"


def compare(name: str, said: str) -> None:
    golden = MISTAKES / f"{name}.txt"
    if os.environ.get("FENCEPOST_GOLDEN") == "write":
        golden.write_text(said)
    assert golden.read_text() == said


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SERVERS])
def test_a_mistake_is_told_in_four_lines(place: Path, name: str) -> None:
    more: Told = {}
    if name == "bad_java_home":
        more["JAVA_HOME"] = "/opt/java-that-was-moved"
    if name == "missing_extra":
        (place / "hidden").mkdir()
        (place / "hidden" / "psycopg.py").write_text("raise ImportError\n")
        more["PYTHONPATH"] = os.pathsep.join([str(place / "hidden"), os.environ.get("PYTHONPATH", "")])
    compare(name, transcript(place, name, **more))


@pytest.mark.server
def test_a_wrong_broker_is_told_in_four_lines(place: Path, require: Callable[[str], None]) -> None:
    require("kafka")
    compare("wrong_broker", transcript(place, "wrong_broker", FENCEPOST_QUIET="1"))


def test_a_wrong_password_is_told_in_four_lines(place: Path, mariadb: MariaDB) -> None:
    said = transcript(place, "wrong_password", PORT=str(mariadb.port)).replace(str(mariadb.port), "PORT")
    assert "not-this-one" not in said
    compare("wrong_password", said)


def test_there_are_twelve_and_each_says_what_where_is_it_safe_and_what_next() -> None:
    texts = {name: (MISTAKES / f"{name}.txt").read_text() for name in NAMES}
    assert 12 == len(texts)
    for name, text in texts.items():
        assert re.search(r"^\[\w+\] .+\n(  where: .+\n)?  data:  .+\n  next:  .+$", text, re.MULTILINE), name
        assert "Traceback" not in text, name
    assert 12 == len({re.search(r"^\[(\w+)\]", text, re.MULTILINE)[1] for text in texts.values()})  # type: ignore[index]
