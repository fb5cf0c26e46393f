"""A job for `fencepost run`: words in FOLDER/in are counted into FOLDER/out.db, and every line is kept."""

from __future__ import annotations

import sys
from pathlib import Path

import fencepost as fp
from fencepost.cli.demo_job import QUICK

FOLDER = Path(sys.argv[1])

job = fp.Job("supervised", checkpoint=FOLDER / "ck", conf=QUICK)
lines = job.read(fp.Files(str(FOLDER / "in"), format="text", max_files_per_epoch=1))
words = lines.selectExpr("explode(split(value, ' ')) AS word")
job.write(words.groupBy("word").count(), fp.SQLite(FOLDER / "out.db", table="counts", key="word"))
job.write(lines, fp.SQLite(FOLDER / "lines.db", table="lines"))

if __name__ == "__main__":
    job.run()
