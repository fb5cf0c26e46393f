"""A checkpoint that was damaged while nobody ran: the next start is exact, or it refuses and touches no sink."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streams import Place, dump, records

import fencepost as fp
from fencepost.errors import CheckpointRefused, OperatorNeeded
from fencepost.protocol.format import digest
from fencepost.store import parts

pytestmark = [pytest.mark.spark]

NEWEST = 3
"""The last of four epochs; the records are lineage, writer, two decisions, done, and again without the first."""


@pytest.fixture(scope="module")
def base(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Four epochs in two starts, and one more input file that the next start will find."""
    place = Place(tmp_path_factory.mktemp("base"))
    for lines in (["a b a", "b c"], ["c a", "d"]):
        place.say(*lines)
        place.counting(spark).run(until="available")
    assert place.expected() == place.counts()
    kinds = ["lineage", "writer", "decision", "decision", "done", "writer", "decision", "decision", "done"]
    assert kinds == [record["kind"] for record in records(place.checkpoint)]
    place.say("a e")
    return place


@pytest.fixture
def place(base: Place, tmp_path: Path) -> Place:
    return base.copy(tmp_path / "copy")


def exact_or_refused(spark: Any, place: Place, refusal: type[fp.FencepostError] = CheckpointRefused) -> str:
    """Start again; "exact", or the code of the refusal."""
    before = dump(place.database)
    refused = None
    try:
        place.counting(spark).run(until="available")
    except refusal as error:
        refused = error
    if refused is None:
        assert place.expected() == place.counts()
        return "exact"
    assert before == dump(place.database)
    assert "job" == refused.where.job
    return refused.code


def empty(data: bytes) -> bytes:
    return b""


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def without_last_byte(data: bytes) -> bytes:
    return data[:-1]


def zeroed(data: bytes) -> bytes:
    """As some file systems leave a file after a power cut."""
    return b"\0" * len(data)


def flipped(data: bytes, place: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= bit
    return bytes(changed)


def flipped_first(data: bytes) -> bytes:
    return flipped(data, 0, 1)


def flipped_middle(data: bytes) -> bytes:
    return flipped(data, len(data) // 2, 1)


def flipped_out_of_text(data: bytes) -> bytes:
    return flipped(data, len(data) // 2, 0x80)


def flipped_last(data: bytes) -> bytes:
    return flipped(data, -1, 1)


Damage = Callable[[bytes], bytes]
DAMAGES: tuple[Damage | None, ...] = (
    empty,
    truncated,
    without_last_byte,
    zeroed,
    flipped_first,
    flipped_middle,
    flipped_out_of_text,
    flipped_last,
    None,
)
"""None deletes the file."""


def do(file: Path, damage: Damage | None) -> None:
    data = file.read_bytes()
    assert data
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage(data))


def named(damage: Damage | None) -> str:
    return damage.__name__ if damage else "deleted"


each_damage = pytest.mark.parametrize("damage", DAMAGES, ids=named)


@each_damage
@pytest.mark.parametrize("epoch", [0, NEWEST - 1, NEWEST])
@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_sparks_log_is_written_again_from_the_ledger(
    spark: Any, place: Place, log: str, epoch: int, damage: Damage | None
) -> None:
    do(place.damaged(f"{log}/{epoch}"), damage)
    assert "exact" == exact_or_refused(spark, place)


@each_damage
def test_the_lineage_is_known_from_the_ledger_or_the_start_is_refused(
    spark: Any, place: Place, damage: Damage | None
) -> None:
    do(place.damaged("metadata"), damage)
    assert exact_or_refused(spark, place) in ("exact", "lineage_mismatch")


@each_damage
@pytest.mark.parametrize("entry", [0, NEWEST])
def test_a_changed_list_of_input_files_is_refused(spark: Any, place: Place, entry: int, damage: Damage | None) -> None:
    do(place.damaged(f"sources/0/{entry}"), damage)
    assert "snapshot_lost" == exact_or_refused(spark, place)


@each_damage
@pytest.mark.parametrize("number", [0, 3, 7])
def test_a_changed_record_is_refused(spark: Any, place: Place, number: int, damage: Damage | None) -> None:
    do(place.damaged(f"ledger/{number}"), damage)
    assert "ledger_damaged" == exact_or_refused(spark, place)


@each_damage
def test_the_newest_record_is_refused_if_changed_and_done_again_if_lost(
    spark: Any, place: Place, damage: Damage | None
) -> None:
    do(place.damaged("ledger/8"), damage)
    assert ("exact" if damage is None else "ledger_damaged") == exact_or_refused(spark, place)


def test_an_edited_record_is_refused(spark: Any, place: Place) -> None:
    file = place.damaged("ledger/6")
    text = file.read_text()
    assert '"epoch":2' in text
    file.write_text(text.replace('"epoch":2', '"epoch":1', 1))
    assert "ledger_damaged" == exact_or_refused(spark, place)


def test_an_edited_record_with_a_right_sum_is_refused_by_the_chain(spark: Any, place: Place) -> None:
    file = place.damaged("ledger/6")
    plain = json.loads(file.read_text())
    plain["at"] = "2000-01-01T00:00:00.000+00:00"
    del plain["sum"]
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    plain["sum"] = digest(text.encode())
    file.write_text(json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":")) + "\n")
    assert "ledger_damaged" == exact_or_refused(spark, place)


def test_records_in_the_wrong_order_are_refused(spark: Any, place: Place) -> None:
    one, two = place.damaged("ledger/6"), place.damaged("ledger/7")
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    assert "ledger_damaged" == exact_or_refused(spark, place)


def test_a_lost_ledger_is_refused(spark: Any, place: Place) -> None:
    shutil.rmtree(place.checkpoint / "fencepost")
    assert "ledger_missing" == exact_or_refused(spark, place)


def test_a_decision_lost_with_everything_after_it_is_refused(spark: Any, place: Place) -> None:
    place.damaged("ledger/8").unlink()
    place.damaged("ledger/7").unlink()
    assert "spark_ahead" == exact_or_refused(spark, place)


def test_a_lost_checkpoint_is_refused_by_the_target(spark: Any, place: Place) -> None:
    before = dump(place.database)
    shutil.rmtree(place.checkpoint)
    with pytest.raises(fp.Refused) as refused:
        place.counting(spark).run(until="available")
    assert "target_of_another_lineage" == refused.value.code
    assert before == dump(place.database)


def test_an_old_copy_of_the_checkpoint_is_noticed_by_the_target(spark: Any, place: Place, tmp_path: Path) -> None:
    """The one loss that a checkpoint cannot see itself: it is whole, but the target is ahead of it."""
    old = place.copy(tmp_path / "old")
    place.counting(spark).run(until="available")
    before = dump(place.database)
    shutil.copyfile(place.database, old.database)
    with pytest.raises(OperatorNeeded) as stopped:
        old.counting(spark).run(until="available")
    assert ("target_ahead", "sqlite:counts") == (stopped.value.code, stopped.value.where.sink)
    assert before == dump(old.database)


@each_damage
def test_a_changed_state_file_is_refused(spark: Any, place: Place, damage: Damage | None) -> None:
    for file in state_files(place, NEWEST + 1)[: 1 if damage else None]:
        do(file, damage)
    assert "snapshot_lost" == exact_or_refused(spark, place)


def test_large_state_is_left_to_sparks_own_sums(spark: Any, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark finds it in the first epoch; then we say what is to be done."""
    monkeypatch.setattr(parts, "READ_AT_START", -1)
    do(state_files(place, NEWEST + 1)[0], flipped_last)
    assert "snapshot_lost" == exact_or_refused(spark, place)


@pytest.mark.parametrize("version", [1, NEWEST])
def test_an_older_state_file_that_the_newest_rests_on_is_missed(spark: Any, place: Place, version: int) -> None:
    for file in state_files(place, version):
        file.unlink()
    assert "snapshot_lost" == exact_or_refused(spark, place)


def test_lost_state_is_refused(spark: Any, place: Place) -> None:
    shutil.rmtree(place.checkpoint / "state")
    assert "snapshot_lost" == exact_or_refused(spark, place)


def state_files(place: Place, version: int) -> list[Path]:
    """The files of one version, without Spark's sums of them."""
    return sorted((place.checkpoint / "state").rglob(f"{version}_*"), key=lambda file: file.stat().st_size)[::-1]


@pytest.mark.parametrize("text", ["", 'v1\n{"batchWatermarkMs":0', 'v1\n{}\n{"logOffset":9}', "\0\0\0"])
def test_a_half_written_epoch_that_nobody_decided_begins_anew(spark: Any, place: Place, text: str) -> None:
    (place.checkpoint / "offsets" / str(NEWEST + 1)).write_text(text)
    (place.checkpoint / "sources" / "0" / str(NEWEST + 1)).write_text(text)
    assert "exact" == exact_or_refused(spark, place)


def test_an_epoch_that_only_spark_completed_is_refused(spark: Any, place: Place) -> None:
    for log in ("offsets", "commits"):
        shutil.copyfile(place.checkpoint / log / str(NEWEST), place.checkpoint / log / str(NEWEST + 1))
    assert "spark_ahead" == exact_or_refused(spark, place)


def test_garbage_beside_the_files_is_ignored(spark: Any, place: Place) -> None:
    ledger = place.damaged("ledger/0").parent
    for folder in (
        place.checkpoint,
        ledger,
        ledger.parent,
        *(place.checkpoint / log for log in ("offsets", "commits")),
    ):
        for name in (f".{NEWEST + 1}.4f9c.tmp", "notes.txt", f".{NEWEST}.crc"):
            (folder / name).write_text("garbage")
    staged = ledger.parent / "staged" / "2"
    staged.mkdir(parents=True, exist_ok=True)
    (staged / "3-dead.arrow").write_bytes(b"ARROW1")
    (place.checkpoint / "sources" / "0" / ".9.tmp").write_text("garbage")
    assert "exact" == exact_or_refused(spark, place)
