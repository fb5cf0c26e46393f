"""Cassandra without a server: settings, durability, types."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from fencepost.connectors.cassandra.columns import declared, parsed, why_not
from fencepost.connectors.cassandra.server import MOST_BYTES, Facts, acknowledged_by, most_bytes, weakness
from fencepost.connectors.cassandra.sink import Cassandra
from fencepost.errors import BadConfig


@pytest.mark.parametrize(
    "settings",
    [
        {"table": "t"},
        {"table": "a.b.c"},
        {"table": "ks.fencepost_epoch"},
        {"hosts": ()},
        {"consistency": "ONE"},
        {"user": "me"},
        {"key": ()},
        {"key": ("a", "a")},
        {"key": ("a", ("b", "c"))},
    ],
)
def test_settings_that_cannot_work_are_refused_where_they_are_written(settings: dict[str, Any]) -> None:
    with pytest.raises(BadConfig, match="Cassandra: "):
        Cassandra(**({"table": "ks.t"} | settings))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a", (("a",), ())),
        (("a", "b"), (("a",), ("b",))),
        ((("a", "b"), "c"), (("a", "b"), ("c",))),
    ],
)
def test_a_key_is_written_as_in_cql(key: Any, expected: Any) -> None:
    assert expected == Cassandra("ks.t", key=key).columns_of_key


def test_the_client_is_needed_only_for_a_session() -> None:
    code = (
        "import sys; sys.modules['cassandra'] = None\n"
        "import fencepost as fp\n"
        "sink = fp.Cassandra('ks.t')\n"
        "try: sink.session('job')\n"
        "except fp.Refused as error: print(error.code)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "no_cassandra_client" == done.stdout.strip()


def facts(factor: str = "1", *, sync: str | None = "periodic", durable: bool = True, grace: int = 864_000) -> Facts:
    replication = {"class": "NetworkTopologyStrategy", "dc1": factor}
    return Facts(replication=replication, durable_writes=durable, commitlog_sync=sync, gc_grace_s=grace)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (facts(), "commitlog_sync: periodic"),
        (facts("2/1"), "commitlog_sync: periodic"),
        (facts(sync="batch"), None),
        (facts(sync="group"), None),
        (facts("2"), None),
        (facts("3"), None),
        (facts(sync=None), "cannot check"),
        (facts("3", sync=None), None),
        (facts("3", durable=False), "durable_writes"),
        (facts("3", grace=0), "gc_grace_seconds = 0"),
    ],
)
def test_a_table_forgets_if_one_killed_node_is_enough(found: Facts, words: str | None) -> None:
    why = weakness(found, "LOCAL_QUORUM")
    assert why is None if words is None else words in (why or "")


def test_how_many_replicas_have_a_row() -> None:
    two = {"class": "NetworkTopologyStrategy", "dc1": "3", "dc2": "1"}
    levels = ("LOCAL_QUORUM", "QUORUM", "ALL")
    assert [1, 3, 4] == [acknowledged_by(two, level) for level in levels]
    assert 1 == acknowledged_by({"class": "LocalStrategy"}, "ALL")


def test_types_are_read_and_written_as_cql_has_them() -> None:
    for text in ("int", "frozen<list<int>>", "map<text, frozen<map<int, frozen<list<text>>>>>", "vector<float, 3>"):
        assert text == str(parsed(text))
    assert "frozen<map<text, frozen<list<bigint>>>>" == str(declared(pa.map_(pa.string(), pa.list_(pa.int64()))))
    assert "text" == str(declared(pa.list_(pa.month_day_nano_interval())))


@pytest.mark.parametrize(
    ("kind", "cql"),
    [
        (pa.int64(), "int"),
        (pa.uint64(), "bigint"),
        (pa.int32(), "double"),
        (pa.float64(), "float"),
        (pa.decimal128(10, 2), "varint"),
        (pa.decimal128(10, 2), "double"),
        (pa.timestamp("us"), "timestamp"),
        (pa.timestamp("us", "UTC"), "date"),
        (pa.string(), "inet"),
        (pa.list_(pa.int32()), "frozen<set<int>>"),
        (pa.list_(pa.int32()), "list<int>"),
        (pa.list_(pa.int64()), "frozen<list<int>>"),
        (pa.map_(pa.list_(pa.int32()), pa.int32()), "map<frozen<list<int>>, int>"),
        (pa.struct({"a": pa.int32()}), "frozen<address>"),
        (pa.duration("us"), "bigint"),
    ],
)
def test_a_column_that_would_change_a_value_does_not_fit(kind: pa.DataType, cql: str) -> None:
    assert why_not(kind, parsed(cql))


def test_the_largest_row_is_what_the_node_says() -> None:
    assert 4 * 2**20 == most_bytes({"max_mutation_size": "4096KiB", "native_transport_max_frame_size": "16MiB"})
    assert MOST_BYTES == most_bytes({"max_mutation_size": None})
