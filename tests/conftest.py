"""What every test may rely on. Never hides a test that could not run: on the build server that is a failure."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from fencepost.prove.rig.cassandra import Cassandra
from fencepost.prove.rig.debs import MARIADB, MYSQL, REDIS, unpack
from fencepost.prove.rig.hdfs import Hdfs, unpacked
from fencepost.prove.rig.jars import CASSANDRA, KAFKA_BROKER, S3_SERVER, S3A, RigFailed, fetch, java
from fencepost.prove.rig.kafka import Broker
from fencepost.prove.rig.mariadb import MariaDB, MySQL
from fencepost.prove.rig.postgres import Postgres, binaries
from fencepost.prove.rig.redis import Redis
from fencepost.prove.rig.s3 import S3
from fencepost.prove.rig.standalone import Standalone, can_be_apart

os.environ["FENCEPOST_HOME"] = tempfile.mkdtemp(prefix="fencepost-home-")
"""The jobs of tests, and of processes that they start, are noted there and nowhere else."""

SERVICES: dict[str, Callable[[], object]] = {
    "java": java,
    "javac": lambda: _program("javac", _java_path()),
    "strace": lambda: _program("strace"),
    "kafka": lambda: fetch(KAFKA_BROKER),
    "postgres": binaries,
    "mariadb": lambda: unpack(MARIADB),
    "mysql": lambda: unpack(MYSQL),
    "redis": lambda: unpack(REDIS),
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


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for a whole run, for things that are dear to make."""
    return tmp_path_factory.mktemp("fencepost")


@pytest.fixture(scope="session", autouse=True)
def _jobs_are_noted_here(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Not in the home of whoever runs the tests."""
    os.environ["FENCEPOST_HOME"] = str(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def require() -> Callable[[str], None]:
    """`require("java")`: skip without it, or fail where CI is set, so that no test is silently left out."""
    return require_service


def require_service(service: str) -> None:
    """Go on only if a service is there."""
    why = _why_not(service)
    if why is None:
        return
    if os.environ.get("CI") and service not in OPTIONAL:
        pytest.fail(f"{service} is missing, and CI runs every test: {why}", pytrace=False)
    pytest.skip(f"{service} is missing: {why}")


@pytest.fixture(scope="session")
def broker(root: Path) -> Iterator[Broker]:
    """One Kafka broker for a whole run. A test that kills one starts its own."""
    require_service("kafka")
    with Broker(root / "kafka", reaper_ms=500, users=KAFKA_USERS) as made:
        yield made


@pytest.fixture
def topic(broker: Broker) -> str:
    """A new topic with three partitions."""
    return broker.create_topic(f"topic-{uuid.uuid4().hex[:8]}", partitions=3)


@pytest.fixture(scope="session")
def postgres(root: Path) -> Iterator[Postgres]:
    """One PostgreSQL server for a whole run, with a database `test`. A test that kills one starts its own."""
    require_service("postgres")
    with Postgres(root / "postgres") as made:
        yield made


@pytest.fixture(scope="session")
def mariadb(root: Path) -> Iterator[MariaDB]:
    """The same with MariaDB: user, password and database are `test`."""
    require_service("mariadb")
    with MariaDB(root / "mariadb") as made:
        yield made


@pytest.fixture(scope="session")
def mysql(root: Path) -> Iterator[MySQL]:
    """The same with MySQL."""
    require_service("mysql")
    with MySQL(root / "mysql") as made:
        yield made


@pytest.fixture(scope="session")
def redis_server(root: Path) -> Iterator[Redis]:
    """The same with Redis, which has one space of keys for all tests."""
    require_service("redis")
    with Redis(root / "redis") as made:
        yield made


@pytest.fixture(scope="session")
def cassandra(root: Path) -> Iterator[Cassandra]:
    """The same with Cassandra, which has no keyspace yet. It takes some ten seconds to start."""
    require_service("cassandra")
    with Cassandra(root / "cassandra") as made:
        yield made


@pytest.fixture(scope="session")
def hdfs(root: Path) -> Iterator[Hdfs]:
    """One HDFS for a whole run. A test that kills a node ends with `hdfs.start()`, or has its own."""
    require_service("hdfs")
    with Hdfs(root / "hdfs") as made:
        yield made


@pytest.fixture(scope="session")
def s3(root: Path) -> Iterator[S3]:
    """The same with S3, which has no bucket yet."""
    require_service("s3")
    with S3(root / "s3") as made:
        yield made


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A Spark cluster of two workers, from which the folders of all tests are hidden, as those of another host are."""
    require_service("standalone")
    hides = [tmp_path_factory.getbasetemp()]
    with (
        tempfile.TemporaryDirectory(prefix="fencepost-cluster-", ignore_cleanup_errors=True) as folder,
        Standalone(Path(folder), apart=True, hides=hides) as made,
    ):
        yield made


@pytest.fixture(autouse=True)
def _needs_java_for_spark(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("spark"):
        require_service("java")


@cache
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
