"""Measures rows per second against the number of branches: `make bench-branches`.

    routes       each record goes to one of N branches          apart     every branch reads for itself
    copies       each record goes to all of them                one scan  branches without state are read at once
    aggregates   N aggregates of the same rows                  share     the rows go through job.share

One Kafka topic of JSON; parsed, filtered, staged, and given to a function that only counts. In one session and one run,
variants taking turns; the first epoch of each is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import facts, fsync_ms, save
from confluent_kafka import Producer
from fencepost_proof.fuzz.runs import reading_apart
from fencepost_proof.rig.jars import SPARK_KAFKA, fetch
from fencepost_proof.rig.kafka import Broker

import fencepost as fp
from fencepost.spark import spark_session

PARTITIONS = 4
TOPIC = "events"
SCHEMA = "id BIGINT, k INT, kind STRING, amount DOUBLE, note STRING"
WAYS = {"routes": ("apart", "one scan"), "copies": ("apart", "one scan"), "aggregates": ("apart", "share")}


def fill(servers: str, rows: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000})
    for number in range(rows):
        row = {"id": number, "k": number % 1000, "kind": f"type-{number % 7}", "amount": number / 8, "note": "x" * 40}
        producer.produce(TOPIC, value=json.dumps(row), partition=number % PARTITIONS)
        if number % 50_000 == 0:
            producer.flush()
    producer.flush()


@dataclass(frozen=True)
class Bench:
    spark: Any
    servers: str
    root: Path
    per_epoch: int

    def rate(self, plan: str, way: str, branches: int) -> float:
        """Records per second."""
        folder = Path(tempfile.mkdtemp(dir=self.root))
        job = fp.Job("bench", checkpoint=folder / "checkpoint", spark=self.spark, quiet=True)
        lines = job.read(fp.Kafka(TOPIC, servers=self.servers, max_records_per_epoch=self.per_epoch))
        rows = lines.selectExpr(f"from_json(CAST(value AS STRING), '{SCHEMA}') AS row").select("row.*")
        if way == "share":
            rows = job.share(rows)
        for number in range(branches):
            if plan == "aggregates":
                counts = rows.groupBy((rows.k % (number + 50)).alias("k")).count()
                job.write(counts, fp.SQLite(folder / f"{number}.db", table="counts", key="k", name=f"sink_{number}"))
            else:
                kept = rows.where(f"id % {branches} = {number}") if plan == "routes" else rows
                job.write(kept, fp.WriteAheadLog(count, name=f"sink_{number}", idempotent=True))
        with reading_apart() if way == "apart" else nullcontext():
            query: Any = job.start(until="available")
        query.awaitTermination()
        warm = [each for each in query.recentProgress if each["numInputRows"]][1:]
        job.stop()
        taken = sum(each["durationMs"]["triggerExecution"] for each in warm) / 1000
        return self.per_epoch * len(warm) / taken


def count(context: Any, batches: Any) -> None:
    for batch in batches:
        _ = batch.num_rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.branches", description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--branches", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--plans", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--save", action="store_true")
    chosen = parser.parse_args()
    load = os.getloadavg()
    found: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as root, Broker(Path(root) / "kafka") as broker:
        broker.create_topic(TOPIC, PARTITIONS)
        fill(broker.servers, chosen.rows)
        jars = ",".join(map(str, fetch(SPARK_KAFKA)))
        spark = spark_session.make_session("bench", {"spark.jars": jars, "spark.ui.enabled": "false"})
        spark.sparkContext.setLogLevel("ERROR")
        bench = Bench(spark, broker.servers, Path(root), chosen.rows // chosen.epochs)
        for number in range(chosen.rounds + 1):
            for plan in chosen.plans:
                for branches in chosen.branches if number else chosen.branches[-1:]:  # the first round only warms up
                    for way in WAYS[plan]:
                        rate = bench.rate(plan, way, branches)
                        if number:
                            found[f"{plan}, {way}, {branches}"].append(rate)
                            print(f"round {number}: {plan}, {way}, {branches}: {rate:,.0f} records/s", flush=True)
        rates = {name: statistics.median(each) for name, each in found.items()}
        print("\n| plan | way | " + " | ".join(map(str, chosen.branches)) + " | slowest to fastest |")
        print("|---|---|" + "---|" * (len(chosen.branches) + 1))
        for plan in chosen.plans:
            for way in WAYS[plan]:
                line = [rates[f"{plan}, {way}, {branches}"] for branches in chosen.branches]
                cells = " | ".join(f"{rate:,.0f}" for rate in line)
                print(f"| {plan} | {way} | {cells} | {max(line) / min(line):.2f} |")
        machine = facts(spark, fsync_ms(Path(root)), load)
        print("\nFacts:", ", ".join(f"{name} {value}" for name, value in machine.items()))
        if chosen.save:
            print(save(f"branches-{'-'.join(chosen.plans)}-", machine, found))


if __name__ == "__main__":
    main()
