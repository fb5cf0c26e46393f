"""Two sinks of one job never overwrite each other's rows, whatever names and paths led both to one target."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fencepost as fp
from fencepost.contract import Session, Sink, Territory, check_apart
from fencepost.errors import BadConfig
from fencepost.testing import SinkDriver

ROWS = pa.schema({"k": pa.string(), "v": pa.int64()})
OTHER = pa.schema({"k": pa.string(), "w": pa.int64()})
Meet = Callable[..., bool]


@pytest.fixture
def meet() -> Iterator[Meet]:
    """Do two sinks of a job meet, by what a start says and by what a check says?"""
    opened: list[Session] = []

    def sessions(*sinks: Sink) -> list[Session]:
        opened.extend(sink.session("job") for sink in sinks)
        return opened[-len(sinks) :]

    def refused(found: list[Session]) -> bool:
        try:
            check_apart({str(number): session.territory() for number, session in enumerate(found)})
        except BadConfig as error:
            assert "target_twice" == error.code  # noqa: PT017 - nothing else is expected
            return True
        return False

    def answer(one: Sink, two: Sink, *, schemas: tuple[pa.Schema, pa.Schema] = (ROWS, ROWS)) -> bool:
        said = []
        for look in ("rehearse", "preflight", "rehearse"):
            found = sessions(one, two)
            for sink, session, schema in zip((one, two), found, schemas, strict=True):
                getattr(session, look)(schema, "append" if "append" in sink.capabilities.modes else "complete")
            said.append(refused(found))
            for session in found:
                session.close()
        assert said[1:] == [said[1]] * 2  # before the target exists, a rehearsal may not know yet
        assert said[1] or not said[0]
        return said[1]

    yield answer
    for session in opened:
        session.close()


@pytest.mark.parametrize(
    ("one", "two", "meets"),
    [
        (Territory("t", "append"), Territory("t", "append"), False),
        (Territory("t", "append"), Territory("u", "all"), False),
        (Territory("t", "append"), Territory("t", "all"), True),
        (Territory("t", "all"), Territory("t", "all"), True),
        (Territory("t", "append"), Territory("t", "key", frozenset("k"), frozenset("v")), True),
        (
            Territory("t", "key", frozenset("k"), frozenset("vw")),
            Territory("t", "key", frozenset("k"), frozenset("v")),
            True,
        ),
        (
            Territory("t", "key", frozenset("k"), frozenset("w")),
            Territory("t", "key", frozenset("k"), frozenset("v")),
            False,
        ),
        (
            Territory("t", "key", frozenset("k"), frozenset("w")),
            Territory("t", "key", frozenset("w"), frozenset("v")),
            True,
        ),
    ],
)
def test_only_sinks_that_append_or_fill_other_columns_share_a_place(one: Any, two: Any, meets: bool) -> None:
    assert (meets, meets) == (one.overlaps(two), two.overlaps(one))


@pytest.mark.parametrize("kind", [fp.SQLite, fp.DuckDB])
def test_a_file_is_one_file_by_every_path(
    kind: Any, meet: Meet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is fp.DuckDB:
        pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "x").mkdir()
    paths = ("out.db", "link/out.db", tmp_path / "x" / ".." / "out.db")
    for path in paths[1:2] if kind is fp.DuckDB else paths:
        assert meet(kind("out.db", table="t", key="k"), kind(path, table="T", key="k", name="two"))
        assert meet(kind("out.db", table="t", mode="replace"), kind(path, table="t", mode="replace", name="two"))
    assert meet(kind("out.db", table="t", mode="replace"), kind("link/out.db", table="t", name="two"))
    assert not meet(kind("out.db", table="t"), kind("link/out.db", table="t", name="two"))
    assert not meet(kind("out.db", table="t", key="k"), kind("link/out.db", table="u", key="k"))


def test_a_folder_is_one_folder_by_every_path(meet: Meet, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert meet(fp.Files(tmp_path / "out"), fp.Files(tmp_path / "link" / "out", name="two"))
    assert not meet(fp.Files(tmp_path / "out"), fp.Files(tmp_path / "out2", name="two"))


def test_two_sinks_that_append_to_one_table_keep_their_marks_apart(tmp_path: Path) -> None:
    drivers = [
        SinkDriver(fp.SQLite(path, table="t", name=name), tmp_path / name)
        for name, path in (("one", tmp_path / "out.db"), ("two", os.path.relpath(tmp_path / "out.db")))
    ]
    for driver in drivers:
        driver.start(ROWS)
    for epoch in range(2):
        for driver in drivers:
            driver.run(epoch, pa.table({"k": [driver.sink.name], "v": [epoch]}, ROWS))
    found = drivers[0].session.database.peek("job", "one", "t")  # type: ignore[attr-defined]
    assert found.mark is not None
    for driver in drivers:
        driver.session.close()
    with sqlite3.connect(tmp_path / "out.db") as reader:
        assert [("one", 0), ("one", 1), ("two", 0), ("two", 1)] == list(reader.execute("SELECT * FROM t ORDER BY 1, 2"))
        assert [("one", 1), ("two", 1)] == list(reader.execute("SELECT sink, epoch FROM fencepost_epoch ORDER BY 1"))
    reader.close()


def test_a_table_of_postgresql_is_one_table_by_every_name(postgres: Any, meet: Meet) -> None:
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(postgres.dsn, autocommit=True) as admin:
        admin.execute(
            "DROP SCHEMA IF EXISTS mine CASCADE; CREATE SCHEMA mine;"
            " CREATE TABLE mine.wide (k text PRIMARY KEY, v bigint, w bigint)"
        )
    path = f"{postgres.dsn} options='-c search_path=mine'"
    local = f"{postgres.dsn} application_name=other options='-c search_path=mine,public'"
    for table in ("t", "wide"):
        assert meet(
            fp.Postgres(table, dsn=path, key="k"), fp.Postgres(f"mine.{table}", dsn=postgres.dsn, key="k", name="two")
        )
        assert meet(fp.Postgres(table, dsn=path, key="k"), fp.Postgres(f'"{table}"', dsn=local, key="k", name="two"))
    assert not meet(fp.Postgres("t", dsn=path, key="k"), fp.Postgres("public.t_of_territory", dsn=path, key="k"))
    assert not meet(
        fp.Postgres("wide", dsn=path, key="k"),
        fp.Postgres("mine.wide", dsn=path, key="k", name="two"),
        schemas=(ROWS, OTHER),
    )


def test_a_table_of_mysql_is_one_table_by_every_address(mariadb: Any, meet: Meet) -> None:
    pytest.importorskip("pymysql")

    def sink(table: str, host: str, **settings: Any) -> fp.MySQL:
        who = {"database": "test", "user": "test", "password": "test", "port": mariadb.port}
        return fp.MySQL(table, host=host, key="k", **who, **settings)

    for table, meets in (("territory", True), ("territory2", False)):
        assert meets == meet(sink("territory", "127.0.0.1"), sink(table, "localhost", name="two"))


def test_keys_of_redis_are_one_set_by_prefix_and_hashes_share_them_field_by_field(
    redis_server: Any, meet: Meet
) -> None:
    pytest.importorskip("redis")
    one = fp.Redis(redis_server.url, key="k", prefix="a:", durable=True)

    def two(prefix: str = "a:", **settings: Any) -> fp.Redis:
        other = redis_server.url.replace("127.0.0.1", "localhost")
        return fp.Redis(other, key="k", prefix=prefix, name="two", durable=True, **settings)

    assert meet(one, two())
    assert meet(one, two(shape="string"))
    assert not meet(one, two("b:"))
    assert not meet(one, two(), schemas=(ROWS, OTHER))
    assert meet(two(shape="string"), two(shape="string"), schemas=(ROWS, OTHER))
    assert not meet(two(shape="counter"), two(shape="counter"))  # both add
