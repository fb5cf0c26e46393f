"""Keyed state in Python: `(record, state) → (output, state)` for every record of a key, on Spark's transformWithState.

    fp.map_with_state(df, fn, by=…, state=…, output=…)
        checked here, before anything starts ──→ a plain streaming DataFrame
        fn itself runs in the tasks, see worker.py

Never sets a format: the job that writes the DataFrame chooses those that let the state's schema grow, at its first
start.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from fencepost.errors import BadConfig, CheckpointRefused, Where, seconds
from fencepost.spark import plan, spark_session
from fencepost.spark.branches import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

TimeMode = Literal["none", "processing", "event"]

CLOCKS = {"none": "None", "processing": "ProcessingTime", "event": "EventTime"}
"""Spark's names."""

STATE_SERVER = "org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkStateServer"

PAUSE = "1 second"
"""The default pause between epochs on processing time."""


@overload
def map_with_state(
    df: DataFrame,
    fn: Callable[..., Any],
    *,
    by: str | Sequence[str],
    state: str | StructType,
    output: str | StructType,
    ttl: str | timedelta | None = None,
    time: TimeMode = "none",
    order: str | Sequence[str] | None = None,
    on_timer: Callable[..., Any] | None = None,
) -> DataFrame: ...
@overload
def map_with_state(
    df: DataFrame,
    fn: None = None,
    *,
    by: str | Sequence[str],
    state: str | StructType,
    output: str | StructType,
    ttl: str | timedelta | None = None,
    time: TimeMode = "none",
    order: str | Sequence[str] | None = None,
    on_timer: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], DataFrame]: ...
def map_with_state(
    df: DataFrame,
    fn: Callable[..., Any] | None = None,
    *,
    by: str | Sequence[str],
    state: str | StructType,
    output: str | StructType,
    ttl: str | timedelta | None = None,
    time: TimeMode = "none",
    order: str | Sequence[str] | None = None,
    on_timer: Callable[..., Any] | None = None,
) -> DataFrame | Callable[[Callable[..., Any]], DataFrame]:
    """Map every record together with the state of its key: `fn(record, state) -> (output, state)`.

        def add(record, state):
            total = (state.total if state else 0) + record.amount
            return (record.account, total), (total,)

        sums = fp.map_with_state(
            payments, add, by="account", state="total BIGINT", output="account STRING, total BIGINT"
        )

    Without `fn` it is a decorator, and the name of the function becomes the DataFrame:

        @fp.map_with_state(payments, by="account", state="total BIGINT", output="account STRING, total BIGINT")
        def sums(record, state):
            …

    The record is a Row. The state is None for a new key, otherwise a Row with the fields of `state`. The output is None
    (no row), one row (a tuple, dict or Row) or a list of rows. Times in records and states are in UTC; times that you
    return must have a time zone.

    Note: within an epoch, Spark does not order a key's records; set `order` to sort them (across epochs they come in
    the order of the source). And do not let state grow without limit: return None as the state to forget a key and its
    timers, or set `ttl`.

    The state is read and written once per key and epoch, however many records there are, and written only if it
    changed. You may add fields to `state` later; old keys have None there. A field that you remove is lost with its
    values. The type of a field may not change.

    Args:
        df: A streaming DataFrame.
        fn: Called for every record with the state of its key; may take `timers` as a third argument (see `on_timer`).
        by: The key column or columns.
        state: The state's fields, 'total BIGINT, at TIMESTAMP' or a StructType; every field may be None.
        output: The columns of the output rows, written the same way.
        ttl: Forget a key's state this long after its last record ('1 hour'), in processing time.
        time: The clock for timers. 'event': the watermark of `df`; late records are dropped. 'processing': the wall
            clock at the start of the epoch; epochs then run at the job's interval, with or without records (every
            second if the job has none), and until='available' ends without waiting for timers.
        order: The column or columns by which a key's records in one epoch are sorted; nulls come first.
        on_timer: `on_timer(key, state, when) -> (output, state)`, called when a timer is due; if it has a fourth
            parameter, it also gets `timers`. `fn` sets timers through its third parameter: `timers.at(when)`,
            `timers.cancel(when)`, or `timers.cancel()` for all of the key's timers; also `timers.now` and
            `timers.watermark`. Times are datetimes with a time zone.
    """
    spark_session.check_session(df.sparkSession, None)
    spark_session.need(df.sparkSession.version, plan.KEYED_SINCE, "map_with_state needs", where=Where())
    plan.check_frame(df, None)
    _check_protobuf()
    keys = _columns(df, by, "by")
    ttl_ms = None if ttl is None else _milliseconds(ttl)
    clock = _clock(df, time, ttl_ms, on_timer)
    told = {
        "keys": keys,
        "record": df.schema,
        "state": _schema(state, "state", "total BIGINT"),
        "output": _schema(output, "output", "account STRING, total BIGINT"),
        "order": () if order is None else _columns(df, order, "order"),
        "ttl_ms": ttl_ms,
        "on_timer": on_timer,
        "on_timer_takes_timers": on_timer is not None and _parameters(on_timer, "on_timer", 3) == 4,
    }
    if on_timer is not None:
        _check_timer_keys(df, keys)

    def with_function(fn: Callable[..., Any]) -> DataFrame:
        return _planned(df, {**told, "fn": fn, "fn_takes_timers": _takes_timers(fn, on_timer)}, clock)

    return with_function if fn is None else with_function(fn)


def _takes_timers(fn: Callable[..., Any], on_timer: Callable[..., Any] | None) -> bool:
    takes_timers = _parameters(fn, "fn", 2) == 3
    if takes_timers and on_timer is None:
        raise BadConfig(
            "no_on_timer",
            "fn takes timers, but there is no on_timer to call when they are due.",
            next="Add on_timer=… and time='event' or time='processing', or let fn take only (record, state).",
        )
    return takes_timers


def _planned(df: DataFrame, told: dict[str, Any], clock: str) -> DataFrame:
    from pyspark.sql import DataFrame, functions  # noqa: PLC0415 - pyspark is the user's
    from pyspark.sql.streaming.stateful_processor_util import (  # noqa: PLC0415 - as above
        TransformWithStateInPandasUdfUtils,
    )
    from pyspark.sql.udf import UserDefinedFunction  # noqa: PLC0415 - as above
    from pyspark.util import PythonEvalType  # noqa: PLC0415 - as above

    from fencepost.spark.worker import KeyedSettings, KeyedState  # noqa: PLC0415 - it imports pyspark

    spark_session.bring_python(df.sparkSession)
    work = KeyedState(KeyedSettings(**told))
    # `GroupedData.transformWithState`, without its requirement that pandas is installed, which nothing here needs.
    function = UserDefinedFunction(
        TransformWithStateInPandasUdfUtils(work, clock).transformWithStateUDF,  # type: ignore[arg-type]
        returnType=told["output"],
        evalType=PythonEvalType.SQL_TRANSFORM_WITH_STATE_PYTHON_ROW_UDF,
    )
    spark: Any = df.sparkSession
    columns = [functions.col(quoted(name)) for name in told["keys"]]
    grouped: Any = df.groupBy(*columns)._jgd
    jdf = grouped.transformWithStateInPySpark(
        function(*[df[quoted(name)] for name in df.columns])._jc,
        spark._jsparkSession.parseDataType(told["output"].json()),
        "Append",  # every output row is new, whatever the query's mode
        clock,
        None,
        "",
    )
    _hush(spark)
    return DataFrame(jdf, spark)


def _hush(spark: Any) -> None:
    """Spark logs a warning for every new key that has no state yet; with a million keys that is a long log."""
    log4j = spark._jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(STATE_SERVER, log4j.Level.ERROR)


def _check_protobuf() -> None:
    try:
        import pyspark.sql.streaming.proto.StateMessage_pb2  # noqa: F401, PLC0415 - only to see whether it works
    except Exception as error:
        raise BadConfig(
            "no_protobuf",
            "Spark's transformWithState needs the Python package protobuf, which is missing or has the wrong version.",
            next="pip install 'fencepost[spark]'",
        ) from error


def _columns(df: Any, wanted: str | Sequence[str], argument: str) -> tuple[str, ...]:
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    if not names or len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
        raise BadConfig(
            "bad_columns",
            f"`{argument}` must be a column name or a list of different column names.",
            next=f"Write {argument}='user' or {argument}=['user', 'country'].",
        )
    if unknown := [name for name in names if name not in df.columns]:
        raise BadConfig(
            "unknown_column",
            f"`{argument}` names {', '.join(map(repr, unknown))}, but the DataFrame has no such column.",
            next=f"Its columns are: {', '.join(df.columns)}.",
        )
    if maps := [name for name in names if "map<" in df.schema[name].dataType.simpleString()]:
        raise BadConfig(
            "bad_columns",
            f"`{argument}` names {maps[0]!r}, which holds maps; maps cannot be compared or sorted.",
            next="Use another column.",
        )
    return names


def _schema(wanted: Any, argument: str, example: str) -> StructType:
    return nullable(fields_of(wanted, argument, example))


def fields_of(wanted: Any, argument: str, example: str) -> StructType:
    """Fields as the user gave them, as a DDL string or a StructType."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - pyspark is the user's
    from pyspark.sql.types import StructType  # noqa: PLC0415 - as above

    found = wanted
    if isinstance(wanted, str):
        try:
            found = StructType.fromDDL(wanted) if wanted.strip() else None
        except PySparkException as error:
            raise BadConfig(
                "bad_schema",
                f"`{argument}` is not a valid schema: {wanted!r}.",
                next=f"Write the name and type of each field: {argument}={example!r}.",
            ) from error
    named = isinstance(found, StructType) and len(found) > 0
    if not named or len({name.lower() for name in found.names}) != len(found):
        raise BadConfig(
            "bad_schema",
            f"`{argument}` has no fields, or two with the same name.",
            next=f"Write the name and type of each field: {argument}={example!r}, or pass a StructType.",
        )
    return cast("StructType", found)


def nullable(fields: StructType) -> StructType:
    """The same fields, all nullable.

    A field that is added later is null in existing state, and Spark refuses such a field if it is not nullable.
    """
    from pyspark.sql.types import StructType  # noqa: PLC0415 - pyspark is the user's

    text = re.sub(r'"(nullable|containsNull|valueContainsNull)":false', r'"\1":true', fields.json())
    return StructType.fromJson(json.loads(text))


def _milliseconds(ttl: str | timedelta) -> int:
    if isinstance(ttl, timedelta):
        found = ttl // timedelta(milliseconds=1)
    else:
        found = int(1000 * (seconds(str(ttl).lower()) or 0))
    if found <= 0:
        raise BadConfig("bad_ttl", f"Invalid ttl {ttl!r}.", next="Write '1 hour' or '30 days', or pass a timedelta.")
    return found


def _clock(df: Any, time: str, ttl_ms: int | None, on_timer: Callable[..., Any] | None) -> str:
    if time not in CLOCKS:
        raise BadConfig("bad_time", f"Unknown time={time!r}.", next=f"Use one of {', '.join(map(repr, CLOCKS))}.")
    if on_timer is not None and time == "none":
        raise BadConfig(
            "timers_without_time",
            "on_timer is set, but `time` is not: timers need a clock.",
            next="Set time='event' (the watermark) or time='processing' (the wall clock).",
        )
    if time == "event" and ttl_ms is not None:
        raise BadConfig(
            "ttl_in_event_time",
            "ttl works on processing time and time='event' on the watermark; Spark allows only one clock for both.",
            next="Remove ttl, and let on_timer forget the key: timers.at(record.at + timedelta(hours=1)).",
        )
    if time == "event" and not plan.has_watermark(df):
        raise BadConfig(
            "no_watermark",
            "time='event' needs a watermark, but the DataFrame has none: no timer would ever be due.",
            next="Call df.withWatermark('at', '10 minutes') before map_with_state.",
        )
    if on_timer is None and time != "none" and (time == "event" or ttl_ms is None):
        raise BadConfig(
            "time_without_timers",
            f"time={time!r} is set, but there is no on_timer.",
            next="Add on_timer=…, or remove time=….",
        )
    return CLOCKS["processing" if ttl_ms is not None else time]


def _parameters(function: Any, argument: str, fewest: int) -> int:
    """How many arguments a function takes: the required ones, or `timers` as well."""
    given = {"fn": "(record, state)", "on_timer": "(key, state, when)"}[argument]
    hint = f"{argument} takes {given} or {given[:-1]}, timers), and returns (output, state)."
    if not callable(function):
        raise BadConfig("bad_function", f"{argument} is not callable.", next=hint)
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise BadConfig("bad_function", f"{argument} is a generator or a coroutine function.", next=hint)
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = inspect.signature(function).parameters.values()
    needed = [parameter for parameter in taken if parameter.default is parameter.empty]
    places = [parameter for parameter in needed if parameter.kind in by_place]
    named = [parameter for parameter in needed if parameter.kind is parameter.KEYWORD_ONLY]
    if len(places) not in (fewest, fewest + 1) or named:
        raise BadConfig("bad_function", f"{argument} has {len(places) + len(named)} required arguments.", next=hint)
    return len(places)


def _check_timer_keys(df: Any, keys: Sequence[str]) -> None:
    for name in keys:
        if re.search(r"\btimestamp\b(?!_)", df.schema[name].dataType.simpleString()):
            # Spark returns a timer's key in local time, where one hour of the year is ambiguous.
            raise BadConfig(
                "timestamp_key",
                f"Key column {name!r} is a timestamp, which Spark does not return exactly as the key of a timer.",
                next="Use a number or a string made from it as the key: unix_micros(…) or date_format(…).",
            )


def paces(frames: Mapping[str, Any], writer: Any, job: str) -> Mapping[str, str]:
    """Extra settings for a query with keyed state on processing time, which would otherwise run without a pause."""
    if not any(map(plan.never_pauses, frames.values())):
        return {}
    pause = plan.pause_ms(writer)
    if pause == 0:
        raise BadConfig(
            "no_pause",
            "Keyed state with a ttl or time='processing' makes Spark run epochs without a pause.",
            where=Where(job=job),
            next="Set a trigger on the writer: .trigger(processingTime='1 second').",
        )
    return spark_session.NO_EMPTY_EPOCHS if pause is None else {}


def notes(frames: Mapping[str, Any]) -> list[str]:
    """What `fencepost check` says about keyed state."""
    states = set().union(*map(plan.states_of, frames.values()))
    found = []
    if plan.KEYED_STATE in states and len(states) > 1:
        found.append(
            f"keyed state together with other state ({_words(states)}): Spark keeps both in one encoding, which does "
            "not allow fields to be added to the keyed state later; use two jobs if you need that"
        )
    if any(map(plan.never_pauses, frames.values())):
        found.append(
            "keyed state on processing time: epochs run at the job's interval, with or without records "
            f"({PAUSE} if the job has none)"
        )
    return found


def check_beside(formats: Mapping[str, str], frames: Mapping[str, Any], job: str) -> None:
    """Refuse other state in a checkpoint created with keyed state alone: its encoding holds nothing else."""
    states = set().union(*map(plan.states_of, frames.values()))
    if formats.items() >= spark_session.KEYED_STATE.items() and states - {plan.KEYED_STATE}:
        raise BadConfig(
            "state_beside_keyed",
            "This checkpoint was created with keyed state only, in an encoding that Spark supports for nothing else; "
            f"the job now also has other state ({_words(states)}).",
            where=Where(job=job),
            next="Move the new state to a job of its own, or start with a new checkpoint for both.",
        )


def schema_refused(text: str) -> CheckpointRefused | None:
    """Our error for Spark's refusal of a changed state schema."""
    if not re.search(r"\[(STATE_STORE_\w*SCHEMA\w*|STATE_STORE_UNSUPPORTED_\w*EVOLUTION\w*)", text):
        return None
    return CheckpointRefused(
        "state_schema",
        "The state in the checkpoint does not fit the plan: the fields of a key or of the state have changed.",
        next="Undo the change, or start with a new checkpoint. (Fields may be added to the state of map_with_state in "
        "a job without other state, such as an aggregate or a join; the type of a field may never change.)",
    )


def _words(states: set[str]) -> str:
    return ", ".join(sorted(kind.lower() for kind in states - {plan.KEYED_STATE}))
