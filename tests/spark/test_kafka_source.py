"""Kafka as a source: a real broker, Spark's real connector, and whatever other writers do to the topic."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewPartitions
from fencepost_proof.rig.kafka import Broker
from streams import Place, decisions, table

import fencepost as fp
from fencepost.connectors.kafka import source
from fencepost.connectors.kafka.source import explain
from fencepost.errors import BadConfig, EpochFailed, OperatorNeeded
from fencepost.observe.metrics import Metrics
from fencepost.runtime.checks import look
from fencepost.store import place as place_of

pytestmark = [pytest.mark.spark]

LOG_IN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
NOBODY = "127.0.0.1:1"
LOST = "Some data may have been lost because they are not available in Kafka any more;"
HOUR_MS = int(time.time()) // 3600 * 3600_000
"""When this hour began: a broker takes no records from the future, and keeps old ones not for long."""


def send(broker: Broker, topic: str, *values: str | bytes | None, **settings: Any) -> None:
    """Produce and wait until the broker has them."""
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.servers})
    for value in values:
        producer.produce(topic, value=value, on_delivery=lambda error, _: error and failed.append(error), **settings)
    assert (0, []) == (producer.flush(30), failed)


def transaction(broker: Broker, topic: str, *values: str) -> Producer:
    """Values in a transaction that is still open."""
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value=value)
    assert 0 == producer.flush(30)
    return producer


class Reading:
    """A job that copies a topic's values into a table."""

    def __init__(self, spark: Any, place: Place, broker: Broker) -> None:
        self.spark, self.place, self.broker = spark, place, broker

    def job(self, topic: Any, **settings: Any) -> fp.Job:
        job = self.place.job(self.spark)
        frame = job.read(fp.Kafka(topic, **{"servers": self.broker.servers} | settings))
        return job.write(frame.selectExpr("CAST(value AS STRING) AS value"), self.sink())

    def sink(self) -> fp.SQLite:
        return fp.SQLite(self.place.database, table="rows")

    def read(self, topic: Any, **settings: Any) -> list[str]:
        """Run until all there is has been read; all that a reader of the table sees then."""
        self.job(topic, **settings).run(until="available")
        return self.seen()

    def seen(self) -> list[str]:
        return [value for (value,) in table(self.place.database, "rows")]

    def fails(self, kind: type[fp.FencepostError], code: str, topic: Any, **settings: Any) -> fp.FencepostError:
        """Run to a failure in our own words."""
        with pytest.raises(fp.FencepostError) as caught:
            self.job(topic, **settings).run(until="available")
        assert (kind, code, "job") == (type(caught.value), caught.value.code, caught.value.where.job)
        return caught.value


@pytest.fixture
def reading(spark: Any, place: Place, broker: Broker) -> Reading:
    return Reading(spark, place, broker)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, "it did not happen in 30 s"
        time.sleep(0.1)


def test_a_record_comes_with_all_that_kafka_knows_of_it(spark: Any, place: Place, broker: Broker, topic: str) -> None:
    """No key, no value (a tombstone) and an empty value are three different things."""
    send(broker, topic, "v", key="k", partition=0, headers=[("h", b"1")], timestamp=HOUR_MS)
    send(broker, topic, "v", None, b"", partition=2)
    job = place.job(spark)
    frame = job.read(fp.Kafka(topic, servers=broker.servers, headers=True))
    told = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert told == frame.columns
    rows = frame.selectExpr(
        "partition", "offset", "key", "value", "topic", "headers[0].key AS h", "CAST(timestamp AS LONG) AS at"
    )
    job.write(rows.drop("at").where("partition = 2"), fp.SQLite(place.database, table="two"))
    job.write(rows.where("partition = 0"), fp.SQLite(place.database, table="zero"))
    job.run(until="available")
    assert [(0, 0, b"k", b"v", topic, "h", HOUR_MS // 1000)] == table(place.database, "zero")
    assert [
        (2, 0, None, b"v", topic, None),
        (2, 1, None, None, topic, None),
        (2, 2, None, b"", topic, None),
    ] == table(place.database, "two")


def test_a_dead_letter_of_a_second_step_names_the_partition_and_the_offset(
    spark: Any, place: Place, broker: Broker, topic: str
) -> None:
    send(broker, topic, '{"n": "1"}', '{"n": "one"}', partition=0)
    job = place.job(spark)
    told: Any = {"on_bad_record": "dead_letter", "dead_letters": fp.SQLite(place.root / "dead.db", table="dead")}
    texts = job.parse(job.read(fp.Kafka(topic, servers=broker.servers)), schema="n STRING", **told)
    numbers = job.map(texts, lambda row: (int(row.n),), output="n INT", **told)
    job.write(numbers, fp.SQLite(place.database, table="rows"))
    job.run(until="available")
    assert [("kafka", f"{topic}-0@1", "one")] == [letter[:3] for letter in table(place.root / "dead.db", "dead")]


def test_a_rate_limit_makes_many_epochs_of_one_backlog(reading: Reading, topic: str) -> None:
    """In one partition: Spark shares a limit among several and rounds, so that there may be an epoch more."""
    send(reading.broker, topic, *map(str, range(9)), partition=0)
    assert list("012345678") == reading.read(topic, max_records_per_epoch=3)
    assert [0, 1, 2] == [decision["epoch"] for decision in decisions(reading.place.checkpoint)]
    assert ["0", "1", "2"] == reading.read(topic)[:3]
    assert 9 == len(reading.seen())


@pytest.mark.parametrize("how", ["latest", "time", "milliseconds", "positions"])
def test_a_new_job_begins_where_it_is_told_to(reading: Reading, topic: str, how: str) -> None:
    send(reading.broker, topic, "old", partition=1, timestamp=HOUR_MS - 1)
    send(reading.broker, topic, "new", partition=1, timestamp=HOUR_MS)
    start: Any = {
        "latest": "latest",
        "time": datetime.fromtimestamp(HOUR_MS // 1000, UTC),
        "milliseconds": HOUR_MS,
        "positions": {topic: {0: -2, 1: 1, 2: -1}},
    }[how]
    first = [] if how == "latest" else ["new"]
    assert first == reading.read(topic, start=start)
    send(reading.broker, topic, "newest", partition=2)
    assert [*first, "newest"] == reading.read(topic, start=start)


def test_several_topics_are_one_source(reading: Reading, topic: str) -> None:
    other = reading.broker.create_topic(f"{topic}-other", partitions=1)
    send(reading.broker, topic, "a")
    send(reading.broker, other, "b")
    assert ["a", "b"] == reading.read([topic, other])


def test_a_topic_that_comes_later_is_read_from_its_first_record(reading: Reading, topic: str) -> None:
    pattern = re.compile(f"{topic}.*")
    send(reading.broker, topic, "a")
    assert ["a"] == reading.read(pattern)
    later = reading.broker.create_topic(f"{topic}-later", partitions=1)
    send(reading.broker, later, "b")
    assert ["a", "b"] == reading.read(pattern)
    noted = reading.place.checkpoint.glob("fencepost/*/topics/*")
    assert {topic, later} == {file.name for file in noted}


def test_a_partition_that_comes_while_the_job_runs_is_read(reading: Reading, topic: str) -> None:
    with reading.job(topic) as job:
        job.start()
        admin = reading.broker.admin()
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(30)
        send(reading.broker, topic, "first")
        until(lambda: "first" in reading.seen())
        send(reading.broker, topic, "fourth", partition=3)
        until(lambda: "fourth" in reading.seen())


def test_rows_that_their_writer_took_back_are_not_read(reading: Reading, topic: str) -> None:
    transaction(reading.broker, topic, "aborted").abort_transaction(30)
    transaction(reading.broker, topic, "committed").commit_transaction(30)
    assert ["committed"] == reading.read(topic)


def test_rows_of_an_open_transaction_wait_for_its_end(reading: Reading, topic: str) -> None:
    opened = transaction(reading.broker, topic, "open")
    assert [] == reading.read(topic)
    opened.commit_transaction(30)
    assert ["open"] == reading.read(topic)


def test_reading_what_may_be_taken_back_or_late_is_said(reading: Reading, spark: Any, topic: str) -> None:
    """Also of a DataFrame that the user made: Spark's own default is to read it."""

    def notes(frame: Any) -> str:
        return " ".join(reading.place.job(spark).write(frame, reading.sink()).check().notes)

    assert () == reading.job(topic).check().notes
    assert "read_uncommitted" in " ".join(reading.job(topic, isolation="read_uncommitted").check().notes)
    plain = spark.readStream.format("kafka").option("subscribe", topic)
    plain = plain.option("kafka.bootstrap.servers", reading.broker.servers)
    assert "read_uncommitted" in notes(plain.load())
    plain = plain.option("kafka.isolation.level", "read_committed")
    assert "kafka.fetch.max.wait.ms=20" in notes(plain.load())
    assert "" == notes(plain.option("kafka.fetch.max.wait.ms", "500").load())
    shown = {setting.name: setting.value for setting in look(reading.job(topic)._launch(looks=True)).settings}
    assert "20" == shown["kafka.fetch.max.wait.ms"]


@pytest.mark.parametrize("by", ["subscribe", "subscribepattern"])
def test_topics_are_described_alike_without_our_jar(
    reading: Reading, spark: Any, topic: str, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    options = {"0": {"kafka.bootstrap.servers": reading.broker.servers, by: topic}}
    with_jar = source.find(spark, options, "job")
    monkeypatch.setattr(source, "finds_class", lambda *_: False)
    monkeypatch.setattr(source, "_questions", {})
    assert with_jar == source.find(spark, options, "job")
    assert [(topic, ["0"])] == [(name, list(ids)) for name, ids in with_jar.items()]


def test_a_topic_that_is_not_there_is_said_at_once(reading: Reading, topic: str) -> None:
    error = reading.fails(BadConfig, "no_topic", [topic, "missing"])
    assert "missing" in str(error)
    assert not reading.place.checkpoint.exists()


@pytest.mark.serial
def test_a_broker_that_is_not_there_is_said_in_seconds(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.connectors.kafka.source.PATIENCE_MS", 1000)
    began = time.monotonic()
    error = reading.fails(EpochFailed, "no_broker", "any", servers=NOBODY)
    assert NOBODY in str(error)
    assert time.monotonic() - began < 8
    assert not reading.place.checkpoint.exists()


def test_settings_that_kafkas_client_refuses_are_said_in_our_words(reading: Reading, spark: Any) -> None:
    plain = spark.readStream.format("kafka").option("subscribe", "any").option("kafka.security.protocol", "NONE")
    frame = plain.option("kafka.bootstrap.servers", NOBODY).load()
    with pytest.raises(EpochFailed, match="no_broker"):
        reading.place.job(spark).write(frame, reading.sink()).start()


def test_what_is_decided_is_finished_before_a_broker_is_missed(
    reading: Reading, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(reading.broker, topic, "a")
    assert ["a"] == reading.read(topic)
    newest = str(decisions(reading.place.checkpoint)[-1]["epoch"])
    (reading.place.checkpoint / "commits" / newest).unlink()
    monkeypatch.setattr("fencepost.connectors.kafka.source.PATIENCE_MS", 1000)
    reading.fails(EpochFailed, "no_broker", topic, servers=NOBODY)
    assert (reading.place.checkpoint / "commits" / newest).exists()
    assert ["a"] == reading.read(topic)


@pytest.mark.parametrize("text", ["[KAFKA_DATA_LOSS.PARTITIONS_DELETED] Some", "KafkaIllegalStateException: " + LOST])
def test_a_loss_is_known_by_its_name_and_by_its_words(text: str) -> None:
    lost = explain(text, "job")
    assert lost is not None
    assert ("range_lost", "job") == (lost.code, lost.where.job)
    assert explain("org.apache.kafka.common.errors.TimeoutException: Timed out", "job") is None


@pytest.mark.parametrize("user", ["app", "weak"])
def test_no_secret_gets_anywhere(
    reading: Reading,
    topic: str,
    user: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    secret = f"{user}-secret"
    log_in = LOG_IN | {"sasl.username": user, "sasl.password": secret}
    told = {"servers": reading.broker.sasl_servers, "security": log_in}
    send(reading.broker, topic, "a")
    errors = []
    if user == "weak":
        errors.append(reading.fails(BadConfig, "not_allowed", topic, **told))
        allow(reading.broker, topic, AclOperation.DESCRIBE)
        errors.append(reading.fails(BadConfig, "not_allowed", topic, **told))
        allow(reading.broker, topic, AclOperation.READ)
    assert ["a"] == reading.read(topic, **told)
    wrong = told | {"security": log_in | {"sasl.password": secret + "x"}}
    errors.append(reading.fails(BadConfig, "log_in_refused", topic, **wrong))
    job = reading.job(topic, **told)
    frame = job.read(fp.Kafka(topic, **told))
    frame.explain(extended=True)
    print(errors, *errors, job, frame, fp.Kafka(topic, **told), job.check())  # noqa: T201 - it is searched below
    said = "".join(capfd.readouterr()) + caplog.text
    assert "StreamingRelationV2" in said
    assert secret not in said
    files = [file for file in reading.place.root.rglob("*") if file.is_file()]
    assert files
    assert [] == [file.name for file in files if secret.encode() in file.read_bytes()]


def allow(broker: Broker, topic: str, what: AclOperation) -> None:
    """Let the weak user do one more thing; Spark's groups have names that Spark makes."""
    for kind, name, how in (
        (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL),
        (ResourceType.GROUP, "spark-kafka-source-", ResourcePatternType.PREFIXED),
    ):
        acl = AclBinding(kind, name, how, "User:weak", "*", what, AclPermissionType.ALLOW)
        admin = broker.admin()
        admin.create_acls([acl])[acl].result(30)


def test_a_range_that_retention_removed_is_a_persons_matter(reading: Reading, topic: str) -> None:
    send(reading.broker, topic, "a", "b", partition=0)
    assert ["a", "b"] == reading.read(topic)
    send(reading.broker, topic, "c", "d", partition=0)
    gone, admin = TopicPartition(topic, 0, 3), reading.broker.admin()
    admin.delete_records([gone])[gone].result(30)
    decided = decisions(reading.place.checkpoint)
    for _ in range(2):
        reading.fails(OperatorNeeded, "range_lost", topic)
        assert (["a", "b"], decided) == (reading.seen(), decisions(reading.place.checkpoint))


@pytest.mark.parametrize("records", [1, 9])
def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(reading: Reading, topic: str, records: int) -> None:
    """With more records than before its positions fit, and Spark would go on in the middle of it."""
    send(reading.broker, topic, "a", "b", partition=0)
    assert ["a", "b"] == reading.read(topic)
    reading.broker.delete_topic(topic)
    reading.broker.create_topic(topic, partitions=3)
    send(reading.broker, topic, *map(str, range(records)), partition=0)
    error = reading.fails(OperatorNeeded, "source_replaced", topic)
    assert ["a", "b"] == reading.seen()
    Path(error.where.path or "").unlink()
    if records > 2:
        assert ["2", "3", "4", "5", "6", "7", "8", "a", "b"] == reading.read(topic)
    else:
        reading.fails(OperatorNeeded, "range_lost", topic, options={"fetchOffset.numRetries": "1"})
        assert ["a", "b"] == reading.seen()


def test_topics_of_one_name_on_two_clusters_do_not_change_places(
    reading: Reading, spark: Any, topic: str, tmp_path: Path
) -> None:
    def job_over(*servers: str) -> fp.Job:
        job = reading.place.job(spark)
        one, two = (job.read(fp.Kafka(topic, servers=each)).selectExpr("CAST(value AS STRING) v") for each in servers)
        return job.write(one.unionAll(two), reading.sink())

    europe = reading.broker
    with Broker(tmp_path / "other") as america:
        america.create_topic(topic, partitions=3)
        send(europe, topic, "a", "b", partition=0)
        send(america, topic, "x", partition=0)
        job_over(europe.servers, america.servers).run(until="available")
        with pytest.raises(fp.FencepostError) as caught:  # the same two lists of servers
            job_over(america.servers, europe.servers).run(until="available")
        assert "sources_changed" == caught.value.code
        more = f"{europe.servers},{europe.servers.replace('127.0.0.1', 'localhost')}"
        swapped = job_over(america.servers, more)  # other lists of servers: only the brokers know
        (problem,) = look(swapped._launch(looks=True)).problems
        with pytest.raises(OperatorNeeded) as replaced:
            swapped.run(until="available")
        assert ("source_replaced", problem.code) == (replaced.value.code, "source_replaced")
        assert "of source 0" in replaced.value.what
        send(america, topic, "y", partition=0)
        job_over(more, america.servers).run(until="available")  # a list of servers may change
        assert ["a", "b", "x", "y"] == reading.seen()


@pytest.mark.parametrize("refilled", [True, False])
def test_a_topic_that_is_replaced_while_the_job_runs_ends_it_before_the_next_decision(
    reading: Reading, topic: str, *, refilled: bool
) -> None:
    """Between two epochs, with records at the same offsets: Spark goes on in the middle of the new topic."""
    send(reading.broker, topic, "a", "b", "c", "d", partition=0)
    job = reading.job(topic, max_records_per_epoch=2)

    @job.on_complete
    def replace(event: fp.Event) -> None:
        if event.epoch == 0:
            reading.broker.delete_topic(topic)
            if refilled:
                reading.broker.create_topic(topic, partitions=3)
                send(reading.broker, topic, "new a", "new b", "new c", "new d", partition=0)

    with pytest.raises(OperatorNeeded) as caught:
        job.run(until="available")
    assert ("source_replaced" if refilled else "range_lost") == caught.value.code
    assert ["a", "b"] == reading.seen()
    assert [0] == [decision["epoch"] for decision in decisions(reading.place.checkpoint)]


def test_losing_records_in_silence_is_refused(reading: Reading, spark: Any, topic: str) -> None:
    plain = spark.readStream.format("kafka").option("subscribe", topic).option("failOnDataLoss", "false")
    frame = plain.option("kafka.bootstrap.servers", reading.broker.servers).load()
    with pytest.raises(BadConfig) as caught:
        reading.place.job(spark).write(frame, reading.sink())
    assert "fail_on_data_loss" == caught.value.code


def test_a_running_job_says_how_many_records_a_topic_has_beyond_its_epochs(
    reading: Reading, broker: Broker, topic: str
) -> None:
    """What Spark reported after the epoch before; the one that is held up here is not in it yet."""
    send(broker, topic, *"0123456789", partition=0)
    job = reading.job(topic, max_records_per_epoch=4)
    may_go_on = threading.Event()

    @job.on_complete
    def wait(event: fp.Event) -> None:
        assert event.epoch != 1 or may_go_on.wait(120)

    metrics = Metrics(lambda: [("job", place_of(job.checkpoint))])
    series = f'source="{topic}"}} '

    def behind() -> list[str]:
        return [line.partition(series)[2] for line in metrics.text().decode().splitlines() if series in line]

    query = job.start()
    try:
        until(lambda: ["6.0"] == behind())
        may_go_on.set()
        until(lambda: ["0.0"] == behind())
    finally:
        may_go_on.set()
        job.stop()
    assert query.exception() is None
    assert [] == behind(), "of a job that does not run, it is not known"
