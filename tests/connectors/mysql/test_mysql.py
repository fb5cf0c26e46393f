"""MySQL and MariaDB: the contract on real servers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fencepost.connectors.mysql.sink import MySQL
from fencepost.testing import SinkContract


class OnServer(SinkContract):
    """A database per target."""

    notices_a_setback = True
    tells = True
    finds_strays = True
    settings: dict[str, Any] = {"key": "k"}  # noqa: RUF012 - replaced, not changed

    @pytest.fixture(autouse=True)
    def _place(self, place: Any) -> None:
        self.place = place

    def table_of(self, folder: Path) -> str:
        """Two folders are two targets, and one database has one identity: the table makes the difference."""
        return "words" + uuid.uuid5(uuid.NAMESPACE_URL, str(folder)).hex[:8]

    def make_sink(self, tmp_path: Path) -> MySQL:
        return self.place.sink(self.table_of(tmp_path), name="words", **self.settings)

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        table = f"{self.place.database}.{self.table_of(tmp_path)}"
        found = self.place.server.client(f"SELECT k, v FROM {table}")  # noqa: S608
        return [(k, int(v)) for k, v in (line.split("\t") for line in found.splitlines())]

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", None, "secret-2"], "v": [1, 2, 3]})

    def misfit(self) -> pa.Schema:
        return pa.schema({"k": pa.string(), "v": pa.int64(), "more": pa.int64()})

    def forget(self, tmp_path: Path) -> bool:
        self.place.run("DELETE FROM fencepost_epoch")
        return True

    @contextmanager
    def silence(self, tmp_path: Path) -> Iterator[None]:
        with self.place.root(database=self.place.database) as connection, connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLES fencepost_epoch WRITE, {self.table_of(tmp_path)} WRITE")
            yield


class TestUpsert(OnServer):
    pass


class TestAppend(OnServer):
    settings = {"create": False}  # noqa: RUF012

    def make_sink(self, tmp_path: Path) -> MySQL:
        table = self.table_of(tmp_path)
        self.place.run(
            f"CREATE TABLE IF NOT EXISTS {table} (k varchar(99) UNIQUE, v bigint CHECK (v >= 0)) ENGINE=InnoDB"
        )
        return super().make_sink(tmp_path)

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", "secret-1"], "v": [1, 2]})


class TestInMySQL(TestUpsert):
    """MySQL itself is slower to start and to make tables: once is enough."""

    @pytest.fixture(autouse=True)
    def _place(self, mysql_place: Any) -> None:
        self.place = mysql_place
