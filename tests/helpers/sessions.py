"""One Spark session for all tests in this process: a start takes seconds, and a JVM has only one context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from fencepost_proof.rig.jars import SPARK_KAFKA, RigFailed, fetch

from fencepost.spark.spark_session import make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    # State snapshots are written in the background, and Spark looks at this only when its first state is loaded.
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    # A short run never reaches the second compiler; the first one alone is ready sooner.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}


def connector() -> dict[str, str]:
    """Settings that bring Spark's Kafka connector; none without a network, and tests with a broker are skipped then."""
    try:
        return {"spark.jars": ",".join(map(str, fetch(SPARK_KAFKA)))}
    except RigFailed:
        return {}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as fencepost makes it, only smaller. Folders that ask for it share it."""
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    made = make_session("tests", {**SMALL, **connector(), "spark.sql.warehouse.dir": warehouse})
    yield made
    made.stop()
