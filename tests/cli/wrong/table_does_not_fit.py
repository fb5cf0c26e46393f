"""A table that is there, with other columns; and one whose key is not unique."""

from pathlib import Path

import fencepost as fp

HERE = Path(__file__).parent

job = fp.Job("words", checkpoint=HERE / "checkpoint")
lines = job.read(fp.Files(HERE / "lines", format="text"))
counts = lines.groupBy("value").count()
job.write(lines, fp.SQLite(HERE / "there.db", table="wide"))
job.write(counts, fp.SQLite(HERE / "there.db", table="words", key="value"))
