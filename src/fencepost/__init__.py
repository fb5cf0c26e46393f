"""Exactly-once pipelines for PySpark. Off by none.

Each public name is imported at its first use: `fencepost --help` needs neither pyarrow nor pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as in _HOMES, for type checkers and editors
    from fencepost.checkpointing import Checkpoint
    from fencepost.errors import Fenced, FencepostError, OperatorNeeded, Refused, Retryable
    from fencepost.files import Files
    from fencepost.guarantee import Guarantee
    from fencepost.job import Job
    from fencepost.kafka import Kafka
    from fencepost.observe.events import Event
    from fencepost.one_line import start
    from fencepost.protocol.effects import Outcome
    from fencepost.sinks.cassandra.sink import Cassandra
    from fencepost.sinks.contract import Capabilities, Session, Sink
    from fencepost.sinks.files import published
    from fencepost.sinks.mysql.sink import MySQL
    from fencepost.sinks.postgres.sink import Postgres
    from fencepost.sinks.redis.sink import Redis
    from fencepost.sinks.sqlite import SQLite
    from fencepost.sinks.two_phase import TwoPhaseCommit
    from fencepost.sinks.wal import WriteAheadLog
    from fencepost.sources.contract import Source
    from fencepost.sources.simple import Rate, Socket
    from fencepost.spark.keyed import map_with_state
    from fencepost.state import FileSystem, Memory, RocksDB
    from fencepost.supervise.strategies import ExponentialDelay, FailureRate, FixedDelay, NoRestart

__all__ = [
    "Capabilities",
    "Cassandra",
    "Checkpoint",
    "Event",
    "ExponentialDelay",
    "FailureRate",
    "Fenced",
    "FencepostError",
    "FileSystem",
    "Files",
    "FixedDelay",
    "Guarantee",
    "Job",
    "Kafka",
    "Memory",
    "MySQL",
    "NoRestart",
    "OperatorNeeded",
    "Outcome",
    "Postgres",
    "Rate",
    "Redis",
    "Refused",
    "Retryable",
    "RocksDB",
    "SQLite",
    "Session",
    "Sink",
    "Socket",
    "Source",
    "TwoPhaseCommit",
    "WriteAheadLog",
    "map_with_state",
    "published",
    "start",
]

__version__ = "0.1.0"

_HOMES = {
    "Capabilities": "sinks.contract",
    "Cassandra": "sinks.cassandra.sink",
    "Checkpoint": "checkpointing",
    "Event": "observe.events",
    "ExponentialDelay": "supervise.strategies",
    "FailureRate": "supervise.strategies",
    "Fenced": "errors",
    "FencepostError": "errors",
    "FileSystem": "state",
    "Files": "files",
    "FixedDelay": "supervise.strategies",
    "Guarantee": "guarantee",
    "Job": "job",
    "Kafka": "kafka",
    "Memory": "state",
    "MySQL": "sinks.mysql.sink",
    "NoRestart": "supervise.strategies",
    "OperatorNeeded": "errors",
    "Outcome": "protocol.effects",
    "Postgres": "sinks.postgres.sink",
    "Rate": "sources.simple",
    "Redis": "sinks.redis.sink",
    "Refused": "errors",
    "Retryable": "errors",
    "RocksDB": "state",
    "SQLite": "sinks.sqlite",
    "Session": "sinks.contract",
    "Sink": "sinks.contract",
    "Socket": "sources.simple",
    "Source": "sources.contract",
    "TwoPhaseCommit": "sinks.two_phase",
    "WriteAheadLog": "sinks.wal",
    "map_with_state": "spark.keyed",
    "published": "sinks.files",
    "start": "one_line",
}
"""Where each public name lives."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use; two of the submodules have names that users need."""
    if name in {"errors", "testing"}:
        return import_module(f"fencepost.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'fencepost' has no attribute {name!r}")
    value = getattr(import_module(f"fencepost.{_HOMES[name]}"), name)
    globals()[name] = value  # the next use finds it at once
    return value


def __dir__() -> list[str]:
    """The public names, used or not yet."""
    return sorted({*globals(), *__all__})
