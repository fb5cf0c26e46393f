"""Exactly-once pipelines for PySpark. Off by none.

Each public name is imported on first use: `fencepost --help` needs neither pyarrow nor pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fencepost.errors import named, speak_plainly
from fencepost.protocol.format import VERSION

if TYPE_CHECKING:  # the same names as in _HOMES, for type checkers and editors
    from fencepost.config import (
        Checkpoint,
        ExponentialDelay,
        FailureRate,
        FileSystemState,
        FixedDelay,
        MemoryState,
        NoRestart,
        RocksDBState,
    )
    from fencepost.connectors.cassandra.sink import Cassandra
    from fencepost.connectors.custom import TwoPhaseCommit, WriteAheadLog
    from fencepost.connectors.delta.sink import Delta
    from fencepost.connectors.duckdb.sink import DuckDB
    from fencepost.connectors.files.layout import list_published
    from fencepost.connectors.files.sink import Files
    from fencepost.connectors.iceberg.sink import Iceberg
    from fencepost.connectors.kafka.sink import Kafka
    from fencepost.connectors.mysql.sink import MySQL
    from fencepost.connectors.postgres.sink import Postgres
    from fencepost.connectors.redis.sink import Redis
    from fencepost.connectors.simple import Rate, Socket
    from fencepost.connectors.sqlite.sink import SQLite
    from fencepost.contract import Sink, Source
    from fencepost.errors import Fenced, FencepostError, OperatorNeeded, Refused, Retryable
    from fencepost.guarantee import Guarantee, Report
    from fencepost.job import Job, start
    from fencepost.observe.events import Event
    from fencepost.spark.fork import rand, uuid
    from fencepost.spark.keyed_state import map_with_state

__all__ = [
    "Cassandra",
    "Checkpoint",
    "Delta",
    "DuckDB",
    "Event",
    "ExponentialDelay",
    "FailureRate",
    "Fenced",
    "FencepostError",
    "FileSystemState",
    "Files",
    "FixedDelay",
    "Guarantee",
    "Iceberg",
    "Job",
    "Kafka",
    "MemoryState",
    "MySQL",
    "NoRestart",
    "OperatorNeeded",
    "Postgres",
    "Rate",
    "Redis",
    "Refused",
    "Report",
    "Retryable",
    "RocksDBState",
    "SQLite",
    "Sink",
    "Socket",
    "Source",
    "TwoPhaseCommit",
    "WriteAheadLog",
    "list_published",
    "map_with_state",
    "rand",
    "start",
    "uuid",
]

__version__ = VERSION

_HOMES = {
    "Cassandra": "connectors.cassandra.sink",
    "Checkpoint": "config",
    "Delta": "connectors.delta.sink",
    "DuckDB": "connectors.duckdb.sink",
    "Event": "observe.events",
    "ExponentialDelay": "config",
    "FailureRate": "config",
    "Fenced": "errors",
    "FencepostError": "errors",
    "FileSystemState": "config",
    "Files": "connectors.files.sink",
    "FixedDelay": "config",
    "Guarantee": "guarantee",
    "Iceberg": "connectors.iceberg.sink",
    "Job": "job",
    "Kafka": "connectors.kafka.sink",
    "MemoryState": "config",
    "MySQL": "connectors.mysql.sink",
    "NoRestart": "config",
    "OperatorNeeded": "errors",
    "Postgres": "connectors.postgres.sink",
    "Rate": "connectors.simple",
    "Redis": "connectors.redis.sink",
    "Refused": "errors",
    "Report": "guarantee",
    "Retryable": "errors",
    "RocksDBState": "config",
    "SQLite": "connectors.sqlite.sink",
    "Sink": "contract",
    "Socket": "connectors.simple",
    "Source": "contract",
    "TwoPhaseCommit": "connectors.custom",
    "WriteAheadLog": "connectors.custom",
    "list_published": "connectors.files.layout",
    "map_with_state": "spark.keyed_state",
    "rand": "spark.fork",
    "start": "job",
    "uuid": "spark.fork",
}
"""Where each public name lives."""


def __getattr__(name: str) -> Any:
    """Import a public name on first use; three of the submodules are public too."""
    if name in {"contract", "errors", "testing"}:
        return import_module(f"fencepost.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'fencepost' has no attribute {name!r}")
    try:
        value = getattr(import_module(f"fencepost.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("fencepost."):
            raise
        raise ImportError(
            f"fencepost.{name} is for the driver only: Spark's executors get just the part of fencepost that tasks "
            "need. Keep functions for tasks in a module that does not use it, or use it inside other functions."
        ) from error
    if isinstance(value, type) and "__init__" in vars(value):
        value.__init__ = named(f"fp.{name}", value.__init__)  # type: ignore[misc]  # each class once: see below
    elif callable(value) and not isinstance(value, type):
        value = named(f"fp.{name}", value)
    globals()[name] = value  # the next use finds it at once
    return value


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return sorted({*globals(), *__all__})


speak_plainly()
