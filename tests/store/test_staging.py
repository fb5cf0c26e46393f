"""Staged rows of many tasks: the decision stays small, and nothing of them can change unseen."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from fencepost.errors import OperatorNeeded
from fencepost.protocol.records import Epoch, Handle, Kept, WriterNumber
from fencepost.store.staging import BATCH_BYTES, BATCH_ROWS, MANY, TAG, Staging, slices

WRITER, EPOCH = WriterNumber(1), Epoch(0)


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    """An empty folder."""
    return Staging(tmp_path / "staged")


def staged(staging: Staging, files: int) -> tuple[Kept, ...]:
    return tuple(
        kept
        for number in range(files)
        for kept in staging.stage(WRITER, EPOCH, pa.table({"id": [number]}), durable=False)
    )


def ids(staging: Staging, kept: tuple[Kept, ...]) -> list[int]:
    return [row for batch in staging.rows(kept, "sink").batches() for row in batch.column("id").to_pylist()]


def test_batches_are_small_in_rows_and_in_bytes_and_lose_nothing() -> None:
    wide = pa.record_batch({"v": [b"x" * (1 << 20)] * 40})
    long = pa.record_batch({"v": list(range(25_000))})
    assert [piece.num_rows for piece in slices(wide)] == [5] * 8
    assert [piece.num_rows for piece in slices(long)] == [10_000, 10_000, 5000]
    assert list(slices(long.slice(0, 0))) == []


def test_one_row_larger_than_a_batch_does_not_take_others_with_it() -> None:
    batch = pa.record_batch({"v": [b"x"] * 50 + [b"x" * (2 * BATCH_BYTES)] + [b"x"] * 50})
    pieces = list(slices(batch))
    assert pa.Table.from_batches(pieces).equals(pa.Table.from_batches([batch]))
    assert [piece.num_rows for piece in pieces if piece.nbytes > BATCH_BYTES] == [1]


def test_what_the_driver_stages_is_bounded_as_well(staging: Staging) -> None:
    table = pa.table({"id": range(BATCH_ROWS + 1), "text": ["x" * 2000] * (BATCH_ROWS + 1)})
    [kept] = staging.stage(WRITER, EPOCH, table, durable=False)
    with pa.OSFile(staging.here(kept)) as file, pa.ipc.open_stream(file) as reader:
        stored = list(reader)
    assert max(batch.nbytes for batch in stored) <= BATCH_BYTES
    assert pa.Table.from_batches(stored).equals(table)


def test_rows_are_counted_by_branch(staging: Staging) -> None:
    struct = pa.struct([("id", pa.int64())])
    tags = pa.array([1, 2, 1], pa.int32())
    table = pa.table([tags, *[pa.array([{"id": 1}] * 3, struct)] * 2], names=[TAG, "one", "two"])
    kept = staging.stage(WRITER, EPOCH, table, durable=False)
    assert [staging.rows(kept, sink).count for sink in ("one", "two")] == [2, 1]
    assert staging.rows((), "one").count == 0


def test_few_files_are_named_one_by_one(staging: Staging) -> None:
    kept = staged(staging, MANY)
    assert staging.gathered(WRITER, EPOCH, kept) == kept


def test_many_files_go_by_one_name_and_are_read_back_in_order(staging: Staging) -> None:
    many = staged(staging, MANY + 1)
    kept = staging.gathered(WRITER, EPOCH, many)
    assert len(kept) == 1
    assert kept[0].rows == staging.rows(kept, "sink").count == MANY + 1
    assert ids(staging, kept) == list(range(MANY + 1))
    assert staging.rows(kept, "sink").schema.names == ["id"]


@pytest.mark.parametrize("ending", [".list", ".arrow"])
def test_a_change_in_the_list_or_in_what_it_names_is_noticed(staging: Staging, ending: str) -> None:
    kept = staging.gathered(WRITER, EPOCH, staged(staging, MANY + 1))
    handle = Handle(id="h", sink="sink", rows=MANY + 1, kept=kept)
    assert staging.rows_again(handle).count == MANY + 1
    damaged = next(Path(str(staging.root)).rglob(f"*{ending}"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(OperatorNeeded, match="missing or changed"):
        staging.rows_again(handle)


def test_a_list_is_swept_with_its_epoch(staging: Staging) -> None:
    staging.gathered(WRITER, EPOCH, staged(staging, MANY + 1))
    staging.sweep(WRITER, EPOCH)
    assert not [path for path in Path(str(staging.root)).rglob("*") if path.is_file()]
