"""What tests with a Spark session may rely on."""

from __future__ import annotations

from pathlib import Path

import pytest
from sessions import spark
from streams import Place

__all__ = ["spark"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A folder for one job."""
    return Place(tmp_path)


@pytest.fixture(scope="session")
def archives(request: pytest.FixtureRequest) -> Path:
    """Where class archives stay from run to run: without them the starts take twice the time."""
    return request.config.cache.mkdir("classes")
