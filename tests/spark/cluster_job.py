"""A job for a cluster: lines in FOLDER/in are counted word by word, and shouted by Python of ours in the tasks."""

from __future__ import annotations

import sys
from pathlib import Path

import fencepost as fp

FOLDER = Path(sys.argv[1])

job = fp.Job("clustered", checkpoint=FOLDER / "ck")
lines = job.read(fp.Files(str(FOLDER / "in"), format="text", max_files_per_epoch=2))
words = lines.selectExpr("explode(split(value, ' ')) AS word")
job.write(words.groupBy("word").count(), fp.SQLite(FOLDER / "out.db", table="counts", key="word"))
shouted = job.map(lines, lambda line: (line.value.upper(),), output="value STRING")
job.write(shouted, fp.SQLite(FOLDER / "lines.db", table="lines"))

if __name__ == "__main__":
    (FOLDER / "from").write_text(f"{fp.__file__}\n{job.spark.sparkContext.master}")
    job.run(until="available" if sys.argv[2:] else "stopped")
