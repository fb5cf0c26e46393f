"""`fencepost init`: what it makes runs, and what is there stays."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.rig.postgres import Postgres

from fencepost.cli.init import files
from fencepost.cli.main import cli
from fencepost.errors import BadConfig

FENCEPOST = [sys.executable, "-m", "fencepost"]


class Newcomer:
    """Types commands in a folder, and has no more than that."""

    def __init__(self, folder: Path, **told: str) -> None:
        self.folder = folder
        # Short runs never reach the JVM's second compiler.
        self._environment = {**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", **told}

    def types(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            words, cwd=self.folder, capture_output=True, text=True, timeout=280, check=False, env=self._environment
        )
        assert 0 == done.returncode, done.stdout + done.stderr
        return done

    def makes(self, *options: str) -> Newcomer:
        made = self.types(*FENCEPOST, "init", "x", *options)
        kind = options[0].removeprefix("--") if options else "files"
        assert {f"x/{name}" for name in files(kind)} == set(made.stdout.split())
        self.folder /= "x"
        return self


def totals(orders: Iterable[dict[str, Any]]) -> list[tuple[str, int, int]]:
    spent: dict[str, list[int]] = {}
    for order in orders:
        spent.setdefault(order["customer"], []).append(order["cents"])
    return sorted((customer, sum(cents), len(cents)) for customer, cents in spent.items())


def given(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in folder.glob("orders/*.json") for line in path.read_text().splitlines()]


@pytest.mark.spark
def test_a_new_project_is_checked_runs_counts_right_and_passes_its_own_test(tmp_path: Path) -> None:
    user = Newcomer(tmp_path).makes()
    checked = user.types(*FENCEPOST, "check", "job.py")
    assert "It would start." in checked.stdout
    said = user.types(sys.executable, "job.py").stderr
    assert "fencepost: job orders is done: 1 epoch, 5 records in, 3 rows out (sqlite:spent 3)" in said
    user.types(sys.executable, "sample.py")
    user.types(sys.executable, "job.py")
    with closing(sqlite3.connect(user.folder / "spent.db")) as database:
        found = database.execute("SELECT customer, cents, orders FROM spent ORDER BY customer").fetchall()
    assert (25, totals(given(user.folder))) == (len(given(user.folder)), found)
    assert "passed" in user.types(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider").stdout


@pytest.mark.long
@pytest.mark.spark
def test_a_new_project_with_postgres_counts_right(tmp_path: Path, postgres: Postgres) -> None:
    dsn = postgres.create_database("init_project")
    user = Newcomer(tmp_path, POSTGRES=dsn).makes("--postgres")
    user.types(sys.executable, "job.py")
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT customer, cents, orders FROM spent ORDER BY customer").fetchall()
    assert totals(given(user.folder)) == found


@pytest.mark.long
@pytest.mark.spark
def test_a_new_project_with_kafka_counts_right(tmp_path: Path, broker: Broker) -> None:
    """The job finds Spark's Kafka connector by itself."""
    user = Newcomer(tmp_path, KAFKA=broker.servers).makes("--kafka")
    user.types(sys.executable, "send.py")
    user.types(sys.executable, "job.py")
    sent, counted = (read(broker, topic) for topic in ("orders", "spent"))
    newest = {row["customer"]: (row["customer"], row["cents"], row["orders"]) for row in counted}
    assert (20, totals(sent)) == (len(sent), sorted(newest.values()))


def read(broker: Broker, topic: str) -> list[dict[str, Any]]:
    settings = {"bootstrap.servers": broker.servers, "group.id": topic, "enable.partition.eof": True}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = []
    try:
        while (message := consumer.poll(30)) is not None and message.error() is None:
            found.append(message)
    finally:
        consumer.close()
    return [{**({"customer": one.key().decode()} if one.key() else {}), **json.loads(one.value())} for one in found]


@pytest.mark.parametrize("name", sorted(files()))
def test_nothing_is_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    done = CliRunner().invoke(cli, ["init", str(tmp_path)])
    assert isinstance(done.exception, BadConfig)
    assert "files_exist" == done.exception.code
    assert ["mine"] == [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = CliRunner().invoke(cli, ["init", str(tmp_path / "file" / "x")])
    assert isinstance(done.exception, BadConfig)
    assert "folder_not_writable" == done.exception.code


def test_the_requirements_name_packages_and_nothing_else() -> None:
    assert ["fencepost[spark]", "pytest"] == files()["requirements.txt"].splitlines()
