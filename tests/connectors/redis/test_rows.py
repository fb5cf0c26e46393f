"""Which keys and values rows become, and which rows are refused before anything is written."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fencepost_proof.rig.redis import Redis as Server

from fencepost import Redis
from fencepost.connectors.redis.server import LARGEST
from fencepost.errors import BadConfig, EpochFailed, OperatorNeeded, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch
from fencepost.testing import SinkDriver

URL = "redis://localhost"


def started(sink: Redis, folder: Path, table: pa.Table, **owner: Any) -> SinkDriver:
    driver = SinkDriver(sink, folder, **owner)
    driver.start(table.schema)
    return driver


def write(sink: Redis, folder: Path, table: pa.Table) -> None:
    driver = started(sink, folder, table)
    driver.run(0, table)
    driver.session.close()


EVERYTHING = pa.table(
    {
        "k": ["one", "none"],
        "int": [2**63 - 1, None],
        "float": [0.1, float("nan")],
        "bool": [True, False],
        "decimal": pa.array([Decimal("1.10"), None], pa.decimal128(10, 2)),
        "when": pa.array([dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC), None], pa.timestamp("us", "Europe/Berlin")),
        "day": [dt.date(2024, 2, 29), None],
        "text": ["ü\n\0", ""],
        "bytes": [b"\xff\0", None],
        "list": [[1, None], None],
    }
)


def test_a_hash_holds_every_value_as_exact_text_and_no_field_for_null(
    tmp_path: Path, server: Server, reader: Any
) -> None:
    reader.hset("all:none", mapping={"int": "7", "other": "stays"})
    write(Redis(server.url, key="k", prefix="all:"), tmp_path, EVERYTHING)
    assert {
        b"int": b"9223372036854775807",
        b"float": b"0.1",
        b"bool": b"true",
        b"decimal": b"1.10",
        b"when": b"2024-02-29T12:00:00+00:00",
        b"day": b"2024-02-29",
        b"text": "ü\n\0".encode(),
        b"bytes": b"\xff\0",
        b"list": b"[1,null]",
    } == reader.hgetall("all:one")
    assert {b"other": b"stays", b"float": b"NaN", b"bool": b"false", b"text": b""} == reader.hgetall("all:none")


def test_json_holds_the_row_without_its_key(tmp_path: Path, server: Server, reader: Any) -> None:
    write(Redis(server.url, key="k", prefix="all:", shape="json"), tmp_path, EVERYTHING)
    found = json.loads(reader.get("all:one"))
    assert {"int": 2**63 - 1, "decimal": "1.10", "bytes": "/wA=", "list": [1, None]}.items() <= found.items()
    assert "k" not in found
    assert json.loads(reader.get("all:none"))["int"] is None


def test_null_removes_a_string_and_a_member(tmp_path: Path, server: Server, reader: Any) -> None:
    for driver in (
        started(Redis(server.url, key="k", shape="string", prefix="s:"), tmp_path, pairs([1])),
        started(Redis(server.url, shape="sorted_set", member="k", score="v", prefix="z"), tmp_path, pairs([1])),
    ):
        driver.run(0, pairs([1, 2, 3]))
        driver.run(1, pairs([None, 5]))
        driver.session.close()
    assert [None, b"5", b"3"] == reader.mget("s:0", "s:1", "s:2")
    assert [(b"2", 3.0), (b"1", 5.0)] == reader.zrange("z", 0, -1, withscores=True)


def pairs(values: list[Any]) -> pa.Table:
    return pa.table({"k": [str(i) for i in range(len(values))], "v": pa.array(values, pa.int64())})


def test_a_column_may_name_the_sorted_set(tmp_path: Path, server: Server, reader: Any) -> None:
    table = pa.table({"game": ["a", "b", "a"], "who": ["x", "x", "x"], "points": [1.5, float("inf"), -0.25]})
    sink = Redis(server.url, key="game", prefix="top:", shape="sorted_set", member="who", score="points")
    write(sink, tmp_path, table)
    assert [(b"x", -0.25)] == reader.zrange("top:a", 0, -1, withscores=True)
    assert [(b"x", float("inf"))] == reader.zrange("top:b", 0, -1, withscores=True)


def test_keys_of_several_columns_never_fall_together(tmp_path: Path, server: Server, reader: Any) -> None:
    values = ["a:b", "a", "%3A", "", ":", "a%", "\n", "b"]
    rows = [(one, other) for one in values for other in values]
    table = pa.table({"a": [a for a, _ in rows], "b": [b for _, b in rows], "v": list(range(len(rows)))})
    write(Redis(server.url, key=("a", "b"), prefix="p:", shape="string"), tmp_path, table)
    found = {int(reader.get(key)) for key in reader.keys("p:*")}
    assert set(range(len(rows))) == found
    assert b"1" == reader.get("p:a%3Ab:a")


def test_a_key_of_one_column_is_its_value_as_it_is(tmp_path: Path, server: Server, reader: Any) -> None:
    keys = [b"a:b%", b"\xff\0\n", b"", b"*{x}"]
    table = pa.table({"k": keys, "v": [1, 2, 3, 4]})
    write(Redis(server.url, key="k", prefix="p:", shape="string"), tmp_path, table)
    assert {b"p:" + key for key in keys} == {*reader.keys("p:*")}


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_minus_zero_is_the_key_zero_as_in_spark(tmp_path: Path, server: Server, reader: Any, kind: Any) -> None:
    table = pa.table({"k": pa.array([0.0, -0.0, -0.5], kind), "v": [1, 2, 3]})
    write(Redis(server.url, key="k", prefix="p:", shape="string"), tmp_path, table)
    assert {b"p:0.0": b"2", b"p:-0.5": b"3"} == {key: reader.get(key) for key in reader.keys("p:*")}


def test_of_rows_with_one_key_the_one_with_the_greatest_order_is_written(
    tmp_path: Path, server: Server, reader: Any
) -> None:
    table = pa.table({"k": ["a", "b", "a", "a"], "v": ["1", "2", "3", "4"], "at": [1, 1, 9, 5]})
    write(Redis(server.url, key="k", prefix="s:", shape="string", order_by="at"), tmp_path, table)
    assert [b"3", b"2"] == reader.mget("s:a", "s:b"), "and the order itself is not"
    write(Redis(server.url, key="k", prefix="h:", order_by="at"), tmp_path, table)
    assert {b"v": b"3", b"at": b"9"} == reader.hgetall("h:a")
    scores = Redis(server.url, prefix="z", shape="sorted_set", member="k", score="at", order_by="v", name="z")
    write(scores, tmp_path, table)
    assert [(b"b", 1.0), (b"a", 5.0)] == reader.zrange("z", 0, -1, withscores=True)


@pytest.mark.parametrize("chunk_rows", [1, 10_000])
def test_a_row_marked_as_deleted_removes_what_it_would_write(
    tmp_path: Path, server: Server, reader: Any, chunk_rows: int
) -> None:
    table = pa.table({"k": ["a", "b", "b", "c"], "v": [1, 2, 3, 4], "gone": [False, True, False, True]})
    reader.hset("h:c", mapping={"v": "1", "other": "stays"})
    reader.mset({"s:c": "1", "j:c": "1"})
    reader.zadd("z", {"c": 1, "other": 1})
    settings: dict[str, Any] = {"deletes": "gone", "order_by": "v", "chunk_rows": chunk_rows}
    write(Redis(server.url, key="k", prefix="h:", **settings), tmp_path, table)
    assert [{b"v": b"1"}, {b"v": b"3"}, {b"other": b"stays"}] == [reader.hgetall(f"h:{k}") for k in "abc"]
    write(Redis(server.url, key="k", prefix="j:", shape="json", **settings), tmp_path, table)
    assert [b'{"v":1}', b'{"v":3}', None] == reader.mget("j:a", "j:b", "j:c")
    write(Redis(server.url, key="k", prefix="s:", shape="string", **settings), tmp_path, table)
    assert [b"1", b"3", None] == reader.mget("s:a", "s:b", "s:c")
    scores = Redis(server.url, prefix="z", shape="sorted_set", member="k", score="v", name="z", **settings)
    write(scores, tmp_path, table)
    assert [(b"a", 1.0), (b"other", 1.0), (b"b", 3.0)] == reader.zrange("z", 0, -1, withscores=True)


@pytest.mark.parametrize("chunk_rows", [1, 2, 10_000])
def test_of_one_key_twice_in_an_epoch_the_last_row_is_written_once(
    tmp_path: Path, server: Server, reader: Any, chunk_rows: int
) -> None:
    table = pa.table({"k": ["a", "b", "a", "c", "a"], "v": [1, 2, 3, 4, None]})
    driver = started(Redis(server.url, key="k", prefix="p:", shape="string", chunk_rows=chunk_rows), tmp_path, table)
    reader.config_resetstat()
    driver.run(0, table)
    driver.session.close()
    assert [b"p:b", b"p:c"] == sorted(reader.keys("p:*"))
    calls = reader.info("commandstats")
    chunks = {1: 2, 2: 1, 10_000: 1}[chunk_rows]
    assert (chunks, 1) == (calls["cmdstat_mset"]["calls"], calls["cmdstat_del"]["calls"])
    driver = started(Redis(server.url, key="k", prefix="q:", shape="counter", chunk_rows=chunk_rows), tmp_path, table)
    driver.run(0, pa.table({"k": ["a", "b", "a"], "v": [2**62, 5, 2**62 - 10_000]}))
    driver.session.close()
    assert [str(2**63 - 10_000).encode(), b"5"] == reader.mget("q:a", "q:b")
    assert 2 == reader.info("commandstats")["cmdstat_incrby"]["calls"]


REFUSED = {
    "null key": ({}, {"k": ["a", None], "v": [1, 2]}, "key column 'k' is NULL"),
    "NaN key": ({}, {"k": [1.0, float("nan")], "v": [1, 2]}, "key column 'k' is NULL or NaN"),
    "our own key": ({"prefix": ""}, {"k": ["a", "fencepost:mark:job:w"], "v": [1, 2]}, "reserved by fencepost"),
    "another kind": ({}, {"k": ["a", "list"], "v": [1, 2]}, "a key already holds a list"),
    "string over hash": ({"shape": "string"}, {"k": ["a", "hash"], "v": [1, 2]}, "a key already holds a hash"),
    "hash over string": ({}, {"k": ["a", "text"], "v": [1, 2]}, "a key already holds a string"),
    "counter on text": ({"shape": "counter"}, {"k": ["a", "text"], "v": [1, 2]}, "not a whole number"),
    "counter on 1.5": ({"shape": "counter"}, {"k": ["a", "real"], "v": [1, 2]}, "not a whole number"),
    "counter on a long text": ({"shape": "counter"}, {"k": ["a", "long"], "v": [1, 2]}, "not a whole number"),
    "counter full": ({"shape": "counter"}, {"k": ["a", "full"], "v": [1, 1]}, "64 bits"),
    "counter full below": ({"shape": "counter"}, {"k": ["a", "low"], "v": [1, -1]}, "64 bits"),
    "sum too large": ({"shape": "counter"}, {"k": ["a", "b", "b"], "v": [1, 2**62, 2**62]}, "64 bits"),
    "null to add": ({"shape": "counter"}, {"k": ["a", "b"], "v": [1, None]}, "which a counter cannot add"),
    "NaN score": ({"shape": "sorted_set"}, {"k": ["a", "b"], "v": [1.0, float("nan")]}, "NaN"),
    "coarse score": ({"shape": "sorted_set"}, {"k": ["a", "b"], "v": [1, 2**53 + 1]}, "2^53"),
    "nanoseconds": ({}, {"k": ["a", "b"], "v": pa.array([1, 2], pa.timestamp("ns"))}, "do not fit"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rows_that_do_not_fit_fail_the_vote_and_nothing_is_written(
    tmp_path: Path, server: Server, reader: Any, case: str
) -> None:
    settings, columns, words = REFUSED[case]
    table = pa.table(columns)
    settings = {"key": "k", "prefix": "p:", "chunk_rows": 1, "name": "w"} | settings
    if settings.get("shape") == "sorted_set":
        settings |= {"key": (), "member": "k", "score": "v"}
    reader.rpush("p:list", "x")
    reader.hset("p:hash", "v", "x")
    texts = {"p:text": "s3cret", "p:real": "1.5", "p:long": "1" * 21, "p:full": 2**63 - 10, "p:low": 10 - 2**63}
    reader.mset(texts)
    driver = started(Redis(server.url, **settings), tmp_path, table)
    before = {*reader.keys()}
    with pytest.raises(EpochFailed, match=words.replace("^", r"\^")) as failed:
        driver.vote(0, driver.pre_commit(0, table))
    assert "rows_refused" == failed.value.code
    assert before == {*reader.keys()}
    assert "s3cret" not in str(failed.value)
    with pytest.raises(EpochFailed):
        driver.session.write(Epoch(0), driver.rows(0, table))
    driver.session.close()


def test_a_key_that_changed_its_kind_after_the_decision_needs_an_operator_and_leaves_no_half(
    tmp_path: Path, server: Server, reader: Any
) -> None:
    table = pairs([1, 2, 3])
    driver = started(Redis(server.url, key="k", shape="counter", prefix="p:"), tmp_path, table)
    handle = driver.pre_commit(0, table)
    driver.vote(0, handle)
    reader.set("p:2", "s3cret")
    with pytest.raises(OperatorNeeded) as refused:
        driver.commit(0, handle)
    assert "apply_refused" == refused.value.code
    assert "s3cret" not in str(refused.value)
    assert [b"p:2"] == reader.keys("p:*")
    reader.delete("p:2")
    assert Outcome.DONE == driver.commit(0, handle)
    assert [b"1", b"2", b"3"] == reader.mget("p:0", "p:1", "p:2")
    driver.session.close()


def test_large_values_go_alone_and_too_large_ones_are_refused(
    tmp_path: Path, server: Server, reader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = "x" * (10 * 1024 * 1024)
    table = pa.table({"k": ["a", "b", "c"], "v": ["1", large, "3"]})
    sink = Redis(server.url, key="k", shape="string", prefix="p:")
    monkeypatch.setattr("fencepost.connectors.redis.sink.CHUNK_BYTES", 1024 * 1024)
    driver = started(sink, tmp_path, table)
    driver.run(0, table)
    assert [1, len(large), 1] == [reader.strlen(f"p:{key}") for key in "abc"]
    driver.session.close()
    reader.config_set("proto-max-bulk-len", 1024 * 1024)
    driver = started(sink, tmp_path, table)
    with pytest.raises(EpochFailed, match="more than 1048576 bytes"):
        driver.vote(1, driver.pre_commit(1, table))
    driver.session.close()
    reader.config_set("proto-max-bulk-len", LARGEST)


def test_plain_writes_never_set_a_value_back(tmp_path: Path, server: Server, reader: Any) -> None:
    sink = Redis(server.url, key="k", shape="string", prefix="p:", chunk_rows=1)
    old, new = started(sink, tmp_path, pairs([1])), started(sink, tmp_path, pairs([1]), writer=2)
    old.session.write(Epoch(0), old.rows(0, pairs([1, 1])))
    new.session.write(Epoch(0), new.rows(0, pairs([2, 2])))
    new.session.write(Epoch(1), new.rows(1, pairs([3, 3])))
    with pytest.raises(OperatorNeeded, match="target_ahead"):
        old.session.write(Epoch(0), old.rows(0, pairs([1, 1])))
    assert [b"3", b"3"] == reader.mget("p:0", "p:1")
    old.session.close()
    new.session.close()
    other = started(sink, tmp_path, pairs([1]), lineage="cccccccc-0000-4000-8000-000000000003")
    other.session.write(Epoch(0), other.rows(0, pairs([4, 4])))
    assert [b"4", b"4"] == reader.mget("p:0", "p:1")
    other.session.close()


def test_a_job_that_becomes_exactly_once_starts_after_its_plain_writes(
    tmp_path: Path, server: Server, reader: Any
) -> None:
    driver = started(Redis(server.url, key="k", shape="string", prefix="p:"), tmp_path, pairs([1]))
    driver.session.write(Epoch(0), driver.rows(0, pairs([1])))
    driver.run(0, pairs([2]))
    assert b"2" == reader.get("p:0")
    driver.session.close()


MISFITS = {
    "no such key": ({"key": "x"}, {"k": pa.string(), "v": pa.int64()}, "key_not_in_rows"),
    "only a key": ({}, {"k": pa.string()}, "columns_do_not_fit"),
    "two values": ({"shape": "string"}, {"k": pa.string(), "v": pa.int64(), "w": pa.int64()}, "columns_do_not_fit"),
    "too many": ({}, {f"c{i}": pa.int64() for i in range(1001)} | {"k": pa.string()}, "columns_do_not_fit"),
    "nested key": ({}, {"k": pa.list_(pa.int64()), "v": pa.int64()}, "key_type"),
    "float counter": ({"shape": "counter"}, {"k": pa.string(), "v": pa.float64()}, "counter_type"),
    "decimal counter": ({"shape": "counter"}, {"k": pa.string(), "v": pa.decimal128(9, 2)}, "counter_type"),
    "decimal score": (
        {"key": (), "shape": "sorted_set", "member": "k", "score": "v"},
        {"k": pa.string(), "v": pa.decimal128(9, 2)},
        "score_type",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_columns_that_have_no_place_are_refused(case: str) -> None:
    settings, columns, code = MISFITS[case]
    session = Redis(URL, **{"key": "k", "prefix": "p:"} | settings).session("job")
    with pytest.raises(BadConfig) as refused:
        session.preflight(pa.schema(columns), "append")
    assert code == refused.value.code


def test_a_counter_takes_no_totals() -> None:
    sink = Redis(URL, key="k", shape="counter")
    assert {"append"} == sink.capabilities.modes
    assert "shape='string'" in sink.capabilities.remedy
    with pytest.raises(BadConfig, match="new total"):
        sink.session("job").preflight(pairs([1]).schema, "update")


BAD: list[dict[str, Any]] = [
    {"url": "localhost:6379", "key": "k"},
    {"url": "redis://localhost:port", "key": "k"},
    {"url": "redis://localhost/db0", "key": "k"},
    {"url": "redis://localhost?decode_responses=yes", "key": "k"},
    {"key": ()},
    {"key": ("k", "k")},
    {"key": ("k", "")},
    {"key": "k", "shape": "list"},
    {"key": "k", "member": "m"},
    {"shape": "sorted_set", "prefix": "z", "member": "m"},
    {"shape": "sorted_set", "member": "m", "score": "s"},
    {"key": "k", "prefix": "fencepost:"},
    {"key": "k", "prefix": "{t}:fencepost:x"},
    {"key": "k", "chunk_rows": 0},
    {"key": "k", "chunk_rows": True},
    {"key": "k", "timeout": 0},
    {"key": "k", "timeout": float("nan")},
]


@pytest.mark.parametrize("settings", BAD, ids=str)
def test_settings_that_cannot_work_are_refused_where_they_are_written(settings: dict[str, Any]) -> None:
    with pytest.raises(BadConfig) as refused:
        Redis(**{"url": URL} | settings)
    assert "bad_sink" == refused.value.code


def test_a_mark_that_holds_something_else_is_not_taken_for_none(tmp_path: Path, server: Server, reader: Any) -> None:
    sink = Redis(server.url, key="k", shape="string", prefix="p:", name="w")
    driver = started(sink, tmp_path, pairs([1]))
    handle = driver.run(0, pairs([1]))
    reader.hset("fencepost:mark:job:w", "epoch", "many")
    assert Outcome.IN_DOUBT == driver.commit(0, handle)
    reader.set("fencepost:mark:job:w", "text")
    assert Outcome.IN_DOUBT == driver.commit(0, handle)
    driver.session.close()


def half_way(lineage: str, handle: str) -> str:
    """One chunk of the first epoch is in."""
    return json.dumps({"lineage": lineage, "generation": 0, "epoch": 0, "handle": handle, "chunks": 1})


def test_a_half_written_epoch_of_another_lineage_is_refused(tmp_path: Path, server: Server, reader: Any) -> None:
    sink = Redis(server.url, key="k", shape="counter", prefix="p:", name="w", chunk_rows=1)
    half = half_way("another", "another-1-0-x")
    reader.hset("fencepost:mark:job:w", mapping={"writer": 1, "part": half})
    with pytest.raises(TargetRefused) as refused:
        started(sink, tmp_path, pairs([1]))
    assert "target_of_another_lineage" == refused.value.code


def test_a_half_written_epoch_that_the_ledger_does_not_know_needs_an_operator(
    tmp_path: Path, server: Server, reader: Any
) -> None:
    sink = Redis(server.url, key="k", shape="counter", prefix="p:", name="w", chunk_rows=1)
    driver = started(sink, tmp_path, pairs([1]))
    half = half_way(driver.owner.lineage, "aaaaaaaa-1-0-x")
    reader.hset("fencepost:mark:job:w", mapping={"writer": 1, "part": half})
    handle = driver.pre_commit(0, pairs([1, 2]))
    for step in (driver.vote, driver.commit):
        with pytest.raises(OperatorNeeded) as ahead:
            step(0, handle)
        assert "target_ahead" == ahead.value.code
    assert [] == reader.keys("p:*")
    driver.session.close()
