"""What tests of checkpoints may rely on: real ones, made once and then attacked as copies."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kinds import grow
from sessions import spark
from streams import Place

__all__ = ["spark"]


@pytest.fixture(scope="session")
def grown(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Place, int]]:
    """A job of some kind after its run, and its last epoch; not to be changed."""
    made: dict[str, tuple[Place, int]] = {}

    def get(kind: str) -> tuple[Place, int]:
        if kind not in made:
            place = Place(tmp_path_factory.mktemp(kind))
            made[kind] = place, grow(place, kind, spark)
        return made[kind]

    return get


@pytest.fixture
def copied(grown: Callable[[str], tuple[Place, int]], tmp_path: Path) -> Callable[[str], tuple[Path, int]]:
    """A checkpoint of some kind that may be attacked, and its last epoch."""

    def get(kind: str) -> tuple[Path, int]:
        place, epoch = grown(kind)
        return Path(shutil.copytree(place.checkpoint, tmp_path / kind / "checkpoint")), epoch

    return get
