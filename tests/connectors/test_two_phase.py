"""A transactional system of one's own: a little store of files that can prepare, commit and forget."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fencepost.connectors.custom import TwoPhaseCommit
from fencepost.contract import Unit
from fencepost.errors import EpochFailed
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import WriterNumber
from fencepost.testing import SinkContract, SinkDriver

TABLE = pa.table({"k": ["a", "b"], "v": [1, 2]})


@dataclass
class Load:
    id: str
    rows: list[list[Any]] = field(default_factory=list)


class Shelf(TwoPhaseCommit[Load]):
    """prepared/<id> → committed/<id>: one rename, which the store remembers."""

    def __init__(self, folder: Path) -> None:
        self.name = "shelf"
        self.folder = folder

    def begin(self, unit: Unit) -> Load:
        return Load(unit.id)

    def write(self, transaction: Load, batch: pa.RecordBatch) -> None:
        transaction.rows += [list(row.values()) for row in batch.to_pylist()]

    def pre_commit(self, transaction: Load) -> Mapping[str, Any]:
        (self.folder / "prepared" / transaction.id).write_text(json.dumps(transaction.rows))
        return {"id": transaction.id}

    def can_commit(self, body: Mapping[str, Any]) -> bool:
        return (self.folder / "prepared" / body["id"]).exists()

    def commit(self, body: Mapping[str, Any]) -> Outcome | None:
        identity = self.folder / "identity"
        if not identity.exists():
            raise ConnectionError("the shelf does not answer")
        committed = self.folder / "committed" / body["id"]
        prepared = self.folder / "prepared" / body["id"]
        if prepared.exists():
            prepared.rename(committed)
        return Outcome.DONE if committed.exists() else Outcome.GONE

    def is_committed(self, body: Mapping[str, Any]) -> bool:
        return (self.folder / "committed" / body["id"]).exists()

    def abort(self, body: Mapping[str, Any]) -> None:
        (self.folder / "prepared" / body["id"]).unlink(missing_ok=True)

    def recover_orphans(self, before: int) -> Iterable[Mapping[str, Any]]:
        return ({"id": file.name} for file in (self.folder / "prepared").iterdir())

    def identity(self) -> str:
        for name in ("prepared", "committed"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        file = self.folder / "identity"
        if not file.exists():
            file.write_text(uuid.uuid4().hex)
        return file.read_text()


@contextmanager
def silent(folder: Path) -> Any:
    (folder / "identity").rename(folder / "away")
    yield
    (folder / "away").rename(folder / "identity")


class TestShelf(SinkContract):
    remembers_owner = False
    lists_orphans = True
    tells = True

    def make_sink(self, tmp_path: Path) -> Shelf:
        return Shelf(tmp_path / "shelf")

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        files = (tmp_path / "shelf" / "committed").iterdir()
        return [tuple(row) for file in files for row in json.loads(file.read_text())]

    def silence(self, tmp_path: Path) -> Any:
        return silent(tmp_path / "shelf")

    def forget(self, tmp_path: Path) -> bool:
        for file in (tmp_path / "shelf" / "committed").iterdir():
            file.unlink()
        return True


def started(sink: Shelf, folder: Path, **owner: Any) -> SinkDriver:
    driver = SinkDriver(sink, folder, **owner)
    driver.start(TABLE.schema)
    return driver


def test_a_lost_transaction_fails_the_vote_and_is_gone_at_the_commit(tmp_path: Path) -> None:
    driver = started(Shelf(tmp_path), tmp_path)
    handle = driver.pre_commit(0, TABLE)
    (tmp_path / "prepared" / handle.id).unlink()
    assert (handle.id,) == driver.vote(0, handle)
    assert Outcome.GONE == driver.commit(0, handle)


def test_kept_rows_let_a_lost_transaction_be_written_again(tmp_path: Path) -> None:
    driver = started(Shelf(tmp_path), tmp_path)
    lost = driver.pre_commit(0, TABLE)
    (tmp_path / "prepared" / lost.id).unlink()
    again = driver.session.pre_commit(0, driver.owner.staging.rows_again(lost))  # type: ignore[arg-type]
    assert again is not None
    assert ((), Outcome.DONE) == (driver.vote(0, again), driver.commit(0, again))


def test_an_error_in_commit_is_in_doubt_and_logged_without_its_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Rude(Shelf):
        def commit(self, body: Mapping[str, Any]) -> Outcome | None:
            raise OSError("a secret")

    driver = started(Rude(tmp_path), tmp_path)
    with caplog.at_level(logging.WARNING):
        assert Outcome.IN_DOUBT == driver.commit(0, driver.pre_commit(0, TABLE))
    assert "sink shelf: commit() failed: OSError at " in caplog.text
    assert "secret" not in caplog.text


def test_a_commit_that_returns_nothing_is_done(tmp_path: Path) -> None:
    class Quiet(Shelf):
        def commit(self, body: Mapping[str, Any]) -> None:
            super().commit(body)

    started(Quiet(tmp_path), tmp_path).run(0, TABLE)
    assert 1 == len(list((tmp_path / "committed").iterdir()))


def test_an_error_while_writing_fails_the_epoch_and_discards_the_transaction(tmp_path: Path) -> None:
    discarded = []

    class Broken(Shelf):
        def write(self, transaction: Load, batch: pa.RecordBatch) -> None:
            raise OSError("a secret")

        def discard(self, transaction: Load) -> None:
            discarded.append(transaction.id)
            raise OSError("even this")

    driver = started(Broken(tmp_path), tmp_path)
    with pytest.raises(EpochFailed, match="OSError") as failed:
        driver.pre_commit(0, TABLE)
    assert (1, False) == (len(discarded), "secret" in str(failed.value))


def test_a_body_without_the_units_id_is_refused(tmp_path: Path) -> None:
    class Nameless(Shelf):
        def pre_commit(self, transaction: Load) -> Mapping[str, Any]:
            super().pre_commit(transaction)
            return {"name": transaction.id}

    with pytest.raises(EpochFailed, match="pre-committing failed"):
        started(Nameless(tmp_path), tmp_path).pre_commit(0, TABLE)


def test_a_careless_list_of_orphans_is_filtered(tmp_path: Path) -> None:
    driver = started(Shelf(tmp_path), tmp_path, writer=5)
    for name in ("aaaaaaaa-4-0-x", "aaaaaaaa-5-0-x", "aaaaaaaa-6-0-x", "bbbbbbbb-1-0-x", "somebody's"):
        (tmp_path / "prepared" / name).write_text("[]")
    assert ["aaaaaaaa-4-0-x"] == [handle.id for handle in driver.session.orphans(WriterNumber(5))]


def test_rows_are_not_kept_if_the_system_never_loses_them(tmp_path: Path) -> None:
    class Firm(Shelf):
        perishable = False
        keep_rows = False

    sink = Firm(tmp_path)
    assert (False, False) == (sink.capabilities.perishable, sink.capabilities.keeps_rows)
    assert () == started(sink, tmp_path).pre_commit(0, TABLE).kept
