"""Buckets that the shared session reaches, each by settings of its own."""

from __future__ import annotations

import uuid
from typing import Any

from fencepost_proof.rig.s3 import Endpoint

from fencepost.spark.jvm import finds_class
from fencepost.spark.spark_session import add_jars


def reach(spark: Any, endpoint: Endpoint) -> str:
    """A new bucket behind an address, `s3a://…`."""
    if not finds_class(spark, "org.apache.hadoop.fs.s3a.S3AFileSystem"):
        assert add_jars(spark, [str(jar) for jar in endpoint.jars])
    name = f"bucket-{uuid.uuid4().hex[:8]}"
    for key, value in endpoint.settings.items():
        spark.conf.set(key.replace("spark.hadoop.fs.s3a.", f"fs.s3a.bucket.{name}."), value)
    return endpoint.make_bucket(name)
