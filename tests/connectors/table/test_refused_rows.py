"""Which rows does a table refuse because of their own values? The same in every database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest
from refusals import SCHEMA, TABLE, check

import fencepost as fp
from fencepost.connectors.table.deletion import without
from fencepost.testing import SinkDriver

CONNECT: dict[str, Callable[..., Any]] = {"SQLite": sqlite3.connect, "DuckDB": duckdb.connect}


@pytest.mark.parametrize("keyed", [False, True], ids=["appended", "by key"])
@pytest.mark.parametrize("product", CONNECT)
def test_a_file_names_the_rows_that_it_refuses(tmp_path: Path, product: str, keyed: bool) -> None:
    with closing(CONNECT[product](str(tmp_path / "t.db"))) as database:
        database.execute(f"CREATE TABLE t ({TABLE.format(key='PRIMARY KEY' if keyed else '')})")
    settings = {"key": "k", "unique_key": True, "deletes": "gone"} if keyed else {}
    driver = SinkDriver(getattr(fp, product)(tmp_path / "t.db", table="t", **settings), tmp_path)
    driver.start(SCHEMA if keyed else without(SCHEMA, "gone"))
    check(driver, keyed=keyed)
    driver.session.close()
