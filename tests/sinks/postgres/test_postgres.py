"""PostgreSQL: the contract on a real server, and what only PostgreSQL does."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pg8000.native
import psycopg
import pyarrow as pa
import pytest

from fencepost.errors import EpochFailed, OperatorNeeded, Refused, Retryable
from fencepost.protocol.effects import Outcome
from fencepost.prove.rig.postgres import Postgres as Server
from fencepost.sinks.postgres import server as postgres_server
from fencepost.sinks.postgres.sink import Postgres
from fencepost.testing import Driver, SinkContract, rows_of

TABLE = pa.table({"k": ["a", "b"], "v": [1, 2]})


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_server, "PATIENT", "300ms")
    monkeypatch.setattr(postgres_server, "IMPATIENT", "200ms")


def query(server: Server, database: str, statement: str) -> list[Any]:
    """Read by another client library."""
    with pg8000.native.Connection("test", host="127.0.0.1", port=server.port, database=database) as connection:
        return [tuple(row) for row in connection.run(statement) or ()]


class OnServer(SinkContract):
    """A database per target."""

    notices_a_setback = True
    server: Server

    @pytest.fixture(autouse=True)
    def _server(self, postgres: Server) -> None:
        self.server = postgres

    def database(self, folder: Path) -> str:
        name = "t" + hashlib.sha256(str(folder).encode()).hexdigest()[:12]
        if not query(self.server, "test", f"SELECT 1 FROM pg_database WHERE datname = '{name}'"):
            self.server.create_database(name)
        return name

    def make_sink(self, tmp_path: Path) -> Postgres:
        return Postgres("words", dsn=self.server.dsn_of(self.database(tmp_path)), key="k", name="words")

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        return query(self.server, self.database(tmp_path), "SELECT k, v FROM words")

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", None, "secret-2"], "v": [1, 2, 3]})

    def misfit(self) -> pa.Schema:
        return pa.schema({"k": pa.string(), "v": pa.int64(), "more": pa.int64()})

    def silence(self, tmp_path: Path) -> Any:
        return self.locked(tmp_path)

    @contextmanager
    def locked(self, tmp_path: Path) -> Iterator[None]:
        with psycopg.connect(self.server.dsn_of(self.database(tmp_path))) as connection:
            connection.execute("LOCK TABLE fencepost_epoch, words IN ACCESS EXCLUSIVE MODE")
            yield


class TestUpsert(OnServer):
    pass


class TestAppend(OnServer):
    def make_sink(self, tmp_path: Path) -> Postgres:
        dsn = self.server.dsn_of(self.database(tmp_path))
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS words (k text UNIQUE, v bigint CHECK (v >= 0))")
        return Postgres("words", dsn=dsn, name="words", create=False)

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", "secret-1"], "v": [1, 2]})
