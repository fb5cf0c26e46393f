"""Four databases and a folder of files, real Spark, real servers, real SIGKILL: after any kill all five agree.

The checker reads each server by its own client or by another library than the sink's and imports nothing of fencepost.
A reader looks at all of them during the kills. `make kill ARGS="--workload databases"` kills every point.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pg8000.native
import pytest
from fencepost_proof.kill import nemesis
from fencepost_proof.kill.scene import KILLED, Scene, class_archive
from fencepost_proof.rig.cassandra import Cassandra
from fencepost_proof.rig.databases import Servers
from fencepost_proof.rig.mariadb import MariaDB
from fencepost_proof.rig.postgres import Postgres
from fencepost_proof.rig.redis import Redis
from fencepost_proof.workloads.contract import ROWS_PER_EPOCH
from fencepost_proof.workloads.databases import DatabasesWorkload

pytestmark = pytest.mark.spark

NOTHING = {"lost": 0, "doubled": 0, "wrong": 0}
EXACT = dict.fromkeys(("rows", "totals", "counts", "newest", "evens"), NOTHING)


@pytest.fixture
def servers(postgres: Postgres, mariadb: MariaDB, redis_server: Redis, cassandra: Cassandra) -> Servers:
    return Servers(postgres, mariadb, redis_server, cassandra)


@pytest.fixture
def scene(tmp_path: Path, archives: Path, servers: Servers) -> Scene:
    make = partial(DatabasesWorkload, servers_=servers)
    return Scene(make(tmp_path / "scene"), archive=class_archive(archives, "databases", make, "jvm"))


def marks(scene: Scene) -> dict[str, int]:
    """The newest epoch that each target holds, by its own word."""
    work = scene.workload
    assert isinstance(work, DatabasesWorkload)
    servers, place = work.servers_, work.place
    question = f"SELECT epoch FROM {place}.fencepost_epoch"  # noqa: S608 - ours
    with pg8000.native.Connection("test", host="127.0.0.1", port=servers.postgres.port, database="test") as postgres:
        [[in_postgres]] = postgres.run(question)
    [(in_cassandra,)] = servers.cassandra.run(question)
    [key] = servers.redis.cli("keys", f"fencepost:*counts-{place}*").split()
    files = (scene.folder / "evens").glob("_fencepost/manifests/*.json")
    return {
        "rows": in_postgres,
        "totals": int(servers.mariadb.client(question)),
        "counts": int(servers.redis.cli("hget", key, "epoch")),
        "newest": in_cassandra,
        "evens": max(json.loads(path.read_text())["epoch"] for path in files),
    }


@pytest.mark.long  # each sink alone is killed at every point by tests/proof/test_kill.py
def test_after_any_kill_five_sinks_agree_epoch_by_epoch(scene: Scene) -> None:
    """Every kill must have happened; each restart first recovers from the kill before it."""
    scene.feed(2)
    with scene.workload.watched() as seen:
        missed = []
        for fault in (
            "vote.during=kill@2",  # rows in an open transaction, undecided
            "decide.after=kill",
            "commit.before=kill@8",  # 1 to 5 are recovery's own; two of five sinks have the first new epoch
        ):
            scene.feed(1)
            if scene.run(fault) != KILLED:
                missed.append(fault)
            if "@8" in fault:
                halves = scene.verdict()
                assert halves["rows"]["lost"] - halves["counts"]["lost"] == ROWS_PER_EPOCH
        scene.feed(1)
        if not nemesis.in_a_worker(scene, "staged.task.filled=kill").hit:
            missed.append("a worker with a staged table")
        assert 0 == scene.run()
    assert [] == missed
    assert EXACT == scene.verdict()
    assert {scene.workload.epoch()} == set(marks(scene).values())
    assert {(0, 0)} == {(found["torn"], found["back"]) for found in seen.values()}
    assert min(found["looks"] for found in seen.values()) > 5

    work = scene.workload
    assert isinstance(work, DatabasesWorkload)
    work.servers_.mariadb.client(f"UPDATE {work.place}.totals SET `count` = `count` + 1 LIMIT 1")  # noqa: S608 - ours
    work.servers_.cassandra.run(f"TRUNCATE {work.place}.newest")
    next((scene.folder / "evens").glob("*.json")).unlink()
    found = scene.verdict()
    assert (1, work.rows) == (found["totals"]["doubled"], found["newest"]["lost"])
    assert found["evens"]["lost"] > 0


@pytest.mark.long
def test_the_checkers_find_what_a_plain_job_doubles(scene: Scene) -> None:
    """A sabotaged twin: `foreachBatch` with INSERT and INCRBY, killed between them and `commits/N`."""
    work = scene.workload
    assert isinstance(work, DatabasesWorkload)
    scene.feed(2)
    assert KILLED == scene.run("plain.written=kill@2", None, "--plain")
    assert 0 == scene.run("", None, "--plain")
    found = scene.verdict(*(place for place in work.places if place.startswith(("rows", "counts"))))
    assert {"rows": NOTHING | {"doubled": ROWS_PER_EPOCH}, "counts": NOTHING | {"doubled": ROWS_PER_EPOCH}} == found
