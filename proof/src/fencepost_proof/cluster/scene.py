"""One supervised job on a cluster, its input, its checkpoint on a store, and what is found in its sinks at the end.

Never reads results through fencepost: the checkers run by path, in processes of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from fencepost.errors import TRACE
from fencepost_proof.checkers import recount_tables
from fencepost_proof.cluster import job as job_file
from fencepost_proof.cluster.stores import Away, Place
from fencepost_proof.kill.scene import SceneFailed
from fencepost_proof.rig.jars import SPARK_KAFKA, fetch
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.rig.postgres import Postgres
from fencepost_proof.rig.standalone import Standalone
from fencepost_proof.workloads.contract import ROWS_PER_EPOCH
from fencepost_proof.workloads.kafka import KafkaWorkload

PATIENCE_S = 400
"""Of a loaded machine: a driver, its JVM and two executors start in 15 s where nothing else runs."""
BACKLOG = 4
"""So many epochs of input may wait."""
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.minTaskRuntime": "100ms",
}
SNAPSHOTS = {
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
    "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
}
"""Of the state: often, and from whichever executor has it."""
QUICK = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "600m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    # The checkers find in Spark's own log where each epoch ended.
    "spark.sql.streaming.minBatchesToRetain": "100000",
}


@dataclass
class ClusterScene:
    """One checkpoint, from the first start of its job to the count at the end."""

    folder: Path
    """Of the driver's host; hidden from the workers."""
    job: str
    """What it writes to: `kafka` or `postgres`."""
    place: Place
    standalone: Standalone
    broker: Broker
    postgres: Postgres
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    plain: bool = False
    """Is it the sabotaged twin?"""
    heap: bool = False
    """Is its state on the heap?"""
    workload: KafkaWorkload = field(init=False)
    supervisor: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _faults: int = field(default=0, init=False)
    _fed: bool = field(default=False, init=False)
    _feeder: threading.Thread | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Topics, a schema, and what the job is told."""
        for name in ("armed", "taken", "events", "home"):
            (self.folder / name).mkdir(parents=True)
        self.workload = KafkaWorkload(self.folder / "input", self.chance, broker=self.broker)
        with psycopg.connect(self.postgres.dsn) as connection:
            connection.execute(f"CREATE SCHEMA {self.schema}".encode())
        jars = [*fetch(SPARK_KAFKA), *self.place.jars]
        events = {"spark.eventLog.dir": (self.folder / "events").as_uri()}
        conf = {**self.standalone.settings, **self.place.settings, **QUICK, **SPECULATION, **SNAPSHOTS, **events}
        told = {
            "job": self.job,
            "plain": self.plain,
            "heap": self.heap,
            "checkpoint": self.checkpoint,
            "servers": self.broker.servers,
            "topics": self.workload.topics,
            "dsn": self.postgres.dsn,
            "place": self.schema,
            "conf": {**conf, "spark.jars": ",".join(map(str, jars))},
        }
        (self.folder / "told.json").write_text(json.dumps(told, indent=1))

    @property
    def schema(self) -> str:
        """In PostgreSQL."""
        return self.workload.topics.replace("-", "_")

    @property
    def checkpoint(self) -> str:
        """On the store."""
        return f"{self.place.url}/{self.workload.topics}"

    @property
    def log(self) -> Path:
        """What supervisor and drivers said."""
        return self.folder / "job.log"

    # --- the job

    @contextmanager
    def running(self) -> Iterator[None]:
        """The job under its supervisor, with input that keeps arriving, until the block is over."""
        command = [sys.executable, "-m", "fencepost", "run", "--master", self.standalone.url, "--heartbeat", "120s"]
        command += ["--restart", "fixed-delay:attempts=100000,delay=500ms", job_file.__file__, str(self.folder)]
        environment = {**os.environ, **self.place.environment, "FENCEPOST_HOME": str(self.folder / "home"), TRACE: "1"}
        with self.log.open("ab") as out:
            self.supervisor = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        self._feeder = threading.Thread(target=self._feed, name="feeder")
        self._feeder.start()
        try:
            yield
        finally:
            self._stop_feeding()
            self._end()

    def driver(self) -> int:
        """The process of the newest driver; 0 before there is one."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / "driver.pid").read_text())
        return 0

    def arm(self, fault: str) -> Path:
        """The driver that runs, or the next that starts, takes it; the file is there then."""
        self._faults += 1
        name = f"{self._faults:04}.fault"
        temp = self.folder / "armed" / f"{name}.tmp"
        temp.write_text(fault)
        temp.rename(temp.with_suffix(""))
        return self.folder / "taken" / name

    def passed(self) -> Counter[str]:
        """How often each crash point was passed in all drivers' lives."""
        logs = self.folder.glob("passed-*")
        return Counter(point for log in logs for point in log.read_text().splitlines())

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait for something that the supervised job does."""
        if not self.seen(true, PATIENCE_S):
            raise SceneFailed(f"It took more than {PATIENCE_S} s until {what}; see {self.log}")

    def seen(self, true: Callable[[], bool], seconds: float) -> bool:
        """Does the supervised job do it within some seconds?"""
        deadline = time.monotonic() + seconds
        while not true():
            self._check_supervised()
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        return True

    def finish(self) -> None:
        """No more input, all that came is processed, and the job stops in order."""
        self._stop_feeding()  # a row that comes after this look would be no loss, and be called one
        wanted = self.workload.rows
        self.until(lambda: self.rows_done() >= wanted, "all input was processed")
        supervisor = self.supervisor
        assert supervisor is not None
        supervisor.terminate()
        try:
            code = supervisor.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise SceneFailed(f"The supervisor did not stop; see {self.log}") from None
        if code != 0:
            raise SceneFailed(f"The job's end in peace had exit code {code}; see {self.log}")

    def _check_supervised(self) -> None:
        assert self.supervisor is not None
        if (code := self.supervisor.poll()) is not None:
            raise SceneFailed(f"The supervisor ended with exit code {code}; see {self.log}")

    def _end(self) -> None:
        """Whatever is left of supervisor and driver."""
        supervisor = self.supervisor
        assert supervisor is not None
        if supervisor.poll() is None:
            supervisor.kill()
            supervisor.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.driver(), signal.SIGKILL)

    # --- progress, by Spark's own log

    def newest(self, log: str) -> int:
        """The highest number in `offsets` or `commits`; -1 if there is none, or if the store is away."""
        try:
            names = self.place.names(f"{self.workload.topics}/{log}")
        except Away:
            return -1
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def progress(self, after: int) -> None:
        """Wait for the end of an epoch that had not begun then."""
        self.until(lambda: self.newest("commits") > after, f"epoch {after + 1} was done")

    def rows_done(self) -> int:
        """By the newest epoch whose end is noted, and the positions in its entry."""
        epoch = self.newest("commits")
        if epoch < 0:
            return 0
        with contextlib.suppress(Away, FileNotFoundError, json.JSONDecodeError, IndexError):
            entry = self.place.read(f"{self.workload.topics}/offsets/{epoch}").decode()
            ends: dict[str, int] = json.loads(entry.splitlines()[-1])[f"{self.workload.topics}-in"]
            return sum(ends.values())
        return 0

    def _stop_feeding(self) -> None:
        self._fed = True
        if self._feeder is not None:
            self._feeder.join()

    def _feed(self) -> None:
        """An epoch's rows at a time, as long as not too many wait."""
        while not self._fed:
            if self.workload.rows < (max(0, self.newest("commits")) + BACKLOG) * ROWS_PER_EPOCH:
                self.workload.feed(1)
            time.sleep(1)

    # --- what is found

    def speculated(self) -> int:
        """How many tasks Spark started a second time, because the first was slow."""
        events = (self.folder / "events").rglob("*")
        return sum(
            line.startswith('{"Event":"SparkListenerTaskStart"') and '"Speculative":true' in line
            for file in events
            if file.is_file()
            for line in file.read_text(errors="replace").splitlines()
        )

    @contextmanager
    def watched(self) -> Iterator[Path]:
        """A reader of the tables who looks all the time; every look is noted in this file."""
        looks = self.folder / "looks"
        looks.touch()
        if self.job != "postgres":
            yield looks
            return
        command = [sys.executable, "-I", recount_tables.__file__, "--watch", self._tables, str(looks)]
        with subprocess.Popen(command) as reader:
            try:
                yield looks
            finally:
                reader.terminate()

    def verdict(self) -> dict[str, dict[str, int]]:
        """What the independent checker finds; Spark's own log is copied here for it, by the store's own client."""
        log = self.folder / "spark-log"
        for name in ("offsets", "commits"):
            self.place.copy(f"{self.workload.topics}/{name}", log / name)
        servers, topics = self.broker.servers, self.workload.topics
        if self.job == "kafka":
            checker = Path(recount_tables.__file__).with_name(self.workload.checker)
            arguments = [servers, topics, str(log / "offsets"), "counts", "lines"]
        else:
            checker = Path(recount_tables.__file__)
            arguments = [servers, topics, str(log / "offsets"), self._tables, str(self.folder / "looks")]
        if self.plain:
            arguments.append("lines") if self.job == "postgres" else arguments.remove("counts")
        found = subprocess.run(
            [sys.executable, "-I", str(checker), *arguments], check=False, capture_output=True, text=True
        )
        if found.returncode not in (0, 1) or not found.stdout:
            raise SceneFailed(f"The checker failed: {found.stderr}")
        verdicts: dict[str, dict[str, int]] = json.loads(found.stdout)["places"]
        return verdicts

    @property
    def _tables(self) -> str:
        return f"{self.postgres.dsn} schema={self.schema}"
