"""The adapter of Delta tables, without a session: looks, marks, commits, and what others do at the same time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_log import DeltaLog, actions, commit, info
from delta_tables import (
    ANOTHER,
    JOB,
    LINEAGE,
    SCHEMA,
    SINK,
    append,
    by_hand,
    column,
    features,
    made,
    marked,
    numbered,
    rows_of,
    table_at,
)
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from fencepost.connectors.delta import table as module
from fencepost.connectors.delta.files import Folder
from fencepost.connectors.delta.setback import ACCEPT
from fencepost.connectors.delta.table import DeltaLakeTable
from fencepost.connectors.lake.session import TableRows
from fencepost.connectors.table.database import BadValue, Broken, Conflict, Denied, RowsRefused, Silent
from fencepost.connectors.table.mark import MARK, Mark
from fencepost.contract import Owner
from fencepost.errors import OperatorNeeded, TargetRefused
from fencepost.protocol.records import WriterNumber
from fencepost.store.staging import Staging

SECRET = "row-canary-4711"  # noqa: S105
GONE = pa.schema([*SCHEMA, pa.field("gone", pa.bool_())])


def as_a_person_would(program: str) -> None:
    """In a Python of its own."""
    subprocess.run([sys.executable, "-c", program], check=True)


def keys(folder: Path) -> list[int]:
    return sorted(row["k"] for row in DeltaLog(folder).rows())


def content(folder: Path) -> list[tuple[Any, ...]]:
    return sorted((row["k"], row["v"]) for row in DeltaLog(folder).rows())


def other(folder: Path, *numbers: int) -> None:
    """Another writer adds rows."""
    write_deltalake(str(folder), numbered(*numbers).table, mode="append")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "table"


# --- looks


def test_a_table_that_is_not_there_is_created_once(place: Path) -> None:
    table = table_at(place)
    assert (False, "") == (table.load(), table.version)
    table.create(SCHEMA)
    assert (True, "0") == (table.load(), table.version)
    log = DeltaLog(place)
    assert (log.id, {"k": "long", "v": "string"}) == (table.id, log.types)
    with pytest.raises(Conflict):
        table_at(place).create(SCHEMA)
    assert (0, log.id) == (DeltaLog(place).version, DeltaLog(place).id)


def test_of_creators_at_the_same_time_one_wins(tmp_path: Path) -> None:
    """The library's own retry would commit the second one's columns, and its id, as version 1."""
    for race in range(10):
        folder = tmp_path / str(race)
        start = threading.Barrier(3)

        def create(n: int, folder: Path = folder, start: threading.Barrier = start) -> bool:
            table = table_at(folder)
            start.wait(20)
            try:
                table.create(pa.schema([(f"column_{n}", pa.int64())]))
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(3) as pool:
            assert 1 == sum(pool.map(create, range(3)))
        assert 0 == DeltaLog(folder).version


def test_a_look_sees_what_others_committed(place: Path) -> None:
    table = made(place)
    other(place, 1)
    assert "0" == table.version
    assert table.load()
    assert "1" == table.version


@pytest.mark.parametrize("versions", [1, 3, 6])
def test_a_table_that_was_dropped_and_made_again_is_another_one(place: Path, versions: int) -> None:
    """At a lower version, at the same, and at a higher one: there the library goes on as if nothing had happened."""
    table = made(place)
    first = table.id
    for epoch in range(3):
        append(table, epoch, numbered(epoch))
        table.load()
    shutil.rmtree(place)
    twin = made(place)
    for n in range(versions):
        other(place, n)
    assert table.load()
    assert (twin.id, str(versions), None) == (table.id, table.version, table.mark(JOB, SINK, [LINEAGE]))
    assert first != table.id


def test_a_table_that_is_gone_is_not_there(place: Path) -> None:
    table = made(place)
    shutil.rmtree(place)
    assert not table.load()
    assert "" == table.version


def test_an_older_copy_of_the_folder_is_noticed(place: Path) -> None:
    table = made(place)
    append(table, 0, numbered(1))
    shutil.copytree(place, place.with_name("copy"))
    table.load()
    mark = append(table, 1, numbered(2))
    shutil.rmtree(place)
    place.with_name("copy").rename(place)
    assert table.load()
    assert marked(table, 0).version == table.mark(JOB, SINK, [LINEAGE]).version  # type: ignore[union-attr]
    assert "it is at version 1 again, and was at version 2" == table.setback(JOB, SINK, mark)


def test_a_file_in_place_of_the_folder_is_refused(place: Path) -> None:
    place.write_text("x")
    with pytest.raises(Broken):
        table_at(place).load()


def test_a_damaged_log_is_refused_without_its_text(place: Path) -> None:
    made(place)
    (place / "_delta_log" / f"{1:020d}.json").write_text(SECRET)
    with pytest.raises(Broken) as found:
        table_at(place).load()
    assert SECRET not in str(found.value)


def test_two_paths_to_one_folder_are_one_place(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "table")
    places = {
        table_at(path).place
        for path in (
            tmp_path / "table",
            tmp_path / "link",
            f"{tmp_path}/x/../table/",
            f"file://{tmp_path}/table",
            os.path.relpath(tmp_path / "table"),
        )
    }
    assert {str(tmp_path / "table")} == places
    assert {"s3://bucket/a/b"} == {
        table_at(uri).place for uri in ("s3://bucket/a/b", "s3a://bucket/a/b/", "s3://bucket//a//b")
    }


def test_secrets_are_not_shown(place: Path) -> None:
    options = {"aws_secret_access_key": SECRET, "aws_endpoint": "http://127.0.0.1:9", "max_retries": "0"}
    options |= {"aws_access_key_id": "key", "aws_region": "us-east-1", "aws_allow_http": "true"}
    table = table_at("s3://bucket/table", storage_options=options)
    owner = Owner(job=JOB, lineage=LINEAGE, generation=1, writer=WriterNumber(1), staging=Staging(place))
    with pytest.raises(Silent) as found:
        table.load()
    for text in (repr(table), str(found.value), *table.how_to_mark(JOB, SINK, owner)):
        assert SECRET not in text
        assert "127.0.0.1" not in text


@pytest.mark.parametrize("name", ["with space", "ü", "100%", "a#b?c", "a+b", "x:y='*'"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    table = made(tmp_path / name)
    append(table, 0, numbered(1))
    table.load()
    table.upsert(numbered(1, 2), ["k"], None, JOB, SINK, marked(table, 1))
    assert [1, 2] == keys(tmp_path / name)
    again = table_at(tmp_path / name)
    assert again.load()
    assert table.id == again.id


@pytest.mark.parametrize("name", ["%20", "a[1]", "a\\b", "a^b", "a|b", "a\nb"])
def test_a_path_that_the_library_misreads_is_refused(tmp_path: Path, name: str) -> None:
    """It panics, or writes to one folder and reads from another."""
    with pytest.raises(Broken, match=r"^the library cannot follow a path with "):
        table_at(tmp_path / name).load()


# --- the mark


def test_a_mark_is_read_back_as_it_was_written(place: Path) -> None:
    table = made(place)
    assert table.mark(JOB, SINK, [LINEAGE]) is None
    written = append(table, 41, numbered(1))
    assert written == table.mark(JOB, SINK, [LINEAGE])
    again = table_at(place)
    assert again.load()
    found = again.mark(JOB, SINK, [ANOTHER, LINEAGE])
    assert found is not None
    assert (LINEAGE, 0, 41, written.handle) == (found.lineage, found.generation, found.epoch, found.handle)


def test_generations_count_more_than_epochs(place: Path) -> None:
    table = made(place)
    table.append([], JOB, SINK, marked(table, 7, generation=3))
    again = table_at(place)
    again.load()
    assert (3, 7) == again.mark(JOB, SINK, [LINEAGE]).version  # type: ignore[union-attr]


def test_the_mark_of_another_lineage_is_seen_as_such(place: Path) -> None:
    append(made(place), 5, numbered(1))
    table = table_at(place)
    table.load()
    found = table.mark(JOB, SINK, [ANOTHER])
    assert found is not None
    assert "another, which begins with aaaaaaaa0000400" == found.lineage


def test_jobs_and_sinks_have_marks_of_their_own_whatever_they_are_called(place: Path) -> None:
    table = made(place)
    names = [
        ("a/b", "c"),
        ("a", "b/c"),
        ("a%2Fb", "c"),
        ("a", "b"),
        ("ü 'x'", '"y"'),
        ("a", "handle"),
        ("a/handle", ""),
    ]
    for epoch, (job, sink) in enumerate(names):
        table.load()
        table.append([], job, sink, marked(table, epoch))
    again = table_at(place)
    again.load()
    found = [again.mark(job, sink, [LINEAGE]) for job, sink in names]
    assert list(range(len(names))) == [mark.epoch for mark in found if mark is not None]


def test_the_mark_of_a_newer_fencepost_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(place)
    mark = marked(table, 1)
    newer = Mark(mark.lineage, 0, 1, mark.handle, 1)
    object.__setattr__(newer, "format", MARK.number + 1)
    monkeypatch.setattr(module, "VERSION", "99.0")
    table.append([], JOB, SINK, newer)
    monkeypatch.undo()
    again = table_at(place)
    again.load()
    with pytest.raises(TargetRefused, match=r"written by fencepost 99\.0") as found:
        again.mark(JOB, SINK, [LINEAGE])
    assert ("newer_format", JOB) == (found.value.code, found.value.where.job)


def test_half_a_mark_is_damage(place: Path) -> None:
    made(place)
    commit(place, {"txn": {"appId": f"fencepost/{JOB}/{SINK}", "version": int("aaaaaaaa0000400", 16)}})
    table = table_at(place)
    table.load()
    with pytest.raises(OperatorNeeded) as found:
        table.mark(JOB, SINK, [LINEAGE])
    assert "mark_damaged" == found.value.code


def test_people_can_set_and_remove_a_mark(place: Path) -> None:
    table = made(place)
    owner = Owner(job=JOB, lineage=LINEAGE, generation=2, writer=WriterNumber(1), staging=Staging(place))
    remove, set_to = table.how_to_mark(JOB, SINK, owner)
    as_a_person_would(set_to.replace("{epoch}", "17"))
    assert table.load()
    found = table.mark(JOB, SINK, [LINEAGE])
    assert Mark(LINEAGE, 2, 17, "by hand", 0) == found
    assert table.setback(JOB, SINK, found) is None  # type: ignore[arg-type]
    as_a_person_would(remove)
    assert table.load()
    assert table.mark(JOB, SINK, [LINEAGE]) is None


def test_the_mark_outlives_a_checkpoint_and_the_commits_before_it(place: Path) -> None:
    properties = {"delta.checkpointInterval": "5", "delta.logRetentionDuration": "interval 0 days"}
    table = made(place, properties=properties)
    for epoch in range(12):
        assert table.load()
        found = table.mark(JOB, SINK, [LINEAGE])
        assert epoch - 1 == (found.epoch if found is not None else -1)
        assert found is None or table.setback(JOB, SINK, found) is None
        append(table, epoch, numbered(epoch))
    again = table_at(place)
    assert again.load()
    assert 11 == again.mark(JOB, SINK, [LINEAGE]).epoch  # type: ignore[union-attr]
    assert list(range(12)) == keys(place)


def test_a_commit_says_which_epoch_it_is(place: Path) -> None:
    table = made(place)
    mark = append(table, 41, numbered(1))
    found = info(place, int(table.version))
    about = found["fencepost"]
    del about["attempt"]
    expected = {"job": JOB, "sink": SINK, "lineage": LINEAGE, "generation": 0, "epoch": 41, "handle": "handle-41"}
    assert expected | {"writer": 1, "format": 1, "fencepost": mark.fencepost} == about
    assert "fencepost: job 'orders', sink 'lake', generation 0, epoch 41" == found["userMetadata"]
    assert found["isBlindAppend"] is True


# --- compare and set


def write_epoch(table: DeltaLakeTable, epoch: int, rows: TableRows) -> None:
    append(table, epoch, rows)


def merge_epoch(table: DeltaLakeTable, epoch: int, rows: TableRows) -> None:
    table.upsert(rows, ["k"], None, JOB, SINK, marked(table, epoch))


def replace_by(table: DeltaLakeTable, epoch: int, rows: TableRows) -> None:
    files = table.write("fp-aaaaaaaa-1", f"replace-{epoch}-{id(rows)}", rows)
    table.replace(files, JOB, SINK, marked(table, epoch))


def extend_epoch(table: DeltaLakeTable, epoch: int, rows: TableRows) -> None:
    more = rows.table.append_column("n", pa.array(["new"] * rows.count))
    table.extend(TableRows(more), JOB, SINK, marked(table, epoch))


def remove_nothing(table: DeltaLakeTable, epoch: int, rows: TableRows) -> None:
    """A merge that changes no row; the library commits nothing then."""
    none = rows_of({"k": 999, "gone": True}, schema=GONE)
    table.upsert(none, ["k"], "gone", JOB, SINK, marked(table, epoch))


COMMITS = [write_epoch, merge_epoch, replace_by, extend_epoch, remove_nothing]
Commit = Callable[[DeltaLakeTable, int, TableRows], None]


@pytest.mark.parametrize("first", COMMITS)
@pytest.mark.parametrize("second", COMMITS)
def test_of_two_drivers_that_asked_before_either_committed_one_is_refused(
    place: Path, first: Commit, second: Commit
) -> None:
    one, two = made(place), table_at(place)
    assert two.load()
    assert (None, None) == (one.mark(JOB, SINK, [LINEAGE]), two.mark(JOB, SINK, [LINEAGE]))
    first(one, 0, numbered(1))
    after = DeltaLog(place)
    with pytest.raises(Conflict):
        second(two, 0, numbered(1))
    assert (after.version, after.marks) == (DeltaLog(place).version, DeltaLog(place).marks)
    assert two.load()
    assert 0 == two.mark(JOB, SINK, [LINEAGE]).epoch  # type: ignore[union-attr]
    second(two, 1, numbered(2))
    assert 1 == DeltaLog(place).marks[f"fencepost/{JOB}/{SINK}/{LINEAGE}"]


@pytest.mark.parametrize("commit_it", COMMITS)
def test_a_commit_is_found_by_whoever_asks_next(place: Path, commit_it: Commit) -> None:
    table = made(place)
    commit_it(table, 0, numbered(1))
    assert ("1", 0) == (table.version, table.mark(JOB, SINK, [LINEAGE]).epoch)  # type: ignore[union-attr]
    assert 1 == DeltaLog(place).version
    again = table_at(place)
    assert again.load()
    assert 0 == again.mark(JOB, SINK, [LINEAGE]).epoch  # type: ignore[union-attr]


def test_without_the_question_a_fresh_handle_duplicates_the_epoch(place: Path) -> None:
    """The sabotaged twin: the library alone does not keep an epoch from being committed twice."""
    append(made(place), 0, numbered(1))
    twin = table_at(place)
    assert twin.load()
    append(twin, 0, numbered(1))
    assert [1, 1] == keys(place)


def test_with_the_question_it_does_not(place: Path) -> None:
    append(made(place), 0, numbered(1))
    twin = table_at(place)
    assert twin.load()
    assert marked(twin, 0).version == twin.mark(JOB, SINK, [LINEAGE]).version  # type: ignore[union-attr]
    with pytest.raises(AssertionError, match="ask for the mark first"):  # and who asked cannot commit it
        append(twin, 0, numbered(1))
    assert [1] == keys(place)


def test_a_merge_that_changes_nothing_marks_its_epoch(place: Path) -> None:
    table = made(place)
    append(table, 0, numbered(1))
    table.load()
    remove_nothing(table, 1, numbered())
    assert ([1], 1) == (keys(place), DeltaLog(place).marks[f"fencepost/{JOB}/{SINK}/{LINEAGE}"])
    assert "2" == table.version


def test_a_commit_that_the_library_calls_failed_may_have_happened(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(place)

    def fails_afterwards(handle: Any, *arguments: Any, **keywords: Any) -> None:
        real(handle, *arguments, **keywords)
        raise OSError(f"could not reach https://user:{SECRET}@host")

    real = DeltaTable.create_write_transaction
    monkeypatch.setattr(DeltaTable, "create_write_transaction", fails_afterwards)
    with pytest.raises(Silent) as found:
        append(table, 0, numbered(1))
    assert (False, False) == (isinstance(found.value, Conflict), SECRET in str(found.value))
    monkeypatch.undo()
    assert table.load()
    assert 0 == table.mark(JOB, SINK, [LINEAGE]).epoch  # type: ignore[union-attr]
    assert [1] == keys(place)


def test_a_checkpoint_of_the_log_that_fails_does_not_fail_the_commit(place: Path) -> None:
    table = made(place, properties={"delta.checkpointInterval": "2"})
    (place / "_delta_log" / f"{1:020d}.checkpoint.parquet").mkdir()
    append(table, 0, numbered(1))
    assert "1" == table.version
    (place / "_delta_log" / f"{1:020d}.checkpoint.parquet").rmdir()
    for epoch in (1, 2):
        assert table.load()
        append(table, epoch, numbered(epoch + 1))
    assert ([1, 2, 3], True) == (keys(place), (place / "_delta_log" / f"{3:020d}.checkpoint.parquet").is_file())


def test_checkpoints_of_the_log_are_made_as_often_as_the_table_says(place: Path) -> None:
    table = made(place, properties={"delta.checkpointInterval": "4"})
    for epoch in range(9):
        table.load()
        append(table, epoch, numbered(epoch))
    found = sorted(path.name for path in (place / "_delta_log").glob("*.parquet"))
    assert [f"{version:020d}.checkpoint.parquet" for version in (3, 7)] == found


def test_a_panic_of_the_library_is_not_an_answer(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    def panics(*_: Any, **__: Any) -> None:
        raise PanicException(SECRET)

    table = made(place)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", panics)
    with pytest.raises(Silent, match=r"^the library failed \(PanicException\)$"):
        append(table, 0, numbered(1))


# --- others at the same time


def test_other_writers_and_maintenance_do_not_disturb_an_append(place: Path) -> None:
    table = made(place)
    append(table, 0, numbered(1, 2))
    for epoch, change in enumerate(
        [
            lambda: other(place, 100),
            lambda: DeltaTable(place).optimize.compact(target_size=1 << 20),
            lambda: DeltaTable(place).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False),
            lambda: write_deltalake(
                str(place),
                numbered(200).table,
                mode="append",
                commit_properties=CommitProperties(app_transactions=[Transaction("another", 1)]),
            ),
        ],
        1,
    ):
        assert table.load()
        files = table.write("fp-aaaaaaaa-1", f"h-{epoch}", numbered(10 + epoch))
        change()
        if table.lost(files):  # a VACUUM without retention takes what nothing names
            assert 3 == epoch
            files = table.write("fp-aaaaaaaa-1", f"again-{epoch}", numbered(10 + epoch))
        table.append(files, JOB, SINK, marked(table, epoch))
        assert info(place, int(table.version))["fencepost"]["epoch"] == epoch
    assert [1, 2, 11, 12, 13, 14, 100, 200] == keys(place)


@pytest.mark.parametrize("commit_it", [write_epoch, merge_epoch, replace_by])
@pytest.mark.parametrize(
    "change",
    [
        lambda path: other(path, 100),
        lambda path: DeltaTable(path).delete("k = 2"),
        lambda path: DeltaTable(path).update({"v": "'changed'"}, predicate="k = 1"),
        lambda path: DeltaTable(path).optimize.compact(),
        lambda path: DeltaTable(path).alter.set_table_properties({"delta.checkpointInterval": "7"}),
        lambda path: DeltaTable(path).alter.add_columns([deltalake.Field("n", "string")]),
    ],
    ids=["append", "delete", "update", "compaction", "properties", "new column"],
)
def test_whatever_others_change_the_epoch_is_there_once_after_at_most_another_look(
    place: Path, commit_it: Commit, change: Callable[[Path], Any]
) -> None:
    table = made(place)
    append(table, 0, numbered(1, 2))
    table.load()
    append(table, 1, numbered(3))
    assert table.load()
    change(place)
    expected = set(keys(place)) | {4}
    try:
        commit_it(table, 2, numbered(4))
    except Conflict:
        assert table.load()
        assert 1 == table.mark(JOB, SINK, [LINEAGE]).epoch  # type: ignore[union-attr]
        commit_it(table, 2, numbered(4))
    assert ([4] if commit_it is replace_by else sorted(expected)) == keys(place)
    assert 2 == DeltaLog(place).marks[f"fencepost/{JOB}/{SINK}/{LINEAGE}"]


def test_rows_that_others_add_while_everything_is_replaced_do_not_stay(place: Path) -> None:
    table = made(place)
    append(table, 0, numbered(1))
    assert table.load()
    other(place, 2)
    with pytest.raises(Conflict):
        replace_by(table, 1, numbered(9))
    assert table.load()
    replace_by(table, 1, numbered(9))
    assert [9] == keys(place)


@pytest.mark.parametrize("isolation", ["Serializable", "WriteSerializable"])
def test_two_jobs_append_side_by_side_at_each_isolation_level(place: Path, isolation: str) -> None:
    one = made(place, properties={"delta.isolationLevel": isolation})
    two = table_at(place)
    for epoch in range(5):
        assert one.load()
        assert two.load()
        append(one, epoch, numbered(epoch))
        two.append(two.write("fp-b", f"b-{epoch}", numbered(100 + epoch)), "other job", SINK, marked(two, epoch))
    assert [*range(5), *range(100, 105)] == keys(place)


def test_drivers_that_race_commit_every_epoch_once(place: Path) -> None:
    made(place)
    epochs = 8

    def drive(n: int) -> None:
        table = table_at(place)
        for epoch in range(epochs):
            while True:
                assert table.load()
                found = table.mark(JOB, SINK, [LINEAGE])
                if found is not None and found.epoch >= epoch:
                    break
                try:
                    append(table, epoch, numbered(epoch), f"driver-{n}-{epoch}")
                except Conflict:
                    continue

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(drive, range(4)))
    assert list(range(epochs)) == keys(place)


def test_a_protocol_that_grew_is_refused_in_words(place: Path) -> None:
    table = made(place)
    commit(place, {"protocol": features("appendOnly", "rowTracking", "domainMetadata")})
    assert table.load()
    with pytest.raises(RowsRefused, match="row tracking"):
        append(table, 0, numbered(1))


def test_columns_that_changed_after_the_files_were_written_are_noticed(place: Path) -> None:
    table = made(place)
    files = table.write("fp-a", "h", numbered(1))
    shutil.rmtree(place / "_delta_log")
    commit_table(place, [column("k", "string"), column("v", "string")])
    again = table_at(place)
    assert again.load()
    with pytest.raises(RowsRefused, match="were changed after data files"):
        again.append(files, JOB, SINK, marked(again, 0))


def commit_table(place: Path, fields: list[dict[str, Any]]) -> None:
    by_hand(place.with_name("hand"), fields=fields)
    shutil.copytree(place.with_name("hand") / "_delta_log", place / "_delta_log")


# --- set back


def test_a_restore_behind_the_mark_is_noticed_and_can_be_accepted(place: Path) -> None:
    table = made(place)
    for epoch in range(3):
        table.load()
        mark = append(table, epoch, numbered(epoch))
        assert table.setback(JOB, SINK, mark) is None
    DeltaTable(place).restore(1)
    for looker in (table, table_at(place)):  # a running job, and a start
        assert looker.load()
        found = looker.mark(JOB, SINK, [LINEAGE])
        assert (0, 2) == found.version  # type: ignore[union-attr]
        words = looker.setback(JOB, SINK, mark)
        assert words is not None
        assert words.startswith("version 4 took it back to version 1 (RESTORE). To accept that: DeltaTable(")
    as_a_person_would(f"from deltalake import *; {words.partition('To accept that: ')[2]}")
    assert {ACCEPT: "4"} == DeltaLog(place).metadata["configuration"]
    for looker in (table, table_at(place)):
        assert looker.load()
        assert looker.setback(JOB, SINK, mark) is None
    append(table, 3, numbered(3))
    assert [0, 3] == keys(place)
    DeltaTable(place).restore(5)
    assert table.load()
    assert "version 7 took it back to version 5" in str(table.setback(JOB, SINK, marked(table, 3)))


def test_a_restore_to_a_version_that_has_the_epoch_is_harmless(place: Path) -> None:
    table = made(place)
    mark = append(table, 0, numbered(1))
    other(place, 100)
    DeltaTable(place).restore(1)
    for looker in (table, table_at(place)):
        looker.load()
        assert looker.setback(JOB, SINK, mark) is None


def test_a_restore_that_was_itself_taken_back_is_harmless(place: Path) -> None:
    table = made(place)
    mark = append(table, 0, numbered(1))
    DeltaTable(place).restore(0)
    table.load()
    assert table.setback(JOB, SINK, mark) is not None
    DeltaTable(place).restore(1)
    table.load()
    assert (None, [1]) == (table.setback(JOB, SINK, mark), keys(place))
    DeltaTable(place).restore(2)  # to the version that took it back
    table.load()
    assert table.setback(JOB, SINK, mark) is not None


@pytest.mark.parametrize(
    ("operation", "parameters"),
    [
        ("RESTORE", {"version": None, "timestamp": "2026-11-17 10:00:00"}),
        ("RESTORE", {"version": "0", "timestamp": None}),
        ("CREATE OR REPLACE TABLE AS SELECT", {}),
        ("CLONE", {"source": "x", "sourceVersion": "3"}),
    ],
)
def test_what_other_engines_call_it_is_noticed(place: Path, operation: str, parameters: dict[str, Any]) -> None:
    table = made(place)
    mark = append(table, 0, numbered(1))
    version = commit(place, {"commitInfo": {"operation": operation, "operationParameters": parameters}})
    table.load()
    assert f"version {version} took it back" in str(table.setback(JOB, SINK, mark))


def test_commits_that_say_nothing_about_themselves_do_not_shift_the_others(place: Path) -> None:
    table = made(place)
    append(table, 0, numbered(1))
    commit(place, {"txn": {"appId": "silent", "version": 1}})
    commit(place, {"commitInfo": {"operation": "RESTORE", "operationParameters": {"version": "2"}}})
    commit(place, {"txn": {"appId": "silent", "version": 2}})
    looker = table_at(place)
    looker.load()
    assert looker.setback(JOB, SINK, marked(table, 0)) is None


def test_our_commit_is_found_behind_many_of_others(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.connectors.delta.setback.STEP", 2)
    table = made(place)
    mark = append(table, 0, numbered(1))
    for n in range(20):
        commit(place, {"commitInfo": {"operation": "WRITE"}}, {"txn": {"appId": "x", "version": n}})
    looker = table_at(place)
    looker.load()
    assert looker.setback(JOB, SINK, mark) is None
    for target, is_behind in ((5, False), (0, True)):
        commit(place, {"commitInfo": {"operation": "RESTORE", "operationParameters": {"version": str(target)}}})
        looker.load()
        assert is_behind is (looker.setback(JOB, SINK, mark) is not None)
        again = table_at(place)
        again.load()
        assert is_behind is (again.setback(JOB, SINK, mark) is not None)


def test_a_running_job_reads_each_commit_once_for_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(place)
    read: list[int] = []
    real = table._log.info
    monkeypatch.setattr(table._log, "info", lambda version: read.append(version) or real(version))
    for epoch in range(5):
        table.load()
        found = table.mark(JOB, SINK, [LINEAGE])
        assert found is None or table.setback(JOB, SINK, found) is None
        append(table, epoch, numbered(epoch))
        other(place, 100 + epoch)
    by_commits = [version for version in read if version % 2]  # to find their own version
    assert [1, 3, 5, 7, 9] == sorted(set(by_commits))
    assert [2, 4, 6, 8] == [version for version in read if version % 2 == 0]


# --- rows


def test_an_upsert_replaces_inserts_and_removes(place: Path) -> None:
    table = made(place)
    append(table, 0, numbered(1, 2, 3))
    table.load()
    rows = rows_of(
        {"k": 1, "v": "new", "gone": False},
        {"k": 2, "v": None, "gone": True},
        {"k": 4, "v": "four", "gone": False},
        {"k": 5, "v": "five", "gone": True},
        schema=GONE,
    )
    table.upsert(rows, ["k"], "gone", JOB, SINK, marked(table, 1))
    assert [(1, "new"), (3, "row 3"), (4, "four")] == content(place)


@pytest.mark.parametrize("name", ["k", "Key", "a.b", 'quo"te', "back`tick", "ünï", "select", "fencepost_rows"])
def test_a_key_may_have_any_name(place: Path, name: str) -> None:
    schema = pa.schema([(name, pa.string()), ("w", pa.int64())])
    table = made(place, schema)
    for epoch, number in enumerate((1, 2)):
        table.load()
        table.upsert(rows_of({name: "x", "w": number}, schema=schema), [name], None, JOB, SINK, marked(table, epoch))
    assert [{name: "x", "w": 2}] == DeltaLog(place).rows()


def test_keys_are_compared_as_spark_does(place: Path) -> None:
    schema = pa.schema([("k", pa.float64()), ("w", pa.int64())])
    table = made(place, schema)
    for epoch, key in enumerate((-0.0, 0.0, -0.0)):
        table.load()
        table.upsert(rows_of({"k": key, "w": epoch}, schema=schema), ["k"], None, JOB, SINK, marked(table, epoch))
    assert "[{'k': 0.0, 'w': 2}]" == str(DeltaLog(place).rows())  # not -0.0


def test_a_row_that_only_removes_need_not_fit(place: Path) -> None:
    by_hand(place, fields=[column("k"), column("v", "string", nullable=False)])
    table = table_at(place)
    assert table.load()
    rows = rows_of({"k": 1, "v": None, "gone": True}, {"k": 9, "v": "nine", "gone": False}, schema=GONE)
    table.upsert(rows, ["k"], "gone", JOB, SINK, marked(table, 0))
    assert [2, 3, 9] == keys(place)


def test_nor_need_its_values_be_exact(place: Path) -> None:
    table = made(place, pa.schema([("k", pa.int64()), ("t", pa.timestamp("us"))]))
    times = pa.array([1000, 1], pa.timestamp("ns"))
    table.upsert(TableRows(pa.table({"k": [1], "t": times.slice(0, 1)})), ["k"], None, JOB, SINK, marked(table, 0))
    table.load()
    rows = pa.table({"k": [2, 1], "t": times, "gone": [False, True]})
    table.upsert(TableRows(rows), ["k"], "gone", JOB, SINK, marked(table, 1))
    assert [2] == keys(place)


def test_a_table_of_keys_only_can_be_merged_into(place: Path) -> None:
    schema = pa.schema([("k", pa.int64())])
    table = made(place, schema)
    for epoch, numbers in enumerate(([1, 2], [2, 3], [2])):
        table.load()
        rows = rows_of(*({"k": number} for number in numbers), schema=schema)
        table.upsert(rows, ["k"], None, JOB, SINK, marked(table, epoch))
    assert ([1, 2, 3], 2) == (keys(place), DeltaLog(place).marks[f"fencepost/{JOB}/{SINK}/{LINEAGE}"])


def test_new_columns_come_with_the_first_rows_that_have_them(place: Path) -> None:
    table = made(place)
    append(table, 0, numbered(1))
    table.load()
    schema = pa.schema([*SCHEMA, pa.field("n", pa.list_(pa.float32()))])
    rows = rows_of({"k": 2, "v": "x", "n": [1.5]}, schema=schema)
    assert (["n"], []) == (table.new_columns(schema), table.misfits(schema, may_add=True))
    table.extend(rows, JOB, SINK, marked(table, 1))
    kinds = {next(iter(action)) for action in actions(place, int(table.version))}
    assert {"commitInfo", "metaData", "add", "txn"} == kinds
    assert [None, [1.5]] == [row["n"] for row in sorted(DeltaLog(place).rows(), key=lambda row: row["k"])]
    assert table.load()
    assert [] == table.new_columns(schema)


def test_replacing_by_nothing_empties_the_table(place: Path) -> None:
    table = made(place)
    append(table, 0, numbered(1))
    table.load()
    table.replace([], JOB, SINK, marked(table, 1))
    assert ([], 1) == (keys(place), DeltaLog(place).marks[f"fencepost/{JOB}/{SINK}/{LINEAGE}"])


@pytest.mark.parametrize("how", ["extend", "upsert"])
def test_rows_that_fail_on_the_way_into_the_library_leave_nothing(place: Path, how: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", tz="UTC"))])
    table = made(place, schema)
    bad = pa.table(
        {"k": [1, 2], "t": pa.array([0, 1], pa.timestamp("ns", tz="UTC")), "n": [SECRET, SECRET]},
    )
    tried = {
        "extend": lambda: table.extend(TableRows(bad), JOB, SINK, marked(table, 0)),
        "upsert": lambda: table.upsert(TableRows(bad.drop(["n"])), ["k"], None, JOB, SINK, marked(table, 0)),
    }
    with pytest.raises(BadValue) as found:
        tried[how]()
    assert "column 't' has a value that cannot be written exactly" == str(found.value)
    assert 0 == DeltaLog(place).version


# --- checks


def test_null_where_it_is_forbidden_is_refused_also_below_a_column(place: Path) -> None:
    nested = {"type": "struct", "fields": [column("x", nullable=False)]}
    numbers = {"type": "array", "elementType": "long", "containsNull": False}
    words = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": False}
    fields = [column("k", nullable=False), column("s", nested), column("l", numbers), column("m", words)]
    by_hand(place, fields=fields)
    table = table_at(place)
    assert table.load()
    schema = pa.schema(
        [
            ("k", pa.int64()),
            ("s", pa.struct([("x", pa.int64())])),
            ("l", pa.list_(pa.int64())),
            ("m", pa.map_(pa.string(), pa.int64())),
        ]
    )
    fine: dict[str, Any] = {"k": 1, "s": {"x": 1}, "l": [1], "m": [("a", 1)]}
    for change in ({}, {"s": None}, {"l": None}, {"m": None}, {"l": []}):
        table.check_rows(rows_of({**fine, **change}, schema=schema))
    bad = {"k": {"k": None}, "s.x": {"s": {"x": None}}, "l.element": {"l": [1, None]}, "m.value": {"m": [("a", None)]}}
    for name, change in bad.items():
        rows = rows_of(fine, {**fine, **change}, fine, schema=schema)
        sliced = TableRows(rows.table.slice(1))
        for tried in (lambda: table.check_rows(sliced), lambda: table.write("fp-a", "h", rows)):  # noqa: B023
            with pytest.raises(BadValue) as found:
                tried()
            assert f"NULL in a column that is NOT NULL, column {name!r}" == str(found.value)
    assert [] == table.files_in("fp-a")
    assert ["column 'k' is NOT NULL and has no default, but the DataFrame has no such column"] == table.misfits(
        pa.schema(list(schema)[1:]), may_add=False
    )


def test_check_constraints_are_evaluated_and_named_and_no_value_is(place: Path) -> None:
    checks = {"positive": "k > 0", "short": "length(v) < 20"}
    properties = {f"delta.constraints.{name}": text for name, text in checks.items()}
    by_hand(place, protocol={"minReaderVersion": 1, "minWriterVersion": 3}, properties=properties)
    table = table_at(place)
    assert table.load()
    assert [] == table.unfit(removes=True)
    table.check_rows(numbered(1, 2))
    bad = {
        "'positive'": {"k": -1, "v": SECRET},
        "'short'": {"k": 1, "v": SECRET * 3},
        "'positive', 'short'": {"k": -1, "v": SECRET * 3},
    }
    for names, row in bad.items():
        for tried in (table.check_rows, lambda rows: table.write("fp-a", "h", rows)):
            with pytest.raises(BadValue) as found:
                tried(rows_of({"k": 5, "v": "fine"}, row))
            assert f"check constraint violation, constraint {names}" == str(found.value)
    with pytest.raises(BadValue, match="'positive'"):  # NULL does not satisfy it, as in Delta's own engines
        table.check_rows(rows_of({"k": None, "v": "x"}))
    with pytest.raises(BadValue) as found:  # a column that the rows do not have is NULL
        table.check_rows(rows_of({"k": 1}, schema=pa.schema([("k", pa.int64())])))
    assert "check constraint violation, constraint 'short'" == str(found.value)
    with pytest.raises(BadValue, match="column 'k' has a value that cannot be written exactly"):  # not a constraint
        table.write("fp-a", "h", TableRows(pa.table({"k": pa.array([2**63], pa.uint64()), "v": ["x"]})))
    assert [] == table.files_in("fp-a")


def test_the_library_itself_follows_no_constraint_for_files_that_it_is_handed(place: Path) -> None:
    """Why we do; the sabotaged twin of the test above."""
    properties = {"delta.constraints.positive": "k > 0"}
    by_hand(place, protocol={"minReaderVersion": 1, "minWriterVersion": 3}, properties=properties)
    other_table = made(place.with_name("other"))
    [file] = other_table.write("fp-a", "h", numbered(-1))
    shutil.copytree(place.with_name("other") / "fp-a", place / "fp-a")
    table = table_at(place)
    table.load()
    table.append([file], JOB, SINK, marked(table, 0))
    assert [-1, 1, 2, 3] == keys(place)


@pytest.mark.parametrize("text", ["size(v) > 1", "nope > 3", "k >", "v rlike 'x'", 'v = "x"', "k + 1", "k / 2 > 0"])
def test_a_constraint_that_we_cannot_evaluate_is_refused(place: Path, text: str) -> None:
    properties = {"delta.constraints.odd": text}
    by_hand(place, protocol={"minReaderVersion": 1, "minWriterVersion": 3}, properties=properties)
    table = table_at(place)
    assert table.load()
    [found] = table.unfit(removes=False)
    assert found.startswith("CHECK constraint 'odd' ")


@pytest.mark.parametrize("how", ["extend", "upsert"])
def test_a_constraint_that_came_after_the_vote_refuses_the_rows_and_shows_none(place: Path, how: str) -> None:
    table = made(place)
    append(table, 0, numbered(1))
    DeltaTable(place).alter.add_constraint({"positive": "k > 0"})
    table.load()
    rows = rows_of({"k": -1, "v": SECRET, "n": 1}, schema=SCHEMA.append(pa.field("n", pa.int64())))
    tried = {
        "extend": lambda: table.extend(rows, JOB, SINK, marked(table, 1)),
        "upsert": lambda: table.upsert(TableRows(rows.table.drop(["n"])), ["k"], None, JOB, SINK, marked(table, 1)),
    }
    with pytest.raises(RowsRefused) as found:
        tried[how]()
    assert "rows violate a NOT NULL or CHECK constraint" == str(found.value)
    assert ([1], 2) == (keys(place), DeltaLog(place).version)


# --- files


def test_files_have_names_without_values_and_say_themselves_what_is_in_them(place: Path) -> None:
    schema = pa.schema([("day", pa.string()), ("k", pa.int64())])
    table = made(place, schema, partition_by=("day",))
    rows = rows_of({"day": SECRET, "k": 1}, {"day": None, "k": 2}, {"day": "x=y/z%", "k": 3}, schema=schema)
    files = table.write("fp-aaaaaaaa-1", "aaaaaaaa-1-0-x", rows)
    assert [f"fp-aaaaaaaa-1/aaaaaaaa-1-0-x-{n}.parquet" for n in range(3)] == [file.path for file in files]
    assert ["fp-aaaaaaaa-1", "_delta_log"] == sorted((path.name for path in place.iterdir()), reverse=True)
    later = table_at(place)  # another process
    assert later.load()
    later.append(files, JOB, SINK, marked(later, 0))
    found = DeltaLog(place)
    assert [(1, SECRET), (2, None), (3, "x=y/z%")] == sorted((row["k"], row["day"]) for row in found.rows())
    assert [1, 1, 1] == [found.statistics(path)["numRecords"] for path in found.files]


def test_what_another_process_says_about_a_file_is_what_the_writer_says(place: Path) -> None:
    schema = pa.schema([("f", pa.float64()), ("k", pa.int64()), ("s", pa.struct([("x", pa.string())]))])
    rows = rows_of({"f": float("nan"), "k": 1, "s": {"x": "a" * 50}}, {"f": 1.0, "k": None, "s": None}, schema=schema)
    one = made(place, schema)
    files = one.write("fp-a", "h", rows)
    two = table_at(place)
    two.load()
    assert one._additions(files) == two._additions(files)


def test_lost_and_changed_files_are_noticed(place: Path) -> None:
    table = made(place)
    files = [file for n in range(4) for file in table.write("fp-a", f"h{n}", numbered(n))]
    assert [] == table.lost(files)
    (place / files[1].path).unlink()
    (place / files[2].path).write_bytes(b"x")
    assert [files[1].path, files[2].path] == table.lost(files)
    assert ["h0-0.parquet", "h2-0.parquet", "h3-0.parquet"] == table.files_in("fp-a")
    table.delete([file.path for file in files])
    assert ([], []) == (table.files_in("fp-a"), table.files_in("fp-none"))


def test_a_file_that_is_missing_or_not_ours_is_not_committed(place: Path) -> None:
    table = made(place)
    [file] = table.write("fp-a", "h", numbered(1))
    later = table_at(place)
    later.load()
    content_ = (place / file.path).read_bytes()
    (place / file.path).write_bytes(b"not Parquet")
    with pytest.raises(Silent):
        later.append([file], JOB, SINK, marked(later, 0))
    others: list[Any] = [numbered(1).table, numbered(1, 2).table]
    for one in others:  # somebody else's, or with other rows
        pq.write_table(one, place / file.path)
        with pytest.raises(Silent, match="is not as it was written"):
            later.append([file], JOB, SINK, marked(later, 0))
    (place / file.path).unlink()
    with pytest.raises(Silent):
        later.append([file], JOB, SINK, marked(later, 0))
    assert 0 == DeltaLog(place).version
    (place / file.path).write_bytes(content_)
    later.append([file], JOB, SINK, marked(later, 0))
    assert [1] == keys(place)


def test_large_epochs_become_several_files_and_never_many_at_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.connectors.delta.files.HELD_BYTES", 20_000)
    monkeypatch.setattr("fencepost.connectors.delta.files.OPEN", 3)
    schema = pa.schema([("p", pa.int64()), ("k", pa.int64())])
    table = made(place, schema, partition_by=("p",), target_file_bytes=5_000)
    rows = pa.table({"p": pa.array([n % 10 for n in range(20_000)]), "k": pa.array(range(20_000))})
    now, most = [0], [0]
    real = Folder.create

    class Counted:
        """A file that counts how many of them are open."""

        def __init__(self, file: Any) -> None:
            self._file = file
            now[0] += 1
            most[0] = max(most[0], now[0])

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def close(self) -> None:
            now[0] -= 1
            self._file.close()

    monkeypatch.setattr(Folder, "create", lambda self, path: pa.PythonFile(Counted(real(self, path)), "w"))
    files = table.write("fp-a", "h", TableRows(pa.Table.from_batches(rows.to_batches(max_chunksize=500))))
    assert (0, 3) == (now[0], most[0])
    assert len(files) > 20
    assert max(file.bytes for file in files) < 20_000
    table.append(files, JOB, SINK, marked(table, 0))
    assert sorted(zip(rows["k"].to_pylist(), rows["p"].to_pylist(), strict=True)) == sorted(
        (row["k"], row["p"]) for row in DeltaLog(place).rows()
    )


def test_a_file_becomes_about_as_large_as_asked_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.connectors.delta.files.HELD_BYTES", 8_000)
    table = made(place, pa.schema([("k", pa.int64())]), target_file_bytes=20_000)
    rows = pa.table({"k": pa.array(range(20_000))})
    files = table.write("fp-a", "h", TableRows(pa.Table.from_batches(rows.to_batches(max_chunksize=500))))
    assert {True} == {20_000 <= file.bytes < 40_000 for file in files[:-1]}
    assert (20_000, True) == (sum(file.rows for file in files), len(files) > 2)


def test_a_full_disk_is_a_silence_and_leaves_no_files(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(place)

    def full(*_: Any) -> None:
        raise OSError(28, f"No space left on {SECRET}")

    monkeypatch.setattr("fencepost.connectors.delta.files.sync_file", full)
    with pytest.raises(Silent) as found:
        table.write("fp-a", "h", numbered(1))
    assert "its storage failed (OSError, ENOSPC)" == str(found.value)
    assert [] == table.files_in("fp-a")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_a_folder_that_may_not_be_read_is_not_taken_for_a_missing_table(place: Path) -> None:
    made(place)
    (place / "_delta_log").chmod(0)
    try:
        with pytest.raises(Denied):
            table_at(place).load()
    finally:
        (place / "_delta_log").chmod(0o700)


def test_a_commit_is_durable_before_it_is_reported(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(place)
    synced: list[str] = []
    monkeypatch.setattr("fencepost.connectors.delta.files.sync_file", lambda path: synced.append(path.name))
    monkeypatch.setattr("fencepost.connectors.delta.files.sync_folder", lambda path: synced.append(f"{path.name}/"))
    files = table.write("fp-a", "h", numbered(1))
    assert ["h-0.parquet", "fp-a/"] == synced
    synced.clear()
    table.append(files, JOB, SINK, marked(table, 0))
    assert {f"{1:020d}.json", "_delta_log/"} <= set(synced)
    synced.clear()
    table.load()
    table.upsert(numbered(2), ["k"], None, JOB, SINK, marked(table, 1))
    [added] = [action["add"]["path"] for action in actions(place, 2) if "add" in action]
    assert {added, f"{2:020d}.json", "_delta_log/", "table/"} <= set(synced)
    other(place, 3)
    synced.clear()
    table.load()
    assert f"{3:020d}.json" in synced, "a commit of others that is lost would be a gap before ours"
    synced.clear()
    later = table_at(place)  # the driver before may have died before it came to this
    later.load()
    assert {added, f"{1:020d}.json", f"{2:020d}.json"} <= set(synced)


# --- what we rely on


def test_what_we_rely_on_in_deltalake(place: Path) -> None:
    """Behaviour of the pinned version that is not in its documentation. If this fails, read `delta/table.py` again."""
    assert "1.6.6" == deltalake.__version__
    quiet = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)

    def said(number: int, **more: Any) -> CommitProperties:
        return CommitProperties(app_transactions=[Transaction("app", number)], **more)

    def put(handle: DeltaTable, number: int, **more: Any) -> None:
        handle.create_write_transaction(
            [], "append", handle.schema(), commit_properties=said(number, **more), post_commithook_properties=quiet
        )

    DeltaTable.create(place, SCHEMA)
    handle = DeltaTable(place)
    put(handle, 1)
    assert (0, None) == (handle.version(), handle.transaction_version("app"))  # the handle stays where it was
    with pytest.raises(CommitFailedError):  # so it is a compare-and-set
        put(handle, 1)
    handle.update_incremental()
    assert (1, 1) == (handle.version(), handle.transaction_version("app"))
    put(handle, 0)  # not the greatest number counts, but the newest
    handle.update_incremental()
    assert 0 == handle.transaction_version("app")

    rows = numbered(7).table
    merge = handle.merge(rows, "s.k = t.k", "s", "t", commit_properties=said(5))
    merge.when_matched_delete().execute()
    assert (2, 2) == (handle.version(), DeltaLog(place).version)  # a merge that changes nothing commits nothing
    write_deltalake(handle, rows, mode="append", commit_properties=said(6))
    assert 3 == handle.version()  # these two move the handle
    merge = handle.merge(rows, "s.k = t.k", "s", "t", commit_properties=said(7))
    merge.when_matched_delete().execute()
    assert (4, 7) == (handle.version(), handle.transaction_version("app"))

    put(DeltaTable(place), 8)
    with pytest.raises(CommitFailedError, match="Failed to commit transaction: 0"):  # no retry, not even a harmless one
        handle.create_write_transaction(
            [], "append", handle.schema(), commit_properties=CommitProperties(max_commit_retries=0)
        )
    handle.create_write_transaction([], "append", handle.schema())  # a retry behind commits of others
    assert 6 == DeltaLog(place).version

    with pytest.raises(TableNotFoundError):
        DeltaTable(place.with_name("none"))
    with pytest.raises(DeltaError, match="already exists"):
        DeltaTable.create(place, SCHEMA)
    handle = DeltaTable(place)
    nothing = AddAction("nothing.parquet", 1, {}, 0, True, "{}")
    handle.create_write_transaction([nothing], "append", handle.schema())  # files are not looked at
    assert "nothing.parquet" in DeltaLog(place).files


def test_the_library_mixes_up_a_table_and_the_one_that_replaced_it(place: Path) -> None:
    """Why a look compares the newest commit that it knows."""
    DeltaTable.create(place, SCHEMA)
    handle = DeltaTable(place)
    first = handle.metadata().id
    shutil.rmtree(place)
    DeltaTable.create(place, SCHEMA)
    other(place, 1)
    handle.update_incremental()
    assert (1, first) == (handle.version(), handle.metadata().id)
    assert first != DeltaTable(place).metadata().id


def test_the_library_calls_a_commit_failed_whose_checkpoint_fails(place: Path) -> None:
    """Why we make checkpoints of the log ourselves."""
    DeltaTable.create(place, SCHEMA, configuration={"delta.checkpointInterval": "2"})
    (place / "_delta_log" / f"{1:020d}.checkpoint.parquet").mkdir()
    handle = DeltaTable(place)
    with pytest.raises(DeltaError):
        handle.create_write_transaction([], "append", handle.schema())
    assert 1 == DeltaLog(place).version


def test_the_library_makes_no_commit_durable(place: Path, tmp_path: Path) -> None:
    """Why we do. Reads what it asks the kernel for, if that can be seen here."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    program = (
        "import sys; from deltalake import DeltaTable; t = DeltaTable(sys.argv[1]);"
        "t.create_write_transaction([], 'append', t.schema())"
    )
    made(place)
    out = tmp_path / "calls"
    calls = ["-f", "-e", "trace=fsync,fdatasync,linkat", "-o", str(out)]
    ran = subprocess.run([strace, *calls, sys.executable, "-c", program, str(place)], check=False)
    if ran.returncode:
        pytest.skip("strace may not trace here")
    found = out.read_text()
    assert f"{1:020d}.json" in found
    assert "sync(" not in found


def test_json_is_what_the_statistics_are(place: Path) -> None:
    table = made(place)
    append(table, 0, numbered(1, 2))
    [path] = DeltaLog(place).files
    expected = {"numRecords": 2, "minValues": {"k": 1, "v": "row 1"}, "maxValues": {"k": 2, "v": "row 2"}}
    assert expected | {"nullCount": {"k": 0, "v": 0}} == json.loads(DeltaLog(place).files[path]["stats"])
