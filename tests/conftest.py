"""What every test may rely on. Never hides a test that could not run: on the build server that is a failure."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

SERVICES: dict[str, Callable[[], bool]] = {
    "java": lambda: shutil.which("java", path=_java_path()) is not None,
    "javac": lambda: shutil.which("javac", path=_java_path()) is not None,
    "strace": lambda: shutil.which("strace") is not None,
}
"""What a test may need beside Python, and how to see that it is there."""


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
    if os.environ.get("CI"):
        pytest.fail(f"{service} is missing, and CI runs every test", pytrace=False)
    pytest.skip(f"{service} is missing")


@pytest.fixture(autouse=True)
def _needs_java_for_spark(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("spark"):
        require_service("java")


def _java_path() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin" if home else None
