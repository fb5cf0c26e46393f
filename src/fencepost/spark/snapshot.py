"""The text that Spark is about to write to `commits/N`, read through py4j where no jar can be added.

Does the same as `java/fencepost/Snapshot.java`.

It must never change what Spark itself will compute: the only call it repeats takes a maximum. Call it after the epoch's
one action and before the function given to `foreachBatch` returns.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass

from fencepost.spark.jvm import release

__all__ = ["AmbiguousSnapshot", "executed_plan", "snapshot_text"]

STREAMING = "org.apache.spark.sql.execution.streaming"


class AmbiguousSnapshot(ValueError):
    """A task ran more than once, so we cannot know which attempt's state Spark keeps. The epoch must rerun."""


def snapshot_text(spark: Any, query_id: str) -> str:
    """Return the exact text of `commits/N` for the epoch in progress of the query with this id.

    Follows `MicroBatchExecution.markMicroBatchEnd` of Spark 4.0 to 4.3 step by step.
    """
    jvm = _Jvm(spark)
    engine: Any = _engine(spark, jvm, query_id)
    batch: Any = engine.getLatestExecutionContext()
    plan: Any = batch.executionPlan().executedPlan()
    tracker: Any = engine.watermarkTracker()
    tracker.updateWatermark(plan)
    conf: Any = engine.sparkSessionForStream().sessionState().conf()
    started: Any = engine.sparkSession().sessionState().conf()
    if jvm.release >= (4, 2) and started.enableStreamingSinkEvolution():
        msg = "unsupported_commit_log: sink evolution writes version 3"
        raise ValueError(msg)
    ids: Any = None
    if jvm.streaming("operators.stateful", "StatefulOperatorStateInfo").enableStateStoreCheckpointIds(conf):
        ids = _state_ids(jvm, plan, int(batch.batchId()))
    log: Any = engine.commitLog()
    told = (tracker.currentWatermark(), jvm.named("scala.Option").apply(ids))  # None becomes Scala's None
    if jvm.release >= (4, 2):
        metadata = log.createMetadata(
            *told, getattr(log, "createMetadata$default$3")(), _version(jvm, log, batch, conf)
        )
    else:  # one kind of metadata, and the log itself knows its version
        metadata = jvm.streaming("checkpointing", "CommitMetadata")(*told)
    out: Any = jvm.named("java.io.ByteArrayOutputStream")()
    log.serialize(metadata, out)
    return str(out.toString("UTF-8"))


def executed_plan(spark: Any, query_id: str) -> str:
    """The executed plan of the epoch in progress, as Spark prints it."""
    engine: Any = _engine(spark, _Jvm(spark), query_id)
    return str(engine.getLatestExecutionContext().executionPlan().executedPlan().toString())


class _Jvm:
    """Classes by full name: `spark._jvm.a.b.C` asks the JVM once per dot, which cost 100 ms and more per epoch."""

    def __init__(self, spark: Any) -> None:
        self.gateway: Any = spark.sparkContext._gateway
        self.release = release(spark.version)

    def named(self, name: str) -> Any:
        return JavaClass(name, self.gateway._gateway_client)

    def streaming(self, kind: str, name: str) -> Any:
        """A class of Spark's streaming."""
        return self.named(self.streaming_name(kind, name))

    def streaming_name(self, kind: str, name: str) -> str:
        """In a package of its kind from Spark 4.1 on, and all in one in 4.0."""
        return f"{STREAMING}.{kind}.{name}" if self.release >= (4, 1) else f"{STREAMING}.{name}"


def _engine(spark: Any, jvm: _Jvm, query_id: str) -> Any:
    """Find the query by id across sessions: Spark runs every query in a clone of the session that started it."""
    active = spark._jsparkSession.sharedState().activeStreamingQueries()
    engine = active.get(jvm.named("java.util.UUID").fromString(query_id))
    if engine is None:
        msg = f"no active streaming query has the id {query_id}"
        raise ValueError(msg)
    return engine


def _version(jvm: _Jvm, log: Any, batch: Any, conf: Any) -> int:
    """Spark 4.3 keeps the version a checkpoint already has; 4.2 takes it from the log's default."""
    if jvm.release < (4, 3):
        return int(log.defaultVersion())
    known = batch.commitLogFormatVersionOpt()
    return int(known.get() if known.isDefined() else conf.streamingCommitLogFormatVersion())


def _state_ids(jvm: _Jvm, plan: Any, epoch: int) -> Any:
    """Build Spark's own map: for each operator and partition, the ids of the state version this epoch wrote."""
    operators = {int(node.stateInfo().get().operatorId()): node for node in _stateful(jvm, plan)}
    streams = jvm.named("java.util.stream.LongStream")
    keys: Any = streams.empty()
    values: Any = jvm.named("java.util.ArrayList")()
    for number in sorted(operators):  # Spark's hash map yields small numbers in this order
        keys = streams.concat(keys, streams.rangeClosed(number, number))
        values.add(_partition_ids(jvm, operators[number], number, epoch))
    convert = jvm.named("scala.jdk.javaapi.CollectionConverters")
    # A boxed Long cannot be made in Python (py4j sends a small int as Integer), hence the stream of longs.
    pairs = convert.asScala(keys.boxed().toList()).zip(convert.asScala(values))
    return getattr(jvm.named("scala.collection.immutable.Map"), "from")(pairs)


def _partition_ids(jvm: _Jvm, operator: Any, number: int, epoch: int) -> Any:
    attempts = [_Attempt(info) for info in operator.checkpointInfoAccumulator().value().toArray()]
    seen: dict[int, list[str]] = {}
    for attempt in attempts:
        if seen.setdefault(attempt.partition, attempt.ids) != attempt.ids:
            msg = (
                f"ambiguous_snapshot: operator {number}, partition {attempt.partition} has several state ids, "
                "so a task ran more than once"
            )
            raise AmbiguousSnapshot(msg)
        if attempt.version != epoch + 1:
            msg = f"ambiguous_snapshot: operator {number} holds version {attempt.version} after epoch {epoch}"
            raise AmbiguousSnapshot(msg)
    infos = operator.getStateStoreCheckpointInfo()  # Spark's own choice and order, with its own checks
    array = jvm.gateway.new_array(jvm.named("java.lang.String"), len(infos), 0)
    for position, info in enumerate(infos):
        array[position] = info.stateStoreCkptId().get()
    return array


class _Attempt:
    """What one task reported about its partition."""

    def __init__(self, info: Any) -> None:
        self.partition = int(info.partitionId())
        self.version = int(info.batchVersion())
        self.ids = [str(each) for each in info.stateStoreCkptId().get()]


def _stateful(jvm: _Jvm, plan: Any) -> list[Any]:
    types = jvm.named("py4j.reflection.TypeUtil")
    writer = jvm.streaming_name("operators.stateful", "StateStoreWriter")
    found: list[Any] = []
    unvisited = [plan]
    while unvisited:
        node = unvisited.pop()
        if types.isInstanceOf(writer, node):
            found.append(node)
        children = node.children()
        unvisited.extend(children.apply(position) for position in range(children.size()))
    return found
