"""Make golden checkpoints, each in a folder of its own below a neutral one, and pack them into data/.

    PYTHONPATH=tests/helpers .venv/bin/python tests/golden/make.py NAME …        those that are not there yet

What is there is never made again: a new format gets a new name in `tests/helpers/golden.py`. Every start of a job is a
process of its own, so that it can be killed for real.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import golden
from fencepost_proof.rig.cassandra import Cassandra
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.rig.mariadb import MariaDB
from fencepost_proof.rig.postgres import Postgres
from fencepost_proof.rig.redis import Redis
from golden import BEFORE, GOLDENS, HOST, LAST, NAME, PACKED, Golden, alone_with, feed, folder, pack
from golden_targets import TARGETS, Target, say
from kinds import grow
from sessions import SMALL, connector
from streams import Place

import fencepost as fp

SERVERS: dict[str, Any] = {"postgres": Postgres, "mariadb": MariaDB, "redis": Redis, "cassandra": Cassandra}


def main() -> int:
    parser = argparse.ArgumentParser(description="Make golden checkpoints.")
    parser.add_argument("names", nargs="*", choices=[*GOLDENS, []])
    parser.add_argument("--start", action="store_true", help="one start of a job, in this process")
    parser.add_argument("--where", help="its server")
    chosen = parser.parse_args()
    if chosen.start:
        start(chosen.names[0], chosen.where)
        return 0
    for name in chosen.names or [name for name in GOLDENS if not (PACKED / f"{name}.tar.gz").exists()]:
        if (PACKED / f"{name}.tar.gz").exists():
            print(f"{name} is there already: it is never made again.", file=sys.stderr)
            return 1
        with alone_with(name):
            make(name)
    return 0


def make(name: str) -> None:
    """All of one: its epochs, its end, what its target held then."""
    place, one = Place(folder(name)), GOLDENS[name]
    place.root.mkdir(parents=True)
    if one.server == "kafka":
        make_with_kafka(name, place)
    elif one.server:
        with tempfile.TemporaryDirectory() as temp, SERVERS[one.server](Path(temp) / "server") as server:
            target: Target = TARGETS[one.server](server)
            target.empty()
            run(name, place, str(target.where))
            (place.root / "target.txt").write_text(target.dump())
    else:
        run(name, place)
    packed = pack(name)
    with (PACKED / "SHA256SUMS").open("a") as sums:
        sums.write(f"{hashlib.sha256(packed.read_bytes()).hexdigest()}  {packed.name}\n")
    print(f"{packed.name}: {packed.stat().st_size} bytes")


def run(name: str, place: Place, where: str = "") -> None:
    """Two epochs and a clean end, then one in which the driver ends as it shall."""
    one = GOLDENS[name]
    if one.fault:
        feed(place, *BEFORE)
        started(name, where)
        feed(place, LAST)
    started(name, where, one.fault)


def make_with_kafka(name: str, place: Place) -> None:
    """The broker's own files are the dump: what became of a transaction only they can tell."""
    with Broker(place.root / "kafka") as kafka:
        for topic in ("in", "counts", "words"):
            kafka.create_topic(f"{NAME}-{topic}", partitions=1, retention_ms=-1)
        say(kafka.servers, *BEFORE)
        started(name, kafka.servers)
        say(kafka.servers, LAST)
        started(name, kafka.servers, GOLDENS[name].fault)
        kafka.stop()
    for path in (place.root / "kafka").iterdir():
        if path.name != "data":
            path.unlink()


def started(name: str, where: str = "", fault: str = "") -> None:
    """A start in a process of its own, to its end."""
    command = [sys.executable, __file__, name, "--start", f"--where={where}"]
    job = subprocess.Popen(command, env={**os.environ, "FENCEPOST_FAULT": fault}, start_new_session=True)
    code = job.wait(300)
    if code:
        os.killpg(job.pid, signal.SIGKILL)  # its JVM
    assert code == (-signal.SIGKILL if fault else 0), f"{name} ended with {code}"


def start(name: str, where: str) -> None:
    """As a user's script would, on a machine of another name."""
    from fencepost.spark.spark_session import make_session  # noqa: PLC0415 - the parent needs no Spark

    socket.gethostname = lambda: HOST
    one: Golden = GOLDENS[name]
    place = Place(folder(name))
    with tempfile.TemporaryDirectory() as warehouse:
        spark = make_session("golden", {**SMALL, **connector(), "spark.sql.warehouse.dir": warehouse})
        try:
            if not one.fault:  # it has snapshots of its state, and a savepoint that was made while it ran
                grow(place, "count", spark)
            else:
                there: Any = int(where) if where.isdecimal() else where
                job: fp.Job = one.build(place, spark, there)
                job.run(until="available")
        finally:
            spark.stop()


if __name__ == "__main__":
    os.environ["FENCEPOST_HOME"] = tempfile.mkdtemp(prefix="fencepost-home-")
    assert golden.ROOT.is_absolute()
    sys.exit(main())
