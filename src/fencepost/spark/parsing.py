"""JSON texts into columns by Spark's own from_json, told to hide nothing.

A null, a rest behind the object and a value of another type are all the same to from_json: a null in some column. Never
lets one pass for a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fencepost.errors import BadConfig, EpochFailed, Where
from fencepost.spark.branches import quoted
from fencepost.spark.keyed import fields_of, nullable
from fencepost.spark.poison import MARK, POSITION, Step, new_mark, origin, steps

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

READ, TEXT, WRAPPED, SOURCE, WHY = (f"__fencepost_{name}" for name in ("read", "text", "wrapped", "source", "why"))


def parsed(
    frame: DataFrame, job: str, schema: str | StructType, column: str, keep: tuple[str, ...], *, sink: str | None
) -> tuple[DataFrame, DataFrame | None]:
    """The parsed rows, and the dead letters if there is a sink for them."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name; pyspark is the user's
    from pyspark.sql.types import ArrayType  # noqa: PLC0415 - as above

    wanted = fields_of(schema, "schema", "id BIGINT NOT NULL, amount DOUBLE")
    _check_columns(frame, job, column, keep, wanted)
    if sink is not None:
        _check_pure(frame, job)
    fields, mark = nullable(wanted), new_mark("parse")
    told = _told(frame, wanted, column, keep, mark)
    kept, row = [F.col(quoted(name)) for name in keep], F.get(f"{READ}.v", 0)
    if sink is None:
        # Inside of a generator, and an outer one: no filter or aggregate of the user's comes before it.
        place = F.coalesce(F.col(POSITION), F.lit("position unknown"))
        failed = F.raise_error(_said(F.col(WHY), F.col(SOURCE), place))
        rows = F.when(F.col(WHY).isNotNull(), failed.cast(ArrayType(fields))).otherwise(F.array(row))
        return told.select(*kept, F.inline_outer(rows)), None
    steps[mark] = Step(sink, pure=True)
    letter = {
        "source": F.col(SOURCE),
        "position": F.col(POSITION),
        "record": _readable(F.col(TEXT)),
        "error": F.col(WHY),
    }
    good = told.where(F.col(WHY).isNull()).select(*kept, F.inline(F.array(row)))
    bad = told.where(F.col(WHY).isNotNull())
    return good, bad.select(*[value.cast("string").alias(name) for name, value in letter.items()])


def _told(frame: Any, wanted: StructType, column: str, keep: tuple[str, ...], mark: str) -> DataFrame:
    """Each record with what was read of it, and why it is bad; null if it is not."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as above
    from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType  # noqa: PLC0415

    text = F.col(quoted(column)).cast("string")
    # In an array, before a key that nobody can guess: so whatever is behind the object shows.
    wrapped = F.concat(F.lit('{"v":['), text, F.lit(f'],"{mark}":true}}'))
    shape = StructType(
        [
            StructField("v", ArrayType(nullable(wanted))),
            StructField(mark, BooleanType()),
            StructField("corrupt", StringType()),
        ]
    )
    read = F.from_json(wrapped, shape, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "corrupt"})
    others = [F.col(quoted(name)) for name in keep]
    source, position = origin(frame)
    place = [F.lit(source).alias(SOURCE), position.alias(POSITION)]
    first = frame.select(read.alias(READ), text.alias(TEXT), wrapped.alias(WRAPPED), *place, *others)
    row = F.get(f"{READ}.v", 0)
    # A ] could close our array; then there are more keys than our two.
    alone = (F.instr(TEXT, "]") == 0) | (F.size(F.json_object_keys(WRAPPED)) == 2)
    fits = F.col(f"{READ}.corrupt").isNull() & F.col(f"{READ}.{mark}") & (F.size(f"{READ}.v") == 1) & row.isNotNull()
    kind = ", ".join(f"{field.name} {field.dataType.simpleString().upper()}" for field in wanted)
    why = F.when(F.col(TEXT).isNull(), F.lit("the record is null"))
    why = why.when(~F.coalesce(fits & alone, F.lit(False)), F.lit(f"the record is no JSON object of {kind}"))
    for name, lacks in _lacking(wanted, row):
        why = why.when(lacks, F.lit(f"the record lacks {name}, which is NOT NULL"))
    return first.withColumn(WHY, why)  # type: ignore[no-any-return]


def _lacking(fields: StructType, row: Column, above: str = "") -> Iterator[tuple[str, Column]]:
    """The fields that must not be null, those of a struct only where there is one."""
    for field in fields:
        value, name = row[field.name], f"{above}{field.name}"
        if not field.nullable:
            yield name, row.isNotNull() & value.isNull()
        if field.dataType.typeName() == "struct":
            yield from _lacking(field.dataType, value, f"{name}.")  # type: ignore[arg-type]


def _said(why: Column, source: Column, place: Column) -> Column:
    """The text of our own error, as `failures.from_task` finds it in Spark's."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as above

    from fencepost.spark.poison_tasks import MEND  # noqa: PLC0415 - it imports pyspark

    before, behind = str(EpochFailed("bad_record", "\n", next=MEND)).split("\n", 1)
    head = F.lit(f"fencepost.errors.EpochFailed: {before}A record cannot be parsed: ")
    return F.concat(head, why, F.lit(". It is at "), source, F.lit(", "), place, F.lit("."), F.lit(behind))


def _readable(text: Column) -> Column:
    """As `poison_tasks.text_of` has it."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as above

    from fencepost.spark.poison_tasks import NOT_TEXT  # noqa: PLC0415 - it imports pyspark

    is_text = F.is_valid_utf8(text) & (F.instr(text, "\0") == 0)
    return F.when(is_text, text).otherwise(F.concat(F.lit(NOT_TEXT), F.base64(text.cast("binary"))))


def _check_columns(frame: Any, job: str, column: str, keep: tuple[str, ...], wanted: StructType) -> None:
    where = Where(job=job)
    if unknown := [name for name in (column, *keep) if name not in frame.columns]:
        raise BadConfig(
            "unknown_column",
            f"The DataFrame has no column {', '.join(map(repr, unknown))}.",
            where=where,
            next=f"It has: {', '.join(frame.columns)}.",
        )
    if frame.schema[column].dataType.typeName() not in ("string", "binary"):
        raise BadConfig(
            "not_a_text",
            f"Column {column!r} holds {frame.schema[column].dataType.simpleString()}, no JSON texts.",
            where=where,
            next="Name a column of texts or bytes: column=….",
        )
    names = [name.lower() for name in (*keep, *wanted.names)]
    if len(set(names)) != len(names):
        raise BadConfig(
            "duplicate_columns",
            "A column that is kept has the name of a field, or is kept twice.",
            where=where,
            next="Rename it before: withColumnRenamed(…).",
        )


def _check_pure(frame: Any, job: str) -> None:
    """Each branch computes its input for itself: it must not be another one."""
    patterns: Any = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    if (found := _impure(frame._jdf.queryExecution().analyzed(), patterns.PYTHON_UDF())) is not None:
        raise BadConfig(
            "impure_input",
            f"The DataFrame is made by {found}, which may give the dead letters another record than the rows.",
            where=Where(job=job),
            next="Parse what the source gives, then compute; or compute with job.map(…, on_bad_record='dead_letter'), "
            "which is called once.",
        )


def _impure(plan: Any, python: Any) -> str | None:
    """What in a plan may differ from one time to the next: chance, the clock, the user's Python."""
    if MARK.search(str(plan.simpleString(1000))) and plan.nodeName() == "MapInArrow":
        return None  # once, with all below it
    expressions = plan.expressions()
    for at in range(expressions.size()):
        expression = expressions.apply(at)
        if expression.containsPattern(python):
            return "Python"
        if not expression.deterministic():
            return "what is not deterministic"
    children = plan.children()
    found = (_impure(children.apply(at), python) for at in range(children.size()))
    return next((each for each in found if each is not None), None)
