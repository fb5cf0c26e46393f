"""What the disk is told, and in which order: rows, then the decision, then the target. Seen from outside, by strace."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from streams import BRIDGES, Place, records

pytestmark = [pytest.mark.spark]

CALLS = "fsync,fdatasync,link,linkat,rename,renameat,renameat2"
CHILD = """
import sys
from pathlib import Path
from streams import Place
from fencepost.spark.spark_session import make_session

spark = make_session("fsync", {
    "spark.master": "local[1]", "spark.sql.shuffle.partitions": "1", "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
})
for bridge in sys.argv[2:]:
    Place(Path(sys.argv[1]) / bridge).counting(spark, bridge).run(until="available")
"""

Event = tuple[str, str]
"""`sync` of a path, or `link` and `rename` to one; in the order in which the calls returned."""


def events(trace: str) -> list[Event]:
    """Read strace's lines; a call that another thread interrupted comes in two."""
    found, begun = [], {}
    for line in trace.splitlines():
        match = re.match(r"(\d+) +[\d.]+ (.*)", line)
        if match is None:
            continue
        thread, text = match.groups()
        if text.endswith("<unfinished ...>"):
            begun[thread] = text.removesuffix("<unfinished ...>")
            continue
        if text.startswith("<... "):
            text = begun.pop(thread) + text.partition("resumed>")[2]
        if not re.search(r"\) += 0$", text):
            continue
        call = text.partition("(")[0]
        if call in ("fsync", "fdatasync"):
            found.append(("sync", text[text.index("<") + 1 : text.rindex(">")]))
        else:
            found.append((call[:4].replace("rena", "rename"), re.findall(r'"([^"]+)"', text)[-1]))
    return found


@pytest.fixture(scope="module")
def traced(require: Callable[[str], None], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    """One process runs a job over each bridge, one after the other; a Spark under strace is slow to start."""
    require("strace")
    root = tmp_path_factory.mktemp("traced")
    for bridge in BRIDGES:
        Place(root / bridge).say("a b a", "b c")
    log = root / "trace"
    strace = ["strace", "-f", "--seccomp-bpf", "-y", "-ttt", "-s", "4096", "-e", f"trace={CALLS}", "-o", str(log)]
    command = [*strace, sys.executable, "-c", CHILD, str(root), *BRIDGES]
    helpers = str(Path(__file__).parent.parent / "helpers")
    environment = {**os.environ, "PYTHONPATH": helpers}
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert 0 == child.returncode, child.stderr
    return root, events(log.read_text())


@pytest.mark.parametrize("bridge", BRIDGES)
def test_rows_then_decision_then_target(traced: tuple[Path, list[Event]], bridge: str) -> None:
    place, seen = of_one_bridge(traced, bridge)
    assert place.expected() == place.counts()
    check_epochs(place, seen)


@pytest.mark.parametrize("missing", [r"\.arrow$", r"/staged/\d+$", r"\.json\.\w+\.tmp$", r"/ledger$", r"/out\.db"])
def test_a_missing_sync_is_noticed(traced: tuple[Path, list[Event]], missing: str) -> None:
    place, seen = of_one_bridge(traced, "jvm")
    less = [(call, path) for call, path in seen if call != "sync" or not re.search(missing, path)]
    assert len(less) < len(seen)
    with pytest.raises((AssertionError, ValueError)):
        check_epochs(place, less)


def test_a_target_that_is_written_too_early_is_noticed(traced: tuple[Path, list[Event]]) -> None:
    place, seen = of_one_bridge(traced, "jvm")
    staged = positions(seen, r"\.arrow$")[-1]
    with pytest.raises(AssertionError):
        check_epochs(place, [*seen[: staged + 1], ("sync", f"{place.database}-wal"), *seen[staged + 1 :]])


def of_one_bridge(traced: tuple[Path, list[Event]], bridge: str) -> tuple[Place, list[Event]]:
    root, seen = traced
    place = Place(root / bridge)
    return place, [(call, path) for call, path in seen if path.startswith(str(place.root))]


def check_epochs(place: Place, seen: list[Event]) -> None:
    end = 0
    decided = [record for record in records(place.checkpoint) if record["kind"] == "decision"]
    assert [0, 1] == [record["body"]["epoch"] for record in decided]
    for record in decided:
        end = check_epoch(seen, end, place, record["number"], record["body"]["epoch"])


def check_epoch(seen: list[Event], start: int, place: Place, number: int, epoch: int) -> int:
    """One epoch's calls after `start`; return where they end."""
    ledger = next(place.checkpoint.glob("fencepost/*/ledger"))
    name = f"{number:020d}.json"
    linked = seen.index(("link", str(ledger / name)), start)
    before, after = seen[start:linked], seen[linked:]
    staged = positions(before, rf"/staged/\d+/{epoch}-\w+\.arrow$")
    folders = positions(before, r"/staged/\d+$")
    temps = positions(before, rf"/ledger/\.{re.escape(name)}\.\w+\.tmp$")
    assert staged, "the rows were not synced"
    assert folders, "the name of the staged file was not synced"
    assert 1 == len(temps)
    assert max(staged) < max(folders) < temps[0], "the decision was written before the rows were safe"
    ledger_synced = after.index(("sync", str(ledger)))
    target = positions(after, rf"^{re.escape(str(place.database))}(-wal|-journal)?$")
    assert target, "the target was not synced"
    assert ledger_synced < target[0], "the target was committed before the decision was safe"
    between = positions(before[min(staged) :], rf"^{re.escape(str(place.database))}")
    assert [] == between, "the target was written before the decision"
    return linked + target[0] + 1


def positions(seen: list[Event], pattern: str) -> list[int]:
    return [place for place, (call, path) in enumerate(seen) if call == "sync" and re.search(pattern, path)]


TRACE = """
7 1.0 fsync(3</a/x> <unfinished ...>
8 1.1 link("/a/.t", "/a/t") = 0
8 1.2 fsync(4</a>) = -1 EIO (Input/output error)
7 1.3 <... fsync resumed>) = 0
7 1.4 renameat2(AT_FDCWD</a>, "/a/.u", AT_FDCWD</a>, "/a/u", RENAME_NOREPLACE) = 0
8 1.5 +++ exited with 0 +++
"""


def test_the_reader_of_traces_joins_calls_that_came_in_two() -> None:
    assert [("link", "/a/t"), ("sync", "/a/x"), ("rename", "/a/u")] == events(TRACE)
