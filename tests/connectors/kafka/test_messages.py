"""Rows as messages: what each column becomes, in what order, and what is refused without quoting a row."""

from __future__ import annotations

import json
import traceback
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message
from fencepost_proof.rig.kafka import Broker
from topics import read
from transactions import SCHEMA, open_of, seen, table

import fencepost as fp
from fencepost.connectors.kafka import failure, messages, producers
from fencepost.connectors.kafka.messages import BadMessage, check_columns
from fencepost.errors import FencepostError, TargetRefused
from fencepost.protocol.records import Epoch, Kept
from fencepost.store import staging
from fencepost.testing import SinkDriver

Start = Callable[..., SinkDriver]
CANARY = "canary-in-a-row"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def written(broker: Broker, topic: str, start: Start, rows: pa.Table, **settings: Any) -> list[Message]:
    """One epoch of these rows, as a reader sees it."""
    sink = fp.Kafka(topic, servers=broker.servers, **settings)
    start(sink, schema=rows.schema).run(0, rows)
    return read(broker.servers, topic)


def refused(broker: Broker, topic: str, start: Start, rows: pa.Table, **settings: Any) -> FencepostError:
    """What is said about rows that cannot be written; nothing of them is visible or left open."""
    sink = fp.Kafka(topic, servers=broker.servers, **settings)
    driver = start(sink, schema=rows.schema)
    with pytest.raises(FencepostError) as caught:
        driver.pre_commit(0, rows)
    assert [] == open_of(broker, sink), "it was left open"
    assert [] == read(broker.servers, topic, "read_committed")
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    return caught.value


class TestWhatAColumnBecomes:
    def test_a_row_is_json_and_its_key_a_column(self, broker: Broker, topic: str, start: Start) -> None:
        rows = pa.table({"k": ["a", None, ""], "v": [1, None, 3], "ü": ["ß", "", None]})
        found = written(broker, topic, start, rows, key="k")
        assert [
            (None, {"k": None, "v": None, "ü": ""}),
            (b"", {"k": "", "v": 3, "ü": None}),
            (b"a", {"k": "a", "v": 1, "ü": "ß"}),
        ] == sorted(((m.key(), json.loads(m.value())) for m in found), key=str)

    def test_a_value_column_is_taken_as_it_is_and_null_is_a_tombstone(
        self, broker: Broker, topic: str, start: Start
    ) -> None:
        rows = pa.table({"k": ["a", "b", "c"], "body": pa.array([b"\x00\xff", None, b""], pa.binary())})
        found = written(broker, topic, start, rows, key="k", value="body")
        assert {b"a": b"\x00\xff", b"b": None, b"c": b""} == {m.key(): m.value() for m in found}

    def test_headers_are_kept_with_their_order_and_nulls(self, broker: Broker, topic: str, start: Start) -> None:
        some = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "b", "value": b""}]
        rows = pa.table({"k": ["x", "y", "z"], "h": pa.array([some, None, []], HEADERS)})
        found = written(broker, topic, start, rows, key="k", headers="h")
        assert {b"x": [("a", b"1"), ("a", None), ("b", b"")], b"y": None, b"z": None} == {
            m.key(): m.headers() or None for m in found
        }
        assert {'{"k":"x"}', '{"k":"y"}', '{"k":"z"}'} == {m.value().decode() for m in found}

    @pytest.mark.parametrize("with_headers", [False, True])
    def test_a_partition_column_says_where_and_null_leaves_it_to_the_key(
        self, broker: Broker, topic: str, start: Start, with_headers: bool
    ) -> None:
        places = [2, 0, 1, 2, None, None]
        rows = table(*range(6), p=pa.array(places, pa.int32()), h=pa.nulls(6, HEADERS))
        more = {"headers": "h"} if with_headers else {}
        found = {
            json.loads(m.value())["v"]: m.partition()
            for m in written(broker, topic, start, rows.drop(["k"]), partition="p", **more)
        }
        assert places[:4] == [found[value] for value in range(4)]
        assert set(range(6)) == found.keys()

    def test_a_topic_column_says_which_and_null_is_the_sinks_own(
        self, broker: Broker, topic: str, start: Start
    ) -> None:
        other = broker.create_topic(f"{topic}-other", partitions=1)
        rows = table(1, 2, 3, 4, t=[other, None, topic, other])
        sink = fp.Kafka(topic, servers=broker.servers, key="k", topic_column="t")
        start(sink, schema=rows.schema).run(0, rows)
        assert ([2, 3], [1, 4]) == (seen(broker, topic), seen(broker, other))

    def test_a_serializer_is_given_the_row_and_may_say_tombstone(
        self, broker: Broker, topic: str, start: Start
    ) -> None:
        found = written(
            broker,
            topic,
            start,
            table(1, 2),
            key="k",
            serializer=lambda row: b"%d" % row["v"] if row["v"] > 1 else None,
        )
        assert {b"key-1": None, b"key-2": b"2"} == {m.key(): m.value() for m in found}

    def test_a_serializer_is_given_times_in_utc_wherever_it_is_called(self) -> None:
        """A task gets them in the session's zone; the rows that it leaves to the driver are staged in UTC."""
        at = datetime(2026, 7, 1, 23, 30, tzinfo=UTC)
        row = {"at": at, "all": [at], "in": {"at": at}, "by": [("k", at)]}

        def said(zone: str) -> list[Any]:
            time = pa.timestamp("us", zone)
            inside = pa.struct([("at", time)])
            schema = pa.schema([("at", time), ("all", pa.list_(time)), ("in", inside), ("by", pa.map_("str", time))])
            sink = fp.Kafka("t", servers="nowhere:1", serializer=lambda given: str(given).encode())
            return [one.value for one in messages.messages(sink, pa.RecordBatch.from_pylist([row], schema))]

        assert said("UTC") == said("Europe/Berlin")

    @pytest.mark.parametrize("how", ["json", "value", "serializer"])
    def test_a_row_to_delete_is_a_tombstone(self, broker: Broker, topic: str, start: Start, how: str) -> None:
        """Whatever makes the values is not asked for one, and never sees the column."""
        rows = table(1, 2, gone=[True, False], value=[None, "{}"])
        more: dict[str, Any] = {
            "json": {},
            "value": {"value": "value"},
            "serializer": {"serializer": lambda row: json.dumps({**row, "v": row["v"] + 1}).encode()},
        }[how]
        found = written(broker, topic, start, rows, key="k", deletes="gone", **more)
        values = {message.key(): message.value() for message in found}
        assert {b"key-1": None} == {key: value for key, value in values.items() if value is None}
        assert b"gone" not in (values[b"key-2"] or b"gone")


class TestRefused:
    @pytest.mark.parametrize(
        ("columns", "why"),
        [({"gone": [None, True]}, "'gone', which deletes= names, is NULL"), ({"k": [None, "a"]}, "and has no key")],
        ids=["it does not say", "no key"],
    )
    def test_a_row_to_delete_that_is_no_tombstone(
        self, broker: Broker, topic: str, start: Start, columns: dict[str, Any], why: str
    ) -> None:
        rows = pa.table({"k": ["a", "b"], "gone": [True, False]} | columns)
        error = refused(broker, topic, start, rows, key="k", deletes="gone")
        assert ("bad_message", True) == (error.code, why in str(error))

    def test_a_column_that_cannot_say_what_to_delete(self) -> None:
        sink = fp.Kafka("t", servers="a:1", key="k", deletes="v")
        with pytest.raises(TargetRefused, match=r"(?s)column_type.*boolean"):
            check_columns(sink, table(1).schema)
        for settings in ({"deletes": "k"}, {"deletes": "gone", "key": None}):
            with pytest.raises(FencepostError, match="bad_sink"):
                _ = fp.Kafka("t", servers="a:1", **{"key": "k"} | settings).capabilities  # type: ignore[arg-type]

    @pytest.mark.parametrize("partition", [3, 99, -2])
    def test_a_partition_that_does_not_exist(self, broker: Broker, topic: str, start: Start, partition: int) -> None:
        rows = table(1, 2, p=pa.array([0, partition], pa.int64()))
        error = refused(broker, topic, start, rows, partition="p")
        assert ("no_topic", True) == (error.code, f"partition {partition}," in str(error))

    def test_a_partition_that_is_no_number_of_one(self, broker: Broker, topic: str, start: Start) -> None:
        error = refused(broker, topic, start, table(1, p=pa.array([2**40])), partition="p")
        assert "bad_message" == error.code

    @pytest.mark.parametrize("name", [CANARY, "not a name!", ""])
    def test_a_topic_that_does_not_exist(
        self, broker: Broker, topic: str, start: Start, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        rows = table(1, 2, t=[topic, name])
        error = refused(
            broker,
            topic,
            start,
            rows,
            topic_column="t",
            producer={"topic.metadata.propagation.max.ms": "500"},
        )
        assert "no_topic" == error.code, error

    def test_a_row_without_a_topic_where_there_is_no_other(self, broker: Broker, topic: str, start: Start) -> None:
        rows = table(1, 2, t=[topic, None])
        sink = fp.Kafka(None, servers=broker.servers, topic_column="t", name=f"none-{topic}")
        driver = start(sink, schema=rows.schema)
        with pytest.raises(TargetRefused, match="it has no topic") as caught:
            driver.pre_commit(0, rows)
        assert "bad_message" == caught.value.code
        assert [] == open_of(broker, sink)

    @pytest.mark.parametrize("partition", [None, "p"])
    def test_a_topic_that_a_column_says_is_a_value_and_is_never_quoted(self, partition: str | None) -> None:
        rows = table(1, t=[CANARY], p=pa.array([3], pa.int32())).to_batches()[0]
        sink = fp.Kafka(None, servers="a:1", topic_column="t", partition=partition)
        error = producers.Offline({}, 10).why_not(sink, rows)
        assert error is not None
        for said in (failure.of_a_row(error), str(failure.failed(error))):
            assert "a topic of column 't', " in said
            assert CANARY not in said

    def test_an_empty_name_is_not_taken_for_none(self) -> None:
        batch = table(1, t=[""]).to_batches()[0]
        assert [""] == [m.topic for m in messages.messages(fp.Kafka(None, servers="a:1", topic_column="t"), batch)]

    @pytest.mark.parametrize(
        "serializer",
        [
            lambda row: json.loads(f"{CANARY} is no JSON"),
            lambda row: {}[CANARY],
            lambda row: CANARY + 1,  # type: ignore[operator]
            lambda row: 5,
        ],
        ids=["ValueError", "KeyError", "TypeError", "a number"],
    )
    @pytest.mark.parametrize("after", [0, 20_000])
    def test_a_serializer_that_fails(
        self, broker: Broker, topic: str, start: Start, serializer: Any, after: int
    ) -> None:
        """Also when rows before it are with the broker already."""
        rows = table(*range(after + 1))
        error = refused(
            broker, topic, start, rows, serializer=lambda row: b"fine" if row["v"] < after else serializer(row)
        )
        assert "bad_message" == error.code
        assert all(word in str(error) for word in ("serializer", "reruns", topic))

    @pytest.mark.parametrize("headers", [None, "h"])
    def test_a_message_over_the_topics_limit(self, broker: Broker, start: Start, headers: str | None) -> None:
        small = broker.create_topic(f"small-{uuid.uuid4().hex[:8]}", partitions=1, max_message_bytes=2000)
        rows = pa.table({"k": ["a", CANARY], "v": ["x", CANARY * 500], "h": pa.nulls(2, HEADERS)})
        error = refused(broker, small, start, rows, key="k", value="v", headers=headers)
        assert ("message_too_large", True) == (error.code, f"topic '{small}', 7,515 bytes" in str(error))

    @pytest.mark.parametrize("headers", [None, "h"])
    def test_rows_that_cannot_be_sent_are_named_and_nothing_is_sent_to_find_out(
        self, broker: Broker, start: Start, headers: str | None
    ) -> None:
        small = broker.create_topic(f"small-{uuid.uuid4().hex[:8]}", partitions=1, max_message_bytes=2000)
        large = {3, 10, 11}
        values = [CANARY * 500 if n in large else "x" * 100 for n in range(40)]
        rows = pa.table(
            {
                "k": [None if n == 7 else f"k{n}" for n in range(40)],
                "v": values,
                "gone": [n in {7, 8} for n in range(40)],
                "h": pa.nulls(40, HEADERS),
            }
        )
        settings = {"key": "k", "value": "v", "deletes": "gone", "headers": headers}
        driver = start(fp.Kafka(small, servers=broker.servers, **settings), schema=rows.schema)
        found = driver.session.refused(Epoch(0), rows.to_batches()[0])
        assert {*large, 7} == set(found)
        assert f"its message is refused (MSG_SIZE_TOO_LARGE, topic '{small}', 7,503 bytes)" == found[10].replace(
            "partition -1, ", ""
        )
        assert "it cannot be turned into a message (it is to be deleted, and has no key)" == found[7]
        good = rows.filter(pa.array([n not in found for n in range(40)]))
        driver.run(0, good)
        assert 36 == len(read(broker.servers, small, "read_committed"))

    @pytest.mark.parametrize("headers", [None, [("h", b"1" * 70), ("i", None)]])
    def test_the_largest_message_that_the_broker_takes_is_not_named_and_one_byte_more_is(
        self, broker: Broker, start: Start, headers: list[tuple[str, bytes | None]] | None
    ) -> None:
        small = broker.create_topic(f"small-{uuid.uuid4().hex[:8]}", partitions=1, max_message_bytes=2000)
        kept = None if headers is None else [{"key": key, "value": value} for key, value in headers]
        room = 2000 - messages.Message(small, "k", "x" * 1800, -1, headers).size + 1800
        rows = pa.table({"k": ["k"] * 2, "v": ["x" * room, "x" * (room + 1)], "h": pa.array([kept] * 2, HEADERS)})
        sink = fp.Kafka(small, servers=broker.servers, key="k", value="v", headers="h" if headers else None)
        driver = start(sink, schema=rows.schema)
        assert [1] == list(driver.session.refused(Epoch(0), rows.to_batches()[0]))
        driver.run(0, rows.slice(0, 1))
        with pytest.raises(FencepostError, match="message_too_large"):
            driver.pre_commit(1, rows.slice(1))

    def test_a_message_over_the_limit_that_only_the_broker_knows(self, broker: Broker, start: Start) -> None:
        small = broker.create_topic(f"small-{uuid.uuid4().hex[:8]}", partitions=1, max_message_bytes=2000)
        rows = pa.table({"k": [CANARY], "v": [CANARY * 500]})
        error = refused(broker, small, start, rows, key="k", value="v", producer={"message.max.bytes": "100000"})
        assert ("message_too_large", True) == (error.code, "partition 0, 7,515 bytes" in str(error))

    @pytest.mark.parametrize(
        ("settings", "code"),
        [
            ({"key": "none"}, "no_such_column"),
            ({"value": "v"}, "column_type"),
            ({"headers": "k"}, "column_type"),
            ({"partition": "k"}, "column_type"),
            ({"topic_column": "v"}, "column_type"),
        ],
        ids=str,
    )
    def test_columns_that_cannot_be_what_they_are_meant_for(self, settings: dict[str, str], code: str) -> None:
        with pytest.raises(TargetRefused) as caught:
            check_columns(fp.Kafka("t", servers="a:1", **settings), SCHEMA)
        assert code == caught.value.code


class OneBatch:
    """Rows that come in one piece, however many."""

    kept: tuple[Kept, ...] = ()
    schema = SCHEMA

    def __init__(self, *batches: pa.RecordBatch, between: Callable[[], object] = lambda: None) -> None:
        self._batches = batches
        self._between = between
        self.count = sum(batch.num_rows for batch in batches)

    def batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            yield batch
            self._between()


class TestManyRows:
    def test_two_hundred_thousand_rows_in_one_piece_arrive_once_and_in_order_of_each_key(
        self, broker: Broker, topic: str, start: Start
    ) -> None:
        """More than the client's queue takes."""
        count, keys = 200_000, 50
        batch = pa.record_batch({"k": [f"{v % keys}" for v in range(count)], "v": list(range(count))})
        driver = start(fp.Kafka(topic, servers=broker.servers, key="k"))
        handle = driver.session.pre_commit(Epoch(0), OneBatch(batch))
        assert handle is not None
        assert count == handle.rows
        driver.commit(0, handle)
        by_key: dict[bytes, list[int]] = {}
        for message in read(broker.servers, topic):
            by_key.setdefault(message.key(), []).append(json.loads(message.value())["v"])
        assert {f"{key}".encode(): list(range(key, count, keys)) for key in range(keys)} == by_key

    def test_the_clients_queue_stays_small_in_messages_and_in_bytes(
        self, broker: Broker, topic: str, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(producers, "WAITING", 1000)
        monkeypatch.setattr(staging, "BATCH_ROWS", 500)
        driver = start(fp.Kafka(topic, servers=broker.servers, key="k"))
        lengths: list[int] = []
        batch = table(*range(2000)).combine_chunks().to_batches()[0]

        def look() -> None:
            lengths.append(len(driver.session._slots[0]._producer))  # type: ignore[attr-defined]

        assert driver.session.pre_commit(Epoch(0), OneBatch(*[batch] * 5, between=look)) is not None
        assert (5, True) == (len(lengths), max(lengths) <= 1500)
        monkeypatch.setattr(producers, "WAITING_BYTES", 10_000)
        lengths.clear()
        driver.session.rollback()
        assert driver.session.pre_commit(Epoch(0), OneBatch(*[batch] * 5, between=look)) is not None
        assert [0] * 5 == lengths


def test_a_bad_message_says_what_failed_and_where_never_what_it_said() -> None:
    assert issubclass(BadMessage, Exception)
    assert not issubclass(BadMessage, ValueError), "pyarrow raises those for files that are damaged"
