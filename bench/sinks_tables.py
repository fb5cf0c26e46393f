"""What `bench.sinks` needs of a server, and how rows get into PostgreSQL and MariaDB without us.

A way by hand is a function of an open connection, the work and rows as tuples: without Spark it gets a list, in Spark
one task's rows. So it has to be a function of a module, and what it connects to plain data.
"""

# ruff: noqa: S608 - names of tables that were made up here

from __future__ import annotations

import csv
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
import pymysql
from fencepost_proof.rig import mariadb, postgres
from fencepost_proof.rig.process import HOST
from fencepost_proof.rig.server import Server

import fencepost as fp

COLUMNS = ("id", "key", "value")
PACKET = 256 * 1024

Rows = Iterable[tuple[Any, ...]]


@dataclass(frozen=True)
class Work:
    """A table, and what is done to it. The key of an upsert is the column `key`."""

    table: str
    upsert: bool
    kind: str = ""


class Target(ABC):
    """A real server, and every way into it."""

    name: ClassVar[str]
    title: ClassVar[str]
    raw_title: ClassVar[str]
    by_hand: ClassVar[Mapping[str, Callable[[Any, Work, Rows], None]]]
    connect: ClassVar[Callable[[Any], AbstractContextManager[Any]]]
    slow: ClassVar[Mapping[str, int]] = {}
    """Ways that are measured up to so many rows only."""
    limit: ClassVar[int | None] = None
    stagings: ClassVar[tuple[str, ...]] = ("",)
    columns: tuple[str, ...] = COLUMNS
    kind = ""
    schema = ""
    """Before the names of tables."""
    server: Server

    @property
    @abstractmethod
    def address(self) -> Any:
        """What `connect` wants; pickled with the plan."""

    @abstractmethod
    def version(self) -> str:
        """As the server says."""

    @abstractmethod
    def make(self, work: Work) -> None:
        """An empty table."""

    @abstractmethod
    def drop(self, work: Work) -> None:
        """And away with it."""

    @abstractmethod
    def raw(self, work: Work, rows: pa.Table) -> Callable[[AbstractContextManager[Any] | Any], None]:
        """Build all bytes now; then, given a connection, send them as fast as the server takes them."""

    @abstractmethod
    def count(self, work: Work) -> int:
        """How many rows a reader sees."""

    @abstractmethod
    def sink(self, work: Work, staging: str = "") -> fp.Sink:
        """Ours."""

    def fill(self, work: Work, rows: pa.Table) -> None:
        """The table that an upsert finds."""
        with type(self).connect(self.address) as connection:
            self.raw(Work(work.table, upsert=False, kind=work.kind), rows)(connection)

    def settle(self) -> None:
        """What the last one left to be done later is done now, so that the next one does not pay for it."""


def tuples(rows: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def tabbed(rows: pa.Table) -> bytes:
    """What COPY and LOAD DATA read; nothing in these rows needs an escape."""
    return "".join(f"{number}\t{key}\t{value!r}\n" for number, key, value in tuples(rows)).encode()


def pieces(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[first : first + PACKET] for first in range(0, len(view), PACKET))


# --- PostgreSQL

PG_UPSERT = " ON CONFLICT (key) DO UPDATE SET id = excluded.id, value = excluded.value"
PG_STAGE = "CREATE TEMPORARY TABLE IF NOT EXISTS stage (id bigint, key text, value double precision)"
PG_STAGE += " ON COMMIT DELETE ROWS"


def pg_executemany(connection: Any, work: Work, rows: Rows) -> None:
    """What JDBC's batches do, pipelined as they are."""
    more = PG_UPSERT if work.upsert else ""
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {work.table} (id, key, value) VALUES (%s, %s, %s){more}", rows)
    connection.commit()


def pg_copy(connection: Any, work: Work, rows: Rows) -> None:
    with connection.cursor() as cursor:
        if work.upsert:
            cursor.execute(PG_STAGE)
        into = "stage" if work.upsert else work.table
        with cursor.copy(f"COPY {into} (id, key, value) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        if work.upsert:
            cursor.execute(f"INSERT INTO {work.table} (id, key, value) SELECT id, key, value FROM stage{PG_UPSERT}")
    connection.commit()


class Postgres(Target):
    name, title, raw_title = "postgres", "PostgreSQL", "COPY"
    by_hand: ClassVar = {"executemany": pg_executemany, "COPY, row by row": pg_copy}
    connect = staticmethod(psycopg.connect)
    stagings = ("checkpoint", "target", "auto")

    def __init__(self, folder: Path) -> None:
        settings = {"shared_buffers": "512MB", "max_wal_size": "4GB", "autovacuum": "off"}
        self.server: postgres.Postgres = postgres.Postgres(folder, settings=settings)

    @property
    def address(self) -> str:
        return self.server.dsn

    def version(self) -> str:
        return str(self._run("SHOW server_version")[0][0])

    def _run(self, statement: str) -> Any:
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

    def make(self, work: Work) -> None:
        key = "text PRIMARY KEY" if work.upsert else "text NOT NULL"
        self._run(f"CREATE TABLE {work.table} (id bigint, key {key}, value double precision)")

    def drop(self, work: Work) -> None:
        self._run(f"DROP TABLE {work.table}")

    def settle(self) -> None:
        self._run("CHECKPOINT")

    def count(self, work: Work) -> int:
        return int(self._run(f"SELECT count(*) FROM {work.table}")[0][0])

    def raw(self, work: Work, rows: pa.Table) -> Callable[[Any], None]:
        data = tabbed(rows)
        into = "stage" if work.upsert else work.table

        def send(connection: Any) -> None:
            with connection.cursor() as cursor:
                if work.upsert:
                    cursor.execute(PG_STAGE)
                with cursor.copy(f"COPY {into} (id, key, value) FROM STDIN") as copy:
                    for piece in pieces(data):
                        copy.write(piece)
                if work.upsert:
                    cursor.execute(f"INSERT INTO {work.table} SELECT id, key, value FROM stage{PG_UPSERT}")
            connection.commit()

        return send

    def sink(self, work: Work, staging: str = "checkpoint") -> fp.Sink:
        key = "key" if work.upsert else None
        return fp.Postgres(work.table, dsn=self.server.dsn, key=key, unique_key=work.upsert, staging=staging)  # type: ignore[arg-type]


# --- MySQL

MY_INSERT = "INSERT INTO {table} (`id`, `key`, `value`)"
MY_UPSERT = " ON DUPLICATE KEY UPDATE `id` = VALUES(`id`), `value` = VALUES(`value`)"
MY_TEXT = "varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL"
MY_STAGE = f"CREATE TEMPORARY TABLE stage (`id` bigint, `key` {MY_TEXT}, `value` double) ENGINE=InnoDB"


@contextmanager
def my_connect(address: dict[str, Any]) -> Iterator[Any]:
    connection = pymysql.connect(**address, local_infile=True, charset="utf8mb4")
    try:
        yield connection
    finally:
        connection.close()


def my_executemany(connection: Any, work: Work, rows: Rows) -> None:
    """PyMySQL makes of it statements of many rows, as JDBC does with rewriteBatchedStatements."""
    statement = MY_INSERT.format(table=work.table) + " VALUES (%s, %s, %s)" + (MY_UPSERT if work.upsert else "")
    with connection.cursor() as cursor:
        cursor.executemany(statement, rows)
    connection.commit()


def my_load(connection: Any, work: Work, rows: Rows) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".csv", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
        file.flush()
        my_load_file(connection, work, file.name, " FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"'")


def my_load_file(connection: Any, work: Work, file: str, how: str = "") -> None:
    with connection.cursor() as cursor:
        if work.upsert:
            cursor.execute(MY_STAGE)
        into = "stage" if work.upsert else work.table
        cursor.execute(f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE {into} CHARACTER SET utf8mb4{how}")
        if work.upsert:
            cursor.execute(MY_INSERT.format(table=work.table) + " SELECT `id`, `key`, `value` FROM stage" + MY_UPSERT)
            cursor.execute("DROP TEMPORARY TABLE stage")
    connection.commit()


class MySQL(Target):
    name, title, raw_title = "mysql", "MariaDB", "LOAD DATA"
    by_hand: ClassVar = {"executemany": my_executemany, "LOAD DATA of a CSV": my_load}
    connect = staticmethod(my_connect)
    stagings = ("checkpoint", "target", "auto")

    def __init__(self, folder: Path) -> None:
        settings = {"innodb-buffer-pool-size": "512M", "innodb-log-file-size": "512M"}
        self.server: mariadb.MariaDB = mariadb.MariaDB(folder, settings=settings)

    @property
    def address(self) -> dict[str, Any]:
        return {"host": HOST, "port": self.server.port, "user": "test", "password": "test", "database": "test"}

    def version(self) -> str:
        return str(self._run("SELECT version()")[0][0])

    def _run(self, statement: str) -> Any:
        with my_connect(self.address) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()

    def make(self, work: Work) -> None:
        key = ", PRIMARY KEY (`key`)" if work.upsert else ""
        self._run(f"CREATE TABLE {work.table} (`id` bigint, `key` {MY_TEXT}, `value` double{key}) ENGINE=InnoDB")

    def drop(self, work: Work) -> None:
        self._run(f"DROP TABLE {work.table}")

    def count(self, work: Work) -> int:
        return int(self._run(f"SELECT count(*) FROM {work.table}")[0][0])

    def raw(self, work: Work, rows: pa.Table) -> Callable[[Any], None]:
        file = Path(self.server.folder) / f"{work.table}-{rows.num_rows}.tsv"
        file.write_bytes(tabbed(rows))

        def send(connection: Any) -> None:
            my_load_file(connection, work, str(file))
            file.unlink()

        return send

    def sink(self, work: Work, staging: str = "checkpoint") -> fp.Sink:
        key = "key" if work.upsert else None
        return fp.MySQL(work.table, **self.address, key=key, unique_key=work.upsert, staging=staging)
