"""Exactly-once pipelines for PySpark. Off by none."""

from fencepost.checkpointing import Checkpoint
from fencepost.errors import Fenced, FencepostError, OperatorNeeded, Refused, Retryable
from fencepost.files import Files
from fencepost.guarantee import Guarantee
from fencepost.job import Job, start
from fencepost.kafka import Kafka
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

__all__ = [
    "Capabilities",
    "Cassandra",
    "Checkpoint",
    "Fenced",
    "FencepostError",
    "FileSystem",
    "Files",
    "Guarantee",
    "Job",
    "Kafka",
    "Memory",
    "MySQL",
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
