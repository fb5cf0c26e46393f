"""What only helps people is read as far as it is known, also if a newer fencepost wrote it; it never stops anybody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fencepost.observe import commands, heartbeat, journal, registry

BEAT = {"job": "j", "host": "h", "pid": 1, "supervisor": None, "writer": 7, "epoch": 3, "since_s": 1.0, "at_s": 2.0}
LINE = {"kind": "complete", "job": "j", "at": "2030-01-01T00:00:00.000+00:00", "pid": 1, "epoch": 4}
NEWER = {"format": 2, "fencepost": "9.1.0", "zone": {"of": "somewhere"}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "fencepost" / "pulse").mkdir(parents=True)
    return tmp_path


def put(path: Path, *plain: Any) -> None:
    path.write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in plain))


def test_a_beat(root: Path) -> None:
    put(root / "fencepost/pulse/h-1.json", {**BEAT, **NEWER})
    put(root / "fencepost/pulse/h-2.json", {**NEWER, "beats": []})  # nothing of it is known
    put(root / "fencepost/pulse/h-3.json", [1])
    assert [7] == [beat.writer for beat in heartbeat.beats(root)]


def test_lines_of_the_journal(root: Path) -> None:
    put(journal.path_of(root), {**LINE, **NEWER}, {**LINE, **NEWER, "kind": "pondered"}, {**LINE, "epoch": 5})
    assert [4, 5] == [event.epoch for event in journal.read(root)]


def test_a_wish(root: Path) -> None:
    put(root / commands.NAME, {"wish": "stop", "writer": 7, **NEWER})
    assert ("stop", None) == (commands.find(root, 7), commands.find(root, 8))
    put(root / commands.NAME, {"wish": "ponder", "writer": 7, **NEWER})
    assert commands.find(root, 7) is None


def test_a_job_that_is_noted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.HOME, str(root / "home"))
    registry.note("j", root, None)
    [path] = (root / "home/jobs").iterdir()
    put(path, {**json.loads(path.read_text()), **NEWER})
    (root / "home/jobs/other.json").write_text("[1]")
    assert ["j"] == [noted.name for noted in registry.everything()]


def test_each_says_its_format(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.HOME, str(root / "home"))
    registry.note("j", root, None)
    commands.leave(root, "stop", 7)
    heartbeat._write(root / "fencepost/pulse/h-1.json", heartbeat.Beat(**BEAT))
    observer = journal.Observer("j")
    observer.write_to(str(root))
    observer.note(journal.Kind.STOPPED)
    written = [*(root / "home/jobs").iterdir(), *(root / "fencepost").rglob("*.json*")]
    assert 4 == len(written)
    assert {1} == {json.loads(path.read_text())["format"] for path in written}
