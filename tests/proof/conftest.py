"""Stores whose nodes may be killed: not those that other tests use at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fencepost_proof.rig.hdfs import Hdfs
from fencepost_proof.rig.s3 import S3


@pytest.fixture(scope="session")
def hdfs(root: Path, require: Callable[[str], None]) -> Iterator[Hdfs]:
    """A test that kills a node ends with `hdfs.start()`."""
    require("hdfs")
    with Hdfs(root / "killed-hdfs") as made:
        yield made


@pytest.fixture(scope="session")
def s3(root: Path, require: Callable[[str], None]) -> Iterator[S3]:
    """The same with S3."""
    require("s3")
    with S3(root / "killed-s3") as made:
        yield made
