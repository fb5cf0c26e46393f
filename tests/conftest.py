"""What every test may rely on. Never hides a test that could not run: on the build server that is a failure."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import classes
import pytest
from fencepost_proof.rig.cassandra import Cassandra
from fencepost_proof.rig.debs import MARIADB, MYSQL, PGBOUNCER, PROMETHEUS, REDIS, unpack
from fencepost_proof.rig.hdfs import Hdfs, unpacked
from fencepost_proof.rig.jars import CASSANDRA, KAFKA_BROKER, S3_SERVER, S3A, RigFailed, fetch, java
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.rig.mariadb import MariaDB, MySQL
from fencepost_proof.rig.postgres import Postgres, binaries
from fencepost_proof.rig.redis import Redis
from fencepost_proof.rig.s3 import S3
from fencepost_proof.rig.standalone import Standalone, can_be_apart
from groups import SERVERS, Groups, note, turn
from releases import SPARK
from servers import Answer, Owner, asked_of

os.environ["FENCEPOST_HOME"] = tempfile.mkdtemp(prefix="fencepost-home-")
"""The jobs of tests, and of processes that they start, are noted there and nowhere else."""
os.environ["FENCEPOST_CACHE"] = ""
"""No class archives: making one takes longer than a test."""

SERVICES: dict[str, Callable[[], object]] = {
    "java": java,
    "javac": lambda: _program("javac", _java_path()),
    "strace": lambda: _program("strace"),
    "kafka": lambda: fetch(KAFKA_BROKER),
    "postgres": binaries,
    "pgbouncer": lambda: unpack(PGBOUNCER),
    "mariadb": lambda: unpack(MARIADB),
    "mysql": lambda: unpack(MYSQL),
    "redis": lambda: unpack(REDIS),
    "prometheus": lambda: unpack(PROMETHEUS),
    "cassandra": lambda: (java(), fetch(CASSANDRA)),
    "hdfs": lambda: (java(), unpacked()),
    "s3": lambda: (java(), fetch(S3_SERVER), fetch(S3A)),
    "standalone": lambda: (java(), can_be_apart()),
}
"""What a test may need beside Python, and how to get it: `RigFailed` says why it could not be had."""

OPTIONAL = {"mysql"}
"""Of Debian's unstable, which may be out of order for days: not our failure, not even on the build server."""

KAFKA_USERS = {"app": "app-secret", "weak": "weak-secret"}
"""May log in to the shared broker: app may do everything, weak nothing until it is given ACLs."""

ANSWER = pytest.StashKey[Answer]()
OWNER = pytest.StashKey[Owner]()
FAILED = pytest.StashKey[bool]()
GROUPS = "groups.json"
MEMORY = Path("/dev/shm")


def pytest_configure(config: pytest.Config) -> None:
    """Own the servers, or know where their owner is; the JVMs of jobs share their classes."""
    if config.pluginmanager.has_plugin("cacheprovider") and classes.SUBMIT_OPTIONS not in os.environ:
        os.environ.update(classes.options(config.cache.mkdir("classes")))
    if address := getattr(config, "workerinput", {}).get("owner"):
        config.stash[ANSWER] = asked_of(address)
    else:
        config.stash[OWNER] = Owner(_why_not, _servers(config))
        config.stash[ANSWER] = config.stash[OWNER].answer


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a new worker where the owner of the servers is, and which folder all workers share."""
    node.workerinput["owner"] = node.config.stash[OWNER].address
    node.workerinput["folder"] = str(_base(node.config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups | None:
    """Groups of ours, with `--dist loadgroup`."""
    return Groups(config, log, _base(config) / GROUPS) if config.getvalue("dist") == "loadgroup" else None


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers, also after a Ctrl-C."""
    if OWNER in config.stash:
        config.stash[OWNER].close()


def _servers(config: pytest.Config) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    """How each that workers share is started, with its files beneath the folder of this run."""

    def folder(name: str) -> Path:
        return _base(config) / "servers" / name

    return {
        "kafka": lambda: Broker(folder("kafka"), reaper_ms=500, users=KAFKA_USERS),
        "postgres": lambda: Postgres(folder("postgres")),
        "mariadb": lambda: MariaDB(folder("mariadb")),
        "mysql": lambda: MySQL(folder("mysql")),
        "cassandra": lambda: Cassandra(folder("cassandra")),
        "hdfs": lambda: Hdfs(folder("hdfs")),
        "s3": lambda: S3(folder("s3")),
    }


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need Spark or a server, by their fixtures, so that they can be chosen by it.

    On an older Spark leave out those about what it refuses; `make matrix` runs on each.
    """
    for item in items:
        for mark in item.iter_markers("since"):
            if SPARK < mark.args:
                why = (
                    f"Spark {SPARK[0]}.{SPARK[1]} refuses it (tests/spark/test_releases.py), or has nothing of the kind"
                )
                item.add_marker(pytest.mark.skip(why))
        fixtures = getattr(item, "fixturenames", ())
        if not SERVERS.isdisjoint(fixtures):
            item.add_marker(pytest.mark.server)
        if "spark" in fixtures:
            item.add_marker(pytest.mark.spark)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> Iterator[None]:
    """Say which tests belong together, before the worker says which it has."""
    if folder := _shared_folder(session.config):
        note(session.items, folder / GROUPS)
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Let a test that measures time run when no other does."""
    if folder := _shared_folder(item.config):
        with turn(folder / "turns", alone=item.get_closest_marker("serial") is not None):
            return (yield)
    return (yield)


def _shared_folder(config: pytest.Config) -> Path | None:
    """In a worker: the folder of all."""
    folder = getattr(config, "workerinput", {}).get("folder")
    return Path(folder) if folder else None


def _base(config: pytest.Config) -> Path:
    """The folder of this run; those of the workers are in it."""
    return config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for a whole run, for things that are dear to make."""
    return tmp_path_factory.mktemp("fencepost")


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The folder of a test, in memory if it is marked so; what a failed one left is kept on the disk."""
    if not request.node.get_closest_marker("in_memory") or not _has_room(MEMORY):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="fencepost-", dir=MEMORY, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
        if request.node.stash.get(FAILED, False):
            shutil.copytree(folder, tmp_path, dirs_exist_ok=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    """Remember whether it failed."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


def _has_room(memory: Path) -> bool:
    return memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30


@pytest.fixture(scope="session", autouse=True)
def _jobs_are_noted_here(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Not in the home of whoever runs the tests."""
    os.environ["FENCEPOST_HOME"] = str(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def answer(request: pytest.FixtureRequest) -> Answer:
    """Asks the owner of all servers, be it this process or the one that started this worker."""
    return request.config.stash[ANSWER]


@pytest.fixture(scope="session")
def require(answer: Answer) -> Callable[[str], None]:
    """`require("java")`: skip without it, or fail where CI is set, so that no test is silently left out."""

    def go_on_only_with(service: str) -> None:
        why = answer("why_not", service)
        if why is None:
            return
        if os.environ.get("CI") and service not in OPTIONAL:
            pytest.fail(f"{service} is missing, and CI runs every test: {why}", pytrace=False)
        pytest.skip(f"{service} is missing: {why}")

    return go_on_only_with


@pytest.fixture(scope="session")
def shared(answer: Answer, require: Callable[[str], None]) -> Callable[[str], Any]:
    """`shared("kafka")`: the one server of this kind for a whole run. Who kills or freezes one starts another."""

    def get(service: str) -> Any:
        require(service)
        return answer("server", service)

    return get


@pytest.fixture(scope="session")
def broker(shared: Callable[[str], Broker]) -> Broker:
    """A Kafka broker."""
    return shared("kafka")


@pytest.fixture
def topic(broker: Broker) -> str:
    """A new topic with three partitions."""
    return broker.create_topic(f"topic-{uuid.uuid4().hex[:8]}", partitions=3)


@pytest.fixture(scope="session")
def postgres(shared: Callable[[str], Postgres]) -> Postgres:
    """A PostgreSQL server with a database `test`."""
    return shared("postgres")


@pytest.fixture(scope="session")
def mariadb(shared: Callable[[str], MariaDB]) -> MariaDB:
    """The same with MariaDB: user, password and database are `test`."""
    return shared("mariadb")


@pytest.fixture(scope="session")
def mysql(shared: Callable[[str], MySQL]) -> MySQL:
    """The same with MySQL."""
    return shared("mysql")


@pytest.fixture(scope="session")
def redis_server(root: Path, require: Callable[[str], None]) -> Iterator[Redis]:
    """A Redis of this worker's own: it has one space of keys, which tests empty, and starts in no time."""
    require("redis")
    with Redis(root / "redis") as made:
        yield made


@pytest.fixture(scope="session")
def cassandra(shared: Callable[[str], Cassandra]) -> Cassandra:
    """Cassandra, which takes some ten seconds to start. Tests freeze it, so all of its tests are one group."""
    return shared("cassandra")


@pytest.fixture(scope="session")
def hdfs(shared: Callable[[str], Hdfs]) -> Hdfs:
    """HDFS."""
    return shared("hdfs")


@pytest.fixture(scope="session")
def s3(shared: Callable[[str], S3]) -> S3:
    """S3, which has no bucket yet."""
    return shared("s3")


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory, require: Callable[[str], None]) -> Iterator[Standalone]:
    """A Spark cluster of two workers, from which the folders of all tests are hidden, as those of another host are.

    Tests kill parts of it, so it is not shared: all of its tests are one group.
    """
    require("standalone")
    hides = [tmp_path_factory.getbasetemp()]
    with (
        tempfile.TemporaryDirectory(prefix="fencepost-cluster-", ignore_cleanup_errors=True) as folder,
        Standalone(Path(folder), apart=True, hides=hides) as made,
    ):
        yield made


@pytest.fixture(autouse=True)
def _needs_java_for_spark(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("spark"):
        request.getfixturevalue("require")("java")


def _why_not(service: str) -> str | None:
    """Nothing, if it is here or could be fetched."""
    try:
        SERVICES[service]()
    except RigFailed as error:
        return str(error)
    return None


def _program(name: str, path: str | None = None) -> str:
    found = shutil.which(name, path=path)
    if found is None:
        raise RigFailed(f"There is no {name} on the PATH.")
    return found


def _java_path() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin" if home else None
