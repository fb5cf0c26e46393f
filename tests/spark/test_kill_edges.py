"""A driver that is killed again and again, with what is exact only by a rule above the protocol: shared values that are
drawn, rows that come late for `order_by=`, and state that another plan may not go on with.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from fencepost_proof.kill.scene import KILLED
from fencepost_proof.workloads.process import QUICK
from streams import Place, drop_json, table

pytestmark = [pytest.mark.spark, pytest.mark.since(4, 1)]

PATIENCE_S = 300
JOB = """
import json, os, sys
from pathlib import Path
import fencepost as fp
from pyspark.sql import functions as F

folder, conf, keep = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
job = fp.Job("edges", checkpoint=folder / "checkpoint", conf=conf)
rows = job.read(fp.Files(folder / "in", format="json", schema="id BIGINT, k STRING, at INT", max_files_per_epoch=1))
base = job.share(rows.withColumn("drawn", (fp.rand() * 1_000_000).cast("bigint")))
for name, part in (("low", "drawn < 500000"), ("high", "NOT drawn < 500000")):
    job.write(base.where(part).select("id", "k", "drawn"), fp.SQLite(folder / "out.db", table=name))
sums = base.where(keep).groupBy("k").agg(F.sum("drawn"), F.count("*")).toDF("k", "drawn", "rows")
job.write(sums, fp.SQLite(folder / "out.db", table="sums", key="k"))
job.write(rows.select("k", "at", "id"), fp.SQLite(folder / "out.db", table="newest", key="k", order_by="at"))
try:
    job.run(until="available")
except fp.Refused as error:
    sys.exit(error.code)
"""


def start(place: Place, fault: str, *, keep: str = "true") -> tuple[int, str]:
    """Run it in a process of its own: how it ended, and what it said last."""
    command = [sys.executable, "-c", JOB, str(place.root), json.dumps(QUICK), keep]
    environment = {**os.environ, "FENCEPOST_FAULT": fault}
    ended = subprocess.run(command, check=False, timeout=PATIENCE_S, env=environment, capture_output=True, text=True)
    return ended.returncode, (ended.stderr.strip().splitlines() or [""])[-1]


@pytest.mark.long
def test_kills_change_neither_shared_values_nor_the_newest_row_nor_the_owner_of_state(place: Place) -> None:
    fed: list[dict[str, Any]] = []
    for epoch in range(6):
        # The larger the epoch, the older the row: all but the first come late.
        fed += [{"id": epoch * 40 + n, "k": "abcd"[n % 4], "at": 1000 - 100 * epoch + n} for n in range(40)]
        drop_json(place.input, *fed[-40:])
    assert KILLED == start(place, "precommit.after=kill@2")[0]
    assert KILLED == start(place, "decide.after=kill@2")[0]  # decided, and in no table yet
    assert (1, "state_made_otherwise") == start(place, "", keep="id % 2 = 0")
    assert KILLED == start(place, "commit.before=kill@1")[0]  # by recovery, in which nothing is computed
    assert KILLED == start(place, "vote.after=kill@1")[0]
    assert 0 == start(place, "")[0]
    seen = [*table(place.database, "low"), *table(place.database, "high")]
    assert [row["id"] for row in fed] == sorted(row[0] for row in seen)
    assert all(drawn < 500_000 for _, _, drawn in table(place.database, "low"))
    sums: Counter[str] = Counter()
    for _, key, drawn in seen:
        sums[key] += drawn
    assert [(key, sums[key], 60) for key in "abcd"] == table(place.database, "sums")
    greatest = {key: max((row["at"], row["id"]) for row in fed if row["k"] == key) for key in "abcd"}
    assert [(key, *greatest[key]) for key in "abcd"] == table(place.database, "newest")
