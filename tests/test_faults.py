"""Crash points do nothing unless asked, and exactly what was asked otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost import faults
from fencepost.faults import Fault, parse

VISITS = """
import sys
from fencepost import faults
for point in sys.argv[1:]:
    faults.reach(point)
    print(point, flush=True)
"""


def visit(*points: str, **variables: str) -> subprocess.Popen[str]:
    """Reach these points in a process of its own, whose environment holds these variables and no other fault."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(faults.ARM)}
    command = [sys.executable, "-c", VISITS, *points]
    return subprocess.Popen(command, env={**environment, **variables}, stdout=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """The exit code, and the points that were passed."""
    out, _ = process.communicate(timeout=30)
    return process.returncode, out.split()


def test_faults_are_read_in_order_with_the_first_visit_as_default() -> None:
    assert (Fault("decide.after", "kill", 3), Fault("vote.after", "stop", 1)) == parse(
        "decide.after=kill@3,vote.after=stop"
    )


def test_no_text_is_no_fault() -> None:
    assert () == parse("")


@pytest.mark.parametrize(
    "text", ["decide.after", "decide.after=", "decide.after=crash", "decide.after=kill@soon", "=@"]
)
def test_a_wrong_word_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"FENCEPOST_FAULT: .* is not point="):
        parse(text)


@pytest.mark.parametrize("text", ["=kill", "decide.after=kill@0"])
def test_a_fault_that_could_never_happen_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"FENCEPOST_FAULT: .* is not point="):
        parse(text)


def test_a_wrong_fault_ends_the_process_at_import() -> None:
    process = visit("a", FENCEPOST_FAULT="a=crash")
    assert (1, []) == end(process)


def test_nothing_happens_in_a_process_that_does_not_ask(tmp_path: Path) -> None:
    assert (0, ["a", "b"]) == end(visit("a", "b"))
    assert [] == list(tmp_path.iterdir())


def test_kill_comes_at_the_asked_visit_and_not_before() -> None:
    process = visit("a", "b", "a", "a", FENCEPOST_FAULT="a=kill@2")
    assert (-signal.SIGKILL, ["a", "b"]) == end(process)


def test_stop_halts_the_process_until_it_is_continued() -> None:
    process = visit("a", "b", FENCEPOST_FAULT="b=stop")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    try:
        assert os.WIFSTOPPED(status)
    finally:
        process.send_signal(signal.SIGCONT)
    assert (0, ["a", "b"]) == end(process)


def test_the_log_names_every_visit_and_the_one_that_killed(tmp_path: Path) -> None:
    log = tmp_path / "reached"
    process = visit("a", "b", "a", FENCEPOST_FAULT="b=kill", FENCEPOST_FAULT_LOG=str(log))
    assert (-signal.SIGKILL, ["a"]) == end(process)
    assert ["a", "b"] == log.read_text().split()


def test_fail_raises_what_a_broken_disk_would_and_the_process_lives_on() -> None:
    faults.arm({faults.ARM: "a=fail@2"})
    try:
        faults.reach("a")
        with pytest.raises(OSError, match="injected"):
            faults.reach("a")
        faults.reach("a")
    finally:
        faults.arm({})
