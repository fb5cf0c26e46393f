"""A second job, copied from the first one with its checkpoint."""

import fencepost as fp

job = fp.Job("copy", checkpoint="other")
lines = job.read(fp.Files("lines", format="text"))
job.write(lines, fp.SQLite("words.db", table="lines"))

if __name__ == "__main__":
    job.run(until="available")
