"""The systems that are compared: what each needs, how it is started, and which of its processes a kill ends.

Each counts the records of its keys, Kafka to Kafka, in one process of this machine (and what that starts), with as many
threads, tasks or slots as there are cores.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from bench.peers.meter import MARK, Usage, until, with_children
from fencepost_proof.rig.jars import SPARK_KAFKA, JarSet, RigFailed, fetch, java
from fencepost_proof.rig.process import LOGGING

from fencepost.observe.heartbeat import beats
from fencepost.spark import class_archive, spark_session

ROOT = Path(__file__).parents[2]
JOBS = Path(__file__).parent / "jobs"
CORES = len(os.sched_getaffinity(0))

KAFKA_STREAMS = JarSet(
    "kafka-streams",
    ("org.apache.kafka:kafka-streams:4.3.0", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"),
    digest="13b61c1f02545499983052c44e0ca317411a0a129f5633a68e51d0eea4df9105",
)
FLINK = JarSet(
    "flink",
    (
        *(f"org.apache.flink:flink-{name}:2.3.0" for name in ("clients", "streaming-java")),
        "org.apache.flink:flink-connector-kafka:5.0.0-2.2",
        "org.apache.flink:flink-connector-base:2.3.0",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
    ),
    digest="437deaa96060a741e2b6331a2194578b3fe54b8a417706f9fa444ebe4fa54a7f",
)


class System(ABC):
    """A way to count. `set_up` once, then lives of it: launched, killed, launched again on what it left."""

    name: str
    about: str
    ours = False
    """Then the benchmark fails if its output is not exact; a peer's mismatch is only said."""
    kinds = frozenset({"start", "steady", "kill", "catch-up"})
    """What is measured of it."""
    environment: Mapping[str, str] = MappingProxyType({})

    def set_up(self, folder: Path) -> None:
        """Get what it needs; RigFailed with the reason if that cannot be."""

    @abstractmethod
    def command(self, servers: str, arriving: str, out: str, folder: Path) -> list[str]:
        """What to run; the folder is its own, and is kept between launches."""

    def kill(self, life: Life) -> None:
        """End it as a power switch would, and launch it again at once where nobody else does."""
        life.kill_all()
        life.launch()

    def wait_ready(self, life: Life) -> None:
        """Wait for what else has to be ready before a kill."""

    def is_prepared(self) -> bool:
        """Is everything there that the first life of a machine leaves for all later ones?"""
        return True


class Life:
    """The processes of one system over one folder and two topics."""

    def __init__(self, system: System, mark: str, places: tuple[str, str, str], folder: Path) -> None:
        folder.mkdir()
        self.system, self.folder, self.log = system, folder, folder / "log"
        self._command = system.command(*places, folder / "own")
        self._environment = {**os.environ, **system.environment, MARK: mark}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.usage = Usage(mark)

    def launch(self) -> None:
        with self.log.open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    self._command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    start_new_session=True,
                )
            )

    @property
    def lives(self) -> bool:
        return self._processes[-1].poll() is None

    def kill(self) -> None:
        self.system.kill(self)

    def kill_all(self) -> None:
        send_kill(self.usage.pids())
        for process in self._processes:
            process.wait()
        until(lambda: not self.usage.pids(), "all processes were gone", 30)

    def close(self) -> None:
        self.kill_all()
        self.usage.close()

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


def send_kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Fencepost(System):
    name, ours = "fencepost", True
    about = (
        "`fencepost run job.py`, defaults, with the class archive that an earlier start made; a killed driver is "
        "started again by the supervisor"
    )
    options: tuple[str, ...] = ()

    def set_up(self, folder: Path) -> None:
        self._jars = ",".join(map(str, fetch(SPARK_KAFKA)))
        self._cache = folder / "cache"
        self.environment = {class_archive.CACHE: str(self._cache)}

    def is_prepared(self) -> bool:
        return any(self._cache.glob("*.jsa"))

    def command(self, servers: str, arriving: str, out: str, folder: Path) -> list[str]:
        strategy = "fixed-delay:attempts=100,delay=0s"
        job = [str(JOBS / "fencepost_counts.py"), servers, arriving, out, str(folder), self._jars]
        return [sys.executable, "-m", "fencepost", "run", "--restart", strategy, *self.options, *job]

    def kill(self, life: Life) -> None:
        """The driver with its JVM; the supervisor and a standby are what is measured."""
        driver = next(beat for beat in beats(life.folder / "own") if beat.lives)
        send_kill(with_children(driver.pid))


class First(Fencepost):
    name = "fencepost, first launch"
    about = "the same where it never ran before: without a class archive"
    kinds = frozenset({"start"})

    def set_up(self, folder: Path) -> None:
        super().set_up(folder)
        self._empty = folder / "empty"

    def command(self, servers: str, arriving: str, out: str, folder: Path) -> list[str]:
        """An archive needs a minute, and the life ends before that; but nothing is left to chance."""
        shutil.rmtree(self._empty, ignore_errors=True)
        self.environment = {class_archive.CACHE: str(self._empty)}
        return super().command(servers, arriving, out, folder)

    def is_prepared(self) -> bool:
        return True


class Standby(Fencepost):
    name = "fencepost --standby"
    kinds = frozenset({"kill"})
    about = "the same with a second driver that is warm; killed 5 s after it said so"
    options = ("--standby",)

    def wait_ready(self, life: Life) -> None:
        until(lambda: "is warm" in life.log.read_text(errors="replace"), "the standby was warm")
        time.sleep(5)


class Spark(System):
    name = "plain Spark"
    about = (
        "Spark's own Kafka sink, at least once, with the state store, its formats, the `file:` class and the shuffle "
        "partitions that fencepost sets; started again at once after a kill"
    )

    def set_up(self, folder: Path) -> None:
        session = {
            **spark_session.LOCAL,
            "spark.jars": ",".join(map(str, fetch(SPARK_KAFKA))),
            "spark.driver.extraClassPath": str(spark_session.JAR),
            "spark.sql.shuffle.partitions": str(CORES),
            "spark.ui.showConsoleProgress": "false",
        }
        files = {**spark_session.CHECKPOINT_FILES, **spark_session.STATE_FILES}
        self._settings = json.dumps([session, {**spark_session.FORMATS, **files}])

    def command(self, servers: str, arriving: str, out: str, folder: Path) -> list[str]:
        return [sys.executable, str(JOBS / "spark_counts.py"), servers, arriving, out, str(folder), self._settings]


class Java(System):
    """A class of ours beside the system's jars."""

    jars: JarSet
    job: str
    options: tuple[str, ...] = ()

    def set_up(self, folder: Path) -> None:
        classes = folder / self.jars.name
        classes.mkdir()
        (classes / "log4j2.properties").write_text(LOGGING)
        jars = ":".join(map(str, fetch(self.jars)))
        command = [compiler(), "--release", "17", "-cp", jars, "-d", str(classes), str(JOBS / f"{self.job}.java")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RigFailed(f"{self.job}.java was not compiled:\n{done.stdout}{done.stderr}")
        self._java = [java(), *self.options, "-cp", f"{classes}:{jars}", self.job]

    def command(self, servers: str, arriving: str, out: str, folder: Path) -> list[str]:
        return [*self._java, servers, arriving, out, str(folder), str(CORES)]


def compiler() -> str:
    """The compiler beside the Java that runs; as root it is installed."""
    for attempt in range(2):
        found = shutil.which("javac", path=str(Path(java()).parent)) or shutil.which("javac")
        if found is not None:
            return found
        if attempt == 0:
            subprocess.run([str(ROOT / "scripts" / "setup"), "jdk"], check=False)
    raise RigFailed(
        "There is no javac, which Kafka Streams and Flink need here: apt-get install openjdk-17-jdk-headless (a JRE is "
        "not enough). Without them: --systems fencepost first spark standby."
    )


class Streams(Java):
    name, jars, job = "Kafka Streams", KAFKA_STREAMS, "StreamsCounts"
    about = "4.3.0, `exactly_once_v2`, `commit.interval.ms=100`, static membership; started again at once after a kill"


class Flink(Java):
    name, jars, job = "Flink", FLINK, "FlinkCounts"
    about = (
        "2.3.0 in Java in one process, a checkpoint every 0.1 s, state on the heap, KafkaSink (5.0.0-2.2) exactly once "
        "with pooled transactions; started again at once from its newest checkpoint after a kill"
    )
    options = tuple(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.lang", "java.util", "java.util.concurrent", "java.nio")
    )


SYSTEMS: dict[str, System] = {
    "fencepost": Fencepost(),
    "first": First(),
    "spark": Spark(),
    "streams": Streams(),
    "flink": Flink(),
    "standby": Standby(),
}
"""By the name on the command line."""
