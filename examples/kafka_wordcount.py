import fencepost as fp
from pyspark.sql import functions as F

SERVERS = "localhost:9092"

job = fp.Job("kafka-wordcount", checkpoint="checkpoints/kafka-wordcount")
lines = job.read(fp.Kafka("lines", servers=SERVERS))
words = lines.select(F.explode(F.split(F.col("value").cast("string"), " ")).alias("word"))
job.write(words.groupBy("word").count(), fp.Kafka("counts", servers=SERVERS, key="word"))

if __name__ == "__main__":
    job.run()
