"""A catalog for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from icebergs import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A file that does not exist yet."""
    made = Lake({"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/lake"})
    yield made
    made.close()
