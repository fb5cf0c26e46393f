"""A look at a topic: what the coordinator has forgotten, the messages themselves still show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fencepost_proof.rig.kafka import Broker
from transactions import describe, table

import fencepost as fp
from fencepost.connectors.kafka.coordinator import Coordinator
from fencepost.connectors.kafka.fate import settle
from fencepost.contract import Asked, Holding
from fencepost.protocol.records import Epoch
from fencepost.testing import SinkDriver

HELD, MISSING, UNKNOWN = Holding.HELD, Holding.MISSING, Holding.UNKNOWN


def test_old_epochs_are_found_in_the_topic_and_a_lost_one_is_missed(
    broker: Broker, topic: str, start: Callable[..., SinkDriver]
) -> None:
    """Two producers take turns, so the coordinator remembers the last two transactions; five are asked for."""
    driver = start(fp.Kafka(topic, servers=broker.servers, key="k"))
    handles = {epoch: driver.run(epoch, table(epoch)) for epoch in range(4)}
    lost = handles[4] = driver.pre_commit(4, table(4))
    driver.session.rollback()
    handles[5] = driver.run(5, table(5))
    before = [describe(broker, handle.body["transactional_id"]) for handle in handles.values()]
    found = driver.look(handles)
    assert before == [describe(broker, handle.body["transactional_id"]) for handle in handles.values()]
    assert {0: HELD, 1: HELD, 2: HELD, 3: HELD, 4: MISSING, 5: HELD} == found.holdings
    assert {4: "the broker aborted its transaction"} == found.reasons
    assert not found.strays
    nowhere = replace(
        lost, id="n", body={**lost.body, "producer_id": lost.body["producer_id"] + 1000, "first_record": None}
    )
    assert {7: UNKNOWN} == driver.look({7: nowhere}).holdings


def test_a_persons_word_counts_where_there_is_no_better_one(
    broker: Broker, topic: str, start: Callable[..., SinkDriver], tmp_path: Path
) -> None:
    driver = start(fp.Kafka(topic, servers=broker.servers, key="k"))
    handle = driver.run(0, table(0))
    forgotten = replace(
        handle, body={**handle.body, "producer_id": handle.body["producer_id"] + 1000, "first_record": None}
    )
    asked = Asked(lineage=driver.owner.lineage, epochs={Epoch(0): (forgotten,)}, last=1, folder=tmp_path)
    session = driver.sink.session("job")
    assert {0: UNKNOWN} == session.examine(asked).holdings
    settle(tmp_path, forgotten.id, "committed")
    assert {0: HELD} == session.examine(asked).holdings
    session.close()


def test_a_topic_that_was_made_anew_has_another_identity(
    broker: Broker, topic: str, start: Callable[..., SinkDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = start(fp.Kafka(topic, servers=broker.servers, key="k"))
    assert driver.look({}).identity == driver.session.preflight(table(0).schema, "append")
    monkeypatch.setattr(Coordinator, "topic", lambda self, name: None)
    assert "" == driver.look({}).identity
