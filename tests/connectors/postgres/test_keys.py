"""Two keys that are different in Spark are two rows, whatever the table calls equal: or the table is refused."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from removals import SCHEMA, epochs

from fencepost.connectors.table import deletion
from fencepost.contract import UNIT_FACTS, Attempt, Epoch, WriterNumber
from fencepost.errors import EpochFailed, TargetRefused

WORDS = pa.schema({"k": pa.string(), "v": pa.int64()})
UUID = "0a0e7f0c-9a0b-4b2e-8a44-3f0d0f6a1b2c"
NO_CASE = "CREATE COLLATION no_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"


def words(*keys: Any) -> pa.Table:
    return pa.table({"k": list(keys), "v": list(range(len(keys)))}, WORDS)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("CREATE EXTENSION IF NOT EXISTS citext; CREATE TABLE words (k citext PRIMARY KEY, v bigint)", "citext"),
        (f"{NO_CASE}; CREATE TABLE words (k text COLLATE no_case PRIMARY KEY, v bigint)", "no_case"),
        (
            f"{NO_CASE}; CREATE TABLE words (k text, v bigint); CREATE UNIQUE INDEX ON words (k COLLATE no_case)",
            "no_case",
        ),
        ("CREATE TABLE words (k inet PRIMARY KEY, v bigint)", "inet"),
        ("CREATE TABLE words (k jsonb PRIMARY KEY, v bigint)", "jsonb"),
    ],
)
def test_a_table_that_calls_different_keys_equal_is_refused_before_data_flows(
    place: Any, table: str, said: str
) -> None:
    try:
        place.run(table)
    except Exception as error:  # noqa: BLE001 - a server without ICU or contrib
        pytest.skip(f"this server cannot: {type(error).__name__}")
    session = place.driver(place.sink(key="k")).session
    for look in (session.rehearse, session.preflight):
        with pytest.raises(TargetRefused, match=said) as refused:
            look(WORDS, "update")
        assert "keys_merge" == refused.value.code
    place.started(place.sink(), WORDS)  # without a key, nothing is compared


def test_a_collation_that_only_sorts_is_accepted(place: Any) -> None:
    place.run('CREATE TABLE words (k varchar(9) COLLATE "C", v bigint, PRIMARY KEY (k))')
    place.started(place.sink(key="k"), WORDS).run(0, words("a", "A", "a "))
    assert [("A",), ("a",), ("a ",)] == place.query("SELECT k FROM words ORDER BY 1")


@pytest.mark.parametrize(
    ("kind", "good", "bad", "said"),
    [
        ("char(9)", "canary", "canary ", "trailing blanks"),
        ("uuid", UUID, UUID.upper(), "lower case"),
        ("uuid", UUID, f"{{{UUID}}}", "hyphens"),
    ],
)
def test_another_spelling_of_a_key_is_refused_in_the_vote(
    place: Any, kind: str, good: str, bad: str, said: str
) -> None:
    place.run(f"CREATE TABLE words (k {kind} PRIMARY KEY, v bigint)")
    driver = place.started(place.sink(key="k"), WORDS)
    driver.run(0, words(good))
    with pytest.raises(EpochFailed, match=said) as refused:
        driver.vote(1, driver.pre_commit(1, words(good, bad)))
    assert ("rows_refused", False) == (refused.value.code, good in str(refused.value).lower())
    write = place.sink(key="k", staging="target").in_tasks("job")
    [end] = write(Attempt("lineage", WriterNumber(1), Epoch(1)), iter(words(good, bad).to_batches()))
    assert said in json.loads(end.column(UNIT_FACTS)[0].as_py())["refused"]
    driver.run(1, words(good))
    assert [(1,)] == place.query("SELECT count(*) FROM words")


def test_rows_are_removed_by_keys_of_many_types_and_never_by_another_spelling(place: Any) -> None:
    place.run(
        "CREATE TABLE words (id uuid, code char(9), day date, at timestamptz, n numeric(10,2), raw bytea,"
        " v bigint NOT NULL, PRIMARY KEY (id, code, day, at, n, raw))"
    )
    at = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
    key = {"id": UUID, "code": "canary", "day": at.date(), "at": at, "n": Decimal("1.10"), "raw": b"\0"}
    kinds = [pa.string(), pa.string(), pa.date32(), pa.timestamp("us", "UTC"), pa.decimal128(10, 2), pa.binary()]
    schema = pa.schema([*zip(key, kinds, strict=True), ("v", pa.int64()), ("gone", pa.bool_())])
    driver = place.started(place.sink(key=tuple(key), deletes="gone", staging="checkpoint"), schema)
    other = {**key, "n": Decimal("1.11")}
    written = [{**one, "v": 1, "gone": False} for one in (key, other)]
    driver.run(0, pa.Table.from_pylist(written, schema))
    for name, bad in (("id", UUID.upper()), ("code", "canary ")):
        removed = pa.Table.from_pylist([{**key, name: bad, "gone": True}], schema)
        with pytest.raises(EpochFailed, match=r"lower case|trailing blanks"):
            driver.vote(1, driver.pre_commit(1, removed))
    driver.run(1, pa.Table.from_pylist([{**key, "gone": True}], schema))
    assert [(Decimal("1.11"),)] == place.query("SELECT n FROM words")


def test_a_table_holds_what_a_plain_loop_over_all_rows_leaves(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "ROWS_AT_ONCE", 7)
    driver = place.started(place.sink(key=("a", "b"), deletes="gone", staging="checkpoint"), SCHEMA)
    for epoch, (rows, expected) in enumerate(epochs(2)):
        driver.run(epoch, rows)
        assert expected == place.query('SELECT a, b, "at", v FROM words ORDER BY a, b')


def test_minus_zero_is_zero_as_in_spark(place: Any) -> None:
    schema = pa.schema({"k": pa.float64(), "v": pa.int64()})
    driver = place.started(place.sink(key="k"), schema)
    driver.run(0, pa.table({"k": [0.0, -0.0], "v": [1, 2]}, schema))
    driver.run(1, pa.table({"k": [-0.0], "v": [3]}, schema))
    assert [(0.0, 3)] == place.query("SELECT k, v FROM words")
    with pytest.raises(EpochFailed, match="NaN"):
        driver.vote(2, driver.pre_commit(2, pa.table({"k": [math.nan], "v": [4]}, schema)))


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.decimal128(10, 4), "numeric(10,2)"),
        (pa.timestamp("us"), "timestamp(3)"),
        (pa.timestamp("us", "UTC"), "timestamptz(0)"),
        (pa.float64(), "real"),
    ],
)
def test_a_key_that_the_column_would_round_is_refused_before_data_flows(place: Any, kind: Any, column: str) -> None:
    place.run(f"CREATE TABLE words (k {column} PRIMARY KEY, v bigint)")
    with pytest.raises(TargetRefused, match="schema_does_not_fit"):
        place.started(place.sink(key="k"), pa.schema({"k": kind, "v": pa.int64()}))
