"""One real Kafka broker as a child process: started, killed, frozen and started again on the same port and data.

Never listens on anything but loopback, and never outlives the process that started it.

    python -m fencepost.prove.rig.kafka [--port 9092]
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fencepost.prove.rig.jars import KAFKA_BROKER, RigFailed, fetch, is_here, java
from fencepost.prove.rig.process import HOST, LOGGING, PATIENCE_S, free_ports, is_free, keep, until
from fencepost.prove.rig.server import PortTaken

ATTEMPTS = 5
QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Ready sooner, slower in the long run: right for tests, not for a bench."""


@dataclass
class Broker:
    """A single node that is broker and controller. With `users` it has a second listener, for SASL PLAIN.

    Clients of the first listener may do everything, as may the users in `trusted`; the others need ACLs.
    """

    folder: Path
    transaction_version: int = 2
    reaper_ms: int = 10_000
    """How often the broker looks for transactions that timed out."""
    settings: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    trusted: tuple[str, ...] = ("app",)
    port: int = 0
    """0: any that is free. Once started, it stays."""
    heap_mb: int = 256
    java_options: tuple[str, ...] = QUICK
    shared_classes: bool = True
    _sasl_port: int = field(default=0, init=False)
    _controller_port: int = field(default=0, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _keeper: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)

    @property
    def servers(self) -> str:
        """The bootstrap address."""
        assert self.port, "not started yet"
        return f"{HOST}:{self.port}"

    @property
    def sasl_servers(self) -> str:
        """The bootstrap address where one has to log in."""
        assert self.users, "a broker without users"
        assert self._sasl_port, "not started yet"
        return f"{HOST}:{self._sasl_port}"

    @property
    def pid(self) -> int:
        """The broker's process."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def log(self) -> Path:
        """Warnings of all its starts."""
        return self.folder / "broker.log"

    def start(self) -> Self:
        """Start and wait until it answers. The first time its data is formatted and its ports are chosen."""
        if self._process is not None:
            assert self._process.poll() is not None, "already started"
            self.kill()  # it died by another hand: only its keeper is left to end
        self.folder.mkdir(parents=True, exist_ok=True)
        chosen = (self.port, self._sasl_port, self._controller_port)
        for attempt in range(1, ATTEMPTS + 1):
            self.port, self._sasl_port, self._controller_port = (
                old or new for old, new in zip(chosen, free_ports(3), strict=True)
            )
            try:
                self._start_once()
            except PortTaken:
                if attempt == ATTEMPTS:
                    raise
                time.sleep(0.2)
            else:
                break
        return self

    def kill(self) -> None:
        """End it like a power switch, but for the page cache."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order; nothing happens if it does not run."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)
        until(lambda: self._state() == "T", "the broker froze")

    def resume(self) -> None:
        """Let a frozen broker go on."""
        os.kill(self.pid, signal.SIGCONT)

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

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Kill it: whoever uses it so has no more need of its data."""
        self.kill()

    def _write_settings(self) -> None:
        """The two files that the broker reads."""
        wanted = SETTINGS | {
            "controller.quorum.voters": f"1@{HOST}:{self._controller_port}",
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "log.dirs": str(self.folder.absolute() / "data"),
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(self.reaper_ms),
        }
        if self.users:
            wanted["listeners"] += f",SASL_PLAINTEXT://{self.sasl_servers}"
            wanted["advertised.listeners"] += f",SASL_PLAINTEXT://{self.sasl_servers}"
            wanted |= login(self.users, self.trusted)
        wanted |= self.settings
        text = "".join(f"{key}={value}\n" for key, value in wanted.items())
        (self.folder / "server.properties").write_text(text)
        (self.folder / "log4j2.properties").write_text(LOGGING)

    def _format(self) -> None:
        """Write the identity of a new cluster."""
        identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [*self._java(), "kafka.tools.StorageTool", "format", f"--cluster-id={identity}"]
        command += ["--config", str(self.folder / "server.properties")]
        command += ["--feature", f"transaction.version={self.transaction_version}"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
        if done.returncode:
            raise RigFailed(f"Kafka's storage could not be formatted:\n{done.stdout}{done.stderr}")

    def _start_once(self) -> None:
        """One try with these ports."""
        if not is_free(self.port):
            raise PortTaken(f"Port {self.port} of {HOST} is taken: choose another.")
        self._write_settings()
        if not (self.folder / "data" / "meta.properties").exists():
            self._format()
        command = [*self._java(*self.java_options), f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"]
        command.insert(1, f"-Xmx{self.heap_mb}m")
        with self.log.open("ab") as out:
            seen = out.tell()
            self._process = subprocess.Popen(
                [*command, "kafka.Kafka", str(self.folder / "server.properties")],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # a Ctrl-C is for us, not for it
            )
        self._keeper = keep(self._process)
        try:
            until(self._answers, "the broker answered")
        except BaseException as error:
            self.kill()
            said = self.log.read_bytes()[seen:].decode(errors="replace")
            if "Address already in use" in said:
                raise PortTaken(f"Port {self.port} of {HOST} is taken: choose another.") from None
            if isinstance(error, RigFailed):
                raise RigFailed(f"{error} Its last words, in {self.log}:\n{said[-2000:]}") from None
            raise

    def _java(self, *options: str) -> list[str]:
        """Java with Kafka's jars, in an order that an archive of classes can rely on."""
        jars = fetch(KAFKA_BROKER)
        archive = class_archive() if self.shared_classes else None
        shared = [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if archive else []
        return [java(), *(options or QUICK), *shared, "-cp", ":".join(map(str, jars))]

    def _answers(self) -> bool:
        """Does it serve all of its topics? Fails if it died."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise RigFailed(f"The broker ended with code {self._process.returncode}.")
        try:
            socket.create_connection((HOST, self.port), timeout=1).close()
            admin = self.admin()
            listed = admin.list_topics(timeout=2)
        except (OSError, KafkaException):
            return False
        return bool(listed.brokers) and listed.topics.keys() == topics(admin).keys()

    def _state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def _end(self, by: signal.Signals) -> None:
        """Signal, and wait for the end of it and of its keeper."""
        if self._process is None:
            return
        self._process.send_signal(by)
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._keeper is not None:
            self._keeper.wait()
        self._process = self._keeper = None


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
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if not is_here(KAFKA_BROKER):
            print("Fetching Kafka's jars (44 MB, once) ...", file=sys.stderr)
        with (
            tempfile.TemporaryDirectory(prefix="fencepost-kafka-") as folder,
            Broker(Path(folder), port=port) as broker,
        ):
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
    except RigFailed as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
