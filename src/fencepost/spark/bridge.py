"""How an epoch gets from Spark into the protocol: one narrow interface, two implementations.

    JvmBridge           a streaming sink in the JVM stages rows in the tasks and calls Python once per epoch
    ForeachBatchBridge  pure Python, where no jar can be added: slower, rows pass through the driver's memory

Both run exactly one action on the plan, so the attempt whose rows arrive is the attempt whose state Spark keeps.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa

from fencepost.errors import FencepostError
from fencepost.protocol.records import Kept, WriterNumber


class Carrier(Protocol):
    """Writes epochs to the sinks: `runtime.driver.Driver`."""

    @property
    def lineage(self) -> str:
        """Spark's query id."""

    @property
    def writer(self) -> WriterNumber:
        """Its number in the ledger."""

    @property
    def durable(self) -> bool:
        """Must staged rows survive a crash?"""

    @property
    def staged(self) -> Mapping[str, str]:
        """Where the engine stages rows, and where it leaves a copy of what it brought to the driver."""

    def stage(self, epoch: int, table: pa.Table) -> tuple[Kept, ...]:
        """Stage rows that the engine brought to the driver."""

    def run_epoch(self, epoch: int, kept: tuple[Kept, ...], snapshot: Callable[[], str]) -> None:
        """Write one epoch to the sinks; raise whatever must end the query."""


class Bridge(Protocol):
    """Starts a query whose epochs end in `Carrier.run_epoch`."""

    def start(self, writer: Any, driver: Carrier) -> Any:
        """Start the prepared `DataStreamWriter`; return Spark's StreamingQuery."""

    def close(self) -> None:
        """Clean up; the query is over."""


class JvmBridge:
    """The small sink in the shipped jar."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._token = uuid.uuid4().hex
        self._epochs: _Epochs | None = None

    def start(self, writer: Any, driver: Carrier) -> Any:
        """Register the callback, then start."""
        from pyspark.java_gateway import ensure_callback_server_started  # noqa: PLC0415 - pyspark is the user's

        ensure_callback_server_started(self._spark.sparkContext._gateway)
        self._epochs = _Epochs(driver)  # kept: py4j itself only holds a weak reference
        self._spark._jvm.fencepost.EpochSink.register(self._token, self._epochs)
        return (
            writer.format("fencepost.EpochSink")
            .option("token", self._token)
            .options(**driver.staged)
            .option("durable", str(driver.durable).lower())
            .start()
        )

    def close(self) -> None:
        """Unregister the callback."""
        self._spark._jvm.fencepost.EpochSink.unregister(self._token)


class EpochEnded(Exception):
    """What the engine sees; the driver keeps the full error with its causes."""


@contextmanager
def _saying_little() -> Iterator[None]:
    """py4j logs whatever is raised here with its causes, which come from a client and may quote rows and secrets."""
    try:
        yield
    except FencepostError as error:
        raise EpochEnded(str(error)) from None


class _Epochs:
    """The Python side of `fencepost.Epochs`."""

    def __init__(self, driver: Carrier) -> None:
        self._driver = driver

    def epoch(self, epoch: int, text: str) -> str:
        """Called by the JVM once per epoch, after the Spark job and before `commits/N`."""
        told = json.loads(text)
        files = told["files"]
        kept = tuple(Kept(f"{self._driver.writer}/{file['file']}", file["rows"], file["sum"]) for file in files)
        with _saying_little():
            self._driver.run_epoch(epoch, kept, lambda: str(told["snapshot"]))
        return ""

    class Java:
        """For py4j."""

        implements = ("fencepost.Epochs",)


class ForeachBatchBridge:
    """Pure Python: collect the epoch as Arrow, stage it, run the protocol."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def start(self, writer: Any, driver: Carrier) -> Any:
        """Start with a function that Spark calls once per epoch."""
        from fencepost.spark.snapshot import snapshot_text  # noqa: PLC0415 - py4j comes with pyspark, the user's

        spark = self._spark

        def body(frame: Any, epoch: int) -> None:
            table = frame.toArrow()
            with _saying_little():
                driver.run_epoch(epoch, driver.stage(epoch, table), lambda: snapshot_text(spark, driver.lineage))

        return writer.foreachBatch(body).start()

    def close(self) -> None:
        """Nothing to clean up."""
