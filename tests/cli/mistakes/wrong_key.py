"""The column is called value, and the key says word."""

import fencepost as fp

job = fp.Job("words", checkpoint="checkpoint")
lines = job.read(fp.Files("lines", format="text"))
job.write(lines.groupBy("value").count(), fp.SQLite("words.db", table="words", key="word"))

if __name__ == "__main__":
    job.run(until="available")
