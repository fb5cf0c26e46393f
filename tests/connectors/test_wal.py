"""Any function: the contract for one that upserts and one that only sends, and what happens when it fails."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fencepost.connectors.custom import WriteAheadLog
from fencepost.contract import EpochContext
from fencepost.errors import BadConfig, EpochFailed, OperatorNeeded
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch
from fencepost.testing import SinkContract, SinkDriver, rows_of

TABLE = pa.table({"k": ["a", "b"], "v": [1, 2]})


class Api:
    """A little service with a key: what is put twice is there once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> dict[str, int]:
        found: dict[str, int] = json.loads(self.path.read_text()) if self.path.exists() else {}
        return found

    def upsert(self, context: EpochContext, batches: Iterable[pa.RecordBatch]) -> None:
        if self.path.with_suffix(".down").exists():
            raise ConnectionError("value-0-0 was not taken")
        rows = self.rows()
        for batch in batches:
            rows |= dict(zip(batch["k"].to_pylist(), batch["v"].to_pylist(), strict=True))
        self.path.write_text(json.dumps(rows))


@contextmanager
def down(path: Path) -> Any:
    path.with_suffix(".down").touch()
    yield
    path.with_suffix(".down").unlink()


class TestIdempotent(SinkContract):
    remembers_owner = False
    has_identity = False

    def make_sink(self, tmp_path: Path) -> WriteAheadLog:
        return WriteAheadLog(Api(tmp_path / "api.json").upsert, name="api", idempotent=True)

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        return list(Api(tmp_path / "api.json").rows().items())

    def silence(self, tmp_path: Path) -> AbstractContextManager[object]:
        return down(tmp_path / "api.json")


class TestAtLeastOnce(TestIdempotent):
    def make_sink(self, tmp_path: Path) -> WriteAheadLog:
        return WriteAheadLog(Api(tmp_path / "api.json").upsert, name="api")


def started(sink: WriteAheadLog, folder: Path, **owner: Any) -> SinkDriver:
    driver = SinkDriver(sink, folder, **owner)
    driver.start(TABLE.schema)
    return driver


def test_a_function_learns_which_epoch_it_sends(tmp_path: Path) -> None:
    calls = []
    sink = WriteAheadLog(lambda context, batches: calls.append((context, pa.Table.from_batches(batches))), name="f")
    started(sink, tmp_path, generation=2).run(7, TABLE)
    assert [(EpochContext(job="job", sink="f", generation=2, epoch=7), TABLE)] == calls


def test_a_failing_function_is_in_doubt_and_its_error_is_logged_without_its_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def send(context: EpochContext, batches: Iterable[pa.RecordBatch]) -> None:
        raise ConnectionError("a secret")

    driver = started(WriteAheadLog(send, name="f"), tmp_path)
    handle = driver.pre_commit(3, TABLE)
    with caplog.at_level(logging.WARNING):
        assert Outcome.IN_DOUBT == driver.commit(3, handle)
    (line,) = caplog.messages
    assert line.startswith("sink f: send() failed in epoch 3: ConnectionError at ")
    assert "secret" not in line
    with pytest.raises(EpochFailed):
        driver.session.write(Epoch(3), driver.rows(3, TABLE))


def test_only_an_idempotent_function_counts_as_repeatable() -> None:
    plain, declared = (WriteAheadLog(print, name="f", idempotent=yes).capabilities for yes in (False, True))
    assert (False, True) == (plain.repeatable, declared.repeatable)
    assert (frozenset({"append"}), frozenset({"append", "update"})) == (plain.modes, declared.modes)
    assert "idempotent=True" in plain.remedy


def test_changed_staged_rows_are_never_sent(tmp_path: Path) -> None:
    calls: list[object] = []
    driver = started(WriteAheadLog(lambda *call: calls.append(call), name="f"), tmp_path)
    handle = driver.pre_commit(0, TABLE)
    (driver.owner.staging.root / handle.kept[0].file).unlink()
    with pytest.raises(OperatorNeeded):
        driver.commit(0, handle)
    assert [] == calls


def test_update_mode_needs_a_function_that_says_it_upserts() -> None:
    with pytest.raises(BadConfig):
        WriteAheadLog(print, name="f").session("job").preflight(TABLE.schema, "update")


def test_a_sink_without_a_name_is_refused() -> None:
    with pytest.raises(BadConfig):
        WriteAheadLog(print, name="")


def test_rows_arrive_in_their_order(tmp_path: Path) -> None:
    seen: list[int] = []
    sink = WriteAheadLog(lambda _, batches: seen.extend(v for b in batches for v in b["v"].to_pylist()), name="f")
    table = pa.table({"k": ["x"] * 25_000, "v": list(range(25_000))})
    started(sink, tmp_path).run(0, table)
    assert list(range(25_000)) == seen
    assert 25_000 == len(rows_of(table))
