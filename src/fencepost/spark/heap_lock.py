"""One driver at a time where state files carry no attempt id: an older driver could overwrite its successor's.

    taken before recovery ─► the query runs ─► its tasks have ended, its stores are closed ─► released

The lock belongs to the JVM, because the JVM writes the state; the kernel releases it when the JVM dies, and not before.
So whoever holds it knows that no older driver can write, not even one that sleeps. Never released while a task of the
query is still running.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fencepost.errors import CheckpointRefused, FencepostError, Where
from fencepost.spark.jvm import release
from fencepost.store import ledger
from fencepost.store.local import make_folder

FILE = "fencepost/lock/state"
PATIENCE_S = 10.0
"""A JVM whose Python driver was killed lives on for about two seconds."""

RELEASE_S = 60.0
"""How long the end of a query waits for its tasks, and for Spark's maintenance of all stores of the session."""

NEWEST_JOBS = 8
"""How many Spark jobs of an ended query are checked; older ones are over, because epochs run one after another."""

EVENTS_MS = 1000

HELD, ENDING = "held", "ending"
"""What the JVM notes about a lock of its own: its query may run, or it waits for the query's tasks (RELEASE_S at most).

Who wants the lock meanwhile waits with it.
"""

QUIET_LOOKS = 3
"""A store that Spark is moving between its collections could be missed once, but not this many times."""

STATE = "org.apache.spark.sql.execution.streaming.state"
QUEUE = "unloadedProvidersToClose"
WRITES = (f"{STATE}.HDFSBackedStateStoreProvider.doSnapshot", f"{STATE}.StateStore$.doMaintenance")
"""The methods Spark's own threads are in while they write a state snapshot, or hand a store to a thread that will."""


class StateLock:
    """Held by this process's JVM until `release`, or until it dies."""

    def __init__(self, spark: Any, checkpoint: str, file: Any) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._file: Any = file  # if Python dropped it, the JVM would collect it, and the lock would be gone

    @classmethod
    def take(cls, spark: Any, checkpoint: str, job: str) -> StateLock:
        """Wait a little for the current holder, then refuse."""
        path = Path(checkpoint) / FILE
        make_folder(path.parent)
        began = time.monotonic()
        while (file := _try(spark, str(path))) is None:
            ending = _owners(spark).getProperty(_key(str(path))) == ENDING
            patience = PATIENCE_S + (RELEASE_S if ending else 0)
            if time.monotonic() > began + patience and not _release_kept(checkpoint):
                raise CheckpointRefused(
                    "driver_alive",
                    f"Another driver{_who(checkpoint)} holds the lock on this checkpoint's state. State on the heap "
                    "allows one driver at a time.",
                    where=Where(job=job, path=checkpoint),
                    next="Stop that driver and its JVM (kill it if it is suspended), then start the job again.",
                )
            time.sleep(0.1)
        return cls(spark, checkpoint, file)

    def release(self, run_id: str | None = None) -> bool:
        """Release the lock once nothing of the query with this run id can write any more; False if it still can.

        In that case the JVM keeps the lock, because its tasks may still change the state; who wants it asks again.
        """
        if self._file is None:
            return True
        key = _key(str(Path(self._checkpoint) / FILE))
        _owners(self._spark).setProperty(key, ENDING)
        deadline = time.monotonic() + RELEASE_S
        quiet = 0
        while run_id is not None and quiet < QUIET_LOOKS:
            quiet = 0 if _tasks_run(self._spark, run_id) or self._stores_write(run_id) else quiet + 1
            if not quiet and time.monotonic() > deadline:
                _KEPT.append((self, run_id))
                _owners(self._spark).setProperty(key, HELD)
                return False
            time.sleep(0.005)
        self._file.close()
        self._file = None
        _owners(self._spark).remove(key)
        return True

    def _stores_write(self, run_id: str) -> bool:
        """Close the stores that the query loaded, then check whether one of Spark's threads may still write a snapshot.

        Spark keeps the stores of an ended query. When another query loads the same ones, or when its maintenance runs
        (once a minute), it queues them and lets them write what they hold before it closes them. After a dropped
        epoch, that is state which was never decided.
        """
        stores = stores_in(self._spark, self._checkpoint, run_id)
        for store in stores:
            _close(self._spark, store)
        _close_queued(self._spark, run_id)
        tended = [held for name, held in _spark_stores(self._spark).items() if name.endswith("Partitions")]
        return any(held.contains(store) for held in tended for store in stores) or any(
            writes in stack for stack in _stacks(self._spark) for writes in WRITES
        )


_KEPT: list[tuple[StateLock, str]] = []
"""Locks of queries, by run id, whose tasks did not end in time."""


def _release_kept(checkpoint: str) -> bool:
    """Was a lock of this checkpoint kept, and have the tasks ended by now?"""
    kept = next((one for one in _KEPT if one[0]._checkpoint == checkpoint), None)
    if kept is None:
        return False
    _KEPT.remove(kept)
    lock, run_id = kept
    return lock.release(run_id)


def stores_in(spark: Any, checkpoint: str, run_id: str) -> list[Any]:
    """Spark's ids of all stores that a query may have loaded from a checkpoint."""
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
    """Close a store without the final maintenance that Spark would run."""
    from py4j.java_gateway import JavaClass  # noqa: PLC0415 - pyspark may be absent when this module is imported

    stores: Any = getattr(JavaClass(f"{STATE}.StateStore$", spark.sparkContext._gateway._gateway_client), "MODULE$")
    match release(spark.version):
        case (4, 0):
            stores.unload(store)
        case (4, 1 | 2):
            stores.removeFromLoadedProvidersAndClose(store, spark._jvm.scala.Option.empty())
        case _:
            stores.removeFromLoadedProvidersAndClose(store)


def _spark_stores(spark: Any) -> dict[str, Any]:
    """The collections where Spark keeps its stores: private, and different from version to version."""
    registry = spark._jvm.java.lang.Class.forName(f"{STATE}.StateStore$")
    found = {}
    for field in registry.getDeclaredFields():
        if field.getName() == QUEUE or field.getName().endswith("Partitions"):
            field.setAccessible(True)
            found[field.getName()] = field.get(None)
    return found


def _close_queued(spark: Any, run_id: str) -> None:
    """Remove a query's stores from the queue of those that may write once more, and close them."""
    queue: Any = _spark_stores(spark).get(QUEUE)
    for entry in queue.toArray() if queue is not None else []:
        if entry._1().queryRunId().toString() == run_id and queue.remove(entry):
            entry._2().close()


def _tasks_run(spark: Any, run_id: str) -> bool:
    """Is a task of the query still running? Spark ends a query before its tasks, and learns about them from events."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - pyspark may be absent when this module is imported

    try:
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(EVENTS_MS)
    except Py4JError:  # too many queued events: what we know may be stale
        return True
    tracker = spark.sparkContext.statusTracker()
    newest = sorted(tracker.getJobIdsForGroup(run_id))[-NEWEST_JOBS:]
    jobs = [tracker.getJobInfo(number) for number in newest]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return any(stage is not None and stage.numActiveTasks > 0 for stage in stages)


def _stacks(spark: Any) -> list[str]:
    """The stack traces of Spark's state store threads."""
    jvm = spark._jvm
    threads = jvm.java.lang.management.ManagementFactory.getThreadMXBean().dumpAllThreads(False, False)
    mine = [thread for thread in threads if thread is not None and "state-store" in thread.getThreadName()]
    return [" ".join(frame.toString() for frame in thread.getStackTrace()) for thread in mine]


def _try(spark: Any, path: str) -> Any:
    """The open, locked file; None if somebody else has the lock.

    POSIX drops a process's lock when the process closes any descriptor of the file. So only one holder in this JVM may
    open it, which is recorded in the JVM's system properties.
    """
    if _owners(spark).putIfAbsent(_key(path), HELD) is not None:
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
        driver = ledger.read(checkpoint).driver
    except FencepostError:
        return ""
    return f" (process {driver.pid} on {driver.host})" if driver else ""
