"""A JAVA_HOME that was moved."""

import fencepost as fp

job = fp.Job("words", checkpoint="checkpoint")
lines = job.read(fp.Files("lines", format="text"))
job.write(lines, fp.SQLite("words.db", table="lines"))

if __name__ == "__main__":
    job.run(until="available")
