"""One start of a job: what ends it, and what it says then."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest
from fencepost_proof.stand_in import SCHEMA, StandIn

from fencepost import faults
from fencepost.config import Checkpoint, RunConfig
from fencepost.connectors.custom import WriteAheadLog
from fencepost.connectors.files.sink import Files
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.errors import Retryable, Tolerance
from fencepost.observe.events import Kind
from fencepost.observe.journal import Observer
from fencepost.runtime import pace
from fencepost.runtime.driver import Driver, Plan, Stopping
from fencepost.runtime.pace import MOST_S
from fencepost.store import LocalStore


def kinds(folder: Path) -> list[str]:
    """The ledger's records, in order."""
    return [json.loads(path.read_text())["kind"] for path in sorted(folder.glob("fencepost/*/ledger/*.json"))]


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_epoch_whose_commit_did_not_return_is_never_called_done(tmp_path: Path, raised: type[BaseException]) -> None:
    """A cancelled client raises what is no `Exception`; the decision stays open, and the next start sends the rows."""
    sent: list[int] = []

    def send(context: object, batches: object) -> None:
        if not sent:
            sent.append(-1)
            raise raised
        sent.extend(row["id"] for batch in batches for row in batch.to_pylist())  # type: ignore[attr-defined]

    def job() -> StandIn:
        return StandIn(tmp_path, (1, 3, 5), 3, {"api": WriteAheadLog(send, name="api", idempotent=True)})

    with pytest.raises(Retryable):
        job().run()
    assert ["lineage", "writer", "decision"] == kinds(tmp_path)
    job().run()
    assert [-1, 0, 1, 2] == sent
    assert "done" == kinds(tmp_path)[-1]


def test_a_record_that_was_linked_but_not_synced_does_not_make_a_driver_think_it_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails once, after the name was taken: a restart is right, so the error must allow one."""
    real = LocalStore.create

    def failing(self: LocalStore, name: str, data: bytes) -> bool:
        created = real(self, name, data)
        if b'"kind":"decision"' in data:
            raise OSError(5, "Input/output error")
        return created

    sink = WriteAheadLog(lambda context, batches: list(batches), name="api", idempotent=True)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "create", failing)
        with pytest.raises(Retryable) as failed:
            StandIn(tmp_path, (1, 3, 5), 3, {"api": sink}).run()
    assert "epoch_failed" == failed.value.code
    StandIn(tmp_path, (1, 3, 5), 3, {"api": sink}).run()
    assert ["lineage", "writer", "decision", "writer", "done"] == kinds(tmp_path)


@pytest.mark.parametrize(
    "point", ["barrier.before", "precommit.before", "precommit.after", "vote.after", "snapshot.after"]
)
def test_an_epoch_that_fails_before_its_decision_is_tried_again_by_the_same_driver(tmp_path: Path, point: str) -> None:
    sink = SQLite(tmp_path / "out.db", table="sums")
    faults.arm({faults.ARM: f"{point}=fail@2"})
    try:
        StandIn(tmp_path / "ck", (1, 3, 5), 1, {sink.name: sink}, bears=1).run()
    finally:
        faults.arm({})
    assert [1, 4, 9] == sums(tmp_path / "out.db")
    assert 1 == kinds(tmp_path / "ck").count("writer")


def test_more_failures_in_a_row_than_are_borne_end_the_query(tmp_path: Path) -> None:
    sink = SQLite(tmp_path / "out.db", table="sums")
    faults.arm({faults.ARM: "vote.before=fail@1,vote.before=fail@3,vote.before=fail@4"})
    try:
        with pytest.raises(Retryable):
            StandIn(tmp_path / "ck", (1, 3, 5), 1, {sink.name: sink}, bears=1).run()
    finally:
        faults.arm({})
    assert [1] == sums(tmp_path / "out.db"), "a success in between begins the count anew"


@pytest.mark.parametrize("point", ["decide.before", "decide.after", "commit.before"])
def test_an_epoch_that_may_be_decided_is_never_tried_again(tmp_path: Path, point: str) -> None:
    """Recovery alone knows what to do with it."""
    sink = SQLite(tmp_path / "out.db", table="sums")
    job = StandIn(tmp_path / "ck", (1, 3, 5), 1, {sink.name: sink}, bears=9)
    faults.arm({faults.ARM: f"{point}=fail@2"})
    try:
        with pytest.raises(Retryable):
            job.run()
    finally:
        faults.arm({})
    job.run()
    assert [1, 4, 9] == sums(tmp_path / "out.db")


def sums(database: Path) -> list[int]:
    """What the table holds, read without us."""
    connection = sqlite3.connect(database)
    try:
        return [row[0] for row in connection.execute('SELECT "sum" FROM sums ORDER BY "sum"')]
    finally:
        connection.close()


def test_what_a_borne_failure_left_is_undone_at_once(tmp_path: Path) -> None:
    """Recovery, which would do it, does not come: the driver lives on."""
    sink = Files(tmp_path / "out", format="parquet", name="sums")
    faults.arm({faults.ARM: "vote.after=fail@2"})
    try:
        StandIn(tmp_path / "ck", (1, 3, 5), 1, {sink.name: sink}, bears=1).run()
    finally:
        faults.arm({})
    assert [] == list((tmp_path / "out").rglob("staged/*"))
    assert 3 == len(list((tmp_path / "out").glob("*.parquet")))


@pytest.mark.parametrize(
    ("rests", "end", "rest_s"),
    [
        (True, 1, MOST_S),
        (True, 1000, MOST_S / 100),  # many records made one row
        (False, 1, 0.0),
    ],
)
def test_a_driver_rests_after_a_small_epoch_if_nobody_set_a_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int, rest_s: float, *, rests: bool
) -> None:
    monkeypatch.setattr(pace, "LONG_S", 3600.0)  # however slow the machine is
    sink = SQLite(tmp_path / "out.db", table="sums")
    driver = Driver(
        Plan(
            config=RunConfig(job="stand-in", checkpoint=Checkpoint(tmp_path / "ck")),
            store=LocalStore(tmp_path / "ck"),
            sinks={sink.name: sink},
            schemas={sink.name: SCHEMA},
            modes={sink.name: "append"},
            rests=rests,
        )
    )
    waited: list[float | None] = []
    driver.recover()
    driver.ending.wait = waited.append  # type: ignore[assignment,method-assign]
    for epoch, read in enumerate([0, end]):
        LocalStore(tmp_path / "ck").create(f"offsets/{epoch}", b'v1\n{}\n{"in":{"0":%d}}' % read)
        rows = driver.stage(epoch, pa.table({"id": [1], "value": [1], "sum": [1]}, SCHEMA))
        driver.run_epoch(epoch, rows, lambda: "")
        LocalStore(tmp_path / "ck").create(f"commits/{epoch}", b"")
    driver.close()
    assert [MOST_S if rests else 0.0, rest_s] == pytest.approx(waited)


def test_a_stop_while_an_epoch_is_tried_again_is_no_failure(tmp_path: Path) -> None:
    sink = SQLite(tmp_path / "out.db", table="sums")
    observer = Observer("stand-in")
    faults.arm({faults.ARM: "vote.before=fail@1"})
    drivers: list[Driver] = []
    plan = Plan(
        config=RunConfig(job="stand-in", checkpoint=Checkpoint(tmp_path / "ck")),
        store=LocalStore(tmp_path / "ck"),
        sinks={sink.name: sink},
        schemas={sink.name: SCHEMA},
        modes={sink.name: "append"},
        observer=observer,
        tolerance=Tolerance(9),
    )
    drivers.append(Driver(plan))
    observer.call(lambda event: drivers[0].ending.set(), Kind.TRIED_AGAIN)
    try:
        drivers[0].recover()
        LocalStore(tmp_path / "ck").create("offsets/0", b'v1\n{}\n{"position":1}')
        rows = drivers[0].stage(0, pa.table({"id": [1], "value": [1], "sum": [1]}, SCHEMA))
        with pytest.raises(Stopping):
            drivers[0].run_epoch(0, rows, lambda: "")
    finally:
        faults.arm({})
    drivers[0].close()
    assert drivers[0].failure is None
    assert drivers[0].turned_away
