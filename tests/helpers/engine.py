"""A Spark of another release, in a process of its own: runs statements and prints what each returned, as JSON.

    PYTHONPATH=.spark42 python engine.py '{"conf": {…}, "statements": ["SELECT …", …]}'

Imports nothing of fencepost, and nothing that the sinks use: it is what somebody else reads our tables with.
"""

from __future__ import annotations

import json
import sys
from datetime import date, datetime
from decimal import Decimal
from typing import Any

START = "answers: "


def plain(value: Any) -> Any:
    """A value as JSON, the same for Spark's rows and for Arrow's."""
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, dict):
        return {str(plain(key)): plain(one) for key, one in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    return str(value) if isinstance(value, Decimal | date) else value


def table(rows: list[Any]) -> list[Any]:
    """Rows in an order that does not depend on where they are."""
    return sorted((plain(row) for row in rows), key=lambda row: json.dumps(row, sort_keys=True))


def main(arguments: list[str]) -> int:
    """The command line."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - `plain` is for processes without this Spark

    told = json.loads(arguments[0])
    builder = SparkSession.builder.master("local[2]")
    for key, value in told["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    answers = [table(spark.sql(statement).collect()) for statement in told["statements"]]
    sys.stdout.write(f"{START}{json.dumps({'spark': spark.version, 'answers': answers})}\n")
    sys.stdout.flush()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
