"""Real jobs under `fencepost run`: killed, frozen, stopped. They come back by themselves, and the counts are right."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fencepost.observe import journal
from fencepost.observe.events import Kind
from fencepost.observe.heartbeat import Beat, beats, exists

pytestmark = pytest.mark.spark
JOB = Path(__file__).with_name("supervised_job.py")
PATIENCE_S = 300


class Place:
    """A supervised job, its input and what its databases hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        (folder / "in").mkdir()

    def start(self, *options: str, arguments: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fencepost", "run", *options, str(JOB), str(self.folder), *arguments]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        return self.process

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

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
        assert self.is_counted()
        assert Counter(self.lines) == Counter(row[0] for row in self.query("lines.db", "SELECT value FROM lines"))

    def until(self, true: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline, self.log[-3000:]
            time.sleep(0.02)

    @property
    def driver(self) -> Beat:
        self.until(lambda: any(beat.lives for beat in beats(self.folder / "ck")))
        return next(beat for beat in beats(self.folder / "ck") if beat.lives)

    def kinds(self) -> list[Kind]:
        return [event.kind for event in journal.read(self.folder / "ck")]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    if found.process.poll() is None:
        found.process.terminate()
        found.process.wait(PATIENCE_S)


@pytest.mark.parametrize("sign", ["fencepost: standby", pytest.param("is warm", marks=pytest.mark.long)])
def test_a_killed_driver_is_replaced_by_its_standby_and_the_counts_are_right(place: Place, sign: str) -> None:
    """As soon as there is one, or when it is warm."""
    process = place.start("--standby", "--restart", "fixed-delay:attempts=1,delay=1h")
    place.say("a b")
    place.until(place.is_counted)
    place.until(lambda: sign in place.log)
    first = place.driver
    place.say("b c")
    os.kill(first.pid, signal.SIGKILL)
    place.until(place.is_counted)
    assert first.pid != place.driver.pid
    assert Kind.TOOK_OVER in place.kinds()
    process.send_signal(signal.SIGTERM)
    assert 0 == process.wait(PATIENCE_S)
    place.check()
    assert Kind.STOPPED is place.kinds()[-1]
    assert [] == beats(place.folder / "ck")


@pytest.mark.long
@pytest.mark.parametrize("phase", ["session", "sink", "start", "epochs"])
def test_a_standby_that_is_called_in_any_phase_before_it_is_warm_starts_the_job(place: Place, phase: str) -> None:
    """In the test its warm-up never comes to an end; until it is called it stands still in this phase."""
    process = place.start("--standby", "--restart", "fixed-delay:attempts=1,delay=1h", arguments=(phase,))
    place.say("a b")
    place.until(place.is_counted)
    place.until((place.folder / phase).exists)
    first = place.driver
    place.say("b c")
    os.kill(first.pid, signal.SIGKILL)
    place.until(place.is_counted)
    place.say("c d")
    place.until(place.is_counted)
    assert f"standby {place.driver.pid} takes over (it is not warm yet)" in place.log
    process.send_signal(signal.SIGTERM)
    assert 0 == process.wait(PATIENCE_S)
    assert "is warm" not in place.log
    place.check()


@pytest.mark.long
@pytest.mark.parametrize("phase", ["session", "epochs"])
def test_a_standby_and_its_jvm_end_with_a_supervisor_that_dies_before_they_are_warm(place: Place, phase: str) -> None:
    process = place.start("--standby", arguments=(phase,))
    place.say("a b")
    place.until((place.folder / phase).exists)
    driver = place.driver.pid
    (standby,) = set(_children(process.pid)) - {driver}
    jvm = _jvm_of(standby)
    process.kill()
    process.wait()
    try:
        place.until(lambda: not exists(standby) and not exists(jvm))
        place.say("b c")
        place.until(place.is_counted)
        assert driver == place.driver.pid
    finally:
        os.kill(driver, signal.SIGTERM)
    place.until(lambda: not exists(driver))
    place.check()


@pytest.mark.long
def test_a_driver_killed_twenty_times_in_a_row_comes_back_each_time_until_the_budget_is_spent(place: Place) -> None:
    process = place.start("--restart", "fixed-delay:attempts=20,delay=0s")
    for number in range(20):
        place.say(f"a w{number}")
        place.until(place.is_counted)
        place.say(f"b v{number}")
        os.kill(place.driver.pid, signal.SIGKILL)
        place.until(place.is_counted)
    place.check()
    os.kill(place.driver.pid, signal.SIGKILL)
    assert 4 == process.wait(PATIENCE_S)
    assert (
        "[restarts_spent] Gave up after 21 failures: fixed_delay:attempts=20,delay=0s allows no more restarts"
        in place.log
    )
    assert "data:  Safe" in place.log
    place.check()


@pytest.mark.long
@pytest.mark.parametrize("victim", ["python", "jvm"])
def test_a_frozen_driver_is_killed_and_started_again(place: Place, victim: str) -> None:
    process = place.start("--heartbeat", "5s", "--restart", "fixed-delay:attempts=3,delay=0s")
    place.say("a b")
    place.until(place.is_counted)
    driver = place.driver.pid
    frozen = driver if victim == "python" else _jvm_of(driver)
    place.say("b c")
    os.kill(frozen, signal.SIGSTOP)
    place.until(place.is_counted)
    assert "sent no heartbeat for" in place.log
    process.send_signal(signal.SIGTERM)
    assert 0 == process.wait(PATIENCE_S)
    place.check()


@pytest.mark.long
def test_a_dead_jvm_costs_a_new_process_and_no_row(place: Place) -> None:
    process = place.start("--restart", "fixed-delay:attempts=3,delay=0s")
    place.say("a b")
    place.until(place.is_counted)
    os.kill(_jvm_of(place.driver.pid), signal.SIGKILL)
    place.say("b c")
    place.until(place.is_counted)
    assert "[jvm_lost]" in place.log
    process.send_signal(signal.SIGTERM)
    assert 0 == process.wait(PATIENCE_S)
    place.check()


@pytest.mark.long
def test_a_new_supervisor_takes_over_from_one_that_was_killed_and_the_old_driver_is_fenced(place: Place) -> None:
    first = place.start()
    place.say("a b")
    place.until(place.is_counted)
    old = place.driver.pid
    first.kill()
    first.wait()
    second = place.start()
    place.until(lambda: place.driver.pid != old)
    place.say("b c")
    place.until(place.is_counted)
    place.until(lambda: not Path(f"/proc/{old}").exists() or Kind.FENCED in place.kinds())
    second.send_signal(signal.SIGTERM)
    assert 0 == second.wait(PATIENCE_S)
    place.check()


def _jvm_of(pid: int) -> int:
    """The JVM is the child of the driver's Python."""
    return next(child for child in _children(pid) if "java" in Path(f"/proc/{child}/comm").read_text())


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
