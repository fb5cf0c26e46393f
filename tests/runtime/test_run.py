"""How a run ends, with a query that is only pretended."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fencepost_proof.stand_in import SCHEMA

from fencepost.config import Checkpoint, RunConfig
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.errors import EpochFailed, Fenced, RecoveryNeeded
from fencepost.observe.journal import Observer
from fencepost.runtime.driver import Driver, Plan
from fencepost.runtime.query import Run
from fencepost.store import LocalStore, parts


def driver(folder: Path) -> Driver:
    sink = SQLite(folder / "out.db", table="sums")
    names = {sink.name: sink}
    found = Driver(
        Plan(
            config=RunConfig(job="ends", checkpoint=Checkpoint(folder / "checkpoint")),
            store=LocalStore(folder / "checkpoint"),
            sinks=names,
            schemas=dict.fromkeys(names, SCHEMA),
            modes=dict.fromkeys(names, "append"),
        )
    )
    found.recover()
    return found


def ended_by_spark(by: Driver, said: str = "a staged file is gone") -> Run:
    """A query that Spark itself ended, before the epoch came to us."""
    query: Any = SimpleNamespace(exception=lambda: RuntimeError(said))
    return Run(query, by, SimpleNamespace(close=lambda: None), Observer("ends"))  # type: ignore[arg-type]


def test_a_query_that_spark_ends_because_of_a_newer_driver_ends_as_fenced(tmp_path: Path) -> None:
    """Otherwise a restart strategy would start it again, and the two drivers would take turns for ever."""
    run = ended_by_spark(driver(tmp_path))
    driver(tmp_path).close()
    with pytest.raises(Fenced):
        run.end()


def test_a_query_that_spark_ends_by_itself_ends_as_failed(tmp_path: Path) -> None:
    with pytest.raises(EpochFailed):
        ended_by_spark(driver(tmp_path)).end()


def test_a_disk_that_fails_is_said_to_be_the_reason_and_a_restart_may_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark says that it cannot read its state, and neither can we."""

    def fails(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(tmp_path))

    run = ended_by_spark(driver(tmp_path), "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED]")
    monkeypatch.setattr(parts, "check_newest", fails)
    with pytest.raises(RecoveryNeeded, match="Input/output error") as refused:
        run.end()
    assert "checkpoint_unusable" == refused.value.code
