"""An aggregate that never gets final, asked for in append mode."""

from pathlib import Path

import fencepost as fp

HERE = Path(__file__).parent

job = fp.Job("words", checkpoint=HERE / "checkpoint", output_mode="append")
lines = job.read(fp.Files(HERE / "lines", format="text"))
job.write(lines.groupBy("value").count(), fp.SQLite(HERE / "words.db", table="words", key="value"))
