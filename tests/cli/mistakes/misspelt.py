"""server= is called servers=."""

import fencepost as fp

job = fp.Job("words", checkpoint="checkpoint")
lines = job.read(fp.Kafka("lines", sever="127.0.0.1:9092"))
