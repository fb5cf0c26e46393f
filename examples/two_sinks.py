"""Two branches, two sinks, one decision: after any crash the counts and the raw words agree."""

from pyspark.sql import functions as F

import fencepost as fp

job = fp.Job("two-sinks", checkpoint="checkpoints/two-sinks")
lines = job.read(fp.Files("lines", format="text"))
words = lines.select(F.explode(F.split("value", " ")).alias("word"))

job.write(words.groupBy("word").count(), fp.SQLite("words.db", table="counts", key="word"))
job.write(words, fp.Files("words", format="json"))

if __name__ == "__main__":
    job.run(until="available")
