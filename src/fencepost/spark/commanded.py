"""Spark settings of the command line: `fencepost run job.py --master spark://… --conf name=value`.

    a session that fencepost makes    they go before what the file says in conf=…
    a session that the file makes     Spark takes them where the file itself says nothing; another master is refused

Never written into a file: a setting may be a password. But Spark gets it as an argument of its JVM, which `ps` shows.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from fencepost.errors import UNCHANGED, BadConfig

SETTINGS: Final = "FENCEPOST_SPARK"
"""The environment variable by which a driver is told."""
SUBMIT: Final = "PYSPARK_SUBMIT_ARGS"
"""By this one pyspark itself is told, when it starts its JVM."""
MASTER: Final = "spark.master"


def read(master: str | None, conf: Sequence[str]) -> dict[str, str]:
    """The settings that `--master` and `--conf` name."""
    found = {}
    for text in conf:
        name, sign, value = text.partition("=")
        if not (sign and name.startswith("spark.")):
            raise BadConfig(
                "bad_conf",
                f"--conf names {name if sign else 'no value'}, which is no setting of Spark's.",
                safe=UNCHANGED,
                next="Write it as --conf spark.name=value, once for each.",
            )
        found[name] = value
    return found if master is None else {**found, MASTER: master}


def tell(wanted: Mapping[str, str]) -> None:
    """Let this process, and every driver that it starts, have these settings."""
    if not wanted:
        return
    *before, program = shlex.split(os.environ.get(SUBMIT, "pyspark-shell"))
    ours = [part for name, value in wanted.items() for part in ("--conf", f"{name}={value}")]
    # Spark's own option goes before the setting of the same name, so the master is named by that.
    last = ["--master", wanted[MASTER]] if MASTER in wanted else []
    os.environ[SUBMIT] = shlex.join([*before, *ours, *last, program])
    os.environ[SETTINGS] = json.dumps(dict(wanted))
    told.cache_clear()


@cache
def told() -> Mapping[str, str]:
    """What the command line says; nothing, if there was none."""
    found: dict[str, str] = json.loads(os.environ.get(SETTINGS, "{}"))
    return found
