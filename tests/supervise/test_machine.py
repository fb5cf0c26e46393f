"""What the machine has to give, as its own files say it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.supervise import machine


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal:  1000 kB\nMemAvailable:  800 kB\nHugePages_Total:  0\n")
    (tmp_path / "self" / "cgroup").write_text("3:cpu:/\n")
    return tmp_path


def _group(folder: Path, **texts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_free_memory_is_what_the_machine_says(files: Path) -> None:
    assert 800 << 10 == machine.free_memory(files, files / "groups")


def test_the_limit_of_the_container_counts_with_what_is_only_cached(files: Path) -> None:
    (files / "self" / "cgroup").write_text("0::/a/b\n")
    _group(files / "groups" / "a" / "b", memory__max="max\n", memory__current="5\n", memory__stat="inactive_file 1\n")
    _group(
        files / "groups" / "a",
        memory__max="9000\n",
        memory__current="8000\n",
        memory__stat="anon 7\ninactive_file 500\n",
    )
    assert 1500 == machine.free_memory(files, files / "groups")


def test_the_limit_of_an_older_container_counts_too_and_so_does_one_whose_path_is_not_seen_inside(files: Path) -> None:
    (files / "self" / "cgroup").write_text("0::/\n4:cpu,memory:/docker/1f\n")
    texts = {"memory__limit_in_bytes": "9000\n", "memory__usage_in_bytes": "8000\n"}
    _group(files / "groups" / "memory", **texts, memory__stat="total_inactive_file 200\n")
    assert 1200 == machine.free_memory(files, files / "groups")


def test_nothing_is_known_where_nothing_is_said(tmp_path: Path) -> None:
    assert None is machine.free_memory(tmp_path, tmp_path)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One that leads a session, with a child in it."""
    code = "import subprocess, sys; subprocess.Popen(['sleep', '60']); print(flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **pipes) as found:  # type: ignore[call-overload]
        assert found.stdout.readline()
        yield found
        os.killpg(found.pid, 9)


def test_a_standby_goes_last_until_it_is_called_and_then_counts_like_its_supervisor(
    process: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Priorities are the kernel's own; the files are copies: sandboxes refuse or ignore writes to real ones."""
    child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    both = (process.pid, child)
    for pid in ("self", *both):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "autogroup").write_text("/autogroup-7 nice 1\n")
        (tmp_path / str(pid) / "oom_score_adj").write_text("100\n")
        (tmp_path / str(pid) / "stat").write_text(Path(f"/proc/{pid}/stat").read_text())
    monkeypatch.setattr(machine, "PROC", tmp_path)

    def seen(pid: int) -> tuple[int, int, int]:
        values = [int((tmp_path / str(pid) / name).read_text().split()[-1]) for name in ("autogroup", "oom_score_adj")]
        return os.getpriority(os.PRIO_PROCESS, pid), *values

    mine = os.getpriority(os.PRIO_PROCESS, 0)
    less = min(19, mine + machine.NICE) if machine.may_restore() else mine
    machine.hold_back(process.pid)
    assert (less, 1 + machine.NICE, 100 + machine.EXPENDABLE) == seen(process.pid)
    machine.hurry(process.pid)
    assert (mine, 1, 100 + machine.EXPENDABLE) == seen(process.pid)
    machine.let_go(process.pid)
    assert [(mine, 1, 100)] * 2 == [seen(pid) for pid in both]
    assert mine == os.getpriority(os.PRIO_PROCESS, 0)


def test_what_the_kernel_refuses_is_left_as_it_was(process: subprocess.Popen[bytes]) -> None:
    """The real files: whatever this machine allows, nothing raises, and nothing is held back in the end."""
    machine.hold_back(process.pid)
    machine.let_go(process.pid)
    assert os.getpriority(os.PRIO_PROCESS, 0) == os.getpriority(os.PRIO_PROCESS, process.pid)


def test_the_memory_of_a_driver_is_that_of_its_python_process_and_its_jvm(process: subprocess.Popen[bytes]) -> None:
    assert 1 << 20 < machine.used_memory(process.pid) < 1 << 30
