"""One real Kafka broker as a child process: started, killed, frozen and started again on the same port and data.

Never listens on anything but loopback, and never outlives the process that started it.

    python -m fencepost_proof.rig.kafka [--port 9092]
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fencepost_proof.rig.jars import KAFKA_BROKER, RigFailed, fetch, is_here, java
from fencepost_proof.rig.process import HOST, LOGGING, PATIENCE_S, in_foreground, is_free, until
from fencepost_proof.rig.server import Server, run

QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Ready sooner, slower in the long run: right for tests, not for a bench."""


@dataclass
class Broker(Server):
    """A single node that is broker and controller. With `users` it has a second listener, for SASL PLAIN.

    Clients of the first listener may do everything, as may the users in `trusted`; the others need ACLs.
    """

    transaction_version: int = 2
    reaper_ms: int = 10_000
    """How often the broker looks for transactions that timed out."""
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    trusted: tuple[str, ...] = ("app",)
    heap_mb: int = 256
    java_options: tuple[str, ...] = QUICK
    shared_classes: bool = True

    ports_needed: ClassVar[int] = 3

    @property
    def servers(self) -> str:
        """The bootstrap address."""
        assert self.port, "not started yet"
        return f"{HOST}:{self.port}"

    @property
    def sasl_servers(self) -> str:
        """The bootstrap address where one has to log in."""
        assert self.users, "a broker without users"
        assert self._ports, "not started yet"
        return f"{HOST}:{self._ports[1]}"

    def wait(self) -> None:
        """Stay until it ends by itself, which it should not."""
        assert self._process is not None, "not started"
        code = self._process.wait()
        raise RigFailed(f"The broker ended with code {code}:\n{self.log.read_text()[-2000:]}")

    def admin(self) -> AdminClient:
        """A new client each time: an old one sleeps for a while after it lost its broker, and no thread is kept."""
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def create_topic(self, name: str, partitions: int = 4, **config: str | int) -> str:
        """Create a topic and wait for its leaders; `retention_ms=1` sets `retention.ms`."""
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        admin = self.admin()
        admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(PATIENCE_S)
        until(lambda: name in topics(admin), f"topic {name} was there")
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until it is gone."""
        admin = self.admin()
        admin.delete_topics([name])[name].result(PATIENCE_S)
        until(lambda: name not in admin.list_topics(timeout=PATIENCE_S).topics, f"topic {name} was gone")

    def _initialise(self, data: Path) -> None:
        """Write the identity of a new cluster; its ports are not part of it."""
        identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        settings = self._write_settings("format.properties", data, [1, 2, 3])
        command = [*self._java(), "kafka.tools.StorageTool", "format", f"--cluster-id={identity}"]
        run([*command, "--config", settings, "--feature", f"transaction.version={self.transaction_version}"])

    def _command(self) -> Sequence[str | Path]:
        settings = self._write_settings("server.properties", self.data, self._ports)
        logging = settings.with_name("log4j2.properties")
        logging.write_text(LOGGING)
        program, *options = self._java(*self.java_options)
        options = [f"-Xmx{self.heap_mb}m", *options, f"-Dlog4j2.configurationFile={logging}"]
        return [program, *options, "kafka.Kafka", settings]

    def _answers(self) -> bool:
        """Does it serve all of its topics?"""
        if not super()._answers():
            return False
        try:
            admin = self.admin()
            listed = admin.list_topics(timeout=2)
        except KafkaException:
            return False
        return bool(listed.brokers) and listed.topics.keys() == topics(admin).keys()

    def _write_settings(self, name: str, data: Path, ports: Sequence[int]) -> Path:
        port, sasl_port, controller_port = ports
        wanted = SETTINGS | {
            "controller.quorum.voters": f"1@{HOST}:{controller_port}",
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
            "log.dirs": str(data),
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(self.reaper_ms),
        }
        if self.users:
            wanted["listeners"] += f",SASL_PLAINTEXT://{HOST}:{sasl_port}"
            wanted["advertised.listeners"] += f",SASL_PLAINTEXT://{HOST}:{sasl_port}"
            wanted |= login(self.users, self.trusted)
        wanted |= self.settings
        file = self.folder.absolute() / name
        file.write_text("".join(f"{key}={value}\n" for key, value in wanted.items()))
        return file

    def _java(self, *options: str) -> list[str]:
        """Java with Kafka's jars, in an order that an archive of classes can rely on."""
        jars = fetch(KAFKA_BROKER)
        archive = class_archive() if self.shared_classes else None
        shared = [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if archive else []
        return [java(), *(options or QUICK), *shared, "-cp", ":".join(map(str, jars))]


SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
    "num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "2097152",  # its default alone is half of the heap
    "log.cleaner.threads": "1",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
    "broker.session.timeout.ms": "2000",  # a killed broker is let in again only when its old session has ended
    "broker.heartbeat.interval.ms": "400",
}
"""One node, little memory, no waiting."""


def login(users: Mapping[str, str], trusted: tuple[str, ...]) -> dict[str, str]:
    """Who may log in, and who may do everything then. The broker itself comes without a name."""
    for word in (*users.keys(), *users.values()):
        if not re.fullmatch(r"[\w-]+", word):
            raise ValueError("Users and passwords of the rig are letters, digits, _ and -.")
    known = " ".join(f'user_{name}="{secret}"' for name, secret in users.items())
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required {known};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(f"User:{name}" for name in ("ANONYMOUS", *trusted)),
    }


def class_archive() -> Path | None:
    """Classes as a broker loaded them, made once per Java: a start then takes less than half the time.

    An archive that does not fit is ignored by the JVM, so the worst is a slow start.
    """
    jars = fetch(KAFKA_BROKER)
    program = Path(java()).resolve()
    stat = program.stat()
    made = hashlib.sha256(f"{program} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:12]
    archive = jars[0].parent / f"classes-{made}.jsa"
    if not archive.exists():
        with tempfile.TemporaryDirectory(prefix=".classes-", dir=archive.parent.parent) as place:
            temp = Path(place) / "classes.jsa"
            options = (*QUICK, f"-XX:ArchiveClassesAtExit={temp}")
            broker = Broker(Path(place) / "broker", java_options=options, shared_classes=False)
            with broker:
                broker.create_topic("warm")
                broker.stop()
            if not temp.exists():
                return None
            temp.rename(archive)
    return archive


def topics(admin: AdminClient) -> dict[str, int]:
    """The topics of which each partition has a leader, with how many partitions that are."""
    return {
        name: len(topic.partitions)
        for name, topic in admin.list_topics(timeout=PATIENCE_S).topics.items()
        if topic.partitions and all(partition.leader >= 0 for partition in topic.partitions.values())
    }


COMMITTED = "-C isolation_level=read_committed -C auto_offset_reset=earliest"
"""From the beginning, and nothing of a transaction that did not commit."""


def main(arguments: list[str]) -> int:
    """A broker in the foreground, for a user's own trials."""
    parser = argparse.ArgumentParser(description="Run a local Kafka broker until Ctrl-C; its data goes with it.")
    parser.add_argument("--port", type=int, help="by default 9092, or any if that is taken")
    parser.add_argument("--topics", nargs="+", default=["lines", "counts"], help="made at once: lines counts")
    chosen = parser.parse_args(arguments)
    port = chosen.port if chosen.port is not None else 9092 * is_free(9092)

    def serve(folder: Path) -> None:
        if not is_here(KAFKA_BROKER):
            print("Fetching Kafka's jars (44 MB, once) ...", file=sys.stderr)
        with Broker(folder, port=port) as broker:
            for topic in chosen.topics:
                broker.create_topic(topic)
            client = f"{os.path.relpath(sys.executable)} -m kafka"
            print(
                f"Kafka 4.3.0 answers at {broker.servers}; Ctrl-C ends it and drops its data.\n"
                f"Topics: {', '.join(chosen.topics)}. In other terminals:\n"
                f"  {client}.producer -b {broker.servers} -t {chosen.topics[0]}\n"
                f"  {client}.consumer -b {broker.servers} -t {chosen.topics[-1]} {COMMITTED}",
                flush=True,
            )
            broker.wait()

    return in_foreground(serve)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
