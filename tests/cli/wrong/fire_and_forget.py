"""Exactly once from a socket, which forgets, into a function, which cannot tell."""

from pathlib import Path

import fencepost as fp

HERE = Path(__file__).parent

job = fp.Job("api", checkpoint=HERE / "checkpoint")
lines = job.read(fp.Socket("localhost", 9))
job.write(lines, fp.WriteAheadLog(lambda context, batches: None, name="api"))
