"""A table that is there, with a column that the job does not fill."""

import fencepost as fp

job = fp.Job("words", checkpoint="checkpoint")
lines = job.read(fp.Files("lines", format="text"))
job.write(lines, fp.SQLite("there.db", table="wide"))

if __name__ == "__main__":
    job.run(until="available")
