"""A checkpoint on a local path, and executors elsewhere: is it one folder for all of them?

It may well be, on NFS or on one machine; so it is tried, not guessed from the path or from host names:

    driver    writes a file with a random name into the folder
    tasks     one on each executor: see that file, and write one of their own beside it
    driver    sees all of theirs, and removes the folder that they are in

Never needs a package of ours, or any other, where the tasks run. Executors that start later are not asked.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from fencepost.errors import BadConfig, Where
from fencepost.spark.session import is_local

TRIAL: Final = ".shared-"
"""What the folder's name begins with, below the checkpoint."""
SETTLED_S: Final = 1.0
"""Executors of a new session come one after the other; when none came for so long, those that are there are asked."""


class Executor(NamedTuple):
    """One of the session's."""

    id: str
    host: str

    @property
    def place(self) -> str:
        """By which Spark knows where a task wants to run."""
        return f"executor_{self.host}_{self.id}"


class Answer(NamedTuple):
    """What was found out on one."""

    number: int
    host: str
    """As it calls itself."""
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
        # Only what the driver finds was written to its own disk.
        apart = [one for one in answers if not (one.wrote and (folder / str(one.number)).exists())]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if is_new:
            checkpoint.rmdir()  # a job that is refused begins nothing
    if apart:
        host = f"{apart[0].host} ({executors[apart[0].number].host})"
        raise BadConfig(
            "checkpoint_not_shared",
            f"The executor on {host} does not share the checkpoint's folder with the driver: it sees another one, or "
            "may not write.",
            where=Where(job=job, path=path),
            next="Put the checkpoint where all of them see it (hdfs://…, s3a://…, or a mount that every host has), or "
            "run with master local[*].",
        )


def _executors(spark: Any) -> list[Executor]:
    """All of them, once they are there."""
    spark.range(1).count()  # nothing can be asked before one runs, and some clusters start none without work
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
    """What a task finds that runs on each of these."""
    from pyspark import RDD  # noqa: PLC0415 - pyspark is the user's
    from pyspark.serializers import NoOpSerializer  # noqa: PLC0415 - as above

    context, jvm = spark.sparkContext, spark._jvm
    places = [
        jvm.scala.Tuple2(bytearray(str(number), "ascii"), _seq(jvm, [executor.place]))
        for number, executor in enumerate(executors)
    ]
    of_bytes = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    placed: Any = RDD(context._jsc.sc().makeRDD(_seq(jvm, places), of_bytes).toJavaRDD(), context, NoOpSerializer())
    return [Answer(*found) for found in placed.map(_trial(folder)).collect()]


def _trial(folder: str) -> Callable[[bytes], tuple[int, str, bool]]:
    """What a task does. Made within a function, so that it is sent as it is, and not as a name to be imported."""

    def trial(number: bytes) -> tuple[int, str, bool]:
        import pathlib  # noqa: PLC0415 - of the process that it runs in
        import socket  # noqa: PLC0415 - as above

        mine = pathlib.Path(folder, number.decode())
        try:
            if seen := mine.with_name("driver").exists():
                mine.touch()
        except OSError:
            seen = False
        return int(number), socket.gethostname(), seen

    return trial


def _seq(jvm: Any, items: list[Any]) -> Any:
    return jvm.PythonUtils.toSeq(items)
