"""Small files that a start relies on: read as they were written, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.errors import CheckpointRefused, OperatorNeeded
from fencepost.protocol.format import seal, unseal
from fencepost.store import LocalStore
from fencepost.store.notes import DepartedSource, ReportedFiles, SettledHandle, TopicIds, encode_note, read_note

NOTES = [
    DepartedSource("clicks", '{"logOffset":7}'),
    TopicIds("in", ["a", "b"], {"0": "a", "1": "b"}),
    ReportedFiles(["0123456789abcdef"]),
    SettledHandle("h:1", "lost"),
]


@pytest.mark.parametrize("note", NOTES, ids=lambda note: type(note).__name__)
def test_a_note_comes_back_and_every_flipped_byte_is_damage(note: object, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert read_note(store, "note", type(note)) is None
    data = encode_note(note)
    store.replace("note", data)
    assert note == read_note(store, "note", type(note))
    for place in range(len(data)):
        (tmp_path / "note").write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(OperatorNeeded, match="note_damaged"):
            read_note(store, "note", type(note))


def test_a_note_of_a_newer_fencepost_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.replace("note", seal({**unseal(encode_note(NOTES[0])), "format": 3, "fencepost": "9.1.0", "more": 1}))
    with pytest.raises(CheckpointRefused, match="newer_format") as refused:
        read_note(store, "note", DepartedSource)
    assert f"{tmp_path}/note" == refused.value.where.path


def test_topics_of_format_1_are_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    plain = unseal(encode_note(TopicIds("in", ["a"])))
    del plain["by_source"]
    store.replace("note", seal({**plain, "format": 1}))
    assert TopicIds("in", ["a"], {}) == read_note(store, "note", TopicIds)


def test_a_note_of_another_kind_is_damage(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.replace("note", encode_note(NOTES[1]))
    with pytest.raises(OperatorNeeded, match="note_damaged"):
        read_note(store, "note", DepartedSource)
