"""Delta and Iceberg: the version that an epoch made shows that epoch, read by the libraries' own readers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from fencepost_proof.targets import catalog_of
from lake import TABLE, delta, iceberg
from pyiceberg.catalog import load_catalog

from fencepost.contract import Instant
from fencepost.protocol.records import Handle
from fencepost.testing import SinkDriver
from fencepost.testing.sink_driver import ANOTHER, LINEAGE

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
Rows = list[tuple[str, int]]


class DeltaFormat:
    words = "VERSION AS OF "
    make = staticmethod(delta)

    def read(self, folder: Path, version: str) -> Rows:
        return rows_of(DeltaTable(str(folder / "words"), version=int(version)).to_pyarrow_table())

    def add(self, folder: Path, *rows: tuple[str, int]) -> None:
        write_deltalake(str(folder / "words"), table(*rows), mode="append")

    def maintain(self, folder: Path) -> None:
        DeltaTable(str(folder / "words")).optimize.compact()

    def expire(self, folder: Path) -> None:
        """As a cleanup of the log does it: a checkpoint, and no older commits."""
        there = DeltaTable(str(folder / "words"))
        there.create_checkpoint()
        for path in sorted((folder / "words" / "_delta_log").glob("*.json"))[:-1]:
            path.unlink()

    def drop(self, folder: Path) -> None:
        shutil.rmtree(folder / "words")


class IcebergFormat:
    words = "FOR VERSION AS OF "
    make = staticmethod(iceberg)

    def read(self, folder: Path, version: str) -> Rows:
        with closing(load_catalog("default", **catalog_of(folder))) as catalog:
            return rows_of(catalog.load_table(TABLE).scan(snapshot_id=int(version)).to_arrow())

    def add(self, folder: Path, *rows: tuple[str, int]) -> None:
        with closing(load_catalog("default", **catalog_of(folder))) as catalog:
            catalog.load_table(TABLE).append(table(*rows))

    def maintain(self, folder: Path) -> None:
        with closing(load_catalog("default", **catalog_of(folder))) as catalog:
            there = catalog.load_table(TABLE)
            there.overwrite(there.scan().to_arrow())

    def expire(self, folder: Path) -> None:
        with closing(load_catalog("default", **catalog_of(folder))) as catalog:
            there = catalog.load_table(TABLE)
            there.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()  # noqa: DTZ005

    def drop(self, folder: Path) -> None:
        with closing(load_catalog("default", **catalog_of(folder))) as catalog:
            catalog.drop_table(TABLE)


Format = DeltaFormat | IcebergFormat
Start = Callable[..., SinkDriver]


def table(*rows: tuple[str, int]) -> pa.Table:
    return pa.table({"k": [key for key, _ in rows], "v": [value for _, value in rows]}, SCHEMA)


def rows_of(found: pa.Table) -> Rows:
    return sorted((row["k"], row["v"]) for row in found.to_pylist())


@pytest.fixture(params=[DeltaFormat, IcebergFormat])
def lake(request: pytest.FixtureRequest) -> Format:
    return request.param()  # type: ignore[no-any-return]


@pytest.fixture
def start(lake: Format, tmp_path: Path) -> Iterator[Start]:
    made: list[SinkDriver] = []

    def begin(output: str = "append", *, owner: dict[str, Any] | None = None, **settings: Any) -> SinkDriver:
        driver = SinkDriver(lake.make(tmp_path, **settings), tmp_path, **(owner or {}))
        made.append(driver)
        driver.start(SCHEMA, output)  # type: ignore[arg-type]
        return driver

    yield begin
    for driver in made:
        driver.session.close()


def version(lake: Format, found: Instant) -> str:
    assert found.exact, found.why
    assert found.text == f"{lake.words}{found.facts['version']}"
    return str(found.facts["version"])


def read_back(lake: Format, folder: Path, driver: SinkDriver, handles: dict[int, Handle]) -> list[Rows]:
    versions = [version(lake, driver.as_of(epoch, handles)) for epoch in handles]
    assert len(handles) == len(set(versions))  # and no epoch is another's
    return [lake.read(folder, one) for one in versions]


def test_each_epoch_is_read_back_whatever_others_do_in_between(lake: Format, tmp_path: Path, start: Start) -> None:
    driver = start()
    handles, expected = {}, []
    for epoch in range(4):
        handles[epoch] = driver.run(epoch, table((f"ours-{epoch}", epoch)))
        expected.append([(f"ours-{number}", number) for number in range(epoch + 1)])
        lake.add(tmp_path, ("theirs", epoch))
        lake.maintain(tmp_path)
    driver.session.close()
    driver = start(owner={"writer": 2})
    handles[4] = driver.run(4, table(("ours-4", 4)))
    expected.append([(f"ours-{number}", number) for number in range(5)])
    found = read_back(lake, tmp_path, driver, handles)
    assert expected == [[row for row in rows if row[0] != "theirs"] for rows in found]
    assert [[("theirs", number) for number in range(epoch)] for epoch in range(5)] == [
        [row for row in rows if row[0] == "theirs"] for rows in found
    ]


def test_an_epoch_that_replaces_rows_by_key_is_read_back(lake: Format, tmp_path: Path, start: Start) -> None:
    driver = start("update", key="k")
    handles = {epoch: driver.run(epoch, table(("a", epoch), (f"b-{epoch}", 0))) for epoch in range(3)}
    expected = [sorted([("a", epoch), *((f"b-{n}", 0) for n in range(epoch + 1))]) for epoch in range(3)]
    assert expected == read_back(lake, tmp_path, driver, handles)


def test_an_epoch_that_replaces_everything_is_read_back_also_if_it_is_empty(
    lake: Format, tmp_path: Path, start: Start
) -> None:
    driver = start("complete", mode="replace")
    written = [table(("a", 1), ("b", 2)), table(("a", 3)), table(), table(("c", 4))]
    handles = {epoch: driver.run(epoch, rows) for epoch, rows in enumerate(written)}
    assert [rows_of(rows) for rows in written] == read_back(lake, tmp_path, driver, handles)


def test_history_that_was_removed_is_unknown_and_never_another_epochs(
    lake: Format, tmp_path: Path, start: Start
) -> None:
    driver = start()
    handles = {epoch: driver.run(epoch, table((f"k{epoch}", epoch))) for epoch in range(3)}
    lake.expire(tmp_path)
    found = [driver.as_of(epoch, handles) for epoch in range(3)]
    assert [False, False, True] == [one.exact for one in found]
    assert ["", ""] == [one.text for one in found[:2]]
    assert "its history does not have epoch 1, or not any more" == found[1].why
    assert [("k0", 0), ("k1", 1), ("k2", 2)] == lake.read(tmp_path, version(lake, found[2]))


def test_another_generation_job_sink_or_lineage_is_not_ours(lake: Format, tmp_path: Path, start: Start) -> None:
    driver = start()
    handle = driver.run(0, table(("a", 1)))
    assert driver.as_of(0, {0: handle}).exact
    for owner in ({"generation": 1}, {"job": "other"}, {"lineage": ANOTHER}):
        other = SinkDriver(lake.make(tmp_path), tmp_path, **{"lineage": LINEAGE, **owner})
        assert not other.as_of(0, {}).exact
    other = SinkDriver(replace(lake.make(tmp_path), name="other"), tmp_path)
    assert not other.as_of(0, {}).exact


def test_a_restored_lineage_finds_its_own_epochs_and_not_its_ancestors(
    lake: Format, tmp_path: Path, start: Start
) -> None:
    first = start()
    old = {epoch: first.run(epoch, table((f"old-{epoch}", epoch))) for epoch in range(3)}
    first.session.close()
    second = start(owner={"lineage": ANOTHER, "ancestors": [LINEAGE], "generation": 1})
    new = second.run(1, table(("new-1", 1)))
    found = lake.read(tmp_path, version(lake, second.as_of(1, {1: new})))
    assert [("new-1", 1), ("old-0", 0), ("old-1", 1), ("old-2", 2)] == found
    assert [("old-0", 0), ("old-1", 1)] == lake.read(tmp_path, version(lake, first.as_of(1, old)))


def test_a_table_that_is_gone_made_again_or_out_of_reach_is_noticed(lake: Format, tmp_path: Path, start: Start) -> None:
    driver = start()
    handle = driver.run(0, table(("a", 1)))
    before = driver.as_of(0, {0: handle}).identity
    lake.drop(tmp_path)
    found = driver.as_of(0, {0: handle})
    assert (False, True, "", True) == (found.exact, found.heard, found.identity, "does not exist" in found.why)
    start(owner={"lineage": ANOTHER, "job": "another"})
    found = driver.as_of(0, {0: handle})
    assert (False, True) == (found.exact, found.identity not in (before, "", None))


def test_a_table_that_cannot_be_read_did_not_answer(tmp_path: Path) -> None:
    driver = SinkDriver(delta(tmp_path), tmp_path)
    driver.start(SCHEMA)
    handle = driver.run(0, table(("a", 1)))
    driver.session.close()
    for path in (tmp_path / "words" / "_delta_log").glob("*.json"):
        path.write_text("this is not a log")
    found = driver.as_of(0, {0: handle})
    assert (False, False) == (found.heard, found.exact)


def test_asking_changes_nothing(lake: Format, tmp_path: Path, start: Start) -> None:
    driver = start()
    handles = {epoch: driver.run(epoch, table((f"k{epoch}", epoch))) for epoch in range(2)}
    driver.session.close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert [True, True] == [driver.as_of(epoch, handles).exact for epoch in range(2)]
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert json.dumps([dict(driver.as_of(epoch, handles).facts) for epoch in range(2)])
