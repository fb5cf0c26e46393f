"""A job that reads a Delta and an Iceberg table into SQLite, to be killed; and somebody who fills and compacts both.

python table_job.py read FOLDER            until all is read that is there
python table_job.py read FOLDER forever    until it is killed
python table_job.py feed FOLDER            one row after the other into both tables, compacted all the time, until
                                           there is a file FOLDER/enough
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from table_streams import FedDelta, FedIceberg

import fencepost as fp

QUICK = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}


def both(folder: Path) -> tuple[FedDelta, FedIceberg]:
    """The tables of a folder, made by the first who asks."""
    return FedDelta(folder / "delta"), FedIceberg(folder / "iceberg")


def job_of(folder: Path, **settings: Any) -> fp.Job:
    """Two sources, two sinks, one decision."""
    delta, iceberg = both(folder)
    job = fp.Job("tables", checkpoint=folder / "checkpoint", **settings)
    for name, source in (("delta", delta.source), ("iceberg", iceberg.source)):
        job.write(job.read(source), fp.SQLite(folder / f"{name}.db", table="rows", name=name))
    return job


def read(folder: Path, until: Any) -> None:
    """As a user would write it, with a limit that cuts versions."""
    job_of(folder, conf=QUICK).run(until=until)


def feed(folder: Path) -> None:
    """A row for each number; the first is there."""
    for number in range(1, MOST):
        for fed in both(folder):
            fed.add(number)
            if number % 5 == 0:
                fed.compact()
        if (folder / ENOUGH).exists():
            return
        time.sleep(0.2)


ENOUGH = "enough"
MOST = 5000


if __name__ == "__main__":
    what, place, *more = sys.argv[1:]
    if what == "feed":
        feed(Path(place))
    else:
        read(Path(place), "stopped" if more else "available")
