"""Staged rows of many tasks: the decision stays small, and nothing of them can change unseen."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from fencepost.errors import OperatorNeeded
from fencepost.protocol.records import Epoch, Handle, Kept, WriterNumber
from fencepost.rows import MANY, Staging

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
