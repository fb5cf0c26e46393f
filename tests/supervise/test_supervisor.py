"""A driver that dies, hangs, fails or is refused, under its supervisor; without Spark, as real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fencepost.observe import journal, requests
from fencepost.observe.events import Kind

JOB = Path(__file__).with_name("stand_in_job.py")
PATIENCE_S = 60


class Place:
    """A folder with a script for the stand-in, and a supervisor over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def start(self, script: str, *options: str, arguments: tuple[str, ...] = ()) -> None:
        (self.folder / "script").write_text(script)
        command = [sys.executable, "-m", "fencepost", "run", *options, str(JOB), str(self.folder), *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, script: str, *options: str, arguments: tuple[str, ...] = ()) -> tuple[int, str]:
        self.start(script, *options, arguments=arguments)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        assert self.process is not None
        _, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, err

    @property
    def said(self) -> list[str]:
        with suppress(FileNotFoundError):
            return (self.folder / "said").read_text().splitlines()
        return []

    def until(self, true: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    if found.process is not None:
        with found.process as process:
            process.terminate()


def test_a_driver_that_dies_is_started_again_until_it_comes_to_its_end(place: Place) -> None:
    code, err = place.run("die die die end")
    assert 0 == code
    assert ["die 0", "die 1", "die 2", "end 3"] == [line.rsplit(" ", 1)[0][:5] for line in place.said]
    assert 3 == err.count("was killed by SIGKILL")
    kinds = [event.kind for event in journal.read(place.folder / "ck")]
    assert 3 == kinds.count(Kind.DIED) == kinds.count(Kind.RESTARTED)


def test_a_spent_budget_ends_with_code_4_and_says_what_failed_how_often_and_whether_the_data_is_safe(
    place: Place,
) -> None:
    code, err = place.run("die " * 9)
    assert 4 == code
    assert 5 == len(place.said), "the job's own strategy allows four restarts"
    assert "[restarts_spent] 5 failures" in err
    assert "was killed by SIGKILL" in err
    assert "data:  Safe" in err


def test_failures_inside_the_driver_and_its_death_come_out_of_one_budget(place: Place) -> None:
    code, _ = place.run("fail fail end")
    assert 4 == place.run("die", "--restart", "fixed-delay:attempts=0")[0]
    assert 0 == code
    assert ["fail 0", "fail 2", "end 4"] == [line[:6].strip() for line in place.said[:3]]


def test_the_strategy_of_the_command_line_goes_before_the_jobs_own(place: Place) -> None:
    assert 4 == place.run("die end", "--restart", "none")[0]
    assert ["die 0 none"] == place.said


@pytest.mark.parametrize(("act", "code"), [("fenced", 1), ("refused", 2), ("operator", 3)])
def test_what_is_final_is_not_tried_again(place: Place, act: str, code: int) -> None:
    found, err = place.run(f"{act} end")
    assert code == found
    assert f"[{act}] So it is." in err
    assert 1 == len(place.said)


def test_a_driver_whose_jvm_died_is_started_in_a_new_process(place: Place) -> None:
    assert 0 == place.run("jvm end")[0]


def test_a_file_that_never_comes_to_its_job_is_not_tried_again(place: Place) -> None:
    code, err = place.run("end", arguments=("crash",))
    assert 1 == code
    assert "ValueError: before the job" in err
    assert "it is not started again" in err
    assert 1 == len(re.findall(r"driver \d+ started", err))


def test_a_file_that_swallows_what_is_final_does_not_bring_its_driver_back(place: Place) -> None:
    code, err = place.run("caught end")
    assert 1 == code
    assert "[fenced] So it is." in err
    assert 1 == len(place.said)


def test_the_exit_code_of_a_file_whose_job_was_over_is_its_own(place: Place) -> None:
    code, err = place.run("over end")
    assert 3 == code
    assert "The job was over; then its file ended with exit code 3." in err
    assert 1 == len(place.said)


def test_a_driver_without_a_pulse_is_killed_and_started_again(place: Place) -> None:
    code, err = place.run("freeze end", "--heartbeat", "3s")
    assert 0 == code
    assert "had no pulse for 3 s, and was killed" in err


def test_a_driver_that_forked_and_died_is_noticed_though_its_line_is_held(place: Place) -> None:
    began = time.monotonic()
    assert 0 == place.run("fork end")[0]
    assert time.monotonic() - began < 5 + PATIENCE_S / 2


def test_a_supervisor_that_slept_does_not_take_its_driver_for_hung(place: Place) -> None:
    place.start("serve", "--heartbeat", "2s")
    place.until(lambda: place.said)
    place.signal(signal.SIGSTOP)
    time.sleep(3)
    place.signal(signal.SIGCONT)
    time.sleep(0.5)
    place.signal(signal.SIGTERM)
    code, err = place.ended()
    assert 0 == code
    assert "no pulse" not in err


def test_sigterm_lets_the_driver_stop_and_ends_with_code_0(place: Place) -> None:
    place.start("serve")
    place.until(lambda: place.said)
    place.signal(signal.SIGTERM)
    assert 0 == place.ended()[0]


def test_a_second_interrupt_ends_a_driver_that_does_not_listen(place: Place) -> None:
    place.start("deaf")
    place.until(lambda: place.said)
    place.signal(signal.SIGINT)
    time.sleep(0.3)
    place.signal(signal.SIGINT)
    assert 130 == place.ended()[0]


def test_a_wish_to_stop_between_two_drivers_is_heeded(place: Place) -> None:
    place.start("die end", "--restart", "fixed-delay:attempts=5,delay=1h")
    place.until(lambda: list((place.folder / "ck" / "fencepost" / "pulse").glob("*.json")))
    requests.leave(place.folder / "ck", "stop", 1)
    assert 0 == place.ended()[0]
    assert 1 == len(place.said)


def test_a_standby_is_warmed_up_and_takes_over_at_once_where_the_strategy_would_wait(place: Place) -> None:
    place.start("serve serve end", "--standby", "--restart", "fixed-delay:attempts=5,delay=1h")
    place.until(lambda: "warmed" in place.said)
    os.kill(
        int(next((place.folder / "ck" / "fencepost" / "pulse").glob("*.json")).stem.rsplit("-", 1)[1]), signal.SIGKILL
    )
    place.until(lambda: 2 == sum(line.startswith("serve") for line in place.said))
    assert place.said[-1].startswith("serve 1 "), "the budget counts it"
    place.signal(signal.SIGTERM)
    code, err = place.ended()
    assert 0 == code
    assert "takes over" in err


def test_a_standby_ends_with_its_supervisor_and_the_driver_goes_on(place: Place) -> None:
    place.start("serve", "--standby")
    place.until(lambda: "warmed" in place.said)
    assert place.process is not None
    children = _children(place.process.pid)
    assert 2 == len(children)
    place.process.kill()
    place.process.wait()
    driver = int(next((place.folder / "ck" / "fencepost" / "pulse").glob("*.json")).stem.rsplit("-", 1)[1])
    (standby,) = set(children) - {driver}
    try:
        place.until(lambda: not _lives(standby))
        assert _lives(driver)
    finally:
        os.kill(driver, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _lives(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False
