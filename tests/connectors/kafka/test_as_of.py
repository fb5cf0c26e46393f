"""A reader who stops before the offsets of an epoch sees its rows and those before it, on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions
from fencepost_proof.rig.kafka import Broker
from killing import PER_EPOCH
from topics import read_before
from transactions import SCHEMA, make_scene, table, wait_for_timeout

import fencepost as fp
from fencepost.admin.instant import instant_of_job
from fencepost.connectors.kafka import offsets, producers
from fencepost.connectors.kafka.coordinator import Coordinator
from fencepost.connectors.kafka.fate import Silent
from fencepost.connectors.kafka.offsets import HOW_TO_READ
from fencepost.contract import Asked, Attempt, Instant
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle, WriterNumber
from fencepost.testing import SinkDriver
from fencepost.testing.sink_driver import LINEAGE

Start = Callable[..., SinkDriver]


def a_sink(broker: Broker, topic: str | None, **settings: Any) -> fp.Kafka:
    return fp.Kafka(topic, servers=broker.servers, key="k", name="kafka", **settings)


def values(broker: Broker, found: Instant) -> list[int]:
    """Of what was written by us: others write no JSON object."""
    parsed = [json.loads(message.value()) for message in read_before(broker.servers, found.facts["ends"])]
    return sorted(row["v"] for row in parsed if isinstance(row, dict))


def check_every_epoch(broker: Broker, driver: SinkDriver, epochs: Mapping[int, tuple[Handle, list[int]]]) -> None:
    known = {epoch: handle for epoch, (handle, _) in epochs.items()}
    expected: list[int] = []
    texts = set()
    for epoch, (_, written) in epochs.items():
        expected += written
        found = driver.as_of(epoch, known)
        assert (True, HOW_TO_READ) == (found.exact, found.why)
        assert sorted(expected) == values(broker, found), epoch
        texts.add(found.text)
    assert len(epochs) == len(texts)  # and no epoch is another's


def run(driver: SinkDriver, epoch: int, *written: int) -> tuple[Handle, list[int]]:
    return driver.run(epoch, table(*written)), [*written]


def others(broker: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.servers})
    for number in range(9):
        producer.produce(topic, "17", partition=number % 3)
    assert 0 == producer.flush(30)


def test_each_epoch_is_read_back_with_what_came_before_it(broker: Broker, topic: str, start: Start) -> None:
    """Some write to one partition only; an attempt fails; others write in between; a new driver goes on."""
    driver = start(a_sink(broker, topic))
    epochs = {0: run(driver, 0, *range(20)), 1: run(driver, 1, 100)}
    driver.pre_commit(2, table(*range(200, 230)))
    driver.session.rollback()
    epochs[2] = run(driver, 2, 201)
    others(broker, topic)
    epochs[3] = run(driver, 3, 300, 301)
    driver.session.close()
    driver = start(a_sink(broker, topic), writer=2)
    epochs[4] = run(driver, 4, 400)
    epochs[5] = run(driver, 5, *range(500, 540))
    assert [3] * 6 == [len(handle.body["ends"][topic]) for handle, _ in epochs.values()]
    check_every_epoch(broker, driver, epochs)


def test_the_brokers_are_asked_only_by_the_first_epoch_and_by_large_ones(
    broker: Broker, topic: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ends = Coordinator.ends

    def noted(self: Coordinator, partitions: Any) -> Any:
        asked.append(epoch)
        return ends(self, partitions)

    monkeypatch.setattr(Coordinator, "ends", noted)
    monkeypatch.setattr(offsets, "MOST", 5)
    driver = start(a_sink(broker, topic))
    epochs = {}
    for epoch, count in enumerate((2, 5, 6, 1, 30)):
        epochs[epoch] = run(driver, epoch, *range(epoch * 100, epoch * 100 + count))
    assert [0, 2, 4] == asked
    check_every_epoch(broker, driver, epochs)


def test_what_the_brokers_do_not_say_is_not_noted_and_no_epoch_fails_for_it(
    broker: Broker, topic: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = start(a_sink(broker, topic))

    def silent(*_: Any) -> Any:
        raise Silent("nobody")

    with monkeypatch.context() as patch:
        patch.setattr(Coordinator, "ends", silent)
        first = driver.run(0, table(1))
    assert {} == first.body["ends"]
    second = driver.run(1, table(2))
    known = {0: first, 1: second}
    assert "was not noted" in driver.as_of(0, known).why
    found = driver.as_of(1, known)
    assert (True, [1, 2]) == (found.exact, values(broker, found))


def grow(broker: Broker, topic: str) -> None:
    admin = broker.admin()  # has to outlive the answer
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result()


def test_partitions_that_came_while_the_job_ran_stay_known(broker: Broker, start: Start) -> None:
    topic = broker.create_topic("as-of-grows-beside", partitions=1)
    driver = start(a_sink(broker, topic, producer={"topic.metadata.refresh.interval.ms": "100"}))
    epochs = {0: run(driver, 0, 0)}
    grow(broker, topic)
    while len(epochs[len(epochs) - 1][0].body["ends"][topic]) < 4:  # the client learns of it by and by
        assert len(epochs) < 500
        epochs[len(epochs)] = run(driver, len(epochs), *range(len(epochs) * 100, len(epochs) * 100 + 20))
    epochs[len(epochs)] = run(driver, len(epochs), 1)  # to one of them
    last = {number: epochs[number] for number in range(len(epochs) - 3, len(epochs))}
    assert 4 == len(last[len(epochs) - 1][0].body["ends"][topic])
    for number, (handle, _) in last.items():
        found = driver.as_of(number, {number: handle})  # the others are not retained
        written = [value for n in range(number + 1) for value in epochs[n][1]]
        assert (True, sorted(written)) == (found.exact, values(broker, found))


def test_partitions_that_came_later_were_not_there_yet(broker: Broker, start: Start) -> None:
    topic = broker.create_topic("as-of-grows", partitions=1)
    driver = start(a_sink(broker, topic))
    epochs = {0: run(driver, 0, *range(10))}
    grow(broker, topic)
    driver.session.close()
    driver = start(a_sink(broker, topic), writer=2)
    epochs[1] = run(driver, 1, *range(100, 140))
    epochs[2] = run(driver, 2, 200)
    assert {"0": 10, "1": 0, "2": 0, "3": 0} == driver.as_of(0, {0: epochs[0][0]}).facts["ends"][topic]
    check_every_epoch(broker, driver, epochs)


def test_topics_that_a_column_names_are_read_back_together(broker: Broker, start: Start) -> None:
    one, two = (broker.create_topic(f"as-of-column-{n}", partitions=2) for n in range(2))
    driver = start(a_sink(broker, None, topic_column="to"), schema=pa.schema([*SCHEMA, ("to", pa.string())]))
    epochs = {}
    for epoch, to in enumerate((one, two, one, two)):
        written = list(range(epoch * 10, epoch * 10 + 3))
        epochs[epoch] = driver.run(epoch, table(*written, to=[to] * 3)), written
    check_every_epoch(broker, driver, epochs)
    later = Asked(lineage=LINEAGE, epochs={Epoch(2): (epochs[2][0],), Epoch(3): (epochs[3][0],)})
    found = driver.session.as_of(later, Epoch(3))
    assert (False, True) == (found.exact, "no epoch since 2 wrote to are unknown" in found.why)


def task(sink: fp.Kafka, *written: int, epoch: int = 0, writer: int = 1, few: int = 0, **more: list[Any]) -> pa.Table:
    """What one task attempt hands to the driver; its transaction is open, if it has more than a few bytes."""
    write = sink.in_tasks("job")
    assert isinstance(write, producers.TaskWriter)
    attempt = Attempt(LINEAGE, WriterNumber(writer), Epoch(epoch))
    batches = table(*written, **more).to_batches()
    return pa.Table.from_batches(list(replace(write, few=few)(attempt, iter(batches))))


def handles(driver: SinkDriver, *tasks: pa.Table, epoch: int = 0) -> tuple[Handle, ...]:
    return driver.session.handles(Epoch(epoch), driver.rows(epoch, pa.concat_tables(tasks)))


def commit(driver: SinkDriver, found: tuple[Handle, ...], epoch: int = 0) -> list[Outcome]:
    answers = driver.session.commit(Epoch(epoch), found)
    return [answers[handle.id] for handle in found]


def test_what_tasks_wrote_is_read_back_and_also_what_was_written_again(
    broker: Broker, topic: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "_pools", {})
    monkeypatch.setattr(producers.TaskWriter, "_prepare", lambda *_: None)
    sink, short = a_sink(broker, topic, parallel=True), a_sink(broker, topic, parallel=True, transaction_timeout=2)
    driver = start(sink)
    first = handles(driver, task(sink, *range(6)), task(sink, 6, 7))
    assert [Outcome.DONE] * 2 == commit(driver, first)
    second = handles(driver, task(short, *range(100, 106), epoch=1), task(sink, 106, epoch=1), epoch=1)
    wait_for_timeout(broker, second[0].body["transactional_id"])
    driver.session.close()
    driver = start(sink, writer=2)
    assert [Outcome.GONE, Outcome.DONE] == commit(driver, second, epoch=1)
    fresh = driver.session.again(Epoch(1), second[0], driver.owner.staging.rows_again(second[0]))
    assert fresh is not None
    assert [Outcome.DONE] == commit(driver, (fresh,), epoch=1)
    third = handles(driver, task(sink, 200, epoch=2, writer=2), epoch=2)
    assert [Outcome.DONE] == commit(driver, third, epoch=2)
    asked = Asked(lineage=LINEAGE, epochs={Epoch(0): first, Epoch(1): (second[1], fresh), Epoch(2): third}, whole=True)
    expected = {0: [*range(8)], 1: [*range(8), *range(100, 107)], 2: [*range(8), *range(100, 107), 200]}
    assert expected == {epoch: values(broker, driver.session.as_of(asked, Epoch(epoch))) for epoch in range(3)}
    # The handle that was lost ends too early: its rows come behind those that were not.
    lost = Asked(lineage=LINEAGE, epochs={**asked.epochs, Epoch(1): second}, whole=True)
    assert expected[1] != values(broker, driver.session.as_of(lost, Epoch(1)))


def test_epochs_that_tasks_and_the_driver_wrote_together_are_read_back(
    broker: Broker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row names its topic: what either wrote to another topic, it says itself."""
    monkeypatch.setattr(producers, "_pools", {})
    monkeypatch.setattr(producers.TaskWriter, "_prepare", lambda *_: None)
    own, one, two = (broker.create_topic(f"as-of-mixed-{n}", partitions=2) for n in range(3))
    sink = a_sink(broker, own, topic_column="to", parallel=True)
    driver = start(sink, schema=pa.schema([*SCHEMA, ("to", pa.string())]))
    epochs, expected = {}, {}
    for epoch, large in enumerate(((), (0,), (1,), (), (0, 1), (1,))):
        tasks = []
        for number, other in enumerate((one, two)):
            written = range(epoch * 10 + number * 5, epoch * 10 + number * 5 + 4)
            few = 0 if number in large else 1 << 20
            tasks.append(task(sink, *written, epoch=epoch, few=few, to=[None, other, None, other]))
        epochs[Epoch(epoch)] = handles(driver, *tasks, epoch=epoch)
        assert [Outcome.DONE] * max(1, 2 * bool(large)) == commit(driver, epochs[Epoch(epoch)], epoch)
        before = expected.get(epoch - 1, [])
        expected[epoch] = [*before, *(epoch * 10 + number for number in (0, 1, 2, 3, 5, 6, 7, 8))]
    asked = Asked(lineage=LINEAGE, epochs=epochs, whole=True)
    assert expected == {epoch: values(broker, driver.session.as_of(asked, Epoch(epoch))) for epoch in range(6)}


def test_a_mixed_epoch_whose_end_the_brokers_do_not_say_notes_none(
    broker: Broker, topic: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not that of the driver's part, which is too early."""
    monkeypatch.setattr(producers.TaskWriter, "_prepare", lambda *_: None)
    sink = a_sink(broker, topic, parallel=True)
    driver = start(sink)
    assert [Outcome.DONE] == commit(driver, handles(driver, task(sink, 1, 2, few=1 << 20)))
    tasks = task(sink, 3, 4, epoch=1, few=1 << 20), task(sink, 5, 6, epoch=1)

    def silent(*_: Any) -> None:
        raise Silent("no answer")

    monkeypatch.setattr(driver.session._coordinator, "ends", silent)  # type: ignore[attr-defined]
    found = handles(driver, *tasks, epoch=1)
    assert [{}, {}] == [handle.body["ends"] for handle in found]
    assert [Outcome.DONE] * 2 == commit(driver, found, epoch=1)


def test_a_decided_epoch_that_the_broker_lost_is_read_back_where_recovery_wrote_it(broker: Broker, root: Path) -> None:
    scene = make_scene(broker, root, 1, lambda _: {"transaction_timeout": 2})
    assert -9 == scene.run("decide.after=kill@2")
    wait_for_timeout(broker, *scene.open())
    scene = type(scene)(scene.folder, scene.targets, broker=broker, settings=lambda _: {})
    assert 0 == scene.run()
    assert 1 == scene.kinds().count("redo")
    checkpoint = scene.folder / "checkpoint"
    newest = instant_of_job(checkpoint).newest
    sizes = []
    for epoch in range(newest + 1):
        (found,) = instant_of_job(checkpoint, epoch=epoch).sinks
        assert not found.instant.exact  # nobody asked the cluster
        sizes.append(len(read_before(broker.servers, found.instant.facts["ends"])))
    assert [*range(PER_EPOCH, len(scene.numbers), PER_EPOCH), len(scene.numbers)] == sizes


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_compacted_topic_is_not_exact(broker: Broker, start: Start, policy: str) -> None:
    topic = broker.create_topic(f"as-of-{policy}", partitions=1, **{"cleanup.policy": policy})
    driver = start(a_sink(broker, topic))
    handle = driver.run(0, table(1))
    found = driver.as_of(0, {0: handle})
    assert (policy == "delete", True) == (found.exact, policy == "delete" or "is compacted" in found.why)


def test_a_topic_that_was_deleted_or_made_again_is_noticed(broker: Broker, start: Start) -> None:
    topic = broker.create_topic("as-of-replaced", partitions=1)
    driver = start(a_sink(broker, topic))
    handle = driver.run(0, table(1))
    before = driver.as_of(0, {0: handle}).identity
    broker.delete_topic(topic)
    found = driver.as_of(0, {0: handle})
    assert (False, "", f"topic {topic!r} does not exist") == (found.exact, found.identity, found.why)
    broker.create_topic(topic, partitions=1)
    assert driver.as_of(0, {0: handle}).identity not in (before, "", None)


def test_a_cluster_that_is_away_leaves_what_the_ledger_says(broker: Broker, topic: str, start: Start) -> None:
    driver = start(a_sink(broker, topic))
    handle = driver.run(0, table(1))
    away = SinkDriver(fp.Kafka(topic, servers="localhost:1", key="k", name="kafka"), Path("nowhere"))
    away.session._coordinator._patience = 0.2  # type: ignore[attr-defined]
    found = away.session.as_of(Asked(lineage=LINEAGE, epochs={Epoch(0): (handle,)}), Epoch(0))
    assert (False, False, [1]) == (found.heard, found.exact, values(broker, found))
