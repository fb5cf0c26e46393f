"""What a Delta or Iceberg sink refuses, and when: where it was written, at the start, or in the vote."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lake import delta, iceberg, rows_in_delta, rows_in_iceberg

import fencepost as fp
from fencepost.connectors.delta.files import told
from fencepost.connectors.table.database import Denied, Silent
from fencepost.errors import BadConfig, EpochFailed, FencepostError, OperatorNeeded, TargetRefused
from fencepost.testing.sink_driver import SinkDriver

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
Make = Callable[..., Any]
Read = Callable[[Path], list[tuple[Any, ...]]]
both = pytest.mark.parametrize(("make", "read"), [(delta, rows_in_delta), (iceberg, rows_in_iceberg)])


def started(sink: Any, folder: Path, schema: pa.Schema, mode: Any = "append") -> SinkDriver:
    driver = SinkDriver(sink, folder)
    driver.start(schema, mode)
    return driver


@both
@pytest.mark.parametrize(
    "kind", [pa.struct([("a", pa.int64())]), pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64())], ids=str
)
def test_a_key_that_cannot_be_compared_is_refused_before_data_flows(
    make: Make, read: Read, kind: pa.DataType, tmp_path: Path
) -> None:
    """It would fail in the merge, which is after the decision."""
    schema = pa.schema([("k", kind), ("v", pa.int64())])
    sink = make(tmp_path, key="k", unique_key=True)
    for step in (SinkDriver(sink, tmp_path).start, SinkDriver(sink, tmp_path).session.rehearse):
        with pytest.raises(BadConfig) as found:
            step(schema, "update")
        assert ("key_type", True) == (found.value.code, "'k'" in found.value.what)


@both
def test_a_key_that_comes_twice_is_refused_in_the_vote_if_the_user_said_that_none_does(
    make: Make, read: Read, tmp_path: Path
) -> None:
    driver = started(make(tmp_path, key="k", unique_key=True), tmp_path, SCHEMA, "update")
    driver.run(0, pa.table({"k": ["a", "b"], "v": [1, 2]}))
    handle = driver.pre_commit(1, pa.table({"k": ["secret", "b", "secret"], "v": [3, 4, 5]}))
    with pytest.raises(EpochFailed) as found:
        driver.vote(1, handle)
    assert ("rows_refused", False) == (found.value.code, "secret" in str(found.value))
    driver.session.rollback()
    assert [("a", 1), ("b", 2)] == sorted(read(tmp_path))


@both
def test_two_parts_of_a_key_may_repeat_if_they_do_not_together(make: Make, read: Read, tmp_path: Path) -> None:
    driver = started(make(tmp_path, key=("k", "v"), unique_key=True), tmp_path, SCHEMA, "update")
    driver.run(0, pa.table({"k": ["a", "a", "b"], "v": [1, 2, 1]}))
    assert [("a", 1), ("a", 2), ("b", 1)] == sorted(read(tmp_path))
    handle = driver.pre_commit(1, pa.table({"k": ["a", "c", "a"], "v": [1, 2, 1]}))
    with pytest.raises(EpochFailed):
        driver.vote(1, handle)


@both
def test_without_that_word_the_last_row_of_a_key_stays(make: Make, read: Read, tmp_path: Path) -> None:
    driver = started(make(tmp_path, key="k", order_by="v"), tmp_path, SCHEMA, "update")
    driver.run(0, pa.table({"k": ["a", "b", "a"], "v": [3, 4, 1]}))
    assert [("a", 3), ("b", 4)] == sorted(read(tmp_path))


@both
def test_a_key_that_is_not_a_number_is_refused(make: Make, read: Read, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.float64()), ("v", pa.int64())])
    driver = started(make(tmp_path, key="k", unique_key=True), tmp_path, schema, "update")
    handle = driver.pre_commit(0, pa.table([[math.nan, 1.0], [1, 2]], schema=schema))
    with pytest.raises(EpochFailed, match="NULL or NaN"):
        driver.vote(0, handle)


@both
def test_an_epoch_that_is_too_large_to_merge_is_refused_before_the_decision(
    make: Make, read: Read, tmp_path: Path
) -> None:
    """And goes through, with the same rows, once the bound is raised as the error says."""
    large = pa.table({"k": [f"secret-{n}" for n in range(1000)], "v": range(1000)})
    driver = started(make(tmp_path, key="k", unique_key=True, merge_bytes=10_000), tmp_path, SCHEMA, "update")
    driver.run(0, pa.table({"k": ["a"], "v": [1]}))
    handle = driver.pre_commit(1, large)
    with pytest.raises(OperatorNeeded) as found:
        driver.vote(1, handle)
    assert ("merge_too_large", 1) == (found.value.code, found.value.where.epoch)
    assert ("Safe: nothing", False) == (found.value.safe[:13], "secret" in str(found.value))
    driver.session.rollback()
    assert [("a", 1)] == read(tmp_path)
    wanted = re.search(r"merge_bytes=(\d+)", found.value.next)
    assert wanted is not None
    again = SinkDriver(make(tmp_path, key="k", unique_key=True, merge_bytes=int(wanted[1])), tmp_path, writer=2)
    again.start(SCHEMA, "update")
    again.run(1, large)
    assert 1001 == len(read(tmp_path))


@both
def test_a_decided_epoch_is_merged_whatever_the_bound_is_now(make: Make, read: Read, tmp_path: Path) -> None:
    """Refused after the decision, it would stop the job forever."""
    driver = started(make(tmp_path, key="k", unique_key=True), tmp_path, SCHEMA, "update")
    handle = driver.pre_commit(0, pa.table({"k": ["a", "b"], "v": [1, 2]}))
    driver.vote(0, handle)
    later = SinkDriver(make(tmp_path, key="k", unique_key=True, merge_bytes=1), tmp_path, writer=2)
    later.start(SCHEMA, "update")
    later.commit(0, handle)
    assert [("a", 1), ("b", 2)] == sorted(read(tmp_path))


@both
def test_rows_that_are_only_added_have_no_such_bound(make: Make, read: Read, tmp_path: Path) -> None:
    driver = started(make(tmp_path, merge_bytes=1), tmp_path, SCHEMA)
    driver.run(0, pa.table({"k": ["a", "b"], "v": [1, 2]}))
    assert 2 == len(read(tmp_path))


WRONG: tuple[tuple[Callable[[], object], str], ...] = (
    (lambda: fp.Delta(None), "path"),  # type: ignore[arg-type]
    (lambda: fp.Delta("t", partition_by=5), "partition_by"),  # type: ignore[arg-type]
    (lambda: fp.Delta("t", partition_by=["a", 5]), "partition_by"),  # type: ignore[list-item]
    (lambda: fp.Delta("t", target_file_bytes="128 MB"), "target_file_bytes"),  # type: ignore[arg-type]
    (lambda: fp.Delta("t", key="k", merge_bytes="1 GB"), "merge_bytes"),  # type: ignore[arg-type]
    (lambda: fp.Delta("t", key="k", merge_bytes=0), "merge_bytes"),
    (lambda: fp.Iceberg("a.b", catalog="c", target_file_bytes=0), "target_file_bytes"),
    (lambda: fp.Delta("t", properties={"delta.appendOnly": True}), "properties"),  # type: ignore[dict-item]
    (lambda: fp.Delta("t", storage_options={"AWS_REGION": 1}), "storage_options"),  # type: ignore[dict-item]
    (lambda: fp.Delta("t", storage_options="AWS_REGION=1"), "storage_options"),  # type: ignore[arg-type]
    (lambda: fp.Iceberg(None, catalog="c"), "table"),  # type: ignore[arg-type]
    (lambda: fp.Iceberg("a.b", catalog=None), "catalog"),  # type: ignore[arg-type]
    (lambda: fp.Iceberg("a.b", catalog={"port": 1}), "catalog"),  # type: ignore[dict-item]
    (lambda: fp.Iceberg("a.b", catalog="c", properties=["x"]), "properties"),  # type: ignore[arg-type]
)


@pytest.mark.parametrize(("make", "name"), WRONG, ids=[f"{name}-{n}" for n, (_, name) in enumerate(WRONG)])
def test_an_argument_of_another_type_is_named_where_it_was_written(make: Callable[[], object], name: str) -> None:
    with pytest.raises(BadConfig) as found:
        make()
    assert ("bad_sink", True) == (found.value.code, name in found.value.what)


@pytest.mark.parametrize("path", ["dbfs:/tables/words", "hdfs:/tables/words", "s3:/bucket/words"])
def test_a_url_with_one_slash_is_not_taken_for_a_folder(path: str) -> None:
    with pytest.raises(BadConfig, match="two slashes"):
        fp.Delta(path)


def test_a_password_in_a_location_is_refused_and_not_shown() -> None:
    with pytest.raises(BadConfig) as found:
        fp.Delta("s3://KEY:canary@bucket/words")
    assert ("bad_sink", False) == (found.value.code, "canary" in str(found.value))
    assert "abfss://container@account/t" == fp.Delta("abfss://container@account/t").table


@pytest.mark.parametrize("path", ["file:/tmp/t", "file:///tmp/t", "./dbfs:/t", "/tmp/a:/t", "s3://b/t", "a/b", "x:y"])
def test_other_locations_are_fine(path: str) -> None:
    assert path == fp.Delta(path).table


def test_a_scheme_that_the_library_does_not_know_is_refused_by_name(tmp_path: Path) -> None:
    sink = fp.Delta("ftp://host/t", name="t")
    for step in (SinkDriver(sink, tmp_path).start, SinkDriver(sink, tmp_path).session.rehearse):
        with pytest.raises(TargetRefused) as found:
            step(SCHEMA, "append")
        assert ("target_unusable", True) == (found.value.code, "ftp://" in found.value.what)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("When reading information for key 'x': AWS Error ACCESS_DENIED during HeadObject operation", Denied),
        ("AWS Error INVALID_ACCESS_KEY_ID during PutObject operation", Denied),
        ("AWS Error SIGNATURE_DOES_NOT_MATCH during PutObject operation", Denied),
        ("response error: AccessDenied", Denied),
        ("AWS Error SLOW_DOWN during PutObject operation", Silent),
        ("AWS Error NETWORK_CONNECTION during PutObject operation", Silent),
    ],
)
def test_what_a_store_refuses_is_told_from_what_it_cannot_do_now(text: str, kind: type[Exception]) -> None:
    with pytest.raises(Silent) as found, told():
        raise OSError(text)
    assert kind is type(found.value)


@both
def test_what_a_new_table_cannot_have_is_said_with_what_to_change(make: Make, read: Read, tmp_path: Path) -> None:
    with pytest.raises(FencepostError) as found:
        started(make(tmp_path, partition_by="nope"), tmp_path, SCHEMA)
    assert ("schema_does_not_fit", True, True) == (
        found.value.code,
        "'nope'" in found.value.what,
        "partition_by=" in found.value.next,
    )
