"""Nobody listens there: a source and a sink that do not answer."""

from pathlib import Path

import fencepost as fp

HERE = Path(__file__).parent

SERVERS = "127.0.0.1:9"

job = fp.Job("pass-on", checkpoint=HERE / "checkpoint")
lines = job.read(fp.Kafka("lines", servers=SERVERS))
job.write(lines.select("value"), fp.Kafka("out", servers=SERVERS, value="value"))
