"""The folder is called lines, and the job says line."""

import fencepost as fp

job = fp.Job("words", checkpoint="checkpoint")
lines = job.read(fp.Files("line", format="text"))
job.write(lines, fp.SQLite("words.db", table="lines"))

if __name__ == "__main__":
    job.run(until="available")
