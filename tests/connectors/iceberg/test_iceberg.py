"""Iceberg as a sink: the contract, for rows that are added, merged by key, and that replace all others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from fencepost_proof.targets import catalog_of
from lake import TABLE, iceberg, rows_in_iceberg
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from fencepost.connectors.iceberg.sink import Iceberg
from fencepost.testing import SinkContract


@contextmanager
def away(file: Path) -> Iterator[None]:
    """The catalog cannot be reached: something else is in the place of its file."""
    file.rename(file.with_suffix(".away"))
    file.mkdir()
    try:
        yield
    finally:
        file.rmdir()
        file.with_suffix(".away").rename(file)


def make_table(folder: Path, *fields: NestedField) -> None:
    """By somebody else, unless it is there."""
    catalog = load_catalog("default", **catalog_of(folder))
    catalog.create_namespace_if_not_exists("shop")
    if not catalog.table_exists(TABLE):
        catalog.create_table(TABLE, Schema(*fields))
    catalog.close()


class TestAppend(SinkContract):
    notices_a_setback = True
    tells = True
    lists_orphans = True
    finds_strays = True

    def make_sink(self, tmp_path: Path) -> Iceberg:
        return iceberg(tmp_path)

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        return rows_in_iceberg(tmp_path)

    def misfit(self) -> pa.Schema:
        return pa.schema({"k": pa.string(), "v": pa.int64(), "more": pa.int64()})

    def silence(self, tmp_path: Path) -> Any:
        return away(tmp_path / "catalog.db")


class TestPartitioned(TestAppend):
    def make_sink(self, tmp_path: Path) -> Iceberg:
        return iceberg(tmp_path, partition_by=("bucket(3, k)", "v"))


class TestUnkept(TestAppend):
    def make_sink(self, tmp_path: Path) -> Iceberg:
        return iceberg(tmp_path, keep_rows=False)


class TestWider(TestAppend):
    """A table that lacks a column of the rows until the first epoch is committed."""

    lists_orphans = False  # rows with new columns stay staged

    def make_sink(self, tmp_path: Path) -> Iceberg:
        make_table(tmp_path, NestedField(1, "k", StringType(), required=False))
        return iceberg(tmp_path, schema="add_columns")

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        catalog = load_catalog("default", **catalog_of(tmp_path))
        has_all = "v" in catalog.load_table(TABLE).schema().column_names
        catalog.close()
        return rows_in_iceberg(tmp_path, "k, v" if has_all else "k")

    def misfit(self) -> pa.Schema:
        return pa.schema({"k": pa.int64(), "v": pa.int64()})


class TestUpsert(TestAppend):
    lists_orphans = False

    def make_sink(self, tmp_path: Path) -> Iceberg:
        return iceberg(tmp_path, key="k")

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", None, "secret-2"], "v": [1, 2, 3]})


class TestRequired(TestAppend):
    """A table that somebody else made, with a column that is never NULL."""

    def make_sink(self, tmp_path: Path) -> Iceberg:
        make_table(
            tmp_path,
            NestedField(1, "k", StringType(), required=True),
            NestedField(2, "v", LongType(), required=False),
        )
        return iceberg(tmp_path, create=False)

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", None, "secret-2"], "v": [1, 2, 3]})


def test_settings_are_shown_without_secrets(tmp_path: Path) -> None:
    sink = Iceberg("a.b", catalog={"type": "sql", "uri": "postgresql://user:canary@host/db"})
    assert "canary" not in repr(sink)
