"""Golden checkpoints: the jobs that made them, and the way to put one back where it was made.

Spark notes absolute paths of input files, and the ledger has sums over those notes. So each was made in a folder of its
own below `ROOT`, and lies there again while a test holds its lock.
"""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import runpy
import shutil
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from kinds import keyed
from streams import OLDEST_S, Place, drop

import fencepost as fp
from fencepost.admin.verify import compare
from fencepost.config import RunConfig
from fencepost.runtime.driver import Driver, Plan
from fencepost.store import LocalStore

ROOT = Path("/tmp/fencepost-golden")
PACKED = Path(__file__).resolve().parent.parent / "golden" / "data"
HOST = "golden"
"""What the drivers that made them took for the name of their machine."""
NAME = "golden"
"""Of the job, of its database in a server, and before the names of its topics."""

WORD = ("word", pa.string())

DECIDED = "decide.after=kill"
UNDECIDED = "decide.before=kill"

Build = Callable[[Place, Any, Any], fp.Job]
"""A place, a session, and where the server is, to a job."""


def words(place: Place, job: fp.Job) -> Any:
    """A row a word, a file an epoch."""
    return place.text(job).selectExpr("explode(split(value, ' ')) AS word")


def counting(place: Place, spark: Any, where: Any) -> fp.Job:
    return place.counting(spark)


def on_the_heap(place: Place, spark: Any, where: Any) -> fp.Job:
    return place.counting(spark, state=fp.FileSystemState())


def with_map(place: Place, spark: Any, where: Any) -> fp.Job:
    return keyed(place, spark)


def into_files(place: Place, spark: Any, where: Any) -> fp.Job:
    job = place.job(spark, name=NAME)
    return job.write(words(place, job), fp.Files(str(place.root / "out"), format="json", name="words"))


def _two(place: Place, spark: Any, plain: fp.Sink, counted: fp.Sink) -> fp.Job:
    job = place.job(spark, name=NAME)
    seen = words(place, job)
    return job.write(seen, plain).write(seen.groupBy("word").count(), counted)


def into_postgres(place: Place, spark: Any, where: str) -> fp.Job:
    return _two(place, spark, *postgres_sinks(where))


def postgres_sinks(dsn: str) -> tuple[fp.Sink, fp.Sink]:
    plain = fp.Postgres("words", dsn=dsn, staging="target", name="words")
    return plain, fp.Postgres("counts", dsn=dsn, key="word", name="counts")


def into_mariadb(place: Place, spark: Any, where: int) -> fp.Job:
    return _two(place, spark, *mariadb_sinks(where))


def mariadb_sinks(port: int) -> tuple[fp.Sink, fp.Sink]:
    there = {"host": "127.0.0.1", "port": port, "user": "test", "password": "test", "database": NAME}
    plain = fp.MySQL("words", **there, staging="target", name="words")
    return plain, fp.MySQL("counts", **there, key="word", name="counts")


def into_redis(place: Place, spark: Any, where: str) -> fp.Job:
    job = place.job(spark, name=NAME)
    seen = words(place, job)
    tally, counts = redis_sinks(where)
    job.write(seen.selectExpr("word", "1L AS n"), tally)
    return job.write(seen.groupBy("word").count(), counts)


def redis_sinks(url: str) -> tuple[fp.Sink, fp.Sink]:
    tally = fp.Redis(url, key="word", shape="counter", prefix="tally:", name="tally")
    return tally, fp.Redis(url, key="word", prefix="counts:", name="counts")


def into_cassandra(place: Place, spark: Any, where: int) -> fp.Job:
    job = place.job(spark, name=NAME)
    return job.write(words(place, job).groupBy("word").count(), *cassandra_sinks(where))


def cassandra_sinks(port: int) -> tuple[fp.Sink]:
    return (fp.Cassandra(f"{NAME}.counts", port=port, key="word", name="counts"),)


def kafka_to_kafka(place: Place, spark: Any, where: str) -> fp.Job:
    """The counts are written by the driver, the words by the tasks."""
    job = place.job(spark, name=NAME)
    lines = job.read(fp.Kafka(f"{NAME}-in", servers=where, max_records_per_epoch=1))
    seen = lines.selectExpr("explode(split(CAST(value AS STRING), ' ')) AS word")
    counts, plain = kafka_sinks(where)
    return job.write(seen.groupBy("word").count(), counts).write(seen.coalesce(1), plain)


def kafka_sinks(servers: str) -> tuple[fp.Sink, fp.Sink]:
    """With a timeout that is over by the time a test looks at the broker again."""
    common = {"servers": servers, "transaction_timeout": 20.0}
    counts = fp.Kafka(f"{NAME}-counts", key="word", name="counts", **common)
    return counts, fp.Kafka(f"{NAME}-words", parallel=True, name="words", **common)


@dataclass(frozen=True)
class Golden:
    """One of them: its job, how its last driver ended, and which server its target is in."""

    build: Build
    fault: str = DECIDED
    server: str = ""
    sinks: Callable[[Any], tuple[fp.Sink, ...]] = lambda where: ()
    """Of a job whose target is in a server."""


GOLDENS = {
    "stopped": Golden(counting, fault=""),
    "decided": Golden(counting),
    "undecided": Golden(counting, fault=UNDECIDED),
    "noted": Golden(counting),
    "heap": Golden(on_the_heap),
    "keyed": Golden(with_map),
    "files": Golden(into_files),
    "postgres": Golden(into_postgres, server="postgres", sinks=postgres_sinks),
    "mariadb": Golden(into_mariadb, server="mariadb", sinks=mariadb_sinks),
    "redis": Golden(into_redis, server="redis", sinks=redis_sinks),
    "cassandra": Golden(into_cassandra, server="cassandra", sinks=cassandra_sinks),
    "kafka": Golden(kafka_to_kafka, server="kafka", sinks=kafka_sinks),
}

BEFORE = ("to be or not to be", "be quick be bold")
"""Input of the epochs that were completed."""
LAST = "or be not ñandú"
"""Input of the epoch in which the last driver ended."""


def folder(name: str) -> Path:
    return ROOT / name


@contextmanager
def unpacked(name: str) -> Iterator[Place]:
    """A golden checkpoint with its input and target where it was made, alone, until the end of the block."""
    with alone_with(name):
        with tarfile.open(PACKED / f"{name}.tar.gz") as tar:
            tar.extractall(ROOT, filter="data")
        for beat in folder(name).glob("checkpoint/fencepost/pulse/*.json"):  # old by any machine's clock
            beat.write_text(json.dumps({**json.loads(beat.read_text()), "at_s": OLDEST_S}))
        yield Place(folder(name))


@contextmanager
def alone_with(name: str) -> Iterator[None]:
    """The place where it was made, empty, and nobody else in it until the end of the block."""
    ROOT.mkdir(exist_ok=True, parents=True)
    with (ROOT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(folder(name), ignore_errors=True)
        try:
            yield
        finally:
            shutil.rmtree(folder(name), ignore_errors=True)


def pack(name: str) -> Path:
    """The same bytes for the same files; nobody's name in it."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode = 0o755 if member.isdir() else 0o644
        return member

    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for path in sorted(folder(name).rglob("*")):
            tar.add(path, path.relative_to(ROOT), recursive=False, filter=plain)
    packed = PACKED / f"{name}.tar.gz"
    packed.write_bytes(gzip.compress(data.getvalue(), mtime=0))
    return packed


def feed(place: Place, *lines: str) -> None:
    """One file per line, in the order of their times."""
    for line in lines:
        drop(place.input, line + "\n")


def counted(*lines: str) -> dict[str, int]:
    """How often each word is there."""
    return dict(Counter(word for line in lines for word in line.split()))


def published(place: Place) -> dict[str, int]:
    """The same, of words in a folder of files."""
    files = fp.list_published(place.root / "out")
    return counted(*(json.loads(line)["word"] for file in files for line in file.read_text().splitlines()))


def ledger(checkpoint: Path) -> list[Path]:
    """The files of its records, in order."""
    return sorted(checkpoint.glob("fencepost/*/ledger/*.json"))


def last_decision(checkpoint: Path) -> dict[str, Any]:
    """As anybody can read it."""
    found = [json.loads(file.read_text()) for file in ledger(checkpoint)]
    return [record["body"] for record in found if record["kind"] == "decision"][-1]


def command(*words: str | Path) -> tuple[int, str]:
    """`python -m fencepost …` in this process: its exit code and what it says."""
    out = io.StringIO()
    before, sys.argv = sys.argv, ["fencepost", *map(str, words)]
    try:
        with redirect_stdout(out):
            runpy.run_module("fencepost", run_name="__main__")
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = before
    return code, out.getvalue()


def fencepost(*words: str | Path) -> tuple[int, Any]:
    """The same, for programs."""
    code, said = command(*words, "--json")
    return code, json.loads(said)


def held(place: Place, *sinks: fp.Sink) -> list[set[str]]:
    """Epoch by epoch, what the sinks say of it when `verify` asks them."""
    return [set(row.sinks.values()) for row in compare(place.checkpoint, {sink.name: sink for sink in sinks}).rows]


def recover(place: Place, *sinks: fp.Sink, job: str = NAME) -> None:
    """A start and an end of the driver without an engine: what is decided is finished, what is not is dropped."""
    columns = {"words": [WORD], "tally": [WORD, ("n", pa.int64())]}
    driver = Driver(
        Plan(
            config=RunConfig(job=job, checkpoint=fp.Checkpoint(place.checkpoint)),
            store=LocalStore(place.checkpoint),
            sinks={sink.name: sink for sink in sinks},
            schemas={sink.name: pa.schema(columns.get(sink.name, [WORD, ("count", pa.int64())])) for sink in sinks},
            modes={sink.name: "append" if sink.name in columns else "update" for sink in sinks},
        )
    )
    driver.recover()
    driver.close()
