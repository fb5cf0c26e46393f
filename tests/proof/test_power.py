"""Power loss: recorded file operations, what was not synced lost; and real cuts. `make power N=…` does more of it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fencepost_proof.power import disk
from fencepost_proof.power.cuts import staged
from fencepost_proof.power.disk import Disk
from fencepost_proof.power.remains import Fate, remains, unsynced
from fencepost_proof.power.replay import judge_job, quick_folder, record_job, replay
from fencepost_proof.power.spark_files import OURS, STOCK, SparkJudge, record_spark
from fencepost_proof.power.trace import Name, NotRecorded, Recording, Write, read

NOTHING = {"lost": 0, "doubled": 0, "wrong": 0}
SEED = 6


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where worlds are laid out."""
    with quick_folder(tmp_path) as folder:
        yield folder


def on_disk(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("without", [None, "file", "folder"])
def test_recovery_is_exact_whatever_unsynced_writes_are_lost(
    tmp_path: Path, place: Path, require: Callable[[str], None], without: str | None
) -> None:
    """An epoch, a kill between decision and commit, a recovery. A ledger that leaves a sync out is caught."""
    require("strace")
    recording = record_job(tmp_path, *(["--without", without] if without else []))
    assert on_disk(tmp_path / "disk") == remains(recording, len(recording.operations), {}), "the recording is not whole"
    found = replay(recording, judge_job, place, most=4, step=6 if without else 3, chance=random.Random(SEED))
    assert found.worlds > 60
    assert bool(without) == bool(found.wrong), found


@pytest.mark.spark
@pytest.mark.long
def test_sparks_own_files_and_a_savepoint_survive_likewise(
    tmp_path: Path, place: Path, require: Callable[[str], None]
) -> None:
    """With our `file:` class; with Hadoop's own, and a savepoint whose folders are not synced, both are caught."""
    require("strace")
    wrong = {}
    for name, recording in record_spark(tmp_path).items():
        disk_ = tmp_path / name / "disk"
        assert on_disk(disk_) == remains(recording, len(recording.operations), {}), "the recording is not whole"
        judge = SparkJudge(recording, tmp_path / name / "in")
        wrong[name] = replay(recording, judge, place, most=3, step=5, chance=random.Random(SEED)).wrong
    assert not wrong[OURS], wrong[OURS]
    assert wrong[STOCK]["snapshot_lost"]
    assert wrong[STOCK]["savepoint lost"] + wrong[STOCK]["savepoint damaged"]


def hexed(text: object) -> str:
    """As strace writes it."""
    return "".join(f"\\x{byte:02x}" for byte in str(text).encode())


def recorded(folder: Path, *more: str) -> Recording:
    """A file is written twice, synced while the second write is under way, and renamed."""
    made, temp, file, ab = hexed(folder / "d"), hexed(folder / "d" / ".t"), hexed(folder / "d" / "t"), hexed("ab")
    lines = (
        f'7 mkdir("{made}", 0777) = 0',
        f'7 openat(AT_FDCWD<{made}>, "{temp}", O_WRONLY|O_CREAT|O_EXCL, 0666) = 3<{temp}>',
        f'7 write(3<{temp}>, "{ab}", 2) = 2',
        f"8 fsync(3<{temp}> <unfinished ...>",
        f'7 write(3<{temp}>, "{ab}", 2) = 2',
        "8 <... fsync resumed>) = 0",
        f'7 rename("{temp}", "{file}") = 0',
        *(line.format(made=made, file=file) for line in more),
    )
    return read(lines, folder)


def test_a_sync_saves_what_was_there_when_it_began_and_nothing_else(tmp_path: Path) -> None:
    recording = recorded(tmp_path)
    end = len(recording.operations)
    assert {"d": None, "d/t": b"abab"} == remains(recording, end, {})
    open_ = unsynced(recording, end)
    assert {} == remains(recording, end, dict.fromkeys(open_, Fate.LOST)), "nobody synced the folder above"
    writes = [number for number in open_ if isinstance(recording.operations[number], Write)]
    assert 1 == len(writes), "the second write only"
    kinds = {fate: remains(recording, end, {writes[0]: fate})["d/t"] for fate in Fate}
    assert {Fate.KEPT: b"abab", Fate.LOST: b"ab", Fate.ZEROS: b"ab\0\0", Fate.TORN: b"aba\0"} == kinds


def test_a_rename_may_leave_both_names_and_never_none(tmp_path: Path) -> None:
    recording = recorded(tmp_path)
    end = len(recording.operations)
    given, taken = end - 2, end - 1
    assert {"d": None, "d/t": b"abab", "d/.t": b"abab"} == remains(recording, end, {taken: Fate.LOST})
    assert {"d": None, "d/.t": b"abab"} == remains(recording, end, {given: Fate.LOST})


def test_the_sync_of_a_folder_saves_its_names_but_not_its_own(tmp_path: Path) -> None:
    at_once = ("8 fsync(4<{made}> <unfinished ...>", '7 mkdir("{made}/e", 0777) = 0', "7 fsync(5<{made}>) = 0")
    at_once = tuple(line.replace("/e", hexed("/e")) for line in at_once)
    recording = recorded(tmp_path, *at_once, "8 <... fsync resumed>) = 0")
    open_ = unsynced(recording, len(recording.operations))
    assert ["d"] == [each.name for each in map(recording.operations.__getitem__, open_) if isinstance(each, Name)]


def test_a_way_to_write_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="not understood"):
        recorded(tmp_path, "7 fallocate(3<{file}>, 0, 0, 10) = 0")


@pytest.fixture
def _disks() -> None:
    """The machine must let us cut a disk; whatever it lacks is said, also where CI is set."""
    why = disk.why_not()
    if why is not None:
        if os.environ.get("CI") and os.geteuid() == 0 and "PATH" in why:
            pytest.fail(f"disks cannot be cut, and CI runs every test: {why}", pytrace=False)
        pytest.skip(f"disks cannot be cut here: {why}")


@pytest.mark.usefixtures("_disks")
def test_a_cut_disk_keeps_what_was_synced_and_loses_the_rest(tmp_path: Path) -> None:
    with Disk(tmp_path / "image", tmp_path / "disk") as made:
        for name in ("synced", "unsynced"):
            with (made.place / name).open("w") as file:
                file.write(name)
                file.flush()
                if name == "synced":
                    os.fsync(file.fileno())
        made.cut()
        with pytest.raises(OSError, match=r"(?i)input/output"):
            (made.place / "late").write_text("never")
        made.remount()
        assert ["synced"] == [path.name for path in made.place.iterdir() if path.is_file()]
    assert not os.path.ismount(tmp_path / "disk")


@pytest.mark.spark
@pytest.mark.usefixtures("_disks")
@pytest.mark.long
def test_real_cuts_under_a_real_job_lose_and_double_nothing(tmp_path: Path) -> None:
    """One JVM lives through them, but for the last one, which takes the process too."""
    with staged(tmp_path, "two disks", None, random.Random(SEED)) as stage:
        checkpoint, target = stage.disks
        for when, cut, dies in (
            ("decide.before=stop@2", [checkpoint, target], False),
            ("decide.after=stop", [checkpoint], False),
            (0.4, [checkpoint], False),
            ("commit.after=stop", [checkpoint, target], True),
        ):
            stage.feed(2)
            assert stage.cut(when, cut, dies=dies), when
        assert 0 == stage.run()
        assert {"totals": NOTHING, "rows": NOTHING} == stage.verdict()
        stage.cut_after_the_end()
        assert {"totals": NOTHING, "rows": NOTHING} == stage.verdict()
