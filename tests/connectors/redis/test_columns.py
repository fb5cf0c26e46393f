"""Whole columns at once give what value by value gives, and commands are what redis-py would send."""

from __future__ import annotations

import datetime as dt
import random
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fencepost_proof.rig.redis import Redis as Server
from redis.connection import Connection

from fencepost import Redis
from fencepost.connectors.redis import session
from fencepost.connectors.redis.columns import (
    BYTES,
    PIECE,
    Words,
    command,
    one_by_one,
    row_words,
    texts,
    with_gaps,
    words,
)
from fencepost.connectors.redis.columns import packed as rows_as_one_word
from fencepost.connectors.table.database import RowsRefused
from fencepost.errors import EpochFailed, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.testing import SinkDriver

DICE = random.Random(5)
ANY_BITS = [struct.unpack("<d", DICE.randbytes(8))[0] for _ in range(3000)]
DECIMAL = [round(DICE.uniform(-1, 1) * 10 ** DICE.randint(-9, 20), DICE.randint(0, 9)) for _ in range(3000)]
EDGES = [float(f"{digits}e{power}") for digits in ("1", "-9.5", "9.999999999999999") for power in range(-8, 23)]
SPECIAL = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 5e-324, None]
YEARS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond that Python knows."""
MOMENTS = [*YEARS, 0, -1, None, *(DICE.randint(*YEARS) for _ in range(200))]
MOMENTS += [DICE.randint(-(10**10), 10**10) * 1_000_000 for _ in range(200)]

COLUMNS = {
    "doubles of any bits": pa.array(ANY_BITS),
    "doubles that people write": pa.array(DECIMAL + EDGES + SPECIAL),
    "whole doubles": pa.array([float(n) for n in range(-50, 50)] + [1e14, 1e15, 1e16, 2.0**60]),
    "floats": pa.array(DECIMAL + SPECIAL, pa.float32()),
    "no doubles": pa.array([None, None], pa.float64()),
    "integers": pa.array([-(2**63), 2**63 - 1, 0, None]),
    "large integers": pa.array([2**64 - 1, 0], pa.uint64()),
    "booleans": pa.array([True, False, None]),
    "moments": pa.array(MOMENTS, pa.timestamp("us")),
    "moments in a zone": pa.array(MOMENTS[2:], pa.timestamp("us", "Asia/Kolkata")),
    "seconds": pa.array([0, None, 10**9], pa.timestamp("s")),
    "nanoseconds": pa.array([0, 1000, None], pa.timestamp("ns")),
    "times": pa.array([dt.time(1, 2, 3), dt.time(1, 2, 3, 4), None]),
    "days": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    "decimals": pa.array([Decimal("0.0000001"), Decimal("-1.5"), None], pa.decimal128(30, 9)),
    "texts": pa.array(["", "ü\r\n", None, "a\0"]),
    "views": pa.array(["", "a text of more than twelve bytes", None], pa.string_view()),
    "bytes": pa.array([b"", b"\xff\r\n$", None]),
    "words": pa.array(["a", "b", None, "a"]).dictionary_encode(),
    "lists": pa.array([[1, None], [], None]),
    "nothing": pa.array([None, None]),
    "a slice": pa.array([None, 1.5, 2.0, 3e300, None, 7.0]).slice(1, 4),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_column_at_once_is_what_its_values_are_one_by_one(kind: str) -> None:
    column = COLUMNS[kind]
    found = texts("c", column)
    assert BYTES == found.type
    assert one_by_one(column).to_pylist() == found.to_pylist()


@pytest.mark.parametrize("moment", [YEARS[0] - 1, YEARS[1] + 1])
def test_moments_outside_of_four_digits_of_a_year_are_refused(moment: int) -> None:
    with pytest.raises(RowsRefused, match="do not fit") as refused:
        texts("c", pa.array([0, moment], pa.timestamp("us")))
    assert str(moment) not in str(refused.value)


def sent(*parts: Words) -> bytes:
    return b"".join(command(*parts))


def packed(*given: Any) -> bytes:
    return b"".join(Connection().pack_command(*given))


def test_commands_are_as_redis_py_packs_them() -> None:
    one, two = (
        pa.array(["x", "a\r\n", "", "ü" * 300, "y"]).cast(BYTES).slice(1, 3),
        pa.array([b"1", b"22", b""], BYTES),
    )
    rows = [value for row in zip(one.to_pylist(), two.to_pylist(), strict=True) for value in row]
    assert packed("EVAL", "text", 3, *rows) == sent(words("EVAL", b"text", 3), row_words([one, two]))
    assert packed("EVAL") == sent(words("EVAL"), row_words([]), row_words([one.slice(0, 0)]))
    large = pa.array([b"x" * (2 * PIECE + 1)], BYTES)
    assert packed("SET", "k", large[0].as_py()) == sent(words("SET", "k"), row_words([large]))


def test_gaps_are_told_by_a_mask() -> None:
    columns = [pa.array(values, BYTES) for values in ([b"a", None, None], [None, b"b", None])]
    assert [[b"10", b"01", b"00"], [b"a", b"", b""], [b"", b"b", b""]] == [
        each.to_pylist() for each in with_gaps(columns)
    ]


def test_packed_rows_are_what_the_server_unpacks(reader: Any) -> None:
    lengths = (0, 1, 255, 65_535, 65_536, 70_000)
    short, long = (pa.array(values, BYTES) for values in ([b"a", b"\xff\0", b""], [b"x" * n for n in lengths]))
    for tables in ([[short.slice(1), short.slice(0, 2)], [long]], [[short], [long.slice(0, 0)]], [[], []]):
        columns = [[column.to_pylist() for column in table] for table in tables]
        rows = [value for table in columns for row in zip(*table, strict=True) for value in row]
        assert rows == reader.eval("return cmsgpack.unpack(ARGV[1])", 0, rows_as_one_word(*tables))


def started(sink: Redis, folder: Path, table: pa.Table) -> SinkDriver:
    driver = SinkDriver(sink, folder)
    driver.start(table.schema)
    return driver


@pytest.fixture(params=[0, session.MOST_KEPT], ids=["read again", "kept"])
def _kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MOST_KEPT", request.param)


@pytest.mark.usefixtures("_kept")
@pytest.mark.parametrize("width", [1, 50, 51, 1000])
def test_hashes_of_any_width_with_and_without_gaps(tmp_path: Path, server: Server, reader: Any, width: int) -> None:
    rows = [{"k": str(i), **{f"c{j}": i * j if (i * j) % 5 else None for j in range(width)}} for i in range(12)]
    table = pa.Table.from_pylist(rows, pa.schema([("k", pa.string()), *((f"c{j}", pa.int64()) for j in range(width))]))
    driver = started(Redis(server.url, key="k", prefix="p:", chunk_rows=5), tmp_path, table)
    for i in range(12):
        reader.hset(f"p:{i}", mapping={"c0": "old", "own": "stays"})
    driver.run(0, table)
    full = pa.table({"k": ["f"], **{f"c{j}": [j] for j in range(width)}})
    driver.run(1, full)
    driver.session.close()
    for row in rows:
        values = {
            name.encode(): str(value).encode() for name, value in row.items() if value is not None and name != "k"
        }
        assert values | {b"own": b"stays"} == reader.hgetall(f"p:{row['k']}")
    assert {f"c{j}".encode(): str(j).encode() for j in range(width)} == reader.hgetall("p:f")


@pytest.mark.parametrize("rows", [999, 1000, 1001, 2500])
def test_strings_are_written_and_removed_by_the_thousand(
    tmp_path: Path, server: Server, reader: Any, rows: int
) -> None:
    keys = [f"{i:05}" for i in range(2 * rows)]
    table = pa.table({"k": keys, "v": [None if i % 2 else f"v{i}" for i in range(2 * rows)]})
    reader.mset({f"p:{key}": "old" for key in keys})
    driver = started(Redis(server.url, key="k", shape="string", prefix="p:"), tmp_path, table)
    driver.run(0, table)
    driver.session.close()
    found = reader.mget([f"p:{key}" for key in keys])
    assert [None if i % 2 else f"v{i}".encode() for i in range(2 * rows)] == found


@pytest.mark.parametrize("missing", ["+zrem", "+zadd", "+zcard"])
def test_rights_are_asked_for_rows_with_gaps_too(tmp_path: Path, server: Server, reader: Any, missing: str) -> None:
    """In one sorted set, whose key is the same for both kinds of rows."""
    table = pa.table({"k": ["a", "b"], "v": [1, None]})
    allowed = "-@all +@all"
    server.cli("ACL", "SETUSER", "app", "reset", "on", "nopass", "~*", *allowed.split(), missing.replace("+", "-"))
    url = server.url.replace("redis://", "redis://app:x@")
    driver = started(Redis(url, shape="sorted_set", member="k", score="v", prefix="z"), tmp_path, table)
    handle = driver.pre_commit(0, table)
    with pytest.raises(TargetRefused, match="permitted"):
        driver.vote(0, handle)
    assert Outcome.IN_DOUBT == driver.commit(0, handle)
    assert not reader.exists("z")
    driver.session.close()


@pytest.mark.parametrize("bad", range(5))
def test_a_refused_chunk_among_others_leaves_the_connection_in_step(
    tmp_path: Path, server: Server, reader: Any, bad: int
) -> None:
    table = pa.table({"k": [str(i) for i in range(5)], "v": [1] * 5})
    driver = started(Redis(server.url, key="k", shape="counter", prefix="p:", chunk_rows=1), tmp_path, table)
    connections = reader.info("stats")["total_connections_received"]
    reader.rpush(f"p:{bad}", "x")
    handle = driver.pre_commit(0, table)
    with pytest.raises(EpochFailed, match="a key already holds a list"):
        driver.vote(0, handle)
    assert [f"p:{bad}".encode()] == reader.keys("p:*")
    reader.delete(f"p:{bad}")
    driver.run(0, table)
    assert connections == reader.info("stats")["total_connections_received"]
    driver.session.close()
    assert [b"1"] * 5 == reader.mget([f"p:{i}" for i in range(5)])
