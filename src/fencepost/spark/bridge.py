"""How an epoch gets from Spark into the protocol: one narrow interface, two ways across.

    JvmBridge           a streaming sink in the JVM stages rows in the tasks and calls Python once per epoch
    ForeachBatchBridge  pure Python, where no jar may be added: slower, rows pass through the driver's memory

Both run exactly one action on the plan, so the attempt whose rows arrive is the attempt whose state Spark keeps.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from fencepost.driver import Driver
from fencepost.errors import FencepostError
from fencepost.protocol.records import Kept


class Bridge(Protocol):
    """Starts a query whose epochs end in `Driver.run_epoch`."""

    def start(self, writer: Any, driver: Driver) -> Any:
        """Start the prepared `DataStreamWriter`; return Spark's StreamingQuery."""

    def close(self) -> None:
        """The query is over."""


class JvmBridge:
    """The small sink in the shipped jar."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._token = uuid.uuid4().hex
        self._epochs: _Epochs | None = None

    def start(self, writer: Any, driver: Driver) -> Any:
        """Register the call-back, then start."""
        from pyspark.java_gateway import ensure_callback_server_started  # noqa: PLC0415 - pyspark is the user's

        ensure_callback_server_started(self._spark.sparkContext._gateway)
        self._epochs = _Epochs(driver)  # kept: py4j itself holds only a weak hand on it
        self._spark._jvm.fencepost.EpochSink.register(self._token, self._epochs)
        return (
            writer.format("fencepost.EpochSink")
            .option("token", self._token)
            .options(**driver.staged)
            .option("durable", str(driver.durable).lower())
            .start()
        )

    def close(self) -> None:
        """Let go of the call-back."""
        self._spark._jvm.fencepost.EpochSink.unregister(self._token)


class EpochEnded(Exception):
    """What the engine is told; the driver keeps the error with all that led to it."""


@contextmanager
def _saying_little() -> Iterator[None]:
    """py4j logs whatever is raised here, with its causes: those are a client's, and quote rows and secrets."""
    try:
        yield
    except FencepostError as error:
        raise EpochEnded(str(error)) from None


class _Epochs:
    """The Python side of `fencepost.Epochs`."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def epoch(self, epoch: int, text: str) -> str:
        """Called once per epoch by the JVM, after the job and before `commits/N`."""
        told = json.loads(text)
        writer = self._driver.book.writer
        kept = tuple(Kept(f"{writer}/{file['file']}", file["rows"], file["sum"]) for file in told["files"])
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

    def start(self, writer: Any, driver: Driver) -> Any:
        """Start with a function that Spark calls once per epoch."""
        from fencepost.spark.snapshot import snapshot_text  # noqa: PLC0415 - py4j comes with pyspark, the user's

        spark = self._spark

        def body(frame: Any, epoch: int) -> None:
            table = frame.toArrow()
            with _saying_little():
                driver.run_epoch(epoch, driver.stage(epoch, table), lambda: snapshot_text(spark, driver.lineage))

        return writer.foreachBatch(body).start()

    def close(self) -> None:
        """Nothing is held."""
