"""Text for COPY and LOAD DATA: a reader of our own gets back what went in, and what no server keeps is refused."""

from __future__ import annotations

import json
import math
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fencepost.connectors.table.bulk import MYSQL, POSTGRES, Format, Unwritable, lines

NASTY = [
    *("plain", "", "\\N", "\\.", "\\", "\\\\", "ends\\", "\\t", "\\x41", "a\tb", "a\nb", "\r", "\r\n", "\t\n\r\\"),
    *("'\"", "😀é", "\u2028\u2029\x85", "{}", "NULL", "null", ",", "{a,b}", " lead ", "\x1a\b\v\f", None, "\\u0000"),
]
NAIVE = [
    datetime(1, 1, 1),  # noqa: DTZ001 - that is what they are
    datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
    datetime(1969, 12, 31, 23, 59, 59, 5),  # noqa: DTZ001
]
AWARE = [
    datetime(1, 1, 2, tzinfo=UTC),
    datetime(9999, 12, 30, 1, 2, 3, 4, tzinfo=UTC),
    datetime(2024, 7, 1, tzinfo=UTC),
]
SPANS = [
    timedelta(0),
    timedelta(microseconds=-1),
    timedelta(days=-400, microseconds=7),
    timedelta(days=106751, hours=3),
]
LARGE = [Decimal(0), Decimal("-1E-18"), Decimal("12345678901234567890.000000000000000001"), Decimal("-1.5")]
LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}

Read = Callable[[str], Any]


def decoded(data: memoryview) -> list[list[str | None]]:
    """The cells of the rows, as either server takes them apart."""
    text = bytes(data).decode()
    assert "" == text or "\n" == text[-1]
    return [[cell(c) for c in row.split("\t")] for row in text.split("\n")[:-1]]


def cell(text: str) -> str | None:
    return None if text == "\\N" else re.sub(r"\\(.)", lambda m: LETTERS.get(m[1], m[1]), text)


def written(dialect: Format, array: pa.Array) -> list[str | None]:
    batch = pa.record_batch({"c": array})
    return [row[0] for row in decoded(lines(batch, [dialect.text(batch.schema.field(0))]))]


def number(text: str) -> Decimal:
    assert re.fullmatch(r"-?\d+(\.\d+)?", text)
    return Decimal(text)


def interval(text: str) -> timedelta:
    sign, hours, minutes, seconds, micros = re.fullmatch(r"(-?)(\d+):(\d\d):(\d\d)\.(\d{6})", text).groups()
    size = timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds), microseconds=int(micros))
    return -size if sign else size


def bytea(text: str) -> bytes:
    assert "\\x" == text[:2]
    return bytes.fromhex(text[2:])


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def items(read: Read) -> Read:
    """A reader of PostgreSQL's array literals."""

    def read_all(text: str) -> list[Any]:
        found = re.fullmatch(r"\{(.*)\}", text, re.DOTALL)[1]
        parts = re.findall(r'("(?:[^"\\]|\\.)*"|[^",]+)(?:,|$)', found, re.DOTALL)
        assert found == ",".join(parts)
        return [None if part == "NULL" else read(item(part)) for part in parts]

    return read_all


def item(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL) if text[0] == '"' else text


# Type, values, and who reads them back: PostgreSQL's way, MySQL's way.
SCALARS: dict[str, tuple[pa.DataType, list[Any], Read, Read]] = {
    "byte": (pa.int8(), [-128, 127], int, int),
    "long": (pa.int64(), [-(2**63), 2**63 - 1], int, int),
    "unsigned": (pa.uint64(), [0, 2**64 - 1], int, int),
    "float": (pa.float32(), [0.5, -1.5, 16777216.0], float, float),
    "double": (pa.float64(), [0.1, 1e300, 5e-324, 1.7976931348623157e308, -1e-7, 0.0], float, float),
    "boolean": (pa.bool_(), [True, False], {"t": True, "f": False}.__getitem__, {"1": True, "0": False}.__getitem__),
    "decimal": (pa.decimal128(38, 18), LARGE, number, number),
    "money": (pa.decimal128(5, 2), [Decimal("0.00"), Decimal("-1.05")], number, number),
    "hundreds": (pa.decimal128(5, -2), [Decimal("1.23E+4")], number, number),
    "wide": (pa.decimal256(60, 20), LARGE, number, number),
    "date": (
        pa.date32(),
        [date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 10)],
        date.fromisoformat,
        date.fromisoformat,
    ),
    "naive": (pa.timestamp("us"), NAIVE, datetime.fromisoformat, datetime.fromisoformat),
    "aware": (pa.timestamp("us", tz="America/New_York"), AWARE, datetime.fromisoformat, utc),
    "seconds": (pa.timestamp("s", tz="UTC"), AWARE[2:], datetime.fromisoformat, utc),
    "time": (pa.time64("ns"), [time(0), time(23, 59, 59, 999999)], time.fromisoformat, time.fromisoformat),
    "span": (pa.duration("us"), SPANS, interval, lambda text: timedelta(microseconds=int(text))),
    "text": (pa.string(), NASTY, str, str),
    "large": (pa.large_string(), NASTY, str, str),
    "bytes": (pa.binary(), [b"", b"\0\xff\\\t\n", b"abc"], bytea, bytes.fromhex),
    "fixed": (pa.binary(3), [b"\0\xff\\", b"abc"], bytea, bytes.fromhex),
    "word": (pa.dictionary(pa.int8(), pa.string()), ["a\tb", "c", "a\tb"], str, str),
    "nothing": (pa.null(), [None], str, str),
}
SLICES = [slice(None), slice(1, None), slice(2, 5), slice(3, 3)]


def with_nulls(values: list[Any]) -> list[Any]:
    return [None, *values, None, *values[:2]]


def read_back(cells: list[str | None], read: Read) -> list[Any]:
    return [None if text is None else read(text) for text in cells]


@pytest.mark.parametrize("part", SLICES, ids=str)
@pytest.mark.parametrize("name", SCALARS)
def test_every_scalar_comes_back_from_any_slice(name: str, part: slice) -> None:
    kind, values, postgres, mysql = SCALARS[name]
    array = pa.array(with_nulls(values), kind)[part]
    assert array.to_pylist() == read_back(written(POSTGRES, array), postgres)
    assert array.to_pylist() == read_back(written(MYSQL, array), mysql)


@pytest.mark.parametrize("part", SLICES, ids=str)
@pytest.mark.parametrize("make", [pa.list_, pa.large_list], ids=["list", "large list"])
@pytest.mark.parametrize("name", [name for name in SCALARS if name != "word"])
def test_a_list_of_scalars_is_an_array_for_postgresql(name: str, make: Any, part: slice) -> None:
    kind, values, read, _ = SCALARS[name]
    array = pa.array([values, None, [], [None], with_nulls(values), *([value] for value in values)], make(kind))[part]
    assert array.to_pylist() == read_back(written(POSTGRES, array), items(read))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.struct({"a": pa.string()}), [{"a": text} for text in NASTY]),
        (pa.list_(pa.struct({"a": pa.string()})), [[{"a": text}, None] for text in NASTY]),
        (pa.list_(pa.list_(pa.int32())), [[[1, 2], None, [], [3]], [], None]),
    ],
    ids=str,
)
def test_deeper_values_are_json_for_both(kind: pa.DataType, values: list[Any]) -> None:
    array = pa.array([None, *values], kind)[1:]
    assert values == read_back(written(POSTGRES, array), json.loads)
    assert values == read_back(written(MYSQL, array), json.loads)


def test_a_list_of_text_is_json_for_mysql_and_for_a_json_column_of_postgresql() -> None:
    batch = pa.record_batch({"c": pa.array([NASTY, None, []])})
    assert [NASTY, None, []] == read_back(written(MYSQL, batch.column(0)), json.loads)
    cells = [row[0] for row in decoded(lines(batch, [POSTGRES.json]))]
    assert [NASTY, None, []] == read_back(cells, json.loads)


@pytest.mark.parametrize("dialect", [POSTGRES, MYSQL], ids=["postgresql", "mysql"])
def test_columns_stay_in_their_rows(dialect: Format) -> None:
    names = list(SCALARS)
    arrays = {
        name: pa.array([None, *(SCALARS[name][1] * 30)[:25]], SCALARS[name][0]) for name in names if name != "nothing"
    }
    batch = pa.record_batch(arrays)[1:]
    rows = decoded(lines(batch, [dialect.text(field) for field in batch.schema]))
    assert [list(column) for column in zip(*rows, strict=True)] == [
        written(dialect, column) for column in batch.columns
    ]


@pytest.mark.parametrize("dialect", [POSTGRES, MYSQL], ids=["postgresql", "mysql"])
def test_the_format_is_the_documented_one_to_the_byte(dialect: Format) -> None:
    batch = pa.record_batch({"a": pa.array([1, None]), "b": ["x\ty\\", ""]})
    assert b"1\tx\\ty\\\\\n\\N\t\n" == lines(batch, [dialect.text(field) for field in batch.schema])


def test_bytes_and_arrays_of_them_are_escaped_once_per_reader() -> None:
    batch = pa.record_batch({"a": [b"a"], "b": [[b"a"]], "c": [['"\\']]})
    texts = [POSTGRES.text(field) for field in batch.schema]
    assert b'\\\\x61\t{"\\\\\\\\x61"}\t{"\\\\"\\\\\\\\"}\n' == lines(batch, texts)


def test_no_rows_are_no_bytes() -> None:
    batch = pa.record_batch({"a": pa.array([], pa.string())})
    assert b"" == lines(batch, [POSTGRES.text(batch.schema.field(0))])


def test_a_row_of_ten_megabytes_is_a_row() -> None:
    text = "0123456789\n" * 1_000_000
    assert [None, text, "b"] == written(POSTGRES, pa.array([None, text, "b"]))


def test_infinities_are_postgresqls_own_words() -> None:
    array = pa.array([math.nan, math.inf, -math.inf, None])
    assert ["nan", "inf", "-inf", None] == written(POSTGRES, array)


def test_the_largest_float_is_not_rounded_up_for_mysql() -> None:
    largest = 3.4028234663852886e38
    assert ["3.4028234663852886e+38"] == written(MYSQL, pa.array([largest], pa.float32()))


def test_a_nul_in_text_is_escaped_for_mysql() -> None:
    assert ["a\0b\\0"] == written(MYSQL, pa.array(["a\0b\\0"]))
    assert [{"a": "\0"}] == read_back(written(MYSQL, pa.array([{"a": "\0"}])), json.loads)


def not_utf8(*, valid: int) -> pa.Array:
    """The texts é and 0xFF, which Arrow does not look at; bits say which are not null."""
    ends = pa.array([0, 2, 3], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(bytes([valid])), ends, pa.py_buffer(b"\xc3\xa9\xff")])


NUL = "has a NUL byte in text, which PostgreSQL does not store"
YEARS = "has a date outside the years 1 to 9999"
INEXACT = "has a value that cannot be written exactly"
REFUSED = [
    (POSTGRES, pa.array(["a", "secret\0"]), NUL),
    (POSTGRES, pa.array([["secret\0"]]), NUL),
    (POSTGRES, pa.array([{"a": "secret\0"}]), NUL),
    (POSTGRES, pa.array([{"a": "\\\0"}]), NUL),
    (POSTGRES, not_utf8(valid=3), "has text that is not UTF-8"),
    (POSTGRES, pa.ListArray.from_arrays([0, 2], not_utf8(valid=3)), "has text that is not UTF-8"),
    (MYSQL, not_utf8(valid=3)[1:], "has text that is not UTF-8"),
    (MYSQL, pa.ListArray.from_arrays([0, 2], not_utf8(valid=3)), INEXACT),
    (MYSQL, pa.array([1.0, None, math.nan]), "has a NaN or an infinity, which MySQL does not store"),
    (MYSQL, pa.array([-math.inf], pa.float32()), "has a NaN or an infinity, which MySQL does not store"),
    *(
        (dialect, array, YEARS)
        for dialect in (POSTGRES, MYSQL)
        for array in (
            pa.array([None, -719_163], pa.date32()),
            pa.array([2_932_897], pa.date32()),
            pa.array([2**31 - 1], pa.int32()).view(pa.date32()),
            pa.array([253_402_300_800_000_000], pa.timestamp("us", tz="UTC")),
            pa.array([-62_135_596_800_000_001], pa.timestamp("us")),
            pa.array([2**63 - 1], pa.timestamp("us")),
        )
    ),
    (POSTGRES, pa.array([[2_932_897]], pa.list_(pa.date32())), YEARS),
    (MYSQL, pa.array([[253_402_300_800_000_000]], pa.list_(pa.timestamp("us"))), INEXACT),
    (POSTGRES, pa.array([2**60], pa.timestamp("s")), INEXACT),
    (POSTGRES, pa.array([1], pa.timestamp("ns")), INEXACT),
    (MYSQL, pa.array([1], pa.time64("ns")), INEXACT),
    (POSTGRES, pa.array([-(2**63)], pa.duration("us")), INEXACT),
    (
        POSTGRES,
        pa.array([[]], pa.list_(pa.month_day_nano_interval())),
        "is a list of month_day_nano_interval, which cannot be written as text without loss",
    ),
]


@pytest.mark.parametrize(("dialect", "array", "reason"), REFUSED)
def test_a_refusal_names_the_column_and_the_reason_and_no_value(dialect: Format, array: pa.Array, reason: str) -> None:
    batch = pa.record_batch({"fine": pa.nulls(len(array)), "my column": array})
    with pytest.raises(Unwritable) as caught:
        lines(batch, [dialect.text(field) for field in batch.schema])
    assert f"column 'my column' {reason}" == str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_what_is_under_a_null_is_not_looked_at() -> None:
    assert ["é", None] == written(POSTGRES, not_utf8(valid=1))
    ends = pa.array([0, 1, 3], pa.int32()).buffers()[1]
    hidden = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\1"), ends, pa.py_buffer(b"a\0\t")])
    assert ["a", None] == written(POSTGRES, hidden)
    assert ["a", None] == written(MYSQL, hidden)


def test_a_backslash_before_u0000_is_only_a_text() -> None:
    array = pa.array([{"a": "\\u0000"}, {"a": "\\\\u0000"}])
    assert array.to_pylist() == read_back(written(POSTGRES, array), json.loads)


@pytest.mark.parametrize("dialect", [POSTGRES, MYSQL], ids=["postgresql", "mysql"])
def test_a_type_without_a_text_is_refused_before_any_row(dialect: Format) -> None:
    with pytest.raises(Unwritable, match="column 'c' has type month_day_nano_interval, which cannot be written"):
        dialect.text(pa.field("c", pa.month_day_nano_interval()))


def test_a_refusal_survives_the_way_from_a_task_to_the_driver() -> None:
    assert "column 'c' is odd" == str(pickle.loads(pickle.dumps(Unwritable("c", "is odd"))))  # noqa: S301


def test_a_task_imports_nothing_but_pyarrow() -> None:
    clients = {"pyspark", "psycopg", "pymysql", "pandas"}
    code = f"import sys, fencepost.connectors.table.bulk; print({clients} & {{*sys.modules}})"
    assert (
        "set()"
        == subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    )
