"""How a job is, from what it left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ended import ended
from fencepost_proof.rig.process import until

from fencepost.errors import CheckpointRefused
from fencepost.observe import heartbeat
from fencepost.observe.events import Event, Kind
from fencepost.observe.health import instant, look
from fencepost.observe.heartbeat import PULSE, Beat, Pulse, this_driver
from fencepost.observe.journal import Journal, path_of

ME = os.getpid()


@pytest.fixture(scope="module")
def nobody() -> int:
    """A process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def zombie() -> Iterator[int]:
    """A process that ended, and whose parent has not asked how."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process.pid
    process.wait()


def note(root: Path, kind: Kind, ago: float = 0.0, **facts: Any) -> None:
    given = {"pid": ME, "at": instant(time.time() - ago), **facts}
    Journal(root).note(Event(kind=kind, job="stand-in", **given))


def test_a_job_that_ended_in_order_says_so_with_its_last_epoch(tmp_path: Path) -> None:
    found = look(ended(tmp_path))
    assert ("stopped", "stand-in", 1, "exactly_once") == (found.condition, found.job, found.epoch, found.guarantee)
    assert (None, None, True, False) == (found.flight, found.pid, found.is_well, found.needs_a_person)
    assert found.median_s is not None


def test_a_driver_that_was_killed_after_its_decision_is_dead_and_its_epoch_is_decided(tmp_path: Path) -> None:
    found = look(ended(tmp_path, "decide.after=kill@2"))
    assert ("dead", 0) == (found.condition, found.epoch)
    assert found.flight is not None
    assert (1, "decided") == (found.flight.epoch, found.flight.step)
    assert not found.is_well


@pytest.mark.parametrize(
    ("fault", "condition"), [("", "stopped"), ("decide.after=kill@2", "dead"), ("vote.before=kill@2", "dead")]
)
def test_without_a_journal_the_ledger_tells_a_clean_end_from_a_death(
    fault: str, condition: str, tmp_path: Path
) -> None:
    found = look(ended(tmp_path, fault, journal=False))
    # A driver that died before its decision has left the one before it open, just as one that stands still.
    assert condition == found.condition
    assert any("no journal" in note for note in found.notes)


BEFORE = 3600.0 * 24 * 365 * 20


@pytest.mark.parametrize(
    ("kind", "facts", "condition"),
    [
        (Kind.STOPPED, {}, "stopped"),
        (Kind.GAVE_UP, {"code": "restarts_spent"}, "failed"),
        (Kind.FAILED, {"code": "vote_failed"}, "failed"),
        (Kind.RESTARTED, {"seconds": 60.0}, "waiting"),
        (Kind.RESTARTED, {"seconds": 60.0, "pid": "nobody"}, "dead"),
        (Kind.RESTARTED, {"seconds": 0.0}, "starting"),
        (Kind.RESTARTED, {"seconds": 5.0, "ago": 4000.0}, "dead"),
        (Kind.SPAWNED, {"what": "driver", "process": ME, "pid": "nobody"}, "starting"),
        (Kind.SPAWNED, {"what": "driver", "process": "nobody"}, "dead"),
        (Kind.STARTED, {"writer": 1}, "starting"),
        (Kind.STARTED, {"writer": 1, "pid": "nobody"}, "dead"),
        (Kind.STARTED, {"writer": 1, "ago": BEFORE}, "dead"),  # the number belongs to another process by now
        (Kind.OPENED, {"writer": 1, "epoch": 2}, "dead"),
        (Kind.DIED, {"code": "driver_died"}, "starting"),
        (Kind.DIED, {"code": "driver_died", "pid": "nobody"}, "dead"),
    ],
)
def test_the_last_word_of_a_job_without_a_pulse_says_how_it_is(
    kind: Kind, facts: dict[str, Any], condition: str, tmp_path: Path, nobody: int
) -> None:
    root = ended(tmp_path, word=False)
    for beat in heartbeat.beats(root):
        (root / "fencepost" / "pulse" / f"{beat.host}-{beat.pid}.json").unlink()
    note(root, kind, **{name: nobody if value == "nobody" else value for name, value in facts.items()})
    # None of these is about the life of the job.
    note(root, Kind.FENCED, writer=0, code="fenced")
    note(root, Kind.FENCED, code="supervisor_gone")
    note(root, Kind.SPAWNED, what="standby", process=nobody)
    note(root, Kind.CALLBACK_FAILED, what="x")
    assert condition == look(root).condition


@pytest.mark.parametrize(
    ("supervisor", "reason", "condition"),
    [
        (ME, "engine", "waiting"),
        (ME, "operator", "failed"),
        (None, "engine", "failed"),
        ("nobody", "engine", "failed"),
        ("zombie", "engine", "failed"),
    ],
    ids=("lives", "lives-operator", "none", "gone", "zombie"),
)
def test_a_driver_that_failed_under_a_supervisor_is_not_given_up_yet(
    supervisor: Any, reason: str, condition: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root = ended(tmp_path)
    process = request.getfixturevalue(supervisor) if isinstance(supervisor, str) else supervisor
    note(root, Kind.STARTED, writer=1, supervisor=process)
    note(root, Kind.FAILED, writer=1, code="spark_failed", reason=reason)
    assert condition == look(root).condition


def test_a_pulse_is_proof_whatever_the_journal_says(tmp_path: Path) -> None:
    root = ended(tmp_path)
    PULSE.add(str(root), lambda: this_driver("stand-in", 1, 1, rest_s=0.05))
    try:
        found = look(root)
        assert ("running", ME, None, 0.05) == (found.condition, found.pid, found.supervisor, found.rest_s)
    finally:
        PULSE.remove(str(root))
    assert "stopped" == look(root).condition


def test_a_process_that_is_there_without_a_pulse_is_not_called_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = ended(tmp_path, word=False)
    monkeypatch.setattr(Beat, "is_here", True)
    monkeypatch.setattr(Beat, "is_fresh", False)
    assert "silent" == look(root).condition


def test_after_a_rewind_the_numbers_of_drivers_begin_anew(tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "fencepost").mkdir(parents=True)
    note(tmp_path / "checkpoint", Kind.STARTED, writer=50)
    note(tmp_path / "checkpoint", Kind.OPENED, writer=50, epoch=2)
    note(tmp_path / "checkpoint", Kind.FAILED, writer=50, code="vote_failed")
    found = look(ended(tmp_path))
    assert ("stopped", 1, None) == (found.condition, found.writer, found.flight)


def test_a_standby_is_named_while_it_lives_and_warm_when_it_says_so(tmp_path: Path, nobody: int) -> None:
    root = ended(tmp_path)
    note(root, Kind.SPAWNED, what="standby", process=ME)
    assert (ME, False) == (look(root).standby, look(root).standby_is_warm)
    note(root, Kind.WARM, process=ME)
    assert (ME, True) == (look(root).standby, look(root).standby_is_warm)
    note(root, Kind.TOOK_OVER, process=ME)
    assert None is look(root).standby
    note(root, Kind.WARM, process=nobody)
    assert None is look(root).standby


def test_a_sink_that_does_not_answer_is_a_case_for_a_person(tmp_path: Path) -> None:
    root = ended(tmp_path, "decide.after=kill@2")
    note(root, Kind.COMMITTED, writer=1, epoch=1, sink="db", units=0, what="in_doubt")
    found = look(root)
    assert found.flight is not None
    assert ("db", True) == (found.flight.doubt, found.needs_a_person)


def test_the_last_failure_keeps_its_words_and_is_over_once_an_epoch_is_complete(tmp_path: Path) -> None:
    root = ended(tmp_path)
    words = {"code": "lost", "what": "It is lost.", "safe": "Safe.", "next": "Choose."}
    note(root, Kind.FAILED, reason="operator", **words)
    found = look(root)
    assert found.failure is not None
    assert words == {name: getattr(found.failure, name) for name in words}
    assert (False, True) == (found.is_over, found.needs_a_person)
    note(root, Kind.COMPLETE, epoch=1, again=True, writer=1)
    assert not look(root).is_over
    note(root, Kind.COMPLETE, epoch=2, seconds=0.1, writer=1)
    assert (True, False) == (look(root).is_over, look(root).needs_a_person)


def test_a_damaged_ledger_is_said_and_the_rest_is_told(tmp_path: Path) -> None:
    root = ended(tmp_path)
    record = sorted(root.glob("fencepost/*/ledger/*.json"))[2]
    record.write_bytes(record.read_bytes()[:-9])
    found = look(root)
    assert found.damage is not None
    assert ("ledger_damaged", "stand-in", "stopped", 1) == (found.damage.code, found.job, found.condition, found.epoch)
    assert found.needs_a_person


def test_a_folder_that_never_was_a_checkpoint_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointRefused):
            look(place)


def test_a_journal_of_nonsense_is_no_journal(tmp_path: Path) -> None:
    root = ended(tmp_path)
    path_of(root).write_bytes(b"8\n{}\n[]\n" + os.urandom(5000))
    assert "stopped" == look(root).condition


def test_an_engine_that_does_not_answer_stops_the_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.02)
    said: list[int] = []
    engine = ["there"]

    def living() -> Beat:
        said.append(len(said))
        return this_driver("orders", 4, 7)

    mine = Pulse()
    mine.ask_engine = lambda: (engine.index("there"), None)[1]  # raises where it is not
    (tmp_path / "fencepost").mkdir()
    mine.add(str(tmp_path), living)
    until(lambda: len(said) > 3, "it beats")
    engine.clear()
    time.sleep(0.3)
    last = len(said)
    time.sleep(0.3)
    mine.remove(str(tmp_path))
    assert last == len(said)


def test_a_job_tells_the_heartbeat_and_the_stores_of_spark_without_importing_it() -> None:
    code = (
        "from fencepost.observe.heartbeat import PULSE; from fencepost.store import path; before = PULSE.ask_engine\n"
        "import sys, fencepost.job; from fencepost.spark import spark_session; assert 'pyspark' not in sys.modules\n"
        "assert PULSE.ask_engine is spark_session.ask_jvm is not before\n"
        "assert path._provider is spark_session._hadoop\n"
        "PULSE.ask_engine(); assert path._provider() is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)
