"""Measures what `overlap` hides: a job with nine sinks, each epoch committed before the next one begins, or beside it.

    make bench-overlap ARGS="--epochs 25 --rounds 3 --rows 1000"

Nine branches of one source of files (one file is an epoch) into two tables of PostgreSQL, one of MariaDB, two sets of
keys in Redis, two tables of Cassandra, one of SQLite and a folder of files: real servers on this machine. The two ways
take turns in one session; each round has its own checkpoint and targets. Shown: the median time from one complete epoch
to the next, and of the commits of an epoch, without the first five.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from bench.common import facts, fsync_ms, save
from fencepost_proof.rig.databases import Servers

import fencepost as fp
from fencepost.observe import history
from fencepost.spark import spark_session

WARM = 5
SCHEMA = "id BIGINT, key STRING, value DOUBLE"


def make_input(folder: Path, epochs: int, rows: int) -> None:
    """One file per epoch; the same keys in each."""
    folder.mkdir(parents=True)
    for epoch in range(epochs):
        lines = (json.dumps({"id": epoch * rows + n, "key": f"key-{n:06}", "value": n / 7}) for n in range(rows))
        (folder / f"{epoch:05}.json").write_text("\n".join(lines) + "\n")
        os.utime(folder / f"{epoch:05}.json", (epoch + 1, epoch + 1))


def make_job(spark: Any, servers: Servers, folder: Path, name: str, *, overlap: bool) -> fp.Job:
    """Nine sinks, one decision."""
    with psycopg.connect(servers.postgres.dsn) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
    servers.mariadb.client(f"CREATE DATABASE {name}; GRANT ALL ON {name}.* TO test@'127.0.0.1';")
    servers.cassandra.run(
        f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    mysql: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": servers.mariadb.port,
        "user": "test",
        "password": "test",
        "database": name,
    }
    unique: dict[str, Any] = {"key": "key", "unique_key": True}
    job = fp.Job(name, checkpoint=fp.Checkpoint(folder / name, overlap=overlap), spark=spark)
    rows = job.read(fp.Files(str(folder / "in"), format="json", schema=SCHEMA, max_files_per_epoch=1))
    sinks: list[fp.Sink] = [
        fp.Postgres(f"{name}.all_rows", dsn=servers.postgres.dsn, name="p1"),
        fp.Postgres(f"{name}.newest", dsn=servers.postgres.dsn, name="p2", **unique),
        fp.MySQL("newest", **mysql, name="m1", **unique),
        fp.Redis(servers.redis.url, prefix=f"{name}:a:", name=f"{name}-r1", **unique),
        fp.Redis(servers.redis.url, prefix=f"{name}:b:", name=f"{name}-r2", **unique),
        fp.Cassandra(f"{name}.one", port=servers.cassandra.port, name="c1", **unique),
        fp.Cassandra(f"{name}.two", port=servers.cassandra.port, name="c2", **unique),
        fp.SQLite(folder / f"{name}.db", table="lines", name="s1"),
        fp.Files(str(folder / f"{name}.out"), format="json", name="f1"),
    ]
    for sink in sinks:
        job.write(rows, sink)
    return job


def measure(job: fp.Job, checkpoint: Path) -> dict[str, float]:
    """Run it to the end of its input."""
    times: list[float] = []
    job.on_complete(lambda event: times.append(time.monotonic()))
    job.run(until="available")
    gaps = [1000 * (later - earlier) for earlier, later in zip(times[WARM:], times[WARM + 1 :], strict=False)]
    commits = [1000 * epoch.phases["commit"] for epoch in history.read(checkpoint).epochs[WARM:]]
    return {
        "epoch_ms": statistics.median(gaps),
        "p90_ms": statistics.quantiles(gaps, n=10)[-1],
        "commit_ms": statistics.median(commits),
        "epochs": len(times),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.overlap", description=__doc__)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1000)
    chosen = parser.parse_args()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place, Servers.started(Path(place) / "servers") as servers:
        folder, load = Path(place), os.getloadavg()
        make_input(folder / "in", chosen.epochs, chosen.rows)
        spark = spark_session.make_session("bench-overlap", {"spark.master": "local[2]"})
        for number in range(chosen.rounds + 1):  # the first pair warms the JVM up
            for overlap in (False, True):
                name = f"b{number}{'overlap' if overlap else 'waits'}"
                told = measure(make_job(spark, servers, folder, name, overlap=overlap), folder / name)
                print(f"{name:12}", {key: round(value, 1) for key, value in told.items()}, flush=True)
                if number:
                    found.append({"round": number, "overlap": overlap, **told})
        about = facts(spark, fsync_ms(folder), load)
    medians = {
        way: statistics.median(one["epoch_ms"] for one in found if one["overlap"] is way) for way in (False, True)
    }
    print(f"waits {medians[False]:.0f} ms, overlap {medians[True]:.0f} ms: {medians[True] / medians[False]:.2f}")
    save("overlap-", about, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
