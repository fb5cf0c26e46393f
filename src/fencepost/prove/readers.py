"""How an ordinary reader sees a table in a server: by the server's own client, or by another library than the sink's.

Imports nothing of fencepost, and is loaded by path by the checkers, which do not either. A server's reader raises
whatever its client raises: the table may not be there yet.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable
from typing import Any

Row = tuple[Any, ...]


def in_postgres(where: str, columns: str) -> list[Row]:
    """By another client library than the sink's."""
    from pg8000.native import Connection  # noqa: PLC0415 - only where there is a server

    words = dict(word.split("=") for word in where.split())
    place = {"host": words["host"], "port": int(words["port"]), "database": words["dbname"]}
    with Connection(words["user"], **place) as connection:
        return [tuple(row) for row in connection.run(f"SELECT {columns} FROM {words['table']}")]  # noqa: S608 - ours


def in_mariadb(where: str, columns: str) -> list[Row]:
    """By the server's own client."""
    told = json.loads(where)
    columns = ", ".join(f"`{name}`" for name in columns.split(", "))
    found = subprocess.run(
        told["client"],
        input=f"SELECT {columns} FROM {told['table']}",  # noqa: S608 - ours
        env={**os.environ, **told["environment"]},
        capture_output=True,
        text=True,
        check=True,
    )
    return [
        tuple(int(word) if word.isdigit() else word for word in line.split("\t"))
        for line in found.stdout.split("\n")
        if line
    ]


def in_redis(where: str, columns: str) -> list[Row]:
    """All counters with a prefix at one moment, asked for over a bare socket."""
    port, _, prefix = where.partition("/")
    script = (
        "local found = {} for _, key in ipairs(redis.call('KEYS', ARGV[1])) do table.insert(found, key .. ' ' .. "
        "redis.call('GET', key)) end return table.concat(found, '\\n')"
    )
    words = ["EVAL", script, "0", f"{prefix}*"]
    ask = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    with socket.create_connection(("127.0.0.1", int(port)), 10) as connection, connection.makefile("rb") as answers:
        connection.sendall(ask.encode())
        head = answers.readline()
        if not head.startswith(b"$"):
            raise ConnectionError("Redis did not answer with a text")
        text = answers.read(int(head[1:])).decode()
    pairs = [line.removeprefix(prefix).rsplit(" ", 1) for line in text.splitlines()]
    return [(key, int(count)) for key, count in pairs]


def in_cassandra(where: str, columns: str) -> list[Row]:
    """By the driver, which is the only client there is; a cluster is dear to connect to, so it is kept."""
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile  # noqa: PLC0415 - only where needed
    from cassandra.policies import RoundRobinPolicy  # noqa: PLC0415 - as above

    port, _, table = where.partition("/")
    if port not in _sessions:
        profiles = {EXEC_PROFILE_DEFAULT: ExecutionProfile(RoundRobinPolicy())}
        cluster = Cluster(["127.0.0.1"], port=int(port), protocol_version=5, execution_profiles=profiles)
        _sessions[port] = cluster.connect()
    statement = f"SELECT {columns} FROM {table}"  # noqa: S608 - ours
    return [tuple(row) for row in _sessions[port].execute(statement, timeout=20)]


_sessions: dict[str, Any] = {}
READERS: dict[str, Callable[[str, str], list[Row]]] = {
    "postgres": in_postgres,
    "mariadb": in_mariadb,
    "redis": in_redis,
    "cassandra": in_cassandra,
}
