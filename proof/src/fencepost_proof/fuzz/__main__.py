"""`make fuzz N=300 ARGS="--seed 7"`: many random jobs; the seed of each that is wrong makes it again."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

from fencepost.spark import spark_session
from fencepost_proof.fuzz.plans import Place
from fencepost_proof.fuzz.runs import Starter, here, run
from fencepost_proof.fuzz.worker import SETTINGS, Worker


def main() -> int:
    """Run them one after the other."""
    parser = argparse.ArgumentParser(prog="python -m fencepost_proof.fuzz")
    parser.add_argument("number", type=int, help="how many jobs")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--kill", action="store_true", help="faults kill the driver with SIGKILL")
    parser.add_argument("--embedded", action="store_true", help="without Kafka and PostgreSQL")
    parser.add_argument("--all", action="store_true", help="print every job, not only the wrong ones")
    told = parser.parse_args()
    verdicts: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    with ExitStack() as stack:
        kafka, postgres, settings = ("", "", SETTINGS) if told.embedded else _servers(stack)
        spark = spark_session.make_session("fuzz", settings, jar=True)
        starter: Starter = here(spark)
        if told.kill:
            starter = stack.enter_context(closing(Worker(settings)))
        for seed in range(told.seed, told.seed + told.number):
            root = Path(tempfile.mkdtemp(prefix="fencepost-fuzz-"))
            place = Place(root, kafka, postgres)
            outcome = run(seed, place, spark, starter, action="kill" if told.kill else "fail")
            verdicts[outcome.verdict] += 1
            codes[outcome.refused] += bool(outcome.refused)
            if outcome.wrong or told.all:
                print(outcome, flush=True)
            if outcome.wrong:
                print(f"  its files are in {root}", flush=True)
            else:
                shutil.rmtree(root, ignore_errors=True)
    said = ", ".join(f"{count} {code}" for code, count in codes.most_common() if code)
    print(
        f"{told.number} jobs: {verdicts['exact']} exact, {verdicts['refused']} refused ({said}), "
        f"{verdicts['wrong']} wrong."
    )
    return 1 if verdicts["wrong"] else 0


def _servers(stack: ExitStack) -> tuple[str, str, dict[str, str]]:
    """A broker, a database, and settings with Spark's Kafka connector."""
    from fencepost_proof.rig.jars import SPARK_KAFKA, fetch  # noqa: PLC0415 - only with servers
    from fencepost_proof.rig.kafka import Broker  # noqa: PLC0415
    from fencepost_proof.rig.postgres import Postgres  # noqa: PLC0415

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fencepost-servers-")))
    broker = stack.enter_context(Broker(folder / "kafka"))
    database = stack.enter_context(Postgres(folder / "postgres"))
    jars = ",".join(str(jar) for jar in fetch(SPARK_KAFKA))
    return broker.servers, database.dsn, {**SETTINGS, "spark.jars": jars}


if __name__ == "__main__":
    sys.exit(main())
