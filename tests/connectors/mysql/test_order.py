"""With `order_by` the row with the greatest value stays, also against rows of earlier epochs, by Spark's order."""

from __future__ import annotations

from typing import Any

import orders
import pyarrow as pa
import pytest

from fencepost.errors import EpochFailed, TargetRefused

INFINITE = (float("inf"), float("-inf"))
"""MySQL has no such numbers."""


@pytest.fixture(params=["place", "mysql_place"], ids=["mariadb", "mysql"])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def started(place: Any, names: Any, kind: pa.DataType, *, deletes: bool = False) -> Any:
    sink = place.sink(key="n", order_by=tuple(names), deletes="gone" if deletes else None)
    return place.started(sink, orders.schema_of(names, kind, deletes=deletes))


@pytest.mark.parametrize("deletes", [False, True], ids=["replaced", "removed"])
@pytest.mark.parametrize("name", orders.ASCENDING)
def test_the_server_orders_values_of_every_type_as_spark_does(server: Any, name: str, deletes: bool) -> None:
    kind, values = orders.ASCENDING[name]
    values = [value for value in values if value not in INFINITE]
    orders.check(started(server, ["v"], kind, deletes=deletes), kind, values, server.query)


def test_nan_is_refused(server: Any) -> None:
    driver = started(server, ["v"], pa.float64())
    rows = pa.Table.from_pylist([{"n": 1, "v": float("nan"), "who": "x"}], orders.schema_of(["v"], pa.float64()))
    with pytest.raises(EpochFailed):
        driver.vote(0, driver.pre_commit(0, rows))


@pytest.mark.parametrize("deletes", [False, True], ids=["replaced", "removed"])
def test_several_columns_are_compared_from_left_to_right(server: Any, deletes: bool) -> None:
    """MySQL sets one column after the other, and compares with what it has set."""
    orders.check_several(started(server, "abc", pa.int64(), deletes=deletes), server.query)


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", "string"),
        ("text CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "string"),
        ("decimal(30, 0)", "bigint"),
        ("decimal(30, 4)", "decimal"),
        ("double", "int"),
        ("timestamp(6)", "timestamp"),
    ],
)
def test_a_column_of_another_type_or_collation_orders_them_alike(server: Any, column: str, name: str) -> None:
    server.run(f"CREATE TABLE words (n int PRIMARY KEY, v {column} NULL, who text)")
    kind, values = orders.ASCENDING[name]
    if "timestamp" in column:  # of the years 1970 to 2038
        values = [value for value in values if value.year == 2024]
    orders.check(started(server, ["v"], kind), kind, values, server.query)


@pytest.mark.parametrize("column", ["uuid", "inet6"])
def test_a_column_of_another_order_is_refused_before_any_row(place: Any, column: str) -> None:
    place.run(f"CREATE TABLE words (n int PRIMARY KEY, v {column}, who text)")
    with pytest.raises(TargetRefused, match="column 'v' is") as refused:
        started(place, ["v"], pa.string())
    assert "order_differs" == refused.value.code


def test_rows_with_one_key_in_an_epoch_are_compared_too(server: Any) -> None:
    driver = started(server, ["v"], pa.int64())
    schema = orders.schema_of(["v"], pa.int64())
    for epoch, values in enumerate([[5], [3, 4], [4, 6, 1], [None, 2]]):
        driver.run(epoch, pa.Table.from_pylist([{"n": 1, "v": v, "who": f"{epoch}-{v}"} for v in values], schema))
    assert [(1, 6, "2-6")] == server.query("SELECT n, v, who FROM words")
