"""Every block of Python in the documentation runs as printed, and the shell sessions print what the pages say.

The blocks of a page are one program, in one folder; all pages share one Spark session. Two things differ from a user's
machine: relative paths are made whole before Spark sees them (its JVM was started elsewhere), and `job.run()` ends when
there is nothing left to read.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from fencepost_proof.checkers.readers import in_delta
from pages import BLOCKS, PYTHON, ROOT, text_of
from pyspark.sql.streaming.readwriter import DataStreamReader

import fencepost as fp

ORDERS = '{"id": 1, "customer": "anna", "amount": 25}\n{"id": 2, "customer": "ben", "amount": 40}\n'
SETUP = {
    "docs/CLUSTERS.md": "import fencepost as fp",
    "docs/STATE.md": """
import fencepost as fp
job = fp.Job("state", checkpoint="checkpoints/state")
payments = job.read(fp.Files("payments", format="json", schema="account STRING, amount BIGINT"))
""",
    "docs/DATABASES.md": """
import fencepost as fp
job = fp.Job("databases", checkpoint="checkpoints/databases")
counts = job.read(fp.Files("lines", format="text")).selectExpr("value AS word").groupBy("word").count()
""",
    "docs/OPERATIONS.md": """
import fencepost as fp
from unittest.mock import Mock
gauge = Mock()
job = fp.Job("operations", checkpoint="checkpoints/operations")
""",
}
"""What a page takes as known before its first block."""
ALONE = {"README.md", "docs/tutorials/first-job.md", "docs/tutorials/write-a-sink.md"}
"""Programs for a shell: see the sessions below, and tests/testing/test_tutorial.py for the last."""
SERVERS = {f"docs/how-to/{name}.md" for name in ("kafka", "postgresql", "mysql", "redis", "cassandra")}
"""Each has a test of its own, with its server."""

Page = Callable[..., dict[str, Any]]


@pytest.fixture
def run_page(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """Run a page's blocks, one after the other, in a folder with some input; what they defined."""
    for folder, text in (("orders", ORDERS), ("lines", "to be or not to be\n"), ("payments", PAYMENTS)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.json").write_text(text)
    monkeypatch.chdir(tmp_path)
    load, run = DataStreamReader.load, fp.Job.run
    whole = lambda reader, path=None, **more: load(reader, path and str(Path(path).absolute()), **more)  # noqa: E731
    monkeypatch.setattr(DataStreamReader, "load", whole)
    monkeypatch.setattr(fp.Job, "run", lambda job, until="available": run(job, until=until))

    def run_it(page: str, replaced: Mapping[str, str] | None = None) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "__main__"}
        run_text(SETUP.get(page, ""), page, names)
        for block in PYTHON:
            if block.page == page and block.is_run:
                text = block.text
                for old, new in (replaced or {}).items():
                    assert any(old in other.text for other in PYTHON if other.page == page), old
                    text = text.replace(old, new)
                run_text("\n" * (block.line - 1) + text, page, names)
        return names

    return run_it


PAYMENTS = '{"account": "a", "amount": 25}\n{"account": "a", "amount": 5}\n'


def run_text(text: str, page: str, names: dict[str, Any]) -> None:
    """As Python runs a file: an error names the page and its line."""
    code = compile(text, str(ROOT / page), "exec")
    partial(exec, code, names)()


def rows(file: Path, table: str) -> list[tuple[Any, ...]]:
    """Of an SQLite table."""
    return sorted(sqlite3.connect(file).execute(f"SELECT * FROM {table}"))  # noqa: S608 - the page's own name


def test_every_page_with_python_is_run_by_some_test() -> None:
    pages = {block.page for block in PYTHON if block.is_run}
    assert pages == set(PLAIN) | ALONE | SERVERS | {"docs/migrate/foreachbatch.md"}


PLAIN = sorted({block.page for block in PYTHON if block.is_run} - ALONE - SERVERS - {"docs/migrate/foreachbatch.md"})


@pytest.mark.parametrize("page", PLAIN)
def test_the_page_runs(page: str, run_page: Page) -> None:
    run_page(page)


def test_from_foreach_batch_runs_and_the_plain_checkpoint_is_adopted(run_page: Page, tmp_path: Path) -> None:
    run_page("docs/migrate/foreachbatch.md", {"ck/plain": str(tmp_path / "ck/plain")})
    orders = [(1, "anna", 25), (2, "ben", 40)]
    assert orders == rows(tmp_path / "plain.db", "orders")
    assert orders == rows(tmp_path / "shop.db", "orders")
    assert [("anna", 25), ("ben", 40)] == rows(tmp_path / "job.db", "totals")


def test_the_kafka_page_runs(run_page: Page, broker: Any, topic: str) -> None:
    counts = broker.create_topic(f"{topic}-counts", partitions=1)
    producer = Producer({"bootstrap.servers": broker.servers})
    producer.produce(topic, b"to be or not to be")
    assert producer.flush(30) == 0
    run_page(
        "docs/how-to/kafka.md", {"localhost:9092": broker.servers, '"lines"': f'"{topic}"', '"counts"': f'"{counts}"'}
    )
    settings = {"bootstrap.servers": broker.servers, "group.id": topic, "auto.offset.reset": "earliest"}
    reader = Consumer({**settings, "isolation.level": "read_committed"})
    reader.subscribe([counts])
    try:
        seen = {reader.poll(30).key() for _ in range(4)}
    finally:
        reader.close()
    assert {b"to", b"be", b"or", b"not"} == seen


def test_the_postgresql_page_runs(run_page: Page, postgres: Any, redis_server: Any, monkeypatch: Any) -> None:
    import psycopg  # noqa: PLC0415 - only here

    monkeypatch.setenv("POSTGRES", postgres.dsn_of(database := "docs_pages"))
    monkeypatch.setenv("REDIS", redis_server.url)
    postgres.create_database(database)
    run_page("docs/how-to/postgresql.md", {'fp.Postgres("orders", dsn=POSTGRES))\njob.write(totals, fp.Redis':
        'fp.Postgres("orders_too", dsn=POSTGRES))\njob.write(totals, fp.Redis'})  # fmt: skip
    with psycopg.connect(postgres.dsn_of(database)) as shop:
        totals = shop.execute("SELECT customer, total::text FROM totals ORDER BY 1").fetchall()
    assert [("anna", "25.00"), ("ben", "40.00")] == totals


def test_the_mysql_page_runs(run_page: Page, mariadb: Any, monkeypatch: Any) -> None:
    named = {"HOST": "127.0.0.1", "PORT": str(mariadb.port), "USER": "test", "PASSWORD": "test", "DATABASE": "test"}
    for name, value in named.items():
        monkeypatch.setenv(f"MYSQL_{name}", value)
    try:
        run_page("docs/how-to/mysql.md", {'"totals"': '"docs_totals"'})
        assert "anna\t25.00\nben\t40.00\n" == mariadb.client("SELECT * FROM docs_totals ORDER BY customer")
    finally:
        mariadb.client("DROP TABLE IF EXISTS docs_totals")


def test_the_redis_page_runs(run_page: Page, redis_server: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("REDIS", redis_server.url)
    run_page("docs/how-to/redis.md")
    assert "25" in redis_server.cli("HGETALL", "customer:anna")


def test_the_cassandra_page_runs(run_page: Page, cassandra: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("CASSANDRA_HOST", "127.0.0.1")
    monkeypatch.setenv("CASSANDRA_PORT", str(cassandra.port))
    cassandra.run("CREATE KEYSPACE docs WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    run_page("docs/how-to/cassandra.md", {"shop.totals": "docs.totals"})
    assert {("anna", 25), ("ben", 40)} == {
        tuple(row) for row in cassandra.run("SELECT customer, total FROM docs.totals")
    }


def test_a_block_that_fails_is_found(run_page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    (first, *_) = [block for block in PYTHON if block.page == "docs/how-to/sqlite.md"]
    wrong = [type(first)(first.page, first.line, first.info, first.text.replace('"amount"', '"amuont"'))]
    monkeypatch.setattr("test_docs.PYTHON" if "test_docs" in sys.modules else f"{__name__}.PYTHON", wrong)
    with pytest.raises(Exception, match="amuont"):
        run_page("docs/how-to/sqlite.md")


END = "end of the block"


def session(page: str, folder: Path, first: str, last: str) -> None:
    """Save a page's program, run its commands from one to another in a shell, compare what they print with the page."""
    (code,) = [block for block in PYTHON if block.page == page]
    (folder / re.match(r"# (\w+\.py)", code.text)[1]).write_text(code.text)
    shells = [block for block in BLOCKS if block.page == page and not block.info]
    told = [line for block in shells for line in [*block.text.splitlines(), END]]
    begin = next(n for n, line in enumerate(told) if line.startswith(f"$ {first}"))
    end = next(n for n, line in enumerate(told) if line.startswith(f"$ {last}"))
    after = next((n for n, line in enumerate(told[end + 1 :], end + 1) if line.startswith(("$ ", END))), len(told))
    commands, wanted = [], []
    quiet = False
    for line in told[begin:after]:
        if line.startswith("$ "):
            quiet = line.startswith(
                ("$ fencepost status", "$ fencepost verify")
            )  # times and numbers: run, not compared
            commands.append(line[2:] + (" >&2 || true" if quiet else ""))
        elif not quiet and line != END:
            wanted.append(line)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    printed = subprocess.run(
        [shutil.which("bash") or "bash", "-ec", "\n".join(commands)],
        cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (0, wanted) == (printed.returncode, printed.stdout.splitlines()), printed.stderr[-2000:]


@pytest.mark.spark
def test_the_ten_lines_run_as_printed(tmp_path: Path) -> None:
    session("README.md", tmp_path, "mkdir lines", "python -c")
    assert "('to', 2)" in text_of("README.md")


SQLITE = 'fp.SQLite("words.db", table="counts", key="word")'


@pytest.mark.long
@pytest.mark.spark
def test_the_ten_lines_run_with_the_delta_table_that_stands_below_them(tmp_path: Path) -> None:
    [block] = [block for block in PYTHON if block.page == "README.md"]
    sink = 'fp.Delta("lake/counts", key="word")'
    assert f"With `{sink}` in its place" in text_of("README.md")
    assert 1 == block.text.count(SQLITE)
    (tmp_path / "wordcount.py").write_text(block.text.replace(SQLITE, sink))
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "1.txt").write_text("to be or not to be\n")
    subprocess.run([sys.executable, "wordcount.py"], cwd=tmp_path, check=True, timeout=300)
    assert [("be", 2), ("not", 1), ("or", 1), ("to", 2)] == sorted(
        in_delta(str(tmp_path / "lake/counts"), "word, count")
    )


@pytest.mark.long
@pytest.mark.spark
def test_the_tutorial_runs_as_printed(tmp_path: Path) -> None:
    session("docs/tutorials/first-job.md", tmp_path, "mkdir orders", "fencepost verify")
