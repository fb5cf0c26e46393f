"""A place in the real server for each test: a database of its own."""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from fencepost_proof.rig.mariadb import MariaDB as Server
from fencepost_proof.rig.mariadb import MySQL as RealMySQL

from fencepost.connectors.mysql import dialect
from fencepost.connectors.mysql.sink import MySQL
from fencepost.contract import Attempt
from fencepost.protocol.records import Epoch, Handle, WriterNumber
from fencepost.testing import SinkDriver
from fencepost.testing.sink_driver import LINEAGE


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "PATIENT", 1)


@dataclass
class Place:
    """A database in which the user `test` may do everything."""

    server: Server
    folder: Path
    database: str
    user: str = "test"
    drivers: list[SinkDriver] = field(default_factory=list)

    def root(self, **more: Any) -> Any:
        """A connection of the root user, by PyMySQL as it is."""
        return pymysql.connect(
            **{"host": "127.0.0.1", "port": self.server.port, "user": "root", "autocommit": True, **more},
            ssl_disabled=True,
        )

    def run(self, *statements: str) -> None:
        """As the root user."""
        with self.root(database=self.database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def query(self, statement: str) -> list[Any]:
        """As another session sees it."""
        with self.root(database=self.database) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def sink(self, table: str = "words", **settings: Any) -> MySQL:
        address = {"host": "127.0.0.1", "port": self.server.port, "user": self.user, "password": "test"}
        return MySQL(table, **({**address, "database": self.database, "staging": "checkpoint"} | settings))

    def driver(self, sink: MySQL, **owner: Any) -> SinkDriver:
        """Not started; closed when the test is over."""
        self.drivers.append(SinkDriver(sink, self.folder, **owner))
        return self.drivers[-1]

    def started(self, sink: MySQL, schema: pa.Schema, **owner: Any) -> SinkDriver:
        driver = self.driver(sink, **owner)
        driver.start(schema)
        return driver

    def staged(self, sink: MySQL, *tables: pa.Table, writer: int = 1, epoch: int = 0) -> pa.Table:
        """What tasks that stage these tables give to the driver."""
        write = pickle.loads(pickle.dumps(sink.in_tasks("job")))  # noqa: S301
        attempt = Attempt(LINEAGE, WriterNumber(writer), Epoch(epoch))
        return pa.Table.from_batches([batch for table in tables for batch in write(attempt, iter(table.to_batches()))])

    def staged_names(self) -> list[str]:
        return [name for (name,) in self.query("SHOW TABLES LIKE 'fencepost\\_________\\_%'")]

    def vote(self, driver: SinkDriver, epoch: int, rows: pa.Table) -> tuple[Handle, ...]:
        """Of all units in the rows."""
        handles = driver.session.handles(Epoch(epoch), driver.rows(epoch, rows))
        driver.session.verify(Epoch(epoch), handles)
        return handles

    def is_waited_for(self) -> bool:
        """Does a transaction wait for another one? What is asked again within 0.1 s is answered as before."""
        time.sleep(0.15)
        return bool(self.query("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"))

    def drop(self) -> None:
        for driver in self.drivers:
            driver.session.close()
        with self.root() as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {self.database}")


def place_in(server: Server, folder: Path) -> Iterator[Place]:
    place = Place(server, folder, f"d{uuid.uuid4().hex[:12]}")
    with place.root() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {place.database}")
        cursor.execute(f"GRANT ALL ON {place.database}.* TO test@'127.0.0.1'")
    yield place
    place.drop()


@pytest.fixture
def place(mariadb: Server, tmp_path: Path) -> Iterator[Place]:
    """In MariaDB."""
    yield from place_in(mariadb, tmp_path)


@pytest.fixture
def mysql_place(mysql: RealMySQL, tmp_path: Path) -> Iterator[Place]:
    """In MySQL."""
    yield from place_in(mysql, tmp_path)
