"""A pooler between the job and the server: a session of our own, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from fencepost_proof.rig.pgbouncer import PgBouncer

from fencepost.errors import TargetRefused

WORDS = pa.table({"k": ["a"], "v": [1]})


@pytest.fixture
def pooled(require: Callable[[str], None]) -> None:
    require("pgbouncer")


@pytest.mark.usefixtures("pooled")
@pytest.mark.parametrize("key", [None, "k"])
def test_a_transaction_in_somebody_elses_session_is_refused(place: Any, tmp_path: Path, key: str | None) -> None:
    """There, synchronous_commit may be off, and what we commit may be lost."""
    with PgBouncer(tmp_path / "pooler", server=place.server, settings={"pool_mode": "transaction"}) as pooler:
        sink = place.sink(f"{place.schema}.words", dsn=pooler.dsn, key=key)
        driver = place.started(sink, WORDS.schema)
        driver.run(0, WORDS)  # alone, it gets the same session again and again
        with psycopg.connect(pooler.dsn) as other:
            other.execute("SELECT 1")  # an open transaction: the session is taken
            with pytest.raises(TargetRefused, match="pool_mode = session") as refused:
                driver.vote(1, driver.pre_commit(1, WORDS))
        assert "target_unusable" == refused.value.code
    assert [(1,)] == place.query("SELECT count(*) FROM words")


@pytest.mark.usefixtures("pooled")
def test_a_pooler_in_session_mode_changes_nothing(place: Any, tmp_path: Path) -> None:
    with PgBouncer(tmp_path / "pooler", server=place.server, settings={"pool_mode": "session"}) as pooler:
        driver = place.started(place.sink(f"{place.schema}.words", dsn=pooler.dsn, key="k"), WORDS.schema)
        driver.run(0, WORDS)
        with psycopg.connect(pooler.dsn) as other:
            other.execute("SELECT 1")
            driver.run(1, WORDS)
        assert [("a", 1)] == place.query("SELECT k, v FROM words")
