"""Nobody listens at this port."""

import fencepost as fp

job = fp.Job("words", checkpoint="checkpoint")
lines = job.read(fp.Kafka("lines", servers="127.0.0.1:9"))
job.write(lines.selectExpr("CAST(value AS STRING)"), fp.SQLite("words.db", table="lines"))

if __name__ == "__main__":
    job.run(until="available")
