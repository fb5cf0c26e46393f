"""pip install fencepost[spark], without [postgres]."""

import fencepost as fp

job = fp.Job("words", checkpoint="checkpoint")
lines = job.read(fp.Files("lines", format="text"))
job.write(lines, fp.Postgres("lines", dsn="host=127.0.0.1 dbname=shop user=app"))

if __name__ == "__main__":
    job.run(until="available")
