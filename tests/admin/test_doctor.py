"""The doctor names every damage, says the right thing about it, and puts back only what is provably right."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attack import walk
from click.testing import CliRunner
from kinds import KINDS
from streams import Place

from fencepost.admin import doctor
from fencepost.admin.doctor import diagnose, repair
from fencepost.admin.rescale import rescale
from fencepost.admin.restore import restore, rewind
from fencepost.admin.savepoint import create
from fencepost.cli.main import cli
from fencepost.errors import CheckpointRefused
from fencepost.spark.jvm import release
from fencepost.store.base import record_name
from fencepost.store.ledger import read
from fencepost.store.parts import parts_of
from fencepost.store.savepoints import home

pytestmark = [pytest.mark.spark]

Grown = Callable[[str], tuple[Place, int]]
Copied = Callable[[str], tuple[Path, int]]


@pytest.fixture
def root(copied: Copied) -> Path:
    """A checkpoint that may be attacked, with a savepoint of its newest epoch."""
    root, _ = copied("count")
    create(root, name="newest")
    return root


def fixes(root: Path) -> dict[str, str]:
    """What is wrong with what, and how to fix it."""
    return {finding.name: finding.fix for finding in diagnose(root).findings}


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_checkpoint_is_called_whole(kind: str, grown: Grown) -> None:
    place, epoch = grown(kind)
    found = diagnose(place.checkpoint)
    assert (True, "job", epoch) == (found.is_whole, found.job, found.epoch), found.findings


@pytest.mark.parametrize("damage", ["", "v1\n"])
@pytest.mark.parametrize("name", ["metadata", "offsets/{}", "commits/{}"])
def test_sparks_own_log_is_mended_by_the_next_start(root: Path, name: str, damage: str) -> None:
    name = name.format(read(root).done_through)
    (root / name).write_text(damage)
    found = diagnose(root)
    assert {name: "start"} == fixes(root) or "metadata" == name, found.findings


def test_every_damage_is_put_back_or_has_a_way_out(root: Path, grown: Grown) -> None:
    """With the newest epoch in a savepoint, all but what the ledger cannot prove is put back, byte for byte."""
    state = read(root)
    parts = {part.name: part for part in parts_of(root, state.done_through)}
    whole = {name: (root / name).read_bytes() for name in parts}
    other = grown("join")[0].checkpoint

    def heal() -> bool:
        found = diagnose(root)
        if found.is_whole:
            return False
        repair(root, found)
        left = {finding.name: finding for finding in diagnose(root).findings}
        for finding in left.values():
            assert finding.fix in ("start", "restore", "person"), finding
            assert finding.next, finding
        for name, data in whole.items():
            if name not in left and parts[name].kind in ("state", "schema", "source") and (root / name).exists():
                assert data == (root / name).read_bytes(), name
        for path in root.rglob(".*.damaged"):
            path.unlink()
        return True

    for name, attack in walk(root, other, heal):
        part = parts.get(name)
        mended = name.split("/")[0] in ("offsets", "commits") and int(name.rsplit("/", 1)[-1]) < state.done_through - 1
        last = attack == "deleted" and name == record_name(state.lineage_id, state.last)  # as before it was written
        snapshot = attack == "deleted" and name.endswith((".zip", ".zip.crc"))  # an older one is taken
        note = attack == "deleted" and "/plan/" in name  # as before there were any
        assert part is None or mended or last or snapshot or note, (name, attack)


def test_a_record_is_put_back_where_the_next_one_proves_it(root: Path) -> None:
    state = read(root)
    name = record_name(state.lineage_id, state.last - 1)
    whole = (root / name).read_bytes()
    (root / name).write_bytes(whole[:-20])
    assert {name: "copy"} == fixes(root)
    assert [name] == [finding.name for finding in repair(root, diagnose(root))]
    assert whole == (root / name).read_bytes()
    assert diagnose(root).is_whole


def test_the_newest_record_cannot_be_proven(root: Path) -> None:
    state = read(root)
    name = record_name(state.lineage_id, state.last)
    (root / name).write_bytes(b"{}")
    (finding,) = diagnose(root).findings
    assert (name, "restore", True) == (finding.name, finding.fix, "savepoint restore" in finding.next)


def test_a_savepoint_of_another_attempt_proves_nothing(root: Path) -> None:
    """The same name with other bytes and another sum is not taken."""
    part = next(part for part in parts_of(root, read(root).done_through) if part.spark_side)
    copy = home(root) / "newest" / "checkpoint" / part.name
    (root / part.name).write_bytes(b"damaged")
    copy.write_bytes(b"other")
    assert "restore" == fixes(root)[part.name]


def test_without_a_savepoint_it_says_so(root: Path) -> None:
    shutil.rmtree(home(root))
    shutil.rmtree(root / "state")
    found = diagnose(root)
    assert {"snapshot_lost"} == {finding.code for finding in found.findings}
    assert all("no good savepoint" in finding.next for finding in found.findings)


@pytest.mark.parametrize("gone", ["fencepost", "fencepost/*/ledger", "[mf]e*", "../checkpoint"])
def test_a_deleted_ledger_is_told_from_a_wrong_folder_by_the_savepoints_beside_it(root: Path, gone: str) -> None:
    create(root, name="later")
    for path in [*root.glob(gone)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    result = CliRunner().invoke(cli, ["doctor", str(root)])
    assert 1 == result.exit_code
    assert "Pass the folder" not in result.output
    assert all(str(home(root) / name) in result.output for name in ("newest", "later"))
    (command,) = re.findall(r"fencepost (savepoint restore .* --sink overwrite)", result.output)
    place = root.with_name("again")
    made = CliRunner().invoke(cli, command.replace("NEW", str(place)).split())
    assert 0 == made.exit_code, made.output
    assert diagnose(place).is_whole


def test_a_folder_that_never_was_a_checkpoint_is_a_wrong_folder(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["doctor", str(tmp_path)])
    assert "Pass the folder that the job uses" in result.output


def test_a_deleted_ledger_without_savepoints_is_not_a_wrong_folder_either(root: Path) -> None:
    shutil.rmtree(home(root))
    shutil.rmtree(root / "fencepost")
    (finding,) = diagnose(root).findings
    assert ("no_ledger", "person", True) == (finding.code, finding.fix, "no savepoint beside it" in finding.next)


def test_a_checkpoint_is_whole_after_every_command(copied: Copied, spark: Any) -> None:
    root, epoch = copied("count")
    saved = create(root, name="newest")
    restored = root.with_name("restored")
    restore(saved, restored, fate=None, parent=None, fork="second")
    assert diagnose(restored).is_whole, diagnose(restored)
    if release(spark.version) >= (4, 2):
        rescale(root, 3, lambda: spark)
        assert diagnose(root).is_whole, diagnose(root)
    rewind(root, epoch, "again")
    assert diagnose(root).is_whole, diagnose(root)


def test_a_start_is_refused_and_the_savepoints_are_offered(grown: Grown, copied: Copied, spark: Any) -> None:
    root, epoch = copied("count")
    create(root, name="newest")
    part = next(p for p in parts_of(root, epoch) if p.kind == "state")
    data = (root / part.name).read_bytes()
    (root / part.name).write_bytes(bytes([data[0] ^ 1]) + data[1:])
    place = Place(root.parent, grown("count")[0].input)
    shutil.copy(grown("count")[0].database, place.database)
    with pytest.raises(CheckpointRefused, match="snapshot_lost") as caught:
        place.counting(spark).run(until="available")
    assert str(home(root) / "newest") in caught.value.next
    repair(root, diagnose(root))
    place.counting(spark).run(until="available")
    assert place.expected() == place.counts()


def test_the_command_says_it_and_ends_with_1(root: Path) -> None:
    state = read(root)
    assert (0, True) == (
        (whole := CliRunner().invoke(cli, ["doctor", str(root)])).exit_code,
        whole.output.startswith("Whole"),
    )
    (root / record_name(state.lineage_id, 0)).unlink()
    said = CliRunner().invoke(cli, ["doctor", str(root), "--json"])
    assert (1, "ledger_damaged") == (said.exit_code, json.loads(said.output)["findings"][0]["code"])
    said = CliRunner().invoke(cli, ["doctor", str(root), "--repair"])
    assert (0, True) == (said.exit_code, "put back" in said.output), said.output


def test_a_doctor_who_sees_nothing_is_caught(root: Path, grown: Grown, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotaged twin of the walk above: state files are not looked at."""
    monkeypatch.setattr(doctor, "not_whole", lambda root, epoch, state, watch: [])
    other = grown("join")[0].checkpoint
    unseen = {name for name, _ in walk(root, other, lambda: not diagnose(root).is_whole)}
    assert any(name.endswith(".changelog") for name in unseen)
