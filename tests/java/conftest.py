"""Real stores behind the Java classes: a bucket and a folder of HDFS, in the session that all tests share."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from buckets import reach
from fencepost_proof.rig.hdfs import Hdfs
from fencepost_proof.rig.s3 import S3
from sessions import spark

__all__ = ["spark"]


@pytest.fixture
def bucket(spark: Any, s3: S3) -> str:
    """A new one, `s3a://…`, that the session reaches."""
    return reach(spark, s3)


@pytest.fixture
def hdfs_folder(spark: Any, hdfs: Hdfs) -> str:
    """A new one, `hdfs://…`, that the session reaches."""
    for key, value in hdfs.settings.items():
        spark.conf.set(key.removeprefix("spark.hadoop."), value)
    return f"{hdfs.url}/{uuid.uuid4().hex[:8]}"
