"""Three things are wrong, and all of them are said at once."""

from pathlib import Path

import fencepost as fp

HERE = Path(__file__).parent

job = fp.Job("many", checkpoint=HERE / "lines/1.txt/checkpoint")
lines = job.read(fp.Files(HERE / "lines", format="text"))
job.write(lines, fp.SQLite(HERE / "there.db", table="wide"))
job.write(lines.groupBy("value").count(), fp.Files(HERE / "lines/1.txt", format="json"))
