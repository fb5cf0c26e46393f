"""Savepoints: whole or not there at all, whatever is killed, damaged or full; and every damage to one is seen."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attack import walk
from click.testing import CliRunner
from kinds import KINDS
from streams import Place

from fencepost import faults
from fencepost.admin import folder, savepoint
from fencepost.admin.folder import sweep
from fencepost.admin.savepoint import create, delete, verify
from fencepost.cli.main import cli
from fencepost.errors import BadConfig, CheckpointRefused, Refused
from fencepost.protocol.records import Lineage, decode, encode
from fencepost.store import LocalStore
from fencepost.store.base import record_name
from fencepost.store.ledger import read
from fencepost.store.parts import Part, Problem, parts_of
from fencepost.store.savepoints import find, home, load

pytestmark = [pytest.mark.spark]

Grown = Callable[[str], tuple[Place, int]]
Copied = Callable[[str], tuple[Path, int]]

POINTS = ("begun", "copied_one", "copied", "manifest_written", "named")


@pytest.fixture
def root(copied: Copied) -> Path:
    """A checkpoint to copy from."""
    return copied("count")[0]


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(savepoint, "PAUSE_S", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_savepoint_holds_the_newest_epoch_and_nothing_else(kind: str, copied: Copied) -> None:
    root, epoch = copied(kind)
    made = create(root, name="first")
    assert home(root) / "first" == made.path
    assert made == load(made.path)
    assert [] == verify(made)
    assert ("job", read(root).lineage_id, epoch) == (made.job, made.lineage, made.epoch)
    assert {part.name for part in parts_of(root, epoch)} == set(made.files)
    assert "pyspark" in made.versions


def test_a_savepoint_made_while_the_job_ran_is_whole(grown: Grown) -> None:
    found, damaged = find(grown("count")[0].checkpoint)
    assert (["running"], []) == ([one.name for one in found], damaged)
    assert [] == verify(found[0])


def test_it_may_be_moved_and_outlives_its_checkpoint(root: Path, tmp_path: Path) -> None:
    made = create(root)
    shutil.rmtree(root)
    moved = load(made.path.rename(tmp_path / "elsewhere"))
    assert replace(made, path=moved.path) == moved
    assert [] == verify(moved)


def test_every_file_of_a_savepoint_that_is_damaged_is_named(grown: Grown, root: Path) -> None:
    other = create(grown("join")[0].checkpoint, to=root.parent / "other")
    made = create(root, name="one")
    assert [] == list(walk(made.path, other.path, lambda: seen(made.path)))


def test_a_manifest_that_forgets_a_file_is_caught(root: Path) -> None:
    made = create(root)
    for name in made.files:
        fewer = {other: known for other, known in made.files.items() if other != name}
        assert name in {problem.name for problem in verify(replace(made, files=fewer))}


def test_a_file_too_many_is_named(root: Path) -> None:
    made = create(root)
    (made.copy / "offsets" / "99").write_text("v1")
    assert ["extra"] == [problem.what for problem in verify(made)]


def seen(path: Path) -> bool:
    try:
        return bool(verify(load(path)))
    except CheckpointRefused:
        return True


def test_a_damaged_checkpoint_does_not_become_a_savepoint(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file of every kind; that each single one is looked at is seen where parts are."""
    monkeypatch.setattr(savepoint, "ATTEMPTS", 2)
    known = [part.name for part in parts_of(root, read(root).done_through) if part.known]
    for name in {(name.split("/")[0], Path(name).suffix): name for name in known}.values():
        file = root / name
        data = file.read_bytes()
        file.write_bytes(data[: len(data) // 2])
        with pytest.raises(CheckpointRefused) as refused:
            create(root, name="bad")
        assert refused.value.code in ("checkpoint_damaged", "ledger_damaged", "no_ledger"), name
        file.write_bytes(data)
    assert ([], []) == find(root)
    assert [] == os.listdir(home(root))


def test_a_file_that_retention_took_leads_to_another_attempt(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    examine = folder.examine

    def and_take(root: Path, part: Part, to: Any = None) -> Any:
        if part.kind == "state" and not taken:
            taken.append(part.name)
            return None, Problem(part.name, "missing", "it is missing")
        return examine(root, part, to)

    monkeypatch.setattr(folder, "examine", and_take)
    made = create(root)
    assert taken[0] in made.files
    assert [] == verify(made)
    assert [made.name] == os.listdir(home(root))


def test_a_name_is_given_once(root: Path) -> None:
    create(root, name="once")
    with pytest.raises(BadConfig) as refused:
        create(root, name="once")
    assert "savepoint_exists" == refused.value.code
    assert ["once"] == os.listdir(home(root))


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b"])
def test_a_name_that_is_no_folder_is_refused(name: str, root: Path) -> None:
    if name:
        with pytest.raises(BadConfig):
            create(root, name=name)
    assert not home(root).exists()


def test_a_savepoint_inside_its_checkpoint_is_refused(root: Path) -> None:
    with pytest.raises(BadConfig) as refused:
        create(root, to=root / "savepoints")
    assert "savepoint_inside" == refused.value.code


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_a_weaker_guarantee_is_refused(guarantee: str, root: Path) -> None:
    lineage = read(root).lineage_id
    number_0 = root / record_name(lineage, 0)
    record = decode(number_0.read_bytes())
    assert isinstance(record.body, Lineage)
    shutil.rmtree(number_0.parent)
    weak = replace(record, body=replace(record.body, guarantee=guarantee))
    LocalStore(root).create(record_name(lineage, 0), encode(weak))
    with pytest.raises(Refused) as refused:
        create(root)
    assert "savepoint_needs_exactly_once" == refused.value.code


@pytest.mark.parametrize("names", [("same", "same"), ("one", "two")])
def test_two_at_once_do_not_mix(names: tuple[str, str], root: Path) -> None:
    refused: list[str] = []

    def make(name: str) -> None:
        try:
            create(root, name=name)
        except BadConfig as error:
            refused.append(error.code)

    threads = [threading.Thread(target=make, args=[name]) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found, damaged = find(root)
    assert sorted(set(names)) == [one.name for one in sorted(found, key=lambda one: one.name)]
    assert [] == [problem for one in found for problem in verify(one)] + damaged
    assert len(names) - len(found) == len(refused)
    assert len(found) == len(os.listdir(home(root)))


def in_a_child(work: Callable[[], object], fault: str = "", file_size: int | None = None) -> int:
    """Do it in a fork: its exit code, or minus the signal that killed it."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            faults.arm({faults.ARM: fault})
            if file_size is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
            work()
            code = 0
        except CheckpointRefused as error:
            code = 3 if error.code == "savepoint_not_written" else 4
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_create_is_repeated_without_harm(point: str, root: Path) -> None:
    assert -signal.SIGKILL == in_a_child(lambda: create(root, name="kept"), f"savepoint.{point}=kill")
    found, damaged = find(root)
    assert [] == damaged
    if point == "named":
        assert [] == verify(found[0])
        return
    assert [] == found
    assert 1 == len(os.listdir(home(root)))
    make_old(home(root))
    assert [] == verify(create(root, name="kept"))
    assert ["kept"] == os.listdir(home(root))


def test_every_crash_point_is_killed(root: Path, tmp_path: Path) -> None:
    log = tmp_path / "points"
    faults.arm({faults.LOG: str(log)})
    try:
        delete(create(root))
    finally:
        faults.arm({})
    reached = {point for point in log.read_text().split() if point.startswith("savepoint.")}
    assert {f"savepoint.{point}" for point in (*POINTS, "deleted")} == reached


def test_a_killed_delete_leaves_nothing_that_is_listed(root: Path) -> None:
    made = create(root)
    assert -signal.SIGKILL == in_a_child(lambda: delete(made), "savepoint.deleted=kill")
    assert ([], []) == find(root)
    make_old(home(root))
    sweep(home(root))
    assert [] == os.listdir(home(root))


def make_old(place: Path) -> None:
    for path in place.iterdir():
        os.utime(path, (1, 1))


def test_what_a_living_one_makes_is_not_swept(root: Path) -> None:
    create(root)
    living = home(root) / f".mine.{'0' * 32}.half"
    living.mkdir()
    descriptor = os.open(living, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        make_old(home(root))
        sweep(home(root))
        assert living.exists()
    finally:
        os.close(descriptor)
    os.utime(living)
    sweep(home(root))  # free, but so young that its maker may be about to lock it
    assert living.exists()
    make_old(home(root))
    sweep(home(root))
    assert not living.exists()
    assert 1 == len(os.listdir(home(root)))


def test_others_files_are_not_swept(root: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    for name in (".cache.tmp", ".x.half", "mine"):
        (theirs / name).mkdir(parents=True)
    make_old(theirs)
    create(root, to=theirs, name="one")
    assert [".cache.tmp", ".x.half", "mine", "one"] == sorted(os.listdir(theirs))


def test_a_disk_without_room_is_said_and_nothing_is_listed(root: Path) -> None:
    assert 3 == in_a_child(lambda: create(root), file_size=500)
    assert ([], []) == find(root)
    assert [] == os.listdir(home(root))


def test_the_command_line_makes_lists_shows_verifies_and_deletes(root: Path) -> None:
    def run(*words: object) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["savepoint", *map(str, words)], catch_exceptions=False)
        return done.exit_code, done.stdout

    code, out = run("create", root, "--name", "one")
    path = Path(out.strip())
    assert (0, home(root) / "one") == (code, path)
    for place in (root, path.parent):
        code, out = run("list", place, "--json")
        assert (0, ["one"], []) == (
            code,
            [row["name"] for row in json.loads(out)["savepoints"]],
            json.loads(out)["damaged"],
        )
    assert "one" in run("list", root)[1]
    assert [0, 1] == [row["partition"] for row in json.loads(run("show", path, "--json")[1])["state"]]
    assert "epoch" in run("show", path)[1]
    assert (0, True) == (run("verify", path)[0], json.loads(run("verify", path, "--json")[1])["whole"])
    (path / "checkpoint" / "metadata").write_text("")
    assert (1, 1) == (run("verify", path)[0], run("verify", path, "--json")[0])
    (path / "savepoint.json").write_text("{}")
    assert "damaged" in run("list", root)[1]
    with pytest.raises(CheckpointRefused):
        run("delete", path, "--yes")
    assert path.exists()


def test_delete_wants_a_yes(root: Path) -> None:
    path = create(root).path
    assert "add --yes" in CliRunner().invoke(cli, ["savepoint", "delete", str(path)]).stdout
    assert path.exists()
    assert 0 == CliRunner().invoke(cli, ["savepoint", "delete", str(path), "--yes"]).exit_code
    assert not path.exists()


def test_every_flipped_byte_of_a_manifest_is_damage_and_never_a_newer_version(root: Path) -> None:
    made = create(root)
    data = (made.path / savepoint.NAME).read_bytes()
    for place in range(len(data)):
        (made.path / savepoint.NAME).write_bytes(data[:place] + bytes([data[place] ^ 3]) + data[place + 1 :])
        with pytest.raises(CheckpointRefused) as refused:
            load(made.path)
        assert "savepoint_damaged" == refused.value.code


def test_no_spark_is_needed(root: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from fencepost.admin.savepoint import create, verify\n"
        f"assert not verify(create(Path({str(root)!r}))); assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
