"""The file runs its job, whoever imports it."""

from pathlib import Path

import fencepost as fp

HERE = Path(__file__).parent

job = fp.Job("words", checkpoint=HERE / "checkpoint")
lines = job.read(fp.Files(HERE / "lines", format="text"))
job.write(lines, fp.SQLite(HERE / "words.db", table="lines"))
job.run(until="available")
