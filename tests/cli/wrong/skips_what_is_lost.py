"""An option by which Spark skips lost records without a word."""

from pathlib import Path

import fencepost as fp

HERE = Path(__file__).parent

job = fp.Job("words", checkpoint=HERE / "checkpoint")
source = job.spark.readStream.format("rate").option("failOnDataLoss", "false").load()
job.write(job.read(source), fp.SQLite(HERE / "words.db", table="words"))
