"""Counts in append mode, without a watermark: none would ever be final."""

import fencepost as fp

job = fp.Job("words", checkpoint="checkpoint", output_mode="append")
lines = job.read(fp.Files("lines", format="text"))
job.write(lines.groupBy("value").count(), fp.SQLite("words.db", table="words", key="value"))

if __name__ == "__main__":
    job.run(until="available")
