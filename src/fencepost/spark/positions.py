"""Where a record was read, for dead letters and errors: a column that the user does not see.

    topic, partition, offset │ _metadata.file_path ──→ position ──→ parse, map, share ──→ position ──→ …

`parse`, `map` and `share` make new rows. They hand the position on as Spark hands on the metadata of a file: it is in
no list of columns, and can be asked for in whatever is built from the rows, up to an aggregate, a union or a view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencepost.spark import plan
from fencepost.spark.branches import quoted
from fencepost.spark.spark_session import as_seq

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

POSITION = "__fencepost_position"
OF_FILES = "_metadata"
"""Spark's own such column."""


def origin(frame: Any) -> tuple[str, Column]:
    """The source of the records, and a column with each record's position in it: null if the DataFrame has none."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name; pyspark is the user's

    sources = plan.sources_of(frame)
    name = ", ".join(dict.fromkeys(source.name or source.kind for source in sources))
    if _type_of(frame, POSITION) is not None:
        return name, F.col(POSITION)
    kinds = dict(frame.dtypes)
    ours = {"topic": "string", "partition": "int", "offset": "bigint"}
    if any(source.kind == "kafka" for source in sources) and ours.items() <= kinds.items():
        return name, F.concat(F.col("topic"), F.lit("-"), F.col("partition"), F.lit("@"), F.col("offset"))
    known = getattr(_type_of(frame, OF_FILES), "names", ())
    if "file_path" not in known:
        return name, F.lit(None).cast("string")
    path = F.col(f"{OF_FILES}.file_path")
    return name, F.concat(path, F.lit("#"), F.col(f"{OF_FILES}.row_index")) if "row_index" in known else path


def hidden(rows: Any) -> DataFrame:
    """The same rows without their position, which can still be asked for."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as above

    columns = [quoted(name) for name in rows.columns if name != POSITION]
    marked = F.col(POSITION).alias(POSITION, metadata={"__metadata_col": POSITION})  # as Spark marks its own
    both = rows.select(*columns, marked)
    visible = both.select(*columns)
    *_, position = plan.elements(both._jdf.queryExecution().analyzed().output())
    jvm = rows.sparkSession._jvm
    tag = jvm.org.apache.spark.sql.catalyst.plans.logical.Project.hiddenOutputTag()
    visible._jdf.queryExecution().analyzed().setTagValue(tag, as_seq(jvm, [position]))
    return visible  # type: ignore[no-any-return]


def _type_of(frame: Any, name: str) -> Any:
    """The type of a column that is in no list; None if the DataFrame does not have it."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - as above

    offered = frame._jdf.queryExecution().analyzed().metadataOutput()
    if not any(column.name() == name for column in plan.elements(offered)):
        return None
    try:
        return frame.select(name).schema[0].dataType
    except AnalysisException:  # a function in between that makes rows of its own, or a join of two that have it
        return None
