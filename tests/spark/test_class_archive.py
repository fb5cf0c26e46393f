"""How Spark's JVM is started: the user's options win over ours, and a class archive never stands in anybody's way.

With the real java, which takes a second for an archive of its own classes; two tests start Spark.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.spark import class_archive, gateway
from fencepost.spark.class_archive import Archive

pytestmark = [pytest.mark.spark]

SERIAL = gateway.SERIAL


@pytest.fixture(autouse=True)
def _few_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    for name in gateway.THEIRS:
        monkeypatch.delenv(name, raising=False)


# --- options


def test_a_session_of_ours_gets_our_options_and_the_setting_replaces_them() -> None:
    assert SERIAL == gateway.choose({}).options
    assert "-Xss2m" == gateway.choose({}, "-Xss2m").options
    assert gateway.Chosen("") == gateway.choose({}, "none")


@pytest.mark.parametrize(
    ("conf", "environment", "defaults"),
    [
        ({"spark.driver.extraJavaOptions": "-Da=b -XX:+UseG1GC"}, {}, ""),
        ({"spark.driver.defaultJavaOptions": "-XX:+UseZGC"}, {}, ""),
        ({"spark.driver.memory": "6g"}, {}, ""),
        ({}, {"JAVA_TOOL_OPTIONS": "-XX:+UseParallelGC"}, ""),
        ({}, {"JDK_JAVA_OPTIONS": "-XX:-UseSerialGC"}, ""),
        ({}, {"SPARK_SUBMIT_OPTS": "-XX:+UseG1GC"}, ""),
        ({}, {"PYSPARK_SUBMIT_ARGS": "--driver-java-options '-XX:+UseG1GC' pyspark-shell"}, ""),
        ({}, {"PYSPARK_SUBMIT_ARGS": "--driver-memory 5000m pyspark-shell"}, ""),
        ({}, {}, "spark.driver.extraJavaOptions  -XX:+UseG1GC\n"),
        ({}, {}, "spark.driver.memory  8g\n"),
    ],
)
def test_a_collector_or_a_large_heap_of_the_users_leaves_ours_out(
    conf: dict[str, str], environment: dict[str, str], defaults: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(defaults)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = gateway.choose(conf)
    assert ("", (SERIAL,)) == (found.options, found.left_out)
    assert f"left out in favour of yours: {SERIAL}" in found.says


def test_other_options_of_the_users_leave_ours_alone() -> None:
    assert SERIAL == gateway.choose({"spark.driver.extraJavaOptions": "-Xss4m", "spark.driver.memory": "2g"}).options


def test_the_environment_is_as_it_was_after_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gateway.SUBMIT_OPTIONS, "-Dtheirs=1")
    with gateway._environment(gateway.Chosen(SERIAL, jars=("/a.jar",))):
        assert f"{SERIAL} -Dtheirs=1" == os.environ[gateway.SUBMIT_OPTIONS]  # the last one of a name wins
        assert "/a.jar" == os.environ[gateway.LAST_JARS]
    assert "-Dtheirs=1" == os.environ[gateway.SUBMIT_OPTIONS]
    assert gateway.LAST_JARS not in os.environ


# --- the archive


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """Of nothing but Java's own classes, listed and not made yet."""
    monkeypatch.setenv(class_archive.CACHE, str(tmp_path / "cache"))
    java = gateway.java()
    assert java is not None
    found = Archive(tmp_path / "cache" / "key", java)
    assert f"-XX:DumpLoadedClassList={found.list}" == found.option()
    subprocess.run([java, found.option(), "-version"], check=True, capture_output=True)
    return found


def make(archive: Archive, *options: str) -> subprocess.Popen[bytes]:
    """The process that makes it, as a driver starts it."""
    told = {"stem": str(archive.stem), "java": str(archive.java), "list": str(archive.list), "class_path": ""}
    process = subprocess.Popen(
        [sys.executable, "-m", class_archive.__name__], stdin=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps({**told, "options": options}).encode())
    process.stdin.close()
    return process


def is_mapped(archive: Archive) -> bool:
    option = archive.option()
    assert option is not None
    done = subprocess.run([archive.java, *option.split(), "-version"], check=True, capture_output=True)
    return b"sharing" in done.stderr


def names(archive: Archive) -> set[str]:
    return {path.name for path in archive.stem.parent.iterdir()}


def test_two_at_once_make_one_archive_and_a_damaged_one_is_ignored_and_made_again(archive: Archive) -> None:
    for process in [make(archive), make(archive)]:
        assert 0 == process.wait()
    assert 0 == make(archive).wait()  # it may have been the one that gave way who had the list
    assert {"key.jsa", "key.classes", "key.lock"} == names(archive)
    assert is_mapped(archive)
    whole = archive.file.read_bytes()
    middle = len(whole) // 2
    for damaged in (whole[:middle], whole[:middle] + b"\xff" * 64 + whole[middle + 64 :], b"not ours", b""):
        archive.file.unlink()
        archive.file.write_bytes(damaged)
        assert not is_mapped(archive)  # and Java runs all the same
    found = gateway.Chosen("", archive=archive, uses_archive=True).looked_at(Jvm("mixed mode"))
    assert "made again" in found.note
    assert found.lists_classes
    assert not archive.file.exists()
    assert 0 == make(archive).wait()
    assert is_mapped(archive)


class Jvm:
    """Answers for a JVM: how it runs is all that is asked."""

    def __init__(self, info: str) -> None:
        self.info = info

    def __getattr__(self, name: str) -> Any:
        return self

    def getProperty(self, name: str) -> str:  # noqa: N802 - Java's name
        return self.info


def test_one_that_fits_is_kept(archive: Archive) -> None:
    archive.file.write_bytes(b"")
    found = gateway.Chosen("", archive=archive, uses_archive=True)
    assert found == found.looked_at(Jvm("mixed mode, sharing"))
    assert archive.file.exists()


HANGS = """#!/bin/sh
for option; do case $option in -XX:SharedArchiveFile=*) echo half > "${option#*=}"; esac; done
exec sleep 600
"""
"""A java that does not come to the end of an archive."""


def test_killed_in_the_middle_it_leaves_no_archive_and_the_next_one_makes_it(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "java").write_text(HANGS)
    (tmp_path / "java").chmod(0o755)
    process = make(replace(archive, java=tmp_path / "java"))
    half = archive.stem.with_suffix(f".{process.pid}.tmp")
    # Its list has the same name for a moment, before it is whole.
    while not (archive.classes.exists() and half.exists() and half.read_bytes() == b"half\n"):
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not archive.file.exists()
    os.utime(half, (0, 0))  # it was long ago
    assert 0 == make(archive).wait()
    assert {"key.jsa", "key.classes", "key.lock"} == names(archive)
    assert is_mapped(archive)


def test_a_jvm_that_cannot_have_one_is_tried_again_a_day_later(archive: Archive) -> None:
    assert 0 == make(archive, "-XX:-UseCompressedClassPointers").wait()
    assert not archive.file.exists()
    assert b"UseCompressedClassPointers" in archive.unfit.read_bytes()
    assert archive.option() is None
    assert 0 == make(archive).wait()
    assert not archive.file.exists()
    long_ago = archive.unfit.stat().st_mtime - class_archive.ABANDONED_S
    os.utime(archive.unfit, (long_ago, long_ago))
    assert f"-XX:DumpLoadedClassList={archive.list}" == archive.option()
    assert 0 == make(archive).wait()
    assert is_mapped(archive)
    assert not archive.unfit.exists()


def test_what_was_unfit_and_is_not_asked_for_any_more_is_swept(archive: Archive) -> None:
    other = archive.stem.with_name("other.unfit")
    other.write_text("why")
    os.utime(other, (0, 0))
    assert 0 == make(archive).wait()
    assert not other.exists()


def test_a_disk_that_became_full_does_not_make_it_unfit(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    class_archive._take_list(archive.list, archive.classes)
    frees = iter([class_archive.LEAST_FREE, 0])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=next(frees)))
    failed = subprocess.CompletedProcess([], 1, b"No space left on device")
    monkeypatch.setattr(class_archive, "_run", lambda _: failed)
    class_archive._make(archive, "", [])
    assert {"key.classes", archive.list.name} == names(archive)


PLAINLY = "pathlib.Path('/proc/self/autogroup').write_text('19')"


def test_the_maker_gives_way_to_other_sessions_too_if_it_has_one_of_its_own() -> None:
    if 19 != weight_after(PLAINLY, alone=True):
        pytest.skip("the kernel does not weigh sessions, or a sandbox keeps it from being told")
    ours = "fencepost.spark.class_archive._give_way()"
    assert 19 == weight_after(ours, alone=True)
    assert weight_after("", alone=False) == weight_after(ours, alone=False)


def weight_after(call: str, *, alone: bool) -> int | None:
    """How nice the session of a process is after a call, in one of its own or in ours; None if nobody can tell."""
    script = (
        "import pathlib, fencepost.spark.class_archive\n"
        f"{call}\n"
        "print(pathlib.Path('/proc/self/autogroup').read_text())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, start_new_session=alone
    )
    return int(done.stdout.split()[-1]) if done.stdout.split() else None


def test_no_archive_without_a_place_or_disk_or_against_the_users_options(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gateway.choose({}).lists_classes
    assert gateway.choose({"spark.driver.extraJavaOptions": "-Xshare:off"}).archive is None
    assert gateway.choose({"spark.driver.extraJavaOptions": "-XX:SharedArchiveFile=/a.jsa"}).archive is None
    monkeypatch.setattr(class_archive, "LEAST_FREE", 1 << 62)
    assert archive.option() is None
    monkeypatch.setenv(class_archive.CACHE, "")
    assert gateway.choose({}).archive is None


def test_one_that_others_may_write_is_not_used(archive: Archive) -> None:
    archive.file.write_bytes(b"")
    archive.file.chmod(0o622)
    assert archive.option() is None


def test_other_jars_are_another_archive(tmp_path: Path) -> None:
    java = gateway.java()
    assert java is not None
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"1")
    before = [class_archive.key(java, [], [path]) for path in (str(jar), f"{tmp_path}/*")]
    jar.write_bytes(b"12")
    after = [class_archive.key(java, [], [path]) for path in (str(jar), f"{tmp_path}/*")]
    assert 4 == len({*before, *after})


JOB = """
import sys
import fencepost as fp
from fencepost.spark import gateway
{}
job = fp.Job("start", checkpoint="ck", conf={{"spark.ui.enabled": "false"}}, quiet=False)
lines = job.read(fp.Files("in", format="text"))
job.write(lines, fp.SQLite("out.db", table="lines"))
job.run(until="available")
print(gateway.chosen().options or "none", gateway.chosen().lists_classes)
"""


@pytest.mark.parametrize(
    ("before", "says"),
    [
        (
            "gateway.choose({'spark.driver.extraClassPath': str(JAR)}).archive.file.write_text('not one')",
            "the class archive does not fit this JVM; the start takes longer, and the archive is made again",
        ),
        ("gateway.SERIAL = '-XX:+UseSerialGC -XX:+UseG1GC'", "Spark's JVM did not start with -XX:+UseSerialGC"),
    ],
    ids=["archive", "options"],
)
def test_a_job_runs_without_what_does_not_fit_and_says_so_in_one_line(tmp_path: Path, before: str, says: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\n")
    (tmp_path / "job.py").write_text(JOB.format("from fencepost.spark.spark_session import JAR\n" + before))
    environment = {**os.environ, class_archive.CACHE: str(tmp_path / "cache"), "PYTHONWARNINGS": "default"}
    with suppress(KeyError):
        del environment["SPARK_CONF_DIR"]
    done = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr
    assert 1 == (done.stdout + done.stderr).count(says), done.stderr
