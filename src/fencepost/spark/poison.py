"""Good rows and dead letters of one plan: two branches that must agree about every record.

    parse   Spark's own from_json, a pure function: each branch may parse for itself (spark/parsing.py)
    map     the user's function, which may fail now and then: called once per record, below a shuffle that all branches
            read

            records ── fn, once ── shuffle ──┬── rows ──→ … the user's plan …
                                             └── dead letters

Why no record has two results: the plan that ran holds the function once (looked at before each decision), so all
branches read one shuffle. And when a shuffle file is lost, Spark compares what the task gives that runs again with what
it gave before; if it differs, all that was read from it is computed anew, or the epoch ends.

Never decides anything: it raises, and the driver drops the epoch.
"""

from __future__ import annotations

import inspect as signatures
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fencepost.errors import BadConfig, EpochFailed, Where
from fencepost.spark import inspect, session
from fencepost.spark.branches import arrow_schema, quoted
from fencepost.spark.keyed import fields_of, nullable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

LETTER = "source STRING, position STRING, record STRING, error STRING"
"""The columns of a dead letter."""
POSITION = "__fencepost_position"
MARK = re.compile(r"fencepost_(?:map|parse)_[0-9a-f]{16}")
"""By this a step is found again in a plan."""

ENOUGH = 1 << 20
"""Characters of a plan."""
COMPARES = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
"""By this Spark compares what a task gives that runs again with what it gave before."""

Proof = Callable[[str], None]
"""Given the lineage, raises if a record of the epoch in progress may have had two results."""


@dataclass(frozen=True)
class Step:
    """One parse or map with dead letters."""

    sink: str
    pure: bool
    """Gives the same whenever it is computed."""


steps: dict[str, Step] = {}
"""By their marks: a plan is known by them, whichever way its DataFrame went."""


def new_mark(kind: str) -> str:
    """A name that no other step has, and no record."""
    return f"fencepost_{kind}_{secrets.token_hex(8)}"


def mapped(
    frame: DataFrame, job: str, fn: Callable[[Any], Any], output: str | StructType, *, sink: str | None
) -> tuple[DataFrame, DataFrame | None]:
    """The rows that a function makes, and the dead letters if there is a sink for them."""
    from pyspark.sql import DataFrame, functions  # noqa: PLC0415 - pyspark is the user's
    from pyspark.sql.udf import UserDefinedFunction  # noqa: PLC0415 - as above
    from pyspark.util import PythonEvalType  # noqa: PLC0415 - as above

    from fencepost.spark.poison_tasks import Each, Once, Told  # noqa: PLC0415 - it imports pyspark

    _check_function(fn, job)
    given = fields_of(output, "output", "id BIGINT, amount DOUBLE")
    fields = nullable(given)
    source, position = origin(frame)
    told = Told(
        fn=fn,
        record=frame.schema,
        output=fields,
        required=frozenset(field.name for field in given if not field.nullable),
        arrow=_arrow(fields),
        source=source,
    )
    spark: Any = frame.sparkSession
    session.bring_python(spark)
    mark = new_mark("map")
    work: Each | Once = Each(told)
    made = fields
    if sink is not None:
        made = _made(fields)
        work = Once(told, _arrow(made))
        steps[mark] = Step(sink, pure=False)
    # What `mapInArrow` does, but for its wish that pandas be installed, which nothing here needs.
    function = UserDefinedFunction(
        work,
        returnType=made,
        name=mark if sink is not None else told.name,
        evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
        deterministic=False,
    )
    records: Any = frame.select(*map(quoted, frame.columns), position.alias(POSITION))
    column: Any = function(*[records[quoted(name)] for name in records.columns])
    results = DataFrame(records._jdf.mapInArrow(column._jc, False, None), spark)
    if sink is None:
        return results, None
    # By partition, not by record: so the order within a partition stays, on which "the last one wins" relies.
    parts = max(1, spark.sparkContext.defaultParallelism)
    shuffled = results.repartitionById(parts, functions.col("partition") % parts)
    # What a generator makes is not filtered below it, nor are columns of it left out there: a shuffle is reused only if
    # all is the same down to the source.
    once = shuffled.select(functions.inline("made"))
    return once.where("letter IS NULL").select("row.*"), once.where("letter IS NOT NULL").select("letter.*")


def origin(frame: Any) -> tuple[str, Column]:
    """What the records come from, and the column that says from where in it: null if the DataFrame does not know."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - pyspark is the user's
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as above

    sources = inspect.sources_of(frame)
    name = ", ".join(dict.fromkeys(source.name or source.kind for source in sources))
    kinds = dict(frame.dtypes)
    ours = {"topic": "string", "partition": "int", "offset": "bigint"}
    if any(source.kind == "kafka" for source in sources) and ours.items() <= kinds.items():
        return name, F.concat(F.col("topic"), F.lit("-"), F.col("partition"), F.lit("@"), F.col("offset"))
    try:
        known = frame.select("_metadata").schema[0].dataType.names
    except (AnalysisException, AttributeError):
        known = []
    if "file_path" not in known:
        return name, F.lit(None).cast("string")
    path = F.col("_metadata.file_path")
    return name, F.concat(path, F.lit("#"), F.col("_metadata.row_index")) if "row_index" in known else path


def proof(spark: Any, frames: Mapping[str, Any], job: str) -> Proof | None:
    """What has to hold before each decision of a query with these branches; None if nothing has to.

    Refuses rows whose dead letters would go nowhere.
    """
    texts = {name: str(frame._jdf.queryExecution().analyzed().toString()) for name, frame in frames.items()}
    found = {mark: steps[mark] for text in texts.values() for mark in MARK.findall(text) if mark in steps}
    for mark, step in found.items():
        if mark not in texts.get(step.sink, ""):
            raise BadConfig(
                "dead_letters_elsewhere",
                f"Rows of this query were made by a step whose dead letters go to {step.sink!r}, and the query does "
                "not write there: bad records would vanish.",
                where=Where(job=job),
                next="Call parse and map of the very job that writes their rows.",
            )
    calls = [mark for mark, step in found.items() if not step.pure]
    if not calls:
        return None
    _check_settings(spark, job)

    def check(lineage: str) -> None:
        from fencepost.spark.snapshot import executed_plan  # noqa: PLC0415 - py4j comes with pyspark, the user's

        check_once(calls, executed_plan(spark, lineage))

    return check


def _check_settings(spark: Any, job: str) -> None:
    wrong = [] if str(spark.conf.get(COMPARES)).lower() == "true" else [COMPARES]
    if spark._jsparkSession.sessionState().conf().maxPlanStringLength() < ENOUGH:
        wrong.append("spark.sql.maxPlanStringLength")
    if wrong:
        raise BadConfig(
            "once_needs_settings",
            f"With {', '.join(wrong)} as set, nobody would notice that a function of a map had two results for a "
            "record.",
            where=Where(job=job),
            next="Leave these settings at Spark's defaults.",
        )


def check_once(marks: Iterable[str], plan: str) -> None:
    """No function is more than once in the plan that ran."""
    ran, _, _ = plan.partition("== Initial Plan ==")  # what Spark had in mind before it began
    if any(ran.count(f"{mark}(") > 1 for mark in marks):
        raise BadConfig(
            "called_twice",
            "Spark's plan calls the function of a map for the rows and again for the dead letters: both may differ "
            "about a record.",
            safe=EpochFailed.safe,
            next="See that spark.sql.exchange.reuse is on, and that no optimizer rule of your own moves shuffles.",
        )


def _made(fields: StructType) -> StructType:
    """What the function's tasks give for each record."""
    from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType  # noqa: PLC0415 - as above

    entry = StructType([StructField("row", fields), StructField("letter", StructType.fromDDL(LETTER))])
    return StructType([StructField("partition", IntegerType()), StructField("made", ArrayType(entry))])


def _arrow(fields: Any) -> Any:
    return arrow_schema(SimpleNamespace(schema=fields))


def _check_function(fn: Any, job: str) -> None:
    hint = "Take one record, and return a row (a tuple, a dict or a Row), a list of rows, or None."
    where = Where(job=job)
    if not callable(fn):
        raise BadConfig("bad_function", "fn is no function.", where=where, next=hint)
    if signatures.isgeneratorfunction(fn) or signatures.iscoroutinefunction(fn):
        raise BadConfig("bad_function", "fn yields or awaits, and so returns no row.", where=where, next=hint)
    try:
        signatures.signature(fn).bind(object())
    except TypeError as error:
        raise BadConfig("bad_function", "fn cannot be called with one record.", where=where, next=hint) from error
    except ValueError:
        return  # a builtin that does not say
