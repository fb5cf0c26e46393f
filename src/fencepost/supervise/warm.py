"""Warms up a standby: a small job is run once from end to end, so that classes are loaded and compiled.

Reads and writes only in a folder for temporary files, which it removes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.beginning import BridgeName

LINES = ("one two", "two three")
"""One file, hence one epoch, each: the second finds the state of the first."""


def up(spark: SparkSession, bridge: BridgeName | None) -> None:
    """Count a few words into a database that is thrown away."""
    from fencepost.files import Files  # noqa: PLC0415 - a job imports this module
    from fencepost.job import Job  # noqa: PLC0415 - as above
    from fencepost.sinks.sqlite import SQLite  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory(prefix="fencepost-warm-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        (place / "lines").mkdir()
        for number, line in enumerate(LINES):
            (place / "lines" / f"{number}.txt").write_text(line + "\n")
        job = Job("warm-up", checkpoint=place / "checkpoint", spark=spark, bridge=bridge)
        lines = job.read(Files(str(place / "lines"), format="text", max_files_per_epoch=1))
        counts = lines.selectExpr("explode(split(value, ' ')) AS word").groupBy("word").count()
        job.write(counts, SQLite(str(place / "counts.db"), table="counts", key="word"))
        job.start(until="available").awaitTermination()
        job.stop()  # wait for its own end, too, before the folder goes
