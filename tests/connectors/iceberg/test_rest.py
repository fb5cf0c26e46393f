"""Iceberg through a real REST catalog, Nessie, with tables in an S3 store. Runs where there is a Java 21."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fencepost_proof.rig.nessie import Nessie, java_21
from fencepost_proof.rig.s3 import S3
from icebergs import FOLDER, JOB, LINEAGE, SCHEMA, SINK, Lake, mark_of, rows_of, words
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import BadRequestError, CommitStateUnknownException, NoSuchTableError
from pyiceberg.types import LongType

from fencepost import faults
from fencepost.connectors.iceberg import columns
from fencepost.connectors.iceberg.sink import Iceberg
from fencepost.connectors.table.database import Conflict, Silent
from fencepost.testing import SinkContract

pytestmark = [
    pytest.mark.long,
    pytest.mark.server,
    pytest.mark.skipif(java_21() is None, reason="Nessie needs Java 21: name its folder in JAVA_21_HOME"),
]


@pytest.fixture(scope="module")
def nessie(s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nessie]:
    bucket = f"rest{uuid.uuid4().hex[:8]}"
    s3.make_bucket(bucket)
    with Nessie(tmp_path_factory.mktemp("nessie"), store=s3, bucket=bucket) as server:
        yield server


@pytest.fixture
def lake(nessie: Nessie) -> Iterator[Lake]:
    made = Lake(nessie.catalog, f"n{uuid.uuid4().hex[:8]}.words")
    yield made
    made.close()


def test_one_look_is_one_commit_and_the_mark_is_in_it(lake: Lake) -> None:
    table = lake.made("bucket(4, id)")
    lake.append(table, 0, 1, 2)
    old = lake.looked()
    lake.append(table, 1, 3)
    with pytest.raises(Conflict):
        old.append(old.write(FOLDER, "handle-x", words(4)), JOB, SINK, mark_of(1))
    assert ([1, 2, 3], mark_of(1)) == (lake.ids(), lake.looked().mark(JOB, SINK, (LINEAGE,)))


def test_every_kind_of_commit(lake: Lake) -> None:
    table = lake.made()
    lake.append(table, 0, 1, 2)
    assert table.load()
    table.upsert(words(2, 3, word="b"), ["id"], None, JOB, SINK, mark_of(1))
    assert [(1, "a"), (2, "b"), (3, "b")] == [(row["id"], row["word"]) for row in lake.rows()]
    assert table.load()
    table.replace(table.write(FOLDER, "handle-2", words(9)), JOB, SINK, mark_of(2))
    assert ([9], mark_of(2)) == (lake.ids(), lake.looked().mark(JOB, SINK, (LINEAGE,)))


def test_of_two_first_commits_this_catalog_takes_both_so_that_a_table_without_a_snapshot_is_refused(lake: Lake) -> None:
    """If the first part fails, the catalog compares now, and we need not refuse."""
    namespace, _, _ = lake.identifier.partition(".")
    lake.catalog.create_namespace(namespace)
    lake.catalog.create_table(lake.identifier, columns.schema_for(SCHEMA), properties={"format-version": "2"})
    one, two = lake.looked(), lake.looked()
    [why] = one.unfit(removes=False)
    assert "it has no snapshot yet" in why
    one.append(one.write(FOLDER, "handle-0", words(1)), JOB, SINK, mark_of(0))
    two.append(two.write(FOLDER, "handle-1", words(2)), JOB, "another", mark_of(0))
    assert [2] == lake.ids()  # and 1 is lost
    assert [] == lake.looked().unfit(removes=False)


def test_a_first_snapshot_that_a_person_gives_is_enough(lake: Lake) -> None:
    namespace, _, _ = lake.identifier.partition(".")
    lake.catalog.create_namespace(namespace)
    lake.catalog.create_table(lake.identifier, columns.schema_for(SCHEMA), properties={"format-version": "2"})
    [why] = lake.looked().unfit(removes=False)
    program = why.partition(" with ")[2]
    given = f"from pyiceberg.catalog import load_catalog; catalog = {dict(lake.properties)!r}; "
    subprocess.run([sys.executable, "-c", given + program], check=True)  # as the words say
    assert [] == lake.looked().unfit(removes=False)


def test_of_two_who_saw_a_new_table_without_rows_the_second_is_refused(lake: Lake) -> None:
    lake.made()
    one, two = lake.looked(), lake.looked()
    one.append(one.write(FOLDER, "handle-0", words(1)), JOB, SINK, mark_of(0))
    with pytest.raises(Conflict):
        two.append(two.write(FOLDER, "handle-1", words(2)), JOB, "another", mark_of(0))
    assert [1] == lake.ids()


def test_new_columns_come_with_the_field_that_the_library_does_not_send(lake: Lake) -> None:
    """If the first part fails, the library sends it now, and `CompleteRequests` is not needed."""
    table = lake.made()
    lake.append(table, 0, 1)
    with pytest.raises(CommitStateUnknownException), lake.raw.update_schema() as change:
        change.add_column("more", LongType())
    assert table.load()
    wide = SCHEMA.append(pa.field("more", pa.int64()))
    table.extend(rows_of([{"id": 4, "word": "c", "more": 7}], wide), JOB, SINK, mark_of(1))
    assert [(1, None), (4, 7)] == [(row["id"], row["more"]) for row in lake.rows()]
    assert mark_of(1) == lake.looked().mark(JOB, SINK, (LINEAGE,))


def test_an_answer_that_was_lost_is_found_by_the_mark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.made()
    files = table.write(FOLDER, "handle-0", words(1))
    assert table.load()
    kind = type(table._connected)
    real = kind.commit_table

    def lost(self: Catalog, *arguments: Any) -> Any:
        real(self, *arguments)
        raise ConnectionError("canary")

    monkeypatch.setattr(kind, "commit_table", lost)
    with pytest.raises(Silent) as found:
        table.append(files, JOB, SINK, mark_of(0))
    assert (False, False) == (isinstance(found.value, Conflict), "canary" in str(found.value))
    monkeypatch.undo()
    assert ([1], mark_of(0)) == (lake.ids(), lake.looked().mark(JOB, SINK, (LINEAGE,)))


# --- a table that we make


DIES = """
import json, sys
import pyarrow as pa
from fencepost.connectors.iceberg.table import IcebergLakeTable

catalog, identifier = json.loads(sys.argv[1]), sys.argv[2]
table = IcebergLakeTable(identifier, catalog=catalog, partition_by=(), properties={}, target_file_bytes=1)
assert not table.load()
table.create(pa.schema([("id", pa.int64()), ("word", pa.string())]))
"""


def test_a_creator_that_is_killed_leaves_nothing_and_the_next_one_creates_it(lake: Lake) -> None:
    command = [sys.executable, "-c", DIES, json.dumps(dict(lake.properties)), lake.identifier]
    killed = subprocess.run(command, check=False, env={**os.environ, faults.ARM: "iceberg.creating=kill"})
    assert -signal.SIGKILL == killed.returncode
    table = lake.table()
    assert not table.load()
    table.create(SCHEMA)
    assert table.load()
    assert [] == table.unfit(removes=False)
    lake.append(table, 0, 1)
    assert [1] == lake.ids()


def test_of_two_creators_one_makes_the_table_and_the_other_is_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second stages before the first commits: only the commit can refuse it."""
    second = lake.table()
    assert not second.load()

    def meanwhile(point: str) -> None:
        monkeypatch.undo()
        lake.append(lake.made(), 0, 1)

    monkeypatch.setattr(faults, "reach", meanwhile)
    with pytest.raises(Conflict):
        second.create(SCHEMA)
    assert ([1], mark_of(0)) == (lake.ids(), lake.looked().mark(JOB, SINK, (LINEAGE,)))


@pytest.mark.parametrize("refusal", [BadRequestError, NotImplementedError])
def test_a_catalog_that_cannot_stage_a_new_table_gets_it_in_two_steps(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, refusal: type[Exception]
) -> None:
    def cannot(*_: Any, **__: Any) -> Any:
        raise refusal("canary")

    monkeypatch.setattr(RestCatalog, "create_table_transaction", cannot)
    table = lake.made("bucket(4, id)")
    assert [] == table.unfit(removes=False)
    lake.append(table, 0, 1)
    assert [1] == lake.ids()


class TestAppend(SinkContract):
    notices_a_setback = True
    tells = True
    lists_orphans = True
    finds_strays = True
    key: str | None = None

    @pytest.fixture(autouse=True)
    def _served(self, nessie: Nessie) -> None:
        self.catalog = nessie.catalog

    def name(self, tmp_path: Path) -> str:
        return f"n{uuid.uuid5(uuid.NAMESPACE_URL, str(tmp_path)).hex[:12]}.words"

    def make_sink(self, tmp_path: Path) -> Iceberg:
        return Iceberg(self.name(tmp_path), catalog=self.catalog, name="words", key=self.key)

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        catalog = load_catalog("default", **self.catalog)
        try:
            found = catalog.load_table(self.name(tmp_path)).scan().to_arrow()
        except NoSuchTableError:
            return []
        return list(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))

    def misfit(self) -> pa.Schema:
        return pa.schema({"k": pa.string(), "v": pa.int64(), "more": pa.int64()})


class TestUpsert(TestAppend):
    lists_orphans = False
    key = "k"

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", None, "secret-2"], "v": [1, 2, 3]})
