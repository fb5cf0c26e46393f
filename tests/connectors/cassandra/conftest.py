"""A keyspace, and a reader that is not the sink."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import RoundRobinPolicy
from fencepost_proof.rig.cassandra import Cassandra as Server

from fencepost.connectors.cassandra.sink import Cassandra
from fencepost.testing import SinkDriver

KEYSPACE = "Shop"


@dataclass(frozen=True)
class Place:
    """A server with a keyspace, and a plain client of it."""

    server: Server
    client: Session

    def query(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        return [tuple(row) for row in self.client.execute(statement, values)]

    def select(self, columns: str, table: str, where: str = "") -> list[Any]:
        """Sorted, as far as they can be compared."""
        return sorted(self.query(f"SELECT {columns} FROM {table} {where}"), key=str)  # noqa: S608 - a test's own names

    def sink(self, table: str, **settings: Any) -> Cassandra:
        return Cassandra(f"{KEYSPACE}.{table}", port=self.server.port, **({"key": "k"} | settings))


@pytest.fixture(scope="session")
def place(cassandra: Server) -> Iterator[Place]:
    profile = ExecutionProfile(RoundRobinPolicy(), consistency_level=ConsistencyLevel.QUORUM, request_timeout=30)
    profiles = {EXEC_PROFILE_DEFAULT: profile}
    cluster = Cluster(["127.0.0.1"], port=cassandra.port, protocol_version=5, execution_profiles=profiles)
    client = cluster.connect()
    client.execute(
        f"CREATE KEYSPACE \"{KEYSPACE}\" WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    client.set_keyspace(KEYSPACE)
    yield Place(cassandra, client)
    cluster.shutdown()


@pytest.fixture
def new_table() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long enough to make a table on a busy machine: a connection keeps the patience that it was made with."""
    monkeypatch.setattr("fencepost.connectors.cassandra.server.REQUEST_S", 6.0)
    monkeypatch.setattr("fencepost.connectors.cassandra.server.CONNECT_S", 2.0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., SinkDriver]]:
    """`start(sink, schema, writer=2)`: a driver that has taken over."""
    made: list[SinkDriver] = []

    def begin(sink: Cassandra, schema: pa.Schema, **owner: Any) -> SinkDriver:
        driver = SinkDriver(sink, tmp_path, **owner)
        made.append(driver)
        driver.start(schema)
        return driver

    yield begin
    for driver in made:
        driver.session.close()
