"""The Spark session: created with good settings, or the user's own, checked.

In a session that the user brought, the settings a query needs are set only while it starts (Spark copies them into the
query) and then put back. Those of `lasting` stay, because Spark reads them later; `fencepost check` names them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost import credential
from fencepost.errors import UNCHANGED, BadConfig, Where
from fencepost.spark import gateway, package
from fencepost.spark.jvm import finds_class, release
from fencepost.store.base import Remote
from fencepost.store.path import is_remote, provide, scheme_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAR = package.path("fencepost.spark", "fencepost.jar")

SINK = "fencepost.EpochSink"
"""The class that tells us whether our jar is loaded."""

SUPPORTED = ("4.0", "4.1", "4.2", "4.3")

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"

FORMATS: Mapping[str, str] = {
    # Incremental checkpoints: what an epoch writes grows with what changed, not with the state.
    PROVIDER: "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    CHANGELOG: "true",
    # State files carry the id of the attempt that wrote them; in version 1 any attempt may overwrite another's.
    STATE_FORMAT: "2",
}
"""Fixed at a checkpoint's first start, so chosen with care."""

HEAP_FORMATS: Mapping[str, str] = {
    PROVIDER: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    STATE_FORMAT: "1",  # the only one that Spark's heap provider supports
}
"""The same, for state on the heap."""

OWNED = "spark.fencepost.state.owned"
"""Set for a checkpoint whose state files on the heap carry the number of the driver: our file class names them."""

KEYED_STATE: Mapping[str, str] = {
    # Fields can be added to the state later; Spark supports this encoding for transformWithState only.
    "spark.sql.streaming.stateStore.encodingFormat": "avro",
}
"""Fixed at the first start of a job whose only state is keyed state."""

CHECKED_BY_US: Mapping[str, str] = {
    # An undecided first epoch may have left state there, under ids that nothing refers to; the ledger knows better than
    # an empty folder whether this checkpoint belongs to the job.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
}
"""The query's thread reads it from the session after the start; so it stays there."""

CHECKPOINT_FILES: Mapping[str, str] = {"fs.AbstractFileSystem.file.impl": "fencepost.DurableFs"}
"""`file:` without a process per file operation, with fsync, and with a rename that never overwrites: what Spark uses
for offsets, commits, source logs and state. Sources read it after the query has started, so it stays in the session."""

STATE_FILES: Mapping[str, str] = {
    "fs.file.impl": "fencepost.DurableLocal",
    # A session that ran before us has cached Hadoop's own class under the same name.
    "fs.file.impl.disable.cache": "true",
}
"""The same for the other API for `file:`, which copies state snapshots; set only for the query that starts."""

EXCLUSIVE_FILES: Mapping[str, str] = {"spark.sql.streaming.checkpointFileManagerClass": "fencepost.ExclusiveFiles"}
"""On s3a one PUT per file, refused if the name is taken; elsewhere Spark's default. It stays in the session too."""

WITHOUT_JAR = (
    "without the jar: epochs pass through foreachBatch and the driver's memory, which is slower; "
    "and on a local disk Spark does not fsync, so a power cut (not a crash) may damage the checkpoint"
)

STAGE_ATTEMPTS = "spark.stage.maxConsecutiveAttempts"
RETAINED = "spark.sql.streaming.minBatchesToRetain"

HDFS_CLOSE = "spark.hadoop.dfs.client.block.write.locateFollowingBlock"

OWN: Mapping[str, str] = {
    "spark.python.unix.domain.socket.enabled": "true",  # 40 ms less per Python stage
    # When a file is closed before its DataNode has reported the block, the client retries after 400 ms; that happens
    # with each of Spark's log files and with our records. Retry sooner, for as long in total.
    f"{HDFS_CLOSE}.initial.delay.ms": "10",
    f"{HDFS_CLOSE}.retries": "10",
    "spark.ui.showConsoleProgress": "false",
    # When a shuffle file is lost, compare what the rerun task gives with what others have read: the default since 4.2.
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}
"""Settings of a session that we create."""


LOCAL: Mapping[str, str] = {
    # One machine needs no port that others can reach.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Here only a broken disk can lose a shuffle file; then the whole epoch reruns, not just some of its tasks.
    STAGE_ATTEMPTS: "1",
}
"""Settings of a session that we create on one machine; `conf` overrides them."""

EXECUTORS_PYTHON = "spark.pyspark.python"
"""spark-submit reads it; pyspark started from plain python does not."""


def make_session(
    job: str, conf: Mapping[str, str], *, jar: bool = True, jvm_options: str | None = None
) -> SparkSession:
    """Create a session for one job, or use the one that is already active in this process.

    `jvm_options` are in place of ours; with 'none' there are none.

    The master comes from the command line, or from `conf`, or from wherever Spark itself looks: spark-submit,
    PYSPARK_SUBMIT_ARGS, spark-defaults.conf or MASTER; failing that, it is this machine.
    """
    sql = _import_pyspark(job)
    active = sql.SparkSession.getActiveSession()
    if active is not None:
        return active  # type: ignore[no-any-return]
    settings = {**OWN, **_from_environment(conf), **told()}
    if jar:
        # A session stopped earlier in this process leaves its JVM running, and a JVM's class path cannot grow.
        paths = [str(JAR), settings.get("spark.driver.extraClassPath")]
        settings["spark.driver.extraClassPath"] = os.pathsep.join(filter(None, paths))
    python = os.environ.get("PYSPARK_PYTHON")
    if python is None:  # Otherwise Spark takes whichever python3 is on the PATH, with none of this one's packages.
        os.environ["PYSPARK_PYTHON"] = sys.executable
    if is_local(_master(settings, job, jvm_options)):
        settings = {**_alone(settings, jar=jar), **settings}
    elif EXECUTORS_PYTHON in settings:
        os.environ["PYSPARK_PYTHON"] = settings[EXECUTORS_PYTHON]
    elif python is None:  # the path of this Python means nothing on another machine
        del os.environ["PYSPARK_PYTHON"]
    builder = sql.SparkSession.builder.appName(job)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()  # type: ignore[no-any-return]


def is_local(master: str) -> bool:
    """Do the tasks run in the driver's own process?"""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def _master(settings: Mapping[str, str], job: str, jvm_options: str | None) -> str:
    """The master of a session with these settings. We ask Spark itself, because there are many places to set it."""
    from pyspark import SparkConf  # noqa: PLC0415 - pyspark may be absent when this module is imported

    given = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        if not is_secret(key):  # pyspark makes arguments of these, which `ps` shows; the session gets the others later
            given.set(key, value)
    gateway.start(given, job, jvm_options)
    return settings.get(MASTER) or SparkConf().get(MASTER) or "local[*]"


def _alone(settings: Mapping[str, str], *, jar: bool) -> dict[str, str]:
    """Further defaults for a session whose tasks run in this process."""
    found = {f"spark.hadoop.{key}": value for key, value in CHECKPOINT_FILES.items()} if jar else {}
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # under spark-submit, its own settings stand
        found |= {**LOCAL, "spark.sql.shuffle.partitions": str(len(os.sched_getaffinity(0)))}
    return found


def version(job: str) -> str:
    """The installed version of Spark."""
    _import_pyspark(job)
    import pyspark  # noqa: PLC0415 - it is there

    return str(pyspark.__version__)


def active_context() -> Any:
    """The active context in this process, whoever started it; None without one. Never imports pyspark for that."""
    pyspark: Any = sys.modules.get("pyspark")
    return pyspark and pyspark.SparkContext._active_spark_context


def _hadoop() -> Remote | None:
    context = active_context()
    if context is None:
        return None
    from fencepost.spark.hadoop import through  # noqa: PLC0415 - it needs this module

    return through(context)


def ask_jvm() -> None:
    """Return if Spark's JVM answers or there is none; blocks on a frozen JVM, raises on a dead one."""
    if (context := active_context()) is not None:
        context._jvm.java.lang.System.nanoTime()


# At import, so that a session which the user created before is found too.
provide(_hadoop)


def check_session(spark: Any, job: str | None) -> None:
    """Refuse a session that does not work with fencepost."""
    where = Where(job=job)
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise BadConfig(
            "spark_connect",
            "Spark Connect is not supported: the driver that writes the checkpoint is in another process.",
            where=where,
            next="Run the job with a classic session (spark-submit, or a local SparkSession).",
        )
    master = told().get(MASTER)
    if master is not None and spark.sparkContext.master != master:
        raise BadConfig(
            "other_master",
            f"The command line says --master {master}, but the file created a session with master "
            f"{spark.sparkContext.master}.",
            where=where,
            next="Remove the master from the file, or leave out --master.",
        )
    if not spark.version.startswith(tuple(f"{version}." for version in SUPPORTED)):
        raise BadConfig(
            "unsupported_spark",
            f"Spark {spark.version} is not supported.",
            where=where,
            next=f"Use Spark {SUPPORTED[0]} to {SUPPORTED[-1]}.",
        )
    if spark.conf.get("spark.python.udf.pipelined.enabled", "false") == "true":
        raise BadConfig(
            "pipelined_udf",
            "spark.python.udf.pipelined.enabled=true breaks Python stages over Unix domain sockets.",
            where=where,
            next="Set spark.python.udf.pipelined.enabled=false.",
        )


def need(version: str, least: tuple[int, int], what: str, *, where: Where, instead: str = "") -> None:
    """Refuse what only a newer Spark can do, or can do exactly."""
    if release(version) < least:
        newer = f"Spark {least[0]}.{least[1]} or newer"
        raise BadConfig(
            "needs_newer_spark",
            f"This is Spark {version}, and {what} {newer}.",
            where=where,
            next=f"{instead or 'Use'} {newer}.",
        )


def bring_jar(spark: Any) -> bool:
    """Make our Java classes available in this session, even one that is already running; False if that fails.

    `ADD JAR` would load them once for the driver and, with another class loader, again for the tasks; so the jar goes
    to the top class loader, which both share. Remote executors, including later ones, fetch it from the driver.
    """
    if not finds_class(spark, SINK):
        return add_jars(spark, [str(JAR)]) and finds_class(spark, SINK)
    context = spark.sparkContext
    if not is_local(context.master) and JAR.name not in context._jsc.sc().listJars().mkString("\n"):
        context._jsc.addJar(str(JAR))
    return True


def no_jar(what: str, instead: str = "") -> BadConfig:
    """The error for when `bring_jar` failed and something needs the jar."""
    return BadConfig(
        "no_jar",
        f"fencepost.jar could not be added to this session, and {what} needs it.",
        next=f"Start the session with the jar (fencepost.spark.spark_session.JAR) in spark.jars{instead}.",
    )


def bring_python(spark: Any) -> None:
    """Make this package importable in remote tasks, in the version that built their plan, whatever is installed there.

    Needed only where our Python runs in tasks, and before it becomes part of a plan.
    """
    context = spark.sparkContext
    if not is_local(context.master) and package.archive().name not in context._python_includes:
        context.addPyFile(str(package.archive()))


def send_whole(module: str) -> None:
    """Let Spark send what this module defines to its workers, who cannot import it. It does so for `__main__`."""
    with suppress(ImportError):  # without pyspark nothing is sent
        from pyspark import cloudpickle  # noqa: PLC0415 - pyspark may be absent when this module is imported

        cloudpickle.register_pickle_by_value(sys.modules.setdefault(module, ModuleType(module)))


def add_jars(spark: Any, jars: Sequence[str]) -> bool:
    """Add jars to a running session, for the driver and the executors; False if it accepts none."""
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
"""For a run that ends when everything is processed: with keyed state on processing time, empty epochs would never
stop."""


def epochs_retained(spark: Any) -> int:
    """How many epochs Spark keeps; the ledger never keeps fewer."""
    return int(spark.conf.get(RETAINED))


def keeping(epochs: int, formats: Mapping[str, str]) -> Mapping[str, str]:
    """Settings of a query that keeps so many epochs, and sums of their state by which damage is seen.

    Under format 1 two attempts write files of one name, and Spark 4.1 then compares the sum of one with the file of the
    other; from 4.2 on it writes none there by itself. Spark 4.0 has no sums: the ledger keeps them.
    """
    sums = "true" if formats.get(STATE_FORMAT) == "2" else "false"
    return {RETAINED: str(epochs), "spark.sql.streaming.checkpoint.fileChecksum.enabled": sums}


class Hazard(NamedTuple):
    """A problem with a session, and the fix."""

    what: str
    cure: str


def runs_tasks_twice(spark: Any) -> Hazard | None:
    """Why two attempts might write a task's state in this session; None if they cannot."""
    context = spark.sparkContext
    if re.fullmatch(r"local(\[(\d+|\*)(, *1)?\])?", context.master) is None:
        more = "failed tasks are retried" if context.master.startswith("local[") else "there are several executors"
        return Hazard(f"with master {context.master} {more}", "run with master local[*] or local[N] (one executor)")
    settings = context.getConf()
    if settings.get("spark.speculation", "false") == "true":
        return Hazard("spark.speculation is on", "set spark.speculation=false")
    if settings.get(STAGE_ATTEMPTS, "4") != "1":
        return Hazard("a stage that lost its input is retried", f"set {STAGE_ATTEMPTS}=1 when creating the session")
    return None


def lasting(checkpoint: str, *, jar: bool) -> Mapping[str, str]:
    """The settings that a start leaves in the session: no guess of Spark's whose checkpoint this is, because recovery
    has just verified it; and how Spark writes its files, which sources ask for after the start.

    On s3a through our own class: Spark's own renames files, which on s3a is copy and delete, so a driver that slept
    could overwrite its successor's `offsets/N`. HDFS has a rename that never overwrites, and needs nothing.
    """
    scheme = scheme_of(checkpoint) if is_remote(checkpoint) else "file"
    files = {"file": CHECKPOINT_FILES if jar else {}, "s3a": EXCLUSIVE_FILES}.get(scheme, {})
    return {**CHECKED_BY_US, **files}


def leave(spark: Any, wanted: Mapping[str, str]) -> None:
    """Set these for as long as the session lives."""
    for key, value in wanted.items():
        spark.conf.set(key, value)


class JvmGone(Exception):
    """The JVM at the other end of py4j no longer answers."""


_STARTING = threading.RLock()
"""Two jobs that start at the same time in one session must not undo each other's settings."""


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
    """Names of the queries running in this session."""
    return {query.name for query in spark.streams.active if query.name}


LISTED_S: Final = 10.0
"""So long at most until a query that ended is off Spark's list."""


def ended(query: Any, seconds: float) -> bool:
    """Wait up to some seconds for a query to end; True if it ended, however it did."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - as below

    try:
        # Spark says so while it still lists the query as active; asked again, it answers once that is over.
        return bool(query.awaitTermination(seconds) and query.awaitTermination(LISTED_S))
    except StreamingQueryException:
        return True
    except Exception as error:
        if isinstance(error, OSError) or says_gone(error):
            raise JvmGone from error
        raise


def says_gone(error: BaseException) -> bool:
    """Does this py4j error mean that the JVM is gone?"""
    from py4j.protocol import Py4JError, Py4JNetworkError  # noqa: PLC0415 - pyspark may be absent when this is imported

    # An error raised in Java has a trace; one without means that no answer came.
    lost = type(error) is Py4JError and "Trace:" not in str(error)
    return lost or isinstance(error, (ConnectionError, Py4JNetworkError))


@contextmanager
def jvm_may_be_gone() -> Iterator[None]:
    """Ignore an error that means that the JVM is gone."""
    try:
        yield
    except Exception as error:
        if not says_gone(error):
            raise


def _import_pyspark(job: str) -> Any:
    try:
        import pyspark.sql  # noqa: PLC0415 - the error below is more useful than a traceback
    except ImportError as error:
        raise BadConfig(
            "no_pyspark",
            "PySpark is not installed.",
            where=Where(job=job),
            next="pip install 'fencepost[spark]'",
        ) from error
    return pyspark.sql


# --- a checkpoint on a local path and remote executors: do they all see the same folder?
#
# They may, on NFS or on one machine; so we try it instead of guessing from the path or from host names:
#
#     driver    writes a file into a folder with a random name
#     tasks     one on each executor: see that file, and write one of their own beside it
#     driver    sees all of theirs, and removes the folder
#
# Needs no package of ours, or any other, where the tasks run. Executors that start later are not checked.

TRIAL: Final = ".shared-"
"""Prefix of the folder's name, below the checkpoint."""
SETTLED_S: Final = 1.0
"""Executors of a new session arrive one by one; when none has arrived for this long, those that are there are asked."""


class Executor(NamedTuple):
    """One executor of the session."""

    id: str
    host: str

    @property
    def place(self) -> str:
        """Spark's preferred location for a task on this executor."""
        return f"executor_{self.host}_{self.id}"


class Answer(NamedTuple):
    """What one executor reported."""

    number: int
    host: str
    """Its own name for itself."""
    wrote: bool


def check(spark: Any, path: str, job: str) -> None:
    """Refuse a local checkpoint that an executor does not share with the driver."""
    if is_local(spark.sparkContext.master):
        return
    checkpoint = Path(path)
    folder, is_new = checkpoint / f"{TRIAL}{uuid.uuid4().hex}", not checkpoint.exists()
    folder.mkdir(parents=True)
    try:
        (folder / "driver").touch()
        executors = _executors(spark)
        answers = _asked(spark, executors, str(folder))
        # Count only files that the driver itself can see.
        apart = [one for one in answers if not (one.wrote and (folder / str(one.number)).exists())]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if is_new:
            checkpoint.rmdir()  # a refused job leaves nothing behind
    if apart:
        host = f"{apart[0].host} ({executors[apart[0].number].host})"
        raise BadConfig(
            "checkpoint_not_shared",
            f"The executor on {host} cannot use the checkpoint's folder: it sees a different folder at this path, or "
            "may not write to it.",
            where=Where(job=job, path=path),
            next="Put the checkpoint where the driver and all executors can write (hdfs://…, s3a://…, or a mount that "
            "every host has), or run with master local[*].",
        )


def _executors(spark: Any) -> list[Executor]:
    """All executors, once they have arrived."""
    spark.range(1).count()  # some clusters start no executor without work
    store = spark.sparkContext._jsc.sc().statusStore()

    def now() -> list[Executor]:
        known = store.executorList(True)
        found = (known.apply(index) for index in range(known.size()))
        return [Executor(one.id(), one.hostPort().rpartition(":")[0]) for one in found if one.id() != "driver"]

    executors, since = now(), time.monotonic()
    while time.monotonic() - since < SETTLED_S or not executors:
        time.sleep(0.1)
        if len(found := now()) != len(executors):
            executors, since = found, time.monotonic()
    return executors


def _asked(spark: Any, executors: list[Executor], folder: str) -> list[Answer]:
    """Run one task on each of these executors, and return what it found."""
    from pyspark import RDD  # noqa: PLC0415 - pyspark is the user's
    from pyspark.serializers import NoOpSerializer  # noqa: PLC0415 - as above

    context, jvm = spark.sparkContext, spark._jvm
    places = [
        jvm.scala.Tuple2(bytearray(str(number), "ascii"), as_seq(jvm, [executor.place]))
        for number, executor in enumerate(executors)
    ]
    of_bytes = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    placed: Any = RDD(context._jsc.sc().makeRDD(as_seq(jvm, places), of_bytes).toJavaRDD(), context, NoOpSerializer())
    return [Answer(*found) for found in placed.map(_trial(folder)).collect()]


def _trial(folder: str) -> Callable[[bytes], tuple[int, str, bool]]:
    """What a task does. A nested function, so that it is pickled by value and not as a name to import."""

    def trial(number: bytes) -> tuple[int, str, bool]:
        import pathlib  # noqa: PLC0415 - runs in the executor's process
        import socket  # noqa: PLC0415 - as above

        mine = pathlib.Path(folder, number.decode())
        try:
            if seen := mine.with_name("driver").exists():
                mine.touch()
        except OSError:
            seen = False
        return int(number), socket.gethostname(), seen

    return trial


def as_seq(jvm: Any, items: list[Any]) -> Any:
    """Scala's own kind of list."""
    return jvm.PythonUtils.toSeq(items)


# --- Spark settings from the command line: `fencepost run job.py --master spark://… --conf name=value`.
#
#     a session that fencepost creates    they override conf=… in the file
#     a session that the file creates     Spark uses them where the file says nothing; a different master is refused
#
# A setting that may be a password, judged by its name, is never a process argument, because `ps` shows those. Drivers
# get it in their environment, Spark's launcher in a file in this process's memory, which disappears with the process.

SETTINGS: Final = "FENCEPOST_SPARK"
"""The environment variable that passes them to a driver."""
SUBMIT: Final = "PYSPARK_SUBMIT_ARGS"
"""The variable that pyspark itself reads when it starts its JVM."""
MASTER: Final = "spark.master"


def read(master: str | None, conf: Sequence[str]) -> dict[str, str]:
    """The settings from `--master` and `--conf`."""
    found = {}
    for text in conf:
        name, sign, value = text.partition("=")
        if not (sign and name.startswith("spark.")):
            raise BadConfig(
                "bad_conf",
                f"Invalid --conf: {f'{name} is not a Spark setting' if sign else 'it has no value'}.",
                safe=UNCHANGED,
                next="Write --conf spark.name=value, once for each setting.",
            )
        found[name] = value
    found = _from_environment(found)
    return found if master is None else {**found, MASTER: master}


def tell(wanted: Mapping[str, str]) -> None:
    """Apply these settings to this process and to every driver that it starts."""
    if not wanted:
        return
    *before, program = shlex.split(os.environ.get(SUBMIT, "pyspark-shell"))
    ours = [part for name, value in wanted.items() if not is_secret(name) for part in ("--conf", f"{name}={value}")]
    ours += _by_file({name: value for name, value in wanted.items() if is_secret(name)}, before)
    # --master takes precedence over --conf spark.master, so the master is passed that way.
    last = ["--master", wanted[MASTER]] if MASTER in wanted else []
    os.environ[SUBMIT] = shlex.join([*before, *ours, *last, program])
    os.environ[SETTINGS] = json.dumps(dict(wanted))
    told.cache_clear()


def is_secret(name: str) -> bool:
    """By its name, as Spark itself guesses what to hide in its own pages."""
    return re.search(r"secret|password|token|credential|access[._-]?key", name, re.IGNORECASE) is not None


def _from_environment(conf: Mapping[str, str]) -> dict[str, str]:
    """With values in place of `env:NAME`. Not so for `file:`, with which paths of Spark's begin."""
    return {
        name: credential.resolve(value, f"The setting {name}")
        if str(value).startswith(credential.ENVIRONMENT)
        else value
        for name, value in conf.items()
    }


def _by_file(secrets: Mapping[str, str], before: Sequence[str]) -> list[str]:
    """Options that let spark-submit read these from a file that is nowhere on a disk, beside what it reads already."""
    if not secrets:
        return []
    theirs = [given for option, given in pairwise(before) if option == "--properties-file"]
    text = Path(theirs[-1]).read_text() + "\n" if theirs else ""
    text += "".join(f"{name}={_escaped(value)}\n" for name, value in secrets.items())
    descriptor = os.memfd_create("fencepost")
    os.fchmod(descriptor, 0o600)
    os.write(descriptor, text.encode())
    return ["--properties-file", f"/proc/{os.getpid()}/fd/{descriptor}", *([] if theirs else ["--load-spark-defaults"])]


def _escaped(value: str) -> str:
    """As a Java properties file has it."""
    plain = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f"\\{plain}" if plain.startswith(" ") else plain


@cache
def told() -> Mapping[str, str]:
    """The settings from the command line; empty without one."""
    found: dict[str, str] = json.loads(os.environ.get(SETTINGS, "{}"))
    return found
