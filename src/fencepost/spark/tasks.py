"""Sinks that the tasks write to by themselves: the sink's function, called with what Spark knows about the attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from fencepost.protocol.records import Epoch, WriterNumber
from fencepost.sinks.contract import UNIT, UNIT_FACTS, Attempt, WriteInTask
from fencepost.spark import session
from fencepost.spark.branches import quoted

OWNER = "fencepost.owner"
"""A local property of the query's thread, which its tasks inherit: lineage and writer, known only after recovery."""
EPOCH = "streaming.sql.batchId"


def written_in_tasks(frame: Any, write: WriteInTask) -> Any:
    """The same plan with the writing at its end, in the same stage: the attempt that wrote is the one Spark keeps."""
    from pyspark.sql import DataFrame  # noqa: PLC0415 - pyspark is the user's
    from pyspark.sql.types import StringType, StructField, StructType  # noqa: PLC0415 - as above
    from pyspark.sql.udf import UserDefinedFunction  # noqa: PLC0415 - as above
    from pyspark.util import PythonEvalType  # noqa: PLC0415 - as above

    session.bring_python(frame.sparkSession)
    columns = [StructField(field.name, field.dataType, nullable=True) for field in frame.schema]
    ours = [StructField(name, StringType(), nullable=True) for name in (UNIT, UNIT_FACTS)]
    # What `mapInArrow` does, but for its wish that pandas be installed, which nothing here needs.
    function = UserDefinedFunction(
        _in_task(write),
        returnType=StructType([*columns, *ours]),
        evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
        deterministic=False,
    )
    column = function(*[frame[quoted(name)] for name in frame.columns])
    return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)


def name_owner(spark: Any, lineage: str, writer: WriterNumber) -> None:
    """Tell the tasks of the query that this thread starts next."""
    spark.sparkContext.setLocalProperty(OWNER, f"{lineage}/{writer}")


def _in_task(write: WriteInTask) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def in_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - as above

        context: Any = TaskContext.get()
        lineage, _, writer = context.getLocalProperty(OWNER).partition("/")
        epoch = Epoch(int(context.getLocalProperty(EPOCH)))
        return write(Attempt(lineage, WriterNumber(int(writer)), epoch), batches)

    return in_task
