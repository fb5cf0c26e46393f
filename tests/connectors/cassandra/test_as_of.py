"""Cassandra keeps no older state, and shows the rows of an epoch before its mark moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from fencepost.testing import SinkDriver

TABLE = pa.table({"k": ["a", "b"], "v": [1, 2]})


def test_rows_of_a_later_epoch_may_be_there_as_soon_as_it_is_decided(
    place: Any, start: Callable[..., SinkDriver]
) -> None:
    driver = start(place.sink("as_of", name="as-of"), TABLE.schema)
    first = driver.run(0, TABLE)
    assert (True, "as it is now") == (driver.as_of(0, {0: first}).exact, driver.as_of(0, {0: first}).text)
    second = driver.pre_commit(1, TABLE)
    assert () == driver.vote(1, second)
    known = {0: first, 1: second}
    found = driver.as_of(0, known)
    why = "epoch 1 is decided, and some of its rows may be there already"
    assert (False, "", why) == (found.exact, found.text, found.why)
    driver.commit(1, second)
    assert [False, True] == [driver.as_of(epoch, known).exact for epoch in (0, 1)]
