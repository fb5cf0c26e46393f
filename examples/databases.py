import os

import fencepost as fp
from pyspark.sql import functions as F

POSTGRES = os.environ["POSTGRES"]  # host=db dbname=shop user=app, or postgresql://…
REDIS = os.environ["REDIS"]  # redis://cache:6379/0

job = fp.Job("orders", checkpoint="checkpoints/orders")
orders = job.read(fp.Files("orders", format="json", schema="id BIGINT, customer STRING, amount DECIMAL(12,2)"))
totals = orders.groupBy("customer").agg(F.sum("amount").alias("total"), F.count("*").alias("orders"))

job.write(orders, fp.Postgres("orders", dsn=POSTGRES))
job.write(totals, fp.Redis(REDIS, key="customer", prefix="totals:"))

if __name__ == "__main__":
    job.run()
