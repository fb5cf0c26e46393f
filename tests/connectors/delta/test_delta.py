"""Delta as a sink: the contract, for rows that are added, merged by key, and that replace all others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema
from lake import delta, rows_in_delta

from fencepost.connectors.delta.sink import Delta
from fencepost.testing import SinkContract


@contextmanager
def away(folder: Path) -> Iterator[None]:
    """The disk is not mounted."""
    folder.rename(folder.with_suffix(".away"))
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".away").rename(folder)


class TestAppend(SinkContract):
    notices_a_setback = True
    tells = True
    lists_orphans = True
    finds_strays = True

    def make_sink(self, tmp_path: Path) -> Delta:
        return delta(tmp_path)

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        return rows_in_delta(tmp_path)

    def misfit(self) -> pa.Schema:
        return pa.schema({"k": pa.string(), "v": pa.int64(), "more": pa.int64()})

    def silence(self, tmp_path: Path) -> Any:
        return away(tmp_path / "words")


class TestPartitioned(TestAppend):
    def make_sink(self, tmp_path: Path) -> Delta:
        return delta(tmp_path, partition_by="v")


class TestUnkept(TestAppend):
    def make_sink(self, tmp_path: Path) -> Delta:
        return delta(tmp_path, keep_rows=False)


class TestWider(TestAppend):
    """A table that lacks a column of the rows until the first epoch is committed."""

    lists_orphans = False  # rows with new columns stay staged

    def make_sink(self, tmp_path: Path) -> Delta:
        if not (tmp_path / "words").exists():
            DeltaTable.create(str(tmp_path / "words"), Schema([Field("k", "string")]))
        return delta(tmp_path, schema="add_columns")

    def misfit(self) -> pa.Schema:
        return pa.schema({"k": pa.int64(), "v": pa.int64()})


class TestUpsert(TestAppend):
    lists_orphans = False

    def make_sink(self, tmp_path: Path) -> Delta:
        return delta(tmp_path, key="k")

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", None, "secret-2"], "v": [1, 2, 3]})


class TestConstrained(TestAppend):
    """A table that somebody else made, with rules of its own."""

    def make_sink(self, tmp_path: Path) -> Delta:
        if not (tmp_path / "words").exists():
            fields = [Field("k", "string", nullable=False), Field("v", "long")]
            made = DeltaTable.create(str(tmp_path / "words"), Schema(fields))
            made.alter.add_constraint({"positive": "v >= 0"})
        return delta(tmp_path, create=False)

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", "secret-2"], "v": [1, -2]})


@pytest.mark.parametrize("settings", [{}, {"key": "k"}, {"mode": "replace"}])
def test_settings_are_shown_without_secrets(settings: dict[str, Any], tmp_path: Path) -> None:
    sink = delta(tmp_path, storage_options={"AWS_SECRET_ACCESS_KEY": "canary"}, **settings)
    assert "canary" not in repr(sink)
