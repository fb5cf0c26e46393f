"""How Spark keeps a job's state: the formats behind `fp.MemoryState`, `fp.FileSystemState` and `fp.RocksDBState`.

Never changes what a checkpoint was created with: its files have one format for their whole life.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fencepost.config import Backend, MemoryState, RocksDBState
from fencepost.errors import BadConfig, CheckpointRefused, Where
from fencepost.guarantee import Guarantee, Link
from fencepost.spark import plan, spark_session
from fencepost.spark.jvm import release

STATE = "spark.fencepost.state"

UNSIGNED = ("delta", "snapshot", "changelog", "zip")
"""Files of one version of the state, named only by the version's number."""


def formats(backend: Backend) -> Mapping[str, str]:
    """The Spark settings for a backend."""
    if isinstance(backend, RocksDBState):
        return {**spark_session.FORMATS, spark_session.CHANGELOG: str(bool(backend.incremental)).lower()}
    return spark_session.HEAP_FORMATS


def check_same(asked: Backend | None, has: Mapping[str, str], *, job: str, path: str) -> None:
    """Refuse a backend that the checkpoint was not created with; a job that names none gets the checkpoint's own."""
    if asked is None or named(formats(asked)) == named(has):
        return
    raise CheckpointRefused(
        "state_changed",
        f"The checkpoint was created with {named(has)}, but the job asks for {named(formats(asked))}.",
        where=Where(job=job, path=path),
        next="Remove state=… from the job (the checkpoint's own is used), or set it to what the checkpoint was created "
        "with, or start with a new checkpoint.",
    )


def named(has: Mapping[str, str]) -> str:
    """The backend with these formats, as a user writes it."""
    if not has:
        return "plain Spark's own state format"
    if on_heap(has):
        return "fp.FileSystemState()"
    return f"fp.RocksDBState(incremental={has.get(spark_session.CHANGELOG) == 'true'})"


def on_heap(has: Mapping[str, str]) -> bool:
    """Is it Spark's heap provider, to which a state file has no name but its version?"""
    return has.get(spark_session.PROVIDER) == spark_session.HEAP_FORMATS[spark_session.PROVIDER]


def is_owned(has: Mapping[str, str]) -> bool:
    """Does our file class give state files on the heap the number of the driver that writes them?"""
    return spark_session.OWNED in has


def owning(has: Mapping[str, str], driver: str, decided: int) -> Mapping[str, str]:
    """What the file class has to know in one run: who writes, and up to which version others have written.

    `driver` is `<generation>-<writer>`: it rises with every start, also after a rewind. A reader has none.
    """
    if not is_owned(has):
        return {}
    return {**spark_session.EXCLUSIVE_FILES, f"{STATE}.driver": driver, f"{STATE}.decided": str(decided)}


def check_frames(frames: Sequence[Any], has: Mapping[str, str], job: str) -> None:
    """Refuse a plan whose state this Spark, or the heap, cannot hold."""
    spark: Any = frames[0].sparkSession
    old, parts = release(spark.version) < (4, 1), spark.conf.get("spark.sql.shuffle.partitions")
    if (
        old
        and has.get(spark_session.STATE_FORMAT) == "2"
        and parts != "1"
        and any(map(plan.has_state_in_one_partition, frames))
    ):
        raise BadConfig(
            "state_in_one_partition",
            "Spark 4.0 cannot keep the state of an aggregate over all rows, or of a limit, in files that carry ids "
            "(SPARK-53288): it expects one from every partition, but only one partition has any.",
            where=Where(job=job),
            next="Use Spark 4.1 or newer, state=fp.FileSystemState(), or spark.sql.shuffle.partitions=1.",
        )
    if plan.KEYED_STATE not in set().union(*map(plan.states_of, frames)):
        return
    what = "keyed state (transformWithState) needs"
    spark_session.need(spark.version, plan.KEYED_SINCE, what, where=Where(job=job))
    if on_heap(has):
        raise BadConfig(
            "keyed_state_needs_rocksdb",
            "Spark cannot keep keyed state (map_with_state, transformWithState) on the heap.",
            where=Where(job=job),
            next="Use state=fp.RocksDBState().",
        )


def links(spark: Any, frames: Sequence[Any], asked: Backend | None, has: Mapping[str, str], job: str) -> list[Link]:
    """The state as a link in the guarantee; none for a stateless job on a durable checkpoint.

    `has` are the formats that the checkpoint was created with, or will be.
    """
    check_frames(frames, has, job)
    stateful = any(map(plan.states_of, frames))
    if (
        stateful
        and not is_owned(has)
        and (hazard := spark_session.runs_tasks_twice(spark)) is not None
        and (link := _of_two(spark, has, hazard))
    ):
        return [link]
    if isinstance(asked, MemoryState):
        return [
            Link(
                "state in memory",
                Guarantee.EXACTLY_ONCE,
                "a failed query restarts in this process; when the process ends, state and checkpoint are lost, and "
                "sinks that remember their epochs refuse a new start",
            )
        ]
    if not stateful:
        return []
    if on_heap(has):
        reason = "one executor runs every task once, and a lock keeps a second driver out"
        if is_owned(has):
            reason = "its files carry the number of the driver, and one attempt of a task can write them"
        return [Link("state on the heap", Guarantee.EXACTLY_ONCE, reason)]
    if not has:
        return [Link("state as adopted", Guarantee.EXACTLY_ONCE, "in the format that plain Spark chose")]
    return [Link("state in RocksDB", Guarantee.EXACTLY_ONCE, "its files carry the id of the attempt that wrote them")]


def _of_two(spark: Any, has: Mapping[str, str], hazard: spark_session.Hazard) -> Link | None:
    """The state as a link if a task may run twice; None if that does not matter."""
    old = release(spark.version) < (4, 1)
    if on_heap(has):
        return Link(
            "state on the heap",
            Guarantee.AT_LEAST_ONCE,
            f"its files carry no attempt's id, and {hazard.what}: one attempt could overwrite another's",
            hazard.cure
            if old
            else f"{hazard.cure}, or use state=fp.RocksDBState() or a new checkpoint on hdfs:// or s3a://",
        )
    if old:
        return Link(
            "state in RocksDB on Spark 4.0",
            Guarantee.AT_LEAST_ONCE,
            f"{hazard.what}: this Spark may put a table of the first attempt into the snapshot of the second "
            "(SPARK-52637), which then cannot be read",
            f"use Spark 4.1 or newer, or {hazard.cure}",
        )
    return None


def cut(checkpoint: str, decided_version: int) -> None:
    """Where state files carry no attempt id: remove what an undecided epoch left behind.

    Its files have the names that the epoch's next run will use. That run overwrites a change (`N.delta`), but Spark
    would later prefer a full snapshot (`N.snapshot`) that an earlier attempt wrote.
    """
    for file in (Path(checkpoint) / "state").glob("*/*/**/*.*"):
        version, _, kind = file.name.removeprefix(".").partition(".")
        if version.isdigit() and int(version) > decided_version and kind.removesuffix(".crc") in UNSIGNED:
            file.unlink(missing_ok=True)
