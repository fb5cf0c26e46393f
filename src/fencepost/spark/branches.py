"""Several DataFrames of one job as one query: a tagged union, so that one epoch has one decision.

__fencepost_sink | raw: struct<…> | counts: struct<…>
               1 | {…}            | null
               2 | null           | {…}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from inspect import signature
from typing import Any

import pyarrow as pa

from fencepost.errors import BadConfig
from fencepost.rows import TAG


def union(frames: Mapping[str, Any]) -> Any:
    """One DataFrame that holds every branch; the only branch as it is."""
    if len(frames) == 1:
        return next(iter(frames.values()))
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name; pyspark is the user's
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 - as above

    # A column that is never null in its own branch is null in every other one; Spark 4.2 refuses to call that the same.
    types = {
        name: StructType([StructField(field.name, field.dataType, nullable=True) for field in frame.schema])
        for name, frame in frames.items()
    }

    def tagged(index: int, name: str) -> Any:
        mine = F.struct(*[F.col(quoted(column)) for column in frames[name].columns])
        columns = [(mine if other == name else F.lit(None)).cast(types[other]).alias(other) for other in frames]
        return frames[name].select(F.lit(index).cast("int").alias(TAG), *columns)

    parts = [tagged(index, name) for index, name in enumerate(frames, start=1)]
    return reduce(lambda left, right: left.unionAll(right), parts)


UNSUPPORTED = {
    "variant": "its JSON text, to_json(…),",
    "interval year": "the number of months",
    "interval month": "the number of months",
}
"""Spark's types without an Arrow type that says what they are, by how their names begin, and what to write instead."""


def arrow_schema(frame: Any) -> pa.Schema:
    """The columns that a sink will be given."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - as above

    # Spark 4.2 says UTC by itself, 4.3 wants to be told; the JVM writes UTC in both.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    for field in frame.schema:
        for kind in _scalars(field.dataType):
            for name, instead in UNSUPPORTED.items():
                if kind.startswith(name):
                    raise BadConfig(
                        "unsupported_type",
                        f"Column {field.name!r} has Spark's type {kind}, which no sink can be given as it is.",
                        next=f"Give {instead} instead.",
                    )
    return to_arrow_schema(frame.schema, **zone)


def _scalars(kind: Any) -> Iterator[str]:
    """The names of the types that a type is made of."""
    inner = [field.dataType for field in getattr(kind, "fields", ())]
    inner += [getattr(kind, part) for part in ("elementType", "keyType", "valueType") if hasattr(kind, part)]
    if not inner:
        yield kind.simpleString()
    for part in inner:
        yield from _scalars(part)


def quoted(column: str) -> str:
    """A column's name as Spark reads it, dots and all."""
    return "`" + column.replace("`", "``") + "`"
