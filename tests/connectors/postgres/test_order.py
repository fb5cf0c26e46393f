"""With `order_by` the row with the greatest value stays, also against rows of earlier epochs, by Spark's order."""

from __future__ import annotations

from typing import Any

import orders
import pyarrow as pa
import pytest

from fencepost.errors import TargetRefused


def started(place: Any, names: Any, kind: pa.DataType, *, deletes: bool = False) -> Any:
    sink = place.sink(key="n", order_by=tuple(names), staging="checkpoint", deletes="gone" if deletes else None)
    return place.started(sink, orders.schema_of(names, kind, deletes=deletes))


@pytest.mark.parametrize("deletes", [False, True], ids=["replaced", "removed"])
@pytest.mark.parametrize("name", orders.ASCENDING)
def test_the_server_orders_values_of_every_type_as_spark_does(place: Any, name: str, deletes: bool) -> None:
    kind, values = orders.ASCENDING[name]
    orders.check(started(place, ["v"], kind, deletes=deletes), kind, values, place.query)


def test_nan_is_the_greatest(place: Any) -> None:
    orders.check(started(place, ["v"], pa.float64()), pa.float64(), orders.NAN, place.query)


@pytest.mark.parametrize("deletes", [False, True], ids=["replaced", "removed"])
def test_several_columns_are_compared_from_left_to_right(place: Any, deletes: bool) -> None:
    orders.check_several(started(place, "abc", pa.int64(), deletes=deletes), place.query)


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("varchar(20)", "string"),
        ("text COLLATE english", "string"),
        ("numeric", "bigint"),
        ("numeric(30, 4)", "decimal"),
        ("double precision", "int"),
    ],
)
def test_a_column_of_another_type_or_collation_orders_them_alike(place: Any, column: str, name: str) -> None:
    place.run("CREATE COLLATION english (provider = icu, locale = 'en')")
    place.run(f"CREATE TABLE words (n int PRIMARY KEY, v {column}, who text)")
    kind, values = orders.ASCENDING[name]
    orders.check(started(place, ["v"], kind), kind, values, place.query)


@pytest.mark.parametrize("column", ["uuid", "jsonb", "inet", "char(20)", "mood"])
def test_a_column_of_another_order_is_refused_before_any_row(place: Any, column: str) -> None:
    place.run(f"CREATE TYPE mood AS ENUM ('b', 'a'); CREATE TABLE words (n int PRIMARY KEY, v {column}, who text)")
    with pytest.raises(TargetRefused, match="column 'v' is") as refused:
        started(place, ["v"], pa.string())
    assert "order_differs" == refused.value.code


def test_rows_with_one_key_in_an_epoch_are_compared_too(place: Any) -> None:
    """More of them than one statement takes at first: the greatest is the last of a stage, or loses to the table."""
    driver = started(place, ["v"], pa.int64())
    schema = orders.schema_of(["v"], pa.int64())
    for epoch, values in enumerate([[5], [3, 4], [4, 6, 1], [None, 2]]):
        driver.run(epoch, pa.Table.from_pylist([{"n": 1, "v": v, "who": f"{epoch}-{v}"} for v in values], schema))
    assert [(1, 6, "2-6")] == place.query("SELECT n, v, who FROM words")
