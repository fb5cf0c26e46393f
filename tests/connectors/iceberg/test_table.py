"""One compare-and-set per epoch, beside all that others do to the table. Without a session: the adapter alone."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from icebergs import FOLDER, JOB, LINEAGE, SCHEMA, SINK, Lake, mark_of, rows_of, words
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.types import LongType, NestedField, StringType
from pyiceberg.utils.config import Config

from fencepost.connectors.iceberg import parquet
from fencepost.connectors.iceberg.columns import schema_for
from fencepost.connectors.iceberg.mark import ACCEPT, name_of
from fencepost.connectors.iceberg.table import IcebergLakeTable
from fencepost.connectors.table.database import BadValue, Broken, Conflict, Denied, RowsRefused, Silent
from fencepost.contract import Owner
from fencepost.errors import OperatorNeeded, TargetRefused
from fencepost.store.staging import Staging

pytestmark = pytest.mark.in_memory


def files_of(table: IcebergLakeTable, epoch: int, *ids: int) -> Any:
    return table.write(FOLDER, f"handle-{epoch}", words(*ids))


# --- the compare-and-set


def test_rows_and_mark_are_one_commit(lake: Lake) -> None:
    table = lake.made()
    assert table.version == ""
    assert table.mark(JOB, SINK, ()) is None
    lake.append(table, 0, 1, 2)
    assert [1, 2] == lake.ids()
    assert table.version == str(lake.raw.current_snapshot().snapshot_id)
    assert mark_of(0) == lake.looked().mark(JOB, SINK, ())
    assert {"operation": "append", "fencepost.lineage": LINEAGE, "fencepost.epoch": "0"}.items() <= (
        lake.raw.current_snapshot().summary.model_dump().items()
    )


@pytest.mark.parametrize("before", [(), (1,)])
def test_of_two_commits_on_the_same_look_the_second_is_refused(lake: Lake, before: tuple[int, ...]) -> None:
    """Also if there is no snapshot yet."""
    table = lake.made()
    if before:
        lake.append(table, 0, *before)
    first, second = lake.looked(), lake.looked()
    files = files_of(first, 1, 7)
    first.append(files, JOB, SINK, mark_of(1))
    assert [] == second.lost(files)
    with pytest.raises(Conflict):
        second.append(files, JOB, SINK, mark_of(1))
    assert [*before, 7] == lake.ids()
    assert second.load()
    assert mark_of(1) == second.mark(JOB, SINK, ())


def test_every_kind_of_commit_is_refused_on_an_old_look(lake: Lake) -> None:
    table = lake.made()
    lake.append(table, 0, 1)
    new = rows_of([{"id": 9, "more": "b"}], pa.schema([("id", pa.int64()), ("more", pa.string())]))
    commits: list[Callable[[IcebergLakeTable], None]] = [
        lambda old: old.append(files_of(old, 1, 9), JOB, SINK, mark_of(1)),
        lambda old: old.replace(files_of(old, 1, 9), JOB, SINK, mark_of(1)),
        lambda old: old.replace([], JOB, SINK, mark_of(1)),
        lambda old: old.extend(new, JOB, SINK, mark_of(1)),
        lambda old: old.upsert(words(9), ["id"], None, JOB, SINK, mark_of(1)),
        lambda old: old.upsert(words(1), ["id"], None, JOB, SINK, mark_of(1)),
    ]
    for number, commit in enumerate(commits):
        old = lake.looked()
        lake.raw.append(pa.table({"id": [100 + number], "word": ["other"]}, schema=SCHEMA))
        with pytest.raises(Conflict):
            commit(old)
    assert [1, *range(100, 100 + len(commits))] == lake.ids()
    assert mark_of(0) == lake.looked().mark(JOB, SINK, ())


def test_the_library_s_own_commit_duplicates_where_ours_is_refused(lake: Lake) -> None:
    """The sabotaged twin: `commit_transaction` retries on a newer state by default."""
    table = lake.made()
    files = files_of(table, 0, 1)
    first, stale = lake.raw, lake.raw
    ours = lake.looked()
    lost = ours.lost(files)
    for handle in (first, stale):
        transaction = handle.transaction()
        transaction.set_properties({"twin": "0"})
        with transaction._append_snapshot_producer({}) as producer:
            producer.append_data_file(ours._entry(files[0]))
        transaction.commit_transaction()
    assert [1, 1] == lake.ids()
    with pytest.raises(Conflict):
        ours.append(files, JOB, SINK, mark_of(0))
    assert ([], [1, 1]) == (lost, lake.ids())


def test_a_mark_in_a_snapshot_s_summary_duplicates_after_an_expiry_where_ours_does_not(lake: Lake) -> None:
    """The other twin."""

    def in_summary(table: Table, epoch: int) -> bool:
        return any(
            snapshot.summary is not None and snapshot.summary.model_dump().get("fencepost.epoch") == str(epoch)
            for snapshot in table.snapshots()
        )

    table = lake.made()
    files = files_of(table, 0, 1)
    table.append(files, JOB, SINK, mark_of(0))
    assert in_summary(lake.raw, 0)
    lake.raw.append(pa.table({"id": [2], "word": ["other"]}, schema=SCHEMA))
    expire_all_but_the_newest(lake)
    twin, ours = lake.looked(), lake.looked()
    if not in_summary(lake.raw, 0):
        twin.append(files, "twin", SINK, mark_of(0))
    if ours.mark(JOB, SINK, ()) != mark_of(0):
        ours.append(files, JOB, SINK, mark_of(0))
    assert [1, 1, 2] == lake.ids()  # the twin's


def test_an_epoch_whose_answer_was_lost_is_found_by_its_mark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.made()
    files = files_of(table, 0, 1)
    catalog = table._connected
    commit = catalog.commit_table

    def lost(*arguments: Any) -> Any:
        commit(*arguments)
        raise ConnectionResetError("postgresql://user:secret@host")

    monkeypatch.setattr(catalog, "commit_table", lost)
    with pytest.raises(Silent) as raised:
        table.append(files, JOB, SINK, mark_of(0))
    assert not isinstance(raised.value, Conflict)
    assert "secret" not in str(raised.value)
    assert table.load()
    assert mark_of(0) == table.mark(JOB, SINK, ())
    assert [1] == lake.ids()


def test_one_look_is_good_for_one_commit(lake: Lake) -> None:
    table = lake.made()
    files = files_of(table, 0, 1)
    table.append(files, JOB, SINK, mark_of(0))
    with pytest.raises(AssertionError):
        table.append(files, JOB, SINK, mark_of(1))
    assert [1] == lake.ids()


def test_a_conflict_leaves_nothing_behind(lake: Lake, tmp_path: Path) -> None:
    """Neither the manifests, nor the metadata, nor the files that a merge wrote."""
    table = lake.made()
    lake.append(table, 0, 1)
    old = lake.looked()
    lake.raw.append(pa.table({"id": [2], "word": ["other"]}, schema=SCHEMA))
    before = sorted((tmp_path / "lake").rglob("*.*"))
    with pytest.raises(Conflict):
        old.upsert(words(1, 3), ["id"], None, JOB, SINK, mark_of(1))
    assert before == sorted((tmp_path / "lake").rglob("*.*"))


# --- others at the same table


def test_others_commit_beside_us(lake: Lake) -> None:
    table = lake.made()
    lake.append(table, 0, 1)
    for number in range(1, 4):
        lake.raw.append(pa.table({"id": [100 + number], "word": ["other"]}, schema=SCHEMA))
        lake.append(table, number, number + 1)
    lake.raw.delete("id = 102")
    lake.append(table, 4, 5)
    assert [1, 2, 3, 4, 5, 101, 103] == lake.ids()
    assert table.setback(JOB, SINK, mark_of(4)) is None


def test_two_sinks_have_their_own_marks(lake: Lake) -> None:
    table = lake.made()
    table.append(files_of(table, 0, 1), JOB, "one", mark_of(0))
    assert table.load()
    table.append(files_of(table, 1, 2), JOB, "two", mark_of(7))
    found = lake.looked()
    assert (mark_of(0), mark_of(7), None) == tuple(found.mark(JOB, sink, ()) for sink in ("one", "two", "three"))


def test_names_with_dots_are_not_mixed_up() -> None:
    names = {name_of("a.b", "c"), name_of("a", "b.c"), name_of("a%2Eb", "c"), name_of("accept_rollback", "")}
    assert 4 == len(names)
    assert "fencepost.a%2Eb.c" == name_of("a.b", "c")
    assert all(name != ACCEPT and name.count(".") == 2 for name in names)


def test_a_property_that_somebody_sets_meanwhile_stays(lake: Lake) -> None:
    table = lake.made()
    old = lake.looked()
    lake.raw.transaction().set_properties({"owner": "team"}).commit_transaction()
    old.append(files_of(table, 0, 1), JOB, SINK, mark_of(0))
    assert ("team", [1]) == (lake.raw.properties["owner"], lake.ids())


def test_a_changed_schema_is_a_conflict(lake: Lake) -> None:
    table = lake.made()
    files = files_of(table, 0, 1)
    with lake.raw.update_schema() as update:
        update.add_column("more", StringType())
    with pytest.raises(Conflict):
        table.append(files, JOB, SINK, mark_of(0))
    assert table.load()
    assert [] == table.lost(files)
    table.append(files, JOB, SINK, mark_of(0))
    assert [{"id": 1, "word": "a", "more": None}] == lake.rows()


def test_files_for_partitions_that_the_table_no_longer_has_are_written_again(lake: Lake) -> None:
    table = lake.made()
    files = files_of(table, 0, 1)
    with lake.raw.update_spec() as update:
        update.add_identity("word")
    with pytest.raises(Conflict):
        table.append(files, JOB, SINK, mark_of(0))
    assert table.load()
    assert [file.path for file in files] == table.lost(files)
    again = files_of(table, 0, 1)
    assert [] == table.lost(again)
    table.append(again, JOB, SINK, mark_of(0))
    assert [["a"]] == [list(entry.partition._data) for entry in lake.entries()]


def test_a_commit_to_a_side_branch_is_a_conflict_and_then_passes_beside(lake: Lake) -> None:
    """It takes the sequence number that our snapshot was to have."""
    table = lake.made()
    lake.append(table, 0, 1)
    old = lake.looked()
    files = files_of(old, 1, 2)
    lake.raw.manage_snapshots().create_branch(lake.raw.current_snapshot().snapshot_id, "side").commit()
    lake.raw.append(pa.table({"id": [50], "word": ["side"]}, schema=SCHEMA), branch="side")
    with pytest.raises(Conflict):
        old.append(files, JOB, SINK, mark_of(1))
    assert old.load()
    old.append(files, JOB, SINK, mark_of(1))
    assert [1, 2] == lake.ids()


def test_a_table_that_was_dropped_is_noticed(lake: Lake) -> None:
    table = lake.made()
    files = files_of(table, 0, 1)
    lake.catalog.drop_table("db.words")
    with pytest.raises(Conflict):
        table.append(files, JOB, SINK, mark_of(0))
    assert not table.load()


@pytest.mark.parametrize("had_rows", [True, False])
def test_a_table_that_was_made_again_has_another_id(lake: Lake, had_rows: bool) -> None:
    table = lake.made()
    if had_rows:
        lake.append(table, 0, 1)
    old = lake.looked()
    files = files_of(old, 1, 2)
    lake.catalog.drop_table("db.words")
    lake.catalog.create_table("db.words", SCHEMA)
    with pytest.raises(Conflict):
        old.append(files, JOB, SINK, mark_of(1))
    before = old.id
    assert old.load()
    assert before != old.id
    assert old.mark(JOB, SINK, ()) is None


def test_two_names_of_a_table_are_one_place(lake: Lake) -> None:
    table = lake.made()
    lake.catalog.register_table("db.alias", lake.raw.metadata_location)
    alias = Lake(lake.properties, "db.alias")
    other = alias.looked()
    assert table.place == other.place
    unmade = Lake(lake.properties, "db.unmade")
    assert len({table.place, unmade.table().place, Lake(lake.properties, "db.unmade2").table().place}) == 3
    assert unmade.table().place == unmade.table().place
    alias.close()


# --- set back


def expire_all_but_the_newest(lake: Lake) -> None:
    lake.raw.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()


def with_three_epochs(lake: Lake) -> list[int]:
    """The snapshots."""
    table = lake.made()
    for epoch in range(3):
        lake.append(table, epoch, epoch)
    return [snapshot.snapshot_id for snapshot in lake.raw.snapshots()]


def setback_of(lake: Lake, epoch: int) -> str | None:
    table = lake.looked()
    assert mark_of(epoch) == table.mark(JOB, SINK, ())
    return table.setback(JOB, SINK, mark_of(epoch))


def test_a_rollback_is_noticed_and_named(lake: Lake) -> None:
    snapshots = with_three_epochs(lake)
    assert setback_of(lake, 2) is None
    lake.raw.manage_snapshots().rollback_to_snapshot(snapshots[0]).commit()
    words_ = setback_of(lake, 2) or ""
    assert all(str(part) in words_ for part in (snapshots[0], snapshots[2], ACCEPT))


def test_a_rollback_is_noticed_after_others_have_written(lake: Lake) -> None:
    snapshots = with_three_epochs(lake)
    lake.raw.manage_snapshots().rollback_to_snapshot(snapshots[0]).commit()
    for number in range(5):
        lake.raw.append(pa.table({"id": [100 + number], "word": ["other"]}, schema=SCHEMA))
    assert setback_of(lake, 2) is not None


def test_a_branch_that_takes_the_place_of_main_is_noticed(lake: Lake) -> None:
    snapshots = with_three_epochs(lake)
    lake.raw.manage_snapshots().create_branch(snapshots[0], "side").commit()
    lake.raw.append(pa.table({"id": [50], "word": ["side"]}, schema=SCHEMA), branch="side")
    lake.raw.manage_snapshots().set_current_snapshot(ref_name="side").commit()
    assert [0, 50] == lake.ids()
    assert setback_of(lake, 2) is not None


def test_a_branch_that_holds_our_epochs_may_take_the_place_of_main(lake: Lake) -> None:
    snapshots = with_three_epochs(lake)
    lake.raw.manage_snapshots().create_branch(snapshots[2], "side").commit()
    lake.raw.append(pa.table({"id": [50], "word": ["side"]}, schema=SCHEMA), branch="side")
    lake.raw.manage_snapshots().set_current_snapshot(ref_name="side").commit()
    assert setback_of(lake, 2) is None


def test_a_table_without_a_main_branch_is_noticed(lake: Lake) -> None:
    with_three_epochs(lake)
    lake.raw.manage_snapshots().remove_branch("main").commit()
    assert setback_of(lake, 2) is not None


def test_an_expired_snapshot_is_not_a_lost_one(lake: Lake) -> None:
    with_three_epochs(lake)
    lake.raw.append(pa.table({"id": [50], "word": ["other"]}, schema=SCHEMA))
    expire_all_but_the_newest(lake)
    assert 1 == len(lake.raw.snapshots())
    assert setback_of(lake, 2) is None
    lake.append(lake.looked(), 3, 3)
    assert [0, 1, 2, 3, 50] == lake.ids()


def test_nor_is_one_that_a_tag_keeps_while_those_after_it_expire(lake: Lake) -> None:
    snapshots = with_three_epochs(lake)
    for number in range(2):
        lake.raw.append(pa.table({"id": [50 + number], "word": ["other"]}, schema=SCHEMA))
    lake.raw.manage_snapshots().create_tag(snapshots[2], "month").commit()
    expire_all_but_the_newest(lake)
    assert 2 == len(lake.raw.snapshots())
    assert setback_of(lake, 2) is None


def test_nor_if_the_newest_still_names_its_expired_parent(lake: Lake) -> None:
    """As other engines leave it: this library takes the name away."""
    snapshots = with_three_epochs(lake)
    lake.raw.append(pa.table({"id": [50], "word": ["other"]}, schema=SCHEMA))
    metadata = json.loads(Path(lake.raw.metadata_location.removeprefix("file://")).read_text())
    metadata["snapshots"] = [one for one in metadata["snapshots"] if one["snapshot-id"] not in snapshots]
    assert [snapshots[2]] == [one["parent-snapshot-id"] for one in metadata["snapshots"]]
    Path(lake.raw.metadata_location.removeprefix("file://")).write_text(json.dumps(metadata))
    assert setback_of(lake, 2) is None


def test_a_person_may_accept_a_rollback_once(lake: Lake) -> None:
    snapshots = with_three_epochs(lake)
    lake.raw.manage_snapshots().rollback_to_snapshot(snapshots[0]).commit()
    lake.raw.transaction().set_properties({ACCEPT: str(snapshots[0])}).commit_transaction()
    assert setback_of(lake, 2) is None
    lake.raw.append(pa.table({"id": [50], "word": ["other"]}, schema=SCHEMA))  # others do not wait for us
    assert setback_of(lake, 2) is None
    lake.append(lake.looked(), 3, 3)
    assert ACCEPT not in lake.raw.properties
    assert setback_of(lake, 3) is None
    lake.raw.manage_snapshots().rollback_to_snapshot(snapshots[0]).commit()
    assert setback_of(lake, 3) is not None


def test_an_acceptance_for_another_sink_is_left_alone(lake: Lake) -> None:
    table = lake.made()
    lake.append(table, 0, 0)
    lake.raw.transaction().set_properties({ACCEPT: table.version}).commit_transaction()
    lake.append(table, 1, 1)
    assert ACCEPT in lake.raw.properties


def test_an_acceptance_of_another_snapshot_is_none(lake: Lake) -> None:
    snapshots = with_three_epochs(lake)
    lake.raw.manage_snapshots().rollback_to_snapshot(snapshots[0]).commit()
    lake.raw.transaction().set_properties({ACCEPT: str(snapshots[1])}).commit_transaction()
    assert setback_of(lake, 2) is not None


# --- the mark's own bytes


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: "{",
        lambda plain: "[]",
        lambda plain: json.dumps({key: value for key, value in plain.items() if key != "snapshot"}),
        lambda plain: json.dumps(plain | {"more": 1}),
        lambda plain: json.dumps(plain | {"epoch": "0"}),
        lambda plain: json.dumps(plain | {"epoch": True}),
        lambda plain: json.dumps(plain | {"lineage": None}),
        lambda plain: json.dumps(plain | {"snapshot": None}),
        lambda plain: json.dumps(plain | {"format": 0}),
    ],
)
def test_a_damaged_mark_is_refused(lake: Lake, change: Callable[[dict[str, Any]], str]) -> None:
    table = lake.made()
    lake.append(table, 0, 1)
    key = name_of(JOB, SINK)
    changed = change(json.loads(lake.raw.properties[key]))
    lake.raw.transaction().set_properties({key: changed}).commit_transaction()
    with pytest.raises(OperatorNeeded) as raised:
        lake.looked().mark(JOB, SINK, ())
    assert ("mark_damaged", JOB, SINK) == (raised.value.code, raised.value.where.job, raised.value.where.sink)


def test_a_mark_of_a_newer_fencepost_is_refused(lake: Lake) -> None:
    table = lake.made()
    lake.append(table, 0, 1)
    key = name_of(JOB, SINK)
    newer = json.loads(lake.raw.properties[key]) | {"format": 99, "fencepost": "9.0", "more": 1}
    lake.raw.transaction().set_properties({key: json.dumps(newer)}).commit_transaction()
    with pytest.raises(TargetRefused) as raised:
        lake.looked().mark(JOB, SINK, ())
    assert "newer_format" == raised.value.code


def test_the_lines_for_people_do_what_they_say(lake: Lake, tmp_path: Path) -> None:
    table = lake.made()
    lake.append(table, 0, 1)
    owner = Owner(job=JOB, lineage=LINEAGE, generation=2, writer=5, staging=Staging(tmp_path))
    remove, set_ = table.how_to_mark(JOB, SINK, owner)

    def run(line: str) -> None:
        code = f"catalog = {lake.properties!r}\n{line}"
        subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)

    run(set_.replace("{epoch}", "41"))
    found = lake.looked()
    mark = found.mark(JOB, SINK, ())
    assert mark is not None
    assert (LINEAGE, 2, 41, "by-hand", 5) == (mark.lineage, mark.generation, mark.epoch, mark.handle, mark.writer)
    assert found.setback(JOB, SINK, mark) is None
    run(remove)
    assert lake.looked().mark(JOB, SINK, ()) is None
    assert all(value not in line for line in (remove, set_) for value in lake.properties.values())


# --- replacing everything


def test_replace_leaves_only_the_new_rows(lake: Lake) -> None:
    table = lake.made("word")
    lake.append(table, 0, 1, 2)
    lake.raw.append(pa.table({"id": [50], "word": ["other"]}, schema=SCHEMA))
    assert table.load()
    files = files_of(table, 1, 7)
    table.replace(files, JOB, SINK, mark_of(1))
    assert [7] == lake.ids()
    assert mark_of(1) == table.mark(JOB, SINK, ())


def test_replace_without_rows_is_a_snapshot_too_also_on_an_empty_table(lake: Lake) -> None:
    """Otherwise it would be a change of properties alone, which is not fenced."""
    table = lake.made()
    for epoch in range(3):
        assert table.load()
        before = table.version
        other = lake.looked()
        table.replace([], JOB, SINK, mark_of(epoch))
        assert before != table.version
        with pytest.raises(Conflict):
            other.replace([], JOB, SINK, mark_of(epoch))
        assert [] == lake.ids()
        if epoch == 1:
            lake.raw.append(pa.table({"id": [50], "word": ["other"]}, schema=SCHEMA))
    assert mark_of(2) == lake.looked().mark(JOB, SINK, ())
    assert [] == lake.entries()


# --- new columns


def test_columns_and_rows_come_in_one_commit(lake: Lake) -> None:
    table = lake.made("bucket(2, id)")
    lake.append(table, 0, 1)
    assert table.load()
    schema = pa.schema([("id", pa.int64()), ("a.b", pa.int16()), ("nested", pa.struct([("x", pa.string())]))])
    assert ["a.b", "nested"] == table.new_columns(schema)
    rows = rows_of([{"id": 2, "a.b": 5, "nested": {"x": "y"}}, {"id": 3}], schema)
    before = len(lake.raw.metadata.metadata_log)
    table.extend(rows, JOB, SINK, mark_of(1))
    assert before + 1 == len(lake.raw.metadata.metadata_log)
    assert [
        {"id": 1, "word": "a", "a.b": None, "nested": None},
        {"id": 2, "word": None, "a.b": 5, "nested": {"x": "y"}},
        {"id": 3, "word": None, "a.b": None, "nested": None},
    ] == lake.rows()
    assert mark_of(1) == table.mark(JOB, SINK, ())


def test_a_column_that_somebody_else_has_added_meanwhile_is_used(lake: Lake) -> None:
    table = lake.made()
    rows = rows_of([{"id": 2, "more": 5}], pa.schema([("id", pa.int64()), ("more", pa.int64())]))
    with lake.raw.update_schema() as update:
        update.add_column("more", LongType())
    with pytest.raises(Conflict):
        table.extend(rows, JOB, SINK, mark_of(0))
    assert table.load()
    table.extend(rows, JOB, SINK, mark_of(0))
    assert [{"id": 2, "word": None, "more": 5}] == lake.rows()


def test_a_column_that_cannot_be_added_is_refused_with_the_rows(lake: Lake) -> None:
    table = lake.made()
    for schema in (
        pa.schema([("id", pa.int64()), ("Word", pa.string())]),
        pa.schema([("id", pa.int64()), ("gap", pa.duration("us"))]),
    ):
        with pytest.raises(RowsRefused):
            table.extend(rows_of([{"id": 2}], schema), JOB, SINK, mark_of(0))
    assert [] == lake.ids()


# --- data files


def test_files_that_are_gone_or_changed_are_lost(lake: Lake, tmp_path: Path) -> None:
    table = lake.made("word")
    rows = rows_of([{"id": number, "word": str(number)} for number in range(4)])
    files = table.write(FOLDER, "handle", rows)
    places = [tmp_path / "lake/db/words/data" / file.path for file in files]
    places[0].unlink()
    places[1].write_bytes(places[1].read_bytes()[:-1])
    places[2].write_bytes(bytes(files[2].bytes))
    later = lake.looked()  # another process: it has to read what the files say
    assert [file.path for file in files[:3]] == later.lost(files)
    assert [file.path for file in files[:2]] == table.lost(files)  # this one knows the third, and looks at its size
    assert [] == later.lost([])


def test_files_are_listed_and_deleted_by_name(lake: Lake) -> None:
    table = lake.made("word")
    files = table.write(FOLDER, "handle", rows_of([{"id": 1, "word": "x"}, {"id": 2, "word": "y"}]))
    assert ["handle-0.parquet", "handle-1.parquet"] == table.files_in(FOLDER)
    assert [] == table.files_in("fp-none-1")
    table.delete([*(file.path for file in files), f"{FOLDER}/handle-9.parquet"])
    assert [] == table.files_in(FOLDER)
    table.delete([])


def test_a_write_that_fails_leaves_no_files(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "AT_ONCE_BYTES", 1)
    monkeypatch.setattr(parquet, "WAITING_BYTES", 1)
    table = lake.made()
    there: list[list[str]] = []

    class Failing:
        schema, count, kept = SCHEMA, 3, ()

        def batches(self) -> Any:
            yield from words(1).batches()
            yield from words(2).batches()
            there.append(table.files_in(FOLDER))
            raise OSError("the disk of the staged rows")

    with pytest.raises(Silent) as raised:
        table.write(FOLDER, "handle", Failing())
    assert "its files cannot be reached (OSError)" == str(raised.value)
    assert ([["handle-0.parquet"]], []) == (there, table.files_in(FOLDER))


def test_data_files_go_where_the_table_says(lake: Lake, tmp_path: Path) -> None:
    table = lake.made(properties={"write.data.path": f"file://{tmp_path}/elsewhere/"})
    lake.append(table, 0, 1)
    assert [f"file://{tmp_path}/elsewhere/{FOLDER}/handle-0-0.parquet"] == [one.file_path for one in lake.entries()]


def test_no_name_and_no_error_has_a_value_of_a_row(lake: Lake, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("word", pa.string())])
    table = lake.made("word", "truncate(3, word)", schema=schema)
    table.write(FOLDER, "handle", rows_of([{"id": 1, "word": "Geheimnis"}]))
    assert [] == [path for path in tmp_path.rglob("*") if "Geh" in path.name]
    narrow = lake.raw
    with narrow.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("id")
        update.add_column("number", StringType())
    assert table.load()
    rows = rows_of([{"id": 4711, "word": "Geheimnis"}])
    for tried in (lambda: table.check_rows(rows), lambda: table.write(FOLDER, "another", rows)):
        with pytest.raises(RowsRefused) as raised:
            tried()
        assert "the rows do not fit: column 'id' is missing" == str(raised.value)


# --- what is refused


def test_a_look_creates_nothing(lake: Lake, tmp_path: Path) -> None:
    assert not lake.table().load()
    assert [] == list(tmp_path.iterdir())
    sqlite3.connect(tmp_path / "catalog.db").close()
    (tmp_path / "catalog.db").touch()
    assert not lake.table().load()
    with sqlite3.connect(tmp_path / "catalog.db") as database:
        assert [] == database.execute("SELECT name FROM sqlite_master").fetchall()
    database.close()


def test_of_two_who_create_the_table_the_second_is_told(lake: Lake) -> None:
    first, second = lake.table(), lake.table()
    first.create(SCHEMA)
    with pytest.raises(Conflict):
        second.create(SCHEMA)
    assert first.load()
    assert second.load()
    assert first.id == second.id


def test_a_new_table_has_what_was_asked_for(lake: Lake) -> None:
    lake.made("bucket(4, id)", "word", properties={"write.parquet.compression-codec": "snappy"})
    raw = lake.raw
    assert 2 == raw.metadata.format_version
    assert ["id_bucket_4", "word"] == [one.name for one in raw.spec().fields]
    assert {
        "write.parquet.compression-codec": "snappy",
        "commit.manifest-merge.enabled": "true",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "100",
    } == raw.properties


def test_where_emptiness_is_not_compared_a_new_table_gets_a_snapshot_and_others_without_one_are_refused(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a REST catalog; tests/connectors/iceberg/test_rest.py shows one that does not compare."""
    for module in ("table", "catalog"):
        monkeypatch.setattr(f"fencepost.connectors.iceberg.{module}.may_ignore_emptiness", lambda catalog: True)
    table = lake.made()
    assert ([], 1, []) == (table.unfit(removes=True), len(lake.raw.metadata.snapshots), lake.ids())
    lake.append(table, 0, 1)
    lake.catalog.drop_table(lake.identifier)
    lake.catalog.create_table(lake.identifier, schema_for(SCHEMA), properties={"format-version": "2"})
    [why] = lake.looked().unfit(removes=False)
    assert "it has no snapshot yet" in why


def test_a_view_of_that_name_is_refused(lake: Lake, tmp_path: Path) -> None:
    lake.made()
    with sqlite3.connect(tmp_path / "catalog.db") as database:
        database.execute("UPDATE iceberg_tables SET iceberg_type = 'VIEW'")
    database.close()
    table = lake.table()
    assert not table.load()
    with pytest.raises(RowsRefused) as raised:
        table.create(SCHEMA)
    assert "something else has its name in the catalog, perhaps a view" == str(raised.value)


@pytest.mark.parametrize(
    ("properties", "words_"),
    [
        ({"write.format.default": "orc"}, ["its data files are to be orc, and we write Parquet"]),
        (
            {"write.wap.enabled": "true"},
            ["it has write.wap.enabled, so that what is written has to be published by a person: remove that property"],
        ),
        ({"encryption.key-id": "k"}, ["it is encrypted"]),
        (
            {"write.parquet.compression-codec": "lzo"},
            [
                "its properties write.parquet.* or write.metadata.metrics.* have values that we do not understand",
            ],
        ),
        (
            {"write.parquet.row-group-limit": "many"},
            [
                "its properties write.parquet.* or write.metadata.metrics.* have values that we do not understand",
            ],
        ),
        (
            {"write.metadata.metrics.default": "some"},
            [
                "its properties write.parquet.* or write.metadata.metrics.* have values that we do not understand",
            ],
        ),
        ({"write.delete.mode": "merge-on-read", "write.merge.mode": "merge-on-read"}, []),
        ({"write.object-storage.enabled": "true"}, []),
    ],
)
def test_properties_that_we_cannot_follow_are_named(lake: Lake, properties: dict[str, str], words_: list[str]) -> None:
    table = lake.made(properties=properties)
    assert words_ == table.unfit(removes=False)


@pytest.mark.parametrize(
    ("version", "words_"),
    [
        ("1", "it has format version 1, in which a rollback cannot be noticed: set format-version to 2"),
        ("3", "it has format version 3, which pyiceberg cannot write"),
    ],
)
def test_other_format_versions_are_refused(lake: Lake, version: str, words_: str) -> None:
    lake.made()
    path = Path(lake.raw.metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text()) | {"format-version": int(version), "next-row-id": 0}
    path.write_text(json.dumps(metadata | {"schema": metadata["schemas"][0], "partition-spec": []}))
    assert [words_] == lake.looked().unfit(removes=True)


def test_what_cannot_be_created_is_said(lake: Lake) -> None:
    table = lake.table("day(word)", properties={"format-version": "3"})
    schema = pa.schema([("id", pa.int64()), ("ID", pa.int64()), ("gap", pa.duration("us")), ("nothing", pa.null())])
    assert [
        "column 'gap' is duration[us], for which Iceberg has no type",
        "column 'nothing' is null, for which Iceberg has no type: cast it to the type that it should have",
        "columns 'ID', 'id' differ only in case",
        "format-version must be 2",
    ] == table.uncreatable(schema)
    assert ["partition 'day(word)' is not possible by a column of type string"] == lake.table("day(word)").uncreatable(
        SCHEMA
    )
    assert ["it has no columns"] == lake.table().uncreatable(pa.schema([]))


def test_required_columns_are_named(lake: Lake) -> None:
    lake.catalog.create_namespace("db")
    schema = Schema(
        NestedField(1, "id", LongType(), required=True), NestedField(2, "word", StringType(), required=False)
    )
    lake.catalog.create_table("db.words", schema)
    table = lake.looked()
    only_word = pa.schema([("word", pa.string())])
    assert ["column 'id' is required, but the DataFrame does not have it"] == table.misfits(only_word, may_add=False)
    assert [] == table.misfits(SCHEMA, may_add=False)
    table.check_rows(words(1))
    with pytest.raises(BadValue) as raised:
        table.check_rows(rows_of([{"id": 1}, {"id": None, "word": "x"}]))
    assert "NULL in column 'id', which is required" == str(raised.value)


def test_a_catalog_that_cannot_be_is_refused_and_one_that_is_away_is_waited_for(tmp_path: Path) -> None:
    def refusal(**properties: str) -> tuple[type[Exception], str]:
        table = IcebergLakeTable(
            "db.words",
            catalog={"type": "sql", "warehouse": f"file://{tmp_path}"} | properties,
            partition_by=(),
            properties={},
            target_file_bytes=1,
        )
        with pytest.raises(Silent) as raised:
            table.load()
        assert "secret" not in str(raised.value) + repr(table)
        assert raised.value.__cause__ is None
        return type(raised.value), str(raised.value)

    assert (
        Denied,
        "its catalog is in memory, which does not survive a crash: name a file",
    ) == refusal(uri="sqlite://")
    assert (Denied, "the folder of the catalog's file does not exist") == refusal(uri="sqlite:////nowhere/at/all.db")
    assert (Denied, "the catalog's uri cannot be used (NoSuchModuleError)") == refusal(uri="nodb://u:secret@h/d")
    assert (Denied, "the catalog's uri cannot be used (ArgumentError)") == refusal(uri="secret")
    assert (Denied, "it needs the Python package MySQLdb, which is not installed") == refusal(
        uri="mysql+mysqldb://u:secret@127.0.0.1:1/d"
    )
    assert (Silent, "the catalog's database failed (OperationalError)") == refusal(
        uri="postgresql+psycopg://u:secret@127.0.0.1:1/d"
    )
    assert (Denied, "the catalog's settings, or the table's name, cannot be used (ValueError)") == refusal(
        type="secret"
    )
    (tmp_path / "text.db").write_text("secret" * 1000)
    assert (Broken, "the catalog's database is not an SQLite file") == refusal(uri=f"sqlite:///{tmp_path}/text.db")


def test_a_name_in_the_library_s_configuration_is_a_catalog(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in lake.properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__HOUSE__{key.upper()}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    named = IcebergLakeTable("db.words", catalog="house", partition_by=(), properties={}, target_file_bytes=1)
    lake.opened.append(named)
    assert not named.load()
    assert [] == list(tmp_path.iterdir())
    named.create(SCHEMA)
    assert named.load()
    by_name = lake.properties | {"name": "house"}
    same = Lake(by_name).looked()
    assert same.id == named.id
    same.close()
    assert not lake.table().load()  # another catalog in the same database


def test_metadata_that_is_gone_or_damaged_is_said(lake: Lake) -> None:
    lake.made()
    path = Path(lake.raw.metadata_location.removeprefix("file://"))
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    with pytest.raises(Broken) as raised:
        lake.table().load()
    assert "its metadata cannot be read (ValidationError)" == str(raised.value)
    path.unlink()
    with pytest.raises(Broken) as raised:
        lake.table().load()
    assert "a file of the table's metadata is missing (FileNotFoundError)" == str(raised.value)


def test_a_catalog_s_file_that_was_replaced_is_opened_again(lake: Lake, tmp_path: Path) -> None:
    """The open connection still has the old file, which has no name any more; SQLite itself refuses to write there."""
    table = lake.made()
    file = tmp_path / "catalog.db"
    backup = file.read_bytes()
    lake.append(table, 0, 1)
    assert table.load()
    files = files_of(table, 1, 2)
    file.unlink()
    file.write_bytes(backup)
    with pytest.raises(Silent):
        table.append(files, JOB, SINK, mark_of(1))
    assert table.load()
    assert table.mark(JOB, SINK, ()) is None
    file.unlink()
    assert not table.load()


def test_a_locked_catalog_is_waited_for(lake: Lake, tmp_path: Path) -> None:
    table = lake.made()
    files = files_of(table, 0, 1)
    table._connected.engine.dispose()  # type: ignore[attr-defined]
    blocking = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    blocking.execute("BEGIN IMMEDIATE")
    lake.properties["uri"] += "?timeout=0.05"
    impatient = lake.looked()
    with pytest.raises(Silent) as raised:
        impatient.append(files, JOB, SINK, mark_of(0))
    assert not isinstance(raised.value, Conflict)
    blocking.execute("ROLLBACK")
    blocking.close()
    assert impatient.load()
    assert impatient.mark(JOB, SINK, ()) is None
    impatient.append(files, JOB, SINK, mark_of(0))
    assert [1] == lake.ids()


def test_what_we_rely_on_in_pyiceberg() -> None:
    """Private names of the library; if one of them changes, read what became of it before the pin moves."""
    import inspect  # noqa: PLC0415

    import pyiceberg  # noqa: PLC0415
    from pyiceberg.catalog import Catalog, MetastoreCatalog  # noqa: PLC0415
    from pyiceberg.catalog.rest import RestCatalog  # noqa: PLC0415
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415
    from pyiceberg.io.pyarrow import _read_all_delete_files  # noqa: PLC0415
    from pyiceberg.table import CreateTableTransaction, Transaction  # noqa: PLC0415
    from pyiceberg.table.update.snapshot import _OverwriteFiles, _SnapshotProducer  # noqa: PLC0415

    assert "0.12.0" == pyiceberg.__version__
    assert {"_table", "_updates", "_requirements"} <= Transaction.__annotations__.keys()
    assert "_snapshot_producers" in inspect.getsource(Transaction.__init__)
    assert isinstance(Transaction.table_metadata, property)
    assert ["self", "snapshot_properties", "branch"] == list(
        inspect.signature(Transaction._append_snapshot_producer).parameters
    )
    assert {"_written_manifests", "_written_manifest_lists"} <= _SnapshotProducer.__annotations__.keys()
    assert "_build_delete_files_partition_predicate" in inspect.getsource(_SnapshotProducer._manifests)
    assert ["self", "operation", "transaction", "io", "commit_uuid", "snapshot_properties", "branch"] == list(
        inspect.signature(_OverwriteFiles.__init__).parameters
    )
    assert ["metadata", "io", "metadata_path"] == list(inspect.signature(MetastoreCatalog._write_metadata).parameters)
    assert ["io", "base", "metadata"] == list(inspect.signature(Catalog._delete_old_metadata).parameters)
    assert ["io", "tasks"] == list(inspect.signature(_read_all_delete_files).parameters)
    source = inspect.getsource(SqlCatalog.commit_table)
    assert source.index("self._update_and_stage_table(") < source.index("self._write_metadata(")
    assert "IcebergTables.metadata_location == current_table.metadata_location" in source
    assert issubclass(_FastAppendFiles, _SnapshotProducer)
    assert "self._session.post(" in inspect.getsource(RestCatalog.commit_table)
    assert "requirements=(AssertCreate(),)" in inspect.getsource(CreateTableTransaction.commit_transaction)
