"""`fencepost as-of`, as typed: by checkpoint, by name and by file, for people and for programs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from small import Small

from fencepost.cli import as_of as command
from fencepost.cli.main import cli
from fencepost.connectors.files.sink import Files
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.observe import registry
from fencepost.store import place


def typed(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fencepost", "as-of", *words], check=False, capture_output=True, text=True, timeout=180
    )


@pytest.fixture
def job(tmp_path: Path) -> Small:
    sinks = {
        "db": SQLite(tmp_path / "out.db", table="rows", name="db"),
        "files": Files(tmp_path / "files", name="files"),
    }
    made = Small(tmp_path, sinks)
    made.run(3)
    return made


@pytest.fixture
def with_file(job: Small, monkeypatch: pytest.MonkeyPatch) -> Small:
    """As if FILE had been run to find the sinks: that takes Spark."""
    monkeypatch.setattr(command, "with_sinks", lambda _, __: [(place(str(job.checkpoint)), job.sinks)])
    return job


def invoked(*words: str) -> Result:
    return CliRunner().invoke(cli, ["as-of", *words])


def test_people_get_a_line_for_each_target_and_the_newest_epoch_by_default(with_file: Small) -> None:
    result = invoked("job.py")
    assert 0 == result.exit_code
    lines = result.output.splitlines()
    assert re.fullmatch(r"job small, epoch 2, decided \d{4}-.* \(the newest that is done\)", lines[0])
    assert "  db     as it is now" in lines
    assert any(line.startswith('  files  ["') and line.endswith('.parquet"]') for line in lines)
    assert "Every target can be read as it was right after epoch 2." == lines[-1]


def test_a_target_that_has_moved_on_is_named_and_the_code_says_so(with_file: Small) -> None:
    result = invoked("job.py", "--epoch", "1")
    assert 1 == result.exit_code
    assert "(the newest that is done is 2)" in result.output
    why = "  db     - it has moved on to generation 0, epoch 2, and keeps no older state"
    assert why in result.output.splitlines()
    assert "Not every target can be read as it was right after epoch 1: db." == result.output.splitlines()[-1]


def test_programs_get_the_same_keys_whatever_the_answer(with_file: Small) -> None:
    job_keys = {
        "job", "checkpoint", "lineage", "generation", "epoch", "decided_at", "newest", "exact", "sinks", "notes",
    }  # fmt: skip
    sink_keys = {"text", "exact", "heard", "why", "wrote", "facts"}
    for epoch, exact in ((2, True), (1, False)):
        said = json.loads(invoked("job.py", "--epoch", str(epoch), "--json").stdout)
        (one,) = said["jobs"]
        assert ({"exact", "jobs"}, job_keys) == ({*said}, {*one})
        assert [sink_keys] * 2 == [{*sink} for sink in one["sinks"].values()]
        assert (exact, exact, epoch, 2) == (said["exact"], one["exact"], one["epoch"], one["newest"])
        assert [epoch] * 2 == [sink["wrote"] for sink in one["sinks"].values()]
        assert epoch + 1 == len(one["sinks"]["files"]["facts"]["files"])


def test_a_target_that_does_not_answer_has_its_own_code(with_file: Small, tmp_path: Path) -> None:
    (tmp_path / "out.db").write_bytes(b"this is not a database, however often it is opened" * 100)
    result = invoked("job.py")
    assert 3 == result.exit_code
    assert "  db     - did not answer: " in result.output


def test_a_long_text_is_cut_for_people_and_whole_for_programs(
    with_file: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "LONGEST", 20)
    assert "… (--json has all of it)" in invoked("job.py").output
    (one,) = json.loads(invoked("job.py", "--json").stdout)["jobs"]
    assert 3 == len(json.loads(one["sinks"]["files"]["text"]))


def test_a_sink_without_rows_had_nothing_yet(with_file: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    later = Files(with_file.folder / "later", name="later")
    more = replace(with_file, sinks={**with_file.sinks, "later": later}, allow_sink_changes=True)
    more.run(1)
    monkeypatch.setattr(command, "with_sinks", lambda _, __: [(place(str(more.checkpoint)), more.sinks)])
    assert "  later  nothing: the job did not write to it yet" in invoked("job.py", "--epoch", "2").output.splitlines()


def test_a_checkpoint_by_itself_is_read_and_its_targets_are_not_asked(job: Small, tmp_path: Path) -> None:
    registry.note("small", job.checkpoint, tmp_path / "job.py")
    result = typed(str(job.checkpoint), "--epoch", "1")
    assert 1 == result.returncode
    assert "  db     - its target was not asked\n" in result.stdout
    assert f"To ask the targets: fencepost as-of {os.path.realpath(tmp_path / 'job.py')} --epoch 1\n" == result.stderr


def test_a_job_is_found_by_its_name(job: Small, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    registry.note("as-of-by-name", job.checkpoint)
    result = invoked("as-of-by-name", "--json")
    assert (1, str(job.checkpoint)) == (result.exit_code, json.loads(result.stdout)["jobs"][0]["checkpoint"])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--epoch", "3"), 2, "[unknown_epoch]"),
        (("--epoch", "-1"), 2, "-1"),
        (("--epoch", "many"), 2, "many"),
    ],
)
def test_an_epoch_that_cannot_be_named_is_refused(job: Small, words: tuple[str, ...], code: int, said: str) -> None:
    result = typed(str(job.checkpoint), *words)
    assert (code, "", True) == (result.returncode, result.stdout, said in result.stderr), result.stderr
    assert "Traceback" not in result.stderr


def test_what_is_not_a_job_is_refused(tmp_path: Path) -> None:
    result = typed(str(tmp_path))
    assert (2, True) == (result.returncode, "no_ledger" in result.stderr)


def test_a_dead_job_can_still_be_asked_for_what_is_done(job: Small) -> None:
    job.killed("decide.after=kill")
    result = typed(str(job.checkpoint), "--json")
    assert 2 == json.loads(result.stdout)["jobs"][0]["epoch"]
    result = typed(str(job.checkpoint), "--epoch", "3")
    assert (2, True) == (result.returncode, "open_decision" in result.stderr)


def test_the_command_is_listed_with_the_others_and_its_jobs_are_completed(job: Small) -> None:
    registry.note("complete-me", job.checkpoint)
    listed = CliRunner().invoke(cli, []).output
    assert re.search(r"^  as-of +Say how each target", listed, re.MULTILINE)
    for words, expected in (("fencepost as", "as-of"), ("fencepost as-of complete-m", "complete-me")):
        env = {"_FENCEPOST_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        result = subprocess.run(
            [sys.executable, "-c", "from fencepost.cli.main import cli; cli(prog_name='fencepost')"],
            env={**os.environ, **env},
            check=True,
            capture_output=True,
            text=True,
        )
        assert f"plain,{expected}" in result.stdout.splitlines()
