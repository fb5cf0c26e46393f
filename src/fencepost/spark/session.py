"""The Spark session: made with good settings, or the user's own, checked.

Settings that a query needs are set in a session that the user brought only while it starts (Spark copies them into the
query) and put back. Two stay, for Spark reads them later: `CHECKPOINT_FILES` and `CHECKED_BY_US`.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from fencepost import shipped
from fencepost.errors import BadConfig, Where
from fencepost.ledger.places import is_remote, scheme_of
from fencepost.spark import commanded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAR = shipped.path("fencepost.spark", "fencepost.jar")

SINK = "fencepost.EpochSink"
"""The class by which we know that our jar is there."""

SUPPORTED = ("4.2", "4.3")

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"

FORMATS: Mapping[str, str] = {
    # Incremental checkpoints: what an epoch writes grows with what changed, not with the state.
    PROVIDER: "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    CHANGELOG: "true",
    # State files carry the id of the attempt that wrote them; under version 1 any attempt may overwrite another's.
    STATE_FORMAT: "2",
}
"""Fixed at a checkpoint's first start, so chosen once and well."""

HEAP_FORMATS: Mapping[str, str] = {
    PROVIDER: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    STATE_FORMAT: "1",  # Spark's heap provider knows no other
}
"""The same, for state on the heap."""

KEYED_STATE: Mapping[str, str] = {
    # A field can be added to the state later; Spark takes this encoding for transformWithState only.
    "spark.sql.streaming.stateStore.encodingFormat": "avro",
}
"""Fixed at the first start of a job whose only state is keyed state of its own."""

CHECKED_BY_US: Mapping[str, str] = {
    # State of a first epoch that was never decided may lie there, under ids that nobody names; the ledger knows better
    # than an empty folder whether this checkpoint is the job's own.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
}
"""Spark looks at it when the query's own thread begins, in the session that started it; so it stays there."""

CHECKPOINT_FILES: Mapping[str, str] = {"fs.AbstractFileSystem.file.impl": "fencepost.DurableFs"}
"""`file:` without a process per file operation, with fsync, and with a rename that never overwrites: Spark's way to
offsets, commits, source logs and state. Sources read it after the query started, so it stays in the session."""

STATE_FILES: Mapping[str, str] = {
    "fs.file.impl": "fencepost.DurableLocal",
    # A session that ran before us has cached Hadoop's own class under the same name.
    "fs.file.impl.disable.cache": "true",
}
"""The same for the other way to `file:`, by which state snapshots are copied; for the one query that starts."""

EXCLUSIVE_FILES: Mapping[str, str] = {"spark.sql.streaming.checkpointFileManagerClass": "fencepost.ExclusiveFiles"}
"""On s3a one PUT a file, refused if the name is taken; elsewhere what Spark would take. It stays in the session too."""

WITHOUT_JAR = (
    "without the jar: epochs pass through foreachBatch and the driver's memory, which is slower; "
    "and on a local disk Spark does not fsync, so a power cut (not a crash) may damage the checkpoint"
)

STAGE_ATTEMPTS = "spark.stage.maxConsecutiveAttempts"
RETAINED = "spark.sql.streaming.minBatchesToRetain"

HDFS_CLOSE = "spark.hadoop.dfs.client.block.write.locateFollowingBlock"

OWN: Mapping[str, str] = {
    "spark.python.unix.domain.socket.enabled": "true",  # 40 ms less per Python stage
    # A file that is closed before its DataNode reported the block is asked for again after 400 ms; each of Spark's log
    # files is such a one, and our records. Sooner, and as long in all.
    f"{HDFS_CLOSE}.initial.delay.ms": "10",
    f"{HDFS_CLOSE}.retries": "10",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings of a session that we make."""


LOCAL: Mapping[str, str] = {
    # One machine needs no port that others can reach.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Here a shuffle file is lost only by a broken disk; the epoch then runs again as a whole, not some of its tasks.
    STAGE_ATTEMPTS: "1",
}
"""Settings of a session that we make on one machine; `conf` overrides them."""

EXECUTORS_PYTHON = "spark.pyspark.python"
"""spark-submit heeds it, and pyspark does not when it is started by python itself."""


def make_session(job: str, conf: Mapping[str, str], *, jar: bool = True) -> SparkSession:
    """Make a session for one job, or take the one that runs in this process already.

    The master is the command line's, or that of `conf`, or whichever Spark itself would take: spark-submit's, that of
    PYSPARK_SUBMIT_ARGS, of spark-defaults.conf or of MASTER; without any, this machine.
    """
    sql = _import_pyspark(job)
    active = sql.SparkSession.getActiveSession()
    if active is not None:
        return active  # type: ignore[no-any-return]
    settings = {**OWN, **conf, **commanded.told()}
    if jar:
        # A session stopped earlier in this process leaves its JVM, and a JVM's class path cannot grow.
        paths = [str(JAR), settings.get("spark.driver.extraClassPath")]
        settings["spark.driver.extraClassPath"] = os.pathsep.join(filter(None, paths))
    python = os.environ.get("PYSPARK_PYTHON")
    if python is None:  # Otherwise Spark takes whichever python3 is on the PATH, with none of this one's packages.
        os.environ["PYSPARK_PYTHON"] = sys.executable
    if is_local(_master(settings)):
        settings = {**_alone(settings, jar=jar), **settings}
    elif EXECUTORS_PYTHON in settings:
        os.environ["PYSPARK_PYTHON"] = settings[EXECUTORS_PYTHON]
    elif python is None:  # the path of this one means nothing on another machine
        del os.environ["PYSPARK_PYTHON"]
    builder = sql.SparkSession.builder.appName(job)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()  # type: ignore[no-any-return]


def is_local(master: str) -> bool:
    """Do the tasks run in the driver's own process?"""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def _master(settings: Mapping[str, str]) -> str:
    """The master of a session with these settings. Spark itself is asked, for there are many places to name one."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - pyspark may be absent when this module is imported

    given = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        given.set(key, value)
    SparkContext._ensure_initialized(conf=given)  # starts the JVM, as the session would
    return settings.get(commanded.MASTER) or SparkConf().get(commanded.MASTER) or "local[*]"


def _alone(settings: Mapping[str, str], *, jar: bool) -> dict[str, str]:
    """What else a session has whose tasks run in this process, where nobody says otherwise."""
    found = {f"spark.hadoop.{key}": value for key, value in CHECKPOINT_FILES.items()} if jar else {}
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit was told what it was told
        found |= {**LOCAL, "spark.sql.shuffle.partitions": str(len(os.sched_getaffinity(0)))}
    return found


def version(job: str) -> str:
    """The version of the Spark that would run."""
    _import_pyspark(job)
    import pyspark  # noqa: PLC0415 - it is there

    return str(pyspark.__version__)


def check_session(spark: Any, job: str | None) -> None:
    """Refuse a session that cannot carry the protocol."""
    where = Where(job=job)
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise BadConfig(
            "spark_connect",
            "This is a Spark Connect session: the driver that writes the checkpoint is in another process.",
            where=where,
            next="Run the job with a classic session (spark-submit, or a local SparkSession).",
        )
    master = commanded.told().get(commanded.MASTER)
    if master is not None and spark.sparkContext.master != master:
        raise BadConfig(
            "other_master",
            f"The command line names the master {master}, and the file made a session with "
            f"{spark.sparkContext.master}.",
            where=where,
            next="Let the file name no master, or leave --master out.",
        )
    if not spark.version.startswith(tuple(f"{version}." for version in SUPPORTED)):
        raise BadConfig(
            "unsupported_spark",
            f"Spark {spark.version} is not supported.",
            where=where,
            next=f"Use Spark {' or '.join(SUPPORTED)}.",
        )
    if spark.conf.get("spark.python.udf.pipelined.enabled", "false") == "true":
        raise BadConfig(
            "pipelined_udf",
            "spark.python.udf.pipelined.enabled breaks Python stages over unix domain sockets.",
            where=where,
            next="Switch it off.",
        )


def bring_jar(spark: Any) -> bool:
    """See that our Java classes can be found in this session, also one that runs already; False if they cannot.

    `ADD JAR` would load them for the driver and, under another loader, for the tasks; so the jar goes to the loader at
    the top, which both share. Executors elsewhere, also those that start later, fetch it from the driver.
    """
    if not finds_class(spark, SINK):
        return add_jars(spark, [str(JAR)]) and finds_class(spark, SINK)
    context = spark.sparkContext
    if not is_local(context.master) and JAR.name not in context._jsc.sc().listJars().mkString("\n"):
        context._jsc.addJar(str(JAR))
    return True


def bring_python(spark: Any) -> None:
    """See that tasks elsewhere can import this package: the version that made their plan, whatever is installed there.

    Needed only by what runs Python of ours in tasks, and before it is put into a plan.
    """
    context = spark.sparkContext
    if not is_local(context.master) and shipped.archive().name not in context._python_includes:
        context.addPyFile(str(shipped.archive()))


def add_jars(spark: Any, jars: Sequence[str]) -> bool:
    """Add jars to a session that runs already, for the driver and the executors; False if it takes none."""
    jvm = spark._jvm
    loader, top = jvm.java.lang.Thread.currentThread().getContextClassLoader(), None
    while loader is not None:
        if jvm.py4j.reflection.TypeUtil.isInstanceOf("org.apache.spark.util.MutableURLClassLoader", loader):
            top = loader
        loader = loader.getParent()
    if top is None:
        return False
    for jar in jars:
        top.addURL(jvm.java.io.File(jar.removeprefix("file:")).toURI().toURL())
        spark.sparkContext._jsc.addJar(jar)
    return True


NO_EMPTY_EPOCHS: Mapping[str, str] = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
"""For a run that ends when all is processed: under keyed state by the clock on the wall, epochs without records never
end."""


def epochs_retained(spark: Any) -> int:
    """How many epochs Spark keeps; the ledger never keeps fewer."""
    return int(spark.conf.get(RETAINED))


def keeping(epochs: int) -> Mapping[str, str]:
    """Settings of a query that keeps so many epochs, and sums of their state by which damage is seen."""
    return {RETAINED: str(epochs), "spark.sql.streaming.checkpoint.fileChecksum.enabled": "true"}


class Problem(NamedTuple):
    """Something about a session, and what to do about it."""

    what: str
    cure: str


def runs_tasks_twice(spark: Any) -> Problem | None:
    """Why a task's state might be written by two attempts in this session; None if it cannot be."""
    context = spark.sparkContext
    if re.fullmatch(r"local(\[(\d+|\*)(, *1)?\])?", context.master) is None:
        more = "tasks that fail are tried again" if context.master.startswith("local[") else "there are more executors"
        return Problem(f"with master {context.master} {more}", "run with master local[*] or local[N] (one executor)")
    settings = context.getConf()
    if settings.get("spark.speculation", "false") == "true":
        return Problem("spark.speculation is on", "switch spark.speculation off")
    if settings.get(STAGE_ATTEMPTS, "4") != "1":
        return Problem("a stage that lost its input is tried again", f"set {STAGE_ATTEMPTS}=1 when the session is made")
    return None


def trust_the_ledger(spark: Any) -> None:
    """Switch off Spark's guesses about whose checkpoint this is: recovery has just made sure."""
    for key, value in CHECKED_BY_US.items():
        spark.conf.set(key, value)


def checkpoint_files(spark: Any, checkpoint: str) -> Mapping[str, str]:
    """How Spark keeps this checkpoint's files; returns the settings that only the query needs.

    On s3a through our own class: Spark's renames there, which is copy and delete, and lets a driver that slept
    overwrite its successor's `offsets/N`. HDFS has a rename that never overwrites, and needs nothing.
    """
    scheme = scheme_of(checkpoint) if is_remote(checkpoint) else "file"
    for key, value in {"file": CHECKPOINT_FILES, "s3a": EXCLUSIVE_FILES}.get(scheme, {}).items():
        spark.conf.set(key, value)
    return STATE_FILES if scheme == "file" else {}


class JvmGone(Exception):
    """Nobody answers at the other end of py4j any more."""


_STARTING = threading.RLock()
"""Two jobs that start at once in one session must not take back each other's settings."""


@contextmanager
def settings(spark: Any, wanted: Mapping[str, str]) -> Iterator[None]:
    """Set these while a query starts, then put back what was there."""
    with _STARTING:
        before = {key: spark.conf.get(key, None) for key in wanted}
        for key, value in wanted.items():
            spark.conf.set(key, value)
        try:
            yield
        finally:
            for key, old in before.items():
                if old is None:
                    spark.conf.unset(key)
                else:
                    spark.conf.set(key, old)


def running(spark: Any) -> set[str]:
    """Names of the queries that run in this session."""
    return {query.name for query in spark.streams.active if query.name}


def ended(query: Any, seconds: float) -> bool:
    """Wait for a query's end, or for some seconds; True if it ended, however it did."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - as below

    try:
        return bool(query.awaitTermination(seconds))
    except StreamingQueryException:
        return True
    except Exception as error:
        if isinstance(error, OSError) or says_gone(error):
            raise JvmGone from error
        raise


def says_gone(error: BaseException) -> bool:
    """Does an error of py4j's say that the JVM is no more?"""
    from py4j.protocol import Py4JError, Py4JNetworkError  # noqa: PLC0415 - pyspark may be absent when this is imported

    # An answer that never came is an error without a trace: one of Java's has one.
    lost = type(error) is Py4JError and "Trace:" not in str(error)
    return lost or isinstance(error, (ConnectionError, Py4JNetworkError))


def finds_class(spark: Any, name: str) -> bool:
    """Does this session know a Java class?"""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - pyspark may be absent when this module is imported

    try:
        spark._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return False
    return True


def _import_pyspark(job: str) -> Any:
    try:
        import pyspark.sql  # noqa: PLC0415 - the sentence below is worth more than a traceback
    except ImportError as error:
        raise BadConfig(
            "no_pyspark",
            "PySpark is not installed.",
            where=Where(job=job),
            next="pip install 'fencepost[spark]'",
        ) from error
    return pyspark.sql
