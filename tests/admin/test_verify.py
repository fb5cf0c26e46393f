"""`verify` says of every epoch whether ledger, Spark's log and sinks agree, and accuses nobody who is at work."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fencepost_proof.targets import Box
from small import SNAPSHOT, Small
from streams import Place

from fencepost.admin import verify
from fencepost.admin.verify import Finding, Verified, Weight, compare, span
from fencepost.connectors.custom import WriteAheadLog
from fencepost.connectors.files.sink import Files
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.contract import Sink
from fencepost.errors import CheckpointRefused
from fencepost.guarantee import Guarantee
from fencepost.observe.heartbeat import PULSE, this_driver
from fencepost.store.ledger import read
from fencepost.store.parts import parts_of


@pytest.fixture(autouse=True)
def _short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "PAUSE_S", 0.05)


@pytest.fixture
def db(tmp_path: Path) -> Small:
    return Small(tmp_path, {"db": SQLite(tmp_path / "out.db", table="rows", name="db")})


def codes(found: Verified) -> list[tuple[str, str, str]]:
    return [(finding.code, finding.place, span(finding.epochs)) for finding in found.findings]


def verdicts(found: Verified) -> list[str]:
    return [found.verdict_of(row) for row in found.rows]


def fingerprint(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def script(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)


@contextmanager
def beating(job: Small) -> Iterator[None]:
    """As if the driver of the newest writer were this process."""
    PULSE.add(str(job.checkpoint), lambda: this_driver("small", read(job.checkpoint).writer, None))
    yield
    PULSE.remove(str(job.checkpoint))


def test_a_job_that_ended_in_order_agrees_and_nothing_is_changed_by_asking(tmp_path: Path) -> None:
    sinks = {
        "db": SQLite(tmp_path / "out.db", table="rows", name="db"),
        "files": Files(tmp_path / "files", name="files"),
        "listed": Files(tmp_path / "listed", name="listed", visible="manifest"),
        "box": Box(tmp_path / "box"),
    }
    job = Small(tmp_path, sinks)
    job.run(6)
    before = fingerprint(tmp_path)
    found = job.verify()
    assert before == fingerprint(tmp_path)
    assert ("agrees", "small", []) == (found.verdict, found.job, codes(found))
    held = {"db": "held", "files": "held", "listed": "held", "box": "cannot tell"}
    assert [(n, "same", "same", held) for n in range(6)] == [
        (r.epoch, r.offsets, r.commits, r.sinks) for r in found.rows
    ]
    assert ("Sink box cannot tell about epochs 0–5: is_committed() says neither yes nor no.",) == found.notes


def test_without_the_sinks_the_log_is_compared_and_the_rest_is_called_not_asked(db: Small) -> None:
    db.run(3)
    found = db.verify(sinks=None, epochs=2)
    assert ["agrees", "agrees"] == verdicts(found)
    assert [{"db": "not asked"}] * 2 == [row.sinks for row in found.rows]
    assert any("No sink was asked" in note for note in found.notes)


def test_a_driver_between_two_epochs_leaves_nothing_unfinished(db: Small) -> None:
    """Its last decision is open until the next one says that it is done; Spark's log says so already."""
    with db.driver() as driver:
        db.epoch(driver)
        assert read(db.checkpoint).open is not None
        assert "agrees" == db.verify().verdict == db.verify(sinks=None).verdict


def test_a_driver_that_was_killed_after_the_decision_is_finished_by_recovery(db: Small) -> None:
    db.killed("decide.after=kill@3", epochs=3)
    found = db.verify()
    assert ["agrees", "agrees", "unfinished"] == verdicts(found)
    assert [("open_decision", "", "2")] == codes(found)
    assert "recovery finishes it" in found.findings[0].next
    assert {"db": "missing"} == found.rows[-1].sinks
    db.run(0)
    assert ["agrees"] * 3 == verdicts(db.verify())


def test_a_driver_that_lives_is_in_flight(db: Small) -> None:
    db.killed("commit.after=kill@2", epochs=2)
    with beating(db):
        found = db.verify()
        assert ("in flight", ["agrees", "in flight"], []) == (found.verdict, verdicts(found), codes(found))
    assert "unfinished" == db.verify().verdict


def test_a_running_job_is_never_accused(db: Small) -> None:
    """Decisions, Spark's log and marks move on between any two questions, and retention takes old ones away."""
    job = replace(db, keep=3)
    over = threading.Event()
    epochs = 0

    def work() -> None:
        nonlocal epochs
        with job.driver() as driver:
            while not over.is_set():
                job.epoch(driver)
                epochs += 1

    job.run(1)
    worker = threading.Thread(target=work)
    with beating(job):
        worker.start()
        seen = set()
        until = time.monotonic() + 2
        while time.monotonic() < until or (epochs <= 10 and worker.is_alive()):  # a busy machine takes longer
            found = job.verify()
            seen.add(found.verdict)
            assert not found.findings, found
        over.set()
        worker.join()
    assert seen <= {"agrees", "in flight"}
    assert read(job.checkpoint).done_through > 10, "it was not running"


def test_a_record_with_a_flipped_bit_is_named_and_nothing_is_built_on_it(db: Small) -> None:
    db.run(3)
    path = sorted(db.checkpoint.glob("fencepost/*/ledger/*.json"))[3]
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    found = db.verify()
    assert "differs" == found.verdict
    assert {("ledger_damaged", str(path.relative_to(db.checkpoint)))} == {code[:2] for code in codes(found)}
    assert () == found.rows


def test_a_folder_without_a_ledger_cannot_be_verified(tmp_path: Path) -> None:
    with pytest.raises(CheckpointRefused):
        compare(tmp_path / "nothing")


@pytest.mark.parametrize("text", [None, "", "v1\n"])
@pytest.mark.parametrize(
    ("name", "verdict"), [("offsets/3", "differs"), ("commits/2", "differs"), ("commits/1", "differs")]
)
def test_an_entry_of_sparks_log_that_is_not_what_was_decided_is_found(
    db: Small, name: str, verdict: str, text: str | None
) -> None:
    db.run(4)
    (db.checkpoint / name).unlink() if text is None else (db.checkpoint / name).write_text(text)
    found = db.verify()
    epoch = name.partition("/")[2]
    assert [("spark_log_differs", name, epoch)] == codes(found)
    assert (verdict, verdict) == (found.verdict, verdicts(found)[int(epoch)])


def test_a_newest_epoch_without_sparks_last_word_is_unfinished_if_no_driver_lives(db: Small) -> None:
    db.run(2)
    (db.checkpoint / "commits" / "1").unlink()
    assert [("open_decision", "", "1")] == codes(db.verify())


def test_entries_that_spark_retired_are_not_missed(db: Small) -> None:
    db.run(4)
    for name in ("offsets/0", "commits/0", "commits/1"):
        (db.checkpoint / name).unlink()
    found = db.verify()
    assert "agrees" == found.verdict
    assert [("retired", "retired"), ("same", "retired")] == [(row.offsets, row.commits) for row in found.rows[:2]]


def test_an_epoch_that_spark_completed_and_nobody_decided_is_found(db: Small) -> None:
    db.run(2)
    (db.checkpoint / "commits" / "2").write_text(SNAPSHOT)
    assert [("spark_ahead", "commits/2", "")] == codes(db.verify())


def test_a_mark_that_was_deleted_is_missed(db: Small) -> None:
    db.run(3)
    script(db.folder / "out.db", "DELETE FROM fencepost_epoch")
    found = db.verify()
    assert [("target_behind", "db", "0–2")] == codes(found)
    assert ["differs"] * 3 == verdicts(found)


def test_a_target_that_was_set_back_lacks_what_came_after(db: Small) -> None:
    db.run(2)
    shutil.copy(db.folder / "out.db", db.folder / "backup.db")
    db.run(2)
    shutil.copy(db.folder / "backup.db", db.folder / "out.db")
    found = db.verify()
    assert [("target_behind", "db", "2–3")] == codes(found)
    assert ["agrees", "agrees", "differs", "differs"] == verdicts(found)


def test_a_table_that_was_dropped_holds_nothing_whatever_the_mark_says(db: Small) -> None:
    db.run(2)
    script(db.folder / "out.db", "DROP TABLE rows")
    assert [("target_behind", "db", "0–1")] == codes(db.verify())


def test_a_data_file_that_is_gone_is_missed(tmp_path: Path) -> None:
    job = Small(tmp_path, {"files": Files(tmp_path / "files", name="files", visible="manifest")})
    job.run(3)
    decided = [d.handles[0].body["file"] for _, d in read(job.checkpoint).decisions]
    (tmp_path / "files" / decided[1]).unlink()
    assert [("target_behind", "files", "1")] == codes(job.verify())


def test_a_database_that_was_replaced_is_not_taken_for_the_one_that_the_ledger_knows(db: Small, tmp_path: Path) -> None:
    db.run(2)
    (tmp_path / "another").mkdir()
    other = Small(tmp_path / "another", db.sinks)
    (db.folder / "out.db").unlink()
    other.run(1)
    assert [("target_replaced", "db", "")] == codes(db.verify())
    (db.folder / "out.db").unlink()
    sqlite3.connect(db.folder / "out.db").close()
    assert [("target_replaced", "db", "0–1")] == codes(db.verify())


def test_a_database_that_does_not_answer_is_in_doubt_and_is_not_made(db: Small) -> None:
    db.run(2)
    (db.folder / "out.db").unlink()
    found = db.verify()
    assert ("in doubt", [("target_silent", "db", "")]) == (found.verdict, codes(found))
    assert ["in doubt"] * 2 == verdicts(found)
    assert not (db.folder / "out.db").exists()


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: SQLite(folder / "out.db", table="rows", name="it"),
        lambda folder: Files(folder / "files", name="it"),
        lambda folder: Files(folder / "files", name="it", visible="manifest"),
    ],
)
def test_a_checkpoint_that_is_an_old_copy_is_the_worst_and_comes_first(
    tmp_path: Path, make: Callable[[Path], Sink]
) -> None:
    job = Small(tmp_path, {"it": make(tmp_path)})
    job.run(2)
    shutil.copytree(job.checkpoint, tmp_path / "copy")
    job.run(2)
    shutil.rmtree(job.checkpoint)
    (tmp_path / "copy").rename(job.checkpoint)
    found = job.verify()
    assert ("differs", [("target_ahead", "it", "")]) == (found.verdict, codes(found))
    assert "Do not start the job" in found.findings[0].next
    assert "epoch 3" in found.findings[0].what


def test_an_epoch_that_holds_rows_of_another_attempt_is_not_held(db: Small) -> None:
    db.run(2)
    script(db.folder / "out.db", "UPDATE fencepost_epoch SET handle = 'another'")
    assert [("target_ahead", "db", ""), ("target_behind", "db", "1")] == codes(db.verify())
    script(db.folder / "out.db", "UPDATE fencepost_epoch SET handle = 'by hand'")  # as the error tells a person to
    assert [] == codes(db.verify())


def test_a_target_of_another_lineage_is_named(db: Small, tmp_path: Path) -> None:
    db.run(2)
    script(db.folder / "out.db", "UPDATE fencepost_epoch SET lineage = 'stranger'")
    found = db.verify()
    assert [("target_of_another_lineage", "db", "")] == codes(found)
    assert "stranger" in found.findings[0].what


def test_a_unit_that_was_lost_and_written_again_is_looked_for_by_its_new_name(tmp_path: Path) -> None:
    class Telling(Box):
        def is_committed(self, body: Mapping[str, Any]) -> bool:
            return (self.folder / "box" / body["id"]).exists()

    job = Small(tmp_path, {"box": Telling(tmp_path / "box")})
    job.killed("decide.after=kill@2", epochs=2)
    for lost in (tmp_path / "box" / "open").iterdir():
        lost.unlink()
    assert [("open_decision", "", "1")] == codes(job.verify())
    job.run(1)
    assert any('"kind":"redo"' in path.read_text() for path in job.checkpoint.glob("fencepost/*/ledger/*.json"))
    assert ["agrees"] * 3 == verdicts(job.verify())
    (last, *_) = sorted((tmp_path / "box" / "box").iterdir(), key=lambda path: path.name.split("-")[-2])[1:]
    last.unlink()
    assert [("target_behind", "box", "1")] == codes(job.verify())


def test_a_target_that_was_changed_on_purpose_is_not_asked_for_what_the_old_one_got(db: Small, tmp_path: Path) -> None:
    db.run(2)
    changed = replace(db, sinks={"db": SQLite(tmp_path / "new.db", table="rows", name="db")}, allow_sink_changes=True)
    changed.run(2)
    found = changed.verify()
    assert ("agrees", []) == (found.verdict, codes(found))
    assert ["not asked", "not asked", "held", "held"] == [row.sinks["db"] for row in found.rows]


def test_a_sink_that_cannot_tell_is_no_doubt_and_one_that_raises_is(tmp_path: Path) -> None:
    job = Small(tmp_path, {"api": WriteAheadLog(lambda *_: None, name="api", idempotent=True)})
    job.run(1)
    found = job.verify()
    assert ("agrees", {"api": "cannot tell"}) == (found.verdict, found.rows[0].sinks)

    class Broken(Box):
        def is_committed(self, body: Mapping[str, Any]) -> bool:
            raise ConnectionError("a secret")

    (tmp_path / "two").mkdir()
    broken = Small(tmp_path / "two", {"box": Broken(tmp_path / "two" / "box")})
    broken.run(1)
    found = broken.verify()
    assert ("in doubt", {"box": "no answer"}) == (found.verdict, found.rows[0].sinks)
    assert "secret" not in repr(found)


def test_a_level_without_decisions_says_that_there_is_nothing_to_compare(db: Small) -> None:
    keyed = SQLite(db.folder / "keyed.db", table="rows", name="db", key="id")  # which is marked by plain writes too
    job = replace(db, guarantee=Guarantee.AT_LEAST_ONCE, sinks={"db": keyed})
    job.run(2)
    found = job.verify()
    assert ("agrees", ()) == (found.verdict, found.rows)
    assert "no decisions to compare" in found.notes[0]


def test_only_what_two_looks_found_is_said() -> None:
    def look(*findings: Finding) -> Verified:
        return Verified(checkpoint="c", findings=findings)

    moved = Finding(code="spark_ahead", place="commits/8", what="", next="")
    there = Finding(code="target_behind", place="db", what="", next="", epochs=(1, 2))
    again = replace(there, epochs=(2, 3))
    other = replace(there, epochs=(4,))
    doubt = Finding(code="target_silent", place="db", what="", next="", weight=Weight.DOUBT)
    assert (replace(again, epochs=(2,)),) == look(again, moved).said_twice(look(there)).findings
    assert () == look(other, doubt).said_twice(look(there, moved)).findings
    assert "in doubt" == look(doubt).said_twice(look(doubt)).verdict


@pytest.mark.spark
def test_a_checkpoint_of_sparks_with_state_agrees_and_a_changed_file_of_it_is_found(
    grown: Callable[[str], tuple[Place, int]], copied: Callable[[str], tuple[Path, int]]
) -> None:
    place, epoch = grown("count")
    sinks = {sink.name: sink for sink in (place.counts_sink(),)}
    found = compare(place.checkpoint, sinks)
    assert ("agrees", [], epoch) == (found.verdict, codes(found), found.rows[-1].epoch)
    assert {"held"} == {word for row in found.rows for word in row.sinks.values()}
    root, _ = copied("count")
    # A change, or the snapshot that a slow run has time for.
    changed = root / next(part.name for part in parts_of(root, epoch) if part.spark_side)
    data = changed.read_bytes()
    changed.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    name = str(changed.relative_to(root))
    assert [("snapshot_lost", name, str(epoch))] == codes(compare(root, sinks))
