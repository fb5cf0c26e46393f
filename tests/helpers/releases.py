"""Which Spark the tests run on: `make matrix` lays an older one before the others."""

from __future__ import annotations

from importlib.metadata import version

from fencepost.spark.jvm import release

SPARK = release(version("pyspark"))
