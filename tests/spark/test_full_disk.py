"""A full disk: the epoch fails in our words, nothing is half written, and with room again the job goes on exactly."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from flaky import Flaky
from streams import BRIDGES, Place, decisions, records, table

import fencepost as fp
from fencepost.protocol import effects
from fencepost.runtime import performer

DISK = "8m"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own. Without root there is none, and the test with a limit per file has to do."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or unmount is None:
        pytest.skip("only root may mount a small disk")
    command = [mount, "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("no disk may be mounted here")
    yield folder
    subprocess.run([unmount, "--lazy", str(folder)], check=True)


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink in doubt is asked again at once."""
    monkeypatch.setitem(performer._DO, effects.Wait, lambda performer, effect: None)


def fill(disk: Path) -> None:
    """Take all the room there is, to the last byte."""
    with open(disk / "filler", "ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 - any other end of the loop is a bug of the test


class Filling(Flaky):
    """The disk gets full when the sink comes to this point."""

    def __init__(self, inner: fp.Sink, method: str, *, disk: Path) -> None:
        super().__init__(inner, method, at=2)
        self._disk = disk

    def reached(self) -> None:
        fill(self._disk)


@pytest.mark.spark
@pytest.mark.parametrize("full", list(product(["checkpoint", "database"], ["pre_commit", "verify", "commit"])))
@pytest.mark.parametrize("bridge", BRIDGES)
def test_a_disk_that_gets_full_in_an_epoch(
    spark: Any, place: Place, disk: Path, bridge: str, full: tuple[str, str]
) -> None:
    part, method = full
    checkpoint = disk / "checkpoint" if part == "checkpoint" else place.checkpoint
    database = disk / "out.db" if part == "database" else place.database
    inner = fp.SQLite(database, table="lines")
    place.say(*"abc")

    def run(sink: fp.Sink) -> None:
        job = place.job(spark, bridge, checkpoint=checkpoint)
        job.write(place.text(job), sink)
        job.run(until="available")

    with pytest.raises(fp.Retryable) as failed:
        run(Filling(inner, method, disk=disk))
    assert "job" == failed.value.where.job
    assert records(checkpoint), "every record can be read"
    seen = len(table(database, "lines"))
    assert seen in (1, 2)
    assert seen <= len(decisions(checkpoint))
    assert [("a",), ("b",)][:seen] == table(database, "lines")
    with pytest.raises(fp.FencepostError) as still:
        run(inner)
    assert "free space" in still.value.next
    (disk / "filler").unlink()
    run(inner)
    assert [("a",), ("b",), ("c",)] == table(database, "lines")


CHILD = """
import resource, sys
from pathlib import Path
from fencepost.runtime import performer
from fencepost.errors import FencepostError
from fencepost.protocol import effects
from killing import Scene
from streams import records

performer._DO[effects.Wait] = lambda performer, effect: None
scene = Scene(Path(sys.argv[1]), (sys.argv[2],))
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
size, codes = 64, []
while not codes or codes[-1] != "ran":
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        scene.job().run()
        codes.append("ran")
    except FencepostError as error:
        codes.append(error.code)
        assert error.where.job == "stand-in", error
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    records(scene.folder / "checkpoint")
    size = size * 5 // 4
print(*dict.fromkeys(codes), scene.is_exact())
"""


@pytest.mark.parametrize(
    ("target", "code"), [("sqlite", "target_unusable"), ("files", "epoch_failed"), ("function", "checkpoint_unusable")]
)
def test_files_that_cannot_grow_at_any_size(tmp_path: Path, target: str, code: str) -> None:
    """Every start gets a little further than the one before, and stops in our words."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent / "helpers")}
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), target],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == child.returncode, child.stderr
    *codes, last, exact = child.stdout.split()
    assert ("ran", "True") == (last, exact)
    assert code in codes
