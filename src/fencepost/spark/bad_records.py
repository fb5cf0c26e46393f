"""Good rows and dead letters of one plan: two branches that must agree about every record.

    parse   Spark's own from_json, a pure function: each branch may parse for itself (`parsed`)
    map     the user's function, which may fail at random: called once per record, below a shuffle that all branches
            read

            records ── fn, once ── shuffle ──┬── rows ──→ … the user's plan …
                                             └── dead letters

Why no record has two results: see `fork`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fencepost.contract import LONGEST_ERROR
from fencepost.errors import BadConfig, EpochFailed, Where
from fencepost.spark import fork, plan
from fencepost.spark.branches import arrow_schema, map_in_arrow, quoted
from fencepost.spark.keyed_state import fields_of, nullable
from fencepost.spark.positions import POSITION, hidden, origin

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

LETTER = "source STRING, position STRING, record STRING, error STRING"
"""The columns of a dead letter."""
MARK = re.compile(r"fencepost_(?:map|parse)_[0-9a-f]{16}")
"""How a step is recognised in a plan."""


@dataclass(frozen=True)
class Step:
    """One parse or map with dead letters."""

    sink: str
    pure: bool
    """Always gives the same result for the same record."""


steps: dict[str, Step] = {}
"""By mark: a plan is recognised by its marks, whatever happened to the DataFrame since."""


def mapped(
    frame: DataFrame, job: str, fn: Callable[[Any], Any], output: str | StructType, *, sink: str | None
) -> tuple[DataFrame, DataFrame | None]:
    """The rows that a function returns, and the dead letters if there is a sink for them."""
    from fencepost.spark.worker import Each, MapSettings, Once  # noqa: PLC0415 - it imports pyspark

    _check_function(fn, job)
    given = fields_of(output, "output", "id BIGINT, amount DOUBLE")
    fields = nullable(given)
    source, position = origin(frame)
    told = MapSettings(
        fn=fn,
        record=frame.schema,
        output=fields,
        required=frozenset(field.name for field in given if not field.nullable),
        arrow=_arrow(_with_position(fields)),
        source=source,
    )
    mark = fork.new_mark("map")
    work: Each | Once = Each(told)
    made = _with_position(fields)
    if sink is not None:
        made = _made(made)
        work = Once(told, _arrow(made))
        steps[mark] = Step(sink, pure=False)
    records: Any = frame.select(*map(quoted, frame.columns), position.alias(POSITION))
    results: Any = map_in_arrow(records, work, made, mark if sink is not None else told.name)
    if sink is None:
        return hidden(results), None
    once = fork.once(results, "made", job)
    return hidden(once.where("letter IS NULL").select("row.*")), once.where("letter IS NOT NULL").select("letter.*")


def nothing_from(frame: Any) -> tuple[str, DataFrame]:
    """The sources of a DataFrame, and a branch without rows for the dead letters of what its sink refuses.

    The branch reads nothing, so that it can be added to a job that has run: `branches.union` gives it its column only.
    """
    name = ", ".join(dict.fromkeys(source.name or source.kind for source in plan.sources_of(frame)))
    return name, frame.sparkSession.createDataFrame([], LETTER)


def proof(spark: Any, frames: Mapping[str, Any], job: str) -> fork.Proof | None:
    """The check to run before each decision of a query with these branches; None if none is needed.

    Refuses rows whose dead letters would go nowhere.
    """
    texts = {name: str(frame._jdf.queryExecution().analyzed().toString()) for name, frame in frames.items()}
    found = {mark: steps[mark] for text in texts.values() for mark in MARK.findall(text) if mark in steps}
    for mark, step in found.items():
        if mark not in texts.get(step.sink, ""):
            raise BadConfig(
                "dead_letters_elsewhere",
                f"Rows of this query come from a parse or map whose dead letters go to sink {step.sink!r}, and the "
                "query does not write to it: bad records would be lost.",
                where=Where(job=job),
                next="Call parse and map on the same job that writes their rows.",
            )
    return fork.proof(spark, texts.values(), [mark for mark, step in found.items() if not step.pure], job)


def _with_position(fields: StructType) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType  # noqa: PLC0415 - as above

    return StructType([*fields, StructField(POSITION, StringType())])


def _made(fields: StructType) -> StructType:
    """What the tasks return for each record."""
    from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType  # noqa: PLC0415 - as above

    entry = StructType([StructField("row", fields), StructField("letter", StructType.fromDDL(LETTER))])
    return StructType([StructField("partition", IntegerType()), StructField("made", ArrayType(entry))])


def _arrow(fields: Any) -> Any:
    return arrow_schema(SimpleNamespace(schema=fields))


def _check_function(fn: Any, job: str) -> None:
    hint = "fn takes one record and returns a row (a tuple, dict or Row), a list of rows, or None."
    where = Where(job=job)
    if not callable(fn):
        raise BadConfig("bad_function", "fn is not callable.", where=where, next=hint)
    if inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn):
        raise BadConfig("bad_function", "fn is a generator or a coroutine function.", where=where, next=hint)
    try:
        inspect.signature(fn).bind(object())
    except TypeError as error:
        raise BadConfig("bad_function", "fn cannot be called with one record.", where=where, next=hint) from error
    except ValueError:
        return  # a builtin without a signature


# JSON into columns with Spark's own from_json, set up to hide nothing: by itself it turns a null, trailing text and a
# value of another type all into a null in some column. None of these may pass for a row.

READ, TEXT, WRAPPED, SOURCE, WHY = (f"__fencepost_{name}" for name in ("read", "text", "wrapped", "source", "why"))


def parsed(
    frame: DataFrame, job: str, schema: str | StructType, column: str, keep: tuple[str, ...], *, sink: str | None
) -> tuple[DataFrame, DataFrame | None]:
    """The parsed rows, and the dead letters if there is a sink for them."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name; pyspark is the user's
    from pyspark.sql.types import ArrayType  # noqa: PLC0415 - as above

    wanted = fields_of(schema, "schema", "id BIGINT NOT NULL, amount DOUBLE")
    _check_columns(frame, job, column, keep, wanted)
    fields, mark = nullable(wanted), fork.new_mark("parse")
    told = _told(frame, wanted, column, keep, mark)
    kept, row = [F.col(quoted(name)) for name in keep], F.get(f"{READ}.v", 0)
    if sink is None:
        # Inside a generator, and an outer one: no filter or aggregate of the user's is pushed below it.
        place = F.coalesce(F.col(POSITION), F.lit("position unknown"))
        failed = F.raise_error(_said(F.col(WHY), F.col(SOURCE), place))
        rows = F.when(F.col(WHY).isNotNull(), failed.cast(ArrayType(fields))).otherwise(F.array(row))
        return hidden(told.select(*kept, F.inline_outer(rows), POSITION)), None
    steps[mark] = Step(sink, pure=True)
    letter = {
        "source": F.col(SOURCE),
        "position": F.col(POSITION),
        "record": _readable(F.col(TEXT)),
        "error": F.col(WHY),
    }
    good = told.where(F.col(WHY).isNull()).select(*kept, F.inline(F.array(row)), POSITION)
    bad = told.where(F.col(WHY).isNotNull())
    return hidden(good), bad.select(*[value.cast("string").alias(name) for name, value in letter.items()])


def _told(frame: Any, wanted: StructType, column: str, keep: tuple[str, ...], mark: str) -> DataFrame:
    """Each record with what was parsed from it, and why it is bad; null if it is not."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as above
    from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType  # noqa: PLC0415

    text = F.col(quoted(column)).cast("string")
    # In an array, followed by a key that nobody can guess: so trailing text after the object is noticed.
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
    # A ] in the text could close our array; then there are more keys than our two.
    alone = (F.instr(TEXT, "]") == 0) | (F.size(F.json_object_keys(WRAPPED)) == 2)
    fits = F.col(f"{READ}.corrupt").isNull() & F.col(f"{READ}.{mark}") & (F.size(f"{READ}.v") == 1) & row.isNotNull()
    kind = ", ".join(f"{field.name} {field.dataType.simpleString().upper()}" for field in wanted)
    why = F.when(F.col(TEXT).isNull(), F.lit("the record is null"))
    misfit = f"the record is not a JSON object of {kind}"[:LONGEST_ERROR]
    why = why.when(~F.coalesce(fits & alone, F.lit(False)), F.lit(misfit))
    for name, lacks in _lacking(wanted, row):
        why = why.when(lacks, F.lit(f"the record has no {name}, which is NOT NULL"))
    return first.withColumn(WHY, why)  # type: ignore[no-any-return]


def _lacking(fields: StructType, row: Column, above: str = "") -> Iterator[tuple[str, Column]]:
    """The fields that must not be null; those of a struct only where the struct is there."""
    for field in fields:
        value, name = row[field.name], f"{above}{field.name}"
        if not field.nullable:
            yield name, row.isNotNull() & value.isNull()
        if field.dataType.typeName() == "struct":
            yield from _lacking(field.dataType, value, f"{name}.")  # type: ignore[arg-type]


def _said(why: Column, source: Column, place: Column) -> Column:
    """The text of our own error, as `diagnosis.from_task` finds it in Spark's."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as above

    from fencepost.spark.worker import FIX  # noqa: PLC0415 - it imports pyspark

    before, behind = str(EpochFailed("bad_record", "\n", next=FIX)).split("\n", 1)
    head = F.lit(f"fencepost.errors.EpochFailed: {before}A record cannot be parsed: ")
    return F.concat(head, why, F.lit(". It is at "), source, F.lit(", "), place, F.lit("."), F.lit(behind))


def _readable(text: Column) -> Column:
    """The same as `worker.text_of`."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as above

    from fencepost.spark.worker import NOT_TEXT  # noqa: PLC0415 - it imports pyspark

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
            f"Column {column!r} has type {frame.schema[column].dataType.simpleString()}; JSON must be in a string or "
            "binary column.",
            where=where,
            next="Name another column (column=…), or cast it to string first.",
        )
    names = [name.lower() for name in (*keep, *wanted.names)]
    if len(set(names)) != len(names):
        raise BadConfig(
            "duplicate_columns",
            "A column in keep=… is listed twice, or has the same name as a field of the schema.",
            where=where,
            next="Rename the column before parse: withColumnRenamed(…).",
        )
