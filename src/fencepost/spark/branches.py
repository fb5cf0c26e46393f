"""The DataFrames of one job as one query: a tagged union, so that an epoch has one decision.

__fencepost_sink | raw: struct<…> | counts: struct<…>
               1 | {…}            | null
               2 | null           | {…}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fencepost.contract import UNIT, UNIT_FACTS, WriteInTask
from fencepost.errors import BadConfig
from fencepost.protocol.records import WriterNumber
from fencepost.spark import spark_session
from fencepost.spark.scan import Scan, none_of
from fencepost.store.staging import TAG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def union(frames: Mapping[str, Any], scans: Sequence[Scan] = ()) -> Any:
    """One DataFrame that holds every branch; a single branch is returned as it is.

    A static branch has no rows (`bad_records.nothing_from`), only a column. Branches of one scan are read at once.
    """
    if len(frames) == 1:
        return next(iter(frames.values()))
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name; pyspark is the user's
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 - as above

    # A column that is never null in its own branch is null in every other; Spark 4.2 does not accept that as one type.
    types = {
        name: StructType([StructField(field.name, field.dataType, nullable=True) for field in frame.schema])
        for name, frame in frames.items()
    }

    tags = {name: index for index, name in enumerate(frames, start=1)}
    nulls = {name: F.lit(None).cast(kind).alias(name) for name, kind in types.items()}

    def tagged(rows: Any, tag: Any, columns: Mapping[str, Any]) -> Any:
        return rows.select(tag.cast("int").alias(TAG), *{**nulls, **columns}.values())

    def part(name: str) -> Any:
        scan = next((scan for scan in scans if name in scan.names), None)
        if scan is None:
            mine = F.struct(*[F.col(quoted(column)) for column in frames[name].columns])
            return tagged(frames[name], F.lit(tags[name]), {name: mine.cast(types[name]).alias(name)})
        if name == scan.names[0]:
            structs = {one: F.col(column).cast(types[one]).alias(one) for one, column in scan.columns.items()}
            return tagged(scan.fan_out(TAG, tags), F.col(TAG), structs)
        return tagged(none_of(frames[name]), F.lit(tags[name]), {})

    parts = [part(name) for name in frames if frames[name].isStreaming]
    return reduce(lambda left, right: left.unionAll(right), parts)


UNSUPPORTED = {
    "variant": "its JSON text, to_json(…),",
    "interval year": "the number of months",
    "interval month": "the number of months",
}
"""Spark's types that have no faithful Arrow type, by the start of their names, and what to write instead."""


def arrow_schema(frame: Any) -> pa.Schema:
    """The columns as a sink will get them."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - as above

    # Spark 4.2 says UTC by itself, 4.3 has to be told; the JVM writes UTC in both.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    for field in frame.schema:
        for kind in _scalars(field.dataType):
            for name, instead in UNSUPPORTED.items():
                if kind.startswith(name):
                    raise BadConfig(
                        "unsupported_type",
                        f"Column {field.name!r} has Spark type {kind}, which no sink supports.",
                        next=f"Write {instead} instead.",
                    )
    return to_arrow_schema(frame.schema, **zone)


def _scalars(kind: Any) -> Iterator[str]:
    """The names of the scalar types inside a type."""
    inner = [field.dataType for field in getattr(kind, "fields", ())]
    inner += [getattr(kind, part) for part in ("elementType", "keyType", "valueType") if hasattr(kind, part)]
    if not inner:
        yield kind.simpleString()
    for part in inner:
        yield from _scalars(part)


def quoted(column: str) -> str:
    """A column's name as Spark reads it, dots and all."""
    return "`" + column.replace("`", "``") + "`"


def map_in_arrow(frame: Any, function: Callable[..., Any], columns: StructType, name: str | None = None) -> DataFrame:
    """Spark's `mapInArrow`, without its requirement that pandas is installed, which nothing here needs."""
    from pyspark.sql import DataFrame  # noqa: PLC0415 - pyspark is the user's
    from pyspark.sql.udf import UserDefinedFunction  # noqa: PLC0415 - as above
    from pyspark.util import PythonEvalType  # noqa: PLC0415 - as above

    spark_session.bring_python(frame.sparkSession)
    called = UserDefinedFunction(
        function,
        returnType=columns,
        name=name,
        evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
        deterministic=False,
    )
    column: Any = called(*[frame[quoted(each)] for each in frame.columns])
    return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)


def written_in_tasks(frame: Any, write: WriteInTask) -> DataFrame:
    """The same plan plus the write, in the same stage: the attempt that wrote is the one Spark keeps."""
    from pyspark.sql.types import StringType, StructField, StructType  # noqa: PLC0415 - pyspark is the user's

    from fencepost.spark.worker import InTask  # noqa: PLC0415 - it imports pyspark

    columns = [StructField(field.name, field.dataType, nullable=True) for field in frame.schema]
    ours = [StructField(name, StringType(), nullable=True) for name in (UNIT, UNIT_FACTS)]
    return map_in_arrow(frame, InTask(write), StructType([*columns, *ours]))


@contextmanager
def owned_by(spark: Any, lineage: str, writer: WriterNumber) -> Iterator[None]:
    """Tell the tasks of a query that this thread starts in this block whose rows they write."""
    from fencepost.spark.worker import OWNER  # noqa: PLC0415 - it imports pyspark

    context = spark.sparkContext
    before = context.getLocalProperty(OWNER)
    context.setLocalProperty(OWNER, f"{lineage}/{writer}")
    try:
        yield
    finally:
        context.setLocalProperty(OWNER, before)  # the query's thread has a copy
