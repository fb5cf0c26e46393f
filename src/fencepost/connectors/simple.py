"""Sources that need no service: a socket, Spark's rate generator, any streaming DataFrame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fencepost.contract import Source
from fencepost.errors import BadConfig


@dataclass(frozen=True, slots=True)
class Socket(Source):
    """Lines from a TCP socket. Not replayable: a job that reads it is at_most_once at best.

    After a restart the job continues with what the socket sends from then on. Note: counts are then wrong, because
    lines that were sent earlier but not written yet are gone. To keep them, put them into Kafka or files first.
    """

    host: str
    port: int
    name: str = "socket"

    def load(self, reader: Any) -> Any:
        """One string column, `value`."""
        return reader.format("socket").option("host", self.host).option("port", self.port).load()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate(Source):
    """Rows that Spark generates (`timestamp`, `value`) at a fixed rate, for tests and load."""

    rows_per_second: int = 1
    partitions: int | None = None
    name: str = "rate"

    def __post_init__(self) -> None:
        """Refuse a rate that would never end an epoch."""
        if self.rows_per_second < 1:
            raise BadConfig("bad_rate", "rows_per_second must be at least 1.", next="Use 1 or more.")

    def load(self, reader: Any) -> Any:
        """Columns `timestamp` and `value`."""
        reader = reader.format("rate").option("rowsPerSecond", self.rows_per_second)
        if self.partitions is not None:
            reader = reader.option("numPartitions", self.partitions)
        return reader.load()
