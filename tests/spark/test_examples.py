"""The examples with servers run as a newcomer types them; tests/test_docs.py sees that the pages print the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.rig.postgres import Postgres
from fencepost_proof.rig.redis import Redis
from redis import Redis as Client

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextmanager
def running(
    folder: Path, name: str, change: tuple[str, str] = ("", ""), **told: str
) -> Iterator[subprocess.Popen[str]]:
    """An example, started as a newcomer types it: nobody helps it to any jar. Ctrl-C ends it, in order."""
    code = (EXAMPLES / name).read_text()
    assert change[0] in code
    (folder / name).write_text(code.replace(*change))
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen(
            [sys.executable, name], cwd=folder, env={**os.environ, **told}, stdout=said, stderr=said, text=True
        )
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert 0 == process.wait(60), (folder / "said").read_text()
        finally:
            process.kill()
            process.wait()
    assert "was stopped: " in (folder / "said").read_text()


def until(expected: object, look: Callable[[], object], process: subprocess.Popen[str], folder: Path) -> None:
    """Ask, and ask again: neither target calls anybody."""
    deadline = time.monotonic() + 200
    while (found := look()) != expected:
        assert process.poll() is None, (folder / "said").read_text()
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_the_kafka_example_runs_as_printed_and_finds_its_connector(tmp_path: Path, broker: Broker) -> None:
    for name in ("lines", "counts"):
        broker.create_topic(name, partitions=1)
    producer = Producer({"bootstrap.servers": broker.servers})
    producer.produce("lines", "to be or not to be")
    assert 0 == producer.flush(30)
    counts: dict[str, int] = {}
    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": "g", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition("counts", 0, OFFSET_BEGINNING)])

    def look() -> dict[str, int]:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            counts[message.key().decode()] = json.loads(message.value())["count"]
        return counts

    with running(tmp_path, "kafka_wordcount.py", ("localhost:9092", broker.servers)) as process:
        until({"to": 2, "be": 2, "or": 1, "not": 1}, look, process, tmp_path)
    consumer.close()


@pytest.mark.long
def test_the_databases_example_runs_as_printed(tmp_path: Path, postgres: Postgres, redis_server: Redis) -> None:
    dsn = postgres.create_database("readme")
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "1.json").write_text(
        '{"id": 1, "customer": "anna", "amount": 12.5}\n{"id": 2, "customer": "anna", "amount": 7.25}\n'
    )
    client = Client.from_url(redis_server.url, decode_responses=True)

    def look() -> tuple[list[int], str | None]:
        with psycopg.connect(dsn) as connection:
            there = connection.execute("SELECT to_regclass('orders')").fetchone() != (None,)
            ids = [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY id")] if there else []
        return ids, client.hget("totals:anna", "total")  # type: ignore[return-value]  # it may also be awaited

    with running(tmp_path, "databases.py", POSTGRES=dsn, REDIS=redis_server.url) as process:
        until(([1, 2], "19.75"), look, process, tmp_path)
    client.close()
