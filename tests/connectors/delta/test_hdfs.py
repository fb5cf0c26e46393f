"""Delta tables on HDFS, through the library's own client: no JVM of ours takes part."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta_tables import JOB, LINEAGE, SCHEMA, SINK, append, numbered, table_at
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from fencepost_proof.rig.hdfs import Hdfs

from fencepost.connectors.delta import trial
from fencepost.connectors.delta.sink import Delta
from fencepost.connectors.table.database import Conflict
from fencepost.testing import SinkContract

pytestmark = pytest.mark.long


class TestAppend(SinkContract):
    notices_a_setback = True
    tells = True
    lists_orphans = True
    finds_strays = True
    key: str | None = None

    @pytest.fixture(autouse=True)
    def _served(self, hdfs: Hdfs) -> None:
        self.root = hdfs.url

    def place(self, tmp_path: Path) -> str:
        return f"{self.root}/lake/{uuid.uuid5(uuid.NAMESPACE_URL, str(tmp_path)).hex}"

    def make_sink(self, tmp_path: Path) -> Delta:
        return Delta(self.place(tmp_path), name="words", key=self.key)

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        try:
            found = DeltaTable(self.place(tmp_path)).to_pyarrow_table()
        except TableNotFoundError:
            return []
        return list(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))

    def misfit(self) -> pa.Schema:
        return pa.schema({"k": pa.string(), "v": pa.int64(), "more": pa.int64()})


class TestUpsert(TestAppend):
    lists_orphans = False
    key = "k"

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", None, "secret-2"], "v": [1, 2, 3]})


def test_of_writers_that_commit_the_same_version_one_wins(hdfs: Hdfs) -> None:
    """Also the trial that every store has to pass, a few times more."""
    table = table_at(f"{hdfs.url}/lake/{uuid.uuid4().hex}")
    assert not table.load()
    table.create(SCHEMA)
    assert table.load()
    assert [1] * 10 == [trial._race(table._folder) for _ in range(10)]
    assert [] == table._folder.names(trial.FOLDER)


def test_drivers_that_race_commit_every_epoch_once(hdfs: Hdfs) -> None:
    url, epochs = f"{hdfs.url}/lake/{uuid.uuid4().hex}", 5
    first = table_at(url)
    assert not first.load()
    first.create(SCHEMA)

    def drive(n: int) -> None:
        table = table_at(url)
        for epoch in range(epochs):
            while True:
                assert table.load()
                found = table.mark(JOB, SINK, [LINEAGE])
                if found is not None and found.epoch >= epoch:
                    break
                try:
                    append(table, epoch, numbered(epoch), f"driver-{n}-{epoch}")
                except Conflict:
                    continue

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(drive, range(3)))
    assert list(range(epochs)) == sorted(DeltaTable(url).to_pyarrow_table()["k"].to_pylist())
