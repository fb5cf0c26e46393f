"""Counts change, and the table has no key to find the old ones by."""

from pathlib import Path

import fencepost as fp

HERE = Path(__file__).parent

job = fp.Job("words", checkpoint=HERE / "checkpoint")
lines = job.read(fp.Files(HERE / "lines", format="text"))
job.write(lines.groupBy("value").count(), fp.SQLite(HERE / "words.db", table="words"))
