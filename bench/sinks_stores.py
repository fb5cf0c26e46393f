"""How rows get into Redis and Cassandra without us; see `bench.sinks_tables`."""

# ruff: noqa: S608 - names of tables that were made up here

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import redis
from bench.sinks_tables import Rows, Target, Work, pieces, tuples
from cassandra.cluster import Cluster
from cassandra.concurrent import execute_concurrent, execute_concurrent_with_args
from fencepost_proof.rig import cassandra as cassandra_rig
from fencepost_proof.rig import redis as redis_rig
from fencepost_proof.rig.process import HOST

import fencepost as fp

# --- Redis

AT_ONCE = 10_000


def redis_pipeline(client: Any, work: Work, rows: Rows) -> None:
    """Ten thousand rows a pipeline; `key` is before `value`, and in a hash behind `id`."""
    source = iter(rows)
    while some := list(islice(source, AT_ONCE)):
        with client.pipeline(transaction=False) as pipe:
            if work.kind == "string":
                for key, value in some:
                    pipe.set(f"{work.table}:{key}", value)
            else:
                for number, key, value in some:
                    pipe.hset(f"{work.table}:{key}", mapping={"id": number, "value": value})
            pipe.execute()


def redis_one_by_one(client: Any, work: Work, rows: Rows) -> None:
    for row in rows:
        redis_pipeline(client, work, [row])


class Redis(Target):
    """A hash per row: HSET."""

    name, title, raw_title = "redis", "Redis, a hash per row", "HSET, piped"
    by_hand: ClassVar = {"one by one": redis_one_by_one, "pipeline": redis_pipeline}
    slow: ClassVar = {"one by one": 10_000}
    connect = staticmethod(redis.Redis.from_url)
    kind = "hash"

    def __init__(self, folder: Path) -> None:
        self.server: redis_rig.Redis = redis_rig.Redis(folder, settings={"auto-aof-rewrite-percentage": "0"})

    @property
    def address(self) -> str:
        return self.server.url

    def version(self) -> str:
        with redis.Redis.from_url(self.address) as client:
            return str(client.info()["redis_version"])

    def make(self, work: Work) -> None:
        """Everything goes, the log of it too."""
        with redis.Redis.from_url(self.address) as client:
            client.flushall()
            client.bgrewriteaof()
            while client.info("persistence")["aof_rewrite_in_progress"]:
                time.sleep(0.02)

    def drop(self, work: Work) -> None:
        self.make(work)

    def count(self, work: Work) -> int:
        with redis.Redis.from_url(self.address) as client:
            return int(client.dbsize()) - len(list(client.scan_iter("fencepost:*", count=AT_ONCE)))

    def command(self, work: Work, row: tuple[Any, ...]) -> tuple[str, ...]:
        number, key, value = row
        return "HSET", f"{work.table}:{key}", "id", str(number), "value", repr(value)

    def raw(self, work: Work, rows: pa.Table) -> Callable[[Any], None]:
        commands = (self.command(work, row) for row in tuples(rows))
        data = b"".join(
            f"*{len(words)}\r\n".encode() + b"".join(f"${len(word)}\r\n{word}\r\n".encode() for word in words)
            for words in commands
        )
        return lambda _: self._pipe(data, rows.num_rows)

    def _pipe(self, data: bytes, answers: int) -> None:
        """As `redis-cli --pipe`: one thread sends, one reads."""
        with socket.create_connection((HOST, self.server.port)) as connection:

            def send() -> None:
                for piece in pieces(data):
                    connection.sendall(piece)

            sender = threading.Thread(target=send)
            sender.start()
            while answers > 0:
                found = connection.recv(1 << 16)
                assert found, "the connection was closed"
                assert b"-" not in found, "an error"
                answers -= found.count(b"\n")
            sender.join()

    def sink(self, work: Work, staging: str = "") -> fp.Sink:
        return fp.Redis(self.address, key="key", unique_key=True, prefix=f"{work.table}:", shape=self.kind)  # type: ignore[arg-type]


class RedisString(Redis):
    """A text per row: SET."""

    name, title, raw_title = "redis-string", "Redis, a string per row", "SET, piped"
    columns = ("key", "value")
    kind = "string"

    def command(self, work: Work, row: tuple[Any, ...]) -> tuple[str, ...]:
        key, value = row
        return "SET", f"{work.table}:{key}", repr(value)


# --- Cassandra

IN_FLIGHT = 200
INSERT = 'INSERT INTO {table} (id, "key", value) VALUES (?, ?, ?)'


@contextmanager
def cassandra_connect(port: int) -> Iterator[Any]:
    with Cluster([HOST], port=port, protocol_version=5) as cluster:
        client = cluster.connect()
        client.default_timeout = 60
        yield client


def cassandra_one_by_one(client: Any, work: Work, rows: Rows) -> None:
    statement = client.prepare(INSERT.format(table=work.table))
    for row in rows:
        client.execute(statement, row)


def cassandra_concurrent(client: Any, work: Work, rows: Rows) -> None:
    statement = client.prepare(INSERT.format(table=work.table))
    execute_concurrent_with_args(client, statement, rows, concurrency=IN_FLIGHT)


class Cassandra(Target):
    name, title, raw_title = "cassandra", "Cassandra", "execute_concurrent, bound before"
    by_hand: ClassVar = {"one by one": cassandra_one_by_one, "execute_concurrent": cassandra_concurrent}
    slow: ClassVar = {"one by one": 1000}
    connect = staticmethod(cassandra_connect)
    limit = 100_000
    schema = "bench."

    def __init__(self, folder: Path) -> None:
        self.server: cassandra_rig.Cassandra = cassandra_rig.Cassandra(folder)

    @property
    def address(self) -> int:
        return self.server.port

    def version(self) -> str:
        return str(self._run("SELECT release_version FROM system.local")[0][0])

    def _run(self, statement: str) -> list[Any]:
        with cassandra_connect(self.address) as client:
            return list(client.execute(statement, timeout=60))

    def make(self, work: Work) -> None:
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        self._run(f"CREATE KEYSPACE IF NOT EXISTS bench WITH replication = {replication}")
        self._run(f'CREATE TABLE {work.table} (id bigint, "key" text PRIMARY KEY, value double)')

    def drop(self, work: Work) -> None:
        self._run(f"DROP TABLE {work.table}")

    def count(self, work: Work) -> int:
        return int(self._run(f"SELECT count(*) FROM {work.table}")[0][0])

    def raw(self, work: Work, rows: pa.Table) -> Callable[[Any], None]:
        bound: list[Any] = []

        def send(client: Any) -> None:
            execute_concurrent(client, bound, concurrency=IN_FLIGHT)

        with cassandra_connect(self.address) as client:
            statement = client.prepare(INSERT.format(table=work.table))
            bound += [(statement.bind(row), None) for row in tuples(rows)]
        return send

    def sink(self, work: Work, staging: str = "") -> fp.Sink:
        return fp.Cassandra(work.table, hosts=HOST, port=self.server.port, key="key", unique_key=True)
