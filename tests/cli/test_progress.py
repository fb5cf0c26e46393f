"""Commands that take long say how far they are: on a terminal, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from screens import OVER, Screen, screen
from small import Small

from fencepost.cli.frame import run
from fencepost.cli.main import cli
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.observe import terminal
from fencepost.observe.terminal import ProgressLine
from fencepost.store.savepoints import home


@pytest.fixture
def job(tmp_path: Path) -> Small:
    made = Small(tmp_path, {"db": SQLite(tmp_path / "out.db", table="rows", name="db")})
    made.run(3)
    return made


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    """A terminal, for stderr."""
    monkeypatch.setattr(terminal, "EVERY_S", 0.001)
    monkeypatch.delenv("FENCEPOST_QUIET", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with screen() as made:
        yield made


@pytest.fixture
def waits(shown: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command goes on when a person has seen what it is doing."""
    note = ProgressLine.__call__

    def tell(line: ProgressLine, what: str, done: int, total: int) -> None:
        note(line, what, done, total)
        shown.until(f"{what}: {done} of {total} files, " if total else f"{what}: ")

    monkeypatch.setattr(ProgressLine, "__call__", tell)


def typed(shown: Screen, *words: object) -> int:
    with redirect_stderr(shown.out):
        return run(lambda: cli.main([str(word) for word in words], standalone_mode=False))


def all_of(shown: Screen) -> str:
    """Everything that was written until now."""
    shown.out.write("|")
    shown.out.flush()
    return shown.until("|").removesuffix("|")


@pytest.mark.usefixtures("waits")
def test_a_savepoint_is_made_verified_and_restored_with_a_line_that_moves(
    job: Small, shown: Screen, tmp_path: Path
) -> None:
    kept = home(job.checkpoint) / "one"
    assert 0 == typed(shown, "savepoint", "create", job.checkpoint, "--name", "one")
    assert 0 == typed(shown, "savepoint", "verify", kept)
    fate = ("--parent-lost", "--sink", "overwrite")
    assert 0 == typed(shown, "savepoint", "restore", kept, "--to", tmp_path / "new", *fate)
    text = all_of(shown)
    assert f"{OVER}epoch 2 of job small: " in text, "the line is gone before the result"
    for what in ("Copying epoch 2: ", "Verifying savepoint one: ", "Copying: "):
        assert f"{OVER}{what}" in text
    assert ", 100%, 0 s" in text


@pytest.mark.usefixtures("waits")
@pytest.mark.parametrize(
    ("command", "what"), [("doctor", "Reading epoch 2: "), ("verify", "Comparing the ledger with Spark's log: ")]
)
def test_so_do_those_that_only_read(command: str, what: str, job: Small, shown: Screen) -> None:
    assert 0 == typed(shown, command, job.checkpoint)
    assert f"{OVER}{what}" in all_of(shown)


@pytest.mark.parametrize("command", ["doctor", "verify"])
def test_beside_json_there_is_none(command: str, job: Small, shown: Screen) -> None:
    assert 0 == typed(shown, command, job.checkpoint, "--json")
    assert "" == all_of(shown)


def test_nor_where_fencepost_is_told_to_be_quiet(job: Small, shown: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_QUIET", "1")
    assert 0 == typed(shown, "doctor", job.checkpoint)
    assert "" == all_of(shown)


def test_nor_in_a_pipe(job: Small, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == run(lambda: cli.main(["doctor", str(job.checkpoint)], standalone_mode=False))
    assert "" == capsys.readouterr().err
