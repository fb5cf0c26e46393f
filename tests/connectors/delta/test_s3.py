"""Delta tables in an object store: a real S3 server, behind a door where answers are lost and conditions ignored."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from delta_tables import JOB, LINEAGE, SCHEMA, SINK, append, marked, numbered, table_at
from deltalake import DeltaTable, write_deltalake
from fencepost_proof.rig.s3 import KEY, REGION, S3, SECRET
from fencepost_proof.rig.s3_door import Answer, Request, S3Door

from fencepost.connectors.delta import trial
from fencepost.connectors.delta.table import DeltaLakeTable
from fencepost.connectors.table.database import Conflict, Denied, Silent

OPTIONS = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "aws_region": REGION, "aws_allow_http": "true"}


@pytest.fixture
def door(s3: S3) -> Iterator[S3Door]:
    with S3Door(s3.endpoint) as found:
        yield found


@pytest.fixture
def url(s3: S3) -> str:
    return s3.make_bucket(f"delta-{uuid.uuid4().hex[:12]}") + "/lake/orders"


@pytest.fixture
def options(door: S3Door) -> dict[str, str]:
    return {**OPTIONS, "aws_endpoint": door.endpoint}


@pytest.fixture
def table(url: str, options: dict[str, str]) -> DeltaLakeTable:
    found = table_at(url, storage_options=options)
    assert not found.load()
    assert [] == found.uncreatable(SCHEMA)
    found.create(SCHEMA)
    assert found.load()
    return found


def keys(url: str, options: dict[str, str]) -> list[int]:
    handle = DeltaTable(url.replace("s3a:", "s3:"), storage_options=options)
    return sorted(row["k"] for row in handle.to_pyarrow_table().to_pylist())


def puts_a_version(request: Request) -> bool:
    return request.method == "PUT" and "_delta_log" in request.key and request.key.endswith(".json")


def test_epochs_in_an_object_store(table: DeltaLakeTable, url: str, options: dict[str, str]) -> None:
    assert [] == table.unfit(removes=True)
    append(table, 0, numbered(1, 2))
    assert table.load()
    table.upsert(numbered(2, 3), ["k"], None, JOB, SINK, marked(table, 1))
    assert table.load()
    files = table.write("fp-aaaaaaaa-1", "h", numbered(9))
    assert ([], ["h-0.parquet"]) == (table.lost(files), [n for n in table.files_in("fp-aaaaaaaa-1") if n[0] == "h"])
    again = table_at(url, storage_options=options)
    assert again.load()
    assert 1 == again.mark(JOB, SINK, [LINEAGE]).epoch  # type: ignore[union-attr]
    again.append(files, JOB, SINK, marked(again, 2))
    assert again.setback(JOB, SINK, marked(again, 2)) is None
    assert [1, 2, 3, 9] == keys(url, options)
    loose = table.write("fp-aaaaaaaa-1", "loose", numbered(7))
    table.delete([*(file.path for file in loose), "fp-aaaaaaaa-1/none.parquet"])
    assert [file.path for file in loose] == table.lost(loose)


@pytest.mark.parametrize("how", ["append", "upsert", "replace"])
def test_an_answer_that_is_lost_leaves_the_epoch_there_once(
    table: DeltaLakeTable, door: S3Door, url: str, options: dict[str, str], how: str
) -> None:
    append(table, 0, numbered(1))
    assert table.load()
    door.lose_answer(when=puts_a_version)

    def commit() -> None:
        if how == "upsert":
            table.upsert(numbered(2), ["k"], None, JOB, SINK, marked(table, 1))
        else:
            files = table.write("fp-aaaaaaaa-1", uuid.uuid4().hex, numbered(2))
            (table.append if how == "append" else table.replace)(files, JOB, SINK, marked(table, 1))

    try:
        commit()
    except Silent:
        assert table.load()
        found = table.mark(JOB, SINK, [LINEAGE])
        assert found is not None
        if found.epoch < 1:
            commit()
    assert 1 == door.lost
    door.behave()
    assert table.load()
    assert 1 == table.mark(JOB, SINK, [LINEAGE]).epoch  # type: ignore[union-attr]
    assert ([2] if how == "replace" else [1, 2]) == keys(url, options)


def test_a_store_that_ignores_conditions_is_refused(table: DeltaLakeTable, door: S3Door) -> None:
    trial._passed.clear()
    door.ignore_conditions()
    words = "its object store lets two writers commit the same version: it ignores the condition of a PUT"
    assert [words] == table.unfit(removes=False)
    door.behave()
    assert [] == table.unfit(removes=False)


def test_the_trial_leaves_nothing_behind(table: DeltaLakeTable) -> None:
    trial._passed.clear()
    assert [] == table.unfit(removes=False)
    assert [] == table._folder.names(trial.FOLDER)


def test_a_store_that_is_down_is_a_silence_and_one_that_forbids_is_not(
    table: DeltaLakeTable, door: S3Door, url: str, options: dict[str, str]
) -> None:
    again = table_at(url, storage_options={**options, "max_retries": "0"})
    door.answer(Answer(503, "SlowDown"))
    with pytest.raises(Silent) as found:
        again.load()
    assert not isinstance(found.value, Denied)
    door.behave()
    door.answer(Answer(403, "AccessDenied"))
    with pytest.raises(Denied) as found:
        again.load()
    assert all(secret not in str(found.value) for secret in (SECRET, KEY, door.endpoint))


def test_drivers_that_race_in_an_object_store_commit_every_epoch_once(
    table: DeltaLakeTable, url: str, options: dict[str, str]
) -> None:
    epochs = 4

    def drive(n: int) -> None:
        mine = table_at(url, storage_options=options)
        for epoch in range(epochs):
            while True:
                assert mine.load()
                found = mine.mark(JOB, SINK, [LINEAGE])
                if found is not None and found.epoch >= epoch:
                    break
                try:
                    append(mine, epoch, numbered(epoch), f"driver-{n}-{epoch}")
                except Conflict:
                    continue

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(drive, range(3)))
    assert list(range(epochs)) == keys(url, options)


def test_a_table_that_was_replaced_in_an_object_store_is_noticed(
    table: DeltaLakeTable, url: str, options: dict[str, str]
) -> None:
    append(table, 0, numbered(1))
    assert table.load()
    first = table.id
    table._folder.delete([f"_delta_log/{name}" for name in table._folder.names("_delta_log")])
    write_deltalake(url.replace("s3a:", "s3:"), numbered(5).table, storage_options=options)
    write_deltalake(url.replace("s3a:", "s3:"), numbered(6).table, mode="append", storage_options=options)
    assert table.load()
    assert (True, None) == (first != table.id, table.mark(JOB, SINK, [LINEAGE]))


def test_how_many_requests_an_epoch_takes(table: DeltaLakeTable, door: S3Door) -> None:
    """Each is some ten milliseconds away, so one more is noticed."""
    assert [] == table.unfit(removes=False)
    for epoch in range(3):
        door.reset()
        assert table.load()
        found = table.mark(JOB, SINK, [LINEAGE])
        assert found is None or table.setback(JOB, SINK, found) is None
        append(table, epoch, numbered(epoch))
        counted = door.reset()
    assert sum(counted.values()) <= 14, counted
