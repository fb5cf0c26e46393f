"""What a sink holds, read by its own client."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

from fencepost_proof.fuzz.plans import Branch, Place

Rows = list[dict[str, Any]]


def rows(branch: Branch, names: list[str], place: Place) -> Rows:
    """The rows of a branch under all the names that it had, oldest name first."""
    return [row for name in names for row in READERS[branch.sink](name, place)]


def _files(name: str, place: Place) -> Rows:
    # As every reader of the folder does: names that begin with _ or . are not data.
    files = sorted((place.root / name).glob("[!_.]*.json"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def _sqlite(name: str, place: Place) -> Rows:
    with closing(sqlite3.connect(place.root / "out.db")) as connection:
        return _all(connection.execute(f'SELECT * FROM "{name}"'))  # noqa: S608 - names of our own


def _duckdb(name: str, place: Place) -> Rows:
    import duckdb  # noqa: PLC0415 - not needed by every job

    with closing(duckdb.connect(str(place.root / "out.duckdb"))) as connection:
        return _all(connection.execute(f'SELECT * FROM "{name}"'))  # noqa: S608 - names of our own


def _postgres(name: str, place: Place) -> Rows:
    import psycopg  # noqa: PLC0415 - not needed by every job

    with psycopg.connect(place.postgres) as connection:
        found = connection.execute(f'SELECT * FROM "{place.table(name)}"')  # noqa: S608 - ours
        return _all(found)


def _all(cursor: Any) -> Rows:
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _kafka(name: str, place: Place) -> Rows:
    from fencepost_proof.checkers.recount_kafka import read  # noqa: PLC0415 - not needed without a broker

    messages, _ = read(place.kafka, place.topic(name), "read_committed")
    return [json.loads(message.value() or "") for message in messages]


READERS = {"files": _files, "sqlite": _sqlite, "duckdb": _duckdb, "postgres": _postgres, "kafka": _kafka}
