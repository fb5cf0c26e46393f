"""One rule for all that lasts: damage is damage, newer is refused, older gets defaults, and nothing else is known."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
from formats import LaterWriter, next_format, versions_ignored
from record_examples import BODIES, record_of

from fencepost.connectors.files.layout import FolderOwner, Manifest
from fencepost.connectors.table.mark import Mark
from fencepost.errors import CheckpointRefused, TargetRefused
from fencepost.observe.heartbeat import Beat
from fencepost.observe.registry import Noted
from fencepost.protocol import format as rule
from fencepost.protocol.format import VERSION, Damaged, StoredFormat, known, names_of, seal, since, unseal
from fencepost.protocol.records import (
    KINDS,
    LEDGER,
    Body,
    Done,
    Epoch,
    Handle,
    Kept,
    Lineage,
    SinkRecord,
    Writer,
    decode,
    encode,
)
from fencepost.store.notes import (
    BranchNote,
    DepartedSource,
    PlanNote,
    ReportedFiles,
    SettledHandle,
    SourceNote,
    TopicIds,
)
from fencepost.store.savepoints import Savepoint
from fencepost.store.staging import StagedFiles

DONE = record_of(Done(Epoch(1)))
WRITER = record_of(Writer("start", "host", 1, {}))


def sealed(**changes: object) -> bytes:
    """A record with other fields, and a sum that is right."""
    plain = {**unseal(encode(DONE)), **changes}
    return seal({name: value for name, value in plain.items() if value is not ...})


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_every_record_says_its_format_and_who_wrote_it(body: Body) -> None:
    said = json.loads(encode(record_of(body)))
    assert (1, VERSION) == (said["format"], said["fencepost"])
    assert 1 == encode(record_of(body)).count(b"\n")


def test_a_record_of_a_newer_fencepost_is_refused_in_words() -> None:
    with pytest.raises(CheckpointRefused) as refused:
        decode(sealed(format=2, fencepost="9.1.0", body={"through": 1, "more": True}, place="elsewhere"))
    assert "newer_format" == refused.value.code
    what = f"The ledger was written by fencepost 9.1.0 (format 2); this is fencepost {VERSION} (format 1)."
    assert what == refused.value.what
    assert "Upgrade to fencepost 9.1.0 or later." in refused.value.next
    assert "nothing was changed" in refused.value.safe


def test_a_reader_that_ignores_the_version_takes_a_newer_record_for_its_own() -> None:
    """The sabotaged twin of the test above."""
    with versions_ignored():
        assert DONE.body == decode(sealed(format=2, fencepost="9.1.0")).body


def test_damage_in_a_newer_record_is_damage() -> None:
    """By the sum, which comes first: nobody is told to upgrade because a disk failed."""
    data = sealed(format=2, fencepost="9.1.0")
    for place in range(len(data)):
        with pytest.raises(Damaged):
            decode(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])


def test_a_changed_format_number_is_damage() -> None:
    with pytest.raises(Damaged, match="sum"):
        decode(encode(DONE).replace(b'"format":1', b'"format":2'))


@pytest.mark.parametrize(
    "changes",
    [
        {"more": 1},
        {"at": ...},
        {"format": ...},
        {"format": 0},
        {"format": True},
        {"format": "1"},
        {"kind": "other"},
        {"body": {"through": 1, "more": 2}},
        {"body": {}},
        {"body": []},
        {"body": None},
    ],
    ids=str,
)
def test_other_fields_in_our_own_format_are_damage(changes: dict[str, object]) -> None:
    assert DONE == decode(sealed())
    with pytest.raises(Damaged):
        decode(sealed(**changes))


def test_a_field_too_many_in_a_handle_is_damage() -> None:
    decision = next(body for body in BODIES if hasattr(body, "snapshot"))
    plain = unseal(encode(record_of(decision)))
    plain["body"]["handles"][0]["more"] = 1
    with pytest.raises(Damaged, match="its fields are not those of format 1"):
        decode(seal(plain))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_an_older_record_is_read_with_defaults_and_written_to_the_same_bytes(body: Body) -> None:
    data = encode(record_of(body))
    with next_format():
        found = decode(data)
        assert data == encode(found)
    if isinstance(body, Writer):
        assert LaterWriter("start", "höst", 1, {"fencepost": "0"}, zone="nowhere") == found.body


def test_what_the_next_fencepost_writes_it_reads_and_we_refuse() -> None:
    with next_format():
        data = encode(replace(WRITER, body=LaterWriter("start", "host", 1, {}, zone="here"), format=2))
        assert "here" == decode(data).body.zone  # type: ignore[union-attr]
    with pytest.raises(CheckpointRefused):
        decode(data)


def test_a_later_field_in_a_record_of_an_older_format_is_damage() -> None:
    plain = unseal(encode(WRITER))
    plain["body"]["zone"] = "here"
    with next_format(), pytest.raises(Damaged):
        decode(seal(plain))


def test_a_later_field_needs_a_default() -> None:
    @dataclass
    class Thing:
        first: int
        second: int = since(2)

    with pytest.raises(AssertionError):
        names_of(Thing, 1)


def test_what_helps_people_is_read_as_far_as_it_is_known() -> None:
    @dataclass
    class Beat:
        at: int
        zone: str = "nowhere"

    assert Beat(1) == known(Beat, {"at": 1, "format": 7, "more": []})


@pytest.mark.parametrize("indented", [False, True])
def test_every_flipped_bit_and_every_truncation_of_sealed_text_is_noticed(indented: bool) -> None:
    plain = {"a": [1, "ñ"], "format": 1, "z": {"sum": "0" * 64}}
    data = seal(plain, indented=indented)
    assert plain == unseal(data, indented=indented)
    assert {*plain, "sum"} == json.loads(data).keys()
    spoilt = [data[:length] for length in range(len(data))]
    for place in range(len(data)):
        spoilt += [data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :] for bit in range(8)]
    for one in spoilt:
        with pytest.raises(Damaged):
            unseal(one, indented=indented)


def test_a_target_is_refused_as_a_target() -> None:
    with pytest.raises(TargetRefused, match="newer_format"):
        StoredFormat("The mark", 1).check(2, "9.1.0", error=TargetRefused)


def test_no_field_of_format_1_says_since() -> None:
    """They all came with it; the first that does not is in the next format."""
    assert 1 == LEDGER.number
    assert all("since" not in one.metadata for one in fields(Lineage))


DURABLE = [*KINDS.values(), Handle, Kept, SinkRecord, Savepoint, StagedFiles, DepartedSource, TopicIds, SettledHandle]
DURABLE += [Mark, Manifest, FolderOwner, Beat, Noted, PlanNote, BranchNote, SourceNote, ReportedFiles]


@pytest.mark.parametrize("kind", DURABLE, ids=lambda kind: kind.__name__)
def test_every_field_is_in_the_document(kind: type[Any]) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "FORMAT.md").read_text()
    assert [] == [one.name for one in fields(kind) if f"`{one.name}`" not in text and one.name != "path"]


def test_the_record_in_the_document_is_one() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "FORMAT.md").read_text()
    line = next(line for line in text.splitlines() if line.startswith('{"at":'))
    assert Done(Epoch(1)) == decode(f"{line}\n".encode()).body


def test_the_version_is_the_packages() -> None:
    import fencepost  # noqa: PLC0415 - what a user sees

    assert rule.VERSION == fencepost.__version__
