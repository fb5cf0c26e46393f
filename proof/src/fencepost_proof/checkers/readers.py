"""How an ordinary reader sees a table in a database: by its own client, or by another library than the sink's.

Imports nothing of fencepost, and is loaded by path by the checkers, which do not either. A server's reader raises
whatever its client raises: the table may not be there yet.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

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


def in_duckdb(where: str, columns: str) -> list[Row]:
    """By DuckDB itself, which is the only one that reads its files; read-only, so that none is made."""
    import duckdb  # noqa: PLC0415 - only where it is needed

    path, _, table = where.rpartition("#")
    if not Path(path).exists():
        return []
    with duckdb.connect(path, read_only=True) as connection:
        return [tuple(row) for row in connection.execute(f"SELECT {columns} FROM {table}").fetchall()]  # noqa: S608 - ours


def in_delta(where: str, columns: str) -> list[Row]:
    """By the table's log, read as JSON from its first version on, and the Parquet files that are left in it."""
    *_, newest = [({}, {}), *_delta_versions(Path(where))]
    return _in_files(Path(where), *newest, columns.split(", "))


def versions_in_delta(where: str, columns: str) -> Iterator[list[Row]]:
    """The rows of every version, the first one first."""
    for files, kinds in _delta_versions(Path(where)):
        yield _in_files(Path(where), files, kinds, columns.split(", "))


def _delta_versions(folder: Path) -> Iterator[tuple[dict[str, dict[str, str]], dict[str, Any]]]:
    """Of each version: its files with the partition of each, and the types of its columns."""
    files: dict[str, dict[str, str]] = {}
    kinds: dict[str, Any] = {}
    for version in sorted((folder / "_delta_log").glob("[0-9]*.json")):
        for line in version.read_text().splitlines():
            [(kind, action)] = json.loads(line).items()
            if kind == "metaData":
                kinds = {field["name"]: field["type"] for field in json.loads(action["schemaString"])["fields"]}
            elif kind == "add":
                files[action["path"]] = action["partitionValues"]
            elif kind == "remove":
                del files[action["path"]]
        yield dict(files), kinds


def _in_files(folder: Path, files: dict[str, dict[str, str]], kinds: dict[str, Any], names: list[str]) -> list[Row]:
    """A column that a file does not have is NULL."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - only where there is a table

    rows: list[Row] = []
    for path, partition in files.items():
        table = pq.ParquetFile(folder / unquote(path)).read()
        found: dict[str, list[Any]] = dict.fromkeys(names, [None] * table.num_rows)
        found |= {name: table.column(name).to_pylist() for name in table.column_names}
        for name, text in partition.items():
            found[name] = [int(text) if kinds[name] in {"long", "integer"} else text] * table.num_rows
        rows += zip(*(found[name] for name in names), strict=True)
    return rows


def in_iceberg(where: str, columns: str) -> list[Row]:
    """By pyiceberg's own scan, which shares with the sink only how metadata is read."""
    table = _iceberg_table(where)
    return [] if table is None else _scanned(table, columns.split(", "))


def versions_in_iceberg(where: str, columns: str) -> Iterator[list[Row]]:
    """The rows of every snapshot, the first one first."""
    table = _iceberg_table(where)
    for snapshot in table.metadata.snapshots if table is not None else ():
        yield _scanned(table, columns.split(", "), snapshot.snapshot_id)


def _iceberg_table(where: str) -> Any:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - only where there is a table
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - as above

    told = json.loads(where)
    try:
        return load_catalog(**{"name": "default", **told["catalog"]}).load_table(told["table"])
    except NoSuchTableError:
        return None


def _scanned(table: Any, names: list[str], snapshot: int | None = None) -> list[Row]:
    found = table.scan(selected_fields=tuple(names), snapshot_id=snapshot).to_arrow()
    return list(zip(*(found.column(name).to_pylist() for name in names), strict=True))


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
    "delta": in_delta,
    "duckdb": in_duckdb,
    "iceberg": in_iceberg,
    "postgres": in_postgres,
    "mariadb": in_mariadb,
    "redis": in_redis,
    "cassandra": in_cassandra,
}
VERSIONS: dict[str, Callable[[str, str], Iterator[list[Row]]]] = {
    "delta": versions_in_delta,
    "iceberg": versions_in_iceberg,
}
"""Tables that can be read as they were after each commit."""
