"""Warms up a standby: small jobs are run from end to end, so that classes are loaded and compiled.

Reads a little of what arrives at the job's sources; writes only in a folder that goes with its process.
The job's own plan is not run: what a user's function does to others, it would do without need.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fencepost import volatile
from fencepost.errors import FencepostError
from fencepost.files import Files
from fencepost.observe.events import Event
from fencepost.sinks.sqlite import SQLite
from fencepost.sources.contract import Source
from fencepost.spark import branches, inspect, session

if TYPE_CHECKING:
    from fencepost.job import Job

log = logging.getLogger("fencepost")

MOST = 1000
"""Records of an epoch."""
PATIENCE_S = 10.0
"""An idle source has no epochs."""
EPOCHS = 12
"""The first are slow, the later ones make the compiler see what is hot."""
LINES = ("one two", "two three") * (EPOCHS // 2)
"""One file, hence one epoch, each: the second finds the state of the first."""


def up(job: Job) -> None:
    """Meet the job's sinks, and run throw-away queries over a few lines and what arrives at its own sources.

    On a cluster nothing is run: there only the process, its JVM and its session are ready.
    """
    for name, sink in job.sinks.items():
        target = sink.session(job.name)
        try:
            frame = job.frames[name]
            mode = inspect.branch_mode(frame, job.mode)
            target.rehearse(branches.arrow_schema(frame), mode)  # it connects, and changes nothing
        except FencepostError as error:
            log.info("standby of job %s: %s", job.name, error)  # the driver's to say
        finally:
            target.close()
    if not session.is_local(str(job.spark.sparkContext.master)):
        return  # the driver needs the executors, and they do not see a folder of this machine
    # Gone with the process, not before: Spark's maintenance writes to it even when the query is over.
    folder = Path(volatile.folder("warm-up"))
    (folder / "lines").mkdir(parents=True)
    for number, line in enumerate(LINES):
        (folder / "lines" / f"{number}.txt").write_text(line + "\n")
    lines = Files(str(folder / "lines"), format="text", max_files_per_epoch=1)
    for number, source in enumerate([lines, *filter(None, map(_newest_of, job.sources))]):
        _count(job, source, folder / str(number))


def _newest_of(source: Source) -> Source | None:
    """What arrives at it, if it has a way to that."""
    newest = getattr(source, "newest", None)
    return None if newest is None else cast("Source", newest(MOST))


def _count(job: Job, source: Source, place: Path) -> None:
    """Count words of a source into a database that is thrown away, for some epochs or some seconds."""
    throw_away = type(job)(f"warm-up of {job.name}", checkpoint=place, spark=job.spark, bridge=job.bridge)
    throw_away.is_known = False
    words = throw_away.read(source).selectExpr("explode(split(CAST(value AS STRING), ' ')) AS word")
    throw_away.write(words.groupBy("word").count(), SQLite(f"{place}.db", table="counts", key="word"))
    done: list[Event] = []
    throw_away.on_complete(done.append)
    throw_away.start()
    until = time.monotonic() + PATIENCE_S
    while len(done) < EPOCHS and time.monotonic() < until:
        time.sleep(0.05)
    throw_away.stop()
