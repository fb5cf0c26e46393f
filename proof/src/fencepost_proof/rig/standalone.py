"""A real Spark cluster on this machine: a standalone master and its workers, each a process of its own.

Never `local-cluster`, where the driver is master and workers too, and dies with them. With `apart` each worker is on
"another host": a name, an address on loopback and folders of its own, so that a path of the driver's is not there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fencepost_proof.rig.jars import RigFailed, java, pyspark_home
from fencepost_proof.rig.process import HOST, LOGGING
from fencepost_proof.rig.server import Server, Several, run, send


@dataclass
class Standalone(Several):
    """A master and workers of one core each. A driver takes `settings`.

    Executors are the workers' children, not ours: a killed worker's end by themselves, a moment later.
    """

    folder: Path
    count: int = field(default=2, kw_only=True)
    """How many workers."""
    apart: bool = field(default=False, kw_only=True)
    """Whether each worker, and so each executor, has a host name and a view of the folders of its own."""
    hides: Sequence[Path | str] = field(default=(), kw_only=True)
    """Folders that are empty there."""
    executor_mb: int = field(default=500, kw_only=True)
    master: Master = field(init=False)
    workers: tuple[Worker, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is started yet."""
        if self.hides and not self.apart:
            raise ValueError("Folders are hidden from workers that are apart; these are not.")
        if any(self.folder.resolve().is_relative_to(Path(hidden).resolve()) for hidden in self.hides):
            raise ValueError("The folder of the cluster itself cannot be hidden from its workers.")
        self.master = Master(self.folder / "master")
        self.workers = tuple(
            Worker(
                self.folder / f"worker-{number}",
                master=self.master,
                memory_mb=self.executor_mb,
                host=f"127.0.0.{number + 2}" if self.apart else HOST,
                wrapper=tuple(apart(f"worker-{number}.test", self.hides)) if self.apart else (),
            )
            for number in range(self.count)
        )

    @property
    def servers(self) -> tuple[Server, ...]:
        """The master first."""
        return (self.master, *self.workers)

    @property
    def url(self) -> str:
        """What `spark.master` is."""
        return self.master.url

    @property
    def settings(self) -> dict[str, str]:
        """What a Spark session is given to run here: one executor on each worker."""
        return {
            "spark.master": self.url,
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.executor.memory": f"{self.executor_mb}m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }

    def executors(self) -> list[int]:
        """The processes of all executors."""
        return [pid for worker in self.workers if worker.runs for pid in worker.executors()]

    def python_workers(self) -> list[int]:
        """The Python processes of all executors: the daemons first, then what they forked for tasks."""
        return [pid for pid in descendants(self.executors()) if b"pyspark" in command_line(pid)]

    def kill(self) -> None:
        """End all of it, with what the workers started: a frozen executor would not see that its worker has gone."""
        started = descendants(worker.pid for worker in self.workers if worker.runs)
        super().kill()
        for pid in started:
            send(signal.SIGKILL, pid)


@dataclass
class Daemon(Server):
    """What master and worker share."""

    host: str = field(default=HOST, kw_only=True)
    """Its address on loopback. Spark runs a slow task a second time on another host only, and tells them by this."""

    ports_needed: ClassVar[int] = 2

    @property
    def web(self) -> str:
        """Its page."""
        return f"http://{self.host}:{self._ports[1]}"

    def _initialise(self, data: Path) -> None:
        """Empty, at first."""

    def _environment(self) -> Mapping[str, str]:
        return {
            "SPARK_HOME": str(pyspark_home()),
            "SPARK_LOCAL_IP": self.host,
            "SPARK_SCALA_VERSION": "2.13",  # Spark's own scripts set it, and a worker starts no executor without it
            # Executors take the `python3` of their worker unless the driver has a PYSPARK_PYTHON.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def _java(self) -> list[str]:
        conf = self.folder.resolve() / "conf"
        conf.mkdir(exist_ok=True)
        (conf / "log4j2.properties").write_text(LOGGING)
        return [java(), *MEMORY, "-cp", f"{conf}:{pyspark_home() / 'jars' / '*'}"]

    def _address(self) -> list[str]:
        return ["--host", self.host, "--port", str(self.port), "--webui-port", str(self._ports[1])]


@dataclass
class Master(Daemon):
    """Knows workers and applications, and still does after a kill."""

    @property
    def url(self) -> str:
        """Where drivers and workers connect."""
        return f"spark://{HOST}:{self.port}"

    def state(self) -> dict[str, Any]:
        """What it knows; nothing while it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.web}/json/", timeout=2) as answer:  # noqa: S310 - loopback
                return dict(json.load(answer))
        except (OSError, ValueError):
            return {}

    def knows(self, port: int) -> bool:
        """Is a worker with this port alive, as far as it knows?"""
        known = self.state().get("workers", [])
        return any(worker["port"] == port and worker["state"] == "ALIVE" for worker in known)

    def _answers(self) -> bool:
        return self.state().get("status") == "ALIVE"

    def _command(self) -> Sequence[str | Path]:
        properties = {
            "spark.deploy.recoveryMode": "FILESYSTEM",
            "spark.deploy.recoveryDirectory": self.data,
            "spark.master.rest.enabled": "false",  # it would take port 6066, of which there is one
            "spark.deploy.maxExecutorRetries": 1000,  # after ten dead executors it would give up the application
        }
        options = [f"-D{key}={value}" for key, value in properties.items()]
        return [*self._java(), *options, "org.apache.spark.deploy.master.Master", *self._address()]


@dataclass
class Worker(Daemon):
    """Starts executors, and ends them. `kill` hits the daemon alone."""

    master: Master = field(kw_only=True, repr=False)
    memory_mb: int = field(kw_only=True)
    wrapper: tuple[str, ...] = field(default=(), kw_only=True, repr=False)
    """Put before its command: something that becomes the command in the end, so that the pid stays."""

    def executors(self) -> list[int]:
        """The processes of its executors."""
        return [pid for pid in children(self.pid) if b"CoarseGrainedExecutorBackend" in command_line(pid)]

    def _environment(self) -> Mapping[str, str]:
        return {**super()._environment(), "SPARK_LOCAL_DIRS": str(self.data), "SPARK_WORKER_DIR": str(self.data)}

    def _answers(self) -> bool:
        return self.master.knows(self.port) if self.master.runs else super()._answers()

    def _command(self) -> Sequence[str | Path]:
        offers = ["--cores", "1", "--memory", f"{self.memory_mb}m", "--work-dir", str(self.data)]
        program = [*self._java(), "org.apache.spark.deploy.worker.Worker"]
        return [*self.wrapper, *program, *self._address(), *offers, self.master.url]


def apart(name: str, hides: Sequence[Path | str] = ()) -> list[str]:
    """What to put before a command to run it as on another host; it is no process of its own, so the pid stays.

    Only names and folders are apart: processes are seen, and loopback is the same.
    """
    unshare = shutil.which("unshare")
    if unshare is None:
        raise RigFailed("There is no unshare, which puts workers on hosts of their own: it comes with util-linux.")
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    hidden = [str(Path(folder).resolve()) for folder in hides]
    namespaces = ["--mount", "--uts", "--propagation", "private"]
    return [unshare, *as_root, *namespaces, "--", "sh", "-euc", BECOME, name, str(len(hidden)), *hidden]


BECOME = """\
hostname "$0"
sed "1i 127.0.0.1 $0" /etc/hosts >hosts
mount --bind hosts /etc/hosts
count=$1
shift
while [ "$count" -gt 0 ]; do
  mount -t tmpfs hidden "$1"
  count=$((count - 1))
  shift
done
exec "$@"
"""
"""A host knows its own name: Java asks for it. What is hidden comes last, as it may hide the folder we are in."""


def can_be_apart() -> None:
    """`RigFailed` if this machine does not let us."""
    with tempfile.TemporaryDirectory(prefix="fencepost-") as folder:
        try:
            run([*apart("apart.test", [folder]), "true"], folder=folder)
        except RigFailed as error:
            raise RigFailed(
                "A worker could not be put on a host of its own: run as root, or let the kernel give namespaces to "
                f"other users (sysctl kernel.unprivileged_userns_clone=1). {error}"
            ) from None


def children(*parents: int) -> list[int]:
    """The processes that these started, and that live."""
    return [int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and parent(int(pid)) in parents]


def descendants(ancestors: Iterable[int]) -> list[int]:
    """Theirs, and those of theirs: nearest first."""
    found: list[int] = []
    generation = list(ancestors)
    while generation := children(*generation):
        found += generation
    return found


def parent(pid: int) -> int:
    """Who started it; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def command_line(pid: int) -> bytes:
    """What it was started with; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


MEMORY = (
    *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"),
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.nio", "sun.nio.ch")),
)
