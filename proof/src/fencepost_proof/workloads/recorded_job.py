"""The Spark job whose file operations are recorded: an epoch, a clean end, a new start with one more, a savepoint.

    python -m fencepost_proof.workloads.recorded_job FOLDER …

Each folder holds a job of its own, with `in`, `checkpoint` and `target`. In one that is called `stock` Hadoop's own
`file:` classes stand in the place of ours, and the savepoint's folders are not synced: the sabotaged twin.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fencepost.admin import savepoint
from fencepost.spark import spark_session
from fencepost_proof.workloads import power_job
from fencepost_proof.workloads.process import QUICK

STOCK = "stock"
STOCK_CLASSES = {
    "CHECKPOINT_FILES": {"fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.LocalFs"},
    "STATE_FILES": {"fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem", "fs.file.impl.disable.cache": "true"},
}


def main(arguments: list[str]) -> int:
    """The command line."""
    spark = spark_session.make_session("recorded", QUICK)
    for folder in sorted(map(Path, arguments)):
        if folder.name == STOCK:
            vars(spark_session).update(STOCK_CLASSES)
            vars(savepoint)["sync_folder"] = lambda _: None
        disk = folder / "disk"
        order = power_job.Order("", str(folder), str(disk / "checkpoint"), str(disk / "target"))
        last = max((folder / "in").glob("*.json"))
        waiting = last.rename(folder / last.name)
        power_job.run(spark, order)
        waiting.rename(last)
        power_job.run(spark, order)
        savepoint.create(disk / "checkpoint", name="kept")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
