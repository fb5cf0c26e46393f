"""Every crash point that the code names, and which of them no killed Spark job can pass, with the reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import fencepost
from fencepost.protocol.effects import Effect

LOSES = "a sink that loses decided rows by itself (a topic only after transaction_timeout)"
ADOPTS = "adopting a checkpoint of plain Spark"
TWO_DRIVERS = "a second driver at the same time"
ELSEWHERE = "a checkpoint on HDFS or S3"
A_COMMAND = "a person's command, which tests of its own kill"
OVERLAPS = "a job with overlap (--overlap)"

OUT_OF_REACH: Mapping[str, str] = {
    "append.read_back": TWO_DRIVERS,
    "check.*": "a look at the ledger before the start, which passes no points",
    "claim.*": "guarantee at_most_once",
    "commit.wait": "a sink that does not answer",
    "engine.*": "the stand-in engine, not Spark",
    "failed.list": "an epoch that fails without a crash",
    "iceberg.creating": "a new table in a REST catalog",
    "mute": "guarantee at_most_once",
    "overlap.begin": OVERLAPS,
    "plain.*": "the sabotaged twin, not fencepost",
    "recover.adopt.*": ADOPTS,
    "recover.ask": LOSES,
    "recover.claim.*": "guarantee at_most_once",
    "recover.list_again": TWO_DRIVERS,
    "recover.metadata": "Spark's metadata file was deleted",
    "recover.rebuild.adopted": ADOPTS,
    "recover.rebuild.unvoid": LOSES,
    "recover.redo.*": LOSES,
    "recover.void": LOSES,
    "recover.rebuild.quiet": A_COMMAND,
    "rescale.*": A_COMMAND,
    "restore.*": A_COMMAND,
    "savepoint.*": A_COMMAND,
    "state.task.*": "a job with map_with_state",
    "store.put": ELSEWHERE,
    "store.remote_temp_written": ELSEWHERE,
    "store.renamed": ELSEWHERE,
    "retention": "a ledger of more than 100 decisions",
    "write": "guarantee at_least_once",
}
"""Effects and places by name; with `.*`, also all below."""


def points_in_code() -> set[str]:
    """Every crash point, by the source."""
    effects = "|".join(kind.__name__ for kind in Effect.__subclasses__())
    around = re.compile(rf"\b(?:(?:{effects})\(|(?:try_)?append\(book, .*, )\"([a-z_.]+)\"")
    inside = re.compile(r"faults\.reach\(\"([a-z_.]+)\"\)")
    found: set[str] = set()
    for file in Path(fencepost.__file__).parent.rglob("*.py"):
        text = file.read_text()
        found |= set(inside.findall(text))
        if file.parent.name == "protocol":
            found |= {f"{point}.{side}" for point in around.findall(text) for side in ("before", "after")}
    return found


def in_worker(point: str) -> bool:
    """Is it passed by the tasks, so that a kill there ends a Python worker and not the driver?"""
    return ".task." in point


def out_of_reach(point: str, more: Mapping[str, str], *, overlap: bool = False) -> str | None:
    """Why a job cannot pass a point; None if there is no reason. `more` are those of its workload."""
    effect = point.removesuffix(".before").removesuffix(".after")
    for name, why in {**OUT_OF_REACH, **more}.items():
        top = name.removesuffix(".*")
        if overlap and why == OVERLAPS:
            continue
        if effect == top or (name != top and effect.startswith(f"{top}.")):
            return why
    return None
