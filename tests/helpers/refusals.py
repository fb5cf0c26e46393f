"""Rows of which a table refuses some, for every database that has the same words for a table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from fencepost.errors import EpochFailed
from fencepost.testing import SinkDriver

SCHEMA = pa.schema({"k": pa.string(), "v": pa.int64(), "gone": pa.bool_()})
TABLE = "k varchar(8) {key}, v bigint NOT NULL CHECK (v < 100), u bigint DEFAULT 1 UNIQUE"
"""No two rows fit into it, whatever they hold: what is between rows makes none of them a bad one."""
BAD = {3: None, 4: 100, 11: None, 39: 7777}


def rows(*, nameless: int | None, doubtful: int | None, long: int | None) -> pa.Table:
    return pa.table(
        {
            "k": [None if n == nameless else f"k{n}" * (9 if n == long else 1) for n in range(40)],
            "v": [BAD.get(n, n) for n in range(40)],
            "gone": [None if n == doubtful else n == 38 for n in range(40)],
        },
        SCHEMA,
    )


def check(driver: SinkDriver, *, keyed: bool, long: int | None = None) -> None:
    """Each refused row is named with its reason and without its value, and nothing is left in the table.

    `long`: a row with a text that is too long, for a database that minds.
    """
    table = rows(nameless=20 if keyed else None, doubtful=21 if keyed else None, long=long)
    table = table if keyed else table.drop_columns("gone")
    with pytest.raises(EpochFailed) as refused:
        driver.vote(0, driver.pre_commit(0, table))
    assert "rows_refused" == refused.value.code
    [batch] = table.combine_chunks().to_batches()
    found: dict[int, Any] = dict(driver.session.refused(0, batch))  # type: ignore[arg-type]
    assert {*BAD, *({20, 21} if keyed else ()), *({long} - {None})} == set(found)
    assert "null" in found[3].lower()
    assert "check" in found[4].lower()
    assert long is None or "long" in found[long] or "truncated" in found[long]
    assert not any("7777" in reason for reason in found.values())
    good = table.filter(pa.array([place not in found for place in range(40)])).slice(0, 1)
    driver.run(0, good)
    assert {} == driver.session.refused(1, good.to_batches()[0])  # type: ignore[arg-type]
