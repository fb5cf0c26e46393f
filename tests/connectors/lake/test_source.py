"""Tables of both formats as streams: each row once, whatever else happens to the table; no Spark."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from table_streams import Fed, FedDelta, FedIceberg, Process

import fencepost as fp
from fencepost.connectors.lake import source
from fencepost.connectors.lake.source import AddedFile, Position, Reading, explain, tasks
from fencepost.errors import BadConfig, EpochFailed, FencepostError, OperatorNeeded


@pytest.fixture(params=["delta", "iceberg"])
def fed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fed]:
    """A table with rows 1 and 2, in two versions."""
    made = FedDelta(tmp_path / "words") if request.param == "delta" else FedIceberg(tmp_path / "iceberg")
    made.add(1)
    made.add(2)
    yield made
    if isinstance(made, FedIceberg):
        made.close()


def stopped(code: str, step: Callable[[], object], kind: type[FencepostError] = OperatorNeeded) -> FencepostError:
    """The step stops with words, which survive the way through Spark."""
    with pytest.raises(kind) as caught:
        step()
    error = caught.value
    assert code == error.code
    shown = "".join(traceback.format_exception(error))  # as Spark logs it
    assert 1 == shown.count("Traceback")
    through_spark = explain(f"[SOME_CLASS] Failed when …: {shown}\n", "job")
    assert through_spark is not None
    assert (type(error), code, error.what, error.safe, error.next) == (
        type(through_spark),
        through_spark.code,
        through_spark.what,
        through_spark.safe,
        through_spark.next,
    )
    return error


# --- each row once


def test_earliest_is_what_is_in_the_table_and_then_what_is_added(fed: Fed) -> None:
    process = fed.process()
    epochs, offset = process.drain()
    assert [[1, 2]] == epochs
    fed.add(3, 4)
    fed.add(5)
    epochs, offset = process.drain(offset)
    assert [[3, 4, 5]] == epochs
    assert ([], offset) == process.drain(offset)


def test_a_compaction_is_not_read_as_new_rows(fed: Fed) -> None:
    process = fed.process()
    _, offset = process.drain()
    fed.add(3)
    fed.compact()
    fed.add(4)
    fed.compact()
    epochs, _ = process.drain(offset)
    assert [[3, 4]] == epochs
    assert [[1, 2, 3, 4]] == fed.process().drain()[0]


def test_a_range_has_the_same_rows_in_a_new_process_whatever_happened_since(fed: Fed) -> None:
    process = fed.process(most=1)
    offset, ranges = process.first(), []
    for number in (3, 4, 5):
        end = process.latest(offset)
        ranges.append((offset, end, process.rows(offset, end)))
        offset = end
        fed.compact()
        fed.add(number)
    assert all(len(rows) == 1 for _, _, rows in ranges)
    for start, end, rows in ranges:
        assert rows == fed.process().rows(start, end)


def test_a_crash_before_the_first_epoch_is_done_does_not_move_the_beginning(fed: Fed) -> None:
    """Spark stores where an epoch ends, and asks again where the first one began."""
    process = fed.process()
    end = process.latest(process.first())
    fed.compact()
    fed.add(3)
    again = fed.process()
    assert [1, 2] == again.numbers(again.first(), end)
    assert [[3]] == again.drain(end)[0]
    late = fed.process("latest")  # the setting counts only once, too
    assert [1, 2] == late.numbers(late.first(), end)


def test_latest_begins_with_what_is_added_after_the_first_offset(fed: Fed) -> None:
    process = fed.process("latest")
    offset = process.latest(process.first())
    assert [] == process.numbers(process.first(), offset)
    fed.add(3)
    assert [[3]] == process.drain(offset)[0]


def test_a_start_is_the_first_version_that_is_read(fed: Fed) -> None:
    third = fed.add(3)
    fed.add(4)
    assert [[3, 4]] == fed.process(third).drain()[0]


def test_a_stream_can_begin_with_the_first_version_of_all(fed: Fed) -> None:
    first = 0 if isinstance(fed, FedDelta) else fed.table.metadata.snapshots[0].snapshot_id  # type: ignore[attr-defined]
    assert [[1, 2]] == fed.process(first).drain()[0]


def test_a_start_is_the_first_time_that_is_read(fed: Fed) -> None:
    third = fed.add(3)
    fed.add(4)
    time = fed.time_of(third)
    assert [[3, 4]] == fed.process(time).drain()[0]
    assert [[3, 4]] == fed.process(time.isoformat()).drain()[0]
    later = datetime.now(UTC)
    process = fed.process(later)
    offset = process.latest(process.first())
    assert [] == process.numbers(process.first(), offset)
    fed.add(5)
    assert [[5]] == process.drain(offset)[0]


def test_a_time_before_all_versions_is_the_beginning(fed: Fed) -> None:
    assert [[1, 2]] == fed.process(datetime(2020, 1, 1, tzinfo=UTC)).drain()[0]


def test_a_limit_cuts_versions_and_the_first_snapshot(fed: Fed) -> None:
    process = fed.process(most=1)
    epochs, offset = process.drain()
    assert [[1], [2]] == sorted(epochs)
    fed.add(3)
    fed.compact()
    fed.add(4)
    assert [[3], [4]] == process.drain(offset)[0]


def test_a_version_with_more_files_than_an_epoch_may_have_is_read_in_parts(tmp_path: Path) -> None:
    fed = FedDelta(tmp_path / "words", options={"partition_by": ["v"]})
    fed.add(*range(5))
    fed.add(*range(5, 12))
    for start in ("earliest", 0):
        process = fed.process(start, most=3)
        epochs, offset = process.drain()
        assert [3, 3, 3, 3] == [len(epoch) for epoch in epochs]
        assert list(range(12)) == sorted(number for epoch in epochs for number in epoch)
        assert ([], offset) == fed.process(start, most=3).drain(offset)


def test_a_query_that_ends_reads_what_was_there_when_it_began(fed: Fed) -> None:
    process = fed.process(most=1)
    process.reader.prepareForTriggerAvailableNow()
    fed.add(3)
    epochs, offset = process.drain()
    assert [[1], [2]] == sorted(epochs)
    later = fed.process(most=1)
    later.reader.prepareForTriggerAvailableNow()
    assert [[3]] == later.drain(offset)[0]


def test_an_older_spark_reads_the_same_although_it_says_less(fed: Fed) -> None:
    process = fed.process(is_old=True)
    offset = process.latest(process.first())
    assert [1, 2] == process.numbers(process.first(), offset)
    fed.add(3)
    end = process.latest(offset)
    assert [3] == process.numbers(offset, end)
    fed.compact()
    fed.add(4)
    restarted = fed.process("latest", is_old=True)
    assert [] == restarted.rows(end, end)  # Spark's first call at a restart
    newest = restarted.latest(end)
    assert [4] == restarted.numbers(end, newest)
    assert newest == restarted.latest(newest)


def test_nothing_new_is_the_very_same_offset(fed: Fed) -> None:
    """Spark compares texts: another one would be an epoch without rows, again and again."""
    process = fed.process()
    first = process.latest(process.first())
    for offset in (first, process.latest(first)):
        assert json.dumps(first) == json.dumps(offset)
        assert json.dumps(first) == json.dumps(fed.process().latest(offset))


def test_an_empty_table_is_read_once_it_has_rows(tmp_path: Path) -> None:
    fed = FedIceberg(tmp_path / "iceberg")
    process = fed.process()
    offset = process.latest(process.first())
    assert [] == process.numbers(process.first(), offset)
    fed.add(1)
    fed.add(2)
    assert [[1, 2]] == process.drain(offset)[0]
    fed.close()


# --- what stops a stream


def test_a_version_that_removed_rows_stops_the_stream_after_all_before_it(fed: Fed) -> None:
    process = fed.process()
    _, offset = process.drain()
    fed.add(3, 4)
    bad = fed.remove(3)
    fed.add(5)
    end = process.latest(offset)
    assert [3, 4] == process.numbers(offset, end)
    error = stopped("table_rewritten", lambda: process.latest(end))
    assert f" {bad} removed or changed rows" in error.what
    stopped("table_rewritten", lambda: fed.process().latest(end))
    # A new stream begins after it.
    assert [[1, 2, 4, 5]] == fed.process().drain()[0]


def test_a_range_that_was_stored_and_has_such_a_version_stops(fed: Fed) -> None:
    """An older Spark stores an end before it says where the range began."""
    process = fed.process()
    _, offset = process.drain()
    fed.remove(1)
    fed.add(3)
    newest = fed.process("latest").latest({"start": "new"})
    end = {"table": offset["table"], "version": newest["version"], "stamp": newest["stamp"]}
    stopped("table_rewritten", lambda: fed.process().rows(offset, end))


def test_another_table_of_the_same_name_stops_the_stream(fed: Fed) -> None:
    process = fed.process()
    _, offset = process.drain()
    fed.make_again()
    stopped("table_replaced", lambda: process.latest(offset))
    stopped("table_replaced", lambda: fed.process().latest(offset))
    end = fed.process("latest").latest({"start": "new"})
    stopped("table_replaced", lambda: fed.process().rows(offset, end | {"table": offset["table"]}))


def test_a_table_that_was_dropped_stops_the_stream(fed: Fed) -> None:
    process = fed.process()
    _, offset = process.drain()
    fed.drop()
    stopped("table_gone", lambda: process.latest(offset))


def test_a_table_that_was_set_back_stops_the_stream(fed: Fed) -> None:
    back = fed.add(3)
    process = fed.process()
    fed.add(4)
    _, offset = process.drain()
    fed.set_back(back)
    error = stopped("table_set_back", lambda: process.latest(offset))
    assert str(offset["version"]) in error.what
    stopped("table_set_back", lambda: fed.process().latest(offset))
    fed.add(5)  # in a Delta table it has the number of the one that was lost
    stopped("table_set_back", lambda: process.latest(offset))
    stopped("table_set_back", lambda: fed.process().latest(offset))
    stopped("table_set_back", lambda: fed.process().rows({"start": "new"}, offset))


def test_history_that_was_deleted_before_it_was_read_stops_the_stream(fed: Fed) -> None:
    process = fed.process()
    _, offset = process.drain()
    fed.add(3)
    fed.add(4)
    fed.forget_history()
    error = stopped("table_history_lost", lambda: fed.process().latest(offset))
    assert str(offset["version"]) in error.what
    stopped("table_history_lost", lambda: process.latest(offset))


def test_history_that_was_read_may_be_deleted(fed: Fed) -> None:
    process = fed.process()
    _, offset = process.drain()
    fed.forget_history()
    assert offset == process.latest(offset) == fed.process().latest(offset)
    fed.add(3)
    assert [[3]] == fed.process().drain(offset)[0]


def test_a_first_snapshot_that_is_gone_before_it_was_read_stops_the_stream(fed: Fed) -> None:
    process = fed.process(most=1)
    offset = process.latest(process.first())
    fed.add(3)
    fed.forget_history()
    stopped("table_history_lost", lambda: fed.process(most=1).latest(offset))


def test_a_data_file_that_is_gone_stops_the_stream(fed: Fed) -> None:
    process = fed.process()
    _, offset = process.drain()
    known = set(fed.data_files())
    fed.add(3)
    end = process.latest(offset)
    (new,) = set(fed.data_files()) - known
    new.unlink()
    error = stopped("table_file_lost", lambda: process.rows(offset, end))
    assert new.name in error.what


def test_a_data_file_that_was_replaced_stops_the_stream(fed: Fed) -> None:
    process = fed.process()
    _, offset = process.drain()
    known = set(fed.data_files())
    fed.add(3)
    end = process.latest(offset)
    (new,) = set(fed.data_files()) - known
    pq.write_table(pq.read_table(new), new, compression="none", write_statistics=False)
    stopped("table_file_lost", lambda: process.rows(offset, end))


def test_a_data_file_that_is_damaged_fails_the_epoch(fed: Fed) -> None:
    process = fed.process()
    _, offset = process.drain()
    known = set(fed.data_files())
    fed.add(3)
    end = process.latest(offset)
    (new,) = set(fed.data_files()) - known
    new.write_bytes(bytes(len(new.read_bytes())))
    error = stopped("table_file_unreadable", lambda: process.rows(offset, end), EpochFailed)
    assert "ArrowInvalid" in error.what


# --- columns


def test_a_new_column_stops_a_stream_that_was_started_before_and_is_null_in_older_rows(fed: Fed) -> None:
    before = fed.columns()
    process = fed.process(columns=before)
    _, offset = process.drain()
    fed.add(3, more="x")
    stopped("table_columns_changed", lambda: process.latest(offset))
    fed.add(4, more="y")
    restarted = fed.process()
    end = restarted.latest(offset)
    rows = restarted.rows(offset, end)
    assert [{"k": 3, "v": "row 3", "more": "x"}, {"k": 4, "v": "row 4", "more": "y"}] == sorted(
        rows, key=lambda row: row["k"]
    )
    assert [None, None, "x", "y"] == [row["more"] for row in sorted(all_rows(fed.process()), key=lambda row: row["k"])]


def all_rows(process: Process) -> list[dict[str, Any]]:
    return process.rows(process.first(), process.latest(process.first()))


# --- settings


@pytest.mark.parametrize(
    ("start", "code"),
    [
        ("noon", "bad_start"),
        ("2026-01-31T00:00:00", "naive_time"),
        (datetime(2026, 1, 31), "naive_time"),  # noqa: DTZ001 - that is what it is about
        (-1, "bad_start"),
        (True, "bad_start"),
        (1.5, "bad_start"),
        (None, "bad_start"),
    ],
)
def test_a_start_that_cannot_be_is_refused_before_anything_is_looked_at(start: Any, code: str) -> None:
    with pytest.raises(BadConfig) as caught:
        Reading("nowhere", {}, start, None)._check("Delta")
    assert code == caught.value.code


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "3"])
def test_a_limit_that_cannot_be_is_refused(most: Any) -> None:
    with pytest.raises(BadConfig) as caught:
        Reading("nowhere", {}, "earliest", most)._check("Delta")
    assert "bad_rate" == caught.value.code


def test_a_start_that_the_table_does_not_have_is_refused(fed: Fed) -> None:
    for start in (77, datetime.now(UTC) + timedelta(hours=1)):
        process = fed.process(start)
        stopped("bad_start", lambda process=process: process.latest(process.first()), BadConfig)  # type: ignore[misc]


def test_a_start_that_the_history_does_not_have_any_more_is_refused(fed: Fed) -> None:
    third = fed.add(3)
    time = fed.time_of(third)
    fed.add(4)
    fed.forget_history()
    fed.add(5)
    for start in (third, time):
        process = fed.process(start)
        stopped("bad_start", lambda process=process: process.latest(process.first()), BadConfig)  # type: ignore[misc]


def test_a_table_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    error = stopped("table_unusable", FedDelta(tmp_path / "nowhere").columns, BadConfig)
    assert "nowhere" in error.what
    fed = FedIceberg(tmp_path / "iceberg")
    fed.drop()
    error = stopped("table_unusable", fed.columns, BadConfig)
    assert "shop.words" in error.what
    fed.close()


def test_a_standby_reads_what_arrives_from_now_on(fed: Fed) -> None:
    newest = fed.source.newest(1000)
    assert isinstance(newest, source.Newest)
    assert isinstance(newest.source, fp.Delta | fp.Iceberg)
    assert ("latest", None) == (newest.source.start, newest.source.max_files_per_epoch)
    assert fed.source.package is None


def test_credentials_are_not_in_a_source_that_is_printed() -> None:
    shown = repr(Reading("t", {"password": "canary-7d1f"}, "latest", None))
    assert "canary-7d1f" not in shown


# --- how files become tasks


def test_files_are_divided_among_the_cores_and_every_byte_is_in_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "OPEN_BYTES", 10)
    monkeypatch.setattr(source, "SPLIT_BYTES", 100)
    files = [AddedFile(f"f{size}", size, {}) for size in (5, 250, 99, 0, 100, 101)]
    for cores in (1, 4, 100):
        parts = tasks(files, cores)
        slices = [one for part in parts for one in part]
        for file in files:
            mine = [one for one in slices if one.path == file.path]
            assert [0, *(one.end for one in mine[:-1])] == [one.first for one in mine]
            assert mine[-1].end > file.bytes
    assert 1 == len(tasks(files[:1], 8))
    assert [] == tasks([], 8)


def test_each_row_group_of_a_large_file_is_read_once(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    _, offset = fed.process().drain()
    known = set(fed.data_files())
    fed.add(*range(100, 1100))
    (new,) = set(fed.data_files()) - known
    monkeypatch.setattr(source, "SPLIT_BYTES", max(new.stat().st_size // 7, 1))
    monkeypatch.setattr(source, "OPEN_BYTES", 1)
    process = fed.process(parallelism=16)
    end = process.latest(offset)
    assert len(process.reader.partitions(offset, end)) > 3
    assert list(range(100, 1100)) == process.numbers(offset, end)


def test_a_position_is_the_same_after_it_was_stored() -> None:
    since = Position("t", 7, 0, snapshot=True)
    for position in (Position("t", 7), Position("t", 8, 3), since, Position("t", 9, 1, since=since)):
        assert position == Position.of(json.loads(json.dumps(position.offset())))
