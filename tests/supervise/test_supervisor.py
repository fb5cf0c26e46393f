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

from fencepost import faults
from fencepost.observe import commands, journal
from fencepost.observe.events import Kind
from fencepost.supervise import machine, supervisor
from fencepost.supervise.supervisor import Orders, Supervisor

JOB = Path(__file__).with_name("stand_in_job.py")
PATIENCE_S = 180


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


def test_a_stop_before_the_job_has_started_is_one_line(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("import pathlib, time\npathlib.Path('here').touch()\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "fencepost", "run", str(job)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "here").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert 0 == process.returncode
    assert ["fencepost: stopped before the job had started"] == err.splitlines()[1:], "the first: which driver"


def test_a_spent_budget_ends_with_code_4_and_says_what_failed_how_often_and_whether_the_data_is_safe(
    place: Place,
) -> None:
    code, err = place.run("die " * 9)
    assert 4 == code
    assert 5 == len(place.said), "the job's own strategy allows four restarts"
    assert "[restarts_spent] Gave up after 5 failures" in err
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


def test_a_driver_that_was_replaced_and_died_without_a_word_is_not_started_again(place: Place) -> None:
    """Another one would take the checkpoint from its successor, whose supervisor would do the same."""
    code, err = place.run("replaced end")
    assert 1 == code
    said, _, (word, other) = place.said[0], place.said[1], place.said[2].split()
    assert ("replaced", "by", 3) == (said.split()[0], word, len(place.said))
    assert re.search(rf"\[fenced\] .* ended with exit code 1\. .* process {other} on .*, which took over at 2", err)
    assert "data:  Safe: the other driver continues" in err
    # An earlier run's writer is not a successor.
    assert 0 == place.run("die end")[0]


def test_a_driver_whose_jvm_died_is_started_in_a_new_process(place: Place) -> None:
    assert 0 == place.run("jvm end")[0]


def test_a_file_that_never_comes_to_its_job_is_not_tried_again(place: Place) -> None:
    code, err = place.run("end", arguments=("crash",))
    assert 1 == code
    assert "ValueError: before the job" in err
    assert "so it is not restarted" in err
    assert 1 == len(re.findall(r"driver \d+ started", err))


def test_a_file_that_swallows_what_is_final_does_not_bring_its_driver_back(place: Place) -> None:
    code, err = place.run("caught end")
    assert 1 == code
    assert "[fenced] So it is." in err
    assert 1 == len(place.said)


def test_the_exit_code_of_a_file_whose_job_was_over_is_its_own(place: Place) -> None:
    code, err = place.run("over end")
    assert 3 == code
    assert "The job ended cleanly; then its file ended with exit code 3." in err
    assert 1 == len(place.said)


def test_a_driver_without_a_pulse_is_killed_and_started_again(place: Place) -> None:
    code, err = place.run("freeze end", "--heartbeat", "3s")
    assert 0 == code
    assert "sent no heartbeat for 3 s and was killed" in err


def test_a_driver_that_forked_and_died_is_noticed_though_its_line_is_held(place: Place) -> None:
    began = time.monotonic()
    assert 0 == place.run("fork end")[0]
    assert time.monotonic() - began < 60


@pytest.mark.serial
def test_a_supervisor_that_slept_does_not_take_its_driver_for_hung(place: Place) -> None:
    place.start("serve", "--heartbeat", "4s")
    place.until(lambda: place.said)
    place.signal(signal.SIGSTOP)
    time.sleep(5)
    place.signal(signal.SIGCONT)
    time.sleep(0.5)
    place.signal(signal.SIGTERM)
    code, err = place.ended()
    assert 0 == code
    assert "no heartbeat" not in err


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
    commands.leave(place.folder / "ck", "stop", 1)
    assert 0 == place.ended()[0]
    assert 1 == len(place.said)


def test_a_standby_is_warmed_up_and_takes_over_at_once_where_the_strategy_would_wait(place: Place) -> None:
    place.start("serve serve end", "--standby", "--restart", "fixed-delay:attempts=5,delay=1h")
    place.until(lambda: "warmed" in place.said)
    os.kill(_driver(place), signal.SIGKILL)
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
    driver = _driver(place)
    (standby,) = set(children) - {driver}
    try:
        place.until(lambda: not _lives(standby))
        assert _lives(driver)
    finally:
        os.kill(driver, signal.SIGKILL)


LINGERS = pytest.mark.parametrize("phase", ["lingers in its file", "lingers in its warm-up"])


@LINGERS
def test_a_standby_that_is_called_before_it_is_warm_goes_on_to_its_start(place: Place, phase: str) -> None:
    place.start("serve serve end", "--standby", arguments=(phase,))
    place.until(lambda: _lingers(place))
    os.kill(_driver(place), signal.SIGKILL)
    place.until(lambda: 2 == sum(line.startswith("serve") for line in place.said))
    assert "warmed" not in place.said
    assert _lingers(place) in _children(place.process.pid)  # type: ignore[union-attr]
    place.signal(signal.SIGTERM)
    code, err = place.ended()
    assert 0 == code
    assert "takes over (it is not warm yet)" in err


@LINGERS
def test_a_standby_whose_supervisor_dies_before_it_is_warm_ends_and_the_driver_goes_on(
    place: Place, phase: str
) -> None:
    place.start("serve", "--standby", arguments=(phase,))
    place.until(lambda: _lingers(place))
    driver = _driver(place)
    place.process.kill()  # type: ignore[union-attr]
    place.process.wait()  # type: ignore[union-attr]
    try:
        place.until(lambda: not _lives(_lingers(place)))
        assert _lives(driver)
    finally:
        os.kill(driver, signal.SIGKILL)


def test_no_standby_is_started_while_a_new_driver_is_in_its_first_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "QUIET_S", 0.0)
    monkeypatch.setattr(supervisor, "IDLE_S", 0.0)
    found: list[bool] = []

    def say(text: str) -> None:
        if text.startswith("standby"):
            found.append((tmp_path / "ck" / "commits" / "0").exists())
            os.kill(os.getpid(), signal.SIGTERM)

    assert 0 == _supervised(tmp_path, "epoch", say)
    assert [True] == found


def test_a_standby_that_is_not_warm_after_a_while_gives_way_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others always need the processors, it would never be warm."""
    monkeypatch.setattr(supervisor, "GIVE_WAY_S", 0.0)
    said: list[str] = []
    hurried: list[int] = []

    def hurry(pid: int) -> None:
        hurried.append(pid)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(machine, "hurry", hurry)
    assert 0 == _supervised(tmp_path, "serve", said.append)
    assert [f"standby {pid} started" for pid in hurried] == [text for text in said if text.startswith("standby")]


@pytest.mark.parametrize("anyway", [False, True])
def test_without_memory_for_two_drivers_a_standby_is_refused_in_four_lines_unless_it_is_wanted_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyway: bool
) -> None:
    monkeypatch.setattr(machine, "free_memory", lambda: 10 << 20)
    found: list[str] = []

    def say(text: str) -> None:
        if "standby" in text:
            found.append(text)
            os.kill(os.getpid(), signal.SIGTERM)

    assert 0 == _supervised(tmp_path, "serve", say, anyway=anyway)
    (text,) = found
    if anyway:
        assert re.fullmatch(r"standby \d+ started", text)
    else:
        assert re.match(r"\[no_memory_for_standby\] .* need about \d\d+ MB .* and 10 MB are free", text)
        _, where, data, cure = text.splitlines()
        assert "job 'stand-in'" in where
        assert "data:  Safe: the job is running." in data
        assert "--standby-anyway" in cure


def _supervised(folder: Path, script: str, say: Callable[[str], None], *, anyway: bool = False) -> int:
    """Supervise the stand-in from this process; a SIGTERM to it ends that."""
    (folder / "script").write_text(script)
    return Supervisor(Orders(command=[str(JOB), str(folder)], standby=True, anyway=anyway), say).run()


def _lingers(place: Place) -> int:
    """The standby that does not get on; 0 as long as there is none."""
    return next((int(line.split()[1]) for line in place.said if line.startswith("lingers")), 0)


def _driver(place: Place) -> int:
    return int(next((place.folder / "ck" / "fencepost" / "pulse").glob("*.json")).stem.rsplit("-", 1)[1])


@pytest.mark.parametrize("looks", [True, False])
def test_a_driver_that_wakes_in_its_start_without_its_supervisor_leaves_the_next_one_alone(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    """The twin does not look whether its supervisor lives, and takes the checkpoint from a supervised driver."""
    with monkeypatch.context() as patch:
        patch.setenv(faults.ARM, "recover.takeover.before=stop")
        place.start("take", arguments=() if looks else ("sleepwalk",))
        assert place.process is not None
        place.until(lambda: [pid for pid in _children(place.process.pid) if _state(pid) == "T"])
    (sleeper,) = _children(place.process.pid)
    place.process.kill()
    other = Place(tmp_path)
    other.start("take")
    assert other.process is not None
    try:
        other.until(lambda: any(line.startswith("sent 0") for line in other.said))
        os.kill(sleeper, signal.SIGCONT)
        other.until(lambda: not _lives(sleeper) or 2 == _writers(tmp_path / "ck"))
        (tmp_path / "go on").touch()
        code, err = other.ended()
        _, woke = place.ended()
        sent = [line.split()[1] for line in other.said if line.startswith("sent")]
    finally:
        for process in (place.process, other.process):
            process.kill()
    assert (0 if looks else 1) == code
    assert (1 if looks else 2) == _writers(tmp_path / "ck")
    assert looks == ("[supervisor_gone]" in woke)
    assert looks == ("[fenced]" not in err)
    assert {"0", "1", "2"} == set(sent)
    assert not looks or 3 == len(sent)


def _writers(checkpoint: Path) -> int:
    """How often a driver took it over."""
    return sum('"kind":"writer"' in path.read_text() for path in checkpoint.glob("fencepost/*/ledger/*.json"))


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _lives(pid: int) -> bool:
    return _state(pid) not in ("Z", None)


def _state(pid: int) -> str | None:
    """Running, sleeping, stopped (T), a zombie (Z); None if it is gone."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return None
