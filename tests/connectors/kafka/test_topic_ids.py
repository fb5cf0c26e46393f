"""Whose offsets a checkpoint holds: a topic's id, for each source that reads it. No broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.connectors.kafka.source import check_same
from fencepost.errors import OperatorNeeded
from fencepost.protocol.format import seal, unseal
from fencepost.store import LocalStore
from fencepost.store.notes import TopicIds, encode_note, read_note

NOTE = "fencepost/L/topics/in"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """With a topic that two sources read from two clusters."""
    made = LocalStore(tmp_path)
    check_same(made, ("L",), "in", {"0": "europe", "1": "america"}, "job")
    return made


def refused(store: LocalStore, **now: str) -> str:
    before = store.read(NOTE)
    with pytest.raises(OperatorNeeded, match="source_replaced") as caught:
        check_same(store, ("L",), "in", {name.removeprefix("_"): text for name, text in now.items()}, "job")
    assert before == store.read(NOTE)
    return caught.value.what


def test_each_source_has_its_own(store: LocalStore) -> None:
    check_same(store, ("L",), "in", {"0": "europe", "1": "america"}, "job")
    assert "of source 0" in refused(store, _0="america", _1="europe")
    assert "of source" not in refused(store, _0="europe", _1="new")


def test_more_sources_of_a_known_topic_are_noted(store: LocalStore) -> None:
    check_same(store, ("L",), "in", {"0": "europe", "1": "america", "2": "europe"}, "job")
    assert "of source 2" in refused(store, _0="europe", _1="america", _2="america")


def test_a_note_of_format_1_knows_only_the_topic(store: LocalStore) -> None:
    plain = unseal(encode_note(TopicIds("in", ["america", "europe"])))
    del plain["by_source"]
    store.replace(NOTE, seal({**plain, "format": 1}))
    check_same(store, ("L",), "in", {"0": "america", "1": "europe"}, "job")
    note = read_note(store, NOTE, TopicIds)
    assert note is not None
    assert {"0": "america", "1": "europe"} == note.by_source


def test_a_child_has_the_note_of_its_parent(store: LocalStore) -> None:
    with pytest.raises(OperatorNeeded, match="source_replaced"):
        check_same(store, ("child", "L"), "in", {"0": "america", "1": "europe"}, "job")
    check_same(store, ("child", "L"), "in", {"0": "europe", "1": "america"}, "job")
    assert ("in",) == store.list("fencepost/child/topics")


def test_a_broker_without_ids_says_nothing(store: LocalStore) -> None:
    check_same(store, ("L",), "in", {"0": "", "1": ""}, "job")
    assert "of source 0" in refused(store, _0="america", _1="europe")
