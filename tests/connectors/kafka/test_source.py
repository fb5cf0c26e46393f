"""What a Kafka source tells Spark, and what it refuses; no broker, no Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient

import fencepost as fp
from fencepost.connectors.kafka.servers import NAMES, Servers
from fencepost.connectors.kafka.source import FETCH_WAIT, PATIENCE, PROMPT_MS, spark_options
from fencepost.errors import BadConfig

SECRET = "canary-7d1f"  # noqa: S105 - not one, but looked for as if it were
LOG_IN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "app",
    "sasl.password": SECRET,
}
KEY = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nBBBB\n-----END CERTIFICATE-----\n"


def refused(code: str, step: Callable[[], object]) -> BadConfig:
    """Take the step; its refusal says how to fix it, and no secret."""
    with pytest.raises(BadConfig) as caught:
        step()
    assert code == caught.value.code
    assert caught.value.next
    assert SECRET not in str(caught.value) + repr(caught.value)
    return caught.value


def source(**settings: Any) -> fp.Kafka:
    return fp.Kafka(**{"servers": "a:9092", "topic": ("orders",)} | settings)


@pytest.fixture
def pem(tmp_path: Path) -> dict[str, str]:
    """Settings with certificates for both sides."""
    for name, text in (("ca", CERTIFICATE), ("certificate", CERTIFICATE), ("key", KEY)):
        (tmp_path / f"{name}.pem").write_text(text)
    found = {f"ssl.{name}.location": str(tmp_path / f"{name}.pem") for name in ("ca", "certificate", "key")}
    return {"security.protocol": "ssl", **found}


@pytest.mark.parametrize("given", ["a:9092, b:9093", ["a:9092", "b:9093"], ("a:9092 ", "b:9093")])
def test_servers_are_one_text_or_several(given: Any) -> None:
    servers = Servers(given)
    assert "a:9092,b:9093" == servers.for_writing()["bootstrap.servers"]
    assert "a:9092,b:9093" == servers.for_spark()["kafka.bootstrap.servers"]
    assert ["a:9092", "b:9093"] == servers.for_asking()["bootstrap_servers"]
    assert hash(servers) == hash(Servers("a:9092,b:9093"))


@pytest.mark.parametrize("given", ["[::1]:9092", "127.0.0.1:1", "a-b.example.org:65535", "under_score:9092"])
def test_a_server_may_be_a_name_or_a_number(given: str) -> None:
    assert given == Servers(given).bootstrap


@pytest.mark.parametrize(
    ("code", "given"),
    [
        ("no_servers", ""),
        ("no_servers", []),
        ("no_servers", "a:9092,"),
        ("no_servers", [None]),
        ("bad_server", "localhost"),
        ("bad_server", "PLAINTEXT://a:9092"),
        ("bad_server", "a:0"),
        ("bad_server", "a:99999"),
        ("bad_server", "a:9092;b:9092"),
        ("bad_server", f"app:{SECRET}@a:9092"),
    ],
)
def test_a_server_that_is_none_is_refused(code: str, given: Any) -> None:
    refused(code, lambda: Servers(given))


def test_three_clients_are_told_the_same() -> None:
    servers = Servers("a:9092", LOG_IN)
    assert {
        "bootstrap.servers": "a:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "app",
        "sasl.password": SECRET,
    } == servers.for_writing()
    assert {
        "bootstrap_servers": ["a:9092"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "app",
        "sasl_plain_password": SECRET,
    } == servers.for_asking()
    assert {
        "kafka.bootstrap.servers": "a:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="app" password="{SECRET}";',
    } == servers.for_spark()


def test_kafka_python_knows_every_name_that_we_give_it() -> None:
    assert set(NAMES.values()) <= KafkaAdminClient.DEFAULT_CONFIG.keys()


def test_a_password_is_quoted_for_java() -> None:
    told = Servers("a:1", LOG_IN | {"sasl.password": 'a"b\\c\nd;e=${f}'}).for_spark()["kafka.sasl.jaas.config"]
    assert told.endswith('password="a\\"b\\\\c\\nd;e=${f}";')


def test_certificates_travel_inside_the_options(pem: dict[str, str]) -> None:
    servers = Servers("a:9093", pem | {"ssl.key.password": SECRET, "ssl.endpoint.identification.algorithm": "none"})
    told = servers.for_spark()
    assert KEY in told.pop("kafka.ssl.keystore.key")
    assert {
        "kafka.bootstrap.servers": "a:9093",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": CERTIFICATE,
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": CERTIFICATE,
        "kafka.ssl.key.password": SECRET,
        "kafka.ssl.endpoint.identification.algorithm": "",
    } == told
    asked = servers.for_asking()
    assert (pem["ssl.key.location"], SECRET, False) == (
        asked["ssl_keyfile"],
        asked["ssl_password"],
        asked["ssl_check_hostname"],
    )


def test_spark_hides_an_option_with_a_private_key(pem: dict[str, str]) -> None:
    """Spark hides an option whose name or value matches this, its default; the key's name does not."""
    told = Servers("a:9093", pem).for_spark()
    assert re.search(r"(?i)secret|password|token|access[.]?key", told["kafka.ssl.keystore.key"])


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("unknown_security", {"sasl.jaas.config": SECRET}),
        ("unknown_security", {"enable.ssl.certificate.verification": "false"}),
        ("unknown_security", {"sasl.mechanism": "GSSAPI"}),
        ("unknown_security", {"security.protocol": "TLS"}),
        ("unknown_security", {"ssl.endpoint.identification.algorithm": "ldap"}),
        ("security_missing", {"sasl.username": None}),
        ("security_missing", {"sasl.password": None}),
        ("security_missing", {"sasl.mechanism": None}),
        ("security_missing", {"ssl.key.location": "k"}),
        ("security_missing", {"ssl.certificate.location": "k"}),
        ("security_not_used", {"security.protocol": None}),
        ("security_not_used", {"security.protocol": "SSL"}),
        ("security_not_used", {"security.protocol": "SASL_PLAINTEXT", "ssl.ca.location": "ca"}),
        ("two_mechanisms", {"sasl.mechanisms": "PLAIN"}),
        ("empty_security", {"sasl.password": ""}),
        ("empty_security", {"sasl.username": 1}),
    ],
)
def test_security_that_cannot_work_is_refused(code: str, change: dict[str, Any]) -> None:
    given = {name: value for name, value in {**LOG_IN, **change}.items() if value is not None}
    refused(code, lambda: Servers("a:9092", given))


@pytest.mark.parametrize("name", ["ssl.ca.location", "ssl.certificate.location", "ssl.key.location"])
@pytest.mark.parametrize("text", [None, SECRET, "\x00\xff"])
def test_a_pem_file_that_cannot_be_read_is_refused(pem: dict[str, str], name: str, text: str | None) -> None:
    path = Path(pem[name])
    path.write_bytes(text.encode("latin-1")) if text else path.unlink()
    assert str(path) == refused("unreadable_pem", Servers("a:9092", pem).for_spark).where.path


def test_a_key_in_a_form_that_java_cannot_read_is_refused(pem: dict[str, str]) -> None:
    Path(pem["ssl.key.location"]).write_text(KEY.replace("PRIVATE", "RSA PRIVATE").replace("AAAA", SECRET))
    refused("key_not_pkcs8", Servers("a:9092", pem).for_spark)


def test_no_secret_is_in_a_repr() -> None:
    servers = Servers("a:9092", LOG_IN)
    assert "Servers(bootstrap='a:9092')" == repr(servers)
    assert SECRET not in repr(source(security=LOG_IN, options={"kafka.x": SECRET}))


def test_the_defaults_read_all_that_is_committed() -> None:
    assert {
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
        FETCH_WAIT: PROMPT_MS,
        **PATIENCE,
    } == spark_options(source())


def test_a_users_own_wait_wins() -> None:
    told = spark_options(source(options={"kafka.Fetch.max.wait.ms": "7"}))
    assert ["7"] == [value for name, value in told.items() if name.lower() == FETCH_WAIT]


@pytest.mark.parametrize("name", ["kafka.request.timeout.ms", "FetchOffset.numRetries"])
def test_a_user_who_sets_a_patience_of_his_own_gets_none_of_ours(name: str) -> None:
    told = spark_options(source(options={name: "1"}))
    assert [name] == [other for other in told if other.lower() in {known.lower() for known in PATIENCE}]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"topic": ("a", "b", "a")}, {"subscribe": "a,b"}),
        ({"topic": re.compile("orders-.*")}, {"subscribePattern": "orders-.*"}),
        ({"topic": re.compile("orders", re.IGNORECASE)}, {"subscribePattern": "(?i)orders"}),
        ({"start": "latest"}, {"startingOffsets": "latest"}),
        ({"start": datetime(2026, 1, 1, tzinfo=UTC)}, {"startingTimestamp": "1767225600000"}),
        (
            {"start": datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))},
            {"startingTimestamp": "1767225600000"},
        ),
        ({"start": 1767225600000}, {"startingOffsetsByTimestampStrategy": "latest"}),
        ({"start": {"orders": {0: 5, 1: -2}}}, {"startingOffsets": json.dumps({"orders": {"0": 5, "1": -2}})}),
        ({"isolation": "read_uncommitted"}, {"kafka.isolation.level": "read_uncommitted"}),
        ({"headers": True}, {"includeHeaders": "true"}),
        ({"max_records_per_epoch": 7}, {"maxOffsetsPerTrigger": "7"}),
        ({"options": {"minPartitions": "9"}}, {"minPartitions": "9"}),
    ],
)
def test_each_setting_becomes_an_option(settings: dict[str, Any], expected: dict[str, str]) -> None:
    assert expected.items() <= spark_options(source(**settings)).items()


@pytest.mark.parametrize(
    ("code", "settings"),
    [
        ("no_topics", {"topic": ()}),
        ("no_topic", {"topic": None}),
        ("bad_topic", {"topic": ("a,b",)}),
        ("bad_topic", {"topic": ("..",)}),
        ("bad_topic", {"topic": ("x" * 250,)}),
        ("bad_topic", {"topic": (1,)}),
        ("bad_pattern", {"topic": re.compile("a", re.VERBOSE)}),
        ("naive_time", {"start": datetime(2026, 1, 1)}),  # noqa: DTZ001 - the mistake itself
        ("bad_start", {"start": 1767225600}),
        ("bad_start", {"start": True}),
        ("bad_start", {"start": "now"}),
        ("bad_start", {"start": 1.5}),
        ("bad_start", {"start": {"others": {0: 1}}}),
        ("bad_start", {"start": {"orders": {}}}),
        ("bad_start", {"start": {"orders": {0: -3}}}),
        ("bad_start", {"start": {"orders": {"0": 1}}}),
        ("unknown_isolation", {"isolation": "serializable"}),
        ("bad_rate", {"max_records_per_epoch": 0}),
        ("bad_rate", {"max_records_per_epoch": True}),
        ("fail_on_data_loss", {"options": {"failOnDataLoss": "true"}}),
        ("option_is_ours", {"options": {"subscribe": "x"}}),
        ("option_is_ours", {"options": {"StartingOffsets": "latest"}}),
        ("option_is_ours", {"options": {"kafka.bootstrap.servers": "x:1"}}),
        ("option_is_ours", {"options": {"kafka.isolation.level": "read_uncommitted"}}),
        ("option_is_ours", {"options": {"kafka.group.id": "g"}}),
        ("option_is_ours", {"options": {"kafka.sasl.jaas.config": SECRET}}),
    ],
)
def test_a_setting_that_cannot_work_is_refused(code: str, settings: dict[str, Any]) -> None:
    refused(code, lambda: spark_options(source(**settings)))
