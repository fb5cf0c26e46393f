"""The password of another database."""

import os

import fencepost as fp

job = fp.Job("words", checkpoint="checkpoint")
lines = job.read(fp.Files("lines", format="text"))
target = {"host": "127.0.0.1", "port": int(os.environ["PORT"]), "database": "test"}
job.write(lines, fp.MySQL("lines", **target, user="test", password="not-this-one"))

if __name__ == "__main__":
    job.run(until="available")
