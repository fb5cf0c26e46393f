import fencepost as fp
from pyspark.sql import functions as F

job = fp.Job("wordcount", checkpoint="checkpoints/wordcount")
lines = job.read(fp.Files("lines", format="text"))
words = lines.select(F.explode(F.split("value", " ")).alias("word"))
job.write(words.groupBy("word").count(), fp.SQLite("words.db", table="counts", key="word"))

if __name__ == "__main__":
    job.run(until="available")
