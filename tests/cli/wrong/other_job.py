"""The checkpoint of another job."""

from pathlib import Path

import fencepost as fp

HERE = Path(__file__).parent

job = fp.Job("copy", checkpoint=HERE / "other")
lines = job.read(fp.Files(HERE / "lines", format="text"))
job.write(lines, fp.SQLite(HERE / "words.db", table="lines"))
