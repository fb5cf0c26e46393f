"""The same epochs in Spark: a streaming query over parquet files, a file an epoch. What Spark says an epoch took.

    by hand     foreachBatch, in which every task connects and writes its rows
    fencepost   with each `staging` that the sink has

Plain Spark gets the state store, formats and `file:` class that fencepost sets, so that only the sinks differ.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from bench.sinks_tables import Target, Work
from pyarrow import parquet
from pyspark.sql import SparkSession

import fencepost as fp
from fencepost.connectors.files.source import FOREVER
from fencepost.spark import spark_session

SCHEMA = "id BIGINT, key STRING, value DOUBLE"
PLAIN = {**spark_session.FORMATS, **spark_session.CHECKPOINT_FILES, **spark_session.STATE_FILES}
WARM, SMALL = 3, 1000
"""Epochs of at most so many rows come before those that count."""


@dataclass(frozen=True)
class Input:
    """Files of one size. Keys are those of `rows`, each once."""

    folder: Path
    rows: pa.Table
    epochs: int

    @classmethod
    def write(cls, folder: Path, make: Callable[[int], pa.Table], size: int, epochs: int) -> Input:
        """Row groups are small enough that a large file is read by several tasks."""
        sizes = [min(size, SMALL)] * WARM + [size] * epochs
        rows, first = make(sum(sizes)), 0
        folder.mkdir()
        for number, count in enumerate(sizes):
            path = folder / f"{number:05}.parquet"
            part = rows.slice(first, count)
            parquet.write_table(part, path, row_group_size=max(count // 8, 1000), compression="none")
            os.utime(path, (1_700_000_000 + number,) * 2)
            first += count
        return cls(folder, rows, epochs)


def in_task(connect: Any, address: Any, write: Any, work: Work, rows: Iterator[Any]) -> None:
    """What stands in foreachPartition."""
    with connect(address) as connection:
        write(connection, work, rows)


class InSpark:
    """Runs queries to their end."""

    def __init__(self, spark: SparkSession, folder: Path, steps: dict[str, list[float]]) -> None:
        self.spark, self.folder, self.steps = spark, folder, steps

    def ways(self, target: Target, rows: int) -> dict[str, Callable[[Any, Work, Path], Any]]:
        """Name to a function that runs one query."""
        by_hand = {
            f"by hand: {name}": partial(self._plain, target, write)
            for name, write in target.by_hand.items()
            if rows <= target.slow.get(name, rows)
        }
        ours = {
            f"fencepost{f', {staging}' if staging else ''}": partial(self._ours, target, staging)
            for staging in target.stagings
        }
        return by_hand | ours

    def run(self, target: Target, start: Any, work: Work, given: Input, before: pa.Table) -> dict[str, Any]:
        """One query; what Spark and the protocol say about its epochs."""
        target.make(work)
        if work.upsert:
            target.fill(work, before)
        target.settle()
        place = self.folder / "place"
        self.steps.clear()
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).option("maxFileAge", FOREVER)
        query = start(reader.parquet(str(given.folder)).select(*target.columns), work, place)
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        assert len(progress) == WARM + given.epochs, len(progress)
        assert target.count(work) == given.rows.num_rows, "rows are missing, or there twice"
        target.drop(work)
        shutil.rmtree(place)
        steps = {
            name: statistics.median(times[-given.epochs :])
            for name, times in self.steps.items()
            if len(times) >= given.epochs
        }
        return {"epochs": [each["durationMs"] for each in progress[WARM:]], "steps": steps}

    def _plain(self, target: Target, write: Any, frame: Any, work: Work, place: Path) -> Any:
        task = partial(in_task, type(target).connect, target.address, write, work)

        def body(rows: Any, epoch: int) -> None:
            rows.foreachPartition(task)

        with spark_session.settings(self.spark, PLAIN):
            writer = frame.writeStream.foreachBatch(body).trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(place)).start()
            query.awaitTermination()
        return query

    def _ours(self, target: Target, staging: str, frame: Any, work: Work, place: Path) -> Any:
        job = fp.Job("bench", checkpoint=place, spark=self.spark).write(frame, target.sink(work, staging))
        query = job.start(until="available")
        query.awaitTermination()
        job.stop()
        return query
