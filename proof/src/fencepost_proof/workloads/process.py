"""What every killed job is as a process: its command line, its JVM, its exit code, and the task that kills it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fencepost as fp

REFUSED = 1
"""Exit code of one that was not let in, or that failed in a way nobody expects."""
FENCED = 3
"""Exit code of a driver that was replaced."""
AGAIN = 4
"""Exit code of one that failed and says: start me again."""
OPTIONS = "spark.driver.extraJavaOptions"
QUICK = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # A short run never reaches the second compiler; the first one alone starts sooner.
    OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}


ANY_PLAN: Mapping[str, Any] = {"deterministic_udfs": True, "allow_plan_changes": True}
"""For a job whose rows pass through a function at some starts (`rows_in`) and not at others; it changes no row."""


@dataclass(frozen=True)
class Told:
    """What the command line said."""

    folder: Path
    bridge: Any
    kill_at: int | None
    plain: bool
    conf: Mapping[str, str]
    more: argparse.Namespace

    @property
    def checkpoint(self) -> Path:
        """Of the job."""
        return self.folder / "checkpoint"


def main(arguments: list[str], run: Callable[[Told], None], *more: str) -> int:
    """Run a job as told; `more` are further arguments that it needs."""
    parser = argparse.ArgumentParser(description="A job to be killed.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bridge", choices=["jvm", "foreach_batch"])
    parser.add_argument("--kill-at-id", type=int)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--java", default="", help="one more option for the JVM")
    for name in more:
        parser.add_argument(name, required=True)
    chosen = parser.parse_args(arguments)
    conf = QUICK | {OPTIONS: f"{QUICK[OPTIONS]} {chosen.java}"}
    try:
        run(Told(chosen.folder, chosen.bridge, chosen.kill_at_id, chosen.plain, conf, chosen))
    except fp.FencepostError as error:
        print(error, file=sys.stderr)
        if isinstance(error, fp.Fenced):
            return FENCED
        return AGAIN if isinstance(error, fp.Retryable) else REFUSED
    return 0


def killing(driver: int, at: int) -> Callable[[int], int]:
    """A function for a task that ends the driver when it is given one certain id."""

    def passed_on(number: int) -> int:
        if number == at:
            os.kill(driver, signal.SIGKILL)
        return number

    return passed_on


def rows_in(spark: Any, rows: Any, kill_at: int | None) -> Any:
    """The rows as they are; with `kill_at` they pass through a Python worker that kills."""
    if kill_at is None:
        return rows
    spark.udf.register("passed_on", killing(os.getpid(), kill_at), "bigint")
    return rows.selectExpr("passed_on(id) AS id", *[f"`{name}`" for name in rows.columns if name != "id"])
