"""Pairs of rows with one key in two epochs, and which of them a table has to keep when it compares by `order_by`."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from operator import itemgetter
from typing import Any

import pyarrow as pa

from fencepost.testing import SinkDriver

UTC = dt.UTC
INF = math.inf
TEXTS = [
    "",
    " ",
    "+1",
    "10",
    "9",
    "9 ",
    "A",
    "B",
    "Z",
    "a",
    "a\t",
    "a ",
    "a b",
    "aB",
    "ab",
    "b",
    "z",
    "ß",
    "é",
    "é ",
    "ｚ",
    "🐘",
]
TIMES = [
    dt.datetime(1, 1, 1),  # noqa: DTZ001 - a time without a zone is the point
    dt.datetime(999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - as above
    dt.datetime(2024, 1, 1),  # noqa: DTZ001 - as above
    dt.datetime(2024, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001 - as above
    dt.datetime(2024, 1, 1, 0, 0, 0, 500_000),  # noqa: DTZ001 - as above
    dt.datetime(2024, 1, 1, 0, 0, 1),  # noqa: DTZ001 - as above
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - as above
]
DAYS = [dt.timedelta(days=-400), dt.timedelta(microseconds=-1), dt.timedelta(0), dt.timedelta(days=1, hours=-1)]

ASCENDING: Mapping[str, tuple[pa.DataType, Sequence[Any]]] = {
    "bigint": (pa.int64(), [-(2**63), -10, -9, 0, 9, 10, 2**53, 2**53 + 1, 2**63 - 1]),
    "int": (pa.int32(), [-(2**31), -10, -9, 0, 9, 10, 2**31 - 1]),
    "double": (pa.float64(), [-INF, -1e300, -10.0, -9.5, 0.0, 5e-324, 9.5, 10.0, 1e300, INF]),
    "boolean": (pa.bool_(), [False, True]),
    "decimal": (pa.decimal128(12, 2), [*map(Decimal, ("-100", "-9.99", "-9.9", "0", "0.01", "9", "9.5", "10", "100"))]),
    "string": (pa.string(), sorted(TEXTS, key=str.encode)),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0", b"\1", b"a", b"\x7f", b"\x80", b"\xff"]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(999, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us", "UTC"), [time.replace(tzinfo=UTC) for time in TIMES]),
    "timestamp_ntz": (pa.timestamp("us"), TIMES),
    "time": (pa.time64("us"), [dt.time(0), dt.time(0, 0, 0, 1), dt.time(0, 0, 1), dt.time(10), dt.time(23, 59, 59, 9)]),
    "interval": (pa.duration("us"), [*DAYS, dt.timedelta(days=31), dt.timedelta(days=40_000)]),
}
"""By type of Spark: values that rise, as Spark and Arrow order them."""
NAN: Sequence[Any] = [-INF, 0.0, INF, math.nan]
"""NaN is the greatest number."""

Read = Callable[[str], list[tuple[Any, ...]]]


def check(driver: SinkDriver, kind: pa.DataType, ascending: Sequence[Any], read: Read) -> None:
    """Every value meets every other one, and NULL. The sink is ordered by `v`."""
    values = [None, *ascending]
    places = list(itertools.product(range(len(values)), repeat=2))
    _check(driver, ["v"], kind, [((values[i],), (values[j],), j >= i) for i, j in places], read)


def check_several(driver: SinkDriver, read: Read) -> None:
    """The sink is ordered by `a`, `b` and `c`, the first of them first."""
    values = list(itertools.product((None, 1, 2), repeat=3))
    places = list(itertools.product(range(len(values)), repeat=2))
    _check(driver, ["a", "b", "c"], pa.int64(), [(values[i], values[j], j >= i) for i, j in places], read)


def schema_of(names: Sequence[str], kind: pa.DataType, *, deletes: bool = False) -> pa.Schema:
    """Columns of the rows: a key `n`, those to order by, and who wrote the row."""
    gone = {"gone": pa.bool_()} if deletes else {}
    return pa.schema({"n": pa.int32(), **dict.fromkeys(names, kind), "who": pa.string(), **gone})


def _check(
    driver: SinkDriver, names: Sequence[str], kind: pa.DataType, pairs: Sequence[tuple[Any, Any, bool]], read: Read
) -> None:
    """Three epochs: the old rows; the new ones; and, if the sink removes rows, new ones that remove."""
    deletes = getattr(driver.sink, "deletes", None) is not None
    schema = schema_of(names, kind, deletes=deletes)

    def rows(side: int, who: str, *, gone: bool = False) -> pa.Table:
        found = [(n, *pair[side], who, gone) for n, pair in enumerate(pairs)]
        return pa.Table.from_pylist([dict(zip(schema.names, row, strict=False)) for row in found], schema)

    driver.run(0, rows(0, "old"))
    if deletes:
        driver.run(1, rows(1, "new", gone=True))
        assert [(n,) for n, pair in enumerate(pairs) if not pair[2]] == sorted(read("SELECT n FROM words"))
        return
    driver.run(1, rows(1, "new"))
    expected = [(n, "new" if pair[2] else "old") for n, pair in enumerate(pairs)]
    assert expected == sorted(read("SELECT n, who FROM words"))
    whole = [pair[int(pair[2])] for pair in pairs]
    nulls = ", ".join(f"{name} IS NULL" for name in names)
    found = sorted(read(f"SELECT n, {nulls} FROM words"), key=itemgetter(0))  # noqa: S608 - our own names
    expected_nulls = [tuple(value is None for value in row) for row in whole]
    assert expected_nulls == [tuple(map(bool, row[1:])) for row in found], "a row is replaced as a whole"
    if pa.types.is_integer(kind):
        found = sorted(read(f"SELECT n, {', '.join(names)} FROM words"), key=itemgetter(0))  # noqa: S608 - as above
        assert whole == [tuple(row[1:]) for row in found]
