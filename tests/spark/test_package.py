"""What executors get of the package: all that tasks import, and no more."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import fencepost
from fencepost import Kafka, MySQL, Postgres, Sink
from fencepost.spark import package

SINKS = {
    "Kafka": Kafka("out", servers="localhost:9092", parallel=True),
    "MySQL": MySQL("t", database="db", user="u", staging="target"),
    "Postgres": Postgres("t", dsn="host=localhost", staging="target"),
}


def in_a_task(zipped: Path, code: str) -> subprocess.CompletedProcess[str]:
    """A Python with what tasks have: libraries, the zip, and no fencepost of its own."""
    path = os.pathsep.join([str(zipped), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    return subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def modules(zipped: Path) -> set[str]:
    names = zipfile.ZipFile(zipped).namelist()
    return {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names if name.endswith(".py")
    }


def test_every_module_that_executors_get_can_be_imported_there() -> None:
    wanted = sorted(modules(package.archive()))
    done = in_a_task(package.archive(), f"import fencepost, {', '.join(wanted)}; print(fencepost.__file__)")
    assert f"{package.archive()}/fencepost/__init__.py\n" == done.stdout, done.stderr
    assert in_a_task(Path("/nowhere"), "import fencepost").returncode


def test_a_zip_that_lacks_what_a_task_imports_is_noticed(tmp_path: Path) -> None:
    with zipfile.ZipFile(package.archive()) as whole, zipfile.ZipFile(tmp_path / "less.zip", "w") as less:
        for name in whole.namelist():
            if name != "fencepost/contract.py":
                less.writestr(name, whole.read(name))
    done = in_a_task(tmp_path / "less.zip", "import fencepost.spark.worker")
    assert "No module named 'fencepost.contract'" in done.stderr


def test_every_sink_that_writes_in_tasks_is_there_with_its_function() -> None:
    public = {name: getattr(fencepost, name) for name in fencepost.__all__}
    sinks = {kind for kind in public.values() if inspect.isclass(kind) and issubclass(kind, Sink) and kind is not Sink}
    assert {kind.__module__ for kind in sinks} <= modules(package.archive()), "users may derive from any"
    writers = {
        name
        for name, kind in public.items()
        if inspect.isclass(kind) and issubclass(kind, Sink) and kind.in_tasks is not Sink.in_tasks
    }
    assert set(SINKS) <= writers
    sent = modules(package.archive())
    assert set() == {public[name].__module__ for name in writers} - sent
    for sink in SINKS.values():
        assert {type(sink).__module__, type(sink.in_tasks("job")).__module__} <= sent


def test_what_only_a_driver_needs_stays_there() -> None:
    sent = modules(package.archive())
    rooms = {name.split(".")[1] for name in sent if "." in name}
    assert set() == rooms & {"admin", "cli", "config", "guarantee", "job", "runtime", "supervise", "testing"}
    package_size = sum(file.stat().st_size for file in Path(fencepost.__path__[0]).rglob("*.py"))
    with zipfile.ZipFile(package.archive()) as zipped:
        assert sum(each.file_size for each in zipped.infolist()) < package_size / 2


@pytest.mark.parametrize("code", ["from fencepost import Job", "import fencepost as fp; fp.Job"])
def test_a_name_of_the_driver_in_a_task_is_explained(code: str) -> None:
    done = in_a_task(package.archive(), code)
    assert "ImportError: fencepost.Job is for the driver" in done.stderr
