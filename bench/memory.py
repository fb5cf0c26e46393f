"""Measures how much memory the driver's side of a sink needs for one large epoch: `make bench-memory`.

    one staged file ─► pre-commit, vote ─► (the driver is gone) ─► a new driver commits from the staged file

Each sink runs in a process of its own, whose address space is limited (RLIMIT_AS) to what it has once everything is
imported, and so many MB more. Whatever needs more than that ends in MemoryError, as it would in a small container.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from fencepost_proof.rig.cassandra import Cassandra
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.rig.mariadb import MariaDB
from fencepost_proof.rig.postgres import Postgres
from fencepost_proof.rig.process import HOST
from fencepost_proof.rig.redis import Redis

import fencepost as fp
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Kept
from fencepost.store.staging import sum_of
from fencepost.testing import SinkDriver

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
TASK_BATCH = 4 << 20
"""What a task puts into one batch: `BATCH_BYTES_MAX` in java/fencepost/TaskWriter.java."""


def consume(context: Any, batches: Iterable[pa.RecordBatch]) -> None:
    """Like a function that sends rows somewhere."""
    for batch in batches:
        batch.to_pylist()


TABLE = "bench_memory"
SINKS: dict[str, Callable[[str], Any]] = {
    "function": lambda at: fp.WriteAheadLog(consume, name="function"),
    "parquet": lambda at: fp.Files(at, format="parquet"),
    "json": lambda at: fp.Files(at, format="json"),
    "csv": lambda at: fp.Files(at, format="csv"),
    "sqlite": lambda at: fp.SQLite(f"{at}.db", table=TABLE),
    "duckdb": lambda at: fp.DuckDB(f"{at}.duckdb", table=TABLE),
    "postgres": lambda at: fp.Postgres(TABLE, dsn=at),
    "mysql": lambda at: fp.MySQL(TABLE, **json.loads(at)),
    "redis": lambda at: fp.Redis(at, shape="string", prefix=f"{TABLE}:", key="id"),
    "cassandra": lambda at: fp.Cassandra(f"bench.{TABLE}", hosts=HOST, port=int(at)),
    "kafka": lambda at: fp.Kafka(TABLE, servers=at),
}
"""What each sink writes to: a path, a server's address, or nothing."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.memory", description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--sinks", default=",".join(SINKS), help="comma-separated")
    parser.add_argument("--at", default="", help="where the one sink's server is; by default one is started")
    parser.add_argument("--mb", type=int, default=2048, help="size of the staged file")
    parser.add_argument("--row-bytes", type=int, default=1000)
    parser.add_argument("--limit", type=int, default=600, help="MB of address space above that of the start")
    parser.add_argument("--folder", type=Path, help="where to write; by default a temporary folder")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.inside:
        kept = Kept(**json.loads(chosen.inside))
        print(json.dumps(attempt(chosen.sinks, chosen.at, chosen.folder, kept, chosen.limit)))
        return 0
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        kept = stage(SinkDriver(SINKS["function"](""), Path(folder)), chosen.mb << 20, chosen.row_bytes)
        print(f"{chosen.mb} MB in one staged file, {kept.rows} rows; {chosen.limit} MB of memory")
        return max(run(name, chosen, Path(folder), kept) for name in chosen.sinks.split(","))


def run(name: str, chosen: argparse.Namespace, folder: Path, kept: Kept) -> int:
    at = str(folder / name)
    with nullcontext(chosen.at) if chosen.at else SERVERS.get(name, nullcontext)(at) as at:
        command = [sys.executable, "-m", "bench.memory", "--sinks", name, "--at", at, "--folder", str(folder)]
        command += ["--limit", str(chosen.limit), "--inside", json.dumps(asdict(kept))]
        # Arrow's own allocator reserves a GB of addresses in advance, which would escape the limit; the system's would
        # use it up, because it reserves 64 MB of them for each thread.
        env = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        print(f"{name:10} failed: {done.stderr.strip().splitlines()[-1]}")
    else:
        print(f"{name:10} {done.stdout.strip()}", flush=True)
    return done.returncode


@contextmanager
def postgres(folder: str) -> Iterator[str]:
    with Postgres(Path(folder)) as server:
        yield server.dsn


@contextmanager
def mysql(folder: str) -> Iterator[str]:
    with MariaDB(Path(folder)) as server:
        user = {"user": "test", "password": "test", "database": "test"}
        yield json.dumps({"host": HOST, "port": server.port, **user})


@contextmanager
def redis(folder: str) -> Iterator[str]:
    with Redis(Path(folder)) as server:
        yield server.url


@contextmanager
def cassandra(folder: str) -> Iterator[str]:
    from cassandra.cluster import Cluster  # noqa: PLC0415 - only where it is measured

    with Cassandra(Path(folder)) as server:
        with Cluster([HOST], port=server.port) as cluster, cluster.connect() as session:
            how = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
            session.execute(f"CREATE KEYSPACE bench WITH replication = {how}", timeout=60)
            session.execute(f"CREATE TABLE bench.{TABLE} (id bigint PRIMARY KEY, text text)", timeout=60)
        yield str(server.port)


@contextmanager
def kafka(folder: str) -> Iterator[str]:
    with Broker(Path(folder)) as server:
        server.create_topic(TABLE)
        yield server.servers


SERVERS: dict[str, Callable[[str], AbstractContextManager[str]]] = {
    "postgres": postgres,
    "mysql": mysql,
    "redis": redis,
    "cassandra": cassandra,
    "kafka": kafka,
}


def stage(driver: SinkDriver, size: int, row_bytes: int) -> Kept:
    """One file of this size, as a task writes it."""
    folder = Path(str(driver.owner.staging.folder(driver.owner.writer)))
    folder.mkdir(parents=True)
    path = folder / "0-big.arrow"
    each = max(1, TASK_BATCH // row_bytes)
    rows = 0
    text = pa.array(["x" * row_bytes] * each)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, SCHEMA) as out:
        while file.tell() < size:
            out.write_batch(pa.record_batch([pa.array(range(rows, rows + each)), text], schema=SCHEMA))
            rows += each
    return Kept(f"{driver.owner.writer}/{path.name}", rows, sum_of(path))


def attempt(name: str, at: str, folder: Path, kept: Kept, limit: int) -> dict[str, float]:
    """Vote, lose the driver, and let the next one commit; what that took."""
    sink = SINKS[name](at)
    sink.session("warm").close()  # what a sink imports is not part of an epoch
    before = status()
    most = (before["VmSize"] + limit * 1024) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    began = time.monotonic()
    first = SinkDriver(sink, folder, writer=1)
    first.start(SCHEMA)
    [handle] = first.session.handles(Epoch(0), first.owner.staging.rows((kept,), sink.name))
    if first.session.verify(Epoch(0), (handle,)):
        raise RuntimeError("the vote failed")
    voted = time.monotonic()
    first.session.rollback(undecided=False)
    first.session.close()
    second = SinkDriver(sink, folder, writer=2)
    second.start(SCHEMA)
    if sink.capabilities.perishable:  # as if the broker had lost it
        fresh = second.session.again(Epoch(0), handle, second.owner.staging.rows_again(handle))
        assert fresh is not None
        handle = fresh
    if second.session.commit(Epoch(0), (handle,))[handle.id] is not Outcome.DONE:
        raise RuntimeError("the commit is in doubt")
    after = status()
    return {
        "resident_mb": (after["VmHWM"] - before["VmRSS"]) // 1024,
        "address_mb": (after["VmPeak"] - before["VmSize"]) // 1024,
        "vote_s": round(voted - began, 1),
        "recovery_s": round(time.monotonic() - voted, 1),
    }


def status() -> dict[str, int]:
    """The kernel's figures about this process, in KB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Vm")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
