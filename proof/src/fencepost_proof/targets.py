"""Where the kill tests write, and how an ordinary reader sees it (`exactly.py`): one line per sink.

A new sink joins every kill test by adding its line to `TARGETS`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fencepost.connectors.cassandra.sink import Cassandra
from fencepost.connectors.custom import TwoPhaseCommit, WriteAheadLog
from fencepost.connectors.delta.sink import Delta
from fencepost.connectors.duckdb.sink import DuckDB
from fencepost.connectors.files.sink import Files
from fencepost.connectors.iceberg.sink import Iceberg
from fencepost.connectors.kafka.sink import Kafka
from fencepost.connectors.mysql.sink import MySQL
from fencepost.connectors.postgres.sink import Postgres
from fencepost.connectors.redis.sink import Redis
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.contract import EpochContext, Sink, Unit
from fencepost.protocol.effects import Outcome
from fencepost.store import LocalStore

BROKER = "FENCEPOST_KAFKA"
POSTGRES = "FENCEPOST_POSTGRES"
MARIADB = "FENCEPOST_MARIADB"
REDIS = "FENCEPOST_REDIS"
CASSANDRA = "FENCEPOST_CASSANDRA"
"""The environment's variables with the addresses of servers, for the targets that lie in them."""


@dataclass(frozen=True, slots=True)
class Target:
    """A sink in a folder of its own, and the place where its readers look."""

    sink: Callable[[Path], Sink]
    place: Callable[[Path], str]


class Box(TwoPhaseCommit[Path]):
    """A little transactional system made of files, as a user would write one.

    `open/` holds prepared transactions, `box/` committed ones. It forgets open ones when `lose` is called, as a broker
    does after its transaction timeout.
    """

    def __init__(self, folder: Path, *, name: str = "box", keep_rows: bool = True) -> None:
        self.folder = folder
        self.name = name
        self.keep_rows = keep_rows

    def identity(self) -> str:
        """A file in the box."""
        for part in ("open", "box"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        store = LocalStore(self.folder)
        store.create("identity", os.urandom(8).hex().encode())  # exclusive: of two first starts at once, one wins
        return (store.read("identity") or b"").decode()

    def begin(self, unit: Unit) -> Path:
        """An empty file, named by the unit."""
        path = self.folder / "open" / unit.id
        path.touch(exist_ok=False)
        return path

    def write(self, transaction: Path, batch: pa.RecordBatch) -> None:
        """One line a row."""
        with transaction.open("a") as file:
            file.writelines(json.dumps([row["id"], row["value"], row["sum"]]) + "\n" for row in batch.to_pylist())

    def pre_commit(self, transaction: Path) -> Mapping[str, Any]:
        """Durable already, as far as SIGKILL goes."""
        return {"id": transaction.name}

    def commit(self, body: Mapping[str, Any]) -> Outcome | None:
        """Into the box; there already is fine; nowhere means that it was lost."""
        name = body["id"]
        try:
            (self.folder / "open" / name).rename(self.folder / "box" / name)
        except FileNotFoundError:
            return Outcome.DONE if (self.folder / "box" / name).exists() else Outcome.GONE
        return Outcome.DONE

    def abort(self, body: Mapping[str, Any]) -> None:
        """Forget it."""
        (self.folder / "open" / body["id"]).unlink(missing_ok=True)

    def recover_orphans(self, before: int) -> Iterable[Mapping[str, Any]]:
        """Whatever is open."""
        return [{"id": path.name} for path in (self.folder / "open").iterdir()]

    def lose(self) -> None:
        """Time out every open transaction."""
        for path in (self.folder / "open").iterdir():
            path.unlink()


@dataclass(frozen=True, slots=True)
class SendOnce:
    """A function for `WriteAheadLog` that stores the epoch with the rows: one file per epoch, whole or not there."""

    folder: Path

    def __call__(self, context: EpochContext, batches: Iterable[pa.RecordBatch]) -> None:
        """A second call with the same epoch changes nothing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{context.generation}-{context.epoch}"
        rows = [row for batch in batches for row in batch.to_pylist()]
        temp = path.with_suffix(".tmp")
        temp.write_text("".join(json.dumps([row["id"], row["value"], row["sum"]]) + "\n" for row in rows))
        temp.rename(path)


def place_in(folder: Path) -> str:
    """A name for what a folder's targets have in a server."""
    return f"f{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"


def once(folder: Path, what: str, make: Callable[[], object]) -> None:
    """Make something for a folder at its first mention."""
    made = folder / f".{what}"
    if not made.exists():
        make()
        made.touch()


def postgres(folder: Path) -> Postgres:
    """A table in a schema of the folder's own."""
    import psycopg  # noqa: PLC0415 - only where there is a server

    schema, dsn = place_in(folder), os.environ[POSTGRES]

    def make() -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}".encode())

    once(folder, "schema", make)
    return Postgres(f"{schema}.sums", dsn=dsn, name="postgres")


def mysql(folder: Path) -> MySQL:
    """A table in a database of the folder's own."""
    import pymysql  # noqa: PLC0415 - only where there is a server

    port = json.loads(os.environ[MARIADB])["port"]
    where: dict[str, Any] = {"host": "127.0.0.1", "port": port, "user": "root"}

    def make() -> None:
        with pymysql.connect(**where) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {place_in(folder)}")

    once(folder, "database", make)
    return MySQL("sums", **where, database=place_in(folder), name="mysql")


def redis(folder: Path) -> Redis:
    """Counters: the running sum is added to a key that no other row has, so that a row twice is seen."""
    place = place_in(folder)
    return Redis(
        os.environ[REDIS], shape="counter", key=("id", "value"), prefix=f"{place}:", name=f"redis-{place}", chunk_rows=3
    )


def cassandra(folder: Path) -> Cassandra:
    """A table of the folder's own, in a keyspace for all."""
    place = place_in(folder)
    return Cassandra(f"proof.{place}", port=int(os.environ[CASSANDRA]), key="id", name=f"cassandra-{place}")


def catalog_of(folder: Path) -> dict[str, str]:
    """An Iceberg catalog in an SQLite file, with tables in the folder."""
    return {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": f"file://{folder / 'warehouse'}"}


def iceberg_place(folder: Path, table: str) -> str:
    """For its reader."""
    return "iceberg:" + json.dumps({"catalog": catalog_of(folder), "table": table})


def delta_wider(folder: Path) -> Delta:
    """A table that has no sums until the first epoch adds the column."""
    from deltalake import DeltaTable, Field, Schema  # noqa: PLC0415 - only where there is such a table
    from deltalake.schema import PrimitiveType  # noqa: PLC0415 - as above

    fields = [Field(name, PrimitiveType("long")) for name in ("id", "value")]
    once(folder, "wider", lambda: DeltaTable.create(str(folder / "wider"), Schema(fields)))
    return Delta(folder / "wider", schema="add_columns", name="delta_wider")


def iceberg_wider(folder: Path) -> Iceberg:
    """The same."""
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - only where there is such a table
    from pyiceberg.schema import Schema  # noqa: PLC0415 - as above
    from pyiceberg.types import LongType, NestedField  # noqa: PLC0415 - as above

    def make() -> None:
        catalog = load_catalog("default", **catalog_of(folder))
        catalog.create_namespace_if_not_exists("proof")
        fields = [NestedField(n, name, LongType(), required=False) for n, name in enumerate(("id", "value"), 1)]
        catalog.create_table("proof.wider", Schema(*fields), properties={"format-version": "2"})
        catalog.close()

    once(folder, "wider", make)
    return Iceberg("proof.wider", catalog=catalog_of(folder), schema="add_columns", name="iceberg_wider")


def kafka(folder: Path, name: str, **settings: Any) -> Kafka:
    """A topic of the folder's own, on the broker that the environment names."""
    return Kafka(topic_of(folder, name), servers=os.environ[BROKER], key="id", name=name, **settings)


def topic_of(folder: Path, name: str) -> str:
    """Made at its first mention."""
    topic = f"{name}-{place_in(folder)}"

    def make() -> None:
        admin = AdminClient({"bootstrap.servers": os.environ[BROKER]})  # without a name it would be gone too soon
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(20)

    once(folder, topic, make)
    return topic


TARGETS: Mapping[str, Target] = {
    "sqlite": Target(
        lambda folder: SQLite(str(folder / "out.db"), table="sums"),
        lambda folder: f"sqlite:{folder / 'out.db'}",
    ),
    "duckdb": Target(
        lambda folder: DuckDB(str(folder / "out.duckdb"), table="sums"),
        lambda folder: f"duckdb:{folder / 'out.duckdb'}#sums",
    ),
    "delta": Target(
        lambda folder: Delta(folder / "delta", partition_by="value", name="delta"),
        lambda folder: f"delta:{folder / 'delta'}",
    ),
    "delta_keyed": Target(
        lambda folder: Delta(folder / "keyed", key="id", unique_key=True, name="delta_keyed"),
        lambda folder: f"delta:{folder / 'keyed'}",
    ),
    "delta_whole": Target(
        lambda folder: Delta(folder / "whole", mode="replace", name="delta_whole"),
        lambda folder: f"delta:{folder / 'whole'}",
    ),
    "delta_wider": Target(
        delta_wider,
        lambda folder: f"delta:{folder / 'wider'}",
    ),
    "iceberg": Target(
        lambda folder: Iceberg("proof.sums", catalog=catalog_of(folder), partition_by="bucket(4, id)", name="iceberg"),
        lambda folder: iceberg_place(folder, "proof.sums"),
    ),
    "iceberg_keyed": Target(
        lambda folder: Iceberg(
            "proof.keyed", catalog=catalog_of(folder), key="id", unique_key=True, name="iceberg_keyed"
        ),
        lambda folder: iceberg_place(folder, "proof.keyed"),
    ),
    "iceberg_whole": Target(
        lambda folder: Iceberg("proof.whole", catalog=catalog_of(folder), mode="replace", name="iceberg_whole"),
        lambda folder: iceberg_place(folder, "proof.whole"),
    ),
    "iceberg_wider": Target(
        iceberg_wider,
        lambda folder: iceberg_place(folder, "proof.wider"),
    ),
    "files": Target(
        lambda folder: Files(str(folder / "files"), format="json", name="files"),
        lambda folder: f"files:{folder / 'files'}",
    ),
    "manifest": Target(
        lambda folder: Files(str(folder / "manifest"), format="json", visible="manifest", name="manifest"),
        lambda folder: f"manifest:{folder / 'manifest'}",
    ),
    "box": Target(lambda folder: Box(folder / "box"), lambda folder: f"lines:{folder / 'box' / 'box'}"),
    "bare": Target(
        lambda folder: Box(folder / "bare", name="bare", keep_rows=False),
        lambda folder: f"lines:{folder / 'bare' / 'box'}",
    ),
    "naked": Target(
        lambda folder: Box(folder / "naked", name="naked", keep_rows=False),
        lambda folder: f"lines:{folder / 'naked' / 'box'}",
    ),
    "function": Target(
        lambda folder: WriteAheadLog(SendOnce(folder / "sent"), name="function", idempotent=True),
        lambda folder: f"lines:{folder / 'sent'}",
    ),
    "kafka": Target(
        lambda folder: kafka(folder, "kafka"),
        lambda folder: f"kafka:{os.environ[BROKER]}/{topic_of(folder, 'kafka')}",
    ),
    "kafka_tasks": Target(
        lambda folder: kafka(folder, "kafka_tasks", parallel=True),
        lambda folder: f"kafka:{os.environ[BROKER]}/{topic_of(folder, 'kafka_tasks')}",
    ),
    "postgres": Target(
        postgres,
        lambda folder: f"postgres:{os.environ[POSTGRES]} table={place_in(folder)}.sums",
    ),
    "mysql": Target(
        mysql,
        lambda folder: "mariadb:" + json.dumps(json.loads(os.environ[MARIADB]) | {"table": f"{place_in(folder)}.sums"}),
    ),
    "redis": Target(redis, lambda folder: f"redis:{urlsplit(os.environ[REDIS]).port}/{place_in(folder)}:"),
    "cassandra": Target(cassandra, lambda folder: f"cassandra:{os.environ[CASSANDRA]}/proof.{place_in(folder)}"),
    "hasty": Target(
        lambda folder: kafka(folder, "hasty", keep_rows=False),
        lambda folder: f"kafka:{os.environ[BROKER]}/{topic_of(folder, 'hasty')}",
    ),
}
