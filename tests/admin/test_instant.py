"""`as-of` says how each target was right after an epoch: what its readers then see is what the job had written."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fencepost_proof.targets import Box
from small import Small

from fencepost.admin.instant import JobInstant, instant_of_job
from fencepost.admin.restore import rewind
from fencepost.connectors.duckdb.sink import DuckDB
from fencepost.connectors.files.layout import MANIFESTS, OWNER
from fencepost.connectors.files.sink import Files
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.connectors.table.mark import Mark, instant_of
from fencepost.contract import Asked, Epoch, Instant, Session, Sink
from fencepost.errors import BadConfig, CheckpointRefused, FencepostError
from fencepost.guarantee import Guarantee
from fencepost.store.ledger import read


def as_of(job: Small, epoch: int | None = None, sinks: Mapping[str, Sink] | None = None) -> JobInstant:
    return instant_of_job(job.checkpoint, job.sinks if sinks is None else sinks, epoch)


def one(found: JobInstant, sink: str) -> Instant:
    (instant,) = [each.instant for each in found.sinks if each.sink == sink]
    return instant


def words(found: JobInstant) -> dict[str, tuple[bool, str]]:
    return {each.sink: (each.instant.exact, each.instant.why) for each in found.sinks}


def ids(files: list[str]) -> list[int]:
    return sorted(number for file in files for number in pq.read_table(file).column("id").to_pylist())


def fingerprint(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def db(tmp_path: Path) -> Small:
    return Small(tmp_path, {"db": SQLite(tmp_path / "out.db", table="rows", name="db")})


@pytest.fixture(params=["rename", "manifest"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Small:
    return Small(tmp_path, {"files": Files(tmp_path / "files", name="files", visible=request.param)})


# --- folders


def test_the_files_of_an_epoch_are_those_up_to_it_and_another_epoch_has_others(folder: Small) -> None:
    folder.run(6)
    for epoch in range(6):
        found = one(as_of(folder, epoch), "files")
        assert (True, list(range(epoch + 1))) == (found.exact, ids(json.loads(found.text)))
        assert found.facts["files"] == json.loads(found.text)


def test_files_are_listed_in_the_order_of_the_epochs(folder: Small) -> None:
    folder.run(12)
    files = one(as_of(folder), "files").facts["files"]
    assert list(range(12)) == [number for file in files for number in ids([file])]


def test_an_epoch_that_the_ledger_still_has_finds_the_files_of_epochs_that_it_has_no_more(folder: Small) -> None:
    job = replace(folder, keep=2)
    job.run(7)
    found = as_of(job)
    assert 4 == read(job.checkpoint).decisions[0][1].epoch
    assert (True, list(range(7))) == (found.is_exact, ids(one(found, "files").facts["files"]))


def test_a_file_that_is_gone_or_changed_is_said_to_be(folder: Small) -> None:
    folder.run(3)
    before = one(as_of(folder, 0), "files")
    file = Path(one(as_of(folder), "files").facts["files"][1])
    kept = file.read_bytes()
    file.write_bytes(kept + b"\n")
    assert (False, f"{file.name} is missing or changed") == words(as_of(folder))["files"]
    file.unlink()
    found = one(as_of(folder), "files")
    assert (False, "", [file.name]) == (found.exact, found.text, found.facts["missing"])
    assert before == one(as_of(folder, 0), "files")  # the one before it needs only its own


def test_a_manifest_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    job = Small(tmp_path, {"files": Files(tmp_path / "files", name="files", visible="manifest")})
    job.run(3)
    (name,) = [path.name for path in (tmp_path / "files" / MANIFESTS).iterdir() if path.name.endswith("1.json")]
    (tmp_path / "files" / MANIFESTS / name).unlink()
    assert (False, f"manifest {name} is missing or changed") == words(as_of(job))["files"]
    assert as_of(job, 0).is_exact


def test_files_of_others_and_of_failed_attempts_are_left_out(folder: Small) -> None:
    folder.killed("decide.before=kill@3", epochs=3)
    (folder.folder / "files" / "notes.parquet").write_text("not ours")
    (folder.folder / "files" / "a-b-c-d.parquet").write_text("neither")
    found = one(as_of(folder), "files")
    assert (True, [0, 1]) == (found.exact, ids(found.facts["files"]))


def test_a_folder_that_was_replaced_or_belongs_to_another_is_not_taken_for_ours(folder: Small) -> None:
    folder.run(2)
    owner = folder.folder / "files" / OWNER
    kept = owner.read_bytes()
    state = read(folder.checkpoint)
    other = Small(folder.folder / "other", {"files": Files(folder.folder / "elsewhere", name="files")})
    other.run(1)
    owner.write_bytes((folder.folder / "elsewhere" / OWNER).read_bytes())
    assert f"it is written by lineage {read(other.checkpoint).lineage_id}" == words(as_of(folder))["files"][1]
    owner.write_bytes(kept)
    assert state.sinks["files"].target == one(as_of(folder), "files").identity
    shutil.rmtree(folder.folder / "files")
    why = "its target is not the one in the ledger; it has no identity, so it is gone or was emptied"
    assert {"files": (False, why)} == words(as_of(folder))


# --- databases


@pytest.mark.parametrize("make", [SQLite, DuckDB])
def test_a_table_is_the_instant_of_its_newest_epoch_and_of_no_other(make: type[Sink], tmp_path: Path) -> None:
    job = Small(tmp_path, {"db": make(tmp_path / "out.db", table="rows", name="db")})  # type: ignore[call-arg]
    job.run(3)
    now = as_of(job)
    assert (2, 2, True, "as it is now") == (now.epoch, now.newest, now.is_exact, one(now, "db").text)
    older = as_of(job, 1)
    assert {"db": (False, "it has moved on to generation 0, epoch 2, and keeps no older state")} == words(older)
    assert ({"generation": 0, "epoch": 2}, "") == (one(older, "db").facts, one(older, "db").text)


def test_a_table_that_was_set_back_does_not_hold_the_epoch(db: Small) -> None:
    db.run(2)
    copy = (db.folder / "out.db").read_bytes()
    db.run(1)
    (db.folder / "out.db").write_bytes(copy)
    for epoch, expected in ((1, True), (2, False)):
        assert expected == as_of(db, epoch).is_exact
    assert "it does not hold that epoch: its newest is generation 0, epoch 1" in words(as_of(db))["db"][1]


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("DELETE FROM fencepost_epoch", "it has no mark for this job and sink"),
        ("DROP TABLE rows", "table 'rows' does not exist"),
        ("UPDATE fencepost_epoch SET lineage = 'x'", "its mark belongs to another lineage (x)"),
        ("UPDATE fencepost_epoch SET handle = 'x'", "it does not hold that epoch: its newest is generation 0, epoch 1"),
    ],
)
def test_a_table_whose_mark_does_not_show_the_epoch_is_not_taken_for_it(db: Small, statement: str, why: str) -> None:
    db.run(2)
    assert as_of(db).is_exact
    with closing(sqlite3.connect(db.folder / "out.db", isolation_level=None)) as connection:
        connection.execute(statement)
    exact, said = words(as_of(db))["db"]
    assert (False, True) == (exact, said.startswith(why))


@pytest.mark.parametrize(("epoch", "exact"), [(3, False), (4, True), (5, False)])
def test_a_mark_is_compared_also_with_an_epoch_whose_decision_is_not_retained(epoch: int, exact: bool) -> None:
    mark = Mark("l", 0, 4, "h", 1)
    assert exact == instant_of(mark, Asked(lineage="l", epochs={}), Epoch(epoch)).exact


def test_a_table_in_another_file_of_the_same_name_is_not_the_target(db: Small) -> None:
    db.run(1)
    other = Small(db.folder / "other", {"db": SQLite(db.folder / "other.db", table="rows", name="db")})
    other.run(1)
    (db.folder / "other.db").rename(db.folder / "out.db")
    assert {"db": (False, "its target is not the one in the ledger; it was replaced by another")} == words(as_of(db))


def test_a_target_that_does_not_answer_is_not_heard(db: Small) -> None:
    db.run(1)
    (db.folder / "out.db").write_bytes(b"this is not a database, however often it is opened" * 100)
    found = as_of(db)
    assert (False, False, False) == (found.is_exact, found.is_heard, one(found, "db").heard)


# --- sinks that cannot tell


class _Raises(Box):
    def session(self, job: str) -> Session:
        made = super().session(job)

        def as_of(asked: Asked, epoch: Epoch) -> Instant:
            raise RuntimeError("the row is 4711")

        made.as_of = as_of  # type: ignore[method-assign]
        return made


def test_a_sink_of_your_own_cannot_tell_and_one_that_raises_did_not_answer(tmp_path: Path) -> None:
    job = Small(tmp_path, {"box": Box(tmp_path / "box")})
    job.run(2)
    found = as_of(job)
    assert {"box": (False, "this sink has no way to tell how its target was")} == words(found)
    assert found.is_heard
    found = as_of(job, sinks={"box": _Raises(tmp_path / "box")})
    assert (False, True) == (found.is_heard, "RuntimeError" in words(found)["box"][1])
    assert "4711" not in words(found)["box"][1]


def test_without_the_sinks_no_target_is_asked(db: Small) -> None:
    db.run(2)
    found = instant_of_job(db.checkpoint)
    assert {"db": (False, "its target was not asked")} == words(found)
    assert ("No target was asked: name the job's FILE to include them.",) == found.notes


# --- which epoch


def test_nothing_is_changed_by_asking(tmp_path: Path) -> None:
    sinks: dict[str, Sink] = {
        "db": SQLite(tmp_path / "out.db", table="rows", name="db"),
        "duck": DuckDB(tmp_path / "out.duckdb", table="rows", name="duck"),
        "files": Files(tmp_path / "files", name="files"),
        "listed": Files(tmp_path / "listed", name="listed", visible="manifest"),
        "box": Box(tmp_path / "box"),
    }
    job = Small(tmp_path, sinks)
    job.run(3)
    before = fingerprint(tmp_path)
    assert ["box", "db", "duck", "files", "listed"] == [each.sink for each in as_of(job, 1).sinks]
    assert before == fingerprint(tmp_path)


def test_a_running_job_is_asked_between_two_epochs(db: Small) -> None:
    """Its last decision is open until the next one says that it is done; Spark's log says so already."""
    with db.driver() as driver:
        for epoch in range(3):
            db.epoch(driver)
            found = as_of(db)
            assert (epoch, True) == (found.epoch, found.is_exact)


def test_an_epoch_that_is_decided_and_not_done_is_refused_until_recovery_finishes_it(db: Small) -> None:
    db.killed("decide.after=kill@3", epochs=3)
    assert (1, True) == (as_of(db).epoch, as_of(db).is_exact)
    with pytest.raises(CheckpointRefused) as refused:
        as_of(db, 2)
    assert ("open_decision", 2) == (refused.value.code, 2)
    assert "Epochs that can be named: 0 to 1." in refused.value.next
    db.run(0)
    assert (2, True) == (as_of(db).epoch, as_of(db, 2).is_exact)


def test_an_epoch_of_the_future_is_refused(db: Small) -> None:
    db.run(2)
    with pytest.raises(BadConfig) as refused:
        as_of(db, 2)
    assert ("unknown_epoch", "Epoch 2 is not decided yet.") == (refused.value.code, refused.value.what)
    assert "Epochs that can be named: 0 to 1." in refused.value.next


def test_an_epoch_that_is_no_longer_retained_is_refused(db: Small) -> None:
    job = replace(db, keep=2)
    job.run(5)
    with pytest.raises(BadConfig) as refused:
        as_of(job, 1)
    assert "epoch_not_retained" == refused.value.code
    assert "Epochs that can be named: 2 to 4." in refused.value.next


def test_a_job_that_decides_nothing_is_refused(db: Small) -> None:
    job = replace(db, guarantee=Guarantee.AT_LEAST_ONCE)
    job.run(1)
    with pytest.raises(CheckpointRefused) as refused:
        as_of(job)
    assert "nothing_decided" == refused.value.code


def test_a_job_without_an_epoch_is_refused(db: Small) -> None:
    db.run(0)
    with pytest.raises(FencepostError) as refused:
        as_of(db)
    assert "nothing_decided" == refused.value.code


def test_a_first_epoch_that_is_not_done_leaves_nothing_to_name(db: Small) -> None:
    db.killed("decide.after=kill")
    for epoch, code in ((None, "unknown_epoch"), (0, "open_decision"), (1, "unknown_epoch")):
        with pytest.raises(FencepostError) as refused:
            as_of(db, epoch)
        assert (code, True) == (refused.value.code, "No epoch is done yet." in refused.value.next)


# --- what came before: sinks that were added, changed or rewound


def test_a_sink_that_was_added_later_had_nothing_yet_and_one_that_was_taken_away_is_not_asked(db: Small) -> None:
    db.run(2)
    files = Files(db.folder / "files", name="files")
    more = replace(db, sinks={**db.sinks, "files": files}, allow_sink_changes=True)
    more.run(2)
    assert (True, "the job did not write to it yet") == words(as_of(more, 1))["files"]
    found = one(as_of(more, 3), "files")
    assert (True, [2, 3]) == (found.exact, ids(found.facts["files"]))
    found_without = as_of(more, 3, sinks={"files": files})
    assert (False, "its target was not asked") == words(found_without)["db"]
    assert ("Sink db is in the ledger but not in the job: its target was not asked.",) == found_without.notes


def test_a_sink_that_got_another_target_says_so_of_epochs_before_the_change(db: Small) -> None:
    db.run(2)
    moved = replace(db, sinks={"db": SQLite(db.folder / "new.db", table="rows", name="db")}, allow_sink_changes=True)
    moved.run(1)
    assert as_of(moved, 2).is_exact
    why = "the sink has another target now than it had in that epoch"
    assert {"db": (False, why)} == words(as_of(moved, 1))


def test_after_a_rewind_epochs_are_those_of_the_lineage_that_goes_on(folder: Small) -> None:
    folder.run(4)
    old = read(folder.checkpoint).lineage_id
    rewind(folder.checkpoint, 1, "overwrite")
    for name in ("offsets", "commits"):
        for number in (2, 3):
            (folder.checkpoint / name / str(number)).unlink(missing_ok=True)
    found = as_of(folder)
    assert (1, False) == (found.epoch, found.is_exact)
    why = f"this lineage had no rows for it yet: it continues after epoch 1 of lineage {old}, whose rows it held"
    assert {"files": (False, why)} == words(found)
    assert f"continues after epoch 1 of lineage {old}" in found.notes[0]
    folder.run(2)
    found = as_of(folder, 2)
    # The folder as it was: with all that the lineage before wrote, and the new epoch 2.
    assert (True, 1, [0, 1, 2, 2, 3]) == (found.is_exact, found.generation, ids(one(found, "files").facts["files"]))
    with pytest.raises(BadConfig) as refused:
        as_of(folder, 0)
    assert ("epoch_not_retained", True) == (refused.value.code, f"epoch 1 of {old}" in refused.value.what)
