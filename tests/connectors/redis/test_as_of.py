"""Redis keeps no older state, and shows an epoch chunk by chunk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fencepost_proof.rig.redis import Redis as Server

from fencepost import Redis, faults
from fencepost.testing import SinkDriver

TABLE = pa.table({"k": [f"k{number}" for number in range(6)], "v": list(range(6))})


class _Died(BaseException):
    pass


def test_keys_are_no_longer_as_they_were_once_a_later_epoch_is_partly_written(
    redis_server: Server, reader: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Redis(redis_server.url, key="k", prefix="as-of:", name="r", chunk_rows=2)
    driver = SinkDriver(sink, tmp_path)
    driver.start(TABLE.schema, "update")
    first = driver.run(0, TABLE)
    assert (True, "as it is now") == (driver.as_of(0, {0: first}).exact, driver.as_of(0, {0: first}).text)
    second = driver.pre_commit(1, TABLE)
    assert () == driver.vote(1, second)

    def reach(point: str) -> None:
        if point == "redis.chunk":
            raise _Died

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", reach)
        with pytest.raises(_Died):
            driver.commit(1, second)
    known = {0: first, 1: second}
    found = driver.as_of(0, known)
    assert (False, "", "epoch 1 is partly written, over it") == (found.exact, found.text, found.why)
    assert not driver.as_of(1, known).exact
    driver.commit(1, second)
    assert [False, True] == [driver.as_of(epoch, known).exact for epoch in (0, 1)]
    driver.session.close()
