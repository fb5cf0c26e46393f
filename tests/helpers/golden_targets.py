"""The targets of golden checkpoints in servers: emptied, dumped as text, filled from it, and read by plain clients."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pymysql
import pytest
import redis
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import RoundRobinPolicy
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec
from fencepost_proof.rig.cassandra import Cassandra
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.rig.mariadb import MariaDB
from fencepost_proof.rig.postgres import Postgres
from fencepost_proof.rig.redis import Redis
from golden import NAME, unpacked
from psycopg import sql
from streams import Place
from topics import read

PATIENCE_S = 60.0
NOT_YET_LEADING = (
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)
"""What a broker says of its partitions between its first answer and the end of its start."""
MARKS = "fencepost_epoch"
Seen = dict[str, dict[str, int]]
"""By sink, how often each word is there."""


class Target(ABC):
    """One database of a server."""

    @property
    @abstractmethod
    def where(self) -> Any:
        """What a job is told."""

    @abstractmethod
    def empty(self) -> None:
        """As it was before the job's first start."""

    @abstractmethod
    def dump(self) -> str:
        """Everything in it, for people to review and for `load`."""

    @abstractmethod
    def load(self, text: str) -> None:
        """Fill an empty one."""

    @abstractmethod
    def seen(self) -> Seen:
        """What a reader sees."""

    @abstractmethod
    def forget(self) -> None:
        """Lose every mark: sabotage."""

    @abstractmethod
    def mark_newer(self) -> None:
        """Let every mark be one of a newer fencepost."""


class InPostgres(Target):
    def __init__(self, server: Postgres) -> None:
        self._server = server

    @property
    def where(self) -> str:
        return self._server.dsn_of(NAME)

    def empty(self) -> None:
        with psycopg.connect(self._server.dsn, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {NAME} WITH (FORCE)".encode())
        self._server.create_database(NAME)

    def dump(self) -> str:
        with psycopg.connect(self.where) as connection:
            return "".join(f"{line};\n" for line in self._lines(connection))

    def _lines(self, connection: psycopg.Connection[Any]) -> Iterator[str]:
        tables = connection.execute(
            "SELECT oid, relname, relpersistence FROM pg_class"
            " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY relname"
        ).fetchall()
        for oid, name, kept in tables:
            columns = connection.execute(
                "SELECT quote_ident(attname) || ' ' || format_type(atttypid, atttypmod)"
                " || CASE WHEN attcollation = 950 THEN ' COLLATE \"C\"' ELSE '' END"
                " || CASE WHEN attnotnull THEN ' NOT NULL' ELSE '' END"
                " FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                (oid,),
            ).fetchall()
            limits = connection.execute(
                "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s AND contype <> 'n'", (oid,)
            ).fetchall()
            inside = ", ".join(text for (text,) in columns + limits)
            yield f"CREATE {'UNLOGGED ' if kept == 'u' else ''}TABLE {name} ({inside})"
            for row in connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(name))).fetchall():
                values = sql.SQL(", ").join(map(sql.Literal, row)).as_string(connection)
                yield f"INSERT INTO {name} VALUES ({values})"  # noqa: S608 - the job's own

    def load(self, text: str) -> None:
        with psycopg.connect(self.where) as connection:
            connection.execute(text.encode())

    def seen(self) -> Seen:
        with psycopg.connect(self.where) as connection:
            words = Counter(word for (word,) in connection.execute("SELECT word FROM words"))
            return {"words": words, "counts": dict(connection.execute("SELECT word, count FROM counts").fetchall())}

    def forget(self) -> None:
        with psycopg.connect(self.where) as connection:
            connection.execute(f"DELETE FROM {MARKS}".encode())  # noqa: S608 - ours

    def mark_newer(self) -> None:
        with psycopg.connect(self.where) as connection:
            connection.execute(f"UPDATE {MARKS} SET format = 2, fencepost = '9.1.0'".encode())  # noqa: S608 - ours


class InMariaDB(Target):
    def __init__(self, server: MariaDB) -> None:
        self._server = server

    @property
    def where(self) -> int:
        return self._server.port

    def empty(self) -> None:
        made = f"CREATE DATABASE {NAME}; GRANT ALL ON {NAME}.* TO test@'127.0.0.1';"
        self._server.client(f"DROP DATABASE IF EXISTS {NAME}; {made}")

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        there = {"host": "127.0.0.1", "port": self.where, "user": "test", "password": "test", "database": NAME}
        with closing(pymysql.connect(**there, charset="utf8mb4", autocommit=True)) as connection:
            yield connection.cursor()

    def _rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self._cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def dump(self) -> str:
        lines = []
        with self._cursor() as cursor:
            for (name,) in self._rows("SHOW TABLES"):
                [(_, made)] = self._rows(f"SHOW CREATE TABLE `{name}`")
                lines.append(made)
                rows = self._rows(f"SELECT * FROM `{name}`")  # noqa: S608 - its own name
                into = f"INSERT INTO `{name}` VALUES %s"  # noqa: S608 - as above
                lines += [cursor.mogrify(into, (row,)) for row in rows]
        return "SET NAMES utf8mb4;\n" + "".join(f"{line};\n" for line in lines)

    def load(self, text: str) -> None:
        self._server.client(f"USE {NAME};\n{text}")

    def seen(self) -> Seen:
        words = Counter(word for (word,) in self._rows("SELECT word FROM words"))
        return {"words": words, "counts": dict(self._rows("SELECT word, `count` FROM counts"))}

    def forget(self) -> None:
        self._rows(f"DELETE FROM {MARKS}")  # noqa: S608 - ours

    def mark_newer(self) -> None:
        self._rows(f"UPDATE {MARKS} SET format = 2, fencepost = '9.1.0'")  # noqa: S608 - ours


class InRedis(Target):
    """In a database of its own, because a server has one space of keys for all tests."""

    def __init__(self, server: Redis) -> None:
        self._server = server

    @property
    def where(self) -> str:
        return f"redis://127.0.0.1:{self._server.port}/7"

    @contextmanager
    def _client(self) -> Iterator[Any]:
        with redis.Redis.from_url(self.where, decode_responses=True, protocol=2) as client:
            yield client

    def empty(self) -> None:
        with self._client() as client:
            client.flushdb()

    def dump(self) -> str:
        lines = []
        with self._client() as client:
            for key in sorted(client.scan_iter()):
                match client.type(key):
                    case "string":
                        lines.append(["SET", key, client.get(key)])
                    case "hash":
                        lines.append(["HSET", key, *(word for pair in client.hgetall(key).items() for word in pair)])
                    case other:
                        raise ValueError(f"{key} is a {other}")
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)

    def load(self, text: str) -> None:
        with self._client() as client:
            for line in text.splitlines():
                client.execute_command(*json.loads(line))

    def seen(self) -> Seen:
        with self._client() as client:
            tally = {key.removeprefix("tally:"): int(client.get(key)) for key in client.scan_iter("tally:*")}
            counts = {
                key.removeprefix("counts:"): int(client.hget(key, "count")) for key in client.scan_iter("counts:*")
            }
        return {"tally": tally, "counts": counts}

    def forget(self) -> None:
        with self._client() as client:
            for key in self._marks(client):
                client.delete(key)

    def mark_newer(self) -> None:
        with self._client() as client:
            for key in self._marks(client):
                client.hset(key, mapping={"format": 2, "fencepost": "9.1.0"})

    def _marks(self, client: Any) -> list[str]:
        return [key for key in client.scan_iter("fencepost:*") if client.type(key) == "hash"]


class InCassandra(Target):
    """Rows come back with the time they were written at; marks by conditional writes, as they were made."""

    def __init__(self, server: Cassandra) -> None:
        self._server = server

    @property
    def where(self) -> int:
        return self._server.port

    @contextmanager
    def _session(self) -> Iterator[Session]:
        profiles = {EXEC_PROFILE_DEFAULT: ExecutionProfile(RoundRobinPolicy(), request_timeout=30)}
        patience = {"connect_timeout": PATIENCE_S, "control_connection_timeout": PATIENCE_S}
        where = {"port": self.where, "protocol_version": 5, "execution_profiles": profiles}
        with Cluster(["127.0.0.1"], **where, **patience) as cluster:
            yield cluster.connect()

    def empty(self) -> None:
        with self._session() as session:
            session.execute(f"DROP KEYSPACE IF EXISTS {NAME}")
            copies = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
            session.execute(f"CREATE KEYSPACE {NAME} WITH replication = {copies}")

    def dump(self) -> str:
        lines = []
        with self._session() as session:
            for name, table in sorted(session.cluster.metadata.keyspaces[NAME].tables.items()):
                assert not table.clustering_key, "a table of another shape than any of ours"
                key = ", ".join(column.name for column in table.partition_key)
                columns = [f"{column.name} {column.cql_type}" for column in table.columns.values()]
                lines.append(f"CREATE TABLE {NAME}.{name} ({', '.join(columns)}, PRIMARY KEY (({key})))")
                lines += self._rows(session, name)
        return "".join(line + ";\n" for line in lines)

    def _rows(self, session: Session, table: str) -> Iterator[str]:
        asked = "word, count, WRITETIME(count) AS written" if table == "counts" else "*"
        for row in session.execute(f"SELECT {asked} FROM {NAME}.{table}"):  # noqa: S608 - its own names
            values = row._asdict()
            written = values.pop("written", None)
            end = "IF NOT EXISTS" if written is None else f"USING TIMESTAMP {written}"
            literals = ", ".join(str(v) if isinstance(v, int) else f"'{v}'" for v in values.values())
            into = f"{NAME}.{table} ({', '.join(values)})"
            yield f"INSERT INTO {into} VALUES ({literals}) {end}"  # noqa: S608 - as above

    def load(self, text: str) -> None:
        with self._session() as session:
            for line in text.splitlines():
                session.execute(line)

    def seen(self) -> Seen:
        with self._session() as session:
            rows = session.execute(f"SELECT * FROM {NAME}.counts")  # noqa: S608 - ours
            return {"counts": {row.word: row.count for row in rows}}

    def forget(self) -> None:
        with self._session() as session:
            for where in self._marks(session):
                session.execute(f"DELETE FROM {NAME}.{MARKS} WHERE {where} IF EXISTS")  # noqa: S608 - ours

    def mark_newer(self) -> None:
        with self._session() as session:
            for where in self._marks(session):
                newer = "format = 2, fencepost = '9.1.0'"
                session.execute(f"UPDATE {NAME}.{MARKS} SET {newer} WHERE {where} IF EXISTS")  # noqa: S608 - ours

    def _marks(self, session: Session) -> list[str]:
        rows = session.execute(f"SELECT job, sink FROM {NAME}.{MARKS}")  # noqa: S608 - ours
        return [f"job = '{row.job}' AND sink = '{row.sink}'" for row in rows]


TARGETS: dict[str, Any] = {
    "postgres": InPostgres,
    "mariadb": InMariaDB,
    "redis": InRedis,
    "cassandra": InCassandra,
}
DATABASES = tuple(TARGETS)
FIXTURES = {"redis": "redis_server"}
"""Servers whose fixture has another name."""


@contextmanager
def restored(name: str, request: pytest.FixtureRequest) -> Iterator[tuple[Place, Target]]:
    """A golden checkpoint, and its target as it was in the moment of the kill."""
    target: Target = TARGETS[name](request.getfixturevalue(FIXTURES.get(name, name)))
    with unpacked(name) as place:
        target.empty()
        target.load((place.root / "target.txt").read_text())
        yield place, target


@contextmanager
def broker_of(place: Place) -> Iterator[Broker]:
    """The golden broker, once it has ended the transactions whose time is over."""
    with Broker(place.root / "kafka", reaper_ms=500) as broker:
        deadline = time.monotonic() + PATIENCE_S
        while open_transactions(broker) and time.monotonic() < deadline:
            time.sleep(0.1)
        yield broker


def open_transactions(broker: Broker) -> bool:
    """Do readers of what is committed have to wait anywhere, or the partitions still for their broker?"""
    admin = broker.admin()  # kept: an answer to a client that is gone never comes
    asked = [TopicPartition(f"{NAME}-{topic}", 0) for topic in ("counts", "words")]
    ends = []
    for isolation in IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED:
        found = admin.list_offsets(
            dict.fromkeys(asked, OffsetSpec.latest()), isolation_level=isolation, request_timeout=PATIENCE_S
        )
        try:
            ends.append([found[partition].result().offset for partition in asked])
        except KafkaException as error:  # a broker that just came answers before it leads its partitions
            if error.args[0].code() not in NOT_YET_LEADING:
                raise
            return True
    return ends[0] != ends[1]


def seen_in(broker: Broker) -> Seen:
    """The newest count of each word, and how often each was written."""
    counts = [json.loads(message.value()) for message in read(broker.servers, f"{NAME}-counts")]
    words = [json.loads(message.value())["word"] for message in read(broker.servers, f"{NAME}-words")]
    return {"counts": {row["word"]: row["count"] for row in counts}, "words": dict(Counter(words))}


def say(servers: str, *lines: str) -> None:
    """Input for a job that reads from Kafka."""
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for line in lines:
        producer.produce(f"{NAME}-in", line.encode())
        assert producer.flush(PATIENCE_S) == 0
