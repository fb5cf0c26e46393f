"""Does a source return the same records when a range of its offsets is read again? Tried, not believed.

    start ─► Spark writes offsets/0 ─► read, summed ─► ends before commits/0
    start ─► Spark takes offsets/0 from its log ─► read again, summed ─► ends

One micro-batch of one source, into nothing, on a checkpoint of its own that is removed. Never writes to a sink, and
never commits offsets to the source. Note: what a source removes when it hands it out is gone afterwards.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fencepost.errors import UNCHANGED, EpochFailed, FencepostError, GuaranteeTooHigh
from fencepost.spark import plan, spark_session
from fencepost.spark.diagnosis import names_of

LIMIT_S: Final = 60.0
"""For both reads of one source together."""

MICROS: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
"""As exact as Spark's times are; by default its JSON has milliseconds."""


@dataclass(frozen=True, slots=True)
class Sum:
    """What was read, in whatever order it came."""

    rows: int
    total: str
    """The sum of the rows' hashes."""


class Probe(NamedTuple):
    """What was found of one source whose records did not differ."""

    says: str
    rows: int = 0
    """How many were compared."""


class ReadEnough(Exception):
    """Ends a read before Spark notes that its micro-batch is done."""


class TooLong(Exception):
    """A read did not end in time."""


def probe_all(frames: Iterable[Any], job: str | None = None) -> Iterator[Probe | FencepostError]:
    """Probe the sources of these DataFrames, each once: what was found, or what is wrong."""
    seen: list[Any] = []
    for frame in frames:
        for leaf in plan.leaves(frame):
            if leaf in seen:  # Spark's own equality
                continue
            seen.append(leaf)
            source = plan.source_of(frame, leaf)
            try:
                yield _probe(frame, leaf, source)
            except FencepostError as error:
                yield error.at(job=job)
            except Exception as error:  # noqa: BLE001 - of Spark, or of the source
                failed = _cannot_be_read(source.kind, error).at(job=job)
                failed.__cause__ = error
                yield failed


def _probe(frame: Any, leaf: Any, source: plan.PlanSource) -> Probe:
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - pyspark is the user's

    named = f"source {source.kind}"
    if source.replayable(()) is False:
        return Probe(f"{named} was not probed: its records cannot be read again, whatever it returns")
    with tempfile.TemporaryDirectory(prefix="fencepost-probe-") as folder:
        one = _MicroBatch(frame, leaf, folder, time.monotonic() + LIMIT_S, is_named=source.name is not None)
        first: Sum | None = None
        try:
            first = one.read()
            again = first and one.read_again()
        except TooLong:
            return Probe(
                f"{named} was not probed: its first micro-batch was not read twice within {LIMIT_S:.0f} s. A limit for "
                "an epoch (maxFilesPerTrigger, maxOffsetsPerTrigger) makes it smaller"
            )
        except StreamingQueryException as error:
            if first is None:
                raise
            how = f"{_rows(first.rows)} the first time, {names_of(error)} the second"
            raise _differs(source.kind, how) from error
    if first is None or (first == again and not first.rows):
        return Probe(f"{named} was not probed: a job that starts now would find no records")
    if again is None or first.rows != again.rows:
        raise _differs(source.kind, f"{_rows(first.rows)} the first time, {again.rows if again else 0:,} the second")
    if first != again:
        raise _differs(source.kind, f"{_rows(first.rows)} both times, but not the same")
    return Probe(
        f"{named} was probed: one micro-batch ({_rows(first.rows)}) was the same when this process read it again. "
        "Compared: the number of rows and a sum of all columns; not their order, later records, or another process",
        first.rows,
    )


@dataclass(frozen=True, slots=True)
class _MicroBatch:
    """The first one of a source: its range is in the log in this folder, once it was read."""

    frame: Any
    leaf: Any
    folder: str
    until: float
    is_named: bool

    def read_again(self) -> Sum | None:
        """A failure counts only if it comes twice: Spark may not get a Python worker in time on a busy machine."""
        from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - pyspark is the user's

        with suppress(StreamingQueryException):
            return self.read()
        return self.read()

    def read(self) -> Sum | None:
        """What is in it; None if there is none."""
        spark = self.frame.sparkSession
        alone = plan.frame_of(self.frame, self.leaf)
        found: list[Sum] = []

        def take(batch: Any, _: int) -> None:
            found.append(_sum(batch))
            raise ReadEnough

        with spark_session.settings(spark, plan.FORMATS if self.is_named else {}):
            writer = alone.writeStream.foreachBatch(take).trigger(availableNow=True)
            query = writer.option("checkpointLocation", f"file://{self.folder}").start()
        if not spark_session.ended(query, max(0.001, self.until - time.monotonic())):
            query.stop()
            raise TooLong
        failed = query.exception()
        if failed is not None and not found:
            raise failed
        return found[0] if found else None


def _sum(batch: Any) -> Sum:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name; pyspark is the user's

    names = [f"c{number}" for number in range(len(batch.columns))]
    # As JSON: Spark has no hash of a map or a variant.
    row = F.to_json(F.struct(*names), {"timestampFormat": MICROS, "timestampNTZFormat": MICROS})
    total = F.sum(F.xxhash64(row).cast("decimal(38, 0)"))
    (found,) = batch.toDF(*names).agg(F.count("*"), total).collect()
    return Sum(int(found[0]), str(found[1]))


def _rows(number: int) -> str:
    return f"{number:,} row{'' if number == 1 else 's'}"


def _differs(kind: str, how: str) -> GuaranteeTooHigh:
    return GuaranteeTooHigh(
        "not_replayable",
        f"Source {kind} did not return the same records when the same range of offsets was read again: {how}.",
        safe="Safe: nothing was written, and the job's checkpoint was not touched. But if the source deletes what it "
        "hands out, those records are gone.",
        next="Make it return the same records for the same offsets, also in a new process. Until then remove "
        "replayable=True, and put the records into Kafka or files first, or set guarantee='at_most_once'.",
    )


def _cannot_be_read(kind: str, error: Exception) -> EpochFailed:
    return EpochFailed(
        "probe_failed",
        f"Source {kind} could not be read: {names_of(error)}.",
        safe=UNCHANGED,
        next="Fix the cause (FENCEPOST_TRACE=1 shows all of it), and check again.",
    )
