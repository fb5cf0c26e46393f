"""One driver at a time, where state files carry no attempt's id: an older one could overwrite its successor's.

    taken before recovery ─► the query runs ─► its tasks have ended, its stores are closed ─► let go

The lock belongs to the JVM, which is who writes the state; the kernel takes it back when that dies, and not before. So
whoever holds it knows that no older driver writes, asleep or not. Never let go while a task of the query still runs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fencepost.checkpoints import reader
from fencepost.errors import CheckpointRefused, FencepostError, Where
from fencepost.ledger.local import make_folder

FILE = "fencepost/lock/state"
PATIENCE_S = 10.0
"""A JVM whose Python driver was killed lives on for some two seconds."""

NEWEST_JOBS = 8
"""Of a query that ended; those before are over, for an epoch begins when the one before has ended."""

STATE = "org.apache.spark.sql.execution.streaming.state"


class StateLock:
    """Held by this process's JVM until `release`, or until it dies."""

    def __init__(self, spark: Any, checkpoint: str, file: Any) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._file: Any = file  # py4j lets the JVM collect what Python no longer holds, and the lock would go with it

    @classmethod
    def take(cls, spark: Any, checkpoint: str, job: str) -> StateLock:
        """Wait a little for whoever holds it, then refuse."""
        path = Path(checkpoint) / FILE
        make_folder(path.parent)
        deadline = time.monotonic() + PATIENCE_S
        while (file := _try(spark, str(path))) is None:
            if time.monotonic() > deadline:
                raise CheckpointRefused(
                    "driver_alive",
                    f"Another driver{_who(checkpoint)} holds this checkpoint's state, whose files carry no attempt's "
                    "id.",
                    where=Where(job=job, path=checkpoint),
                    next="Stop that driver with its JVM (one that sleeps must be woken or killed), then start again.",
                )
            time.sleep(0.1)
        return cls(spark, checkpoint, file)

    def release(self, run_id: str | None = None) -> bool:
        """Let go, once nothing of the query with this run id can write any more; False if it still can, after a while.

        Then the lock stays with the JVM: the state is not safe from its tasks.
        """
        if self._file is None:
            return True
        deadline = time.monotonic() + PATIENCE_S
        while run_id is not None and (_tasks_run(self._spark, run_id) or self._stores_write(run_id)):
            if time.monotonic() > deadline:
                _KEPT.append(self)
                return False
            time.sleep(0.02)
        self._file.close()
        self._file = None
        _owners(self._spark).remove(_key(str(Path(self._checkpoint) / FILE)))
        return True

    def _stores_write(self, run_id: str) -> bool:
        """Close what the query loaded, then see whether one of Spark's threads is just writing a whole state.

        Spark keeps the stores of a query that ended and, when another query loads the same, first lets them write what
        they hold. Of an epoch that was dropped, that is state which nobody decided.
        """
        for store in stores_in(self._spark, self._checkpoint, run_id):
            _close(self._spark, store)
        return any(f"{STATE}.HDFSBackedStateStoreProvider.doSnapshot" in stack for stack in _stacks(self._spark))


_KEPT: list[StateLock] = []
"""Locks of queries whose tasks did not end: kept as long as the process lives."""


def stores_in(spark: Any, checkpoint: str, run_id: str) -> list[Any]:
    """Spark's names for every store that a query may have loaded from a checkpoint."""
    names = spark._jvm.org.apache.spark.sql.execution.streaming.state
    run = spark._jvm.java.util.UUID.fromString(run_id)
    root = Path(checkpoint) / "state"
    place = spark._jvm.org.apache.hadoop.fs.Path(root.as_uri()).toString()
    found = []
    for folder in root.glob("[0-9]*/[0-9]*"):
        within = [each.name for each in folder.iterdir() if each.is_dir() and not each.name.startswith("_")]
        operator, partition = spark._jvm.java.lang.Long.parseLong(folder.parent.name), int(folder.name)
        found += [names.StateStoreId(place, operator, partition, name) for name in ("default", *within)]
    return [names.StateStoreProviderId(store, run) for store in found]


def _close(spark: Any, store: Any) -> None:
    """Without a last look at its files, which Spark would give it."""
    from py4j.java_gateway import JavaClass  # noqa: PLC0415 - pyspark may be absent when this module is imported
    from py4j.protocol import Py4JError  # noqa: PLC0415 - as above

    stores: Any = getattr(JavaClass(f"{STATE}.StateStore$", spark.sparkContext._gateway._gateway_client), "MODULE$")
    try:
        stores.removeFromLoadedProvidersAndClose(store)
    except Py4JError:  # Spark 4.2 has a second argument
        stores.removeFromLoadedProvidersAndClose(store, spark._jvm.scala.Option.empty())


def _tasks_run(spark: Any, run_id: str) -> bool:
    """Is a task of the query still running? Spark ends a query before its tasks."""
    tracker = spark.sparkContext.statusTracker()
    newest = sorted(tracker.getJobIdsForGroup(run_id))[-NEWEST_JOBS:]
    jobs = [tracker.getJobInfo(number) for number in newest]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return any(stage is not None and stage.numActiveTasks > 0 for stage in stages)


def _stacks(spark: Any) -> list[str]:
    """What Spark's threads for the care of state are doing."""
    jvm = spark._jvm
    threads = jvm.java.lang.management.ManagementFactory.getThreadMXBean().dumpAllThreads(False, False)
    mine = [thread for thread in threads if thread is not None and "state-store" in thread.getThreadName()]
    return [" ".join(frame.toString() for frame in thread.getStackTrace()) for thread in mine]


def _try(spark: Any, path: str) -> Any:
    """The open file, locked; None if it is another's.

    POSIX takes a process's lock away when it closes any descriptor of the file. So the file is opened by one holder in
    this JVM only, which its system properties remember.
    """
    if _owners(spark).putIfAbsent(_key(path), "held") is not None:
        return None
    file = None
    try:
        file = spark._jvm.java.io.RandomAccessFile(path, "rw")
        if file.getChannel().tryLock() is not None:
            return file
        file.close()
    except BaseException:
        _owners(spark).remove(_key(path))
        raise
    _owners(spark).remove(_key(path))
    return None


def _owners(spark: Any) -> Any:
    return spark._jvm.java.lang.System.getProperties()


def _key(path: str) -> str:
    return f"fencepost.lock.{path}"


def _who(checkpoint: str) -> str:
    try:
        driver = reader.read(checkpoint).driver
    except FencepostError:
        return ""
    return f" (process {driver.pid} on {driver.host})" if driver else ""
