"""What the benchmarks share: the machine's facts, and the time that each step of the protocol takes."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

import fencepost as fp
from fencepost.runtime import performer


@contextmanager
def timed_effects() -> Iterator[dict[str, list[float]]]:
    """Time every effect of the protocol at the one place where effects are done."""
    plain, times = dict(performer._DO), defaultdict[str, list[float]](list)

    def timed(do: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def run(performer: Any, effect: Any) -> Any:
            began = time.perf_counter()
            try:
                return do(performer, effect)
            finally:
                times[effect.point].append((time.perf_counter() - began) * 1000)

        return run

    performer._DO = {kind: timed(do) for kind, do in plain.items()}  # type: ignore[misc]
    try:
        yield times
    finally:
        performer._DO = plain  # type: ignore[misc]


def fsync_ms(folder: Path) -> float:
    """What one small write and fsync cost here."""
    times = []
    for number in range(50):
        with open(folder / f"fsync-{number}", "wb") as file:
            file.write(b"x" * 500)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def facts(spark: SparkSession, fsync: float, load: tuple[float, float, float]) -> dict[str, Any]:
    """The machine, for whoever compares figures."""
    return machine(spark._jvm.java.lang.System.getProperty("java.version"), fsync, load)


def machine(java: str, fsync: float, load: tuple[float, float, float]) -> dict[str, Any]:
    """The same without a session."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "load before": round(load[0], 2),
        "load after": round(os.getloadavg()[0], 2),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "fsync ms": round(fsync, 2),
        "python": platform.python_version(),
        "java": java,
        "pyspark": pyspark.__version__,
        "pyarrow": pa.__version__,
        "sqlite": sqlite3.sqlite_version,
        "fencepost": fp.__version__,
    }


def save(name: str, found: dict[str, Any], results: Any) -> Path:
    path = Path(__file__).parent / "results" / f"{name}{datetime.now(UTC):%Y-%m-%d}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"facts": found, "results": results}, indent=1) + "\n")
    return path
