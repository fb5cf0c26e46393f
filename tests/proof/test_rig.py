"""The rig's broker is a real one, and does what its users rely on: it keeps its port and data, and ends with us."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from fencepost_proof.rig import jars, kafka, server
from fencepost_proof.rig.jars import JarSet, RigFailed
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.rig.server import PortTaken
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import TopicAuthorizationFailedError


def login(broker: Broker, user: str, password: str = "") -> dict[str, str]:
    return {
        "bootstrap.servers": broker.sasl_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password or f"{user}-secret",
    }


def produce(settings: dict[str, str], topic: str, values: Iterable[bytes]) -> list[KafkaError]:
    """Send each value; return what went wrong."""
    errors: list[KafkaError] = []
    producer = Producer({**settings, "log_level": 0})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error) if error else None)
    assert 0 == producer.flush(20)
    return errors


def consume(settings: dict[str, str], topic: str, count: int) -> list[bytes]:
    """So many values of three partitions, sorted; the first error is raised. No group: that takes seconds to form."""
    consumer = Consumer({**settings, "group.id": "none", "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(3)])
        found = []
        while len(found) < count:
            for message in consumer.consume(count - len(found), timeout=20) or pytest.fail("nothing more arrived"):
                if message.error():
                    raise KafkaException(message.error())
                found.append(message.value())
        return sorted(found)
    finally:
        consumer.close()


def transaction_version(broker: Broker) -> int:
    admin = KafkaAdminClient(bootstrap_servers=broker.servers)
    try:
        return admin.describe_features()["transaction.version"].get("finalized", (0, 0))[1]
    finally:
        admin.close()


def test_a_topic_takes_rows_and_gives_them_back(broker: Broker, topic: str) -> None:
    plain = {"bootstrap.servers": broker.servers}
    assert [] == produce(plain, topic, [b"a", b"b", b"c"])
    assert [b"a", b"b", b"c"] == consume(plain, topic, 3)
    assert 3 == kafka.topics(broker.admin())[topic]
    assert 2 == transaction_version(broker)


def test_a_topic_has_the_settings_it_was_given_and_can_be_deleted(broker: Broker) -> None:
    broker.create_topic("settings", partitions=1, cleanup_policy="compact", segment_bytes=1_048_576)
    admin = broker.admin()
    [config] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "settings")]).values()
    found = config.result(20)
    assert ("compact", "1048576") == (found["cleanup.policy"].value, found["segment.bytes"].value)
    broker.delete_topic("settings")
    assert "settings" not in kafka.topics(broker.admin())


@pytest.mark.long
def test_a_killed_broker_comes_back_on_its_port_with_its_data(require: Callable[[str], None], tmp_path: Path) -> None:
    require("kafka")
    with Broker(tmp_path / "broker", transaction_version=1) as broker:
        assert 1 == transaction_version(broker)
        before = broker.servers
        broker.create_topic("rows", partitions=3)
        plain = {"bootstrap.servers": before}
        assert [] == produce(plain, "rows", [b"a", b"b"])
        broker.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", broker.port)).close()
        broker.start()
        assert before == broker.servers
        assert [b"a", b"b"] == consume(plain, "rows", 2)
        assert 1 == transaction_version(broker)


def test_a_frozen_broker_does_not_answer_and_a_woken_one_does(require: Callable[[str], None], tmp_path: Path) -> None:
    require("kafka")
    with Broker(tmp_path / "broker") as broker:
        admin = broker.admin()
        admin.list_topics(timeout=20)
        broker.pause()
        try:
            with pytest.raises(KafkaException):
                admin.list_topics(timeout=0.5)
        finally:
            broker.resume()
        assert admin.list_topics(timeout=20).brokers


def test_a_port_that_was_taken_meanwhile_is_given_up(
    require: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("kafka")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        choices = [[taken.getsockname()[1], *server.free_ports(2)], server.free_ports(3)]
        monkeypatch.setattr(server, "free_ports", lambda count: choices.pop(0))
        monkeypatch.setattr(server, "is_free", lambda port: True)
        with Broker(tmp_path / "broker", transaction_version=0) as broker:
            assert taken.getsockname()[1] != broker.port
            assert 0 == transaction_version(broker)


def test_a_port_that_was_asked_for_and_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PortTaken, match="choose another"):
        Broker(tmp_path / "broker", port=taken.getsockname()[1]).start()


def test_a_broker_ends_with_the_process_that_started_it(require: Callable[[str], None], tmp_path: Path) -> None:
    require("kafka")
    program = (
        "import sys, pathlib, time; from fencepost_proof.rig.kafka import Broker;"
        "print(Broker(pathlib.Path(sys.argv[1])).start().pid, flush=True); time.sleep(60)"
    )
    starter = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "broker")], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    with starter.stdout:
        pid = int(starter.stdout.readline())
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    kafka.until(lambda: not Path(f"/proc/{pid}").exists(), "the broker followed")


def test_who_logs_in_as_a_trusted_user_may_do_everything(broker: Broker, topic: str) -> None:
    assert [] == produce(login(broker, "app"), topic, [b"a"])
    assert [b"a"] == consume(login(broker, "app"), topic, 1)
    producer = KafkaProducer(**kafka_python(broker, "app"))
    try:
        producer.send(topic, b"b").get(20)
    finally:
        producer.close()
    assert [b"a", b"b"] == consume({"bootstrap.servers": broker.servers}, topic, 2)


def test_who_has_no_rights_is_refused_until_given_some(broker: Broker, topic: str) -> None:
    [error] = produce(login(broker, "weak"), topic, [b"a"])
    assert KafkaError.TOPIC_AUTHORIZATION_FAILED == error.code()
    with pytest.raises(KafkaException, match="authorization failed"):
        consume(login(broker, "weak"), topic, 1)
    producer = KafkaProducer(**kafka_python(broker, "weak"))
    try:
        with pytest.raises(TopicAuthorizationFailedError):
            producer.send(topic, b"a").get(20)
    finally:
        producer.close()
    may = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:weak", "*", AclOperation.WRITE)
    admin = broker.admin()
    [given] = admin.create_acls([AclBinding(*may, AclPermissionType.ALLOW)]).values()
    given.result(20)
    assert [] == produce(login(broker, "weak"), topic, [b"b"])
    assert [b"b"] == consume({"bootstrap.servers": broker.servers}, topic, 1)


def test_a_wrong_password_is_refused(broker: Broker) -> None:
    errors: list[KafkaError] = []
    settings = login(broker, "app", "guessed") | {"log_level": 0, "error_cb": errors.append}
    Producer(settings).poll(5)
    assert KafkaError._AUTHENTICATION == errors[0].code()


def kafka_python(broker: Broker, user: str) -> dict[str, str]:
    return {
        "bootstrap_servers": broker.sasl_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": f"{user}-secret",
    }


NOTHING = JarSet("nothing", ("org.nowhere:nothing:1",), digest="")


@pytest.fixture
def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Let a line of shell be the Java that runs Ivy."""

    def make(line: str) -> Path:
        program = tmp_path / "home" / "bin" / "java"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
        return program

    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return make


def test_jars_are_fetched_once(fake_java: Callable[[str], Path], tmp_path: Path) -> None:
    program = fake_java("mkdir jars && echo x >jars/nothing-1.jar && echo y >jars/below-2.jar")
    with pytest.raises(RigFailed, match="not the pinned ones") as refused:
        jars.fetch(NOTHING)
    digest = str(refused.value).split("digest is ")[1].split(",")[0]
    pinned = JarSet("nothing", NOTHING.coordinates, digest=digest)
    assert ["below-2.jar", "nothing-1.jar"] == [path.name for path in jars.fetch(pinned)]
    program.unlink()
    assert 2 == len(jars.fetch(pinned))
    assert [pinned.folder.name] == os.listdir(tmp_path / "cache" / "fencepost" / "jars")


@pytest.mark.parametrize("line", ["exit 0", "mkdir jars && echo x >jars/other-1.jar", "exit 1"])
def test_a_download_that_is_not_whole_leaves_nothing(
    fake_java: Callable[[str], Path], tmp_path: Path, line: str
) -> None:
    fake_java(line)
    with pytest.raises(RigFailed, match="see that the network reaches it"):
        jars.fetch(NOTHING)
    assert [] == os.listdir(tmp_path / "cache" / "fencepost" / "jars")


def test_without_java_one_is_told_to_install_it(fake_java: Callable[[str], Path]) -> None:
    with pytest.raises(RigFailed, match="install version 17 or newer"):
        jars.fetch(NOTHING)
