"""A job that reads, and forgot to write."""

from pathlib import Path

import fencepost as fp

HERE = Path(__file__).parent

job = fp.Job("words", checkpoint=HERE / "checkpoint")
lines = job.read(fp.Files(HERE / "lines", format="text"))
