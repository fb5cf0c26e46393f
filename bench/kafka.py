"""Measures Kafka → Spark → Kafka beside plain Spark's own Kafka sink, in one session, in one run: `make bench-kafka`.

    catch-up          a topic full of records, copied; rows per second
    time to visible   records arrive at a steady rate and are counted per key; how long after a record was produced does
                      a reader see a count that includes it? Ours is read with read_committed, plain Spark's, which has
                      no transactions, with read_uncommitted.

Variants take turns, so that a noisy minute hits all alike. Plain Spark is given the same state store, formats and
`file:` class as ours ("tuned"); "stock" is what one gets without them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.common import facts, fsync_ms, save, timed_effects
from confluent_kafka import Consumer, Producer, TopicPartition
from fencepost_proof.rig.jars import SPARK_KAFKA, fetch
from fencepost_proof.rig.kafka import Broker
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import fencepost as fp
from fencepost.spark import spark_session

KEYS, PARTITIONS, SIZE = (
    int(os.environ.get(f"BENCH_{name}", n)) for name, n in (("KEYS", 100), ("PARTITIONS", 2), ("SIZE", 100))
)
STOCK = {"fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.LocalFs"}
DURABLE = {**spark_session.CHECKPOINT_FILES, **spark_session.STATE_FILES}
STEPS = ("barrier", "precommit", "vote", "snapshot", "decide", "append.list", "commit", "sweep", "sweep.orphans")
PARTS = ("triggerExecution", "latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets")
VARIANTS = ("plain, tuned", "fencepost", "plain, stock", "fencepost, keep_rows=False", "fencepost, parallel")


class Bench:
    def __init__(self, spark: SparkSession, broker: Broker, folder: Path, steps: dict[str, list[float]]) -> None:
        self.spark, self.broker, self.folder, self.steps = spark, broker, folder, steps
        self.made = 0

    def topic(self) -> str:
        self.made += 1
        return self.broker.create_topic(f"bench-{self.made}", partitions=PARTITIONS)

    @contextmanager
    def query(self, variant: str, frame: Any, topic: str, trigger: dict[str, Any]) -> Iterator[Any]:
        """A running query; `frame` has columns key and value."""
        place = self.folder / f"place-{self.made}"
        with ExitStack() as stack:
            if variant.startswith("plain"):
                files = DURABLE if "tuned" in variant else STOCK
                stack.enter_context(spark_session.settings(self.spark, {**spark_session.FORMATS, **files}))
                writer = frame.writeStream.format("kafka").outputMode("update").trigger(**trigger)
                options = {"kafka.bootstrap.servers": self.broker.servers, "topic": topic}
                query = writer.options(**options, checkpointLocation=str(place)).start()
                stack.callback(query.stop)
            else:
                how = {"keep_rows": "keep_rows=False" not in variant, "parallel": "parallel" in variant}
                sink = fp.Kafka(topic, servers=self.broker.servers, key="key", value="value", name="out", **how)
                job = fp.Job("bench", checkpoint=place, spark=self.spark, output_mode="update").write(frame, sink)
                query = job.start(until="available" if trigger.get("availableNow") else "stopped")
                stack.callback(job.stop)
            yield query
        shutil.rmtree(place)

    def source(self, topic: str, **settings: Any) -> Any:
        kafka = fp.Kafka(topic, servers=self.broker.servers, **settings)
        return kafka.load(self.spark.readStream)

    # --- catch-up

    def catch_up(self, variant: str, topic: str, per_epoch: int, rows: int) -> float:
        out = self.topic()
        frame = self.source(topic, max_records_per_epoch=per_epoch).selectExpr("key", "value")
        with self.query(variant, frame, out, {"availableNow": True}) as query:
            query.awaitTermination()
            progress = [each for each in query.recentProgress if each["numInputRows"]]
        assert sum(each["numInputRows"] for each in progress) == rows, "rows were left"
        assert visible(self.broker.servers, out) >= rows, "rows are missing in the output"
        warm = progress[1:]
        taken = sum(each["durationMs"]["triggerExecution"] for each in warm) / 1000
        return sum(each["numInputRows"] for each in warm) / taken

    # --- time to visible

    def to_visible(self, variant: str, rate: int, settle: float, seconds: float) -> dict[str, Any]:
        arriving, out = self.topic(), self.topic()
        counts = self.source(arriving).groupBy("key").count()
        frame = counts.select("key", F.col("count").cast("string").alias("value"))
        isolation = "read_uncommitted" if variant.startswith("plain") else "read_committed"
        found = self.folder / "seen.json"
        with self.query(variant, frame, out, {"processingTime": "0 seconds"}) as query:
            reader = self._child("read", self.broker.servers, arriving, out, isolation, found)
            feeder = self._child("feed", self.broker.servers, arriving, rate)
            try:
                time.sleep(settle)
                self.steps.clear()
                began, first, before = time.time(), _epoch(query), self.cpu_s()
                time.sleep(seconds)
                ended, last, after = time.time(), _epoch(query), self.cpu_s()
                steps = {name: statistics.median(times) for name, times in self.steps.items()}
                feeder.send_signal(signal.SIGTERM)
                feeder.wait()
                time.sleep(2)
            finally:
                feeder.kill()
                reader.send_signal(signal.SIGTERM)
                reader.wait(30)
            progress = [p for p in query.recentProgress if first < p["batchId"] <= last and p["numInputRows"]]
        seen = [(at, late) for at, late in json.loads(found.read_text()) if began <= at <= ended]
        late = sorted(late * 1000 for _, late in seen)
        assert len(late) > 0.95 * rate * seconds - 2, (variant, len(late), rate * seconds)
        return {
            "late": late,
            "epochs": [each["durationMs"] for each in progress],
            "steps": steps,
            "cores": (after - before) / (ended - began),
        }

    def cpu_s(self) -> float:
        """What Spark's JVM and this process have taken so far."""
        jvm = self.spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in (jvm, os.getpid()))
        return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")

    def _child(self, *arguments: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "bench.kafka", *map(str, arguments)])


def _epoch(query: Any) -> int:
    return int(query.lastProgress["batchId"]) if query.lastProgress else -1


# --- processes of their own, so that neither the driver's threads nor ours wait for each other


def feed(servers: str, topic: str, rate: str) -> None:
    """Records at a steady rate: number i has key i mod KEYS."""
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1})
    payload = b"x" * SIZE
    began, sent = time.time(), 0
    while not stop:
        due = int((time.time() - began) * int(rate))
        for number in range(sent, due):
            producer.produce(topic, key=f"k{number % KEYS:03}", value=payload, partition=number % KEYS % PARTITIONS)
        sent = max(sent, due)
        producer.poll(0)
        time.sleep(0.002)
    producer.flush()


def read(servers: str, arriving: str, out: str, isolation: str, found: str) -> None:
    """When was each record produced, and when was a count seen that includes it?"""
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    settings = {"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False, "fetch.wait.max.ms": 5}
    consumer = Consumer({**settings, "isolation.level": isolation})
    consumer.assign([TopicPartition(topic, number, 0) for topic in (arriving, out) for number in range(PARTITIONS)])
    produced: dict[bytes, list[float]] = defaultdict(list)
    visible_at: dict[bytes, list[float]] = defaultdict(list)
    while not stop:
        for message in consumer.consume(1000, 0.02):
            now = time.time()
            if message.error() is not None:
                continue
            if message.topic() == arriving:
                produced[message.key()].append(message.timestamp()[1] / 1000)
            else:
                times = visible_at[message.key()]
                times += [now] * (int(message.value()) - len(times))
    pairs = [
        (at, seen - at) for key, times in produced.items() for at, seen in zip(times, visible_at[key], strict=False)
    ]
    Path(found).write_text(json.dumps(pairs))


def visible(servers: str, topic: str) -> int:
    """How far a reader of committed messages gets."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "isolation.level": "read_committed"})
    try:
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=20)[1] for n in range(PARTITIONS))
    finally:
        consumer.close()


def fill(servers: str, topic: str, rows: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000})
    for number in range(rows):
        producer.produce(topic, key=f"k{number % KEYS:03}", value=b"x" * SIZE, partition=number % PARTITIONS)
        if number % 50_000 == 0:
            producer.flush()
    producer.flush()


# --- the whole


def measure(bench: Bench, chosen: argparse.Namespace) -> dict[str, Any]:
    full = bench.topic()
    fill(bench.broker.servers, full, chosen.rows)
    catch, late = defaultdict(list), defaultdict(list)
    epochs, steps = defaultdict(list), {}
    say("warming up")
    warm = 0
    while warm < chosen.warm:
        for variant in VARIANTS[:2]:
            found = bench.to_visible(variant, 1000, 2, 20)
            warm += len(found["epochs"])
            say(f"{warm} epochs")
    for number in range(chosen.rounds):
        for variant in VARIANTS:
            speed = bench.catch_up(variant, full, chosen.rows // 5, chosen.rows)
            catch[variant].append(speed)
            say(f"round {number}: {variant} catches up with {speed:,.0f} rows/s")
        for rate in chosen.rates:
            for variant in VARIANTS:
                found = bench.to_visible(variant, rate, 4, chosen.seconds)
                late[variant, rate] += found["late"]
                epochs[variant, rate] += found["epochs"]
                steps[variant, rate] = found["steps"]
                middle = statistics.median(found["late"])
                say(f"round {number}: {variant} at {rate}/s: {middle:.0f} ms, {len(found['epochs'])} epochs")
    return {"catch": catch, "late": late, "epochs": epochs, "steps": steps}


def report(found: dict[str, Any], rates: list[int]) -> list[dict[str, Any]]:
    results = []
    rival = max(found["catch"][VARIANTS[0]])
    print(f"\n{'catch-up':28}{'rows/s':>12}{'ratio':>8}   (best round; median in the file)")
    for variant, speeds in found["catch"].items():
        print(f"{variant:28}{max(speeds):12,.0f}{max(speeds) / rival:8.2f}")
        results.append({"what": "catch-up", "variant": variant, "rows_per_s": [round(s) for s in speeds]})
    for rate in rates:
        base = found["late"][VARIANTS[0], rate]
        print(f"\n{f'{rate:,} records/s: ms to visible':34}{'p50':>7}{'p99':>8}{'ratio p50':>11}{'p99':>7}   epochs")
        for variant in VARIANTS:
            late = sorted(found["late"][variant, rate])
            epochs = found["epochs"][variant, rate]
            p50, p99 = quantile(late, 0.5), quantile(late, 0.99)
            ratios = p50 / quantile(sorted(base), 0.5), p99 / quantile(sorted(base), 0.99)
            print(f"{variant:34}{p50:7.0f}{p99:8.0f}{ratios[0]:11.2f}{ratios[1]:7.2f}{len(epochs):9}")
            parts = {part: statistics.median(e.get(part, 0) for e in epochs) for part in PARTS}
            results.append(
                {
                    "what": "time to visible",
                    "variant": variant,
                    "rate": rate,
                    "p50_ms": round(p50, 1),
                    "p99_ms": round(p99, 1),
                    "ratio_p50": round(ratios[0], 3),
                    "ratio_p99": round(ratios[1], 3),
                    "epochs": len(epochs),
                    "spark_ms": parts,
                    "step_ms": {k: round(v, 2) for k, v in found["steps"][variant, rate].items()},
                }
            )
        print(f"{'an epoch, median ms':34}" + "".join(f"{part:>17}" for part in PARTS))
        for result in results:
            if result.get("rate") == rate:
                print(f"{result['variant']:34}" + "".join(f"{result['spark_ms'][part]:17.0f}" for part in PARTS))
        print(f"{'of it ours, median ms':34}" + "".join(f"{step:>14}" for step in STEPS))
        for result in results:
            if result.get("rate") == rate and result["step_ms"]:
                print(f"{result['variant']:34}" + "".join(f"{result['step_ms'].get(step, 0):14.2f}" for step in STEPS))
    return results


def quantile(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(part * len(values)))]


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/kafka.py", description="Measure Kafka to Kafka beside plain Spark.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="for catch-up")
    parser.add_argument("--rates", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--seconds", type=float, default=20, help="per variant, rate and round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm", type=int, default=300, help="epochs before anything is measured")
    parser.add_argument("--save", action="store_true", help="write bench/results/kafka-<date>.json")
    chosen = parser.parse_args()
    began, load = time.monotonic(), os.getloadavg()
    folder = Path(tempfile.mkdtemp(prefix="fencepost-bench-"))
    conf = {
        "spark.jars": ",".join(map(str, fetch(SPARK_KAFKA))),
        "spark.ui.enabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
    }
    spark = spark_session.make_session("bench", conf)
    spark.sparkContext.setLogLevel("ERROR")
    broker = Broker(folder / "kafka", heap_mb=1024, java_options=("-XX:+UseSerialGC",))
    try:
        with broker, timed_effects() as times:
            found = measure(Bench(spark, broker, folder, times), chosen)
            about = facts(spark, fsync_ms(folder), load)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    results = report(found, chosen.rates)
    print("\n" + ", ".join(f"{name} {value}" for name, value in about.items()))
    print(f"{chosen.rounds} rounds, {time.monotonic() - began:.0f} s")
    if chosen.save:
        print(f"saved to {save('kafka-', about, results)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["feed"]:
        feed(*sys.argv[2:])
    elif sys.argv[1:2] == ["read"]:
        read(*sys.argv[2:])
    else:
        main()
