"""PostgreSQL: the contract on a real server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from fencepost.connectors.postgres.sink import Postgres
from fencepost.testing import SinkContract


class OnServer(SinkContract):
    """A schema per target."""

    notices_a_setback = True
    tells = True
    finds_strays = True
    place: Any

    @pytest.fixture(autouse=True)
    def _place(self, place: Any) -> None:
        self.place = place
        self.made: set[str] = set()

    def schema(self, folder: Path) -> str:
        name = f"{self.place.schema}_{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
        if name not in self.made:
            self.place.run(f"CREATE SCHEMA {name}")
            self.made.add(name)
        return name

    def make_sink(self, tmp_path: Path) -> Postgres:
        return self.place.sink(f"{self.schema(tmp_path)}.words", key="k", name="words")

    def make_deleting_sink(self, tmp_path: Path) -> Postgres | None:
        sink = self.make_sink(tmp_path)
        return replace(sink, staging="checkpoint", deletes="gone") if sink.keyed else None

    def make_ordered_sink(self, tmp_path: Path) -> Postgres | None:
        sink = self.make_sink(tmp_path)
        return replace(sink, staging="checkpoint", order_by="v") if sink.keyed else None

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        return self.place.query(f"SELECT k, v FROM {self.schema(tmp_path)}.words")  # noqa: S608 - our own name

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", None, "secret-2"], "v": [1, 2, 3]})

    def misfit(self) -> pa.Schema:
        return pa.schema({"k": pa.string(), "v": pa.int64(), "more": pa.int64()})

    def silence(self, tmp_path: Path) -> Any:
        return self.locked(tmp_path)

    def forget(self, tmp_path: Path) -> bool:
        self.place.run(f"DELETE FROM {self.schema(tmp_path)}.fencepost_epoch")  # noqa: S608 - our own name
        return True

    @contextmanager
    def locked(self, tmp_path: Path) -> Iterator[None]:
        schema = self.schema(tmp_path)
        with psycopg.connect(self.place.dsn) as connection:
            connection.execute(f"LOCK TABLE {schema}.fencepost_epoch, {schema}.words IN ACCESS EXCLUSIVE MODE")
            yield


class TestUpsert(OnServer):
    pass


class TestAppend(OnServer):
    def make_sink(self, tmp_path: Path) -> Postgres:
        table = f"{self.schema(tmp_path)}.words"
        self.place.run(f"CREATE TABLE IF NOT EXISTS {table} (k text UNIQUE, v bigint CHECK (v >= 0))")
        return self.place.sink(table, name="words", create=False)

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", "secret-1"], "v": [1, 2]})
