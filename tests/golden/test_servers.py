"""Golden checkpoints whose targets are in servers: the dump is loaded, the decided epoch finished. No engine here."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fencepost_proof.rig.kafka import Broker
from formats import versions_ignored
from golden import BEFORE, GOLDENS, LAST, NAME, counted, fencepost, held, last_decision, ledger, recover, unpacked
from golden_targets import DATABASES, broker_of, restored, seen_in
from streams import Place

import fencepost as fp

pytestmark = pytest.mark.server

DONE = counted(*BEFORE)
ALL = counted(*BEFORE, LAST)


@pytest.mark.parametrize("name", DATABASES)
def test_a_decided_epoch_is_finished_once(name: str, request: pytest.FixtureRequest) -> None:
    with restored(name, request) as (place, target):
        sinks = GOLDENS[name].sinks(target.where)
        assert dict.fromkeys(target.seen(), DONE) == target.seen()
        assert [{"held"}, {"held"}, {"missing"}] == held(place, *sinks)
        for _ in range(2):
            recover(place, *sinks)
            assert dict.fromkeys(target.seen(), ALL) == target.seen()
            assert [{"held"}, {"held"}, {"held"}] == held(place, *sinks)
        assert "agrees" == fencepost("verify", place.checkpoint)[1]["verdict"]


@pytest.mark.parametrize("name", DATABASES)
def test_what_was_dumped_is_what_is_there(name: str, request: pytest.FixtureRequest) -> None:
    """Else the tests above would be about another target than the one that the job had."""
    with restored(name, request) as (place, target):
        assert (place.root / "target.txt").read_text() == target.dump()


@pytest.mark.parametrize("name", DATABASES)
def test_a_target_without_its_marks_is_refused(name: str, request: pytest.FixtureRequest) -> None:
    with restored(name, request) as (place, target):
        target.forget()
        with pytest.raises(fp.FencepostError) as refused:
            recover(place, *GOLDENS[name].sinks(target.where))
        assert "target_behind" == refused.value.code
        assert dict.fromkeys(target.seen(), DONE) == target.seen()


@pytest.mark.parametrize("name", DATABASES)
def test_a_target_with_marks_of_a_newer_fencepost_is_refused(name: str, request: pytest.FixtureRequest) -> None:
    with restored(name, request) as (place, target):
        target.mark_newer()
        sinks = GOLDENS[name].sinks(target.where)
        before = target.dump()
        with pytest.raises(fp.FencepostError) as refused:
            recover(place, *sinks)
        assert "newer_format" == refused.value.code
        assert "written by fencepost 9.1.0 (format 2)" in refused.value.what
        assert before == target.dump()
        assert {"no answer"} == set.union(*held(place, *sinks))
        with versions_ignored():  # the sabotaged twin writes on
            recover(place, *sinks)
            assert dict.fromkeys(target.seen(), ALL) == target.seen()


def test_decided_transactions_that_the_broker_has_aborted_are_written_again(require: Callable[[str], None]) -> None:
    """Its own files are back, but their time is over: the rows that the checkpoint kept go into new transactions."""
    require("kafka")
    with unpacked("kafka") as place, broker_of(place) as kafka:
        assert {"counts": DONE, "words": DONE} == seen_in(kafka)
        sinks = GOLDENS["kafka"].sinks(kafka.servers)
        lost = {handle["id"] for handle in last_decision(place.checkpoint)["handles"]}
        assert [{"held"}, {"held"}, {"missing"}] == held(place, *sinks)
        for _ in range(2):
            recover(place, *sinks)
            assert {"counts": ALL, "words": ALL} == seen_in(kafka)
            assert [{"held"}, {"held"}, {"held"}] == held(place, *sinks)
        redone = [record["body"]["lost"] for record in records(place) if record["kind"] == "redo"]
        assert sorted(lost) == sorted(handle for handles in redone for handle in handles)
        assert "agrees" == fencepost("verify", place.checkpoint)[1]["verdict"]


def test_another_broker_is_refused(broker: Broker) -> None:
    made = [broker.create_topic(f"{NAME}-{name}", partitions=1) for name in ("counts", "words")]
    with unpacked("kafka") as place, pytest.raises(fp.FencepostError) as refused:
        recover(place, *GOLDENS["kafka"].sinks(broker.servers))
    for topic in made:
        broker.delete_topic(topic)
    assert "target_replaced" == refused.value.code


def records(place: Place) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in ledger(place.checkpoint)]
