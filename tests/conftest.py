"""What every test may rely on. Never hides a test that could not run: on the build server that is a failure."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from fencepost.prove.rig.jars import KAFKA_BROKER, RigFailed, fetch
from fencepost.prove.rig.kafka import Broker

SERVICES: dict[str, Callable[[], bool]] = {
    "java": lambda: shutil.which("java", path=_java_path()) is not None,
    "javac": lambda: shutil.which("javac", path=_java_path()) is not None,
    "kafka": lambda: _why_no_kafka() is None,
    "strace": lambda: shutil.which("strace") is not None,
}
"""What a test may need beside Python, and how to see that it is there."""

KAFKA_USERS = {"app": "app-secret", "weak": "weak-secret"}
"""May log in to the shared broker: app may do everything, weak nothing until it is given ACLs."""


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for a whole run, for things that are dear to make."""
    return tmp_path_factory.mktemp("fencepost")


@pytest.fixture(scope="session")
def require() -> Callable[[str], None]:
    """`require("java")`: skip without it, or fail where CI is set, so that no test is silently left out."""
    return require_service


def require_service(service: str) -> None:
    """Go on only if a service is there."""
    if SERVICES[service]():
        return
    why = f": {_why_no_kafka()}" if service == "kafka" else ""
    if os.environ.get("CI"):
        pytest.fail(f"{service} is missing, and CI runs every test{why}", pytrace=False)
    pytest.skip(f"{service} is missing{why}")


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


@pytest.fixture(autouse=True)
def _needs_java_for_spark(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("spark"):
        require_service("java")


@cache
def _why_no_kafka() -> str | None:
    """Nothing, if its jars are here or could be fetched."""
    try:
        fetch(KAFKA_BROKER)
    except RigFailed as error:
        return str(error)
    return None


def _java_path() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin" if home else None
