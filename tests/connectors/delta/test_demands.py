"""What a Delta table may demand of its writers: each table feature is done, seen not to be used, or refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta_log import DeltaLog
from delta_tables import (
    JOB,
    LINEAGE,
    SINK,
    append,
    by_hand,
    column,
    features,
    marked,
    numbered,
    rows_of,
    table_at,
)
from deltalake import DeltaTable

from fencepost.connectors.delta.table import DeltaLakeTable
from fencepost.connectors.table.database import Broken, Silent

GENERATED = {"delta.generationExpression": "k + 1"}
IDENTITY = {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": False}
MAPPED = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "k"}
INVARIANT = {"delta.invariants": '{"expression": {"expression": "k > 0"}}'}


def looked_at(path: Path, **settings: Any) -> DeltaLakeTable:
    by_hand(path, **settings)
    table = table_at(path)
    assert table.load()
    return table


REFUSED = {
    "identityColumns": "identity columns",
    "rowTracking": "row tracking",
    "domainMetadata": "domain metadata",
    "inCommitTimestamp": "in-commit timestamps",
    "clustering": "liquid clustering",
    "allowColumnDefaults": "column defaults",
    "icebergCompatV1": "compatibility with Iceberg",
    "icebergCompatV2": "compatibility with Iceberg",
    "checkpointProtection": "the table feature 'checkpointProtection' is not known",
    "collations-preview": "the table feature 'collations-preview' is not known",
    "something-new": "the table feature 'something-new' is not known",
}
READER_REFUSED = {
    "typeWidening": "type widening",
    "typeWidening-preview": "type widening",
    "vacuumProtocolCheck": "vacuumProtocolCheck",
    "variantShredding-preview": "shredded variants",
}


@pytest.mark.parametrize(("name", "words"), [*REFUSED.items(), *READER_REFUSED.items()])
def test_a_feature_that_we_cannot_honour_is_refused_by_name(tmp_path: Path, name: str, words: str) -> None:
    table = looked_at(tmp_path / "table", protocol=features(name, readers=name in READER_REFUSED))
    for removes in (True, False):
        [found] = table.unfit(removes=removes)
        assert words in found


def test_a_feature_of_readers_that_the_library_does_not_know_cannot_even_be_looked_at(tmp_path: Path) -> None:
    by_hand(tmp_path / "table", protocol=features("something-new", readers=True))
    with pytest.raises(Broken):
        table_at(tmp_path / "table").load()


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ((1, 1), []),
        ((1, 2), []),
        ((1, 3), []),
        ((1, 4), []),
        ((2, 5), []),
        ((2, 6), ["identity columns, whose numbers only Delta's own engines give"]),
    ],
)
def test_protocols_without_a_list_of_features(tmp_path: Path, versions: tuple[int, int], expected: list[str]) -> None:
    protocol = dict(zip(("minReaderVersion", "minWriterVersion"), versions, strict=True))
    table = looked_at(tmp_path / "table", protocol=protocol)
    assert expected == table.unfit(removes=True)


def test_a_protocol_of_the_future_is_refused(tmp_path: Path) -> None:
    by_hand(tmp_path / "table", protocol={"minReaderVersion": 1, "minWriterVersion": 8, "writerFeatures": []})
    table = table_at(tmp_path / "table")
    try:
        table.load()
    except Silent:
        return  # by the library
    assert ["its protocol is newer than this fencepost (reader 1, writer 8)"] == table.unfit(removes=False)


@pytest.mark.parametrize(
    ("name", "readers"),
    [
        ("appendOnly", False),
        ("invariants", False),
        ("checkConstraints", False),
        ("changeDataFeed", False),
        ("generatedColumns", False),
        ("columnMapping", True),
        ("deletionVectors", True),
        ("timestampNtz", True),
        ("v2Checkpoint", True),
        ("variantType", True),
        ("variantType-preview", True),
    ],
)
def test_a_feature_that_the_table_has_and_does_not_use_is_no_hindrance(
    tmp_path: Path, name: str, readers: bool
) -> None:
    table = looked_at(
        tmp_path / "table",
        protocol=features(name, readers=readers),
        properties={"delta.checkpointInterval": "2"},
    )
    assert [] == table.unfit(removes=True)
    append(table, 0, numbered(4))
    table.load()
    table.upsert(numbered(4, 5), ["k"], None, JOB, SINK, marked(table, 1))
    table.load()
    table.replace(table.write("fp-a", "h", numbered(9)), JOB, SINK, marked(table, 2))
    assert [9] == sorted(row["k"] for row in DeltaLog(tmp_path / "table").rows())
    again = table_at(tmp_path / "table")
    assert again.load()
    assert 2 == again.mark(JOB, SINK, [LINEAGE]).epoch  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {
                "properties": {"delta.columnMapping.mode": "name"},
                "protocol": {"minReaderVersion": 2, "minWriterVersion": 5},
                "fields": [column("k", **MAPPED)],
            },
            "column mapping",
        ),
        ({"properties": {"delta.setTransactionRetentionDuration": "interval 30 days"}}, "at least 365 days"),
        ({"properties": {"delta.setTransactionRetentionDuration": "soon"}}, "at least 365 days"),
        ({"properties": {"delta.compatibility.symlinkFormatManifest.enabled": "true"}}, "manifests for other engines"),
        ({"fields": [column("k"), column("v", "string"), column("g", **GENERATED)]}, "column 'g' is generated"),
        ({"fields": [column("k"), column("v", "string"), column("i", **IDENTITY)]}, "column 'i' is an identity column"),
        ({"fields": [column("k", **INVARIANT), column("v", "string")]}, "column 'k' has an invariant"),
        (
            {"fields": [column("k"), column("s", {"type": "struct", "fields": [column("x", **INVARIANT)]})]},
            "column 's' has an invariant",
        ),
        ({"fields": [column("k"), column("d", CURRENT_DEFAULT="7")]}, "column 'd' has a default"),
    ],
    ids=str,
)
def test_what_a_table_uses_and_we_cannot_do_is_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    table = looked_at(tmp_path / "table", **settings)
    [found] = table.unfit(removes=False)
    assert words in found


@pytest.mark.parametrize("retention", ["interval 365 days", "interval 53 weeks", "interval 9000 hours"])
def test_a_table_that_remembers_long_enough_is_fine(tmp_path: Path, retention: str) -> None:
    table = looked_at(tmp_path / "table", properties={"delta.setTransactionRetentionDuration": retention})
    assert [] == table.unfit(removes=True)


def test_a_table_that_forgets_does_forget(tmp_path: Path) -> None:
    """Why a short retention is refused: the library's own answer."""
    properties = {"delta.setTransactionRetentionDuration": "interval 0 days"}
    table = looked_at(tmp_path / "table", properties=properties)
    append(table, 0, numbered(4))
    again = table_at(tmp_path / "table")
    again.load()
    assert again.mark(JOB, SINK, [LINEAGE]) is None


def test_rows_of_an_append_only_table_are_only_added(tmp_path: Path) -> None:
    table = looked_at(tmp_path / "table", properties={"delta.appendOnly": "true"})
    assert [] == table.unfit(removes=False)
    assert ["rows must not be replaced or removed (delta.appendOnly)"] == table.unfit(removes=True)
    append(table, 0, numbered(4))
    assert [1, 2, 3, 4] == sorted(row["k"] for row in DeltaLog(tmp_path / "table").rows())


def test_a_variant_column_may_be_left_out_but_not_rewritten(tmp_path: Path) -> None:
    fields = [column("k"), column("v", "string"), column("any", "variant")]
    table = looked_at(tmp_path / "table", protocol=features("variantType", readers=True), fields=fields)
    assert [] == table.unfit(removes=False)
    assert ["column 'any' is variant, which this fencepost cannot read and write"] == table.unfit(removes=True)
    assert [] == table.misfits(pa.schema([("k", pa.int64())]), may_add=False)
    append(table, 0, numbered(4))
    assert [1, 2, 3, 4] == sorted(row["k"] for row in DeltaLog(tmp_path / "table").rows())


def test_a_partition_column_of_another_engine_that_we_cannot_write_is_refused(tmp_path: Path) -> None:
    table = looked_at(tmp_path / "table", fields=[column("k"), column("v", "double")], partition_by=("v",))
    [found] = table.unfit(removes=False)
    assert "writers disagree" in found


# --- deletion vectors and the change feed, which other engines write

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def vector(*rows: int) -> dict[str, Any]:
    """A deletion vector in the log itself: a bitmap of row numbers, by Delta's protocol."""
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + b"".join(struct.pack("<H", row) for row in rows)
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    data += bytes(-len(data) % 4)
    text = ""
    for start in range(0, len(data), 4):
        number, word = int.from_bytes(data[start : start + 4], "big"), ""
        for _ in range(5):
            number, digit = divmod(number, 85)
            word = Z85[digit] + word
        text += word
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(rows)}


def read(path: Path) -> list[tuple[int, str]]:
    """By the library: it follows deletion vectors, our reader does not."""
    found = pa.table(DeltaTable(path).scan()).to_pylist()
    return sorted((row["k"], row["v"]) for row in found)


@pytest.fixture
def with_vector(tmp_path: Path) -> DeltaLakeTable:
    """Of the rows 1, 2, 3 the second is deleted."""
    properties = {"delta.enableDeletionVectors": "true"}
    protocol = features("deletionVectors", readers=True)
    table = looked_at(tmp_path / "table", protocol=protocol, properties=properties, vector=vector(1))
    assert [(1, "row 1"), (3, "row 3")] == read(tmp_path / "table")
    assert [] == table.unfit(removes=True)
    return table


def test_rows_added_beside_deletion_vectors_leave_them_as_they_are(tmp_path: Path, with_vector: DeltaLakeTable) -> None:
    append(with_vector, 0, numbered(2))
    assert [(1, "row 1"), (2, "row 2"), (3, "row 3")] == read(tmp_path / "table")


def test_a_merge_does_not_bring_deleted_rows_back(tmp_path: Path, with_vector: DeltaLakeTable) -> None:
    with_vector.upsert(rows_of({"k": 3, "v": "new"}), ["k"], None, JOB, SINK, marked(with_vector, 0))
    assert [(1, "row 1"), (3, "new")] == read(tmp_path / "table")


def test_a_merge_inserts_a_row_whose_key_was_deleted(tmp_path: Path, with_vector: DeltaLakeTable) -> None:
    with_vector.upsert(rows_of({"k": 2, "v": "new"}), ["k"], None, JOB, SINK, marked(with_vector, 0))
    assert [(1, "row 1"), (2, "new"), (3, "row 3")] == read(tmp_path / "table")


def test_replacing_removes_files_with_their_deletion_vectors(tmp_path: Path, with_vector: DeltaLakeTable) -> None:
    with_vector.replace(with_vector.write("fp-a", "h", numbered(7)), JOB, SINK, marked(with_vector, 0))
    assert [(7, "row 7")] == read(tmp_path / "table")


def test_the_change_feed_tells_what_our_commits_changed(tmp_path: Path) -> None:
    properties = {"delta.enableChangeDataFeed": "true"}
    table = looked_at(
        tmp_path / "table", protocol={"minReaderVersion": 1, "minWriterVersion": 4}, properties=properties
    )
    assert [] == table.unfit(removes=True)
    append(table, 0, numbered(4))
    table.load()
    rows = rows_of(
        {"k": 1, "v": "new", "gone": False},
        {"k": 2, "v": None, "gone": True},
        {"k": 5, "v": "five", "gone": False},
        schema=pa.schema([("k", pa.int64()), ("v", pa.string()), ("gone", pa.bool_())]),
    )
    table.upsert(rows, ["k"], "gone", JOB, SINK, marked(table, 1))
    table.load()
    table.replace(table.write("fp-a", "h", numbered(7)), JOB, SINK, marked(table, 2))
    feed = pa.table(DeltaTable(tmp_path / "table").load_cdf(starting_version=1)).to_pylist()
    found = sorted((row["_commit_version"], row["_change_type"], row["k"], row["v"]) for row in feed)
    assert [
        (1, "insert", 4, "row 4"),
        (2, "delete", 2, "row 2"),
        (2, "insert", 5, "five"),
        (2, "update_postimage", 1, "new"),
        (2, "update_preimage", 1, "row 1"),
        (3, "delete", 1, "new"),
        (3, "delete", 3, "row 3"),
        (3, "delete", 4, "row 4"),
        (3, "delete", 5, "five"),
        (3, "insert", 7, "row 7"),
    ] == found
