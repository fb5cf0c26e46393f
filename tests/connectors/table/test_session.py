"""One session for all tables, and a dialect for each database."""

from __future__ import annotations

import pytest

import fencepost as fp
from fencepost.connectors.duckdb.dialect import DuckDBDialect
from fencepost.connectors.mysql.dialect import MySQLDialect
from fencepost.connectors.postgres.dialect import PostgresDialect
from fencepost.connectors.sqlite.dialect import SQLiteDialect
from fencepost.connectors.table.database import Dialect
from fencepost.connectors.table.session import TableSession
from fencepost.contract import Session

SINKS = [
    fp.Postgres("t", dsn="host=nowhere.invalid"),
    fp.MySQL("t", user="u", database="d"),
    fp.SQLite("nowhere.db", table="t"),
    fp.DuckDB("nowhere.db", table="t"),
]


def levels(kind: type, root: type) -> int:
    """From a class up to its root, both counted."""
    return 1 if kind is root else 1 + max(levels(base, root) for base in kind.__bases__ if issubclass(base, root))


@pytest.mark.parametrize("sink", SINKS, ids=lambda sink: sink.name)
def test_every_table_has_the_same_session_two_levels_deep(sink: fp.Sink) -> None:
    session = sink.session("job")
    assert (TableSession, 2) == (type(session), levels(type(session), Session))
    session.close()


@pytest.mark.parametrize("kind", [PostgresDialect, MySQLDialect, SQLiteDialect, DuckDBDialect])
def test_a_dialect_is_a_server_or_a_file(kind: type[Dialect]) -> None:
    assert 3 == levels(kind, Dialect)
