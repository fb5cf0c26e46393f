"""Keyed state in Python: `(record, state) → (output, state)` for every record of a key, on Spark's transformWithState.

    fp.map_with_state(df, by=…, state=…, output=…)(fn)
        checked here, before anything starts ──→ a plain streaming DataFrame
        fn itself runs in the tasks, see keyed_tasks.py

Never sets a format: those that let the state's schema grow are chosen by the job that writes the DataFrame, at its
first start.
"""

from __future__ import annotations

import inspect as signatures
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

from fencepost.errors import BadConfig, CheckpointRefused, Where
from fencepost.spark import inspect, session
from fencepost.spark.branches import quoted
from fencepost.times import seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

TimeMode = Literal["none", "processing", "event"]

CLOCKS = {"none": "None", "processing": "ProcessingTime", "event": "EventTime"}
"""Spark's names."""

STATE_SERVER = "org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkStateServer"

PAUSE = "1 second"
"""Between epochs by the clock on the wall, if nobody says."""


def map_with_state(
    df: DataFrame,
    *,
    by: str | Sequence[str],
    state: str | StructType,
    output: str | StructType,
    ttl: str | timedelta | None = None,
    time: TimeMode = "none",
    order: str | Sequence[str] | None = None,
    on_timer: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], DataFrame]:
    """Map every record with a state of its key: `fn(record, state) -> (output, state)`; give `fn` to what this returns.

        def add(record, state):
            total = (state.total if state else 0) + record.amount
            return (record.account, total), (total,)

        sums = fp.map_with_state(
            payments, by="account", state="total BIGINT", output="account STRING, total BIGINT"
        )(add)

    The record is a Row. The state is None for a new key, else a Row by `state`'s fields. The output is None for
    nothing, one row (a tuple, dict or Row) or a list of rows. Times of records and states are in UTC; those that are
    returned must have a zone.

    The mistake people make: to count on the order of a key's records within an epoch. Spark promises none; say
    `order`, by which they are sorted (across epochs they come as the source gives them). The next one: to keep what
    grows for ever. Return None as the state to forget a key with its timers, or set `ttl`.

    The state is read and written once per key and epoch, however many records there are, and written only if it
    changed. Fields may be added to `state` later; old keys have None there. One that is taken away is lost with
    what it held; none may change its type.

    Args:
        df: A streaming DataFrame.
        by: The column, or columns, whose values are the key.
        state: The state's fields, 'total BIGINT, at TIMESTAMP' or a StructType; every field may be None.
        output: The columns of the rows that come out, in the same way.
        ttl: Forget a key's state some time after its last record ('1 hour'); by the clock on the wall.
        time: The clock of timers. 'event': the watermark of `df`, whose late records are dropped. 'processing': the
            clock on the wall at the epoch's begin; epochs then come at the job's interval, with or without records (one
            second if the job has none), and until='available' ends without waiting for timers.
        order: The column, or columns, by which a key's records of one epoch are sorted; nulls come first.
        on_timer: `on_timer(key, state, when) -> (output, state)`, called when a timer is due; with a fourth parameter
            it is given `timers`, too. `fn` sets them by its third parameter: `timers.at(when)`, `timers.cancel(when)`
            or `timers.cancel()` for all of the key, `timers.now`, `timers.watermark`. Times are datetimes with a zone.
    """
    session.check_session(df.sparkSession, None)
    inspect.check_frame(df, None)
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

    return with_function


def _takes_timers(fn: Callable[..., Any], on_timer: Callable[..., Any] | None) -> bool:
    takes_timers = _parameters(fn, "fn", 2) == 3
    if takes_timers and on_timer is None:
        raise BadConfig(
            "no_on_timer",
            "fn takes timers, and nothing would be called when they are due.",
            next="Give on_timer=… and time='event' or time='processing', or take only (record, state).",
        )
    return takes_timers


def _planned(df: DataFrame, told: dict[str, Any], clock: str) -> DataFrame:
    from pyspark.sql import DataFrame, functions  # noqa: PLC0415 - pyspark is the user's
    from pyspark.sql.streaming.stateful_processor_util import (  # noqa: PLC0415 - as above
        TransformWithStateInPandasUdfUtils,
    )
    from pyspark.sql.udf import UserDefinedFunction  # noqa: PLC0415 - as above
    from pyspark.util import PythonEvalType  # noqa: PLC0415 - as above

    from fencepost.spark.keyed_tasks import KeyedState, Told  # noqa: PLC0415 - it imports pyspark

    session.bring_python(df.sparkSession)
    work = KeyedState(Told(**told))
    # What `GroupedData.transformWithState` does, but for its wish that pandas be installed, which nothing here needs.
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
        "Append",  # each row that comes out is new, whatever the query's mode
        clock,
        None,
        "",
    )
    _hush(spark)
    return DataFrame(jdf, spark)


def _hush(spark: Any) -> None:
    """Spark warns once for every new key that it has no state yet; of a million keys that is a long log."""
    log4j = spark._jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(STATE_SERVER, log4j.Level.ERROR)


def _check_protobuf() -> None:
    try:
        import pyspark.sql.streaming.proto.StateMessage_pb2  # noqa: F401, PLC0415 - only to see whether it can be
    except Exception as error:
        raise BadConfig(
            "no_protobuf",
            "Spark's transformWithState needs the package protobuf: it is missing, or of a version that does not fit.",
            next="pip install 'fencepost[spark]'",
        ) from error


def _columns(df: Any, wanted: str | Sequence[str], argument: str) -> tuple[str, ...]:
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    if not names or len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
        raise BadConfig(
            "bad_columns", f"{argument} does not name columns, each once.", next=f"Write {argument}='user', or a list."
        )
    if unknown := [name for name in names if name not in df.columns]:
        raise BadConfig(
            "unknown_column",
            f"{argument} names {', '.join(map(repr, unknown))}, which the DataFrame does not have.",
            next=f"It has: {', '.join(df.columns)}.",
        )
    if maps := [name for name in names if "map<" in df.schema[name].dataType.simpleString()]:
        raise BadConfig(
            "bad_columns", f"{argument}: {maps[0]!r} holds maps, which have no order.", next="Use another column."
        )
    return names


def _schema(wanted: Any, argument: str, example: str) -> StructType:
    return nullable(fields_of(wanted, argument, example))


def fields_of(wanted: Any, argument: str, example: str) -> StructType:
    """Fields as the user gave them, in words or as a StructType."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - pyspark is the user's
    from pyspark.sql.types import StructType  # noqa: PLC0415 - as above

    found = wanted
    if isinstance(wanted, str):
        try:
            found = StructType.fromDDL(wanted) if wanted.strip() else None
        except PySparkException as error:
            raise BadConfig(
                "bad_schema",
                f"{argument}={wanted!r} is no list of fields.",
                next=f"Write name and type of each: {argument}={example!r}.",
            ) from error
    named = isinstance(found, StructType) and len(found) > 0
    if not named or len({name.lower() for name in found.names}) != len(found):
        raise BadConfig(
            "bad_schema",
            f"{argument} has no fields, or two of the same name.",
            next=f"Write name and type of each: {argument}={example!r}, or a StructType.",
        )
    return cast("StructType", found)


def nullable(fields: StructType) -> StructType:
    """The same, each of which may be null.

    A field that is added later is null in what is there; Spark keeps no state of which it was told otherwise.
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
        raise BadConfig("bad_ttl", f"ttl={ttl!r} is no time.", next="Write it as '1 hour', '30 days', or a timedelta.")
    return found


def _clock(df: Any, time: str, ttl_ms: int | None, on_timer: Callable[..., Any] | None) -> str:
    if time not in CLOCKS:
        raise BadConfig("bad_time", f"time={time!r} is unknown.", next=f"Use one of {', '.join(map(repr, CLOCKS))}.")
    if on_timer is not None and time == "none":
        raise BadConfig(
            "timers_without_time",
            "on_timer is given, but no clock for its timers.",
            next="Say time='event' (the watermark's) or time='processing' (the clock on the wall).",
        )
    if time == "event" and ttl_ms is not None:
        raise BadConfig(
            "ttl_in_event_time",
            "A ttl goes by the clock on the wall, these timers by the watermark, and Spark has one clock for both.",
            next="Without ttl, let on_timer forget the key: timers.at(record.at + timedelta(hours=1)).",
        )
    if time == "event" and not inspect.has_watermark(df):
        raise BadConfig(
            "no_watermark",
            "time='event' needs a watermark, and the DataFrame has none: no timer would ever be due.",
            next="df.withWatermark('at', '10 minutes') before map_with_state.",
        )
    if on_timer is None and time != "none" and (time == "event" or ttl_ms is None):
        raise BadConfig(
            "time_without_timers", f"time={time!r} is for timers.", next="Give on_timer=…, or leave it out."
        )
    return CLOCKS["processing" if ttl_ms is not None else time]


def _parameters(function: Any, argument: str, fewest: int) -> int:
    """How many arguments a function takes: what it must be given, or `timers` as well."""
    given = {"fn": "(record, state)", "on_timer": "(key, state, when)"}[argument]
    hint = f"Take {given}, or {given[:-1]}, timers), and return (output, state)."
    if not callable(function):
        raise BadConfig("bad_function", f"{argument} is no function.", next=hint)
    if signatures.isgeneratorfunction(function) or signatures.iscoroutinefunction(function):
        raise BadConfig("bad_function", f"{argument} yields or awaits, and so returns no state.", next=hint)
    by_place = (signatures.Parameter.POSITIONAL_ONLY, signatures.Parameter.POSITIONAL_OR_KEYWORD)
    taken = signatures.signature(function).parameters.values()
    needed = [parameter for parameter in taken if parameter.default is parameter.empty]
    places = [parameter for parameter in needed if parameter.kind in by_place]
    named = [parameter for parameter in needed if parameter.kind is parameter.KEYWORD_ONLY]
    if len(places) not in (fewest, fewest + 1) or named:
        raise BadConfig("bad_function", f"{argument} takes {len(places) + len(named)} arguments.", next=hint)
    return len(places)


def _check_timer_keys(df: Any, keys: Sequence[str]) -> None:
    for name in keys:
        if re.search(r"\btimestamp\b(?!_)", df.schema[name].dataType.simpleString()):
            # Spark hands a timer's key back in local time, in which one hour of the year means two.
            raise BadConfig(
                "timestamp_key",
                f"Column {name!r} holds timestamps, which Spark cannot give back exactly as the key of a timer.",
                next="Key by a number or a text made of it: unix_micros(…), date_format(…).",
            )


def paces(frames: Mapping[str, Any], writer: Any, job: str) -> Mapping[str, str]:
    """What a query with keyed state by the clock on the wall needs besides, or else it would run without a pause."""
    if not any(map(inspect.never_pauses, frames.values())):
        return {}
    pause = inspect.pause_ms(writer)
    if pause == 0:
        raise BadConfig(
            "no_pause",
            "Keyed state with a ttl, or with time='processing', makes Spark run epochs without a pause.",
            where=Where(job=job),
            next="Give the writer trigger(processingTime='1 second').",
        )
    return session.NO_EMPTY_EPOCHS if pause is None else {}


def notes(frames: Mapping[str, Any]) -> list[str]:
    """What `check` has to say about keyed state."""
    states = set().union(*map(inspect.states_of, frames.values()))
    found = []
    if inspect.KEYED_STATE in states and len(states) > 1:
        found.append(
            f"keyed state beside other state ({_words(states)}): Spark keeps both in one encoding, in which no field "
            "can be added to the keyed state later; two jobs could have both"
        )
    if any(map(inspect.never_pauses, frames.values())):
        found.append(
            "keyed state by the clock on the wall: epochs come at the job's interval, with or without records "
            f"({PAUSE} if the job has none)"
        )
    return found


def check_beside(formats: Mapping[str, str], frames: Mapping[str, Any], job: str) -> None:
    """Refuse other state in a checkpoint that began with keyed state alone: its encoding takes no other."""
    states = set().union(*map(inspect.states_of, frames.values()))
    if formats.items() >= session.KEYED_STATE.items() and states - {inspect.KEYED_STATE}:
        raise BadConfig(
            "state_beside_keyed",
            "This checkpoint began with keyed state alone, in an encoding that Spark has for nothing else; "
            f"the job now has other state, too ({_words(states)}).",
            where=Where(job=job),
            next="Give the new state a job of its own, or begin a new checkpoint with both.",
        )


def schema_refused(text: str) -> CheckpointRefused | None:
    """Spark's refusal of another schema of the state, in our words."""
    if not re.search(r"\[(STATE_STORE_\w*SCHEMA\w*|STATE_STORE_UNSUPPORTED_\w*EVOLUTION\w*)", text):
        return None
    return CheckpointRefused(
        "state_schema",
        "The state in the checkpoint does not fit the plan: a key's or a state's fields have changed.",
        next="Fields may be added to the state of map_with_state, but none may change its type, and only in a job "
        "without other state (an aggregate, a join). Take the change back, or begin a new checkpoint.",
    )


def _words(states: set[str]) -> str:
    return ", ".join(sorted(kind.lower() for kind in states - {inspect.KEYED_STATE}))
