"""A job on a real cluster, with its checkpoint on a store, under kills of its parts; `make kill-cluster` has them all.

The checkers read topics and tables as anybody would, and import nothing of fencepost.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer
from fencepost_proof.checkers import recount_tables
from fencepost_proof.cluster.__main__ import Chain, attack
from fencepost_proof.cluster.blows import POINT, TWIN_DIES
from fencepost_proof.cluster.races import Races, two_hosts
from fencepost_proof.cluster.scene import ClusterScene
from fencepost_proof.cluster.stores import OnHdfs, OnS3, Place
from fencepost_proof.rig.hdfs import Hdfs
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.rig.postgres import Postgres
from fencepost_proof.rig.s3 import S3
from fencepost_proof.rig.standalone import Standalone
from fencepost_proof.workloads.contract import ROWS_PER_EPOCH

NOTHING = {"lost": 0, "doubled": 0, "wrong": 0}


@pytest.fixture
def on_hdfs(hdfs: Hdfs) -> Iterator[Place]:
    yield OnHdfs(hdfs)
    hdfs.start()


@pytest.fixture
def on_s3(s3: S3) -> Iterator[Place]:
    bucket = f"bucket-{uuid.uuid4().hex[:8]}"
    s3.make_bucket(bucket)
    yield OnS3(s3, bucket)
    s3.start()


@pytest.mark.spark
@pytest.mark.long  # the one on S3 is the smoke of both; races of drivers are on both
def test_a_job_on_hdfs_loses_and_doubles_nothing_when_its_driver_dies(
    tmp_path: Path, on_hdfs: Place, standalone: Standalone, broker: Broker, postgres: Postgres
) -> None:
    scene = ClusterScene(tmp_path / "driver", "kafka", on_hdfs, standalone, broker, postgres)
    chain = attack(scene, [POINT], 1, print)
    assert ({"counts": NOTHING, "lines": NOTHING}, 1) == (chain.found, chain.kills.total())


@pytest.mark.long
@pytest.mark.spark
def test_a_job_on_s3_loses_and_doubles_nothing_when_the_server_dies(
    tmp_path: Path, on_s3: Place, standalone: Standalone, broker: Broker, postgres: Postgres
) -> None:
    scene = ClusterScene(tmp_path / "driver", "postgres", on_s3, standalone, broker, postgres)
    chain = attack(scene, ["the S3 server"], 1, print)
    assert (True, 1) == (chain.is_right, chain.kills.total()), chain.found
    assert min(found["looks"] for found in chain.found.values()) > 0


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("job", ["kafka", "postgres"])
def test_the_checkers_find_the_duplicates_of_a_plain_job(  # noqa: PLR0917 - pytest calls it by keyword
    job: str, tmp_path: Path, on_hdfs: Place, standalone: Standalone, broker: Broker, postgres: Postgres
) -> None:
    """The sabotaged twin, killed between its write and `commits/N`: an epoch's rows are there twice.

    In Kafka some are there a third time: what a slow task and its second try wrote. A reader of the table sees it, too.
    """
    scene = ClusterScene(tmp_path / "driver", job, on_hdfs, standalone, broker, postgres, plain=True)
    chain = attack(scene, [TWIN_DIES], 1, print)
    assert not chain.is_right
    found = chain.found["lines"]
    assert (0, 0) == (found["lost"], found["wrong"])
    assert found["doubled"] >= ROWS_PER_EPOCH // 2  # the first epochs may be smaller than those that follow
    assert job == "kafka" or found["torn"] > 0


def test_two_drivers_on_two_hosts_have_one_winner_on_hdfs(
    tmp_path: Path, on_hdfs: Place, standalone: Standalone
) -> None:
    run_races(tmp_path, on_hdfs, 4)


def test_two_drivers_on_two_hosts_have_one_winner_on_s3(tmp_path: Path, on_s3: Place, standalone: Standalone) -> None:
    run_races(tmp_path, on_s3, 8)


def run_races(folder: Path, place: Place, count: int) -> None:
    with two_hosts(place, "client", folder) as hosts:
        races = Races(place, hosts, folder, random.Random(7))
        for number in range(count):
            races.run(number)


class Looks:
    """A topic of six lines in two epochs, their table, and a reader's looks at it."""

    def __init__(self, folder: Path, broker: Broker, postgres: Postgres) -> None:
        self.name = f"t{uuid.uuid4().hex[:8]}"
        self.log, self.looks = folder / "offsets", folder / "looks"
        self.log.mkdir()
        self.broker, self.postgres = broker, postgres
        broker.create_topic(f"{self.name}-in", partitions=3)
        producer = Producer({"bootstrap.servers": broker.servers})
        for number in range(6):
            line = json.dumps({"id": number, "text": "ash elm elm"})
            producer.produce(f"{self.name}-in", line, partition=number % 3)
        producer.flush(30)
        for epoch in (1, 2):
            (self.log / str(epoch - 1)).write_text(json.dumps({f"{self.name}-in": {str(p): epoch for p in range(3)}}))
        with psycopg.connect(postgres.dsn) as connection:
            connection.execute(f"CREATE SCHEMA {self.name}".encode())
            connection.execute(f"CREATE TABLE {self.name}.lines (id bigint, text text)".encode())
            connection.execute(f"CREATE TABLE {self.name}.counts (word text, count bigint)".encode())
            numbers = "SELECT i, 'ash elm elm' FROM generate_series(0, 5) i"
            connection.execute(f"INSERT INTO {self.name}.lines {numbers}".encode())
            connection.execute(f"INSERT INTO {self.name}.counts VALUES ('ash', 6), ('elm', 12)".encode())  # noqa: S608
        self.see(([0, 0, 0], 0), ([1, 1, 1], 9), ([2, 2, 2], 18))

    def see(self, *looks: tuple[list[int], int]) -> None:
        """What a reader saw: lines by partition, words in all."""
        with self.looks.open("a") as file:
            file.writelines(json.dumps({"lines": lines, "counts": [words]}) + "\n" for lines, words in looks)

    def do(self, statement: str) -> None:
        with psycopg.connect(self.postgres.dsn) as connection:
            connection.execute(f"SET search_path TO {self.name}".encode())
            connection.execute(statement.encode())

    def verdict(self) -> tuple[int, dict[str, dict[str, int]]]:
        where = f"{self.postgres.dsn} schema={self.name}"
        told = [self.broker.servers, self.name, str(self.log), where, str(self.looks)]
        found = subprocess.run(
            [sys.executable, "-I", recount_tables.__file__, *told], check=False, capture_output=True, text=True
        )
        return found.returncode, json.loads(found.stdout)["places"]


def test_the_checker_of_tables_finds_nothing_in_tables_that_are_right(
    tmp_path: Path, broker: Broker, postgres: Postgres
) -> None:
    right = NOTHING | {"torn": 0, "back": 0, "looks": 2}
    assert (0, {"counts": right, "lines": right}) == Looks(tmp_path, broker, postgres).verdict()


@pytest.mark.parametrize(
    ("sabotage", "place", "what", "count"),
    [
        ("DELETE FROM lines WHERE id = 3", "lines", "lost", 1),
        ("INSERT INTO lines VALUES (3, 'ash elm elm')", "lines", "doubled", 1),
        ("UPDATE lines SET text = 'elm' WHERE id = 3", "lines", "wrong", 1),
        ("UPDATE counts SET count = 10 WHERE word = 'elm'", "counts", "lost", 2),
        ("UPDATE counts SET count = 13 WHERE word = 'elm'", "counts", "doubled", 1),
        ("INSERT INTO counts VALUES ('ash', 0)", "counts", "wrong", 1),
    ],
)
def test_the_checker_of_tables_finds_what_is_wrong(  # noqa: PLR0917 - pytest calls it by keyword
    sabotage: str, place: str, what: str, count: int, tmp_path: Path, broker: Broker, postgres: Postgres
) -> None:
    tables = Looks(tmp_path, broker, postgres)
    tables.do(sabotage)
    code, found = tables.verdict()
    assert (1, count) == (code, found[place][what])


@pytest.mark.parametrize(
    ("look", "place", "what"),
    [
        (([2, 1, 1], 9), "lines", "torn"),
        (([2, 2, 2], 12), "counts", "torn"),
        (([1, 1, 1], 18), "lines", "back"),
        (([2, 2, 2], 9), "counts", "back"),
    ],
)
def test_the_checker_of_tables_finds_what_a_reader_must_never_see(  # noqa: PLR0917 - as above
    look: tuple[list[int], int], place: str, what: str, tmp_path: Path, broker: Broker, postgres: Postgres
) -> None:
    tables = Looks(tmp_path, broker, postgres)
    tables.see(look)
    code, found = tables.verdict()
    assert (1, 1) == (code, found[place][what])


def test_a_chain_without_rows_is_not_right() -> None:
    assert not Chain(found={"lines": NOTHING}).is_right
