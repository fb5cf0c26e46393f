"""The examples of keyed state, killed where it hurts and started again; the sink is then what plain Python computes
from the same files.

One process runs all five at once, so that each kill meets each of them somewhere. The clock on the wall is New York's,
in the night when it goes from two back to one: an hour is an hour all the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fencepost_proof.kill.scene import KILLED, class_archive
from fencepost_proof.workloads.files import FilesWorkload
from fencepost_proof.workloads.process import OPTIONS, QUICK
from streams import drop_json, table

pytestmark = [pytest.mark.spark, pytest.mark.since(4, 1)]

EXAMPLES = Path(__file__).parents[2] / "examples" / "state"
FAILED = 1
STARVED = "Python worker failed to connect back"
"""Spark gives a Python process ten seconds to start, which a busy machine may not have; then nothing has happened."""

RUNNER = """
import json, runpy, sys, threading
from fencepost import Job
from fencepost.spark.spark_session import make_session

conf, calls = json.loads(sys.argv[1])
make_session("examples", conf)  # theirs, too: a job takes the session that runs
jobs, really = [], Job.run
Job.run = lambda job, **settings: jobs.append(job)  # they are run below, all at once
for sys.argv in calls:
    runpy.run_path(sys.argv[0], run_name="__main__")
Job.run = really
failed = []
def run(job):
    try:
        job.run(until="available")
    except Exception as error:
        failed.append(error)
threads = [threading.Thread(target=run, args=[job]) for job in jobs]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if failed:
    raise failed[0]
"""


def minute(n: int) -> str:
    """05:00 in UTC is one o'clock in New York, and 06:00 is one o'clock again."""
    return (datetime.fromisoformat("2024-11-03T05:00:00+00:00") + timedelta(minutes=n)).isoformat()


FILES: dict[str, list[list[dict[str, Any]]]] = {
    "running_sum": [
        [{"account": f"a{n % 3}", "number": 10 * epoch + n, "amount": 7 * n + epoch} for n in range(10)]
        for epoch in range(3)
    ],
    "unique_visitors": [
        [{"page": f"/{n % 2}", "visitor": f"v{n * epoch % 5}"} for n in range(8)] for epoch in range(1, 4)
    ],
    "logins_last_hour": [
        [{"user": f"u{n % 2}", "at": minute(40 * epoch + 9 * n)} for n in (4, 1, 3, 2)] for epoch in range(3)
    ],
    "two_stream_join/orders": [
        [{"id": n, "item": f"item {n}"} for n in range(4 * epoch, 4 * epoch + 4)] for epoch in range(3)
    ],
    "two_stream_join/payments": [
        [{"id": n, "amount": n} for n in range(10) if n * 7 % 3 == epoch] for epoch in (0, 1, 2)
    ],
    "session_window": [
        [{"user": "u", "at": minute(5)}, {"user": "u", "at": minute(0)}, {"user": "w", "at": minute(3)}],
        [{"user": "u", "at": minute(20)}, {"user": "w", "at": minute(65)}],  # w is quiet for more than 30 minutes
        [{"user": "u", "at": minute(75)}],
        [{"user": "x", "at": minute(300)}],  # moves the watermark over the ends of all but its own
    ],
}


def rows(name: str) -> list[Any]:
    return [row for file in FILES[name] for row in file]


def running_sum() -> dict[str, Any]:
    totals: Counter[str] = Counter()
    found = []
    for row in rows("running_sum"):
        totals[row["account"]] += row["amount"]
        found.append((row["account"], row["number"], totals[row["account"]]))
    return {"sums": found}


def unique_visitors() -> dict[str, Any]:
    views = [(row["page"], row["visitor"]) for row in rows("unique_visitors")]
    return {"views": views, "visitors": list(set(views))}


def logins_last_hour() -> dict[str, Any]:
    before: dict[str, list[datetime]] = defaultdict(list)
    found = []
    for file in FILES["logins_last_hour"]:
        for row in sorted(file, key=lambda row: row["at"]):
            at = datetime.fromisoformat(row["at"])
            before[row["user"]].append(at)
            recent = [each for each in before[row["user"]] if each > at - timedelta(hours=1)]
            found.append((row["user"], row["at"], len(recent)))
    return {"counts": found}


def two_stream_join() -> dict[str, Any]:
    items = {row["id"]: row["item"] for row in rows("two_stream_join/orders")}
    amounts = {row["id"]: row["amount"] for row in rows("two_stream_join/payments")}
    return {"paid": [(n, items[n], amounts[n]) for n in items.keys() & amounts.keys()]}


def session_window() -> dict[str, Any]:
    sessions = [("u", 0, 20, 3), ("w", 3, 3, 1), ("w", 65, 65, 1), ("u", 75, 75, 1)]
    return {"sessions": [(user, minute(first), minute(last), clicks) for user, first, last, clicks in sessions]}


EXAMPLES_OF = (running_sum, unique_visitors, logins_last_hour, two_stream_join, session_window)

KILLS = [
    ("state.task.written=kill@2", FAILED),  # a Python worker, between the states of two keys
    ("decide.after=kill@5", KILLED),  # decided, in no table; the others are anywhere
]


def is_exact(out: Path, example: Callable[[], dict[str, Any]]) -> bool:
    database = out / f"{example.__name__}.db"
    wanted = {name: sorted(expected, key=repr) for name, expected in example().items()}
    return database.exists() and wanted == {name: table(database, name) for name in wanted}


@pytest.mark.long
def test_the_examples_of_keyed_state_live_through_kills(tmp_path: Path, archives: Path) -> None:
    for name, files in FILES.items():
        for file in files:
            drop_json(tmp_path / "in" / name, *file)
    out = tmp_path / "out"
    out.mkdir()
    log = tmp_path / "log"
    archive = class_archive(archives, "files", FilesWorkload, "jvm")
    conf = {**QUICK, OPTIONS: f"{QUICK[OPTIONS]} -XX:SharedArchiveFile={archive}"}

    def start(fault: str) -> int:
        names = [example.__name__ for example in EXAMPLES_OF]
        calls = [[str(EXAMPLES / f"{name}.py"), str(tmp_path / "in" / name), str(out)] for name in names]
        command = [sys.executable, "-c", RUNNER, json.dumps([conf, calls])]
        environment = {**os.environ, "FENCEPOST_FAULT": fault, "TZ": "America/New_York"}
        for _ in range(3):
            with log.open("wb") as said:
                ended = subprocess.run(command, check=False, timeout=240, env=environment, stdout=said, stderr=said)
            if STARVED not in log.read_text():
                break
        return ended.returncode

    for fault, code in KILLS:
        assert code == start(fault), log.read_text()[-6000:]
        assert not all(is_exact(out, example) for example in EXAMPLES_OF)  # and so the comparison can tell
        if code == FAILED:
            assert "Python worker exited unexpectedly" in log.read_text()
    assert 0 == start(""), log.read_text()[-6000:]
    exact = {example.__name__: is_exact(out, example) for example in EXAMPLES_OF}
    assert dict.fromkeys(exact, True) == exact
