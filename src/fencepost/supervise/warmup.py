"""Warms up a standby: runs small jobs end to end, so that classes are loaded and compiled.

Reads a little of what arrives at the job's sources; writes only to a folder that is deleted with the process. Does not
run the job's own plan: a user's function may have side effects.

Runs beside the job's own start when the standby is called early, so it shares nothing with it that a start looks at:
its queries have a session of their own, and its sinks a session each.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fencepost import settings
from fencepost.connectors.files.sink import Files
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.contract import Source
from fencepost.errors import FencepostError
from fencepost.observe.events import Event
from fencepost.spark import branches, plan, spark_session
from fencepost.store import staging

log = logging.getLogger("fencepost")

MOST = 1000
"""Most records per epoch."""
PATIENCE_S = 10.0
"""An idle source has no epochs."""
EPOCHS = 12
"""The first are slow; the later ones let the JIT compiler find the hot code."""
LINES = ("one two", "two three") * (EPOCHS // 2)
"""One file each, so one epoch each: the second finds the state of the first."""


def up(job: Any, called: threading.Event) -> None:
    """Connect to the job's sinks, and run throw-away queries over a few lines and what arrives at its sources.

    Ends as soon as the standby is called. On a cluster no query runs: only the process, its JVM and its session are
    made ready.
    """
    for name, sink in job._sinks.items():
        if called.is_set():
            return
        target = sink.session(job.name)
        try:
            frame = job._frames[name]
            mode = plan.branch_mode(frame, job._launch().mode)
            target.rehearse(branches.arrow_schema(frame), mode)  # it connects, and changes nothing
        except FencepostError as error:
            log.info("standby of job %s: %s", job.name, error)  # if it matters, the driver reports it
        finally:
            target.close()
    if not spark_session.is_local(str(job.spark.sparkContext.master)):
        return  # the driver needs the executors, and they cannot see a folder on this machine
    # Deleted with the process, not before: Spark's maintenance writes to it even after the query has ended.
    folder = Path(staging.process_folder("warm-up"))
    (folder / "lines").mkdir(parents=True)
    for number, line in enumerate(LINES):
        (folder / "lines" / f"{number}.txt").write_text(line + "\n")
    lines = Files(str(folder / "lines"), format="text", max_files_per_epoch=1)
    for number, source in enumerate([lines, *filter(None, (source.newest(MOST) for source in job._sources))]):
        if called.is_set():
            return
        _count(job, source, folder / str(number), called)


def _count(job: Any, source: Source, place: Path, called: threading.Event) -> None:
    """Count a source's words into a throw-away database, for some epochs or some seconds."""
    name = f"warm-up of {job.name}"
    bridge = job._config.bridge
    # A start sets and reads settings of its session: the job's own must find there what the user left.
    spark = job.spark.newSession()
    throw_away = type(job)(name, checkpoint=place, spark=spark, bridge=bridge, environment=settings.NOTHING)
    throw_away._config = replace(throw_away._config, is_known=False)
    words = throw_away.read(source).selectExpr("explode(split(CAST(value AS STRING), ' ')) AS word")
    throw_away.write(words.groupBy("word").count(), SQLite(f"{place}.db", table="counts", key="word"))
    done: list[Event] = []
    throw_away.on_complete(done.append)
    throw_away.start()
    until = time.monotonic() + PATIENCE_S
    while len(done) < EPOCHS and time.monotonic() < until and not called.wait(0.05):
        pass
    throw_away.cancel() if called.is_set() else throw_away.stop()
