"""How Spark's Kafka connector gets into a session, and whether Java understands what it is told there."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from confluent_kafka import Producer
from fencepost_proof.rig.jars import SPARK_KAFKA, fetch, java
from fencepost_proof.rig.kafka import Broker
from streams import Place, drop, table

import fencepost as fp
from fencepost.connectors.kafka.servers import Servers
from fencepost.connectors.kafka.sink import TESTED
from fencepost.errors import BadConfig
from fencepost.observe.terminal import Tell, nobody
from fencepost.spark import connector
from fencepost.spark.spark_session import SUPPORTED

pytestmark = [pytest.mark.spark]

KAFKA = fp.Kafka.package
PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0"


@pytest.mark.parametrize("version", ["4.3.0", "4.3.0-vendor-1", "4.3.0.dev0"])
def test_a_vendors_spark_takes_the_plain_connector(version: str) -> None:
    assert PACKAGE == connector.coordinate(KAFKA, version)


def test_a_session_of_the_users_without_it_is_told_the_line(
    spark: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fp.Kafka, "package", replace(KAFKA, provider="org.example.NotThere"))
    with pytest.raises(BadConfig) as caught:
        place.job(spark).read(fp.Kafka("lines", servers="127.0.0.1:1"))
    assert ("no_connector", "job") == (caught.value.code, caught.value.where.job)
    assert f"spark-submit --packages {','.join(connector.known(KAFKA, spark.version))}" in caught.value.next


class Resolver:
    """In place of Spark's: has some packages, and remembers what it was asked for."""

    def __init__(self, *there: str) -> None:
        self.there = there
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, spark: Any, names: tuple[str, ...]) -> list[str]:
        self.asked.append(tuple(names))
        return list(names) if set(names) <= set(self.there) else []


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Resolver, list[str]]]:
    """What `bring` asks for, and what it says, where these packages can be had and none was had before."""

    def brought(
        *there: str, version: str = "4.3.0", cached: str = "", tell: Tell = nobody
    ) -> tuple[Resolver, list[str]]:
        made, said = Resolver(*there), []
        added: list[str] = []
        monkeypatch.setattr(connector, "_resolved", made)
        monkeypatch.setattr(connector, "_is_cached", lambda spark, name: name == cached)
        monkeypatch.setattr(connector.spark_session, "add_jars", lambda spark, jars: not added.extend(jars))
        monkeypatch.setattr(connector.jvm, "finds_class", lambda spark, name: bool(added))
        connector.bring(KAFKA, SimpleNamespace(version=version), "job", ours=True, say=said.append, tell=tell)
        return made, said

    return brought


def test_the_connector_of_this_very_spark_is_taken_and_only_a_download_is_told(resolver: Any) -> None:
    made, said = resolver(PACKAGE, cached=PACKAGE)
    assert ([(PACKAGE,)], []) == (made.asked, said)
    told: list[str] = []
    made, said = resolver(PACKAGE, tell=lambda what, done, total: told.append(what))
    assert ([(PACKAGE,)], [f"Downloading {PACKAGE}"]) == (made.asked, told)
    assert [f"downloaded {PACKAGE}: 1 jars, 0.0 MB, 0 s"] == said


def test_where_it_cannot_be_had_the_one_that_is_known_to_work_is_taken_and_named(resolver: Any) -> None:
    made, said = resolver(*TESTED)
    assert [(PACKAGE,), TESTED] == made.asked
    assert f"Kafka: using {TESTED[0]}, which works with Spark 4.3.0; {PACKAGE} could not be had" == said[-1]


def test_what_was_downloaded_before_is_taken_without_asking_the_network(resolver: Any) -> None:
    made, _ = resolver(*TESTED, PACKAGE, cached=TESTED[0])
    assert [TESTED] == made.asked


def test_without_any_of_them_the_way_without_a_network_is_told(resolver: Any) -> None:
    with pytest.raises(BadConfig) as caught:
        resolver()
    assert f"neither {PACKAGE} nor {TESTED[0]}" in caught.value.what
    assert all(
        word in caught.value.next for word in ("spark.jars.ivySettings", "'spark.jars': '", "kafka-clients-3.9.2.jar")
    )


def test_every_spark_that_we_support_has_a_connector_that_is_known_to_work() -> None:
    assert set(SUPPORTED) == set(KAFKA.known)
    here = ".".join(pyspark.__version__.split(".")[:2])
    assert SPARK_KAFKA.coordinates == KAFKA.known[here], "what all other tests run with"


class Numbers(fp.Source):
    """A source of a user's own."""

    name = "numbers"

    def load(self, reader: Any) -> Any:
        return reader.format("rate").load()


def test_a_source_of_the_users_own_needs_no_connector(spark: Any, place: Place) -> None:
    job = place.job(spark)
    assert ["timestamp", "value"] == job.read(Numbers()).columns
    assert ["numbers"] == [source.name for source in job._sources]
    assert Numbers().newest(1) is None


LATE = """
import json, sys
import fencepost as fp
from fencepost.spark import connector

told = json.loads(sys.argv[1])
connector._resolved = lambda spark, names: told["jars"]
conf = {"spark.master": "local[1]", "spark.ui.enabled": "false"}
conf["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={told['logging']}"
job = fp.Job("late", checkpoint=told["checkpoint"], conf=conf)
lines = job.read(fp.Files(told["input"], format="text"))
kafka = job.read(fp.Kafka(told["topic"], servers=told["servers"], security=told["security"]))
job.write(lines.union(kafka.selectExpr("CAST(value AS STRING)")), fp.SQLite(told["database"], table="rows"))
job.run(until="available")
"""

LOGGING = """\
appender.out.type=File
appender.out.name=out
appender.out.fileName=%s
rootLogger.level=INFO
rootLogger.appenderRef.out.ref=out
"""


def test_a_session_that_began_without_it_gets_it_later_and_logs_no_secret(
    place: Place, broker: Broker, topic: str
) -> None:
    """Files first, Kafka second; at the level at which Kafka's clients log all their settings."""
    drop(place.input, "from a file\n")
    producer = Producer({"bootstrap.servers": broker.servers})
    producer.produce(topic, "from Kafka")
    assert 0 == producer.flush(30)
    (place.root / "log4j2.properties").write_text(LOGGING % (place.root / "spark.log"))
    told = {
        "logging": str(place.root / "log4j2.properties"),
        "jars": [str(jar) for jar in fetch(SPARK_KAFKA)],
        "checkpoint": str(place.checkpoint),
        "input": str(place.input),
        "database": str(place.database),
        "topic": topic,
        "servers": broker.sasl_servers,
        "security": {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "app",
            "sasl.password": "app-secret",
        },
    }
    command = [sys.executable, "-c", LATE, json.dumps(told)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, env={**os.environ})
    assert 0 == done.returncode, done.stderr[-3000:]
    assert [("from Kafka",), ("from a file",)] == table(place.database, "rows")
    logged = (place.root / "spark.log").read_text()
    assert "sasl.jaas.config = [hidden]" in logged
    assert "app-secret" not in done.stdout + done.stderr + logged


def test_java_reads_a_password_as_it_was_meant(spark: Any, require: Callable[[str], None]) -> None:
    require("kafka")
    jvm = spark._jvm
    password = "a\"b\\c\\n\nd\te;f=#/*${env:x}//'é€ 7\\101"  # noqa: S105 - the worst that a password may hold
    security = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": 'u"\\',
        "sasl.password": password,
    }
    told = Servers("a:1", security).for_spark()["kafka.sasl.jaas.config"]
    settings = jvm.java.util.HashMap()
    settings["sasl.jaas.config"] = jvm.org.apache.kafka.common.config.types.Password(told)
    context = jvm.org.apache.kafka.common.security.JaasContext.loadClientContext(settings)
    options = context.configurationEntries()[0].getOptions()
    assert {"username": 'u"\\', "password": password} == {name: options[name] for name in options}


def test_java_reads_our_certificates_and_spark_hides_the_key(
    spark: Any, tmp_path: Path, require: Callable[[str], None]
) -> None:
    """The key and the certificate come from files of PEM, as librdkafka has them."""
    require("kafka")
    jvm = spark._jvm
    files = pem_files(spark, tmp_path)
    options = Servers("a:1", {"security.protocol": "SSL", **files}).for_spark()
    settings = jvm.java.util.HashMap()
    for name, value in options.items():
        settings[name.removeprefix("kafka.")] = value
    engines = jvm.org.apache.kafka.common.security.ssl.DefaultSslEngineFactory()
    engines.configure(jvm.org.apache.kafka.clients.admin.AdminClientConfig(settings).values())
    assert engines.keystore().isKeyEntry("kafka")
    assert 1 == engines.truststore().size()
    frame = spark.readStream.format("kafka").options(**options).option("subscribe", "t").load()
    plan = frame._jdf.queryExecution().toString()
    key = Path(files["ssl.key.location"]).read_text().splitlines()[1]
    assert "kafka.ssl.keystore.key=*" in plan
    assert key in options["kafka.ssl.keystore.key"]
    assert key not in plan


def pem_files(spark: Any, folder: Path) -> dict[str, str]:
    """A new key, a certificate for it, and the same as the authority; made with what every Java brings."""
    jvm = spark._jvm
    store = folder / "store.p12"
    tool = [str(Path(java()).with_name("keytool")), "-genkeypair", "-keyalg", "RSA", "-alias", "k", "-dname", "CN=k"]
    tool += ["-keystore", str(store), "-storetype", "PKCS12", "-storepass", "changeit"]
    subprocess.run(tool, check=True, capture_output=True)
    opened = jvm.java.security.KeyStore.getInstance("PKCS12")
    word = spark.sparkContext._gateway.new_array(jvm.char, 8)
    for index, letter in enumerate("changeit"):
        word[index] = letter
    opened.load(jvm.java.io.FileInputStream(str(store)), word)
    wanted = jvm.java.lang.Class.forName("java.security.spec.PKCS8EncodedKeySpec")
    key = jvm.java.security.KeyFactory.getInstance("RSA").getKeySpec(opened.getKey("k", word), wanted).getEncoded()
    tool = [*tool[:1], "-exportcert", "-rfc", "-alias", "k", *tool[8:]]
    certificate = subprocess.run(tool, check=True, capture_output=True, text=True).stdout
    begin, end = (f"-----{word} PRIVATE KEY-----\n" for word in ("BEGIN", "END"))
    (folder / "key.pem").write_text(begin + base64.encodebytes(key).decode() + end)
    (folder / "certificate.pem").write_text(certificate)
    (folder / "ca.pem").write_text(certificate)
    return {f"ssl.{name}.location": str(folder / f"{name}.pem") for name in ("key", "certificate", "ca")}
