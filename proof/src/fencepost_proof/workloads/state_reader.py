"""Prints what the state of a stopped job holds after its last epoch, read by plain Spark: nothing of fencepost in it.

    python state_reader.py CHECKPOINT

One line of JSON: a list of rows for every stateful operator, under the name of the branch that it belongs to. Which
operator that is can be told by its kind and by the names of its keys.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


def states(spark: SparkSession, checkpoint: str) -> dict[str, list[Any]]:
    """Every operator's rows."""
    before = str(spark.conf.get(FORMAT))
    operators = spark.read.format("state-metadata").load(checkpoint).select("operatorId", "operatorName").distinct()
    found: dict[str, list[Any]] = {}
    try:
        # Spark's reader of joins takes the format from the session, not from the checkpoint.
        spark.conf.set(FORMAT, "2" if _has_ids(spark, checkpoint) else "1")
        for operator, name in sorted(tuple(row) for row in operators.collect()):
            reader = spark.read.format("statestore").option("operatorId", operator)
            if name == "symmetricHashJoin":
                found |= _join(reader, checkpoint)
            elif name.startswith("transformWithState"):
                rows = reader.option("stateVarName", "state").load(checkpoint)
                found["sums"] = _rows(rows.select("key.key", "value.count", "value.total"))
            else:
                found |= _aggregate(reader.load(checkpoint))
    finally:
        spark.conf.set(FORMAT, before)
    return found


def _has_ids(spark: SparkSession, checkpoint: str) -> bool:
    newest = spark.read.text(f"{checkpoint}/commits").where("value LIKE '%stateUniqueIds%'")
    return newest.count() > 0


def _aggregate(state: Any) -> dict[str, list[Any]]:
    keys = state.schema["key"].dataType.names
    if keys == ["who"]:
        return {"drawn": _rows(state.select("key.who", "value.count", "value.sum"))}
    if keys == ["key"]:
        return {"counts": _rows(state.select("key.key", "value.count", "value.sum"))}
    columns = ("unix_timestamp(key.window.start)", "key.key", "value.count", "value.sum")
    return {"windows": _rows(state.selectExpr(*columns))}


def _join(reader: Any, checkpoint: str) -> dict[str, list[Any]]:
    left = reader.option("joinSide", "left").load(checkpoint).select("value.id", "value.key")
    right = reader.option("joinSide", "right").load(checkpoint).select("value.partner", "value.found")
    return {"joined": [("left", *row) for row in _rows(left)] + [("right", *row) for row in _rows(right)]}


def _rows(frame: Any) -> list[Any]:
    return [tuple(row) for row in frame.collect()]


def main(arguments: list[str]) -> int:
    """The command line."""
    builder = SparkSession.builder
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    print(json.dumps(states(spark, arguments[0])))
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
