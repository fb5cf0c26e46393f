"""Files: the contract for both ways of becoming visible, and what only files do."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from fencepost.connectors.files.layout import list_published
from fencepost.connectors.files.sink import Files
from fencepost.errors import BadConfig, EpochFailed, OperatorNeeded, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Handle, WriterNumber
from fencepost.testing import SinkContract, SinkDriver, rows_of

TABLE = pa.table({"k": ["a", "b"], "v": [1, 2]})


@contextmanager
def moved_away(folder: Path) -> Iterator[None]:
    folder.rename(folder.with_suffix(".away"))
    yield
    folder.with_suffix(".away").rename(folder)


def started(sink: Files, folder: Path, schema: pa.Schema = TABLE.schema, **owner: Any) -> SinkDriver:
    driver = SinkDriver(sink, folder, **owner)
    driver.start(schema)
    return driver


def listed(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.is_file())


class TestRename(SinkContract):
    lists_orphans = True
    tells = True
    finds_strays = True

    def make_sink(self, tmp_path: Path) -> Files:
        return Files(tmp_path / "out", name="files")

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        return [row for file in listed(tmp_path / "out") for row in rows_of(pa.parquet.read_table(file))]

    def misfit(self) -> pa.Schema:
        return pa.schema([("k", pa.string()), ("k", pa.string())])

    def silence(self, tmp_path: Path) -> Any:
        return moved_away(tmp_path / "out")

    def forget(self, tmp_path: Path) -> bool:
        for manifest in (tmp_path / "out" / "_fencepost" / "manifests").iterdir():
            manifest.unlink()
        return True


class TestManifest(TestRename):
    def make_sink(self, tmp_path: Path) -> Files:
        return Files(tmp_path / "out", visible="manifest", name="files")

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        return [row for file in list_published(tmp_path / "out") for row in rows_of(pa.parquet.read_table(file))]


class TestJson(TestRename):
    def make_sink(self, tmp_path: Path) -> Files:
        return Files(tmp_path / "out", format="json", name="files")

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        lines = [line for file in list_published(tmp_path / "out") for line in file.read_text().splitlines()]
        return [(row["k"], row["v"]) for row in map(json.loads, lines)]


class TestCsv(TestRename):
    def make_sink(self, tmp_path: Path) -> Files:
        return Files(tmp_path / "out", format="csv", name="files")

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        return [row for file in list_published(tmp_path / "out") for row in rows_of(pa.csv.read_csv(file))]


TYPES = pa.table(
    {
        "text": ['ä\n"x", y', ""],
        "bytes": [b"\0\xff", None],
        "decimal": pa.array([Decimal("1.50"), None], pa.decimal128(38, 2)),
        "date": [date(2024, 1, 2), None],
        "aware": pa.array([datetime(2024, 1, 2, 3, tzinfo=UTC), None], pa.timestamp("us", tz="Europe/Vienna")),
        "nested": [{"a": [1, None]}, None],
        "number": [1.5, float("nan")],
    }
)


def one_file(folder: Path, kind: Any) -> Path:
    driver = started(Files(folder / "out", format=kind), folder, TYPES.schema)
    driver.run(0, TYPES)
    (file,) = list_published(folder / "out")
    return file


def test_parquet_keeps_every_type(tmp_path: Path) -> None:
    read = pa.parquet.read_table(one_file(tmp_path, "parquet"))
    assert TYPES.schema == read.schema
    assert TYPES.drop_columns("number").equals(read.drop_columns("number"))


def test_a_file_that_is_published_late_has_the_time_at_which_it_appeared(tmp_path: Path) -> None:
    """A reader that ignores old files would never see it."""
    rows = pa.table({"k": ["a"]})
    driver = started(Files(tmp_path / "out", name="files"), tmp_path, rows.schema)
    handle = driver.pre_commit(0, rows)
    (staged,) = (tmp_path / "out/_fencepost/staged").iterdir()
    os.utime(staged, (1, 1))  # the driver died long ago
    late = started(Files(tmp_path / "out", name="files"), tmp_path, rows.schema, writer=2)
    assert Outcome.DONE == late.commit(0, handle)
    (file,) = list_published(tmp_path / "out")
    assert file.stat().st_mtime > 1


def test_text_that_is_not_utf8_is_kept_byte_by_byte_or_refused(tmp_path: Path) -> None:
    """Spark reads such text from Parquet without a word, and so does Arrow."""
    there = pa.array([b"ok", b"caf\xe9"])
    rows = pa.table({"text": pa.Array.from_buffers(pa.string(), 2, there.buffers())})
    for kind in ("parquet", "csv"):
        started(Files(tmp_path / kind, format=kind, name=kind), tmp_path, rows.schema).run(0, rows)
    (parquet,), (csv,) = list_published(tmp_path / "parquet"), list_published(tmp_path / "csv")
    assert there == pa.parquet.read_table(parquet)["text"].combine_chunks().cast(pa.binary())
    assert b'"text"\n"ok"\n"caf\xe9"\n' == csv.read_bytes()
    driver = started(Files(tmp_path / "json", format="json"), tmp_path, rows.schema)
    with pytest.raises(EpochFailed, match="rows_refused"):
        driver.pre_commit(0, rows)


def test_json_lines_hold_every_type_exactly(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in one_file(tmp_path, "json").read_text().splitlines()]
    assert [
        {
            "text": 'ä\n"x", y',
            "bytes": "AP8=",
            "decimal": "1.50",
            "date": "2024-01-02",
            "aware": "2024-01-02T03:00:00+00:00",
            "nested": {"a": [1, None]},
            "number": 1.5,
        },
        {"text": "", "bytes": None, "decimal": None, "date": None, "aware": None, "nested": None, "number": "NaN"},
    ] == rows


def test_csv_tells_null_from_empty_text(tmp_path: Path) -> None:
    lines = one_file(tmp_path, "csv").read_text()
    assert (
        '"text","bytes","decimal","date","aware","nested","number"\n'
        '"ä\n""x"", y","AP8=","1.50","2024-01-02","2024-01-02T03:00:00+00:00","{""a"":[1,null]}",1.5\n'
        '"",,,,,,nan\n'
    ) == lines


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
@pytest.mark.parametrize("visible", ["rename", "manifest"])
def test_a_consumer_may_delete_what_it_has_read(tmp_path: Path, kind: Any, visible: Any) -> None:
    sink = Files(tmp_path / "out", format=kind, visible=visible)
    driver = started(sink, tmp_path)
    handle = driver.run(0, TABLE)
    for file in list_published(tmp_path / "out"):
        file.unlink()
    assert Outcome.DONE == driver.commit(0, handle)
    later = started(sink, tmp_path, writer=2)
    assert Outcome.DONE == later.commit(0, handle)
    assert [] == listed(tmp_path / "out")


CRASH = textwrap.dedent(
    """
    import json, os, signal, sys
    from dataclasses import asdict
    from pathlib import Path
    import pyarrow as pa
    from fencepost.connectors.files.sink import Files
    from fencepost.testing import SinkDriver
    folder, visible = Path(sys.argv[1]), sys.argv[2]
    table = pa.table({"k": ["a", "b"], "v": [1, 2]})
    driver = SinkDriver(Files(folder / "out", visible=visible, name="files"), folder)
    driver.start(table.schema)
    driver.run(0, table)
    handle = driver.pre_commit(1, table)
    (folder / "handle").write_text(json.dumps(asdict(handle)))
    driver.vote(1, handle)
    driver.commit(1, handle)
    os.kill(os.getpid(), signal.SIGKILL)
    """
)


@pytest.mark.parametrize(
    ("visible", "fault", "consumed"),
    [
        ("rename", "publish.renamed=kill@2", False),
        ("rename", "publish.renamed=kill@2", True),
        ("rename", "store.linked=kill@4", True),
        ("manifest", "publish.renamed=kill@2", False),
        ("manifest", "store.linked=kill@4", False),
        ("manifest", "", False),
    ],
)
def test_another_process_finishes_what_a_killed_one_began(
    tmp_path: Path, visible: Any, fault: str, consumed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_FAULT", fault)
    died = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path), visible], check=False, capture_output=True)
    monkeypatch.delenv("FENCEPOST_FAULT")
    assert -signal.SIGKILL == died.returncode, died.stderr
    plain = json.loads((tmp_path / "handle").read_text())
    handle = Handle(plain["id"], "files", 2, body=plain["body"])
    for file in list_published(tmp_path / "out") if consumed else ():
        file.unlink()
    driver = started(Files(tmp_path / "out", visible=visible, name="files"), tmp_path, writer=2)
    for _ in range(2):
        assert Outcome.DONE == driver.commit(1, handle)
    assert () == driver.session.orphans(WriterNumber(2))
    left = list_published(tmp_path / "out")
    assert (0 if consumed else 2) == len(left)
    assert all(rows_of(TABLE) == rows_of(pa.parquet.read_table(file)) for file in left)


def test_a_failed_epochs_file_is_listed_by_the_folder_but_not_published(tmp_path: Path) -> None:
    driver = started(Files(tmp_path / "out", visible="manifest"), tmp_path)
    driver.pre_commit(0, TABLE)
    driver.run(0, TABLE)
    assert (2, 1) == (len(listed(tmp_path / "out")), len(list_published(tmp_path / "out")))


def test_files_are_published_in_the_order_of_their_epochs(tmp_path: Path) -> None:
    driver = started(Files(tmp_path / "out", visible="manifest"), tmp_path)
    handles = [driver.run(epoch, TABLE) for epoch in (8, 9, 10, 11)]
    assert [handle.body["file"] for handle in handles] == [file.name for file in list_published(tmp_path / "out")]


@pytest.mark.parametrize(("visible", "kept"), [("rename", 3), ("manifest", 12)])
def test_manifests_that_are_only_evidence_are_pruned(tmp_path: Path, visible: Any, kept: int) -> None:
    driver = started(Files(tmp_path / "out", visible=visible), tmp_path)
    for epoch in range(12):
        driver.run(epoch, TABLE)
    assert kept == len(list((tmp_path / "out/_fencepost/manifests").iterdir()))
    assert 12 == len(list_published(tmp_path / "out"))
    assert [] == list((tmp_path / "out/_fencepost/staged").iterdir())


@pytest.mark.parametrize("visible", ["rename", "manifest"])
def test_a_damaged_data_file_fails_the_vote(tmp_path: Path, visible: Any) -> None:
    driver = started(Files(tmp_path / "out", visible=visible), tmp_path)
    handle = driver.pre_commit(0, TABLE)
    next((tmp_path / "out").rglob(handle.body["file"])).write_bytes(b"short")
    assert (handle.id,) == driver.vote(0, handle)


def test_a_decided_file_that_is_lost_needs_an_operator(tmp_path: Path) -> None:
    driver = started(Files(tmp_path / "out", visible="manifest"), tmp_path)
    handle = driver.pre_commit(0, TABLE)
    (tmp_path / "out" / handle.body["file"]).unlink()
    with pytest.raises(OperatorNeeded) as lost:
        driver.commit(0, handle)
    assert "data_file_lost" == lost.value.code
    assert [] == list_published(tmp_path / "out")


def test_a_full_disk_fails_the_epoch_and_leaves_no_file(tmp_path: Path) -> None:
    driver = started(Files(tmp_path / "out", format="json"), tmp_path)
    rows = driver.rows(0, pa.table({"k": ["x" * 1000] * 300, "v": [1] * 300}))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(EpochFailed, match="File too large"):
            driver.session.pre_commit(0, rows)  # type: ignore[arg-type]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [] == list((tmp_path / "out/_fencepost/staged").iterdir())
    assert driver.session.pre_commit(0, rows) is not None  # type: ignore[arg-type]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(TargetRefused) as refused:
        started(Files(tmp_path / "out"), tmp_path)
    assert "target_unusable" == refused.value.code


def test_two_sinks_of_a_job_cannot_share_a_folder(tmp_path: Path) -> None:
    started(Files(tmp_path / "out", name="one"), tmp_path)
    with pytest.raises(TargetRefused) as refused:
        started(Files(tmp_path / "out", name="two"), tmp_path)
    assert "target_of_another_sink" == refused.value.code


def test_how_files_become_visible_cannot_change(tmp_path: Path) -> None:
    started(Files(tmp_path / "out"), tmp_path)
    with pytest.raises(TargetRefused) as refused:
        started(Files(tmp_path / "out", visible="manifest"), tmp_path)
    assert "target_of_another_sink" == refused.value.code


@pytest.mark.parametrize("visible", ["rename", "manifest"])
def test_files_that_are_not_ours_are_never_taken_for_orphans(tmp_path: Path, visible: Any) -> None:
    driver = started(Files(tmp_path / "out", visible=visible), tmp_path, writer=9)
    for name in ("data.parquet", "bbbbbbbb-1-0-0123456789ab.parquet", "aaaaaaaa-9-0-0123456789ab.parquet", "a-b-c-d"):
        for folder in ("out", "out/_fencepost/staged"):
            (tmp_path / folder / name).write_text("")
    assert () == driver.session.orphans(WriterNumber(9))


def test_a_deleted_folder_has_another_identity(tmp_path: Path) -> None:
    sink = Files(tmp_path / "out")
    first = sink.session("job").preflight(TABLE.schema, "append")
    shutil.rmtree(tmp_path / "out")
    assert first != sink.session("job").preflight(TABLE.schema, "append")


def test_output_mode_update_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig):
        Files(tmp_path / "out").session("job").preflight(TABLE.schema, "update")


@pytest.mark.parametrize("settings", [{"path": ""}, {"visible": "maybe"}])
def test_settings_that_cannot_work_are_refused_where_they_are_written(settings: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"path": "out"} | settings
    with pytest.raises(BadConfig) as refused:
        Files(arguments.pop("path"), **arguments)
    assert "bad_sink" == refused.value.code


@pytest.mark.parametrize("settings", [{"path": "s3://x/y"}, {"format": "orc"}, {"format": "text"}])
def test_what_can_only_be_read_is_refused_as_a_sink(settings: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"path": "out"} | settings
    files = Files(arguments.pop("path"), **arguments)
    for use in (lambda: files.capabilities, lambda: files.session("job")):
        with pytest.raises(BadConfig) as refused:
            use()
        assert "bad_sink" == refused.value.code
