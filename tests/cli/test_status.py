"""`fencepost status` and `fencepost epochs`, as typed: on jobs that are over, dead, damaged or strange.

A job that lives has a file of its own (test_live_job.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ended import ended, tree
from fencepost_proof.stand_in import StandIn

from fencepost.connectors.sqlite.sink import SQLite
from fencepost.guarantee import Guarantee
from fencepost.observe import registry
from fencepost.observe.health import instant
from fencepost.observe.journal import Observer, path_of


def typed(*words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    given = {"capture_output": True, "text": True, "timeout": 60, **how}
    return subprocess.run([sys.executable, "-m", "fencepost", *words], check=False, **given)


def at_a_terminal(*words: str) -> tuple[str, int]:
    """What a person sees, and the exit code."""
    terminal, end = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    code = typed(
        *words, capture_output=False, stdout=end, stderr=end, env=env
    ).returncode  # a screenful fits in between
    os.close(end)
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while data := os.read(terminal, 65536):
            seen += data
    os.close(terminal)
    return seen.decode(), code


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ended(tmp_path_factory.mktemp("stopped"))


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ended(tmp_path_factory.mktemp("dead"), "decide.after=kill@2")


def test_a_job_that_was_stopped_is_well_and_looking_changes_nothing(stopped: Path) -> None:
    before = tree(stopped)
    result = typed("status", str(stopped))
    assert (0, "") == (result.returncode, result.stderr)
    assert result.stdout.startswith("stand-in: stopped cleanly, ")
    assert "epoch:       1 complete" in result.stdout
    assert "To continue: fencepost run" in result.stdout
    assert 0 == typed("epochs", "list", str(stopped)).returncode
    assert before == tree(stopped)


def test_a_dead_job_says_that_its_data_is_safe_and_what_to_do(dead: Path) -> None:
    result = typed("status", str(dead))
    assert (1, "") == (result.returncode, result.stderr)
    assert result.stdout.startswith("stand-in: dead, ")
    assert "1: decided, being committed" in result.stdout
    assert "Safe: the next start finishes what is decided" in result.stdout
    assert "Start it again: fencepost run" in result.stdout


def test_json_says_the_same_to_programs(dead: Path, stopped: Path) -> None:
    result = typed("status", str(dead), "--json")
    said = json.loads(result.stdout)
    assert 1 == result.returncode
    assert ("stand-in", "dead", 0, 1, "decided") == (
        said["job"], said["condition"], said["epoch"], said["in_flight"]["epoch"], said["in_flight"]["step"]
    )  # fmt: skip
    assert ("exactly_once", 1, False) == (said["guarantee"], said["writer"], said["needs_a_person"])
    well = json.loads(typed("status", str(stopped), "--json").stdout)
    assert set(well) == set(said)
    assert (None, None) == (well["in_flight"], well["data"])


def test_a_terminal_gets_a_panel_in_colour_and_a_pipe_does_not(dead: Path) -> None:
    seen, code = at_a_terminal("status", str(dead))
    assert 1 == code
    assert "╭" in seen
    assert "\x1b[" in seen
    assert "dead" in seen
    assert "\x1b[" not in typed("status", str(dead)).stdout
    listed, code = at_a_terminal("epochs", "list", str(dead))
    assert 0 == code
    assert "\x1b[" in listed


@pytest.mark.parametrize("words", [("status",), ("epochs", "list"), ("epochs", "show")])
def test_a_damaged_checkpoint_is_no_traceback_and_leads_to_the_doctor(words: tuple[str, ...], tmp_path: Path) -> None:
    root = ended(tmp_path)
    record = sorted(root.glob("fencepost/*/ledger/*.json"))[2]
    record.write_bytes(record.read_bytes()[:-9])
    result = typed(*words, str(root), *(["1"] if "show" in words else []))
    assert "Traceback" not in result.stderr
    assert "ledger_damaged" in result.stdout + result.stderr
    assert (3 if words == ("status",) else 2) == result.returncode
    if words == ("status",):
        assert f"fencepost doctor {root}" in result.stdout


def test_without_a_journal_the_ledger_is_enough(tmp_path: Path) -> None:
    root = ended(tmp_path, journal=False)
    path_of(root).mkdir(parents=True)
    result = typed("status", str(root))
    assert (0, "") == (result.returncode, result.stderr)
    assert "stopped cleanly" in result.stdout
    assert "There is no journal" in result.stdout
    listed = json.loads(typed("epochs", "list", str(root), "--json").stdout)["epochs"]
    assert [(0, "complete", 2, {}), (1, "complete", 2, {})] == [
        (one["epoch"], one["standing"], one["rows"], {k: v for k, v in one["phases_s"].items() if k != "tasks"})
        for one in listed
    ]


def test_no_folder_and_no_checkpoint_are_refused(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "no" / "where"):
        for words in (("status",), ("epochs", "list")):
            result = typed(*words, str(place))
            assert (2, "") == (result.returncode, result.stdout)
            assert "[no_ledger]" in result.stderr


def test_without_a_name_every_job_of_this_machine_has_a_line(
    dead: Path, stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(registry.HOME, str(tmp_path / "home"))
    nothing = typed("status")
    assert (0, "", True) == (nothing.returncode, nothing.stdout, "No job was started" in nothing.stderr)
    registry.note("stand-in", dead, "/some/job.py")
    registry.note("stand-in", stopped)
    registry.note("emptied", tmp_path)
    result = typed("status")
    assert 1 == result.returncode
    lines = result.stdout.splitlines()
    assert 3 == len(lines)
    assert {"dead", "stopped cleanly"} == {line.split("  ")[1].split(",")[0].strip() for line in lines[1:]}
    said = json.loads(typed("status", "--json").stdout)
    assert {str(dead), str(stopped)} == {one["checkpoint"] for one in said["jobs"]}
    assert "fencepost run /some/job.py" in typed("status", str(dead)).stdout


def test_a_reader_who_has_seen_enough_gets_no_traceback(stopped: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for words in (("status",), ("epochs", "list"), ("epochs", "show", "1")):
        where = [words[0], *words[1:2], str(stopped), *words[2:]]
        result = typed(*where, capture_output=False, stdout=writing, stderr=subprocess.PIPE)
        assert "" == result.stderr
    os.close(writing)


def test_status_and_epochs_import_nothing_heavy(stopped: Path) -> None:
    code = (
        "import sys\nfrom fencepost.cli.main import cli\n"
        f"for words in (['status'], ['epochs', 'list'], ['stop']):\n"
        f"    try:\n        cli([*words, {str(stopped)!r}], standalone_mode=False)\n"
        "    except SystemExit:\n        pass\n"
        "print('HEAVY', *({'pyspark', 'py4j', 'pyarrow', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)
    assert "HEAVY" == done.stdout.splitlines()[-1]


# --- epochs


def test_epochs_are_listed_with_what_they_held_and_how_long_they_took(stopped: Path) -> None:
    lines = typed("epochs", "list", str(stopped)).stdout.splitlines()
    assert "epoch  is        decided" in lines[0]
    assert 3 == len(lines)
    assert ["1", "complete"] == lines[2].split()[:2]
    assert "db 2 in 1" in lines[2]
    only = typed("epochs", "list", str(stopped), "--last", "1")
    assert 2 == len(only.stdout.splitlines())
    assert "1 older epochs" in only.stderr


def test_an_epoch_is_shown_with_its_range_its_writer_and_its_steps(stopped: Path) -> None:
    first, second = (json.loads(typed("epochs", "show", str(stopped), str(n), "--json").stdout) for n in (0, 1))
    assert {"0": {"start": "-", "end": '{"position":2}'}} == first["ranges"]
    assert {"0": {"start": '{"position":2}', "end": '{"position":4}'}} == second["ranges"]
    assert ({"db": {"rows": 2, "units": 1}}, 2, 1, "data", 1) == (
        second["sinks"], second["rows"], second["writer"], second["cause"], second["attempts"]
    )  # fmt: skip
    assert {"tasks", "pre-commit", "vote", "decide", "commit"} == set(second["phases_s"])
    text = typed("epochs", "show", str(stopped), "0").stdout
    assert "source:      0: the beginning → " in text
    assert "by writer 1, record 2" in text


def test_an_epoch_that_is_decided_and_not_complete_says_so(dead: Path) -> None:
    said = json.loads(typed("epochs", "list", str(dead), "--json").stdout)
    assert ["complete", "decided"] == [one["standing"] for one in said["epochs"]]


@pytest.mark.parametrize("level", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE])
def test_the_weaker_levels_have_epochs_too(level: Guarantee, tmp_path: Path) -> None:
    sink = SQLite(tmp_path / "out.db", table="rows", name="db")
    job = StandIn(tmp_path / "c", (1, 3, 5), 2, {"db": sink}, guarantee=level, observer=Observer("weak"))
    job.run()
    said = json.loads(typed("epochs", "list", str(tmp_path / "c"), "--json").stdout)
    assert level.word == said["guarantee"]
    assert [(0, "complete", 2), (1, "complete", 1)] == [
        (one["epoch"], one["standing"], one["rows"]) for one in said["epochs"]
    ]
    assert {"0": {"start": '{"position":2}', "end": '{"position":3}'}} == said["epochs"][1]["ranges"]
    assert level.word.replace("_", " ") in typed("status", str(tmp_path / "c")).stdout


def test_an_epoch_that_nobody_knows_is_refused_with_those_that_are(stopped: Path) -> None:
    result = typed("epochs", "show", str(stopped), "7")
    assert (2, "") == (result.returncode, result.stdout)
    assert "Known epochs: 0 to 1" in result.stderr


def test_times_are_written_as_in_the_ledger() -> None:
    assert ("1970-01-01T00:00:01.500+00:00", None) == (instant(1.5), instant(None))
