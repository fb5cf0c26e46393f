"""Every type of Spark SQL that PostgreSQL has a column for: kept as it is, or refused before any row."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from fencepost.errors import EpochFailed, TargetRefused

UTC = dt.UTC
ODD = [
    "",
    "plain",
    "emoji 🐘",
    "tab\tnewline\nreturn\rbackslash\\",
    "\\N",
    "\\.",
    "NULL",
    '{"a",b}',
    "'; DROP",
    "\\\\n",
]
STAMP = dt.datetime(2024, 2, 29, 23, 59, 59, 999999)  # noqa: DTZ001 - a time without a zone is the point
FIRST, LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001 - as above
LONG = Decimal("12345678901234567890.123456789012345678")

KINDS: dict[str, tuple[pa.DataType, list[Any], str]] = {
    "tinyint": (pa.int8(), [-128, 0, 127], "smallint"),
    "smallint": (pa.int16(), [-(2**15), 2**15 - 1], "smallint"),
    "int": (pa.int32(), [-(2**31), 2**31 - 1], "integer"),
    "bigint": (pa.int64(), [-(2**63), 2**63 - 1], "bigint"),
    "float": (pa.float32(), [0.5, -0.0, math.inf, -math.inf, 2.0**20], "real"),
    "double": (pa.float64(), [0.1, 5e-324, 1.7976931348623157e308, math.inf, -math.inf], "double precision"),
    "decimal": (pa.decimal128(38, 18), [LONG, -LONG, Decimal("1E-18"), Decimal(0)], "numeric(38,18)"),
    "boolean": (pa.bool_(), [True, False], "boolean"),
    "string": (pa.string(), ODD, "text"),
    "binary": (pa.binary(), [b"", b"\0\x01\\N\xff\n\t", bytes(range(256))], "bytea"),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(9999, 12, 31)], "date"),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [STAMP.replace(tzinfo=UTC), dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(9999, 12, 31, 23, tzinfo=UTC)],
        "timestamp with time zone",
    ),
    "timestamp_ntz": (pa.timestamp("us"), [STAMP, FIRST, LAST], "timestamp without time zone"),
    "time": (pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999999)], "time without time zone"),
    "interval": (
        pa.duration("us"),
        [dt.timedelta(0), dt.timedelta(days=-400, microseconds=1), dt.timedelta(days=99_999, hours=5)],
        "interval",
    ),
    "array<int>": (pa.list_(pa.int32()), [[], [None], [1, None, -3]], "integer[]"),
    "array<string>": (pa.list_(pa.string()), [[], ODD, [None, "NULL", "null"]], "text[]"),
    "array<binary>": (pa.list_(pa.binary()), [[b"\0\xff", None, b""]], "bytea[]"),
    "array<decimal>": (pa.list_(pa.decimal128(10, 2)), [[Decimal("1.10"), None]], "numeric(10,2)[]"),
    "array<timestamp>": (
        pa.list_(pa.timestamp("us", "UTC")),
        [[STAMP.replace(tzinfo=UTC), None]],
        "timestamp with time zone[]",
    ),
    "array<array<int>>": (pa.list_(pa.list_(pa.int32())), [[[1], None, [2, None]]], "jsonb"),
    "struct": (
        pa.struct({"a": pa.int32(), "b": pa.string()}),
        [{"a": 1, "b": 'x"\\\n'}, {"a": None, "b": None}],
        "jsonb",
    ),
    "map": (pa.map_(pa.string(), pa.int64()), [[("k", 1), ("l", None)], []], "jsonb"),
    "void": (pa.null(), [None], "text"),
}


def read(place: Any, table: str = "words", column: str = "v") -> list[Any]:
    with psycopg.connect(place.dsn + " client_encoding=utf8") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        query = sql.SQL("SELECT {} FROM {} ORDER BY n").format(sql.Identifier(column), sql.Identifier(table))
        return [value for (value,) in connection.execute(query)]


def table_of(kind: pa.DataType, values: list[Any]) -> pa.Table:
    return pa.table({"n": pa.array(range(len(values)), pa.int32()), "v": pa.array(values, kind)})


def all_of(columns: Mapping[str, str]) -> tuple[pa.Table, dict[str, list[Any]]]:
    """A table of columns that hold values of a kind, and those values."""
    longest = max(len(KINDS[name][1]) for name in columns.values()) + 1
    values = {column: (KINDS[name][1] + [None] * longest)[:longest] for column, name in columns.items()}
    arrays = {column: pa.array(values[column], KINDS[name][0]) for column, name in columns.items()}
    maps = {column for column, name in columns.items() if name == "map"}
    as_read = {
        column: [dict(v) if column in maps and v is not None else v for v in values[column]] for column in values
    }
    return pa.table({"n": pa.array(range(longest), pa.int32())} | arrays), as_read


@pytest.mark.parametrize("key", [None, "n"])
def test_columns_that_we_declare_keep_every_value(place: Any, key: str | None) -> None:
    rows, values = all_of({name: name for name in KINDS})
    place.started(place.sink(key=key), rows.schema).run(0, rows)
    declared = place.query(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'words'::regclass"
        " AND attnum > 1"
    )
    assert {name: kind for name, (_, _, kind) in KINDS.items()} == dict(declared)
    assert values == {name: read(place, column=name) for name in KINDS}


def test_nan_is_kept_and_is_no_null(place: Any) -> None:
    rows = table_of(pa.float64(), [math.nan, None])
    place.started(place.sink(), rows.schema).run(0, rows)
    assert [("NaN",), (None,)] == place.query("SELECT v::text FROM words ORDER BY n")


EXISTING = [
    ("int", "bigint"),
    ("int", "numeric"),
    ("int", "numeric(10,0)"),
    ("int", "double precision"),
    ("bigint", "numeric(38,19)"),
    ("decimal", "numeric"),
    ("decimal", "numeric(40,19)"),
    ("string", "varchar"),
    ("string", "varchar(60)"),
    ("timestamp", "timestamptz(6)"),
    ("timestamp_ntz", "timestamp(6)"),
    ("array<int>", "bigint[]"),
    ("array<int>", "jsonb"),
    ("array<string>", "varchar(60)[]"),
    ("array<string>", "json"),
    ("struct", "json"),
    ("void", "uuid"),
    ("void", "integer[]"),
    ("int", "whole"),
    ("string", "words_d"),
    ("array<int>", "wholes"),
]


def test_columns_that_are_there_and_wide_enough_keep_every_value(place: Any) -> None:
    columns = {f"{name} in {column}": (name, column) for name, column in EXISTING}
    declared = ", ".join(f'"{title}" {column}' for title, (_, column) in columns.items())
    place.run("CREATE DOMAIN whole AS int; CREATE DOMAIN words_d AS text; CREATE DOMAIN wholes AS int[]")
    place.run(f"CREATE TABLE words (n int, {declared}, more text DEFAULT 'x')")
    rows, values = all_of({title: name for title, (name, _) in columns.items()})
    place.started(place.sink(create=False), rows.schema).run(0, rows)
    assert values == {title: read(place, column=title) for title in columns}


NARROW = [
    ("bigint", "integer"),
    ("bigint", "numeric(18,0)"),
    ("bigint", "double precision"),
    ("int", "smallint"),
    ("int", "real"),
    ("int", "text"),
    ("double", "real"),
    ("double", "numeric"),
    ("decimal", "numeric(38,17)"),
    ("decimal", "numeric(37,18)"),
    ("decimal", "double precision"),
    ("timestamp", "timestamp"),
    ("timestamp_ntz", "timestamptz"),
    ("timestamp", "timestamptz(3)"),
    ("timestamp_ntz", "timestamp(0)"),
    ("timestamp_ntz", "date"),
    ("time", "time(3)"),
    ("interval", "interval(3)"),
    ("interval", "interval hour to minute"),
    ("string", "integer"),
    ("string", "name"),
    ("binary", "text"),
    ("string", "bytea"),
    ("array<int>", "smallint[]"),
    ("array<int>", "integer"),
    ("array<decimal>", "numeric(10,1)[]"),
    ("array<array<int>>", "integer[]"),
    ("struct", "text"),
    ("int", "int GENERATED ALWAYS AS IDENTITY"),
    ("int", "int GENERATED ALWAYS AS (n + 1) STORED"),
    ("decimal", "cents"),
]


def test_columns_that_would_change_values_are_refused_before_any_row_all_at_once(place: Any) -> None:
    place.run("CREATE DOMAIN cents AS numeric(10,2)")
    declared = ", ".join(f'"{name} in {column}" {column}' for name, column in NARROW)
    place.run(f"CREATE TABLE words (n int, {declared})")
    rows, _ = all_of({f"{name} in {column}": name for name, column in NARROW})
    with pytest.raises(TargetRefused) as refused:
        place.started(place.sink(), rows.schema)
    assert "schema_does_not_fit" == refused.value.code
    assert [] == [
        f"{name} in {column}" for name, column in NARROW if f"'{name} in {column}' is " not in str(refused.value)
    ]


def test_a_float_becomes_the_double_of_the_same_value(place: Any) -> None:
    place.run("CREATE TABLE words (n int, v double precision, w double precision[])")
    rows = table_of(pa.float32(), [0.1]).append_column("w", pa.array([[0.1, None]], pa.list_(pa.float32())))
    place.started(place.sink(), rows.schema).run(0, rows)
    assert [0.10000000149011612] == read(place)
    assert [([0.10000000149011612, None],)] == place.query("SELECT w FROM words")


def test_text_goes_into_enums_uuids_and_json(place: Any) -> None:
    place.run("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE words (n int, v mood, m mood[], u uuid, j jsonb)")
    rows = pa.table(
        {
            "n": pa.array([0], pa.int32()),
            "v": ["ok"],
            "m": [["sad", None]],
            "u": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
            "j": ['{"a": 1}'],
        }
    )
    driver = place.started(place.sink(key=None), rows.schema)
    driver.run(0, rows)
    assert [("ok", "{sad,NULL}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", 1)] == place.query(
        "SELECT v::text, m::text, u::text, (j->'a')::int FROM words"
    )
    for column in ("v", "u", "j"):
        wrong = rows.set_column(rows.schema.get_field_index(column), column, [["canary-value"]])
        with pytest.raises(EpochFailed, match=f'column "{column}"') as refused:
            driver.vote(1, driver.pre_commit(1, wrong))
        assert "canary" not in str(refused.value)


@pytest.mark.parametrize("settings", [{"key": "n"}, {"key": None}])
def test_text_keeps_its_value_in_a_column_that_has_one_spelling_for_it(place: Any, settings: dict[str, Any]) -> None:
    place.run("CREATE TABLE words (n int PRIMARY KEY, u uuid, i inet, c cidr, d jsonb, j json, l jsonb)")
    rows = pa.table(
        {
            "n": pa.array([0], pa.int32()),
            "u": ["{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}"],
            "i": ["10.0.0.1/32"],
            "c": ["10"],
            "d": ['{"b": 1.10, "a": 12345678901234567890123, "b2": 1e2}'],
            "j": ['{"b": 1,  "b": 2}'],
            "l": [['{"b": 1, "b": 2}']],  # a list of strings, not of objects
        }
    )
    place.started(place.sink(**settings), rows.schema).run(0, rows)
    uuid, inet, cidr = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "10.0.0.1", "10.0.0.0/8"
    found = place.query("SELECT u::text, abbrev(i), c::text, d::text, j::text, l->>0 FROM words")
    document = '{"a": 12345678901234567890123, "b": 1.10, "b2": 100}'
    assert [(uuid, inet, cidr, document, '{"b": 1,  "b": 2}', '{"b": 1, "b": 2}')] == found


@pytest.mark.parametrize(
    ("column", "one", "two"),
    [("jsonb", '{"a": 1}', '[{"a": "canary", "a": 2}]'), ("jsonb[]", ["{}"], [None, '{"a": 1, "\\u0061": 2}'])],
)
def test_a_field_that_jsonb_would_drop_is_refused_in_the_vote(place: Any, column: str, one: Any, two: Any) -> None:
    place.run(f"CREATE TABLE words (n int PRIMARY KEY, v {column})")
    rows = pa.table({"n": pa.array([0, 1, 2], pa.int32()), "v": [one, None, two]})
    driver = place.started(place.sink(key="n"), rows.schema)
    with pytest.raises(EpochFailed, match=r"column 'v' .* the same field twice") as refused:
        driver.vote(0, driver.pre_commit(0, rows))
    assert "canary" not in str(refused.value)
    driver.run(0, rows.slice(0, 2))


@pytest.mark.parametrize("column", ["varchar(3)", "char(3)", "varchar(3)[]"])
def test_text_that_is_too_long_is_refused_even_where_postgresql_would_cut_off_blanks(place: Any, column: str) -> None:
    place.run(f"CREATE TABLE words (n int PRIMARY KEY, v {column})")
    items = [["äöü"], ["ab   "], None] if column.endswith("]") else ["äöü", "ab   ", None]
    rows = pa.table({"n": pa.array([0, 1, 2], pa.int32()), "v": items})
    driver = place.started(place.sink(key="n"), rows.schema)
    with pytest.raises(EpochFailed, match="column 'v' has text that is too long for char"):
        driver.vote(0, driver.pre_commit(0, rows))
    driver.run(0, rows.slice(0, 1))
    assert [items[0]] == read(place)


def test_columns_that_the_table_fills_by_itself_may_be_left_out(place: Any) -> None:
    place.run(
        "CREATE DOMAIN needed AS int NOT NULL;"
        "CREATE TABLE words (n int, v int, id bigint GENERATED ALWAYS AS IDENTITY,"
        " twice int GENERATED ALWAYS AS (n * 2) STORED, at timestamptz NOT NULL DEFAULT now(), d needed DEFAULT 7)"
    )
    rows = table_of(pa.int32(), [5])
    place.started(place.sink(), rows.schema).run(0, rows)
    assert [(0, 5, 1, 0, 7)] == place.query("SELECT n, v, id, twice, d FROM words")
    place.run("CREATE TABLE others (n int, v int, must text NOT NULL, too needed)")
    with pytest.raises(TargetRefused, match=r"column 'must' is NOT NULL.*column 'too' is NOT NULL"):
        place.started(place.sink("others"), rows.schema)


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE t (n int, v int); CREATE VIEW words AS SELECT n, v FROM t",
        "CREATE MATERIALIZED VIEW words AS SELECT 1 AS n, 2 AS v",
    ],
)
def test_a_view_is_refused(place: Any, made: str) -> None:
    place.run(made)
    with pytest.raises(TargetRefused, match="view"):
        place.started(place.sink(), table_of(pa.int32(), []).schema)


def test_a_partitioned_table_takes_rows_with_and_without_a_key(place: Any) -> None:
    for table in ("words", "keyed"):
        place.run(
            f"CREATE TABLE {table} (n int PRIMARY KEY, v int) PARTITION BY RANGE (n);"
            f"CREATE TABLE {table}_a PARTITION OF {table} FOR VALUES FROM (0) TO (2);"
            f"CREATE TABLE {table}_b PARTITION OF {table} FOR VALUES FROM (2) TO (4)"
        )
    rows = table_of(pa.int32(), [1, 2, 3, 4])
    place.started(place.sink(), rows.schema).run(0, rows)
    keyed = place.started(place.sink("keyed", key="n"), rows.schema)
    keyed.run(0, rows)
    keyed.run(1, rows.slice(1))
    assert [1, 2, 3, 4] == read(place) == read(place, "keyed")
    with pytest.raises(EpochFailed, match="check violation"):
        keyed.vote(2, keyed.pre_commit(2, table_of(pa.int32(), [0] * 5)))


def test_a_type_that_postgresql_has_not_is_refused(place: Any) -> None:
    with pytest.raises(TargetRefused, match="PostgreSQL has no type for 'month_day_nano"):
        place.started(place.sink(), pa.schema({"n": pa.int32(), "v": pa.month_day_nano_interval()}))
