"""What can be said of a checkpoint: understood or refused before anything starts; and what nobody names is swept."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fencepost as fp
from fencepost.config import settled
from fencepost.errors import BadConfig, seconds
from fencepost.store import staging
from fencepost.store.parts import MOST, sweep


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500 ms", 0.5), ("10 seconds", 10), ("1 second", 1), ("1 minute 30 seconds", 90), ("2h", 7200), ("0.5 min", 30)],
)
def test_times_are_written_as_people_say_them(text: str, expected: float) -> None:
    assert expected == seconds(text)


@pytest.mark.parametrize("text", ["", "soon", "10", "-1 second", "10 fortnights", "1 second or so", None, 10])
def test_anything_else_is_no_time(text: object) -> None:
    assert None is seconds(text)


def test_all_bad_options_are_named_at_once() -> None:
    wrong: dict[str, Any] = {
        "interval": "soon",
        "timeout": "0 seconds",
        "min_pause": "-1 second",
        "tolerable_failures": -1,
        "keep_epochs": 1,
        "on_cancel": "sometimes",
        "overlap": "sometimes",
    }
    with pytest.raises(BadConfig) as refused:
        fp.Checkpoint("ck", **wrong)
    assert "bad_checkpoint_options" == refused.value.code
    assert wrong.keys() == {name for name in wrong if f"{name}=" in refused.value.what}


def test_a_good_one_is_taken() -> None:
    fp.Checkpoint("ck", interval="1 second", timeout="10 minutes", min_pause="0 s", tolerable_failures=3, keep_epochs=2)


@pytest.mark.parametrize(
    ("checkpoint", "state", "code"),
    [
        (None, None, "no_checkpoint"),
        (fp.Checkpoint(keep_epochs=5), fp.RocksDBState(), "no_checkpoint"),
        ("a", fp.FileSystemState("b"), "two_checkpoints"),
        ("a", fp.MemoryState(), "memory_has_no_place"),
        (fp.Checkpoint("a"), fp.MemoryState(), "memory_has_no_place"),
        ("gs://a/b", None, "unknown_store"),
        ("s3a://KEY:SECRET@a/b", None, "key_in_url"),
        ("s3a://a", None, "no_folder"),
        ("hdfs:///a", None, "no_folder"),
    ],
)
def test_a_checkpoint_has_one_place(checkpoint: Any, state: Any, code: str) -> None:
    with pytest.raises(BadConfig) as refused:
        settled(checkpoint, state, "job")
    assert code == refused.value.code


@pytest.mark.parametrize(
    ("checkpoint", "state"),
    [("/a/ck", None), (None, fp.FileSystemState("/a/ck")), ("/a/b/../ck", fp.FileSystemState("file:///a/b/../ck"))],
)
def test_the_job_or_its_file_system_names_the_place(checkpoint: Any, state: Any) -> None:
    found = settled(checkpoint, state, "job").place
    assert Path("/a/ck") == Path(os.path.normpath(found))


@pytest.mark.parametrize(("said", "expected"), [(None, 0), ("1 s", 1000), ("1.5 min", 90_000), ("500 ms", 500)])
def test_interval_is_whole_milliseconds_for_spark(said: str | None, expected: int) -> None:
    assert expected == fp.Checkpoint("ck", interval=said).interval_ms


def test_interval_is_said_by_the_checkpoint_and_nowhere_else() -> None:
    homes = (fp.Checkpoint, fp.Job, fp.Job.run, fp.Job.start, fp.start)
    assert [fp.Checkpoint] == [home for home in homes if "interval" in inspect.signature(home).parameters]


@pytest.mark.parametrize("options", [{"interval": "1 s"}, {"tolerable_failures": 1}, {"on_cancel": "delete"}])
def test_a_query_alone_refuses_what_only_a_job_can_do(options: dict[str, Any]) -> None:
    with pytest.raises(BadConfig) as refused:
        fp.Checkpoint("ck", **options).check_for_a_query_alone("job")
    assert "option_needs_a_job" == refused.value.code


def left_behind(folder: Path, name: str, *, age_s: float) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text("half")
    os.utime(file, (time.time() - age_s,) * 2)
    return file


UUID = "0fa1b2c3-1111-2222-3333-444455556666"


def test_old_temporary_files_are_swept_and_nothing_else(tmp_path: Path) -> None:
    gone = [
        left_behind(tmp_path / "offsets", f".7.{UUID}.tmp", age_s=7200),
        left_behind(tmp_path / "commits", f"..7.{UUID}.tmp.crc", age_s=7200),
        left_behind(tmp_path / "sources" / "0", f".3.compact.{UUID}.tmp", age_s=7200),
        left_behind(tmp_path / "state" / "0" / "1", f".8.delta.{UUID}.TID12.tmp", age_s=7200),
        left_behind(tmp_path / "state" / "0" / "1", f".8_{UUID}.changelog.{UUID}.TID3.tmp", age_s=7200),
    ]
    kept = [
        left_behind(tmp_path / "offsets", f".8.{UUID}.tmp", age_s=60),  # perhaps somebody's
        left_behind(tmp_path / "offsets", "7", age_s=7200),
        left_behind(tmp_path / "offsets", ".7.crc", age_s=7200),
        left_behind(tmp_path / "state" / "0" / "1", f"8_{UUID}.zip", age_s=7200),
        left_behind(tmp_path / "fencepost" / "x", f".8.{UUID}.tmp", age_s=7200),  # the ledger sweeps its own
    ]
    assert len(gone) == sweep(tmp_path)
    assert [] == [file for file in gone if file.exists()]
    assert kept == [file for file in kept if file.exists()]


def test_a_sweep_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.store.parts.MOST", 3)
    for number in range(5):
        left_behind(tmp_path / "offsets", f".{number}.{UUID}.tmp", age_s=7200)
    assert [3, 2, 0] == [sweep(tmp_path) for _ in range(3)]
    assert MOST > 3


def test_a_checkpoint_in_memory_ends_with_its_process_and_is_swept_after_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of a living process is never touched, whoever sweeps."""
    monkeypatch.setattr(staging, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(staging, "_mine", {})
    code = (
        "import os, sys, signal, pathlib; from fencepost.store import staging;"
        "staging.SHARED_MEMORY = pathlib.Path(sys.argv[1]);"
        "found = pathlib.Path(staging.process_folder('a/b')); found.mkdir(); print(found, flush=True);"
        "sys.argv[2] == 'kill' and os.kill(os.getpid(), signal.SIGKILL); sys.stdin.read()"
    )

    def process(way: str) -> tuple[Path, subprocess.Popen[str]]:
        command = [sys.executable, "-c", code, str(tmp_path), way]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        return Path(child.stdout.readline().strip()), child

    killed, dead = process("kill")
    alive, child = process("wait")
    dead.communicate()
    assert not killed.exists(), "the second process swept"
    mine = Path(staging.process_folder("a/b"))
    mine.mkdir()
    assert alive.exists()
    assert mine == Path(staging.process_folder("a/b"))
    assert alive.parent.parent == mine.parent.parent
    child.communicate("")
    assert not alive.exists(), "a process that ends takes its checkpoints with it"
    staging.remove_process_folders()
    assert [] == list(mine.parent.parent.iterdir())
