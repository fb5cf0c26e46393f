"""A place in the real server for each test: a schema of its own, which costs a hundredth of a database."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pg8000.native
import psycopg
import pyarrow as pa
import pytest
from fencepost_proof.rig.postgres import Postgres as Server
from fencepost_proof.rig.process import HOST

from fencepost.connectors.postgres import dialect
from fencepost.connectors.postgres.sink import Postgres
from fencepost.testing import SinkDriver


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "PATIENT", "300ms")
    monkeypatch.setattr(dialect, "IMPATIENT", "200ms")


@dataclass
class Place:
    """A schema, which is all of the search path."""

    server: Server
    folder: Path
    schema: str
    user: str = "test"
    drivers: list[SinkDriver] = field(default_factory=list)
    admin: psycopg.Connection[Any] | None = None
    reader: pg8000.native.Connection | None = None

    @property
    def dsn(self) -> str:
        return f"{self.server.dsn} user={self.user} options='-c search_path={self.schema}'"

    def run(self, statement: str) -> None:
        """As the superuser."""
        if self.admin is None or self.admin.closed:
            self.admin = psycopg.connect(self.server.dsn, autocommit=True)
            self.admin.execute(f"SET search_path = {self.schema}")
        try:
            self.admin.execute(statement)
        except psycopg.OperationalError:
            if not self.admin.closed:
                raise
            self.run(statement)  # the server was started again since

    def query(self, statement: str) -> list[Any]:
        """As another client library reads it."""
        if self.reader is None:
            port = self.server.port
            self.reader = pg8000.native.Connection("test", host=HOST, port=port, database="test", ssl_context=False)
            self.reader.run(f"SET search_path = {self.schema}")
        try:
            return [tuple(row) for row in self.reader.run(statement) or ()]
        except pg8000.native.InterfaceError:
            self.reader = None
            return self.query(statement)

    def sink(self, table: str = "words", **settings: Any) -> Postgres:
        return Postgres(table, **({"dsn": self.dsn, "staging": "auto"} | settings))

    def driver(self, sink: Postgres, **owner: Any) -> SinkDriver:
        """Not started; closed when the test is over."""
        self.drivers.append(SinkDriver(sink, self.folder, **owner))
        return self.drivers[-1]

    def started(self, sink: Postgres, schema: pa.Schema, **owner: Any) -> SinkDriver:
        driver = self.driver(sink, **owner)
        driver.start(schema)
        return driver

    def leave(self) -> None:
        """The schema stays: to drop it takes longer than the server has to live."""
        for driver in self.drivers:
            driver.session.close()
        for connection in (self.admin, self.reader):
            with contextlib.suppress(psycopg.Error, pg8000.native.InterfaceError, OSError):
                if connection is not None:
                    connection.close()


def place_in(server: Server, folder: Path) -> Iterator[Place]:
    place = Place(server, folder, f"s{uuid.uuid4().hex[:12]}")
    place.run(f"CREATE SCHEMA {place.schema}")
    yield place
    place.leave()


@pytest.fixture(scope="session")
def postgres(root: Path, require: Callable[[str], None]) -> Iterator[Server]:
    """A server for these tests alone: they look at all of its sessions and locks."""
    require("postgres")
    with Server(root / "postgres") as made:
        yield made


@pytest.fixture
def place(postgres: Server, tmp_path: Path) -> Iterator[Place]:
    """In the server of these tests."""
    yield from place_in(postgres, tmp_path)


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory, require: Callable[[str], None]) -> Iterator[Server]:
    """One that may be killed."""
    require("postgres")
    with Server(tmp_path_factory.mktemp("postgres"), settings={"max_connections": "40"}) as made:
        yield made


@pytest.fixture
def own(own_server: Server, tmp_path: Path) -> Iterator[Place]:
    """In a server that may be killed."""
    yield from place_in(own_server, tmp_path)
