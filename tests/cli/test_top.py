"""`fencepost top` and `fencepost status --watch`: jobs as they go."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ended import ended
from long_ledger import make
from rich.console import Console

import fencepost as fp
from fencepost.cli.top import drawn
from fencepost.observe.archive import JobArchive
from fencepost.observe.events import Event, Kind
from fencepost.observe.history import Epoch
from fencepost.observe.journal import Journal
from fencepost.observe.picture import letters_of
from fencepost.observe.wording import line_of


@pytest.mark.parametrize("words", [("status", "--watch"), ("top",), ("status", "--watch", "--json")])
def test_in_a_pipe_there_is_a_line_for_every_change(words: tuple[str, ...], tmp_path: Path) -> None:
    checkpoint = ended(tmp_path)
    command = [sys.executable, "-m", "fencepost", words[0], str(checkpoint), *words[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            Journal(checkpoint).note(
                Event(kind=Kind.GAVE_UP, job="stand-in", at="2026-01-01T00:00:00+00:00", pid=1, code="restarts_spent")
            )
            second = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            rest, complained = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (0, "") == (process.returncode, complained)
    assert "\x1b" not in first + second + rest
    if "--json" in words:
        assert ["stopped", "failed"] == [json.loads(line)["condition"] for line in (first, second)]
    else:
        assert "stand-in: stopped cleanly · epoch 1 complete" in first
        assert "stand-in: failed" in second


@pytest.mark.parametrize("width", [20, 40, 80, 300])
def test_it_fits_into_a_terminal_of_any_width(width: int, tmp_path: Path) -> None:
    found = [
        JobArchive(ended(tmp_path, "decide.after=kill@2")).summary(recent=200),
        JobArchive(make(tmp_path / "long", 250)).summary(recent=200),
    ]
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(drawn(found, width))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert "● dead" in text
    assert "db open epoch 0" in text
    assert any(line.strip() and set(line.strip()) <= set("▁▂▃▄▅▆▇█") for line in lines)


def test_without_a_job_it_says_so() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(drawn([], 100))
    assert isinstance(console.file, io.StringIO)
    assert "No job was started" in console.file.getvalue()


def test_a_checkpoint_that_is_gone_is_a_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fencepost", "top", str(tmp_path / "gone")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "[no_ledger] The folder does not exist." in process.stdout.readline()
        finally:
            process.kill()


def test_a_strip_of_letters_has_a_mark_for_what_is_not_complete() -> None:
    done = [Epoch(epoch=n, standing="complete", seconds=n / 10) for n in range(1, 9)]
    assert "▁▂▃▄▅▆▇█" == letters_of(done)
    more = [Epoch(epoch=9, standing="decided"), Epoch(epoch=10, standing="failed"), Epoch(epoch=11, standing="begun")]
    assert "▁ox·" == letters_of([Epoch(epoch=1, standing="complete"), *more])
    assert "" == letters_of([])


def test_one_line_says_what_is_open(tmp_path: Path) -> None:
    line = line_of(JobArchive(ended(tmp_path, "decide.after=kill@2")).summary())
    assert line.startswith("dead · epoch 0 complete · 1: decided, being committed")
    assert "not yet in db" in line


def test_an_epoch_that_a_dead_driver_began_is_not_said_to_run(tmp_path: Path) -> None:
    line = line_of(JobArchive(ended(tmp_path, "decide.before=kill@2")).summary())
    assert line.startswith("dead · epoch 0 complete · 1: voted, not decided")
    path = ended(tmp_path / "b", "engine.begun=kill@2")
    assert "1: begun, not decided" in line_of(JobArchive(path).summary())


def test_a_notebook_shows_the_strip(tmp_path: Path) -> None:
    checkpoint = ended(tmp_path)
    shown = fp.Job("<b>job", checkpoint=str(checkpoint))._repr_html_()
    assert "<svg" in shown
    assert "stopped cleanly · epoch 1 complete" in shown
    assert "<b>job" not in shown.removeprefix("<b>")
    assert "<svg" not in fp.Job("new", checkpoint=str(tmp_path / "none"))._repr_html_()


class Notebook:
    """What IPython gives for something that is displayed with an id."""

    def __init__(self, shown: fp.Job) -> None:
        self.pages = [shown._repr_html_()]

    def update(self, shown: fp.Job) -> None:
        self.pages.append(shown._repr_html_())


def test_a_notebook_replaces_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebooks: list[Notebook] = []

    def display(job: fp.Job, *, display_id: bool) -> Notebook:
        assert display_id
        notebooks.append(Notebook(job))
        return notebooks[-1]

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: 1))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))  # type: ignore[arg-type]
    job = fp.Job("job", checkpoint=str(tmp_path / "checkpoint"))
    job.show()
    ended(tmp_path)
    job.show()
    (notebook,) = notebooks
    assert [False, True] == ["epoch 1 complete" in page for page in notebook.pages]


def test_without_a_notebook_it_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fp.Job("job", checkpoint=str(ended(tmp_path))).show()
    fp.Job("new", checkpoint=str(tmp_path / "none")).show()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("job: stopped cleanly · epoch 1 complete")
    assert "new: not started yet, or its checkpoint cannot be read" == second
