"""Iceberg as a sink: the contract, for rows that are added, merged by key, and that replace all others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from fencepost_proof.targets import catalog_of
from lake import TABLE, iceberg, rows_in_iceberg

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


class TestUpsert(TestAppend):
    lists_orphans = False

    def make_sink(self, tmp_path: Path) -> Iceberg:
        return iceberg(tmp_path, key="k")

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", None, "secret-2"], "v": [1, 2, 3]})


class TestRequired(TestAppend):
    """A table that somebody else made, with a column that is never NULL."""

    def make_sink(self, tmp_path: Path) -> Iceberg:
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415
        from pyiceberg.schema import Schema  # noqa: PLC0415
        from pyiceberg.types import LongType, NestedField, StringType  # noqa: PLC0415

        catalog = load_catalog("default", **catalog_of(tmp_path))
        catalog.create_namespace_if_not_exists("shop")
        if not catalog.table_exists(TABLE):
            fields = NestedField(1, "k", StringType(), required=True), NestedField(2, "v", LongType(), required=False)
            catalog.create_table(TABLE, Schema(*fields))
        catalog.close()
        return iceberg(tmp_path, create=False)

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", None, "secret-2"], "v": [1, 2, 3]})


def test_settings_are_shown_without_secrets(tmp_path: Path) -> None:
    sink = Iceberg("a.b", catalog={"type": "sql", "uri": "postgresql://user:canary@host/db"})
    assert "canary" not in repr(sink)
