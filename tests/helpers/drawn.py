"""A sum of random numbers on the heap: an epoch that ran twice leaves another one in the state than in the sink.

`python drawn.py FOLDER CHECKPOINT`, with Spark's settings in FENCEPOST_SPARK, ends when everything is counted.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import Any

import fencepost as fp
from fencepost.admin import state


def drawing(folder: Path, checkpoint: str, spark: Any = None, sink: fp.Sink | None = None, **options: Any) -> fp.Job:
    """The job; each file in FOLDER/in is an epoch."""
    options = {"state": fp.FileSystemState(), **options}
    job = fp.Job("drawn", checkpoint=checkpoint, spark=spark, **options)
    lines = job.read(fp.Files(folder / "in", format="text", max_files_per_epoch=1))
    drawn = lines.selectExpr("value", "rand() AS draw").groupBy("value").agg({"draw": "sum", "*": "count"})
    sums = drawn.selectExpr("value", "`sum(draw)` AS total", "`count(1)` AS n")
    return job.write(sums, sink or into(folder))


def into(folder: Path) -> fp.Sink:
    """Where the sums go."""
    return fp.SQLite(folder / "out.db", table="sums", key="value")


def feed(folder: Path, files: int = 1) -> None:
    """So many more epochs."""
    (folder / "in").mkdir(exist_ok=True)
    for _ in range(files):
        (folder / "in" / f"{len(list((folder / 'in').iterdir()))}.txt").write_text("to be\nor not\nto be\n")


def in_sink(folder: Path) -> list[tuple[str, float, int]]:
    """What the sink holds."""
    with sqlite3.connect(folder / "out.db") as database:
        return database.execute("SELECT value, total, n FROM sums ORDER BY 1").fetchall()


def in_state(spark: Any, checkpoint: str) -> list[tuple[str, float, int]]:
    """What Spark's own reader finds in the state of the newest epoch."""
    inside = state.look(checkpoint)
    (operator,) = inside.operators
    (view,) = operator.views
    with state.reading(spark, inside, inside.epoch(None)):
        rows = state.frame(spark, inside, operator, view, inside.epoch(None)).select("key.*", "value.*").collect()
    return sorted((row[0], row["sum"], row["count"]) for row in rows)


if __name__ == "__main__":
    drawing(Path(sys.argv[1]), sys.argv[2]).run(until="available")
