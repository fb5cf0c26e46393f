"""Measures what the levers on a warm epoch bring, each beside the same job without it, in one session, taking turns.

    python -m bench.epoch now@20 "fetch.max.wait.ms 500@20" now@1000 "one state partition@1000"

Kafka, 4 partitions → a running count of 10,000 keys → Kafka. For each variant and rate: time to visible, epochs, and
the cores that the driver (Python and JVM) takes; rate 0 is an idle job.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("BENCH_KEYS", "10000")
os.environ.setdefault("BENCH_PARTITIONS", "4")

from bench.common import facts, fsync_ms, save, timed_effects
from bench.kafka import PARTS, STEPS, Bench, quantile, say
from fencepost_proof.rig.jars import SPARK_KAFKA, fetch
from fencepost_proof.rig.kafka import Broker
from py4j.clientserver import JavaClient
from pyspark.sql import functions as F  # noqa: N812

import fencepost as fp
from fencepost.connectors.kafka import source
from fencepost.observe import journal
from fencepost.spark import bridge, spark_session

OWN = ("call", "proofs", "journal", "py4j calls")
"""Of one epoch: our whole Python call, what it asks before a decision, what it writes for people; ms, and a number."""
WAIT = "kafka.fetch.max.wait.ms"
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "now": {},
    "fetch.max.wait.ms 500": {"options": {WAIT: "500"}},
    "fetch.max.wait.ms 20": {"options": {WAIT: "20"}},
    "fetch.max.wait.ms 5": {"options": {WAIT: "5"}},
    "no rest": {"checkpoint": {"interval": "0 s"}},
    "one state partition": {"settings": {"spark.sql.shuffle.partitions": "1"}},
    "no plan validation": {"settings": {"spark.sql.lightweightPlanChangeValidation": "false"}},
    "no generated code": {"settings": {"spark.sql.codegen.wholeStage": "false"}},
    "no count of keys": {"settings": {"spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false"}},
}
"""What differs from the job as it is: options of the source, options of the checkpoint, settings of the session."""


class Levers(Bench):
    """The same job, with one thing changed at a time."""

    @contextmanager
    def query(self, variant: str, frame: Any, topic: str, trigger: dict[str, Any]) -> Iterator[Any]:
        place = self.folder / f"place-{self.made}"
        told = VARIANTS[variant]
        sink = fp.Kafka(topic, servers=self.broker.servers, key="key", value="value", name="out")
        checkpoint = fp.Checkpoint(place, **told.get("checkpoint", {}))
        with ExitStack() as stack:
            stack.enter_context(spark_session.settings(self.spark, told.get("settings", {})))
            job = fp.Job("bench", checkpoint=checkpoint, spark=self.spark, output_mode="update").write(frame, sink)
            query = job.start()
            stack.callback(job.stop)
            yield query
        shutil.rmtree(place)

    def measure(self, variant: str, rate: int, settle: float, seconds: float) -> dict[str, Any]:
        """Time to visible with the cores that it took; of an idle job (rate 0) only the cores."""
        self.variant = variant
        if rate:
            return self.to_visible(variant, rate, settle, seconds)
        arriving, out = self.topic(), self.topic()
        counts = self.source(arriving).groupBy("key").count()
        frame = counts.select("key", F.col("count").cast("string").alias("value"))
        with self.query(variant, frame, out, {}):
            time.sleep(settle)
            began, before = time.monotonic(), self.cpu_s()
            time.sleep(seconds)
            cores = (self.cpu_s() - before) / (time.monotonic() - began)
        return {"late": [], "epochs": [], "steps": {}, "cores": cores}

    def source(self, topic: str, **settings: Any) -> Any:
        return super().source(topic, **settings, options=VARIANTS[self.variant].get("options", {}))


@contextmanager
def own_times(steps: dict[str, list[float]]) -> Iterator[None]:
    """Time our Python call and its parts, and count the calls into the JVM that the calling thread makes."""
    with ExitStack() as stack:
        calls = [0]

        def timed(owner: Any, method: str, name: str, unit: float = 1000.0) -> None:
            real = getattr(owner, method)

            def run(*given: Any, **more: Any) -> Any:
                began, before = time.perf_counter(), calls[0]
                try:
                    return real(*given, **more)
                finally:
                    steps[name].append((time.perf_counter() - began) * unit)
                    if name == "call":
                        steps["py4j calls"].append(calls[0] - before)

            setattr(owner, method, run)
            stack.callback(setattr, owner, method, real)

        def counted(client: Any, *given: Any, **more: Any) -> Any:
            calls[0] += threading.current_thread() is not threading.main_thread()
            return send(client, *given, **more)

        send = JavaClient.send_command
        stack.callback(setattr, JavaClient, "send_command", send)
        JavaClient.send_command = counted
        timed(bridge._Epochs, "epoch", "call")
        timed(source, "find_again", "proofs")
        timed(journal.Journal, "note", "journal")
        yield


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/epoch.py", description="Measure what the levers on an epoch bring.")
    parser.add_argument("cells", nargs="+", type=_cell, metavar="VARIANT@RATE", help=", ".join(VARIANTS))
    parser.add_argument("--seconds", type=float, default=10, help="per variant, rate and round")
    parser.add_argument("--settle", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm", type=int, default=100, help="epochs before anything is measured")
    parser.add_argument("--save", action="store_true", help="write bench/results/epoch-<date>.json")
    chosen = parser.parse_args()
    load = os.getloadavg()
    folder = Path(tempfile.mkdtemp(prefix="fencepost-bench-"))
    conf = {
        "spark.jars": ",".join(map(str, fetch(SPARK_KAFKA))),
        "spark.ui.enabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
    }
    spark = spark_session.make_session("bench", conf)
    spark.sparkContext.setLogLevel("ERROR")
    broker = Broker(folder / "kafka", heap_mb=512, java_options=("-XX:+UseSerialGC",))
    found: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    try:
        with broker, timed_effects() as times, own_times(times):
            bench = Levers(spark, broker, folder, times)
            warm = 0
            while warm < chosen.warm:
                warm += max(1, len(bench.measure("now", 1000, 15, 15)["epochs"]))
                say(f"{warm} epochs to warm up")
            for number in range(chosen.rounds):
                for variant, rate in chosen.cells:
                    one = bench.measure(variant, rate, chosen.settle, chosen.seconds)
                    found[variant, rate].append(one)
                    say(f"round {number}: {_line(variant, rate, [one])}")
                    say(_parts([one]))
            about = facts(spark, fsync_ms(folder), load)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{'':32}{'rate':>7}{'p50':>7}{'p99':>8}{'max':>8}{'cores':>7}{'epochs':>8}{'epoch ms':>10}")
    for variant, rate in chosen.cells:
        print(_line(variant, rate, found[variant, rate]))
        print("    " + _parts(found[variant, rate]))
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    if chosen.save:
        results = [_plain(variant, rate, runs) for (variant, rate), runs in found.items()]
        save("epoch", about, results)


def _cell(text: str) -> tuple[str, int]:
    variant, _, rate = text.rpartition("@")
    return next(name for name in VARIANTS if name == variant), int(rate)


def _plain(variant: str, rate: int, runs: list[dict[str, Any]]) -> dict[str, Any]:
    late = sorted(each for run in runs for each in run["late"])
    epochs = [each for run in runs for each in run["epochs"]]
    return {
        "variant": variant,
        "rate": rate,
        "p50_ms": round(quantile(late, 0.5)) if late else None,
        "p99_ms": round(quantile(late, 0.99)) if late else None,
        "max_ms": round(late[-1]) if late else None,
        "cores": round(statistics.mean(run["cores"] for run in runs), 3),
        "epochs": len(epochs),
        "spark_ms": {part: statistics.median(e.get(part, 0) for e in epochs) for part in PARTS} if epochs else {},
        "step_ms": {step: round(runs[-1]["steps"].get(step, 0), 2) for step in (*STEPS, *OWN)},
    }


def _line(variant: str, rate: int, runs: list[dict[str, Any]]) -> str:
    one = _plain(variant, rate, runs)
    late = "".join(f"{'' if one[k] is None else one[k]:>{n}}" for k, n in (("p50_ms", 7), ("p99_ms", 8), ("max_ms", 8)))
    taken = one["spark_ms"].get("triggerExecution", 0)
    return f"{variant:32}{rate:>7}{late}{one['cores']:>7.2f}{one['epochs']:>8}{taken:>10.0f}"


def _parts(runs: list[dict[str, Any]]) -> str:
    one = _plain("", 0, runs)
    return ", ".join(f"{k} {v:g}" for k, v in {**one["spark_ms"], **one["step_ms"]}.items())


if __name__ == "__main__":
    main()
