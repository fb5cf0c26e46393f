"""`fencepost check`: wrong jobs get clear refusals, all at once; right ones are told what holds; nothing is changed.

The texts beside the jobs in `wrong/` are what a user sees. After a change that is meant: FENCEPOST_GOLDEN=write.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import fencepost as fp
from fencepost.cli.lookup import find
from fencepost.cli.main import cli
from fencepost.connectors.kafka import source
from fencepost.connectors.kafka.coordinator import Coordinator
from fencepost.observe import registry
from fencepost.runtime import checks

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

WRONG = Path(__file__).parent / "wrong"
EXAMPLES = Path(__file__).parents[2] / "examples"
EXITS = {"kafka_is_down": 1}
"""Of those that are not simply refused."""


def check(file: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["check", str(file), *words])


def everything(folder: Path) -> dict[str, str]:
    """Every file with the sum of its bytes, and every folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(autouse=True)
def _noted_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of these jobs have the same name."""
    monkeypatch.setenv(registry.HOME, str(tmp_path.with_name(f"{tmp_path.name}.home")))


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody will answer: there is no need to wait for long."""
    monkeypatch.setattr(source, "PATIENCE_MS", 1000)
    monkeypatch.setitem(Coordinator.__init__.__kwdefaults__, "patience", 1.0)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("name", sorted(path.stem for path in WRONG.glob("*.py")))
def test_a_wrong_job_is_told_all_that_is_wrong_and_nothing_changes(place: Path, name: str) -> None:
    file = Path(shutil.copy(WRONG / f"{name}.py", place))
    before = everything(place)
    done = check(file)
    golden = WRONG / f"{name}.txt"
    said = re.sub(r"(?<=\S) {2,}", "  ", done.stdout.replace(str(place), "HERE"))  # a path's length moves columns
    if os.environ.get("FENCEPOST_GOLDEN") == "write":
        golden.write_text(said)
    assert golden.read_text() == said
    assert EXITS.get(name, 2) == done.exit_code
    assert before == everything(place)


def test_there_are_ten_wrong_jobs_and_each_breaks_another_rule() -> None:
    texts = [(WRONG / f"{path.stem}.txt").read_text() for path in WRONG.glob("*.py")]
    assert len({code for text in texts for code in re.findall(r"^\[(\w+)\]", text, re.MULTILINE)[:1]}) >= 10


RIGHT = """
from pathlib import Path
import fencepost as fp
HERE = Path(__file__).parent
job = fp.Job("wc", checkpoint=HERE / "checkpoint"{more})
lines = job.read(fp.Files(HERE / "lines", format="text"))
job.write(lines, {sink})
print("a file may talk")
"""


def write(place: Path, sink: str, more: str = "") -> Path:
    file = place / "job.py"
    file.write_text(RIGHT.format(sink=sink, more=more))
    return file


def test_a_right_job_is_told_what_holds_and_what_its_first_start_would_make(place: Path) -> None:
    file = write(place, 'fp.SQLite(HERE / "out.db", table="lines")')
    before = everything(place)
    done = check(file)
    assert (0, "It would start.") == (done.exit_code, done.stdout.splitlines()[-1])
    assert re.search("^  end to end +exactly_once  as asked$", done.stdout, re.MULTILINE)
    assert "the first start creates file out.db, table lines" in done.stdout
    assert before == everything(place)


def test_settings_from_outside_the_code_are_told_with_their_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("FENCEPOST_GUARANTEE", "at_least_once")
    monkeypatch.setenv("FENCEPOST_CHECKPOINTS", "elsewhere")
    (place / "fencepost.toml").write_text("[fencepost.jobs.wc]\ntimeout = '10 minutes'\n")
    done = check(write(place, 'fp.SQLite(HERE / "out.db", table="lines")'))
    assert [
        "  setting checkpoint: FENCEPOST_CHECKPOINTS is not used, the code sets it",
        "  setting guarantee = at_least_once, from FENCEPOST_GUARANTEE",
        "  setting timeout = 10 minutes, from timeout in [fencepost.jobs.wc] of fencepost.toml",
    ] == done.stdout.splitlines()[1:4]
    monkeypatch.setenv("FENCEPOST_TIMEOUT", "soon")
    wrong = check(place / "job.py")
    assert (2, "[bad_setting]") == (wrong.exit_code, wrong.stdout.split(" ")[0])


def test_json_is_json_whatever_the_file_prints(place: Path) -> None:
    done = check(write(place, 'fp.SQLite(HERE / "there.db", table="wide")'), "--json")
    [job] = json.loads(done.stdout)["jobs"]
    assert (2, False, "exactly_once", ["schema_does_not_fit"]) == (
        done.exit_code,
        job["starts"],
        job["guarantee"],
        [problem["code"] for problem in job["problems"]],
    )


def test_after_a_run_a_job_is_checked_against_its_own_ledger_and_target(place: Path) -> None:
    file = write(place, 'fp.SQLite(HERE / "out.db", table="lines")')
    run(place)
    assert 0 == check(file).exit_code
    before = everything(place)
    changed = check(write(place, 'fp.SQLite(HERE / "out.db", table="lines")', ', guarantee="at_least_once"'))
    replaced = check(write(place, 'fp.SQLite(HERE / "elsewhere.db", table="lines")'))
    removed = check(write(place, 'fp.SQLite(HERE / "out.db", table="lines", name="other")'))
    assert [2, 2, 2] == [one.exit_code for one in (changed, replaced, removed)]
    for code, one in (("guarantee_changed", changed), ("target_replaced", replaced), ("sink_added", removed)):
        assert f"[{code}]" in one.stdout
    (place / "job.py").unlink()
    before.pop("job.py")
    assert before == everything(place)


def run(place: Path) -> None:
    job = fp.Job("wc", checkpoint=place / "checkpoint")
    job.write(job.read(fp.Files(place / "lines", format="text")), fp.SQLite(place / "out.db", table="lines"))
    job.run(until="available")


EARLY = """
import fencepost as fp
job = fp.Job("wc", checkpont="checkpoint")
lines = job.read(fp.Fils("lines"))
"""


def test_what_shows_without_a_jvm_is_said_within_two_seconds(tmp_path: Path) -> None:
    """In a process of its own, as a user types it; both problems, with their lines."""
    (tmp_path / "job.py").write_text(EARLY)
    command = [sys.executable, "-X", "importtime", "-m", "fencepost", "check", "job.py", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=180)
    problems = json.loads(done.stdout)["problems"]
    assert [("unknown_argument", "Did you mean checkpoint=…?"), ("unknown_name", "Did you mean fp.Files?")] == [
        (one["code"], one["next"]) for one in problems
    ]
    assert ["(line 3)", "(line 4)."] == [one["what"][one["what"].index("(line") :] for one in problems]
    assert 2 == done.returncode
    assert "py4j" not in done.stderr  # no second would be enough for a JVM


def test_a_file_that_is_not_python_is_said_without_a_jvm(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("job = (\n")
    assert "[file_fails] The file is not valid Python: SyntaxError in line 1." in check(tmp_path / "job.py").stdout


def test_a_check_that_changed_something_would_be_noticed(place: Path) -> None:
    before = everything(place)
    fp.SQLite(place / "there.db", table="words").session("wc").preflight(
        pa.schema([("value", pa.string()), ("count", pa.int64())]), "append"
    )
    assert before != everything(place)


def test_a_driver_that_may_be_running_is_noted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(place)
    file = write(place, 'fp.SQLite(HERE / "out.db", table="lines")')
    assert "may already be running" not in check(file).stdout
    monkeypatch.setattr(checks, "_lives", lambda pid: pid == os.getpid())
    done = check(file)
    assert (0, True) == (done.exit_code, f"may already be running (process {os.getpid()})" in done.stdout)


def test_a_job_is_found_by_its_name_by_the_file_that_made_it_and_by_its_checkpoint(place: Path) -> None:
    run(place)
    file = write(place, 'fp.SQLite(HERE / "out.db", table="lines")')
    found = {find(text) for text in ("wc", str(file), str(place / "checkpoint"))}
    assert {place / "checkpoint"} == found


def test_a_table_that_is_gone_is_missed(place: Path) -> None:
    run(place)
    with closing(sqlite3.connect(place / "out.db")) as database, database:
        database.execute("DROP TABLE lines")
    done = check(write(place, 'fp.SQLite(HERE / "out.db", table="lines")'))
    assert "[table_lost]" in done.stdout


def test_times_that_do_not_go_together_are_noted(place: Path) -> None:
    options = 'fp.Checkpoint(HERE / "checkpoint", timeout="500 ms", min_pause="1 s", overlap=True)'
    file = place / "job.py"
    text = RIGHT.format(sink='fp.SQLite(HERE / "out.db", table="lines")', more="")
    file.write_text(text.replace('checkpoint=HERE / "checkpoint"', f"checkpoint={options}"))
    done = check(file)
    assert 0 == done.exit_code
    assert "min_pause (1 s) is not below timeout (0.5 s)" in done.stdout
    assert "overlap is on: an epoch is committed while Spark runs the next one" in done.stdout


@pytest.mark.usefixtures("_impatient")
def test_a_transaction_that_is_shorter_than_an_epoch_may_take_is_noted(place: Path) -> None:
    file = place / "job.py"
    text = RIGHT.format(sink='fp.Kafka("out", servers="127.0.0.1:9", transaction_timeout=30)', more="")
    options = 'fp.Checkpoint(HERE / "checkpoint", timeout="5 minutes")'
    file.write_text(text.replace('checkpoint=HERE / "checkpoint"', f"checkpoint={options}"))
    said = " ".join(check(file).stdout.split())
    assert "an epoch may take 300 s (timeout), but the brokers abort its transaction after 30 s" in said
    assert "an epoch plus a restart must fit into it" in said


@pytest.mark.parametrize(
    ("text", "code"),
    [("x = 1\n", "no_job"), ("import nowhere\n", "file_fails"), ("def f(:\n", "file_fails")],
)
def test_a_file_without_a_job_is_refused(tmp_path: Path, text: str, code: str) -> None:
    file = tmp_path / "job.py"
    file.write_text(text)
    done = check(file)
    assert (2, f"[{code}]") == (done.exit_code, done.stdout.split()[0])
    assert "in line 1" in done.stdout or code == "no_job"


def test_without_java_it_is_said_before_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "[no_java]" in check(write(tmp_path, "None")).stdout


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(
    ("name", "code"), [("wordcount", 0), ("two_sinks", 0), ("state/running_sum", 0), ("kafka_wordcount", 1)]
)
def test_the_examples_are_told_what_holds_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    (tmp_path / "lines").mkdir()
    monkeypatch.chdir(tmp_path)
    text = (EXAMPLES / f"{name}.py").read_text().replace("localhost:9092", "127.0.0.1:9")
    Path("job.py").write_text(text.replace('"lines", format', f'"{tmp_path}/lines", format'))  # Spark is elsewhere
    done = check(Path("job.py"), "--json", *((f"{tmp_path}/lines", ".") if "state/" in name else ()))
    found: dict[str, Any] = json.loads(done.stdout)["jobs"][0]
    assert (code, "exactly_once", "exactly_once") == (done.exit_code, found["asked"], found["guarantee"])
    assert all(link["reason"] for link in found["links"])
    codes = {problem["code"] for problem in found["problems"]}
    assert (set() if code == 0 else {"no_broker", "target_silent"}) == codes
