"""Several writers at one catalog, a table with a long history, and a catalog in PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fencepost_proof.rig.postgres import Postgres
from fencepost_proof.rig.process import HOST
from icebergs import FOLDER, JOB, SCHEMA, SINK, Lake, mark_of, words
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.update import AddSchemaUpdate
from pyiceberg.types import LongType, NestedField, StructType

from fencepost.connectors.iceberg.catalog import CompleteRequests
from fencepost.connectors.iceberg.table import IcebergLakeTable
from fencepost.connectors.table.database import Conflict, Denied, NotAllowed, Silent

RACE = """
import json, sys
import pyarrow as pa
from fencepost.connectors.iceberg.table import IcebergLakeTable
from fencepost.connectors.lake.session import TableRows
from fencepost.connectors.table.database import Conflict, Silent
from fencepost.connectors.table.mark import Mark

catalog, me, sink, epochs = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
table = IcebergLakeTable("db.words", catalog=catalog, partition_by=(), properties={}, target_file_bytes=1)
conflicts = committed = 0
assert table.load()
print("ready", flush=True)
sys.stdin.readline()
for epoch in range(epochs):
    while True:
        try:
            assert table.load()
            found = table.mark("job", sink, ())
            if found is not None and found.epoch >= epoch:
                break
            rows = pa.table({"id": [epoch], "word": [me]})
            files = table.write(f"fp-{me}-1", f"{epoch}-{conflicts}", TableRows(rows))
            table.append(files, "job", sink, Mark("lineage", 0, epoch, "handle", 1))
        except Silent:
            conflicts += 1
        else:
            committed += 1
print(json.dumps([committed, conflicts]))
"""


def race(lake: Lake, sinks: list[str], epochs: int) -> list[tuple[int, int]]:
    """Processes of their own; what each committed, and how often it was refused."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, json.dumps(lake.properties), f"w{place}", sink, str(epochs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for place, sink in enumerate(sinks)
    ]
    for one in running:
        assert one.stdout is not None
        assert "ready\n" == one.stdout.readline()
    for one in running:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    found = [one.communicate(timeout=240)[0] for one in running]
    assert [0] * len(sinks) == [one.returncode for one in running]
    return [tuple(json.loads(text)) for text in found]


def check_a_race(lake: Lake) -> None:
    """Three processes: two are the same job, which must not happen and does; the third writes beside them."""
    lake.made()
    found = race(lake, ["same", "same", "other"], 15)
    assert 15 == found[0][0] + found[1][0]
    assert 15 == found[2][0]
    rows = [(row["id"], row["word"]) for row in lake.rows()]
    assert sorted([*range(15), *range(15)]) == sorted(number for number, _ in rows)
    assert sorted(range(15)) == sorted(number for number, word in rows if word == "w2")


def test_processes_that_race_on_sqlite_commit_every_epoch_once(lake: Lake) -> None:
    check_a_race(lake)


# --- requests to a REST catalog


def test_a_new_schema_is_sent_with_the_highest_id_of_its_columns_nested_ones_too() -> None:
    sent: list[Any] = []
    inner = StructType(NestedField(7, "x", LongType()))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", inner))
    update = AddSchemaUpdate(schema_=schema)
    request = CommitTableRequest(
        identifier={"namespace": ["db"], "name": "words"}, requirements=(), updates=(update,)
    ).model_dump_json()
    post = CompleteRequests(lambda url, data, **rest: sent.append((url, json.loads(data), rest)))
    post("u", data=request.encode(), headers={"h": "1"})
    [(url, body, rest)] = sent
    assert ("u", {"headers": {"h": "1"}}) == (url, rest)
    [told] = body.pop("updates")
    assert 7 == told.pop("last-column-id")
    [given] = (plain := json.loads(request)).pop("updates")
    assert (given, plain) == (told, body)
    assert "last-column-id" not in given  # if this fails, the library sends it itself


@pytest.mark.parametrize("data", [b'{"name": "add-schema"}', b"not json", None])
def test_other_requests_are_sent_as_they_are(data: bytes | None) -> None:
    sent: list[Any] = []
    CompleteRequests(lambda url, data: sent.append(data))("u", data=data)
    assert (None if data is None else data.replace(b" ", b"")) == (sent[0] and sent[0].replace(b" ", b""))


# --- a long history


@pytest.mark.in_memory
def test_manifests_are_merged_and_old_metadata_is_removed(lake: Lake, tmp_path: Path) -> None:
    """By the properties that a new table gets."""
    table = lake.made(
        "word", properties={"write.metadata.previous-versions-max": "5", "commit.manifest.min-count-to-merge": "10"}
    )
    for epoch in range(25):
        assert table.load()
        files = table.write(FOLDER, f"handle-{epoch}", words(epoch, word=str(epoch % 3)))
        table.append(files, JOB, SINK, mark_of(epoch))
    assert list(range(25)) == lake.ids()
    snapshot = lake.raw.current_snapshot()
    manifests = snapshot.manifests(lake.raw.io)
    assert len(manifests) < 10
    entries = [entry for one in manifests for entry in one.fetch_manifest_entry(lake.raw.io)]
    assert list(range(1, 26)) == sorted(entry.sequence_number for entry in entries)
    assert {epoch % 3 for epoch in range(25)} == {int(entry.data_file.partition[0]) for entry in entries}
    assert 6 == len(list((tmp_path / "lake/db/words/metadata").glob("*.metadata.json")))
    assert [1] == [row["id"] for row in lake.rows() if row["id"] == 1]
    upserted = lake.looked()
    upserted.upsert(words(*range(5), word="new"), ["id"], None, JOB, SINK, mark_of(25))
    assert list(range(25)) == lake.ids()
    assert [0, 1, 2, 3, 4] == [row["id"] for row in lake.rows() if row["word"] == "new"]


# --- PostgreSQL


@pytest.fixture
def server(postgres: Postgres, tmp_path: Path) -> Iterator[Lake]:
    """A database of its own in the shared server."""
    name = f"lake{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    made = Lake(
        {
            "type": "sql",
            "uri": f"postgresql+psycopg://test@{HOST}:{postgres.port}/{name}",
            "warehouse": f"file://{tmp_path}/lake",
        }
    )
    yield made
    made.close()


def run(lake: Lake, statement: str) -> None:
    with psycopg.connect(lake.properties["uri"].replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(statement)


def test_a_catalog_in_postgresql(server: Lake) -> None:
    table = server.table("word")
    assert not table.load()
    with psycopg.connect(server.properties["uri"].replace("+psycopg", "")) as connection:
        tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'"
        assert (0,) == connection.execute(tables).fetchone()
    table.create(SCHEMA)
    assert table.load()
    server.append(table, 0, 1, 2)
    old = server.looked()
    server.append(table, 1, 3)
    with pytest.raises(Conflict):
        old.append(old.write(FOLDER, "handle-x", words(4)), JOB, SINK, mark_of(1))
    assert [1, 2, 3] == server.ids()
    assert mark_of(1) == server.looked().mark(JOB, SINK, ())


def test_processes_that_race_on_postgresql_commit_every_epoch_once(server: Lake) -> None:
    check_a_race(server)


def test_a_session_that_the_server_ended_is_opened_again(server: Lake) -> None:
    table = server.made()
    server.append(table, 0, 1)
    run(
        server,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND "
        "pid <> pg_backend_pid()",
    )
    assert table.load()
    server.append(table, 1, 2)
    assert [1, 2] == server.ids()


def refusal(lake: Lake, uri: str) -> Exception:
    table = IcebergLakeTable(
        "db.words", catalog=lake.properties | {"uri": uri}, partition_by=(), properties={}, target_file_bytes=1
    )
    with pytest.raises(Exception) as raised:  # noqa: PT011 - that is the question
        table.load()
    table.close()
    assert "s3cret" not in str(raised.value)
    assert raised.value.__suppress_context__
    return raised.value


def test_a_login_that_is_refused_is_said_without_the_password(server: Lake) -> None:
    uri = server.properties["uri"]
    database = uri.rpartition("/")[2]
    role = f"u{uuid.uuid4().hex[:8]}"
    server.made()
    run(server, f"CREATE ROLE {role} LOGIN PASSWORD 's3cret'")
    missing = refusal(server, uri.replace(database, "nowhere"))
    unknown = refusal(server, uri.replace("test@", "nobody:s3cret@"))
    weak = refusal(server, uri.replace("test@", f"{role}:s3cret@"))
    words_ = "the catalog's database refused the login: there is no such database, role or schema"
    assert [(Denied, words_), (Denied, words_), (NotAllowed, "the catalog's database refused a permission")] == [
        (type(one), str(one)) for one in (missing, unknown, weak)
    ]


def test_a_row_that_somebody_holds_is_waited_for(server: Lake) -> None:
    """The compare-and-set waits for the lock, then sees that the pointer moved."""
    table = server.made()
    files = table.write(FOLDER, "handle", words(1))
    with psycopg.connect(server.properties["uri"].replace("+psycopg", "")) as holder:
        holder.execute("SELECT * FROM iceberg_tables FOR UPDATE")
        impatient = Lake(server.properties | {"uri": server.properties["uri"] + "?options=-clock_timeout%3D100"})
        other = impatient.looked()
        with pytest.raises(Silent) as raised:
            other.append(files, JOB, SINK, mark_of(0))
        assert not isinstance(raised.value, Conflict)
        impatient.close()
    assert table.load()
    assert table.mark(JOB, SINK, ()) is None
    table.append(files, JOB, SINK, mark_of(0))
    assert [1] == server.ids()
